//! Folios between a base page and a huge page (mTHP, Linux 6.8).
//!
//! No file shows the folio of a page. But a fault maps the whole folio at once: touch one
//! byte of a mapping that is exactly as large and as aligned as the folio, and count the pages that
//! have become present. Mapping no more than that keeps larger folios out.

use superhue_model::{BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE};
use superhue_procfs::system::ThpSettings;
use superhue_procfs::system::thp::{MthpMode, ThpMode};
use superhue_sys::scratch::Scratch;

use super::Probe;
use super::finding::{Finding, Trial, symbol};
use super::look::{ProcessFiles, ReadFailure};
use super::surroundings::ProbeEnvironment;

pub(super) const MTHP: Probe = Probe {
    id: "mthp",
    name: "Folios smaller than a huge page",
    how: "read the sizes and modes; for each enabled one touched one byte and counted the pages \
          that became present",
    used_for: "knowing what else the kernel does: results differ with it",
    run: mthp,
};

/// One enabled size, and true if a fault made such a folio.
type FolioTrial = (ByteCount, Result<bool, ReadFailure>);

fn mthp(around: &ProbeEnvironment) -> Trial {
    let settings =
        ThpSettings::read(&around.roots).map_err(|error| Finding::unknown(error.to_string()))?;
    let sizes: Vec<_> = settings
        .sizes
        .iter()
        .filter(|size| (BASE_PAGE_SIZE + 1..HUGE_PAGE_SIZE).contains(&size.size.0))
        .filter_map(|size| Some((size.size, size.enabled?)))
        .collect();
    let look = ProcessFiles::own(&around.roots);
    let trials: Vec<FolioTrial> = sizes
        .iter()
        .filter(|(_, mode)| is_on(*mode, settings.enabled))
        .map(|(size, _)| (*size, trial(*size, &look)))
        .collect();
    let finding = conclude(sizes.len(), &trials);
    let smaller = (settings.sizes.iter()).filter(|size| size.size.0 < HUGE_PAGE_SIZE);
    let held: Vec<String> = smaller
        .filter_map(|size| Some((size.size, size.held().filter(|held| held.0 > 0)?)))
        .map(|(size, held)| format!("{held} in folios of {size}"))
        .collect();
    Ok(match held.is_empty() {
        true => finding,
        false => Finding {
            found: format!("{}; now {}", finding.found, held.join(", ")),
            ..finding
        },
    })
}

/// Returns true if a fault in advised memory should make folios of a size with this mode.
fn is_on(mode: MthpMode, top: Option<ThpMode>) -> bool {
    match mode {
        MthpMode::Always | MthpMode::Madvise => true,
        MthpMode::Inherit => top.is_some_and(|top| top != ThpMode::Never),
        MthpMode::Never => false,
    }
}

fn trial(size: ByteCount, look: &ProcessFiles) -> Result<bool, ReadFailure> {
    let length = usize::try_from(size.0).map_err(|_| "larger than memory".to_owned())?;
    let mut scratch = Scratch::untouched(length).map_err(symbol)?;
    scratch.advise_huge().map_err(symbol)?;
    scratch.touch();
    Ok(look.present(scratch.range())? == size.whole_pages())
}

fn conclude(offered: usize, trials: &[FolioTrial]) -> Finding {
    if offered == 0 {
        return Finding::no("the kernel offers no such size").remedy("Linux 6.8 or later");
    }
    if trials.is_empty() {
        return Finding::partial(format!("{offered} sizes offered, all switched off")).remedy(
            "host-wide, as root: echo inherit > \
             /sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled",
        );
    }
    let list = |wanted: fn(&FolioTrial) -> bool| {
        let sizes: Vec<_> = trials
            .iter()
            .filter(|trial| wanted(trial))
            .map(|(size, _)| size.to_string())
            .collect();
        (!sizes.is_empty()).then(|| sizes.join(", "))
    };
    let made = list(|(_, made)| *made == Ok(true));
    let not_made = list(|(_, made)| *made == Ok(false));
    match (made, not_made) {
        (Some(made), None) => Finding::yes(format!("a fault makes {made}")),
        (Some(made), Some(not)) => Finding::partial(format!(
            "a fault makes {made}; enabled, but not made just now: {not}"
        )),
        (None, Some(not)) => Finding::partial(format!("enabled, but not made just now: {not}")),
        (None, None) => {
            let blind = trials.iter().find_map(|(_, made)| made.clone().err());
            Finding::unseen(blind.unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Availability;
    use super::*;

    #[test]
    fn enabled_sizes_count_when_a_fault_makes_them() {
        let kib = ByteCount::from_kib;
        let availability = |trials: &[FolioTrial]| conclude(8, trials).availability;
        assert_eq!(conclude(0, &[]).availability, Availability::No);
        assert_eq!(availability(&[]), Availability::Partial);
        assert_eq!(availability(&[(kib(64), Ok(true))]), Availability::Yes);
        assert_eq!(
            availability(&[(kib(64), Ok(true)), (kib(128), Ok(false))]),
            Availability::Partial
        );
        assert_eq!(availability(&[(kib(64), Ok(false))]), Availability::Partial);
        assert_eq!(
            availability(&[(kib(64), Err("no pagemap".into()))]),
            Availability::Unknown
        );
        assert_eq!(
            conclude(8, &[(kib(64), Ok(true))]).found,
            "a fault makes 64 KiB"
        );
    }

    #[test]
    fn inherited_sizes_follow_the_top_level() {
        assert!(is_on(MthpMode::Inherit, Some(ThpMode::Madvise)));
        assert!(!is_on(MthpMode::Inherit, Some(ThpMode::Never)));
        assert!(is_on(MthpMode::Madvise, Some(ThpMode::Never)));
        assert!(!is_on(MthpMode::Never, Some(ThpMode::Always)));
    }

    #[test]
    fn one_base_page_is_not_taken_for_a_folio() {
        // Under any settings of the machine, a fault in one page's worth maps one page.
        let look = ProcessFiles::own(&superhue_procfs::Roots::default());
        assert_eq!(trial(ByteCount(BASE_PAGE_SIZE), &look), Ok(true));
    }
}

//! The base of everything else: 4 KiB base pages, and the capabilities of the caller.

use rustix::thread::CapabilitySet;
use superhue_model::{BASE_PAGE_SIZE, ByteCount};

use super::Probe;
use super::finding::Finding;
use super::surroundings::{ProbeEnvironment, RELEVANT, names};

pub(super) const PAGE_SIZE: Probe = Probe {
    id: "page-size",
    name: "4 KiB base pages",
    how: "asked the kernel (sysconf)",
    used_for: "everything: a huge page is 512 base pages of 4 KiB, 2 MiB",
    run: |_| match unsuitable_page_size() {
        Some(finding) => Err(finding),
        None => Ok(Finding::yes(ByteCount(page_size()).to_string())),
    },
};

pub(super) const CAPABILITIES: Probe = Probe {
    id: "capabilities",
    name: "Privileges held",
    how: "asked the kernel (capget); what each is good for is tried below",
    used_for: "acting on and looking into other processes",
    run: |around| Ok(capabilities(around)),
};

/// Returns a finding if the size of base pages keeps everything here from working.
pub(super) fn unsuitable_page_size() -> Option<Finding> {
    unsuitable(page_size())
}

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

fn unsuitable(page_size: u64) -> Option<Finding> {
    (page_size != BASE_PAGE_SIZE).then(|| {
        Finding::no(format!(
            "base pages are {}, not 4 KiB",
            ByteCount(page_size)
        ))
        .remedy("a kernel with 4 KiB base pages")
    })
}

fn capabilities(around: &ProbeEnvironment) -> Finding {
    let Some(held) = around.held else {
        return Finding::unknown("the kernel does not tell which capabilities are held");
    };
    let relevant = RELEVANT
        .into_iter()
        .fold(CapabilitySet::empty(), |all, (one, _)| all | one);
    let held = held & relevant;
    let missing = relevant - held;
    let inside = match around.user_namespace {
        Some(true) => "; they count in this user namespace only",
        _ => "",
    };
    if held.is_empty() {
        return Finding::no("none of those that Superhue has a use for")
            .remedy("not needed for one's own programs; else run as root");
    }
    let found = format!("{}{inside}", names(held));
    if missing.is_empty() {
        return Finding::yes(found);
    }
    Finding::partial(found).remedy(format!("run as root or grant {}", names(missing)))
}

#[cfg(test)]
mod tests {
    use super::super::Availability;
    use super::*;

    #[test]
    fn other_page_sizes_are_refused_with_the_reason() {
        assert_eq!(unsuitable(4096), None);
        let finding = unsuitable(65536).unwrap();
        assert_eq!(finding.availability, Availability::No);
        assert_eq!(finding.found, "base pages are 64 KiB, not 4 KiB");
    }

    #[test]
    fn capabilities_are_judged_by_what_is_held() {
        let mut around =
            ProbeEnvironment::of(&superhue_procfs::Roots::default(), Default::default());
        around.user_namespace = Some(false);
        around.held = Some(CapabilitySet::all());
        assert_eq!(capabilities(&around).availability, Availability::Yes);
        around.held = Some(CapabilitySet::SYS_NICE | CapabilitySet::CHOWN);
        let some = capabilities(&around);
        assert_eq!(
            (some.availability, some.found.as_str()),
            (Availability::Partial, "CAP_SYS_NICE")
        );
        around.held = Some(CapabilitySet::CHOWN);
        assert_eq!(capabilities(&around).availability, Availability::No);
        around.held = None;
        assert_eq!(capabilities(&around).availability, Availability::Unknown);
    }
}

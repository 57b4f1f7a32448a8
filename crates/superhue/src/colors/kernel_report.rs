//! Report on colors where the kernel placed memory.

use std::collections::BTreeMap;

use serde::Serialize;
use superhue_color::oracles::{Share, Trust};
use superhue_model::{ByteCount, PageCount, counted};
use superhue_procfs::system::PageColors;

use super::census::{Census, ColorMismatch, ProcessCounts};
use super::report::{ColoredProgram, ColorsReport, LISTED, share};
use super::{ColorSetup, KernelPolicy};

/// Figures of the kernel that placed memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KernelColors {
    /// Definition of a color, in the kernel's words.
    pub geometry: String,
    /// Trust in that geometry as the cache's index: `trusted`, `refuted` or `untested`.
    pub trust: &'static str,
    /// Reason, where it is not trusted.
    pub reason: Option<String>,
    /// The share of conflicts that it predicts correctly; `None` if none could be measured.
    pub right: Option<f64>,
    /// Allocations of the whole machine meanwhile that got the wanted color; `None` if the counts could not be read.
    pub hits: Option<u64>,
    /// Allocations that got another color.
    pub fallbacks: Option<u64>,
    /// In the process with the most memory: pages of the wanted color with the fewest, and of the one with the most.
    pub pages_by_color: Option<(PageCount, PageCount)>,
    /// Processes that had other colors at the last look: they, or their control group, have set them.
    pub with_other_colors: u64,
}

/// Makes the report on counted processes; `after` holds the kernel's present counts of the machine.
pub(crate) fn report(
    prepared: &ColorSetup,
    policy: &KernelPolicy,
    census: Option<&Census>,
    after: Option<&PageColors>,
) -> ColorsReport {
    let mut processes: Vec<_> = census.iter().flat_map(|census| &census.processes).collect();
    processes.sort_by_key(|(_, counted)| std::cmp::Reverse(counted.colors.resident()));
    let sum = |count: fn(&ProcessCounts) -> u64| {
        let counts = processes.iter().map(|(_, counted)| count(counted));
        counts.fold(0, u64::saturating_add)
    };
    // Of the processes whose pages the kernel shows.
    let resident = sum(|counted| resident_and_right(counted).map_or(0, |(resident, _)| resident.0));
    let inside = sum(|counted| resident_and_right(counted).map_or(0, |(_, right)| right.0));
    let (checked, confirmed) = (sum(|one| one.checked.pages), sum(|one| one.checked.inside));
    let bytes = |pages: u64| PageCount(pages).bytes();
    let program = |(id, counted): &(&superhue_model::ProcessId, &ProcessCounts)| {
        let (resident, right) = resident_and_right(counted)?;
        Some(ColoredProgram {
            pid: id.pid,
            name: counted.name.clone(),
            resident_bytes: resident.bytes(),
            right_bytes: right.bytes(),
        })
    };
    let with_other_colors = processes.iter().filter(|(_, counted)| {
        let set = counted.colors.set.as_ref();
        set != Some(&policy.set)
    });
    ColorsReport {
        placement: "kernel".to_owned(),
        processes: processes.len() as u64,
        resident_bytes: bytes(resident),
        right_bytes: bytes(inside),
        huge_page_bytes: bytes(sum(|counted| counted.colors.large().0)),
        share: share(inside, resident),
        verified_pages: checked,
        verified_share: share(confirmed, checked),
        left_bytes: left(&processes, resident.saturating_sub(inside), checked),
        programs: processes.iter().filter_map(program).take(LISTED).collect(),
        kernel: Some(KernelColors {
            geometry: policy.geometry.clone(),
            trust: policy.judgement.trust.name(),
            reason: match &policy.judgement.trust {
                Trust::Trusted => None,
                Trust::Refuted(why) | Trust::Untested(why) => Some(why.clone()),
            },
            right: Share::value(policy.judgement.right()),
            hits: meanwhile(policy, after, |counts| counts.hits),
            fallbacks: meanwhile(policy, after, |counts| counts.fallbacks),
            pages_by_color: processes
                .first()
                .and_then(|(_, largest)| spread(policy, largest)),
            with_other_colors: with_other_colors.count() as u64,
        }),
        ..ColorsReport::of(prepared)
    }
}

/// Returns the resident pages of a process and those of the wanted set; `None` where the kernel shows one of them only to others.
fn resident_and_right(counted: &ProcessCounts) -> Option<(PageCount, PageCount)> {
    Some((counted.colors.resident()?, counted.inside?))
}

/// Returns the pages outside, by reason: the shares come from the checked frames, the total from the kernel's count.
fn left(
    processes: &[(&superhue_model::ProcessId, &ProcessCounts)],
    outside: u64,
    checked: u64,
) -> BTreeMap<&'static str, ByteCount> {
    let mut seen: BTreeMap<ColorMismatch, u64> = BTreeMap::new();
    for (_, counted) in processes {
        for (why, pages) in &counted.checked.outside {
            *seen.entry(*why).or_default() += pages;
        }
    }
    let all: u64 = seen.values().sum();
    let mut left = BTreeMap::new();
    if outside > 0 && all == 0 {
        let unknown = match checked {
            0 => {
                "reason not known: the frame numbers of pages are hidden (CAP_SYS_ADMIN); pages of files \
                 lie where others read them"
            }
            _ => "reason not known: none of the pages that were checked lies outside",
        };
        left.insert(unknown, PageCount(outside).bytes());
    }
    for (why, pages) in seen {
        let part = u128::from(outside) * u128::from(pages) / u128::from(all.max(1));
        let pages = u64::try_from(part).unwrap_or(u64::MAX);
        if pages > 0 {
            left.insert(why.describe(), PageCount(pages).bytes());
        }
    }
    left
}

/// Returns the growth of a counter over the wanted colors, on the whole machine.
fn meanwhile(
    policy: &KernelPolicy,
    after: Option<&PageColors>,
    count: fn(&superhue_procfs::system::page_color::ColorCounts) -> PageCount,
) -> Option<u64> {
    let wanted = |coloring: &PageColors| {
        let colors = coloring.by_color();
        let wanted = policy
            .set
            .iter()
            .filter_map(|color| colors.get(usize::from(color.0)));
        wanted.fold(0, |sum: u64, counts| sum.saturating_add(count(counts).0))
    };
    // The kernel shows counts to root alone.
    let after =
        after.filter(|after| after.index == policy.before.index && !after.zones.is_empty())?;
    wanted(after).checked_sub(wanted(&policy.before))
}

/// Returns the fewest and the most pages of one wanted color.
fn spread(policy: &KernelPolicy, counted: &ProcessCounts) -> Option<(PageCount, PageCount)> {
    let colors = policy
        .set
        .iter()
        .filter_map(|color| counted.colors.colors.get(usize::from(color.0)));
    let pages: Vec<u64> = colors
        .map(|color| color.base.0.saturating_add(color.large.0))
        .collect();
    Some((
        PageCount(*pages.iter().min()?),
        PageCount(*pages.iter().max()?),
    ))
}

impl KernelColors {
    /// Returns lines for people.
    pub(super) fn lines(&self, report: &ColorsReport) -> Vec<String> {
        let tested = match (&self.reason, self.right) {
            (None, Some(right)) => format!("predicts {:.1} % of conflicts rightly", right * 100.0),
            (Some(reason), _) => format!("{}: {reason}; superhue colors says more", self.trust),
            (None, None) => self.trust.to_owned(),
        };
        let mut lines = vec![format!(
            "colors: placed by the kernel, geometry {}: {tested}",
            self.geometry
        )];
        if let Some((fewest, most)) = self.pages_by_color {
            lines.push(format!(
                "colors: the largest process has {} to {} pages of each wanted color",
                fewest.0, most.0
            ));
        }
        if let (Some(hits), Some(fallbacks)) = (self.hits, self.fallbacks) {
            lines.push(format!(
                "colors: on the whole machine {hits} allocations got one of these colors meanwhile, {fallbacks} another"
            ));
        }
        if report.verified_pages == 0 && report.processes > 0 {
            lines.push(
                "colors: not checked page by page: frame numbers are hidden (CAP_SYS_ADMIN)"
                    .to_owned(),
            );
        }
        if self.with_other_colors > 0 {
            lines.push(format!(
                "colors: {} had other colors: given by themselves or by their control group",
                counted(self.with_other_colors, "process")
            ));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use superhue_color::oracles::{Judgement, OracleKind};
    use superhue_model::{ColorRequest, ColorSet, ProcessId};
    use superhue_procfs::process::ProcessColors;

    use super::super::census::FrameCheck;
    use super::*;

    fn machine(hits: u64, fallbacks: u64) -> PageColors {
        let text = format!(
            "enabled 1\ngeometry masks:0x1000\ncolors 2\nstrayed 0\n\nzone 0 Normal\nbuddy 9\nlisted 9\nready 0\n\
             color free allocated hits fallbacks\n0 5 5 {hits} {fallbacks}\n1 4 5 77 88\n"
        );
        PageColors::parse(&text).unwrap()
    }

    fn policy() -> KernelPolicy {
        let judgement = Judgement::untested(OracleKind::Kernel, "busy".to_owned());
        let set = ColorSet::from_words(&[1], 2).unwrap();
        KernelPolicy::new(set, true, &machine(10, 1), judgement).unwrap()
    }

    fn census(policy: &KernelPolicy, set: &str) -> Census {
        let text = format!(
            "geometry masks:0x1000\ncolors 2\nset {set}\nstrict 1\ninside 90\noutside 10\ncolor base large\n0 90 0\n1 10 0\n"
        );
        let mut checked = FrameCheck {
            pages: 50,
            inside: 45,
            ..FrameCheck::default()
        };
        checked.outside.insert(ColorMismatch::File, 4);
        checked.outside.insert(ColorMismatch::NoneFree, 1);
        let counted = ProcessCounts {
            name: "held".to_owned(),
            colors: ProcessColors::parse(&text).unwrap(),
            inside: Some(PageCount(90)),
            checked,
        };
        let nowhere = superhue_procfs::Roots::under("/nonexistent".as_ref());
        let mut census = Census::new(policy, &nowhere);
        census.processes.insert(
            ProcessId {
                pid: 7,
                start_ticks: 1,
            },
            counted,
        );
        census
    }

    #[test]
    fn what_is_outside_has_reasons_and_the_check_is_told() {
        let policy = policy();
        let prepared = ColorSetup::for_tests(ColorRequest::List(vec![(0, 0)]), policy.clone());
        let report = report(
            &prepared,
            &policy,
            Some(&census(&policy, "0")),
            Some(&machine(110, 3)),
        );
        assert_eq!(
            (report.placement.as_str(), report.oracle.as_str()),
            ("kernel", "kernel")
        );
        assert_eq!(
            (report.share, report.verified_share),
            (Some(0.9), Some(0.9))
        );
        let left: Vec<u64> = report
            .left_bytes
            .values()
            .map(|bytes| bytes.0 / 4096)
            .collect();
        assert_eq!(left.iter().sum::<u64>(), 10, "{left:?}");
        let kernel = report.kernel.as_ref().unwrap();
        assert_eq!((kernel.hits, kernel.fallbacks), (Some(100), Some(2)));
        assert_eq!((kernel.trust, kernel.with_other_colors), ("untested", 0));
        assert_eq!(kernel.pages_by_color, Some((PageCount(90), PageCount(90))));
        let lines = report.lines().join("\n");
        assert!(
            lines.contains("90.0 % of") && lines.contains("untested: busy"),
            "{lines}"
        );
        assert!(lines.contains("read them before"), "{lines}");
    }

    #[test]
    fn other_colors_and_hidden_frames_are_told() {
        let policy = policy();
        let prepared = ColorSetup::for_tests(ColorRequest::List(vec![(0, 0)]), policy.clone());
        let mut census = census(&policy, "none");
        census
            .processes
            .values_mut()
            .for_each(|one| one.checked = FrameCheck::default());
        let report = report(&prepared, &policy, Some(&census), None);
        let kernel = report.kernel.as_ref().unwrap();
        assert_eq!((kernel.with_other_colors, kernel.hits), (1, None));
        assert_eq!(report.verified_share, None);
        let lines = report.lines().join("\n");
        assert!(
            lines.contains("CAP_SYS_ADMIN") && lines.contains("other colors"),
            "{lines}"
        );
    }
}

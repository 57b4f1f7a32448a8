//! Options whose value is one of several names: help, manual pages and completions list them.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Command, Error};
use superhue::page_colors::oracles::OracleKind;
use superhue::trackers::TrackerKind;
use superhue::{AllocatorAdvice, ColorPlacement, Pages};
use superhue_bench::arm::Arm;
use superhue_measure::trial::MetricKind;

/// Accepts one of the names; blanks around it do not count.
#[derive(Debug, Clone)]
pub struct OneOf<T> {
    known: Vec<T>,
    names: PossibleValuesParser,
}

impl<T> OneOf<T> {
    /// Takes the known values, each with its name and its meaning.
    fn new(known: impl IntoIterator<Item = (T, &'static str, &'static str)>) -> Self {
        let named = known.into_iter().map(|(value, name, meaning)| {
            let name = PossibleValue::new(name).help(meaning);
            (value, name)
        });
        let (known, names): (_, Vec<PossibleValue>) = named.unzip();
        Self {
            known,
            names: names.into(),
        }
    }
}

impl<T: Copy + Send + Sync + 'static> TypedValueParser for OneOf<T> {
    type Value = T;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<T, Error> {
        let trimmed = value.to_str().map_or(value, |text| OsStr::new(text.trim()));
        let name = self.names.parse_ref(command, arg, trimmed)?;
        let mut known = self
            .known
            .iter()
            .zip(self.possible_values().into_iter().flatten());
        let found = known.find(|(_, possible)| possible.get_name() == name);
        found
            .map(|(value, _)| *value)
            .ok_or_else(|| Error::new(clap::error::ErrorKind::InvalidValue).with_cmd(command))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        self.names.possible_values()
    }
}

/// Capabilities that `check` tries.
pub fn capabilities() -> OneOf<&'static str> {
    OneOf::new(superhue::probe::names().map(|(id, name)| (id, id, name)))
}

/// Policies for huge pages.
pub fn pages() -> OneOf<Pages> {
    let meaning = |pages| match pages {
        Pages::Auto => {
            "2 MiB regions that are full or lack at most 16 of their 512 pages, once the program has stopped filling them, and others \
             that are accessed; huge pages that lie idle and hold mostly zeroes are split again"
        }
        Pages::Kernel => "what the kernel gives by itself; superhue only reports",
        Pages::Never => "none: huge pages are switched off for the command that superhue starts",
        Pages::Always => {
            "every 2 MiB region with at least one page in memory, for the chosen processes only; it may add much memory"
        }
        Pages::Resident => {
            "full 2 MiB regions, and regions at least 75 % in memory (--min-resident) that have stopped growing"
        }
        Pages::Hot => {
            "2 MiB regions that are accessed; huge pages that lie idle and hold mostly zeroes are split again"
        }
    };
    OneOf::new(Pages::ALL.map(|pages| (pages, pages.name(), meaning(pages))))
}

/// Treatments of a command's own allocator.
pub fn allocator_advice() -> OneOf<AllocatorAdvice> {
    OneOf::new([
        (
            AllocatorAdvice::Ask,
            "ask",
            "a variable of its environment asks it for huge pages",
        ),
        (
            AllocatorAdvice::Leave,
            "leave",
            "its environment stays as it is",
        ),
    ])
}

/// Ways to find the color of a page, best first.
pub fn oracles() -> OneOf<OracleKind> {
    let meaning = |kind| match kind {
        OracleKind::Kernel => "a kernel with page coloring, which hands out pages of one color",
        OracleKind::Pfn => "the page's frame number (CAP_SYS_ADMIN)",
        OracleKind::Offset => "the page's place in a huge page",
        OracleKind::Measured => "timing: which pages evict each other",
    };
    OneOf::new(OracleKind::ALL.map(|kind| (kind, kind.name(), meaning(kind))))
}

/// Mechanisms that place memory by color.
pub fn placements() -> OneOf<ColorPlacement> {
    let meaning = |placement| match placement {
        ColorPlacement::Auto => {
            "the kernel, if its coloring is switched on and timing does not show that it colors by the wrong bits; \
             else recolor"
        }
        ColorPlacement::Kernel => {
            "a kernel with page coloring (see `superhue check colors-kernel`): from the first touch, files too, but only \
             for commands that superhue starts"
        }
        ColorPlacement::Recolor => {
            "superhue: swaps pages out and in again, into frames of other colors"
        }
    };
    OneOf::new(ColorPlacement::ALL.map(|it| (it, it.name(), meaning(it))))
}

/// Ways to find out which pages are accessed, best first.
pub fn trackers() -> OneOf<TrackerKind> {
    let meaning = |kind| match kind {
        TrackerKind::Ptwalk => {
            "accessed bits in the page tables, read by BPF (CAP_BPF, CAP_PERFMON; for other users' processes also CAP_SYS_PTRACE and CAP_DAC_OVERRIDE)"
        }
        TrackerKind::Idle => "the page_idle bitmap of page frames (CAP_SYS_ADMIN)",
        TrackerKind::Damon => "the kernel's own monitor, which samples (root)",
    };
    OneOf::new(TrackerKind::ALL.map(|kind| (kind, kind.name(), meaning(kind))))
}

/// Ways in which a trial evaluates a number.
pub fn metric_kinds() -> OneOf<MetricKind> {
    OneOf::new([
        (
            MetricKind::Counter,
            "counter",
            "it only grows; the metric is its growth per second",
        ),
        (
            MetricKind::Gauge,
            "gauge",
            "it goes up and down; the metric is its mean over a block",
        ),
        (
            MetricKind::Work,
            "work",
            "it counts pieces of work; the metric is the CPU time of the processes for each",
        ),
    ])
}

/// Ways of placing memory in a benchmark.
pub fn arms() -> OneOf<Arm> {
    OneOf::new(Arm::ALL.map(|arm| (arm, arm.name(), meaning_of_arm(arm))))
}

/// Returns the meaning of a way of placing memory in a benchmark.
pub const fn meaning_of_arm(arm: Arm) -> &'static str {
    match arm {
        Arm::Kernel => "base pages as the kernel gives them",
        Arm::Superpage => "huge pages",
        Arm::Colored => "base pages that go through all colors in turn",
        Arm::Both => "huge pages for whole 2 MiB regions, colored base pages for the rest",
    }
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    #[test]
    fn names_are_read_back_and_others_refused() {
        let command = Command::new("test");
        let read = |text: &str| arms().parse_ref(&command, None, OsStr::new(text));
        for arm in Arm::ALL {
            assert_eq!(read(arm.name()).unwrap(), arm);
            assert_eq!(read(&format!(" {arm}")).unwrap(), arm, "after a comma");
        }
        let refused = read("colours").unwrap_err().to_string();
        assert!(refused.contains("superpage, colored"), "{refused}");
        for placement in ColorPlacement::ALL {
            let name = OsStr::new(placement.name());
            let read = placements().parse_ref(&command, None, name);
            assert_eq!(read.unwrap(), placement);
        }
        let wrong = placements().parse_ref(&command, None, OsStr::new("Kernel"));
        assert!(wrong.is_err());
    }
}

//! Metrics: their names, units, and direction.

use serde::{Deserialize, Serialize};

/// Unit of a number. Values are always stored in the base unit named here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Seconds; shown as ns, µs, ms or s.
    Seconds,
    /// Bytes; shown as KiB, MiB, ...
    Bytes,
    /// Number of things.
    Count,
    /// A part of a whole, 0 to 1; shown in percent.
    Share,
    /// Number of things per second.
    PerSecond,
    /// Anything else, with the unit to show after the number (may be empty).
    Plain(String),
}

/// Direction in which a metric is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// Less is better.
    Lower,
    /// More is better.
    Higher,
    /// The metric explains, but does not judge: verdicts say `higher` and `lower`.
    Neither,
}

/// One quantity that is measured in every run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metric {
    /// Name in JSON, unique in a comparison: `max_rss`.
    pub name: String,
    /// Name for people: `peak memory`.
    pub label: String,
    /// Unit of its values.
    pub unit: Unit,
    /// Direction in which it is better.
    pub better: Better,
}

/// Metrics that Superhue itself knows.
///
/// A driver reports those that its machine and mode of operation can measure, by [`name`](Self::name), and lists their
/// [`metric`](Self::metric) in the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Builtin {
    /// Seconds from start to exit.
    Wall,
    /// CPU seconds, user and system, of the process and its waited-for children
    /// (`ru_utime` + `ru_stime`, getrusage(2)).
    Cpu,
    /// CPU seconds in user mode (`ru_utime`).
    User,
    /// CPU seconds in the kernel (`ru_stime`).
    System,
    /// Largest resident set, bytes (`ru_maxrss` * 1024).
    MaxRss,
    /// Most memory that the kernel charged to the control group of the run, bytes (`memory.peak`, `memory.max_usage_in_bytes`): all processes of
    /// the run together, including huge pages that the program freed in part, page tables, and files that the run was the first to read or write.
    MaxCharged,
    /// Page faults served without I/O (`ru_minflt`).
    MinorFaults,
    /// Page faults that needed I/O (`ru_majflt`).
    MajorFaults,
    /// CPU seconds that a server spent during one run of the command that loads it.
    ServerCpuPerLoad,
    /// Highest coverage seen: huge-mapped share of anonymous RSS.
    CoveragePeak,
    /// Mean coverage over the run, weighted by time.
    CoverageMean,
    /// Seconds from the start until coverage first reached 95 %; missing in a run that never did.
    SecondsTo95,
    /// CPU seconds that Superhue itself spent on the run.
    SuperhueCpu,
    /// Share of the program's memory, as far as Superhue looked at it, that is known to be on the colors that it was to have, 0 to 1, at the end.
    ColorShare,
}

impl Builtin {
    /// All metrics, in the order in which they are best shown.
    pub const ALL: [Self; 14] = [
        Self::Wall,
        Self::ServerCpuPerLoad,
        Self::Cpu,
        Self::User,
        Self::System,
        Self::MaxRss,
        Self::MaxCharged,
        Self::MinorFaults,
        Self::MajorFaults,
        Self::CoveragePeak,
        Self::CoverageMean,
        Self::SecondsTo95,
        Self::SuperhueCpu,
        Self::ColorShare,
    ];

    /// Returns its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wall => "wall",
            Self::Cpu => "cpu",
            Self::User => "user",
            Self::System => "system",
            Self::MaxRss => "max_rss",
            Self::MaxCharged => "max_charged",
            Self::MinorFaults => "minor_faults",
            Self::MajorFaults => "major_faults",
            Self::ServerCpuPerLoad => "server_cpu_per_load",
            Self::CoveragePeak => "coverage_peak",
            Self::CoverageMean => "coverage_mean",
            Self::SecondsTo95 => "seconds_to_95",
            Self::SuperhueCpu => "superhue_cpu",
            Self::ColorShare => "color_share",
        }
    }

    /// Returns the built-in metric of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|metric| metric.name() == name)
    }

    /// Returns its description.
    ///
    /// Coverage is `Neither`, because it is a means to an end: high coverage has no value if the program became no faster.
    #[must_use]
    pub fn metric(self) -> Metric {
        let (label, unit, better) = match self {
            Self::Wall => ("wall time", Unit::Seconds, Better::Lower),
            Self::Cpu => ("CPU time", Unit::Seconds, Better::Lower),
            Self::User => ("user CPU time", Unit::Seconds, Better::Lower),
            Self::System => ("system CPU time", Unit::Seconds, Better::Lower),
            Self::MaxRss => ("peak memory", Unit::Bytes, Better::Lower),
            Self::MaxCharged => ("peak charged memory", Unit::Bytes, Better::Lower),
            Self::MinorFaults => ("minor faults", Unit::Count, Better::Lower),
            Self::MajorFaults => ("major faults", Unit::Count, Better::Lower),
            Self::ServerCpuPerLoad => ("server CPU time", Unit::Seconds, Better::Lower),
            Self::CoveragePeak => ("peak coverage", Unit::Share, Better::Neither),
            Self::CoverageMean => ("mean coverage", Unit::Share, Better::Neither),
            Self::SecondsTo95 => ("time to 95 % coverage", Unit::Seconds, Better::Lower),
            Self::SuperhueCpu => ("CPU time of superhue", Unit::Seconds, Better::Lower),
            Self::ColorShare => ("memory on its colors", Unit::Share, Better::Neither),
        };
        Metric {
            name: self.name().to_owned(),
            label: label.to_owned(),
            unit,
            better,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found_again() {
        for builtin in Builtin::ALL {
            assert_eq!(Builtin::from_name(builtin.name()), Some(builtin));
            assert_eq!(builtin.metric().name, builtin.name());
        }
        assert_eq!(Builtin::from_name("walls"), None);
    }
}

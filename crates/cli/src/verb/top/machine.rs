//! Figures of the machine as a whole: memory, and the kernel's counters of huge pages.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use superhue::model::ByteCount;
use superhue::procfs::Roots;
use superhue::procfs::system::{MemInfo, ThpCounters};

/// The machine's memory in bytes; `None` if the kernel does not report it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Machine {
    /// All memory.
    pub memory_bytes: Option<ByteCount>,
    /// Memory available without swapping.
    pub available_bytes: Option<ByteCount>,
    /// Anonymous memory.
    pub anonymous_bytes: Option<ByteCount>,
    /// The part of it in huge pages.
    pub anonymous_huge_bytes: Option<ByteCount>,
    /// Shared memory in huge pages.
    pub shared_huge_bytes: Option<ByteCount>,
    /// Huge pages that were made of base pages, per second: by the kernel itself, or on request.
    pub collapses_per_second: Option<f64>,
    /// Huge pages given at the first touch, per second.
    pub faults_per_second: Option<f64>,
    /// Huge pages that were split, per second.
    pub splits_per_second: Option<f64>,
}

/// Counters of the kernel since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    collapses: Option<u64>,
    faults: Option<u64>,
    splits: Option<u64>,
}

impl From<&ThpCounters> for Counters {
    fn from(all: &ThpCounters) -> Self {
        let of = |name: &str| all.0.get(name).copied();
        Self {
            collapses: of("thp_collapse_alloc"),
            faults: of("thp_fault_alloc"),
            splits: of("thp_split_page"),
        }
    }
}

/// State of the machine, and its rates since the previous look.
#[derive(Debug, Default)]
pub struct Rates {
    before: Option<(Duration, Counters)>,
    rates: [Option<f64>; 3],
}

impl Rates {
    /// Returns the state of the machine at the time `at`.
    pub fn look(&mut self, roots: &Roots, at: Duration) -> Machine {
        let memory = MemInfo::read(roots).ok();
        let counters = ThpCounters::read(roots).unwrap_or_default();
        self.count(at, Counters::from(&counters));
        let [collapses, faults, splits] = self.rates;
        let of = |field: fn(&MemInfo) -> Option<ByteCount>| memory.as_ref().and_then(field);
        Machine {
            memory_bytes: of(|it| it.total),
            available_bytes: of(|it| it.available),
            anonymous_bytes: of(|it| it.anon),
            anonymous_huge_bytes: of(|it| it.anon_huge),
            shared_huge_bytes: of(|it| it.shmem_huge),
            collapses_per_second: collapses,
            faults_per_second: faults,
            splits_per_second: splits,
        }
    }

    fn count(&mut self, at: Duration, now: Counters) {
        if let Some((then, before)) = self.before {
            let seconds = at.saturating_sub(then).as_secs_f64();
            // Over a shorter time a rate means nothing.
            if seconds < 0.5 {
                return;
            }
            let rate = |now: Option<u64>, before: Option<u64>| {
                #[allow(clippy::cast_precision_loss, reason = "counts of a moment")]
                let rate = |count: u64| count as f64 / seconds;
                now?.checked_sub(before?).map(rate)
            };
            self.rates = [
                rate(now.collapses, before.collapses),
                rate(now.faults, before.faults),
                rate(now.splits, before.splits),
            ];
        }
        self.before = Some((at, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Counters {
        Counters::from(&ThpCounters::parse(text).unwrap())
    }

    #[test]
    fn counters_become_rates_and_what_is_missing_stays_unknown() {
        let text = "thp_fault_alloc 10\nthp_fault_alloc_x 99\nthp_collapse_alloc 7\n";
        let counters = of(text);
        assert_eq!((counters.faults, counters.collapses), (Some(10), Some(7)));
        assert_eq!(counters.splits, None);
        let mut watched = Rates::default();
        watched.count(Duration::from_secs(1), counters);
        assert_eq!(watched.rates, [None; 3]);
        let later = of("thp_fault_alloc 16\nthp_collapse_alloc 7\n");
        watched.count(Duration::from_secs(3), later);
        assert_eq!(watched.rates, [Some(0.0), Some(3.0), None]);
        // A counter that went back has no rate.
        watched.count(Duration::from_secs(4), counters);
        assert_eq!(watched.rates[1], None);
    }
}

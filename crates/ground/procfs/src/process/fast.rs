//! Single small reads, for a loop that checks for changes many times a second.
//!
//! Counting pages costs a walk of the page tables. While the resident size does not change, the caller can usually skip
//! that walk. These readers allocate nothing on the heap beyond the path.

use std::time::Duration;

use superhue_model::PageCount;

use crate::{ReadError, Roots};

use super::file::{malformed, read_small};
use super::stat::stat;
use super::text::{self, ParseError};

/// Resident memory as `/proc/PID/statm` counts it.
///
/// The same counters as in `status`: they may lag behind the page tables by some pages for each
/// CPU. They show that something changed, but are too inexact for sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StatmPages {
    /// Resident pages of every kind.
    pub total: PageCount,
    /// Resident pages that belong to files or are shared memory.
    pub shared: PageCount,
}

impl StatmPages {
    /// Returns the resident anonymous pages.
    #[must_use]
    pub fn anonymous(&self) -> PageCount {
        self.total - self.shared
    }
}

/// Processor time since the start, of all threads, in clock ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CpuTicks {
    /// Time in user mode.
    pub user_ticks: u64,
    /// Time in the kernel.
    pub system_ticks: u64,
}

impl CpuTicks {
    /// Returns user and kernel time together. The machine defines the length of a tick (`sysconf(3)`,
    /// `_SC_CLK_TCK`).
    #[must_use]
    pub fn total(&self) -> Duration {
        time_of_ticks(self.user_ticks.saturating_add(self.system_ticks))
    }
}

/// Returns the time of `ticks` clock ticks (`sysconf(3)`, `_SC_CLK_TCK`), the unit of CPU time and of start times in `/proc/PID/stat`.
#[must_use]
pub fn time_of_ticks(ticks: u64) -> Duration {
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let nanos = u128::from(ticks) * 1_000_000_000 / u128::from(per_second);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Counters that grow when a process runs or changes its own memory: processor time, in ticks, and page faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Activity {
    /// Processor time.
    pub cpu: CpuTicks,
    /// Faults served with and without I/O, including those of system calls that touch user memory (`mm_account_fault` in `mm/memory.c`).
    pub faults: u64,
}

/// Reads the processor time and faults of process `pid` so far, from `/proc/PID/stat`. Every user may read it.
///
/// # Errors
/// As for [`stat`].
pub fn activity(roots: &Roots, pid: u32) -> Result<Activity, ReadError> {
    let stat = stat(roots, pid)?;
    Ok(Activity {
        cpu: CpuTicks {
            user_ticks: stat.user_ticks,
            system_ticks: stat.system_ticks,
        },
        faults: stat.min_faults.saturating_add(stat.maj_faults),
    })
}

/// Reads the resident memory of process `pid` now, from `/proc/PID/statm`. Every user may read it.
///
/// Kernel threads and zombies have 0 pages.
///
/// # Errors
/// [`ReadError::Vanished`] when there is no such process; [`ReadError::Malformed`].
pub fn resident_now(roots: &Roots, pid: u32) -> Result<StatmPages, ReadError> {
    let path = roots.of_process(pid, "statm");
    let mut buffer = [0; 256];
    let text = read_small(pid, &path, &mut buffer)?;
    parse_statm(text).map_err(|error| malformed(&path, error))
}

/// Reads the processor time of process `pid` now, from `/proc/PID/stat`. Every user may read it.
///
/// # Errors
/// As for [`stat`].
pub fn cpu_now(roots: &Roots, pid: u32) -> Result<CpuTicks, ReadError> {
    Ok(activity(roots, pid)?.cpu)
}

/// Reads the time for which the main thread of process `pid` was ready to run and had no CPU, from `/proc/PID/schedstat`
/// (`Documentation/scheduler/sched-stats.rst`). Every user may read it.
///
/// # Errors
/// [`ReadError::Vanished`] when there is no such process; [`ReadError::Malformed`]; another one where the kernel keeps no such statistics.
pub fn waited_for_cpu(roots: &Roots, pid: u32) -> Result<Duration, ReadError> {
    let path = roots.of_process(pid, "schedstat");
    let mut buffer = [0; 128];
    let mut text = read_small(pid, &path, &mut buffer)?.trim_ascii();
    let _ran = text::next_field(&mut text);
    let waited = text::next_field(&mut text).and_then(text::decimal);
    let error = || malformed(&path, ParseError::new(1, "time spent waiting"));
    waited.map(Duration::from_nanos).ok_or_else(error)
}

/// Parses the text of `/proc/PID/statm`: `size resident shared text lib data dirty`, in pages.
///
/// # Errors
/// Names the field that is missing or not a number.
pub fn parse_statm(text: &[u8]) -> Result<StatmPages, ParseError> {
    let fail = |what| ParseError::new(1, what);
    let mut rest = text.trim_ascii();
    let mut field = |what| {
        text::next_field(&mut rest)
            .and_then(text::decimal)
            .map(PageCount)
            .ok_or(fail(what))
    };
    field("size is not a number")?;
    Ok(StatmPages {
        total: field("resident is not a number")?,
        shared: field("shared is not a number")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn statm_is_read() {
        let resident = parse_statm(b"765 401 373 5 0 123 0\n").unwrap();
        assert_eq!(
            (resident.total, resident.shared),
            (PageCount(401), PageCount(373))
        );
        assert_eq!(resident.anonymous(), PageCount(28));
        assert_eq!(parse_statm(b"").unwrap_err().what, "size is not a number");
        assert_eq!(
            parse_statm(b"1 x 3").unwrap_err().what,
            "resident is not a number"
        );
        assert_eq!(
            parse_statm(b"1 2").unwrap_err().what,
            "shared is not a number"
        );
    }

    #[test]
    fn ticks_become_time_without_overflow() {
        let at = |user_ticks, system_ticks| {
            CpuTicks {
                user_ticks,
                system_ticks,
            }
            .total()
        };
        let second = rustix::param::clock_ticks_per_second();
        assert_eq!(at(second, second), Duration::from_secs(2));
        assert_eq!(at(u64::MAX, u64::MAX), Duration::from_nanos(u64::MAX));
    }

    proptest! {
        #[test]
        fn statm_is_read_back(size: u64, total: u64, shared: u64) {
            let resident = parse_statm(format!("{size} {total} {shared} 1 0 2 0\n").as_bytes()).unwrap();
            prop_assert_eq!((resident.total.0, resident.shared.0), (total, shared));
        }

        #[test]
        fn nonsense_never_panics(text: Vec<u8>) {
            let _ = parse_statm(&text);
        }
    }
}

//! Time that each service of a rule took until its memory was huge.
//!
//! ```text
//!   huge memory
//!     |            .------   the last rise by more than 5 %: converged
//!     |       .----'
//!     |  .----'
//!     '--+---------+------> time
//!      start       |
//!        '---------'  the time that counts
//! ```
//!
//! `superhue compare` has this figure for a run that has ended (`seconds_to_95`). Here the present amount stands for the last one, so the figure
//! grows as long as huge memory does.

use std::collections::BTreeMap;
use std::time::Duration;

use superhue::live::{ServiceAccount, WatchAccount};
use superhue_model::ByteCount;
use superhue_procfs::process::time_of_ticks;

/// Largest age of a service whose start counts. An older one may have had its huge pages long before the first look at it.
const YOUNG: Duration = Duration::from_secs(5);

/// Progress of the services of a rule.
#[derive(Debug, Default)]
pub(crate) struct Convergence(BTreeMap<String, Progress>);

/// Progress of one service. Times are since boot.
#[derive(Debug, Clone, Copy)]
struct Progress {
    /// Start of its oldest process; `None` if its huge pages may be older than the first look at it.
    begun: Option<Duration>,
    /// Time of the last rise by more than 5 %, and the amount then.
    reached: Duration,
    huge: ByteCount,
}

impl Convergence {
    /// Takes an account of the time `at`.
    pub(crate) fn look(&mut self, at: Duration, account: &WatchAccount) {
        let services = &account.services;
        self.0
            .retain(|label, _| services.get(label).is_some_and(is_running));
        for (label, service) in services.iter().filter(|(_, it)| is_running(it)) {
            let huge = service.memory.huge_bytes;
            let begin = || Progress {
                begun: start(label, service, account, at),
                reached: at,
                huge: huge.unwrap_or_default(),
            };
            let Some(known) = self.0.get_mut(label) else {
                self.0.insert(label.clone(), begin());
                continue;
            };
            // Unknown for a moment where a new process was not looked at yet.
            let Some(huge) = huge else {
                continue;
            };
            if huge.0 < known.huge.0 / 2 {
                // It was restarted, or has given memory back: its earlier start means nothing now.
                *known = begin();
            } else if huge.0 > known.huge.0 / 20 * 21 {
                known.reached = at;
                known.huge = huge;
            }
        }
    }

    /// Returns seconds by service, without the services for which they are unknown.
    pub(crate) fn seconds(&self) -> BTreeMap<String, f64> {
        let some = self.0.iter().filter(|(_, progress)| progress.huge.0 > 0);
        let known = some.filter_map(|(label, progress)| {
            let took = progress.reached.saturating_sub(progress.begun?);
            Some((label.clone(), took.as_secs_f64()))
        });
        known.collect()
    }
}

fn is_running(service: &ServiceAccount) -> bool {
    service.memory.processes > 0
}

/// Returns the start of a service's oldest process, if that was a short time ago.
fn start(
    label: &str,
    service: &ServiceAccount,
    account: &WatchAccount,
    at: Duration,
) -> Option<Duration> {
    let listed = account.processes.iter().filter(|it| it.service == label);
    let starts: Vec<u64> = listed.map(|it| it.start_ticks).collect();
    // The account lists the largest processes only.
    let is_complete = starts.len() as u64 == service.memory.processes;
    let first = starts.into_iter().min().filter(|_| is_complete)?;
    let first = time_of_ticks(first);
    (at.saturating_sub(first) <= YOUNG).then_some(first)
}

#[cfg(test)]
mod tests {
    use rustix::param::clock_ticks_per_second;
    use superhue::live::{LiveMemory, ProcessAccount};
    use superhue::since_boot;

    use super::*;

    /// Returns an account of the service `a`: its processes by the seconds of their starts, and its huge memory in MiB.
    fn account(starts: &[u64], huge: Option<u64>) -> WatchAccount {
        let memory = LiveMemory {
            processes: starts.len() as u64,
            huge_bytes: huge.map(|mebibytes| ByteCount(mebibytes << 20)),
            ..LiveMemory::default()
        };
        let service = ServiceAccount {
            memory,
            ..ServiceAccount::default()
        };
        let processes = starts.iter().map(|seconds| ProcessAccount {
            pid: 1,
            start_ticks: seconds * clock_ticks_per_second(),
            name: String::new(),
            service: "a".to_owned(),
            memory: LiveMemory::default(),
            hot_set_bytes: None,
            collapses_done: 0,
            collapsing_seconds: 0.0,
        });
        WatchAccount {
            services: BTreeMap::from([("a".to_owned(), service)]),
            processes: processes.collect(),
            ..WatchAccount::default()
        }
    }

    /// Returns the seconds after accounts, each with its time in seconds.
    fn after(accounts: &[(u64, WatchAccount)]) -> Option<f64> {
        let mut all = Convergence::default();
        for (at, account) in accounts {
            all.look(Duration::from_secs(*at), account);
        }
        all.seconds().get("a").copied()
    }

    #[test]
    fn the_last_large_rise_counts_from_the_start_of_the_oldest_process() {
        let of = |huge| account(&[100, 101], Some(huge));
        let grown = [(102, of(0)), (103, of(40)), (110, of(100))];
        assert_eq!(after(&grown), Some(10.0));
        // Small rises and falls do not count.
        let settled = [
            grown.as_slice(),
            &[(200, of(104)), (300, of(60)), (301, of(104))],
        ];
        assert_eq!(after(&settled.concat()), Some(10.0));
        let unknown = [
            (102, account(&[100, 101], None)),
            (103, of(40)),
            (104, account(&[100, 101], None)),
        ];
        assert_eq!(after(&unknown), Some(3.0));
        let again = [grown.as_slice(), &[(200, of(104)), (300, of(106))]];
        assert_eq!(after(&again.concat()), Some(200.0));
    }

    #[test]
    fn a_restart_begins_anew() {
        let before = (110, account(&[100], Some(100)));
        let restarted = [
            (102, account(&[100], Some(0))),
            before.clone(),
            (201, account(&[200], Some(10))),
        ];
        assert_eq!(after(&restarted), Some(1.0));
        let stopped = [
            (102, account(&[100], Some(0))),
            before,
            (150, account(&[], None)),
        ];
        assert_eq!(after(&stopped), None);
    }

    #[test]
    fn what_nobody_saw_is_unknown_and_not_0() {
        // It was there before the first look; one of its processes was; it has no huge memory; the kernel does not report it.
        for (at, account) in [
            (106, account(&[100], Some(100))),
            (106, account(&[100, 105], Some(100))),
            (102, account(&[100], Some(0))),
            (102, account(&[100], None)),
        ] {
            assert_eq!(after(&[(at, account)]), None);
        }
        let mut unlisted = account(&[100], Some(100));
        unlisted.processes.clear();
        assert_eq!(after(&[(102, unlisted)]), None);
        // It has given most of its memory back.
        let of = |huge| account(&[100], Some(huge));
        assert_eq!(after(&[(102, of(100)), (300, of(10))]), None);
    }

    #[test]
    fn processes_start_by_this_clock() {
        let roots = superhue_procfs::Roots::default();
        let me = superhue_procfs::process::identify(&roots, std::process::id()).unwrap();
        let started = Duration::from_secs(me.start_ticks / clock_ticks_per_second());
        let age = since_boot().checked_sub(started).unwrap();
        assert!(age < Duration::from_secs(3600), "{age:?}");
    }
}

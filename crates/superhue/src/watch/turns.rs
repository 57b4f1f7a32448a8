//! Turns of full looks, where their share of the ceiling does not pay for all.
//!
//! A cheap look passes an expensive one that waits: half of what the share pays meanwhile is kept for the waiting process, so it gets its turn after
//! twice the time, and the other half is for all others.

use std::time::Duration;

use superhue_heat::Allowance;
use superhue_model::ProcessId;

/// Process whose look waits until the share pays for it.
#[derive(Debug)]
struct Waiting {
    id: ProcessId,
    since: Duration,
    /// Expected CPU time of the look.
    cost: Duration,
}

/// Order of full looks.
#[derive(Debug, Default)]
pub(super) struct Turns {
    waiting: Option<Waiting>,
}

impl Turns {
    /// Returns true if a look at `id` that takes `cost` may be taken at `at` from `allowance`, which accrues by `share`.
    pub(super) fn has(
        &mut self,
        allowance: &Allowance,
        share: f64,
        at: Duration,
        id: ProcessId,
        cost: Duration,
    ) -> bool {
        let kept = match &self.waiting {
            Some(waiting) if waiting.id != id => {
                let accrued = at.saturating_sub(waiting.since).mul_f64(share / 2.0);
                waiting.cost.min(accrued)
            }
            _ => Duration::ZERO,
        };
        let may = allowance.covers(at, cost + kept);
        if may {
            self.leave(id);
        } else if self.waiting.is_none() {
            let since = at;
            self.waiting = Some(Waiting { id, since, cost });
        }
        may
    }

    /// Ends the wait of a process that needs no look any more.
    pub(super) fn leave(&mut self, id: ProcessId) {
        self.waiting.take_if(|waiting| waiting.id == id);
    }

    /// Ends the wait of a process that is not among those that `exist`.
    pub(super) fn retain(&mut self, exist: impl Fn(ProcessId) -> bool) {
        self.waiting.take_if(|waiting| !exist(waiting.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: f64 = 0.002;

    fn process(pid: u32) -> ProcessId {
        ProcessId {
            pid,
            start_ticks: 1,
        }
    }

    /// Returns the looks at each process in ten minutes, if each wants one again after its interval.
    fn looks(processes: &[(Duration, Duration)]) -> Vec<u32> {
        let advance = Duration::from_millis(97);
        let mut allowance = Allowance::new(SHARE, Duration::ZERO).with_advance(advance);
        let (mut turns, mut looks) = (Turns::default(), vec![0; processes.len()]);
        let mut next = vec![Duration::ZERO; processes.len()];
        for step in 0..6000 {
            let at = Duration::from_millis(100) * step;
            let mut due: Vec<usize> = (0..processes.len()).filter(|&it| next[it] <= at).collect();
            due.sort_by_key(|&it| next[it]);
            for it in due {
                let (cost, interval) = processes[it];
                let id = process(u32::try_from(it).unwrap());
                if turns.has(&allowance, SHARE, at, id, cost) {
                    allowance.spend_without_debt(at, cost);
                    looks[it] += 1;
                    next[it] = at + interval;
                }
            }
        }
        looks
    }

    #[test]
    fn neither_large_nor_small_processes_are_starved() {
        let (ms, second) = (Duration::from_millis(1), Duration::from_secs(1));
        let small = (ms / 5, 2 * second);
        // 600 s pay for 1.2 s of looks. Twenty small ones would take 2 ms a second, all there is; the large one changes all the time.
        let mut processes = vec![small; 20];
        processes.push((60 * ms, ms));
        let found = looks(&processes);
        assert!((8..=13).contains(&found[20]), "{found:?}");
        assert!(found[..20].iter().all(|&it| it >= 100), "{found:?}");
        // One that costs more than can be saved up gets its turn, too.
        processes[20].0 = 200 * ms;
        let found = looks(&processes);
        assert!(found[20] >= 2 && found[0] >= 50, "{found:?}");
    }

    #[test]
    fn what_a_process_waited_for_is_free_once_it_has_ended() {
        let allowance =
            Allowance::new(SHARE, Duration::ZERO).with_advance(Duration::from_millis(1));
        let (minute, cost) = (Duration::from_secs(60), Duration::from_millis(1));
        let mut empty = allowance;
        empty.spend(Duration::ZERO, cost);
        let mut turns = Turns::default();
        assert!(!turns.has(&empty, SHARE, Duration::ZERO, process(1), cost));
        let later = Duration::from_millis(400);
        let small = Duration::from_micros(600);
        assert!(!turns.has(&empty, SHARE, later, process(2), small));
        turns.retain(|id| id != process(1));
        assert!(turns.has(&empty, SHARE, later, process(2), small));
        assert!(turns.has(&empty, SHARE, minute, process(2), small));
    }
}

//! Acting from inside a process, in visits.

use std::thread;
use std::time::{Duration, Instant};

use superhue_model::{Effect, Obstacle, ProcessId, Region, SkipReason};
use superhue_sys::advise::Operation;
use superhue_visit::{Advised, Done, Visited, Work};

/// Something that visits processes, within limits that it knows.
pub trait Inside: Send {
    /// Visits a process, and does as much of `work` as the limits allow.
    ///
    /// # Errors
    /// Why the process was left alone; [`Obstacle::Paced`] if it may not be stopped again before
    /// [`Self::wait_for`] is over.
    fn visit(&mut self, process: ProcessId, work: &Work) -> Result<Visited, Obstacle>;

    /// How long until `process` may be visited again.
    fn wait_for(&self, process: ProcessId) -> Duration;
}

/// The longest sleep between two questions whether to stop.
const NAP: Duration = Duration::from_millis(10);

/// The shortest rest after a visit that came to nothing.
const REST: Duration = Duration::from_millis(1);

/// Visits in a row that came to nothing, after which the process gets a rest that the policy decides.
const IN_VAIN: usize = 3;

/// How long the other processes may have to wait for the visits of one.
const PATIENCE: Duration = Duration::from_secs(1);

/// What became of a region, and how long that took.
pub(crate) type Timed = (Effect, Duration);

/// Does `operation` to each region, in as many visits as that takes.
pub(crate) fn visit_all(
    inside: &mut dyn Inside,
    process: ProcessId,
    operation: Operation,
    regions: &[Region],
    stop: &dyn Fn() -> bool,
) -> Vec<Timed> {
    let begun = Instant::now();
    let mut results = Vec::with_capacity(regions.len());
    let mut in_vain = 0;
    while let Some(rest) = regions.get(results.len()..).filter(|rest| !rest.is_empty()) {
        let skipped = |reason| {
            rest.iter()
                .map(move |_| (Effect::Skipped { reason }, Duration::ZERO))
        };
        let wait = inside.wait_for(process);
        let too_long = in_vain == IN_VAIN || begun.elapsed() + wait > PATIENCE;
        if too_long {
            results.extend(skipped(SkipReason::Visit(Obstacle::Paced)));
            break;
        }
        if !sleep(if in_vain > 0 { wait.max(REST) } else { wait }, stop) {
            results.extend(skipped(SkipReason::Cancelled));
            break;
        }
        match inside.visit(process, &work(operation, rest)) {
            Ok(visited) => {
                let done = results_of(visited, rest.len());
                in_vain = if done.is_empty() { in_vain + 1 } else { 0 };
                results.extend(done);
            }
            // It passes by itself, and soon.
            Err(Obstacle::Paced | Obstacle::Busy) => in_vain += 1,
            Err(Obstacle::Gone) => {
                results.extend(rest.iter().map(|_| (Effect::Vanished, Duration::ZERO)));
            }
            Err(obstacle) => results.extend(skipped(SkipReason::Visit(obstacle))),
        }
    }
    results
}

fn work(operation: Operation, regions: &[Region]) -> Work {
    match operation {
        Operation::Collapse => Work::Collapse(regions.to_vec()),
        Operation::Split => Work::Split(regions.to_vec()),
    }
}

/// The results of a visit, at most `most`.
fn results_of(visited: Visited, most: usize) -> Vec<Timed> {
    let Done::Advised(answers) = visited.done else {
        return Vec::new();
    };
    let count = u32::try_from(answers.len()).unwrap_or(u32::MAX).max(1);
    let each = visited.pause / count;
    let effect = |answer: Advised| match answer {
        Advised::Done => Effect::Done,
        Advised::Refused(errno) => Effect::Failed { errno },
        Advised::Shared => Effect::Skipped {
            reason: SkipReason::Shared,
        },
    };
    let effects = answers.into_iter().map(effect);
    effects.take(most).map(|effect| (effect, each)).collect()
}

/// Sleeps; no, as soon as `stop` says yes.
fn sleep(time: Duration, stop: &dyn Fn() -> bool) -> bool {
    let until = Instant::now() + time;
    loop {
        if stop() {
            return false;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(NAP));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::VecDeque;

    use superhue_model::VirtAddr;

    use super::*;
    use superhue_model::Errno;

    const PROCESS: ProcessId = ProcessId {
        pid: 7,
        start_ticks: 1,
    };

    /// Answers as it was told to, and notes what it was asked.
    #[derive(Default)]
    struct Fake {
        answers: VecDeque<Result<usize, Obstacle>>,
        wait: Duration,
        asked: Vec<usize>,
    }

    impl Fake {
        fn new(answers: impl IntoIterator<Item = Result<usize, Obstacle>>) -> Self {
            Self {
                answers: answers.into_iter().collect(),
                ..Self::default()
            }
        }

        fn collapse(&mut self, regions: u64, stop: &dyn Fn() -> bool) -> Vec<Effect> {
            let regions: Vec<Region> = (1..=regions)
                .map(|number| Region::containing(VirtAddr(number << 21)))
                .collect();
            let results = visit_all(self, PROCESS, Operation::Collapse, &regions, stop);
            assert_eq!(results.len(), regions.len(), "one result for each");
            results.into_iter().map(|(effect, _)| effect).collect()
        }
    }

    impl Inside for Fake {
        fn visit(&mut self, process: ProcessId, work: &Work) -> Result<Visited, Obstacle> {
            assert_eq!(process, PROCESS);
            let Work::Collapse(regions) = work else {
                panic!("{work:?}");
            };
            self.asked.push(regions.len());
            let count = self.answers.pop_front().unwrap_or(Err(Obstacle::Paced))?;
            // The kernel refuses the first of each visit.
            let answers = (0..count).map(|at| match at {
                0 => Advised::Refused(Errno::EAGAIN),
                _ => Advised::Done,
            });
            Ok(Visited {
                done: Done::Advised(answers.collect()),
                pause: Duration::from_millis(2),
                threads: 1,
                begun_again: 0,
            })
        }

        fn wait_for(&self, _: ProcessId) -> Duration {
            self.wait
        }
    }

    fn never() -> bool {
        false
    }

    const REFUSED: Effect = Effect::Failed {
        errno: Errno::EAGAIN,
    };

    const fn left(obstacle: Obstacle) -> Effect {
        Effect::Skipped {
            reason: SkipReason::Visit(obstacle),
        }
    }

    #[test]
    fn what_did_not_fit_is_asked_for_again() {
        let mut fake = Fake::new([Ok(2), Err(Obstacle::Paced), Ok(0), Ok(1), Ok(1)]);
        let effects = fake.collapse(4, &never);
        assert_eq!(effects, [REFUSED, Effect::Done, REFUSED, REFUSED]);
        assert_eq!(fake.asked, [4, 2, 2, 2, 1]);
    }

    #[test]
    fn an_obstacle_is_the_reason_for_all_that_is_left() {
        let mut fake = Fake::new([Ok(1), Err(Obstacle::Traced)]);
        let traced = left(Obstacle::Traced);
        assert_eq!(fake.collapse(3, &never), [REFUSED, traced, traced]);
        assert_eq!(fake.asked, [3, 2]);
        let mut fake = Fake::new([Err(Obstacle::Gone)]);
        assert_eq!(fake.collapse(2, &never), [Effect::Vanished; 2]);
    }

    #[test]
    fn visits_in_vain_come_to_an_end() {
        for answer in [Ok(0), Err(Obstacle::Paced)] {
            let mut fake = Fake::new([answer; 100]);
            assert_eq!(fake.collapse(2, &never), [left(Obstacle::Paced); 2]);
            assert_eq!(fake.asked.len(), IN_VAIN);
        }
    }

    #[test]
    fn nobody_waits_for_one_process_too_long() {
        let mut fake = Fake::new([Ok(2)]);
        fake.wait = PATIENCE * 2;
        assert_eq!(fake.collapse(2, &never), [left(Obstacle::Paced); 2]);
        assert!(fake.asked.is_empty());
    }

    #[test]
    fn a_wait_ends_when_the_watch_does() {
        let cancelled = Effect::Skipped {
            reason: SkipReason::Cancelled,
        };
        let asked = Cell::new(0);
        let stop = || {
            asked.set(asked.get() + 1);
            asked.get() > 2
        };
        let mut fake = Fake::new([Ok(1), Ok(1)]);
        // Naps of a busy machine are longer than they should be: there is room for many.
        fake.wait = PATIENCE / 2;
        assert_eq!(fake.collapse(2, &stop), [cancelled; 2]);
        assert!(fake.asked.is_empty());
    }
}

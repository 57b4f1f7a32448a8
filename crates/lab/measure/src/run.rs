//! Executes a schedule with a runner, which can run an arm.
//!
//! This crate starts no process. The driver, which does, implements [`Runner`]; simulations implement it too, and test everything here.
//!
//! There are three kinds of errors, with different consequences:
//!
//! | the runner returns            | recorded | then                  |
//! |-------------------------------|----------|-----------------------|
//! | [`RunnerError::Failed`]       | yes      | continues             |
//! | [`RunnerError::Interrupted`]  | no       | stops, `interrupted`  |
//! | [`RunnerError::Abort`]        | no       | stops, `aborted`      |
//!
//! A failed run keeps its turn: it is counted and shown, and its numbers are kept but enter no median. It is not repeated, because an arm
//! under which the program fails must not be saved by trying until it does not fail.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::schedule::{Schedule, ScheduledRun};

/// Measurements of one run: metric name to value, in the base unit of the metric.
///
/// A value that could not be measured is `null` in JSON, with the reason beside it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    values: BTreeMap<String, Option<f64>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    missing: BTreeMap<String, String>,
}

impl Sample {
    /// Makes a sample without any value.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a value. A value that is not finite (or beyond 1e300, where sums overflow) is recorded as missing.
    pub fn set(&mut self, metric: &str, value: f64) {
        if usable(value) {
            self.missing.remove(metric);
            self.values.insert(metric.to_owned(), Some(value));
        } else {
            self.set_missing(metric, "not a finite number");
        }
    }

    /// Records that a value could not be measured, and the reason.
    pub fn set_missing(&mut self, metric: &str, reason: impl fmt::Display) {
        self.values.insert(metric.to_owned(), None);
        self.missing.insert(metric.to_owned(), reason.to_string());
    }

    /// Records a value or the reason why there is none.
    pub fn record<E: fmt::Display>(&mut self, metric: &str, value: Result<f64, E>) {
        match value {
            Ok(value) => self.set(metric, value),
            Err(reason) => self.set_missing(metric, reason),
        }
    }

    /// Returns the value of a metric, if it was measured.
    #[must_use]
    pub fn get(&self, metric: &str) -> Option<f64> {
        let value = self.values.get(metric).copied().flatten();
        value.filter(|value| usable(*value))
    }

    /// Returns the reason why a metric has no value. `None` if it has one, or none was expected.
    #[must_use]
    pub fn why_missing(&self, metric: &str) -> Option<&str> {
        self.missing.get(metric).map(String::as_str)
    }

    /// Records every named metric that the sample does not mention as missing.
    pub(crate) fn complete<'a>(&mut self, metrics: impl Iterator<Item = &'a str>) {
        for metric in metrics {
            if !self.values.contains_key(metric) {
                self.set_missing(metric, "not reported");
            }
        }
    }
}

fn usable(value: f64) -> bool {
    value.abs() <= 1e300
}

/// One run that took place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Index of the arm.
    pub arm: usize,
    /// Round, from 0; warm-up rounds and measured rounds are counted apart.
    pub round: usize,
    /// Place in the round, from 0.
    pub position: usize,
    /// True if the run only warmed up the machine.
    pub warmup: bool,
    /// Reason why the run counts as failed; `None` if it did not fail.
    pub failed: Option<String>,
    /// Measurements of the run.
    #[serde(flatten)]
    pub sample: Sample,
}

impl Record {
    /// Returns true if its numbers enter the statistics.
    #[must_use]
    pub const fn counts(&self) -> bool {
        !self.warmup && self.failed.is_none()
    }
}

/// Reason why a run gave no good sample.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RunnerError {
    /// The run took place and failed, e.g. by an exit status that was not expected.
    #[error("the run failed: {reason}")]
    Failed {
        /// Reason for people: `exit status 1, expected 0`.
        reason: String,
        /// Measurements of the failed run.
        sample: Sample,
    },
    /// The run was cut short from outside (Ctrl-C reaches the whole foreground process group, so the program often dies of it too). The run is
    /// not a result and is not recorded.
    #[error("the run was interrupted")]
    Interrupted,
    /// No further run can succeed, e.g. the command does not exist.
    #[error("{0}")]
    Abort(String),
}

impl RunnerError {
    /// Makes the error for a failed run without measurements.
    #[must_use]
    pub fn failed(reason: impl Into<String>) -> Self {
        Self::Failed {
            reason: reason.into(),
            sample: Sample::new(),
        }
    }
}

/// A driver or simulation that can run one arm once.
pub trait Runner {
    /// Runs arm number `arm` to its end and measures it; with `warmup`, the numbers are discarded.
    ///
    /// # Errors
    /// Returns a [`RunnerError`]: failed, interrupted, or hopeless.
    fn run(&mut self, arm: usize, warmup: bool) -> Result<Sample, RunnerError>;
}

/// Progress of an execution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Progress<'a> {
    /// A run is about to start.
    Starting {
        /// Turn of the run.
        turn: ScheduledRun,
        /// Runs done so far.
        done: usize,
        /// Runs due in all.
        total: usize,
    },
    /// A run has ended and was recorded.
    Finished {
        /// Record of the run.
        record: &'a Record,
        /// Runs done so far, this one included.
        done: usize,
        /// Runs due in all.
        total: usize,
    },
}

/// Result of executing a schedule.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Execution {
    /// The runs, in the order in which they took place.
    pub records: Vec<Record>,
    /// True if it was interrupted from outside before the schedule was done.
    pub interrupted: bool,
    /// Reason why the runner gave up; `None` if it did not.
    pub aborted: Option<String>,
}

impl Execution {
    /// Returns true if its runs are the first ones of this schedule, so that [`go_on`] can continue it.
    #[must_use]
    pub fn follows(&self, schedule: &Schedule) -> bool {
        let turns = schedule.turns();
        let is_turn = |(record, turn): (&Record, &ScheduledRun)| {
            let Record {
                arm,
                round,
                position,
                warmup,
                ..
            } = *record;
            ScheduledRun {
                arm,
                round,
                position,
                warmup,
            } == *turn
        };
        self.records.len() <= turns.len() && self.records.iter().zip(turns).all(is_turn)
    }

    /// Returns true if any run, warm-ups included, did not fail.
    #[must_use]
    pub fn has_good_run(&self) -> bool {
        self.records.iter().any(|record| record.failed.is_none())
    }
}

/// Executes the whole schedule.
///
/// Calls `stop` before every run; once it returns `true`, the execution ends with `interrupted` set, and keeps the runs so far. A signal
/// handler that sets a flag is enough.
pub fn execute(
    schedule: &Schedule,
    runner: &mut dyn Runner,
    progress: &mut dyn FnMut(Progress<'_>),
    stop: &dyn Fn() -> bool,
) -> Execution {
    let mut execution = Execution::default();
    let all = schedule.turns().len();
    go_on(&mut execution, schedule, all, runner, progress, stop);
    execution
}

/// Continues a schedule: takes its turns from the first one without a run in `execution`, up to `until` turns in all. Clears an earlier
/// `interrupted` and `aborted`.
///
/// A schedule depends on its arguments alone, and a schedule of more rounds begins with the same turns. So a comparison can stop at any run and
/// continue later.
pub fn go_on(
    execution: &mut Execution,
    schedule: &Schedule,
    until: usize,
    runner: &mut dyn Runner,
    progress: &mut dyn FnMut(Progress<'_>),
    stop: &dyn Fn() -> bool,
) {
    let total = schedule.turns().len();
    execution.interrupted = false;
    execution.aborted = None;
    let begun = execution.records.len();
    for (done, turn) in (schedule.turns().iter().copied().enumerate())
        .take(until)
        .skip(begun)
    {
        if stop() {
            execution.interrupted = true;
            break;
        }
        progress(Progress::Starting { turn, done, total });
        let (sample, failed) = match runner.run(turn.arm, turn.warmup) {
            Ok(sample) => (sample, None),
            Err(RunnerError::Failed { reason, sample }) => (sample, Some(reason)),
            Err(RunnerError::Interrupted) => {
                execution.interrupted = true;
                break;
            }
            Err(RunnerError::Abort(why)) => {
                execution.aborted = Some(why);
                break;
            }
        };
        let record = Record {
            arm: turn.arm,
            round: turn.round,
            position: turn.position,
            warmup: turn.warmup,
            failed,
            sample,
        };
        let done = done + 1;
        progress(Progress::Finished {
            record: &record,
            done,
            total,
        });
        execution.records.push(record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Runner that answers from a script, and repeats its last line.
    struct Scripted(Vec<Result<Sample, RunnerError>>, usize);

    impl Runner for Scripted {
        fn run(&mut self, _: usize, _: bool) -> Result<Sample, RunnerError> {
            let line = self.1.min(self.0.len() - 1);
            self.1 += 1;
            self.0[line].clone()
        }
    }

    fn sample(value: f64) -> Sample {
        let mut sample = Sample::new();
        sample.set("wall", value);
        sample
    }

    fn go(script: Vec<Result<Sample, RunnerError>>) -> Execution {
        let schedule = Schedule::new(2, 3, 1, 5);
        execute(&schedule, &mut Scripted(script, 0), &mut |_| (), &|| false)
    }

    #[test]
    fn all_turns_are_taken_and_progress_is_told() {
        let schedule = Schedule::new(3, 2, 1, 5);
        let mut told = Vec::new();
        let execution = execute(
            &schedule,
            &mut Scripted(vec![Ok(sample(1.0))], 0),
            &mut |progress| {
                told.push(match progress {
                    Progress::Starting { done, total, .. } => (false, done, total),
                    Progress::Finished { done, total, .. } => (true, done, total),
                });
            },
            &|| false,
        );
        assert_eq!(execution.records.len(), 9);
        assert_eq!(execution.records.iter().filter(|r| r.warmup).count(), 3);
        for (record, turn) in execution.records.iter().zip(schedule.turns()) {
            assert_eq!(
                (record.arm, record.round, record.position, record.warmup),
                (turn.arm, turn.round, turn.position, turn.warmup)
            );
        }
        assert_eq!(told.len(), 18);
        assert_eq!(told[0], (false, 0, 9));
        assert_eq!(told[17], (true, 9, 9));
        assert!(!execution.interrupted && execution.aborted.is_none());
    }

    #[test]
    fn a_failed_run_is_recorded_with_what_it_measured() {
        let failed = RunnerError::Failed {
            reason: "exit status 1, expected 0".into(),
            sample: sample(9.0),
        };
        let execution = go(vec![Ok(sample(1.0)), Err(failed), Ok(sample(2.0))]);
        assert_eq!(execution.records.len(), 8);
        let record = &execution.records[1];
        assert_eq!(record.failed.as_deref(), Some("exit status 1, expected 0"));
        assert_eq!(record.sample.get("wall"), Some(9.0));
        assert!(!record.counts());
    }

    #[test]
    fn interruption_keeps_what_is_done() {
        let execution = go(vec![Ok(sample(1.0)), Err(RunnerError::Interrupted)]);
        assert!(execution.interrupted);
        assert_eq!(execution.records.len(), 1);

        let asked = Cell::new(0);
        let execution = execute(
            &Schedule::new(2, 3, 0, 5),
            &mut Scripted(vec![Ok(sample(1.0))], 0),
            &mut |_| (),
            &|| {
                asked.set(asked.get() + 1);
                asked.get() > 4
            },
        );
        assert!(execution.interrupted);
        assert_eq!(execution.records.len(), 4);
    }

    #[test]
    fn a_hopeless_runner_ends_it() {
        let abort = RunnerError::Abort("nosuch: command not found".into());
        let execution = go(vec![Err(abort)]);
        assert_eq!(
            execution.aborted.as_deref(),
            Some("nosuch: command not found")
        );
        assert!(execution.records.is_empty() && !execution.interrupted);
    }

    #[test]
    fn what_is_not_finite_is_missing() {
        let mut sample = Sample::new();
        sample.set("a", f64::NAN);
        sample.set("b", 0.0);
        sample.record("c", Err::<f64, _>("no pagemap"));
        assert_eq!(sample.get("a"), None);
        assert_eq!(sample.why_missing("a"), Some("not a finite number"));
        assert_eq!(sample.get("b"), Some(0.0));
        assert_eq!(sample.why_missing("c"), Some("no pagemap"));
        sample.set("a", 1.0);
        assert_eq!(sample.why_missing("a"), None);
        sample.complete(["b", "d"].into_iter());
        assert_eq!(sample.why_missing("d"), Some("not reported"));
        assert_eq!(sample.get("b"), Some(0.0));
    }
}

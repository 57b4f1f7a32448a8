//! Measures the programs of a suite, round by round.

use std::cell::Cell;
use std::ffi::OsStr;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{Access, access};
use serde_json::Value;
use superhue::experiment::Experiment;
use superhue_measure::{
    Arm, Comparison, Context, Design, Execution, RunnerError, Schedule, Settings, Suite, SuiteArm,
    SuiteProgram, go_on,
};

use super::super::now;
use super::super::progress::RunProgress;
use super::super::suite_file::{ProgramPlan, SuiteFile};
use super::machine::{other_machine, other_settings};
use super::report::Report;
use super::{INTERRUPTED, TIME_IS_UP, UNWRITABLE, refuse};
use crate::output::Failure;

/// A suite that is being measured.
pub(super) struct Session<'a> {
    pub(super) file: &'a SuiteFile,
    pub(super) suite: Suite,
    /// The arms that this machine can run.
    pub(super) arms: Vec<Arm>,
    pub(super) machine: Value,
    /// One for each program, in their order.
    pub(super) states: Vec<State>,
    /// Names of programs whose runs failed in this session; a program that is not installed is none of them.
    pub(super) given_up: Vec<String>,
}

/// Progress of a program.
#[derive(Default)]
pub(super) struct State {
    pub(super) execution: Execution,
    /// Time at which its first run started.
    pub(super) started: Option<f64>,
    /// Facts of the machine in the first session that ran it; `None` before.
    pub(super) machine: Option<Value>,
    is_set_up: bool,
    /// True if this session runs no more of it.
    pub(super) is_over: bool,
}

impl Session<'_> {
    /// Checks that an arm in which superhue made huge pages is not continued without them, and the reverse. While nothing is left to run, the
    /// suite keeps what the earlier sessions found.
    pub(super) fn keep_obstacles(&mut self, before: &[SuiteArm]) -> Result<(), Failure> {
        if self.suite.programs.iter().all(|it| it.comparison.is_none()) {
            return Ok(());
        }
        let is_over = (0..self.states.len()).all(|index| self.has_enough(index));
        for arm in &mut self.suite.arms {
            let Some(was) = before.iter().find(|was| was.name == arm.name) else {
                continue;
            };
            if let (Some(was), Some(is)) = (&was.obstacle, &arm.obstacle)
                && was.is_some() != is.is_some()
                && !is_over
            {
                let name = &arm.name;
                let (text, instead) = match is {
                    Some(why) => (
                        format!(
                            "is of arm `{name}` with superhue's huge pages, which it makes no more ({why})"
                        ),
                        "restore what it lacks",
                    ),
                    None => (
                        format!(
                            "is of arm `{name}` without superhue's huge pages, which it makes now"
                        ),
                        "take that right away again",
                    ),
                };
                return refuse(&text, instead);
            }
            match was.obstacle {
                Some(_) => arm.obstacle.clone_from(&was.obstacle),
                // Earlier runs may have been without huge pages.
                None if arm.obstacle == Some(None) => arm.obstacle = None,
                None => {}
            }
        }
        Ok(())
    }

    /// Checks that all runs of a program come from one machine and one superhue; programs that need no more runs, or are not chosen, may differ.
    pub(super) fn stay_on_one_machine(&self) -> Result<(), Failure> {
        for (index, program) in self.suite.programs.iter().enumerate() {
            let Some(kept) = program.comparison.as_ref() else {
                continue;
            };
            if self.has_enough(index) {
                continue;
            }
            let name = &program.name;
            if let Some((what, was, is)) = other_machine(&kept.machine, &self.machine) {
                let text = format!("is of `{name}` on another machine ({what} {was}, not {is})");
                return refuse(&text, "choose other programs with --only");
            }
            if let Some((what, was, is)) = other_settings(&kept.machine, &self.machine) {
                let text = format!("is of `{name}` under other settings ({what} {was}, not {is})");
                return refuse(&text, "change it back, choose other programs with --only");
            }
        }
        Ok(())
    }

    /// Runs the programs in turn until each has enough rounds, the time expires, or a signal interrupts it.
    ///
    /// # Errors
    /// If the report cannot be written. The suite has the measurements all the same.
    pub(super) fn go(
        &mut self,
        experiment: &mut Experiment,
        deadline: Option<Instant>,
        report: Option<&Report>,
    ) -> anyhow::Result<()> {
        let is_interrupted = Cell::new(false);
        let between = experiment.interrupt_check();
        let is_late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        // The deadline ends no run; it keeps further ones from starting.
        let is_time_up = Cell::new(false);
        let stop = || {
            is_interrupted.set(is_interrupted.get() || between());
            is_time_up.set(!is_interrupted.get() && is_late());
            is_interrupted.get() || is_time_up.get()
        };
        let due = (0..self.states.len())
            .map(|index| self.runs_left(index))
            .sum();
        let mut shown = RunProgress::new(due);
        while let Some(index) = self.next() {
            if stop() {
                break;
            }
            if self.runs_left(index) == 0 {
                shown.add(self.arms.len());
            }
            let name = &self.file.programs[index].name;
            shown.turn_to(Some(name.as_str()), &self.arms);
            let round = self.round(index, experiment, &mut shown, &stop);
            let is_cut = matches!(round, Err(RunnerError::Interrupted));
            if is_cut {
                // Either the time had expired, or a signal arrived during the program's run.
                is_interrupted.set(is_interrupted.get() || !is_time_up.get());
            }
            if self.has_enough(index) && !self.states[index].is_over {
                let rounds = self.rounds(index);
                let plural = if rounds == 1 { "" } else { "s" };
                shown.say(&format!("{name}: done after {rounds} round{plural}"));
            }
            if let Some(report) = report {
                self.suite.unfinished = self.why_unfinished(INTERRUPTED);
                if let Err(error) = report.save(&self.suite) {
                    self.suite.unfinished = self.why_unfinished(UNWRITABLE);
                    return Err(error);
                }
            }
            if is_cut {
                break;
            }
        }
        let why = if is_interrupted.get() {
            INTERRUPTED
        } else {
            TIME_IS_UP
        };
        self.suite.unfinished = self.why_unfinished(why);
        Ok(())
    }

    /// Returns the program whose turn it is: of those that need more, the first one with the fewest rounds. So a suite
    /// that is interrupted often does not always continue with the same program.
    fn next(&self) -> Option<usize> {
        let open = (0..self.states.len()).filter(|index| !self.has_enough(*index));
        open.min_by_key(|&index| self.states[index].execution.records.len() / self.arms.len())
    }

    /// Returns a line about the unfinished programs, with the reason `why`; `None` if all are finished.
    fn why_unfinished(&self, why: &str) -> Option<String> {
        let all = (self.file.programs.iter()).filter(|plan| plan.is_chosen);
        let all = all.count();
        let open = (0..self.states.len()).filter(|index| !self.has_enough(*index));
        match open.count() {
            0 => None,
            open => Some(format!(
                "{why}; {open} of {all} programs were to have more runs"
            )),
        }
    }

    /// Number of complete measured rounds.
    fn rounds(&self, index: usize) -> usize {
        let runs = self.states[index].execution.records.len();
        (runs / self.arms.len()).saturating_sub(self.file.settings.warmup)
    }

    /// Least number of runs that a program still needs.
    fn runs_left(&self, index: usize) -> usize {
        let state = &self.states[index];
        let rounds = self.file.settings.warmup + self.file.runs.0;
        let left = (rounds * self.arms.len()).saturating_sub(state.execution.records.len());
        if state.is_over { 0 } else { left }
    }

    /// Returns true if a program gets no more rounds; `superhue_measure::suite` explains the rule.
    fn has_enough(&self, index: usize) -> bool {
        let (least, most) = self.file.runs;
        let rounds = self.rounds(index);
        let is_precise = || {
            let program = &self.suite.programs[index];
            let speed = program.speed_metric();
            (program.comparison.as_ref().zip(speed)).is_some_and(|(comparison, speed)| {
                comparison.is_precise(&speed.name, self.file.settings.smallest)
            })
        };
        self.states[index].is_over || rounds >= most || (rounds >= least && is_precise())
    }

    /// Runs one round of a program, or the rest of a round that was interrupted. Errors other than an interrupt are
    /// recorded in the suite.
    fn round(
        &mut self,
        index: usize,
        experiment: &mut Experiment,
        shown: &mut RunProgress,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), RunnerError> {
        let plan = &self.file.programs[index];
        if !self.states[index].is_set_up {
            match set_up(plan, experiment) {
                Ok(()) => self.states[index].is_set_up = true,
                Err(RunnerError::Abort(why) | RunnerError::Failed { reason: why, .. }) => {
                    shown.say(&format!("{} left out: {why}", plan.name));
                    self.give_up(index, why);
                    return Ok(());
                }
                Err(interrupted) => return Err(interrupted),
            }
        }
        plan.put_into(experiment);
        let most = self.file.runs.1.max(self.rounds(index) + 1);
        let Settings { warmup, seed, .. } = self.file.settings;
        let schedule = Schedule::new(self.arms.len(), most, warmup, seed);
        let state = &mut self.states[index];
        state.started = state.started.or_else(now);
        state.machine.get_or_insert_with(|| self.machine.clone());
        let until = (state.execution.records.len() / self.arms.len() + 1) * self.arms.len();
        go_on(
            &mut state.execution,
            &schedule,
            until,
            experiment,
            &mut |progress| shown.tell(progress),
            stop,
        );
        let interrupted = state.execution.interrupted;
        let is_whole = state.execution.records.len() == until;
        if let Some(why) = state.execution.aborted.clone() {
            shown.say(&format!("{} given up: {why}", plan.name));
            self.given_up.push(plan.name.clone());
            self.give_up(index, why);
        } else if is_whole && !state.execution.has_good_run() {
            let failed = state
                .execution
                .records
                .iter()
                .find_map(|run| run.failed.clone());
            self.given_up.push(plan.name.clone());
            self.give_up(index, failed.unwrap_or_default());
        } else {
            self.keep(index);
        }
        if interrupted {
            Err(RunnerError::Interrupted)
        } else {
            Ok(())
        }
    }

    /// Ends the runs of a program in this session. Its good runs stay.
    fn give_up(&mut self, index: usize, why: String) {
        let state = &mut self.states[index];
        state.is_over = true;
        if state.execution.has_good_run() {
            state.execution.aborted = Some(why);
            self.keep(index);
        } else {
            state.execution = Execution::default();
            let program = &mut self.suite.programs[index];
            program.comparison = None;
            program.rows.clear();
            program.skipped = Some(why);
        }
    }

    /// Copies the measurements of a program into the suite.
    fn keep(&mut self, index: usize) {
        let plan = &self.file.programs[index];
        let state = &self.states[index];
        if state.execution.records.is_empty() {
            return;
        }
        let settings = Settings {
            // At least the round that has begun.
            runs: self.rounds(index).max(1),
            ..self.file.settings.clone()
        };
        let metrics = SuiteProgram::metrics(
            plan.speed.as_ref().map(|speed| speed.metric()),
            plan.tail.as_ref().map(|tail| tail.metric()),
        );
        let context = Context {
            command: (plan.words.iter())
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
            machine: (state.machine.clone()).unwrap_or_else(|| self.machine.clone()),
            started: state.started,
            finished: now(),
        };
        // Arms, metrics and settings were checked when the file was read.
        if let Ok(design) = Design::new(self.arms.clone(), metrics, settings) {
            let comparison = Comparison::new(design, state.execution.clone(), context);
            self.suite.programs[index].take(comparison, self.file.settings.smallest);
        }
    }
}

/// Checks that a program is installed, and runs its setup.
///
/// # Errors
/// The missing part, and the way to install it; the failure of the setup; an interrupt.
fn set_up(plan: &ProgramPlan, experiment: &Experiment) -> Result<(), RunnerError> {
    let missing = |why: &str| RunnerError::Abort(with_remedy(why, plan.install.as_deref()));
    if let Some(test) = &plan.test {
        experiment
            .aside("test", test)
            .map_err(|error| match error {
                RunnerError::Abort(why) => missing(&why),
                other => other,
            })?;
    }
    // The setup may build the program.
    if let Some(setup) = &plan.plan.setup {
        experiment.aside("setup", setup)?;
    }
    let first = plan.words.first();
    let program = first.map_or(OsStr::new(""), |word| word.as_os_str());
    if is_executable(program) {
        Ok(())
    } else {
        let program = program.to_string_lossy();
        Err(missing(&format!("there is no program `{program}` here")))
    }
}

impl ProgramPlan {
    /// Makes this program the next one to run.
    fn put_into(&self, experiment: &mut Experiment) {
        experiment.command.clone_from(&self.words);
        experiment.prepare.clone_from(&self.plan.prepare);
        experiment.server.clone_from(&self.server);
        experiment.ignore_failure = self.ignore_failure;
        experiment.metrics = self.speed.iter().chain(&self.tail).cloned().collect();
    }
}

/// Returns true if there is a program of that name, in the places where `execvp(3)` looks.
fn is_executable(program: &OsStr) -> bool {
    let is_one = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    let program = Path::new(program);
    if program.components().count() != 1 {
        return is_one(program);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| is_one(&folder.join(program)))
}

/// Returns the reason for leaving something out, and the way to install it.
pub(super) fn with_remedy(why: &str, install: Option<&str>) -> String {
    match install {
        Some(install) => format!("{} ({install})", why.trim_end_matches('.')),
        None => why.to_owned(),
    }
}

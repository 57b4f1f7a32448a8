//! `superhue compare --suite`: many programs, round by round.
//!
//! ```text
//!   file ──> arms that this machine can run (each is tried) ──> programs that are there
//!                                                                  │
//!   report kept before ──> is it of the same suite and machine? ───┤
//!                                                                  v
//!       ┌── next program: setup (once), a round: every arm once ──> report written ──┐
//!       └────────────── until all have enough, the time is over, or Ctrl-C ──────────┘
//! ```

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use rustix::fs::{Access, access};
use serde_json::Value;
use superhue::InheritedState;
use superhue::experiment::{Experiment, machine_facts};
use superhue::procfs::Roots;
use superhue_compare::SuiteView;
use superhue_measure::{
    Arm, Comparison, Context, Design, Execution, RunnerError, Schedule, Settings, Suite, SuiteArm,
    SuiteProgram, go_on,
};

use super::files::Files;
use super::powerless::Powerless;
use super::progress::RunProgress;
use super::suite_file::{ProgramPlan, SuiteFile};
use super::{cannot_show, cut_short, now};
use crate::args::CompareArgs;
use crate::output::{FAILED, Failure, USAGE, VerbResult, note, print, print_document, room};
use crate::verb::document::{MAX_DOCUMENT_BYTES, read_document};
use crate::verb::outputs::first_of;
use crate::verb::restore::recover;
use crate::verb::shared_folder::open_to_write;

/// Properties that must be the same in all runs of one comparison.
const SAME_MACHINE: [(&str, &str); 4] = [
    ("cpu", "CPU"),
    ("kernel", "kernel"),
    ("superhue", "superhue"),
    ("commit", "commit of superhue"),
];

/// Further ones, which results of older versions may lack. A counter of khugepaged is not among them: it differs after each run.
const SAME_SETTINGS: [(&str, &str); 11] = [
    ("/cpus", "CPUs"),
    ("/memory_bytes", "memory"),
    ("/thp_enabled", "mode of huge pages"),
    ("/thp_defrag", "mode of defragmentation"),
    ("/khugepaged/alloc_sleep_ms", "khugepaged's alloc_sleep_ms"),
    ("/khugepaged/scan_sleep_ms", "khugepaged's scan_sleep_ms"),
    ("/khugepaged/pages_to_scan", "khugepaged's pages_to_scan"),
    ("/khugepaged/defrag", "khugepaged's defrag"),
    ("/khugepaged/max_ptes_none", "khugepaged's max_ptes_none"),
    (
        "/khugepaged/max_ptes_shared",
        "khugepaged's max_ptes_shared",
    ),
    ("/khugepaged/max_ptes_swap", "khugepaged's max_ptes_swap"),
];

/// Largest relative difference of the memory of one machine: what the kernel itself takes at boot varies.
const SAME_MEMORY: f64 = 0.01;

/// Reasons why a session ends before all is done.
const INTERRUPTED: &str = "interrupted";
const TIME_IS_UP: &str = "the time is up";

/// Measures the missing rounds.
pub(super) fn measure(args: &CompareArgs, path: &Path, preserved: InheritedState) -> VerbResult {
    let file = SuiteFile::read(args, path)?;
    let report = args.report.as_deref().map(Report::open).transpose()?;
    let kept = report.as_ref().and_then(|report| report.kept.clone());
    let files = Files::of_suite(args)?;
    recover(false);
    let mut experiment = Experiment::new(Vec::new(), Vec::new(), preserved);
    experiment.timeout = file.timeout;
    experiment.show_output = args.show_output;
    let begun = begin(&file, kept, &mut experiment);
    let mut session = match begun {
        Ok(session) => session,
        Err(failure) => {
            files.abandon();
            return Err(failure);
        }
    };
    let deadline = args.suite.time.map(|time| Instant::now() + time);
    let done = session.go(&mut experiment, deadline, report.as_ref());
    // From here on signals end this process again.
    drop(experiment);
    let given_up = session.given_up.join(", ");
    let suite = session.suite;
    let saved = done.and_then(|()| report.as_ref().map_or(Ok(()), |report| report.save(&suite)));
    let told = publish(args, &suite, files);
    if let Some(why) = &suite.unfinished {
        let hint = if args.report.is_some() {
            "; the same command goes on from here"
        } else {
            " (with --report, the same command would go on from here)"
        };
        note(&format!("not finished: {why}{hint}"));
    }
    saved.map_err(|error| Failure::new(FAILED, error))?;
    let is_interrupted = is_interrupted(&suite);
    let status = told.map(|status| cut_short(status, is_interrupted))?;
    if given_up.is_empty() || is_interrupted {
        return Ok(status);
    }
    let text = format!("given up: {given_up}; why is said above");
    Err(Failure::new(FAILED, text))
}

/// Returns true if a signal cut the suite short.
fn is_interrupted(suite: &Suite) -> bool {
    (suite.unfinished.as_deref()).is_some_and(|why| why.starts_with(INTERRUPTED))
}

/// Shows an earlier result.
pub(super) fn show(args: &CompareArgs, path: &Path, text: &str) -> VerbResult {
    if args.gates.all().next().is_some() {
        let text = format!(
            "{} is the result of a suite: there is no --fail-if and --fail-unless for many programs",
            path.display()
        );
        return Err(Failure::new(USAGE, text));
    }
    let suite = Suite::from_json(text);
    let suite = suite.map_err(|error| cannot_show(path, anyhow::Error::msg(error.to_string())))?;
    publish(args, &suite, Files::of_suite(args)?)
}

/// Prints the table, and writes the files made from it.
fn publish(args: &CompareArgs, suite: &Suite, files: Files<Suite>) -> VerbResult {
    let trouble = files.write(suite);
    if args.json {
        // The table has these reasons itself.
        SuiteView(suite)
            .powerless()
            .iter()
            .for_each(|why| note(why));
        let text = suite.to_json().context("cannot write the result as JSON");
        print_document(&text.map_err(|error| Failure::new(FAILED, error))?)?;
    } else {
        print(&SuiteView(suite).table(room()))?;
    }
    first_of(trouble)?;
    if suite.programs.iter().all(|program| program.rows.is_empty()) {
        let code = if is_interrupted(suite) {
            crate::output::INTERRUPTED
        } else {
            FAILED
        };
        return Err(Failure::new(
            code,
            "nothing was measured: the reasons stand above",
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// A suite that is being measured.
struct Session<'a> {
    file: &'a SuiteFile,
    suite: Suite,
    /// The arms that this machine can run.
    arms: Vec<Arm>,
    machine: Value,
    /// One for each program, in their order.
    states: Vec<State>,
    /// Names of programs whose runs failed in this session; a program that is not installed is none of them.
    given_up: Vec<String>,
}

/// Progress of a program.
#[derive(Default)]
struct State {
    execution: Execution,
    /// Time at which its first run started.
    started: Option<f64>,
    /// Facts of the machine in the first session that ran it; `None` before.
    machine: Option<Value>,
    is_set_up: bool,
    /// True if this session runs no more of it.
    is_over: bool,
}

/// Prepares a session, from the kept report if there is one. The only runs are one trial of each arm.
fn begin<'a>(
    file: &'a SuiteFile,
    kept: Option<Suite>,
    experiment: &mut Experiment,
) -> Result<Session<'a>, Failure> {
    let mut arms = Vec::new();
    let mut configs = Vec::new();
    let mut told = Vec::new();
    experiment.arms = file.arms.iter().map(|plan| plan.config.clone()).collect();
    for (index, plan) in file.arms.iter().enumerate() {
        let skipped = match experiment.try_arm(index) {
            Ok(()) => {
                arms.push(plan.arm.clone());
                configs.push(plan.config.clone());
                None
            }
            Err(RunnerError::Interrupted) => {
                return Err(Failure::new(crate::output::INTERRUPTED, INTERRUPTED));
            }
            Err(RunnerError::Abort(reason) | RunnerError::Failed { reason, .. }) => {
                Some(with_remedy(&reason, plan.install.as_deref()))
            }
        };
        if let Some(why) = &skipped {
            note(&format!("arm `{}` left out: {why}", plan.arm.name));
        }
        told.push(SuiteArm {
            name: plan.arm.name.clone(),
            options: plan.arm.options.clone(),
            skipped,
            obstacle: None,
        });
    }
    let reference = told.first().and_then(|arm| arm.skipped.as_ref());
    let others = (told.iter().skip(1)).find_map(|arm| arm.skipped.as_ref());
    let problem = match (reference, others) {
        (Some(why), _) => Some(format!(
            "the first arm, which the others are compared with, cannot be run here: {why}"
        )),
        (None, Some(why)) if arms.len() < 2 => {
            Some(format!("no arm but the first can be run here: {why}"))
        }
        _ => None,
    };
    if let Some(text) = problem {
        return Err(Failure::new(FAILED, text));
    }
    let powerless = Powerless::among(&arms, &configs);
    powerless.warn();
    for arm in told.iter_mut().filter(|arm| arm.skipped.is_none()) {
        arm.obstacle = Some(powerless.reason(&arm.name));
    }
    experiment.arms = configs;
    let machine = machine_facts(&Roots::default());
    let mut suite = Suite::new(&file.title, file.settings.smallest, told);
    let arms_before = kept
        .as_ref()
        .map_or_else(Vec::new, |kept| kept.arms.clone());
    let states = take_over(file, kept, &arms, &mut suite)?;
    let mut session = Session {
        file,
        suite,
        arms,
        machine,
        states,
        given_up: Vec::new(),
    };
    session.keep_obstacles(&arms_before)?;
    session.stay_on_one_machine()?;
    Ok(session)
}

/// Returns the failure that explains why the kept report is not continued.
fn refuse<T>(text: &str, instead: &str) -> Result<T, Failure> {
    Err(Failure::new(
        USAGE,
        format!("the report kept before {text}: {instead}, or write to another file with --report"),
    ))
}

/// Copies the earlier measurements into `suite`, if they are of the same programs and arms.
fn take_over(
    file: &SuiteFile,
    kept: Option<Suite>,
    arms: &[Arm],
    suite: &mut Suite,
) -> Result<Vec<State>, Failure> {
    let refuse = |text: String| refuse(&text, "change it back");
    let mut before = kept.map_or_else(Vec::new, |kept| kept.programs);
    let is_lost = |known: &&SuiteProgram| {
        known.comparison.is_some() && file.programs.iter().all(|plan| plan.name != known.name)
    };
    if let Some(lost) = before.iter().find(is_lost) {
        return refuse(format!("holds `{}`, which the suite lacks", lost.name));
    }
    let mut states = Vec::new();
    for plan in &file.programs {
        let place = before.iter().position(|known| known.name == plan.name);
        let known = place.map(|place| before.swap_remove(place));
        let mut program = SuiteProgram::new(&plan.name, &plan.kind, plan.plan.clone());
        let mut state = State::default();
        if let Some(known) = known {
            if let Some(comparison) = known.comparison {
                let name = &plan.name;
                if !plan.plan.has_commands_of(&known.plan) {
                    return refuse(format!("is of `{name}` with another command or metric"));
                }
                if !plan.plan.has_settings_of(&known.plan) {
                    return refuse(format!(
                        "is of `{name}` with another timeout, ready, patience or ignore-failure"
                    ));
                }
                // The settings of the earlier runs may be unknown.
                program.plan.settings = known.plan.settings;
                let schedule = Schedule::new(
                    arms.len(),
                    rounds_of(&comparison, file),
                    file.settings.warmup,
                    file.settings.seed,
                );
                state.execution.records = comparison.samples.clone();
                if comparison.arms != arms {
                    let names: Vec<&str> = comparison.arms.iter().map(|arm| &*arm.name).collect();
                    return refuse(format!(
                        "is of `{name}` under other arms ({})",
                        names.join(", ")
                    ));
                }
                if !state.execution.follows(&schedule) {
                    return refuse(format!("is of `{name}` with another warm-up or seed"));
                }
                state.started = comparison.started;
                state.machine = Some(comparison.machine.clone());
                program.take(comparison, file.settings.smallest);
            } else if !plan.is_chosen {
                program.skipped = known.skipped;
            }
        }
        state.is_over = !plan.is_chosen;
        suite.programs.push(program);
        states.push(state);
    }
    Ok(states)
}

/// The most rounds of which a kept comparison may have runs.
fn rounds_of(comparison: &Comparison, file: &SuiteFile) -> usize {
    file.runs.1.max(comparison.samples.len())
}

/// Returns the first property of the machine that differs: its name, its old value, its new one.
fn other_machine(before: &Value, now: &Value) -> Option<(&'static str, String, String)> {
    let text = |machine: &Value, name: &str| match machine.get(name).and_then(Value::as_str) {
        Some(text) => text.to_owned(),
        None => "unknown".to_owned(),
    };
    SAME_MACHINE.into_iter().find_map(|(name, what)| {
        let (was, is) = (text(before, name), text(now, name));
        (was != is).then_some((what, was, is))
    })
}

/// Returns the first setting or size of the machine that differs from a known earlier one: its name, its old value, its new one.
fn other_settings(before: &Value, now: &Value) -> Option<(&'static str, String, String)> {
    let text = |value: &Value| match value {
        Value::Null => "unknown".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    SAME_SETTINGS.into_iter().find_map(|(path, what)| {
        let was = before.pointer(path).filter(|was| !was.is_null())?;
        let is = now.pointer(path).unwrap_or(&Value::Null);
        let is_same = match (path, was.as_f64(), is.as_f64()) {
            ("/memory_bytes", Some(was), Some(is)) => (was - is).abs() <= SAME_MEMORY * was,
            _ => was == is,
        };
        (!is_same).then(|| (what, text(was), text(is)))
    })
}

impl Session<'_> {
    /// Checks that an arm in which superhue made huge pages is not continued without them, and the reverse. While nothing is left to run, the
    /// suite keeps what the earlier sessions found.
    fn keep_obstacles(&mut self, before: &[SuiteArm]) -> Result<(), Failure> {
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
    fn stay_on_one_machine(&self) -> Result<(), Failure> {
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

    /// Runs the programs in turn until each has enough rounds, the time is over, or a signal interrupts it.
    ///
    /// # Errors
    /// If the report cannot be written. The suite has the measurements all the same.
    fn go(
        &mut self,
        experiment: &mut Experiment,
        deadline: Option<Instant>,
        report: Option<&Report>,
    ) -> anyhow::Result<()> {
        let is_interrupted = Cell::new(false);
        let between = experiment.interrupt_check();
        let is_late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let stop = || {
            is_interrupted.set(is_interrupted.get() || between());
            is_interrupted.get() || is_late()
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
                // Either the time was over, or a signal arrived during the program's run.
                is_interrupted.set(is_interrupted.get() || !is_late());
            }
            if self.has_enough(index) && !self.states[index].is_over {
                let rounds = self.rounds(index);
                let plural = if rounds == 1 { "" } else { "s" };
                shown.say(&format!("{name}: done after {rounds} round{plural}"));
            }
            if let Some(report) = report {
                self.suite.unfinished = self.why_unfinished(INTERRUPTED);
                report.save(&self.suite)?;
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
fn with_remedy(why: &str, install: Option<&str>) -> String {
    match install {
        Some(install) => format!("{} ({install})", why.trim_end_matches('.')),
        None => why.to_owned(),
    }
}

/// The file that a suite is written to repeatedly, whole each time.
struct Report {
    path: PathBuf,
    /// The suite that it already holds.
    kept: Option<Suite>,
}

/// Returns the path, without links, of the file that writing to `path` would reach. It is made for a moment if it is not there.
fn way_to(path: &Path) -> io::Result<PathBuf> {
    let (file, is_new) = open_to_write(path)?;
    let real = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    if is_new {
        fs::remove_file(&real)?;
    }
    Ok(real)
}

impl Report {
    /// Reads the existing report, and checks that it can be written.
    fn open(path: &Path) -> Result<Self, Failure> {
        let failed = |error: anyhow::Error| {
            let context = format!("cannot keep the result in {}", path.display());
            Failure::new(FAILED, error.context(context))
        };
        // Writes to the target of a link, not over the link; never follows a link of another user.
        let path = way_to(path).map_err(|error| failed(error.into()))?;
        let kept = match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error.into())),
            Ok(there) if there.is_file() && there.len() == 0 => None,
            Ok(_) => {
                let text = read_document(&path, MAX_DOCUMENT_BYTES).map_err(failed)?;
                let kept = Suite::from_json(&text).map_err(|error| {
                    let text = format!(
                        "{} is there already, and is no result of a suite ({error}): name another file with --report",
                        path.display()
                    );
                    Failure::new(USAGE, text)
                })?;
                Some(kept)
            }
        };
        let report = Self { path, kept };
        let beside = report.beside();
        open_to_write(&beside)
            .and_then(|_| fs::remove_file(&beside))
            .map_err(|error| failed(error.into()))?;
        Ok(report)
    }

    /// The path of the new report until it replaces the old one.
    fn beside(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".part");
        name.into()
    }

    /// Replaces the report in one step: a reader sees the old one or the new one, also if superhue is killed.
    fn save(&self, suite: &Suite) -> anyhow::Result<()> {
        let beside = self.beside();
        let written = suite.to_json().map_err(io::Error::from).and_then(|text| {
            let (mut file, _) = open_to_write(&beside)?;
            file.set_len(0)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&beside, &self.path)
        });
        written
            .inspect_err(|_| {
                let _ = fs::remove_file(&beside);
            })
            .with_context(|| format!("cannot keep the result in {}", self.path.display()))
    }
}

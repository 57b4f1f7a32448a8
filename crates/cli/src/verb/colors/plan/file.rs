//! The plan's file: a cache, a schedule, tasks.
//!
//! ```toml
//! schedule = "cyclic"            # or "preemptive": what happens on one CPU; there is no default
//! minimise = "sum"               # of the costs, or "worst": the largest share of a deadline
//! others = 4                     # colors that no task gets: for the kernel and other programs
//! shared-by = ["0-3", "4-7"]     # groups of CPUs, each with a cache of its own; without it all CPUs share one
//! miss-time = "90ns"             # compares misses with seconds
//! never-together = [["a", "b"]]  # no run of one begins before a run of the other has ended
//! apart = [["a", "c"]]           # no color in common, whatever their schedule
//!
//! [[task]]
//! name = "control"
//! cpu = 0                        # or a list: "0-1"
//! colors = 8                     # or a curve, points of colors and cost of a run:
//! #misses = [[2, 90000], [4, 20000], [8, 15000]]
//! #seconds = [[2, 0.004], [4, 0.001]]
//! #measured = "control.json"     # seconds, by a report of superhue compare; beside the plan's file
//! period = "10ms"
//! offset = "1ms"                 # with window: the part of the period in which it may run
//! window = "3ms"
//! deadline = "5ms"               # default: the period
//! command = "./control --loop"   # printed with its colors
//! unit = "control.service"       # printed as a rule of the daemon
//! ```
//!
//! Superhue reports the first error with file, line and column.

use std::fmt::Display;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use superhue::model::parse_duration;
use superhue::page_colors::plan::{
    Curve, MOST_TASKS, Needs, Objective, Preemption, Problem, ProblemError, Task, Unit, Window,
};
use superhue::parse::TextPositions;
use superhue::procfs::hardware::CpuList;
use toml::Spanned;

use super::measured;
use crate::output::{FAILED, Failure, USAGE};
use crate::verb::document::read_document;

/// Longer files are no plans.
const MAX_PLAN_BYTES: u64 = 1 << 20;

/// The longest name of a task, as of a rule of the daemon.
const LONGEST_NAME: usize = 64;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawFile {
    schedule: Option<Spanned<String>>,
    minimise: Option<Spanned<String>>,
    others: Option<Spanned<i64>>,
    #[serde(default)]
    shared_by: Vec<Spanned<String>>,
    miss_time: Option<Spanned<String>>,
    #[serde(default)]
    never_together: Vec<Vec<Spanned<String>>>,
    #[serde(default)]
    apart: Vec<Vec<Spanned<String>>>,
    #[serde(default)]
    task: Vec<Spanned<RawTask>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawTask {
    name: Spanned<String>,
    cpu: Spanned<RawCpus>,
    colors: Option<Spanned<i64>>,
    misses: Option<Spanned<Vec<(i64, f64)>>>,
    seconds: Option<Spanned<Vec<(i64, f64)>>>,
    measured: Option<Spanned<String>>,
    period: Option<Spanned<String>>,
    offset: Option<Spanned<String>>,
    window: Option<Spanned<String>>,
    deadline: Option<Spanned<String>>,
    command: Option<Spanned<String>>,
    unit: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum RawCpus {
    One(i64),
    List(String),
}

/// Contents of a file.
#[derive(Debug)]
pub(super) struct PlanFile {
    /// The problem, still without the number of colors.
    pub(super) problem: Problem,
    /// The ways to start each task, in their order.
    pub(super) starts: Vec<Start>,
}

/// The way in which a task is started.
#[derive(Debug, Default)]
pub(super) struct Start {
    /// Command of the task, word by word as a shell would write it.
    pub(super) command: Option<String>,
    /// Pattern for its systemd unit.
    pub(super) unit: Option<String>,
}

impl PlanFile {
    /// Reads the file; `online` are the CPUs that there are, if the plan is for this machine.
    ///
    /// # Errors
    /// If it cannot be read (status 1); an error in it, with its position (status 2).
    pub(super) fn read(path: &Path, online: Option<&CpuList>) -> Result<Self, Failure> {
        let text = read_document(path, MAX_PLAN_BYTES).map_err(|error| {
            let context = format!("cannot read the plan {}", path.display());
            Failure::new(FAILED, error.context(context))
        })?;
        let name = path.display().to_string();
        let reader = Reader {
            name: &name,
            folder: path.parent().unwrap_or(path),
            places: TextPositions::new(&text),
            online,
        };
        reader.file(&text)
    }
}

/// Converts the raw file to a problem, and reports the position of an error.
struct Reader<'a> {
    name: &'a str,
    /// Folder of the file, from which paths in it start.
    folder: &'a Path,
    places: TextPositions<'a>,
    online: Option<&'a CpuList>,
}

impl Reader<'_> {
    fn wrong(&self, at: Range<usize>, text: impl Display) -> Failure {
        let (line, column) = self.places.of(at.start);
        Failure::new(USAGE, format!("{}:{line}:{column}: {text}", self.name))
    }

    /// Reads a value by `read`; `None` if the value is missing.
    fn value<T, U, E: Display>(
        &self,
        given: Option<&Spanned<T>>,
        read: impl FnOnce(&T) -> Result<U, E>,
    ) -> Result<Option<U>, Failure> {
        let read = |given: &Spanned<T>| {
            read(given.get_ref()).map_err(|text| self.wrong(given.span(), text))
        };
        given.map(read).transpose()
    }

    fn file(&self, text: &str) -> Result<PlanFile, Failure> {
        let raw: RawFile = toml::from_str(text).map_err(|error| {
            let message = error.message().trim_end().replace('\n', "; ");
            self.wrong(error.span().unwrap_or_default(), message)
        })?;
        let preemption = self.value(raw.schedule.as_ref(), |text| preemption(text))?;
        let preemption = preemption.ok_or_else(|| {
            let text = "schedule is missing: write \"cyclic\" if a run ends before another one on the same CPU begins, else \"preemptive\"";
            self.wrong(0..0, text)
        })?;
        let mut problem = Problem::new(0, preemption);
        let objective = self.value(raw.minimise.as_ref(), |text| objective(text))?;
        problem.objective = objective.unwrap_or(Objective::Sum);
        problem.others = self
            .value(raw.others.as_ref(), |&number| count(number))?
            .unwrap_or(0);
        problem.miss_time = self.value(raw.miss_time.as_ref(), |text| parse_duration(text))?;
        for group in &raw.shared_by {
            let cpus = self.value(Some(group), |text| self.cpus(text))?;
            problem.sharing.push(cpus.unwrap_or_default());
        }
        if raw.task.len() > MOST_TASKS {
            return Err(self.wrong(0..0, ProblemError::TooManyTasks(raw.task.len())));
        }
        let mut starts = Vec::new();
        for raw in &raw.task {
            let task = self.task(raw.get_ref(), &problem.tasks)?;
            problem.tasks.push(task);
            starts.push(self.start(raw.get_ref())?);
        }
        problem.never_together = self.groups(&raw.never_together, &problem.tasks)?;
        problem.apart = self.groups(&raw.apart, &problem.tasks)?;
        Ok(PlanFile { problem, starts })
    }

    /// Converts groups of names.
    fn groups(
        &self,
        groups: &[Vec<Spanned<String>>],
        tasks: &[Task],
    ) -> Result<Vec<Vec<usize>>, Failure> {
        let number = |name: &Spanned<String>| {
            let at = tasks.iter().position(|task| task.name == *name.get_ref());
            at.ok_or_else(|| {
                let names: Vec<&str> = tasks.iter().map(|task| task.name.as_str()).collect();
                let text = format!(
                    "there is no task `{}`; there are {}",
                    name.get_ref(),
                    names.join(", ")
                );
                self.wrong(name.span(), text)
            })
        };
        let group = |group: &Vec<Spanned<String>>| group.iter().map(number).collect();
        groups.iter().map(group).collect()
    }

    fn task(&self, raw: &RawTask, before: &[Task]) -> Result<Task, Failure> {
        let name = self.value(Some(&raw.name), |name| task_name(name, before))?;
        let cpus = self.value(Some(&raw.cpu), |cpus| match cpus {
            RawCpus::One(number) => self.cpus(&number.to_string()),
            RawCpus::List(list) => self.cpus(list),
        })?;
        let mut task = Task::new(
            &name.unwrap_or_default(),
            cpus.unwrap_or_default(),
            self.needs(raw)?,
        );
        task.period = self.value(raw.period.as_ref(), |text| some_time(text))?;
        task.deadline = self.value(raw.deadline.as_ref(), |text| some_time(text))?;
        task.window = self.window(raw, task.period)?;
        Ok(task)
    }

    /// Reads the demand, which has one of four forms.
    fn needs(&self, raw: &RawTask) -> Result<Needs, Failure> {
        let curve = |unit: Unit, points: &Vec<(i64, f64)>| {
            let points = points
                .iter()
                .map(|&(colors, cost)| Ok((count(colors)?, cost)));
            let points = points.collect::<Result<Vec<_>, String>>()?;
            Curve::new(unit, points).map_err(|error| error.to_string())
        };
        let fixed = self.value(raw.colors.as_ref(), |&colors| match count(colors)? {
            0 => Err("a task has at least 1 color".to_owned()),
            colors => Ok(colors),
        })?;
        let misses = self.value(raw.misses.as_ref(), |points| curve(Unit::Misses, points))?;
        let seconds = self.value(raw.seconds.as_ref(), |points| curve(Unit::Seconds, points))?;
        let measured = self.value(raw.measured.as_ref(), |path| {
            measured::curve(&self.folder.join(path))
        })?;
        let forms = [
            fixed.map(Needs::Colors),
            misses.map(Needs::Curve),
            seconds.map(Needs::Curve),
            measured.map(Needs::Curve),
        ];
        let mut forms = forms.into_iter().flatten();
        match (forms.next(), forms.next()) {
            (Some(needs), None) => Ok(needs),
            _ => {
                let text =
                    "a task has one of colors, misses, seconds and measured: a number, or a curve";
                Err(self.wrong(raw.name.span(), text))
            }
        }
    }

    fn window(&self, raw: &RawTask, period: Option<Duration>) -> Result<Option<Window>, Failure> {
        let offset = self.value(raw.offset.as_ref(), |text| parse_duration(text))?;
        let length = self.value(raw.window.as_ref(), |text| some_time(text))?;
        let given = raw.window.as_ref().or(raw.offset.as_ref());
        let Some(at) = given.map(Spanned::span) else {
            return Ok(None);
        };
        let (Some(period), Some(length)) = (period, length) else {
            let text = "a part of the period takes period and window, and offset if it does not begin with the period";
            return Err(self.wrong(at, text));
        };
        let window = Window::new(period, offset.unwrap_or_default(), length);
        window.map(Some).map_err(|error| self.wrong(at, error))
    }

    fn start(&self, raw: &RawTask) -> Result<Start, Failure> {
        let command = self.value(raw.command.as_ref(), |command| {
            let words = shell_words::split(command).map_err(|error| error.to_string())?;
            let is_one = words.first().is_some_and(|first| !first.is_empty());
            is_one
                .then(|| shell_words::join(words))
                .ok_or_else(|| "this is no command".to_owned())
        })?;
        let unit = self.value(raw.unit.as_ref(), |unit| unit_name(unit))?;
        Ok(Start { command, unit })
    }

    /// Reads a list of CPUs, of those that there are.
    fn cpus(&self, text: &str) -> Result<Vec<u32>, String> {
        let list = CpuList::parse(text).map_err(|error| error.to_string())?;
        if list.is_empty() {
            return Err("this names no CPU".to_owned());
        }
        let is_missing = |cpu: &&u32| self.online.is_some_and(|online| !online.contains(**cpu));
        match (list.numbers().iter().find(is_missing), self.online) {
            (Some(cpu), Some(online)) => Err(format!(
                "there is no CPU {cpu}, or it is offline; online are {online} (for another machine, give --of)"
            )),
            _ => Ok(list.numbers().to_vec()),
        }
    }
}

fn preemption(text: &str) -> Result<Preemption, String> {
    match text {
        "cyclic" => Ok(Preemption::Cyclic),
        "preemptive" => Ok(Preemption::Preemptive),
        _ => Err(format!(
            "`{text}` is no schedule: write \"cyclic\" if a run ends before another one on the same CPU begins, else \"preemptive\""
        )),
    }
}

fn objective(text: &str) -> Result<Objective, String> {
    match text {
        "sum" => Ok(Objective::Sum),
        "worst" => Ok(Objective::Worst),
        _ => Err(format!(
            "`{text}` cannot be made small: write \"sum\" (of the costs) or \"worst\" (the largest share of a deadline)"
        )),
    }
}

fn count(number: i64) -> Result<usize, String> {
    usize::try_from(number).map_err(|_| format!("{number} is no number of colors"))
}

/// A time above 0.
fn some_time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text)?;
    match time.is_zero() {
        true => Err(format!("`{text}` is no time above 0")),
        false => Ok(time),
    }
}

/// A name that a rule of the daemon may have, too.
fn task_name(text: &str, before: &[Task]) -> Result<String, String> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "._@-".contains(c);
    if text.is_empty() || text.len() > LONGEST_NAME || !text.chars().all(is_fine) {
        return Err(format!(
            "`{text}` is no name of a task: 1 to {LONGEST_NAME} letters, digits and . _ @ -"
        ));
    }
    match before.iter().any(|task| task.name == text) {
        true => Err(format!("another task is called `{text}`")),
        false => Ok(text.to_owned()),
    }
}

/// A pattern for a unit. Units have backslashes where systemd escapes a character, and never a quotation mark.
fn unit_name(text: &str) -> Result<String, String> {
    let is_fine = |c: char| !c.is_control() && !"/\"".contains(c);
    match !text.trim().is_empty() && text.len() <= 1024 && text.chars().all(is_fine) {
        true => Ok(text.to_owned()),
        false => Err(format!("`{text}` is no pattern for a unit")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<PlanFile, Failure> {
        let online = CpuList::parse("0-1").unwrap();
        let reader = Reader {
            name: "plan.toml",
            folder: Path::new("/nowhere"),
            places: TextPositions::new(text),
            online: Some(&online),
        };
        reader.file(text)
    }

    const TASK: &str = "[[task]]\nname = 'a'\ncpu = 0\n";

    #[test]
    fn all_keys_are_read() {
        let file = read(
            "schedule = 'preemptive'\nminimise = 'worst'\nothers = 2\nshared-by = ['0-1']\nmiss-time = '90ns'\n\
             never-together = [['a', 'b']]\napart = [['b', 'c']]\n\
             [[task]]\nname = 'a'\ncpu = '0-1'\nmisses = [[1, 9], [2, 4.5]]\nperiod = '10ms'\noffset = '1ms'\nwindow = '2ms'\n\
             [[task]]\nname = 'b'\ncpu = 1\nseconds = [[1, 0.5], [3, 0.25]]\ndeadline = '1s'\ncommand = './b  \"x y\"'\n\
             [[task]]\nname = 'c'\ncpu = 1\ncolors = 3\nunit = 'c*.service'\n",
        );
        let PlanFile { problem, starts } = file.unwrap();
        assert_eq!(problem.preemption, Preemption::Preemptive);
        assert_eq!((problem.objective, problem.others), (Objective::Worst, 2));
        assert_eq!(problem.sharing, [[0, 1]]);
        assert_eq!(problem.miss_time, Some(Duration::from_nanos(90)));
        assert_eq!(
            (problem.never_together, problem.apart),
            (vec![vec![0, 1]], vec![vec![1, 2]])
        );
        let ms = Duration::from_millis;
        assert_eq!(
            problem.tasks[0].window,
            Window::new(ms(10), ms(1), ms(2)).ok()
        );
        let curve = Curve::new(Unit::Misses, vec![(1, 9.0), (2, 4.5)]).unwrap();
        assert_eq!(problem.tasks[0].needs, Needs::Curve(curve));
        assert_eq!(
            (&problem.tasks[0].cpus[..], &problem.tasks[1].cpus[..]),
            (&[0, 1][..], &[1][..])
        );
        assert_eq!(problem.tasks[1].deadline, Some(ms(1000)));
        assert_eq!(problem.tasks[2].needs, Needs::Colors(3));
        assert_eq!(starts[1].command.as_deref(), Some("./b 'x y'"));
        assert_eq!(starts[2].unit.as_deref(), Some("c*.service"));
    }

    #[test]
    fn errors_have_their_place() {
        let with = |more: &str| format!("schedule = 'cyclic'\n{TASK}{more}");
        let colors = "colors = 1\n";
        let cases = [
            (String::new(), "plan.toml:1:1: schedule is missing"),
            (
                "schedule = 'tuesdays'".to_owned(),
                "1:12: `tuesdays` is no schedule",
            ),
            ("schedule =".to_owned(), "plan.toml:1:"),
            (
                "schedule = 'cyclic'\nminimise = 'all'".to_owned(),
                "2:12: `all` cannot be made small",
            ),
            (
                "schedule = 'cyclic'\nothers = -1".to_owned(),
                "2:10: -1 is no number of colors",
            ),
            (
                "schedule = 'cyclic'\nminimize = 'sum'".to_owned(),
                "unknown field `minimize`",
            ),
            (
                with(""),
                "3:8: a task has one of colors, misses, seconds and measured",
            ),
            (with("colors = 0"), "5:10: a task has at least 1 color"),
            (with("colors = -3"), "5:10: -3 is no number of colors"),
            (
                with("colors = 1\nseconds = [[1, 1], [2, 0]]"),
                "one of colors, misses, seconds and measured",
            ),
            (
                with("misses = [[1, 5]]"),
                "5:10: a curve has 2 to 256 points, not 1",
            ),
            (
                with("misses = [[1, 5], [2, 6]]"),
                "5:10: a run with 2 colors costs 6, more than 5",
            ),
            (
                with("misses = [[1, nan], [2, 6]]"),
                "NaN is no cost of a run with 1 colors",
            ),
            (with("misses = [[1, 5], [2]]"), "plan.toml:5:"),
            (
                with("measured = 'a.json'"),
                "5:12: cannot take a curve from /nowhere/a.json",
            ),
            (
                with("colors = 1\nperiod = '0s'"),
                "6:10: `0s` is no time above 0",
            ),
            (with("colors = 1\nperiod = '1 fortnight'"), "is not a time"),
            (
                with("colors = 1\nwindow = '1ms'"),
                "6:10: a part of the period takes period",
            ),
            (
                with("colors = 1\nperiod = '1ms'\nwindow = '2ms'"),
                "7:10: the window is empty or longer",
            ),
            (with("colors = 1\ncommand = ''"), "6:11: this is no command"),
            (
                with("colors = 1\nunit = 'a/b'"),
                "6:8: `a/b` is no pattern for a unit",
            ),
            (
                with(colors).replace("'a'", "'a b'"),
                "3:8: `a b` is no name of a task",
            ),
            (
                with(&format!("{colors}{TASK}{colors}")),
                "7:8: another task is called `a`",
            ),
            (
                with(colors).replace("cpu = 0", "cpu = 2"),
                "4:7: there is no CPU 2",
            ),
            (with(colors).replace("cpu = 0", "cpu = -1"), "4:7: "),
            (
                with(colors).replace("cpu = 0", "cpu = ''"),
                "4:7: this names no CPU",
            ),
            (
                format!("apart = [['a', 'z']]\n{}", with(colors)),
                "1:16: there is no task `z`; there are a",
            ),
            (
                format!("shared-by = ['0-4']\n{}", with(colors)),
                "1:14: there is no CPU 2",
            ),
        ];
        for (text, says) in cases {
            let error = read(&text).unwrap_err().text;
            assert!(error.contains(says), "{text}\n{error}, not {says}");
        }
    }
}

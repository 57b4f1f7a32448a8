//! A suite's file: arms, and programs to run under each of them.
//!
//! ```toml
//! title = "Two programs"
//! runs = 8                       # of each arm, at least; up to most-runs while intervals are too wide
//! smallest = "3%"                # smallest difference to detect
//! timeout = "3m"                 # a run that takes longer is ended, and has failed
//! prepare = "sync"               # by sh -c before each run of programs without one of their own
//!
//! [[arm]]                        # the first one is what the others are compared with
//! name = "never"
//! options = "--pages never"      # as in --arm NAME=OPTIONS
//!
//! [[arm]]
//! name = "jemalloc"
//! options = "--pages kernel --env LD_PRELOAD=libjemalloc.so.2"
//! install = "apt install libjemalloc2"
//!
//! [[program]]
//! name = "memcached"
//! kind = "database"
//! command = "memcached -p 22311" # words as a shell splits them; no shell runs it
//! load = "mc-load --port 22311"  # it is a server, ready once it listens
//! ready = "tcp:22311"
//! speed = "ops=ops ([0-9.]+)"    # as in --metric-regex; without it the wall time counts
//! tail = "p99:lower=p99 ([0-9.]+)"
//! install = "apt install memcached"
//! ```
//!
//! Superhue reports the first error with file, line and column, and runs nothing.

use std::ffi::OsString;
use std::fmt::Display;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use superhue::Config;
use superhue::experiment::ServerPlan;
use superhue::parse::TextPositions;
use superhue_measure::suite::RunSettings;
use superhue_measure::{Arm, Plan, Settings, UserMetric};
use toml::Spanned;

use super::arms::configuration;
use crate::args::{CompareArgs, parse_ready};
use crate::output::{FAILED, Failure, USAGE};
use crate::values::{parse_percentage, parse_some_time};
use crate::verb::document::read_document;

/// Longer files are no suites.
const MAX_SUITE_BYTES: u64 = 1 << 20;

/// The most runs and warm-ups of each arm.
const MOST_RUNS: i64 = 10_000;

/// Default time for a server to be ready, and to stop.
const DEFAULT_SERVER_TIMEOUT: Duration = Duration::from_secs(30);

/// Default smallest difference to detect.
const SMALLEST: f64 = 0.03;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawFile {
    title: Option<Spanned<String>>,
    runs: Option<Spanned<i64>>,
    most_runs: Option<Spanned<i64>>,
    warmup: Option<Spanned<i64>>,
    seed: Option<Spanned<i64>>,
    smallest: Option<Spanned<String>>,
    timeout: Option<Spanned<String>>,
    prepare: Option<String>,
    #[serde(default)]
    arm: Vec<Spanned<RawArm>>,
    #[serde(default)]
    program: Vec<Spanned<RawProgram>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawArm {
    name: Spanned<String>,
    options: Spanned<String>,
    install: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawProgram {
    name: Spanned<String>,
    kind: Spanned<String>,
    command: Spanned<String>,
    load: Option<Spanned<String>>,
    ready: Option<Spanned<String>>,
    patience: Option<Spanned<String>>,
    r#try: Option<String>,
    install: Option<String>,
    setup: Option<String>,
    prepare: Option<String>,
    speed: Option<Spanned<String>>,
    tail: Option<Spanned<String>>,
    #[serde(default)]
    ignore_failure: bool,
}

/// Contents of a file, limited to the chosen arms and programs.
#[derive(Debug)]
pub(super) struct SuiteFile {
    /// Heading of the suite.
    pub(super) title: String,
    /// The least and the most rounds of each program.
    pub(super) runs: (usize, usize),
    /// Longest time of a run.
    pub(super) timeout: Option<Duration>,
    /// Settings of each comparison.
    pub(super) settings: Settings,
    /// The arms, the reference first.
    pub(super) arms: Vec<ArmPlan>,
    /// All programs.
    pub(super) programs: Vec<ProgramPlan>,
}

/// An arm.
#[derive(Debug, Clone)]
pub(super) struct ArmPlan {
    pub(super) arm: Arm,
    pub(super) config: Config,
    /// The way to install it.
    pub(super) install: Option<String>,
}

/// A program.
#[derive(Debug)]
pub(super) struct ProgramPlan {
    pub(super) name: String,
    pub(super) kind: String,
    /// The program as in the file.
    pub(super) plan: Plan,
    /// The command, word by word.
    pub(super) words: Vec<OsString>,
    pub(super) server: Option<ServerPlan>,
    /// Succeeds if everything that the program needs is installed; by `sh -c`.
    pub(super) test: Option<String>,
    /// The way to install it.
    pub(super) install: Option<String>,
    pub(super) speed: Option<UserMetric>,
    pub(super) tail: Option<UserMetric>,
    /// True if runs with another exit status than 0 count.
    pub(super) ignore_failure: bool,
    /// True if the options choose it.
    pub(super) is_chosen: bool,
}

impl SuiteFile {
    /// Reads the file, and takes the arms and programs that the options choose.
    ///
    /// # Errors
    /// If it cannot be read (status 1); an error in it, with its position, and options that choose nothing (status 2).
    pub(super) fn read(args: &CompareArgs, path: &Path) -> Result<Self, Failure> {
        let text = read_document(path, MAX_SUITE_BYTES).map_err(|error| {
            let context = format!("cannot read the suite {}", path.display());
            Failure::new(FAILED, error.context(context))
        })?;
        let mut file = Self::parse(&path.display().to_string(), &text)?;
        file.choose_arms(&args.arms)?;
        file.choose_programs(&args.suite.only)?;
        if let Some(runs) = args.runs {
            file.runs = (runs as usize, runs as usize);
        }
        Ok(file)
    }

    fn parse(name: &str, text: &str) -> Result<Self, Failure> {
        let reader = Reader {
            name,
            places: TextPositions::new(text),
        };
        let raw: RawFile = toml::from_str(text).map_err(|error| {
            let message = error.message().trim_end().replace('\n', "; ");
            reader.wrong(error.span().unwrap_or_default(), message)
        })?;
        let count = |given: &Option<Spanned<i64>>, least: i64, usual: i64| {
            reader
                .value(given.as_ref(), |&number| {
                    (least..=MOST_RUNS)
                        .contains(&number)
                        .then_some(number)
                        .ok_or_else(|| format!("this is a number from {least} to {MOST_RUNS}"))
                })
                .map(|number| usize::try_from(number.unwrap_or(usual)).unwrap_or_default())
        };
        let usual = Settings::default();
        let least = count(&raw.runs, 1, 8)?;
        let most = count(&raw.most_runs, 1, least as i64)?;
        if let Some(given) = raw.most_runs.as_ref().filter(|_| most < least) {
            let text = format!("this is less than runs, which is {least}");
            return Err(reader.wrong(given.span(), text));
        }
        let seed = reader.value(raw.seed.as_ref(), |&seed| {
            u64::try_from(seed).map_err(|_| "a seed is a number from 0".to_owned())
        })?;
        let smallest = reader.value(raw.smallest.as_ref(), |text| parse_percentage(text))?;
        let timeout = reader.value(raw.timeout.as_ref(), |time| parse_some_time(time))?;
        let settings = Settings {
            runs: least,
            warmup: count(&raw.warmup, 0, 1)?,
            seed: seed.unwrap_or(1),
            smallest: smallest.unwrap_or(SMALLEST),
            ..usual
        };
        let everything = 0..0;
        if raw.arm.len() < 2 {
            let text = "a comparison needs at least two arms: add [[arm]] with name and options";
            return Err(reader.wrong(everything, text));
        }
        if raw.program.is_empty() {
            let text = "there is no program: add [[program]] with name, kind and command";
            return Err(reader.wrong(everything, text));
        }
        reader.distinct(raw.arm.iter().map(|arm| &arm.get_ref().name), "arm")?;
        let names = raw.program.iter().map(|program| &program.get_ref().name);
        reader.distinct(names, "program")?;
        Ok(Self {
            title: raw.title.map_or_else(
                || format!("The programs of {name}"),
                |title| title.into_inner(),
            ),
            runs: (least, most),
            timeout,
            settings,
            arms: (raw.arm.into_iter())
                .map(|arm| reader.arm(arm.into_inner()))
                .collect::<Result<_, _>>()?,
            programs: (raw.program.into_iter())
                .map(|program| {
                    reader.program(program.into_inner(), raw.prepare.as_deref(), timeout)
                })
                .collect::<Result<_, _>>()?,
        })
    }

    /// Keeps the arms of these names, in their order; all if there are no names.
    fn choose_arms(&mut self, names: &[String]) -> Result<(), Failure> {
        if names.is_empty() {
            return Ok(());
        }
        let there_are = listed(self.arms.iter().map(|plan| plan.arm.name.as_str()));
        let mut chosen: Vec<ArmPlan> = Vec::new();
        for name in names {
            let plan = self.arms.iter().find(|plan| plan.arm.name == *name);
            let plan = plan.ok_or_else(|| {
                let text =
                    format!("--arm {name}: the suite has no such arm; there are {there_are}");
                Failure::new(USAGE, text)
            })?;
            if chosen.iter().any(|chosen| chosen.arm.name == *name) {
                return Err(Failure::new(USAGE, format!("--arm {name} is given twice")));
            }
            chosen.push(plan.clone());
        }
        if chosen.len() < 2 {
            let text = format!("a comparison needs at least two arms: add --arm, of {there_are}");
            return Err(Failure::new(USAGE, text));
        }
        self.arms = chosen;
        Ok(())
    }

    /// Marks the programs whose names contain one of these words; all if there are no words.
    fn choose_programs(&mut self, words: &[String]) -> Result<(), Failure> {
        let unused = (words.iter()).find(|word| {
            let mut programs = self.programs.iter();
            !programs.any(|program| program.name.contains(word.as_str()))
        });
        if let Some(word) = unused {
            let there_are = listed(self.programs.iter().map(|program| program.name.as_str()));
            let text =
                format!("--only {word}: no program has that in its name; there are {there_are}");
            return Err(Failure::new(USAGE, text));
        }
        for program in &mut self.programs {
            program.is_chosen = words.is_empty()
                || words
                    .iter()
                    .any(|word| program.name.contains(word.as_str()));
        }
        Ok(())
    }
}

/// Converts the raw file to a suite, and reports the position of an error.
struct Reader<'a> {
    name: &'a str,
    places: TextPositions<'a>,
}

impl Reader<'_> {
    fn wrong(&self, at: Range<usize>, text: impl Display) -> Failure {
        let (line, column) = self.places.of(at.start);
        Failure::new(USAGE, format!("{}:{line}:{column}: {text}", self.name))
    }

    /// Reads a value by `read`; `None` if the value is missing.
    fn value<T, U>(
        &self,
        given: Option<&Spanned<T>>,
        read: impl FnOnce(&T) -> Result<U, String>,
    ) -> Result<Option<U>, Failure> {
        let read = |given: &Spanned<T>| {
            read(given.get_ref()).map_err(|text| self.wrong(given.span(), text))
        };
        given.map(read).transpose()
    }

    fn distinct<'b>(
        &self,
        names: impl Iterator<Item = &'b Spanned<String>>,
        what: &str,
    ) -> Result<(), Failure> {
        let mut known: Vec<&str> = Vec::new();
        for name in names {
            let text = name.get_ref().as_str();
            if text.trim().is_empty() {
                return Err(self.wrong(name.span(), format!("this is no name of a {what}")));
            }
            if known.contains(&text) {
                return Err(self.wrong(name.span(), format!("another {what} is called `{text}`")));
            }
            known.push(text);
        }
        Ok(())
    }

    fn arm(&self, raw: RawArm) -> Result<ArmPlan, Failure> {
        let config = self.value(Some(&raw.options), |options| configuration(options))?;
        Ok(ArmPlan {
            arm: Arm::new(raw.name.into_inner(), raw.options.into_inner()),
            config: config.unwrap_or_default(),
            install: raw.install,
        })
    }

    /// Converts a program; `prepare` is for programs that have none of their own, `timeout` for all.
    fn program(
        &self,
        raw: RawProgram,
        prepare: Option<&str>,
        timeout: Option<Duration>,
    ) -> Result<ProgramPlan, Failure> {
        let words = self.value(Some(&raw.command), |command| {
            let words = shell_words::split(command).map_err(|error| error.to_string())?;
            let is_one = words.first().is_some_and(|first| !first.is_empty());
            is_one
                .then_some(words)
                .ok_or_else(|| "this is no command".to_owned())
        })?;
        let port = self.value(raw.ready.as_ref(), |ready| parse_ready(ready))?;
        let patience = self.value(raw.patience.as_ref(), |time| parse_some_time(time))?;
        let server = match (&raw.load, &raw.ready, port) {
            (Some(load), _, Some(port)) => Some(ServerPlan {
                load: load.get_ref().clone(),
                port,
                patience: patience.unwrap_or(DEFAULT_SERVER_TIMEOUT),
            }),
            (Some(load), ..) => {
                let text = "a server needs ready = \"tcp:PORT\", too: when to begin with its load";
                return Err(self.wrong(load.span(), text));
            }
            (None, Some(ready), _) => {
                let text = "only a server has this, which needs a load";
                return Err(self.wrong(ready.span(), text));
            }
            (None, None, _) => None,
        };
        if let Some(patience) = raw.patience.as_ref().filter(|_| server.is_none()) {
            return Err(self.wrong(
                patience.span(),
                "only a server has this, which needs a load",
            ));
        }
        let metric = |text: &String| UserMetric::parse(text).map_err(|error| error.to_string());
        let speed = self.value(raw.speed.as_ref(), metric)?;
        let tail = self.value(raw.tail.as_ref(), metric)?;
        if let (Some(speed), Some(tail), Some(given)) = (&speed, &tail, &raw.tail)
            && speed.metric().name == tail.metric().name
        {
            return Err(self.wrong(given.span(), "the speed has this name already"));
        }
        let of = |text: Option<Spanned<String>>| text.map(Spanned::into_inner);
        Ok(ProgramPlan {
            name: raw.name.into_inner(),
            kind: raw.kind.into_inner(),
            plan: Plan {
                command: raw.command.into_inner(),
                load: of(raw.load),
                setup: raw.setup,
                prepare: raw.prepare.or_else(|| prepare.map(str::to_owned)),
                speed: of(raw.speed),
                tail: of(raw.tail),
                settings: Some(RunSettings {
                    ignore_failure: raw.ignore_failure,
                    timeout: timeout.map(|time| time.as_secs_f64()),
                    ready: server.as_ref().map(|server| server.port),
                    patience: (server.as_ref()).map(|server| server.patience.as_secs_f64()),
                }),
            },
            words: (words.into_iter().flatten()).map(OsString::from).collect(),
            server,
            test: raw.r#try,
            install: raw.install,
            speed,
            tail,
            ignore_failure: raw.ignore_failure,
            is_chosen: true,
        })
    }
}

/// `a, b, c`
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

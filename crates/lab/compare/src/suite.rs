//! Many programs under the same arms, and one table of them: `superhue compare --suite`.
//!
//! ```text
//!   program 1  round 1 ............ round 2 ............ round 3 ...      a round: every arm once, in
//!   program 2      round 1 ............ round 2 ............ round 3      random order (`schedule`)
//!   program 3          round 1 ............ round 2 ...
//!              ------------------- time ------------------->
//! ```
//!
//! Each program is a [`Comparison`] of its own, with the verdicts of one. Programs take turns by rounds:
//! so the rows of a table that is cut short rest on about as many runs each, and an hour in which the
//! machine is slow touches all of them and no arm in particular.
//!
//! # When there are enough runs
//!
//! Every program gets the least number of rounds. After that it gets another one only while an interval
//! of its speed is wider than what is to be told apart ([`Comparison::is_precise`]). How *wide* an
//! interval is decides, not where it lies: going on until something is found would find something in
//! everything. `tests/false_alarms.rs` holds this rule to what comparisons promise.
//!
//! # What is said of a figure
//!
//! | decision    | when                                                                     |
//! |-------------|--------------------------------------------------------------------------|
//! | better      | the comparison's verdict: beyond chance, and by the smallest difference  |
//! | worse       | the same                                                                 |
//! | same        | no such verdict, and the 95 % interval lies within the smallest difference |
//! | undecided   | anything else that was measured                                          |
//!
//! Each comparison has a risk of [`LEVEL`](crate::verdict::LEVEL) of any false verdict, so of forty
//! programs one row in one of them is wrong on the average. *Same* is said of each interval by itself.
//!
//! Of each arm the geometric mean over all programs is told, too, with its 95 % interval. It decides nothing.

mod picture;
mod shown;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::metric::{Better, Builtin, Metric};
use crate::result::{Comparison, ReadError};
use crate::stats::bootstrap::Interval;
use crate::summary::{ArmSummary, Verdict};

/// What the field `schema` of the document says.
pub const SUITE_SCHEMA: &str = "superhue-suite/1";

/// What came of a suite, complete: every program, every run, every decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Suite {
    schema: String,
    /// What it is about, for its heading.
    pub title: String,
    /// Relative differences below this are never called better or worse: 0.03 is three percent.
    pub smallest: f64,
    /// Why not everything was done; `None` if it was.
    pub unfinished: Option<String>,
    /// All arms; the first one is what the others are compared with.
    pub arms: Vec<SuiteArm>,
    /// The programs, in the order of the table.
    pub programs: Vec<SuiteProgram>,
}

/// An arm of a suite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuiteArm {
    /// Short name: `hot`.
    pub name: String,
    /// What makes it what it is: `--pages hot`.
    pub options: String,
    /// Why this machine cannot run it; `None` if it can.
    pub skipped: Option<String>,
}

/// What is run of a program, as the suite says it. Results of one plan are not gone on with under
/// another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The command; a server if there is a load.
    pub command: String,
    /// What a server is loaded with, by `sh -c`.
    pub load: Option<String>,
    /// What is run once beforehand, by `sh -c`.
    pub setup: Option<String>,
    /// What is run before each run, by `sh -c`.
    pub prepare: Option<String>,
    /// How its speed is read from the output, as `--metric` takes it; `None`: its wall time.
    pub speed: Option<String>,
    /// How the time of its slowest answers is read, if it tells one.
    pub tail: Option<String>,
}

/// A program of a suite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SuiteProgram {
    /// Its name, unique in the suite.
    pub name: String,
    /// What kind of program it is: `database`.
    pub kind: String,
    /// What is run.
    pub plan: Plan,
    /// Why nothing was measured; `None` if something was, or if it was not its turn yet.
    pub skipped: Option<String>,
    /// The table's lines, one for each arm of the comparison; they follow from it.
    #[serde(default)]
    pub rows: Vec<Row>,
    /// What was measured.
    pub comparison: Option<Comparison>,
}

/// What is said about one figure of one arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// It is what the others are compared with.
    Reference,
    /// Better than the reference.
    Better,
    /// Worse than the reference.
    Worse,
    /// Not shown to differ, and shown to differ by less than the smallest difference.
    Same,
    /// Neither.
    Undecided,
    /// One of the two has no value.
    NotMeasured,
}

/// One figure of one arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Name of the metric.
    pub metric: String,
    /// Its median, in its unit.
    pub median: Option<f64>,
    /// The arm's median over the reference's; of the speed, how many times as fast.
    pub ratio: Option<f64>,
    /// The 95 % interval of the ratio.
    pub interval: Option<Interval>,
    /// Good runs that measured it.
    pub measured: usize,
    /// Good runs that did not.
    pub missing: usize,
    /// What is said.
    pub decision: Decision,
}

/// A line of the table: one arm of one program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the arm.
    pub arm: String,
    /// Measured runs.
    pub runs: usize,
    /// How many of them failed; they enter no figure.
    pub failed: usize,
    /// How fast it is.
    pub speed: Figure,
    /// Its slowest answers, if the program tells them.
    pub tail: Option<Figure>,
    /// Peak memory.
    pub memory: Figure,
    /// Seconds until 95 % of the huge pages that it ends with are there.
    pub converged: Figure,
}

impl Suite {
    /// One of which nothing is measured yet.
    #[must_use]
    pub fn new(title: impl Into<String>, smallest: f64, arms: Vec<SuiteArm>) -> Self {
        Self {
            schema: SUITE_SCHEMA.to_owned(),
            title: title.into(),
            smallest,
            unfinished: None,
            arms,
            programs: Vec::new(),
        }
    }

    /// The document as indented JSON, with a newline at the end.
    ///
    /// # Errors
    /// Those of `serde_json`; a suite gives it no reason for one.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }

    /// Whether a text says that it is the document of a suite.
    #[must_use]
    pub fn is_one(text: &str) -> bool {
        let value: Option<Value> = serde_json::from_str(text).ok();
        value.is_some_and(|value| value.get("schema").and_then(Value::as_str) == Some(SUITE_SCHEMA))
    }

    /// Reads a document.
    ///
    /// # Errors
    /// If it is not JSON, of another schema, incomplete, or contradicts itself.
    pub fn from_json(text: &str) -> Result<Self, ReadError> {
        let value: Value = serde_json::from_str(text)?;
        match value.get("schema").and_then(Value::as_str) {
            Some(SUITE_SCHEMA) => {}
            Some(other) => return Err(ReadError::OtherSchema(other.chars().take(60).collect())),
            None => return Err(ReadError::NoSchema),
        }
        let mut suite: Self = serde_json::from_value(value)?;
        let wrong = |text: String| Err(ReadError::Inconsistent(text));
        if suite.smallest.is_nan() || suite.smallest < 0.0 {
            return wrong(format!("{} is no smallest difference", suite.smallest));
        }
        let mut names: Vec<String> = Vec::new();
        for program in &mut suite.programs {
            let name = &program.name;
            if names.contains(name) {
                return wrong(format!("two programs are called {name}"));
            }
            names.push(name.clone());
            let Some(comparison) = &program.comparison else {
                program.rows.clear();
                continue;
            };
            comparison.check()?;
            program.judge(suite.smallest);
        }
        Ok(suite)
    }
}

impl SuiteProgram {
    /// One that was not run yet.
    #[must_use]
    pub fn new(name: impl Into<String>, kind: impl Into<String>, plan: Plan) -> Self {
        Self {
            name: name.into(),
            kind: kind.into(),
            plan,
            skipped: None,
            rows: Vec::new(),
            comparison: None,
        }
    }

    /// The figures that a table has, of which the speed is the first, then the tail if there is one: what
    /// the program is compared by.
    #[must_use]
    pub fn metrics(speed: Option<&Metric>, tail: Option<&Metric>) -> Vec<Metric> {
        let speed = speed.cloned().unwrap_or_else(|| Builtin::Wall.metric());
        let others =
            [Builtin::MaxCharged, Builtin::MaxRss, Builtin::SecondsTo95].map(Builtin::metric);
        (std::iter::once(speed).chain(tail.cloned()))
            .chain(others)
            .collect()
    }

    /// Takes a comparison by [`metrics`](Self::metrics) in place of what was there.
    pub fn take(&mut self, comparison: Comparison, smallest: f64) {
        self.comparison = Some(comparison);
        self.judge(smallest);
    }

    /// The figure that its speed is told by.
    #[must_use]
    pub fn speed_metric(&self) -> Option<&Metric> {
        self.comparison.as_ref()?.metrics.first()
    }

    fn judge(&mut self, smallest: f64) {
        let Some(comparison) = &self.comparison else {
            return;
        };
        let is_builtin = |metric: &&Metric| Builtin::from_name(&metric.name).is_some();
        let speed = comparison.metrics.first();
        let tail = (comparison.metrics.get(1)).filter(|metric| !is_builtin(metric));
        // What the kernel charges, where that was to be had; results of before have the resident set alone.
        let is_measured = |metric: &Builtin| {
            let summary = comparison.summary(metric.name(), 0);
            summary.is_some_and(|summary| summary.measured > 0)
        };
        let memory = [Builtin::MaxCharged].into_iter().find(is_measured);
        let memory = memory.unwrap_or(Builtin::MaxRss).metric();
        let rows = (0..comparison.arms.len()).filter_map(|arm| {
            let tally = comparison.tally(arm);
            let figure = |metric: &Metric, is_speed| {
                let summary = comparison.summary(&metric.name, arm)?;
                Some(Figure::new(metric, summary, smallest, is_speed))
            };
            Some(Row {
                arm: comparison.arms[arm].name.clone(),
                runs: tally.good + tally.failed,
                failed: tally.failed,
                speed: figure(speed?, true)?,
                tail: tail.and_then(|tail| figure(tail, false)),
                memory: figure(&memory, false)?,
                converged: figure(&Builtin::SecondsTo95.metric(), false)?,
            })
        });
        self.rows = rows.collect();
    }
}

impl Figure {
    fn new(metric: &Metric, summary: &ArmSummary, smallest: f64, is_speed: bool) -> Self {
        let against = summary.against.as_ref();
        let ratio = against.and_then(|against| against.ratio);
        // What takes half the time is twice as fast.
        let is_turned = is_speed && metric.better == Better::Lower;
        let turned = |value: f64| if is_turned { value.recip() } else { value };
        let interval = ratio.and_then(|ratio| ratio.interval).map(|interval| {
            let (one, other) = (turned(interval.low), turned(interval.high));
            Interval {
                low: one.min(other),
                high: one.max(other),
            }
        });
        let ratio = ratio.map(|ratio| turned(ratio.value));
        let is_finite = |interval: &Interval| interval.low.is_finite() && interval.high.is_finite();
        Self {
            metric: metric.name.clone(),
            median: summary.values.map(|values| values.median.value),
            ratio: ratio.filter(|ratio| ratio.is_finite()),
            interval: interval.filter(is_finite),
            measured: summary.measured,
            missing: summary.missing,
            decision: decision(
                against.map(|against| against.verdict),
                interval,
                smallest,
                summary,
            ),
        }
    }
}

fn decision(
    verdict: Option<Verdict>,
    interval: Option<Interval>,
    smallest: f64,
    summary: &ArmSummary,
) -> Decision {
    let within = |interval: Interval| {
        (1.0 + smallest).recip() <= interval.low && interval.high <= 1.0 + smallest
    };
    match verdict {
        None if summary.values.is_none() => Decision::NotMeasured,
        None => Decision::Reference,
        Some(Verdict::NotMeasured) => Decision::NotMeasured,
        Some(Verdict::Better) => Decision::Better,
        Some(Verdict::Worse) => Decision::Worse,
        Some(_) if interval.is_some_and(within) => Decision::Same,
        Some(_) => Decision::Undecided,
    }
}

impl Comparison {
    /// Whether all intervals of a metric's ratios are so narrow that they reach no further than `within` to
    /// either side of their middle: 0.03 is three percent. Arms of which there is nothing to compare are
    /// not waited for.
    #[must_use]
    pub fn is_precise(&self, metric: &str, within: f64) -> bool {
        let widest = (1.0 + within).powi(2);
        (0..self.arms.len()).all(|arm| {
            let ratio = self.against(metric, arm).and_then(|against| against.ratio);
            ratio.is_none_or(|ratio| {
                ratio
                    .interval
                    .is_some_and(|interval| interval.high <= interval.low * widest)
            })
        })
    }
}

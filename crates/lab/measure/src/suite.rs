//! Many programs under the same arms, and one table of them: `superhue compare --suite`.
//!
//! ```text
//!   program 1  round 1 ............ round 2 ............ round 3 ...      a round: every arm once, in
//!   program 2      round 1 ............ round 2 ............ round 3      random order (`schedule`)
//!   program 3          round 1 ............ round 2 ...
//!              ------------------- time ------------------->
//! ```
//!
//! Each program is a [`Comparison`] of its own, with its own verdicts. Programs take turns by rounds. So the rows of a table that is cut short
//! rest on about as many runs each, and an hour in which the machine is slow affects all of them and no arm in particular.
//!
//! # When there are enough runs
//!
//! Every program gets the least number of rounds. After that it gets another round only while an interval of its speed is wider than
//! differences that count ([`Comparison::is_precise`]). The *width* of the interval decides, not its position: if the position decided, every
//! program would show a difference in the end. `tests/it/false_alarms.rs` holds this rule to the promise of comparisons.
//!
//! # Decisions on a figure
//!
//! | decision    | when                                                                     |
//! |-------------|--------------------------------------------------------------------------|
//! | better      | the comparison's verdict: beyond chance, and by the smallest difference  |
//! | worse       | the same                                                                 |
//! | same        | enough runs for a verdict, none of these, and the 95 % intervals of the ratio and of the ratio of means lie within the smallest difference |
//! | undecided   | anything else that was measured; faster, better or same if runs of it or of the reference failed or have no value |
//!
//! Each comparison has a risk of [`LEVEL`](crate::summary::LEVEL) of any false verdict, so among forty programs one has a wrong row on average.
//! *Same* is a decision on each interval by itself: of speeds just beyond the smallest difference, at most one in twenty is called the same, also where
//! rounds are added until the interval is narrow (`suites.rs` of the tests).
//!
//! The table also has each arm's geometric mean over all programs, with its 95 % interval. It decides nothing.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::metric::{Better, Builtin, Metric};
use crate::result::{Comparison, ReadError, SUITE_SCHEMA};
use crate::stats::bootstrap::{Interval, mean_ratio};
use crate::summary::{ArmSummary, Verdict};

/// Complete result of a suite: every program, every run, every decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Suite {
    schema: String,
    /// Title for its heading.
    pub title: String,
    /// Smallest relative difference that a decision calls better or worse: 0.03 is three percent.
    pub smallest: f64,
    /// Reason why the suite was not finished; `None` if it was.
    pub unfinished: Option<String>,
    /// All arms; the first one is the reference.
    pub arms: Vec<SuiteArm>,
    /// The programs, in the order of the table.
    pub programs: Vec<SuiteProgram>,
}

/// Arm of a suite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuiteArm {
    /// Short name: `hot`.
    pub name: String,
    /// Options that define it: `--pages hot`.
    pub options: String,
    /// Reason why this machine cannot run it; `None` if it can.
    pub skipped: Option<String>,
    /// Reason why superhue makes no huge pages in it although its policy asks for some; null if it makes some or is to make none. Absent if that is
    /// not known: the arm cannot be run, or the result is of an older version.
    #[serde(
        default,
        deserialize_with = "known",
        skip_serializing_if = "Option::is_none"
    )]
    pub obstacle: Option<Option<String>>,
}

/// Reads a field that is there, null included, so that it differs from one that is absent.
fn known<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(value).map(Some)
}

/// Commands of a program, as the suite's file has them. Results under one plan are not continued under another.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Command of the program; a server if there is a load.
    pub command: String,
    /// Command that loads a server, for `sh -c`.
    pub load: Option<String>,
    /// Command that runs once beforehand, for `sh -c`.
    pub setup: Option<String>,
    /// Command that runs before each run, for `sh -c`.
    pub prepare: Option<String>,
    /// Expression that reads its speed from the output, in the form of `--metric-regex`; `None` if its wall time counts.
    pub speed: Option<String>,
    /// Expression that reads the time of its slowest answers; `None` if it does not print one.
    pub tail: Option<String>,
    /// Settings of its runs; absent in results of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<RunSettings>,
}

/// Settings of a program's runs that decide which runs count.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunSettings {
    /// True if runs with another exit status than 0 count.
    pub ignore_failure: bool,
    /// Time after which a run is ended, and has failed, in seconds; `None` if there is none.
    pub timeout: Option<f64>,
    /// TCP port on which a server listens once it is ready; `None` without a load.
    pub ready: Option<u16>,
    /// Longest time for a server to be ready, and to stop, in seconds; `None` without a load.
    pub patience: Option<f64>,
}

impl Plan {
    /// Returns true if runs under `kept` have the same commands and metrics as runs under this plan.
    #[must_use]
    pub fn has_commands_of(&self, kept: &Self) -> bool {
        let mut kept = kept.clone();
        kept.settings.clone_from(&self.settings);
        *self == kept
    }

    /// Returns true if runs under `kept` have the same settings as runs under this plan, as far as they are known.
    #[must_use]
    pub fn has_settings_of(&self, kept: &Self) -> bool {
        kept.settings.is_none() || kept.settings == self.settings
    }
}

/// Program of a suite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SuiteProgram {
    /// Name, unique in the suite.
    pub name: String,
    /// Kind of program: `database`.
    pub kind: String,
    /// Commands of the program.
    pub plan: Plan,
    /// Reason why nothing was measured; `None` if something was, or if its turn has not come yet.
    pub skipped: Option<String>,
    /// Lines of the table, one for each arm of the comparison; computed from it.
    #[serde(default)]
    pub rows: Vec<Row>,
    /// Comparison with its measurements; `None` if nothing was measured.
    pub comparison: Option<Comparison>,
}

/// Decision on one figure of one arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// The arm is the reference.
    Reference,
    /// Better than the reference.
    Better,
    /// Worse than the reference.
    Worse,
    /// No difference is shown by runs that could have shown one, and the 95 % interval lies within the smallest difference.
    Same,
    /// Neither a difference nor sameness is shown.
    Undecided,
    /// The arm or the reference has no value.
    NotMeasured,
}

/// One figure of one arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Name of the metric.
    pub metric: String,
    /// Median of the arm, in the metric's unit.
    pub median: Option<f64>,
    /// Ratio of the arm's median to the reference's; for the speed, how many times as fast.
    pub ratio: Option<f64>,
    /// 95 % interval of the ratio.
    pub interval: Option<Interval>,
    /// Number of good runs that measured it.
    pub measured: usize,
    /// Number of good runs that did not.
    pub missing: usize,
    /// Decision on the figure.
    pub decision: Decision,
}

/// Line of the table: one arm of one program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the arm.
    pub arm: String,
    /// Number of measured runs, failed ones included.
    pub runs: usize,
    /// Number of failed runs; they enter no figure.
    pub failed: usize,
    /// Speed.
    pub speed: Figure,
    /// Time of the slowest answers; `None` if the program does not print it.
    pub tail: Option<Figure>,
    /// Peak memory.
    pub memory: Figure,
    /// Seconds until 95 % of the final huge pages exist.
    pub converged: Figure,
}

impl Suite {
    /// Makes a suite without measurements.
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

    /// Returns the document as indented JSON, with a newline at the end.
    ///
    /// # Errors
    /// Returns an error of `serde_json`; a suite gives no reason for one.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }

    /// Returns true if a text has the schema of a suite.
    #[must_use]
    pub fn is_one(text: &str) -> bool {
        let value: Option<Value> = serde_json::from_str(text).ok();
        value.is_some_and(|value| value.get("schema").and_then(Value::as_str) == Some(SUITE_SCHEMA))
    }

    /// Reads a document.
    ///
    /// # Errors
    /// Fails if it is not JSON, has another schema, is incomplete, or contradicts itself.
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
    /// Returns the results of the arm with this name.
    #[must_use]
    pub fn row(&self, arm: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.arm == arm)
    }

    /// Makes a program without measurements.
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

    /// Returns the metrics of a program's comparison: first the speed (by default the wall time), then the tail if there is one, then memory and
    /// convergence.
    #[must_use]
    pub fn metrics(speed: Option<&Metric>, tail: Option<&Metric>) -> Vec<Metric> {
        let speed = speed.cloned().unwrap_or_else(|| Builtin::Wall.metric());
        let others =
            [Builtin::MaxCharged, Builtin::MaxRss, Builtin::SecondsTo95].map(Builtin::metric);
        (std::iter::once(speed).chain(tail.cloned()))
            .chain(others)
            .collect()
    }

    /// Replaces its comparison, which must use the metrics of [`metrics`](Self::metrics).
    pub fn take(&mut self, comparison: Comparison, smallest: f64) {
        self.comparison = Some(comparison);
        self.judge(smallest);
    }

    /// Returns the metric of its speed.
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
        // Prefers the memory that the kernel charged, where it was measured; older results have only the resident set.
        let is_measured = |metric: &Builtin| {
            let summary = comparison.summary(metric.name(), 0);
            summary.is_some_and(|summary| summary.measured > 0)
        };
        let memory = [Builtin::MaxCharged].into_iter().find(is_measured);
        let memory = memory.unwrap_or(Builtin::MaxRss).metric();
        let is_whole = |arm: usize, metric: &Metric| {
            let summary = comparison.summary(&metric.name, arm);
            comparison.tally(arm).failed == 0 && summary.is_some_and(|summary| summary.missing == 0)
        };
        let rows = (0..comparison.arms.len()).filter_map(|arm| {
            let tally = comparison.tally(arm);
            let figure = |metric: &Metric, is_speed| {
                let summary = comparison.summary(&metric.name, arm)?;
                let mut figure = Figure::new(metric, summary, smallest, is_speed);
                // The values of the runs that are left may be a flattering selection.
                let is_good = matches!(figure.decision, Decision::Better | Decision::Same);
                let reference = comparison.reference_of(arm);
                if is_good && !(is_whole(reference, metric) && is_whole(arm, metric)) {
                    figure.decision = Decision::Undecided;
                }
                // A quarter of the runs may be slower, and leave the median where it is.
                let is_same = figure.decision == Decision::Same;
                if is_same && !means_are_within(comparison, metric, arm, smallest) {
                    figure.decision = Decision::Undecided;
                }
                Some(figure)
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
        // Half the time is twice the speed.
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

/// Returns true if the interval of the ratio of means to the reference lies within the smallest difference.
fn means_are_within(comparison: &Comparison, metric: &Metric, arm: usize, smallest: f64) -> bool {
    let of = |arm: usize| {
        let records = comparison.samples.iter();
        let records = records.filter(move |record| record.arm == arm && record.counts());
        records.filter_map(|record| Some((record.round, record.sample.get(&metric.name)?)))
    };
    let reference: BTreeMap<usize, f64> = of(comparison.reference_of(arm)).collect();
    let pairs = of(arm).filter_map(|(round, value)| Some((value, *reference.get(&round)?)));
    let pairs: Vec<(f64, f64)> = pairs.collect();
    mean_ratio(
        &pairs,
        comparison.settings.resamples,
        comparison.settings.seed,
    )
    .is_some_and(|interval| is_within(interval, smallest))
}

/// Returns true if a ratio's interval lies within the smallest difference.
fn is_within(interval: Interval, smallest: f64) -> bool {
    (1.0 + smallest).recip() <= interval.low && interval.high <= 1.0 + smallest
}

fn decision(
    verdict: Option<Verdict>,
    interval: Option<Interval>,
    smallest: f64,
    summary: &ArmSummary,
) -> Decision {
    let within = |interval: Interval| is_within(interval, smallest);
    match verdict {
        None if summary.values.is_none() => Decision::NotMeasured,
        None => Decision::Reference,
        Some(Verdict::NotMeasured) => Decision::NotMeasured,
        Some(Verdict::Better) => Decision::Better,
        Some(Verdict::Worse) => Decision::Worse,
        // Too few runs for a difference are too few for sameness: their intervals cover the ratio less often.
        Some(Verdict::NoDifferenceShown) if interval.is_some_and(within) => Decision::Same,
        Some(_) => Decision::Undecided,
    }
}

impl Comparison {
    /// Returns true if each interval of the metric's ratios reaches no further than `within` to either side of its (geometric) middle: 0.03 is
    /// three percent. Ignores arms that have nothing to compare.
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

//! The document of a trial: a policy switched on and off in one running program, in pairs of blocks.
//!
//! It is plain data that the one who ran the trial fills in; sentences and the picture ([`plot`]) are made from it alone. How it comes to a verdict
//! stands in [`sequence`](crate::sequence).

pub mod plot;
pub mod timetable;
mod words;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::metric::Better;

/// Name and version of the document's format.
pub const TRIAL_SCHEMA: &str = "superhue-trial/1";

/// A trial, as far as it came.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// [`TRIAL_SCHEMA`].
    pub schema: String,
    /// Whose memory it was about.
    pub target: TrialTarget,
    /// What was switched on and off.
    pub policy: TrialPolicy,
    /// What was measured.
    pub metric: TrialMetric,
    /// What it was asked for.
    pub settings: TrialSettings,
    /// How it ended.
    pub verdict: TrialVerdict,
    /// What the policy does to the metric.
    pub effect: TrialEffect,
    /// Pairs that count, in order.
    pub pairs: Vec<TrialPair>,
    /// Pairs that were begun and do not count, by reason.
    pub discarded: BTreeMap<String, u64>,
    /// What switching took and came to.
    pub switching: TrialSwitching,
    /// Guards that were watched.
    pub guards: Vec<TrialGuard>,
    /// Seconds that it took, learning included.
    pub seconds: f64,
    /// Seconds of CPU that superhue itself took, collapses and splits included.
    pub own_cpu_seconds: f64,
}

/// Whose memory a trial is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialTarget {
    /// As it was named: `4711`, `redis.service`, `system.slice/redis.service`.
    pub name: String,
    /// The program's name, of the process with most memory; empty if it was not seen.
    pub program: String,
    /// Processes at the end.
    pub processes: u64,
    /// How often it was started anew meanwhile.
    pub restarts: u64,
}

/// What is switched on and off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialPolicy {
    /// Its name; `None` if it was not chosen before the end.
    pub pages: Option<String>,
    /// Why this one, and by which tracker.
    pub because: String,
    /// What there is to say about how it is brought about.
    pub notes: Vec<String>,
}

/// Where the numbers come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrialSource {
    /// CPU time of the target.
    Cpu,
    /// What a command prints.
    Command,
    /// What a Prometheus server answers.
    Prometheus,
}

/// What is made of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MetricKind {
    /// The number only grows; what counts is its growth per second.
    Counter,
    /// The number is a level; what counts is its mean over a block.
    Gauge,
    /// The number counts work that was done; what counts is the target's CPU time for one piece.
    Work,
}

/// What is measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialMetric {
    /// Where it comes from.
    pub source: TrialSource,
    /// The command or query; `None` for CPU time.
    pub asked: Option<String>,
    /// What is made of the numbers.
    pub kind: MetricKind,
    /// Which way is better.
    pub better: Better,
}

/// What a trial is asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialSettings {
    /// The probability of a wrong verdict, all looks together.
    pub alpha: f64,
    /// Effects below this share count as no difference (0.02 is 2 %).
    pub within: f64,
    /// Seconds after which it ends undecided.
    pub limit_seconds: f64,
    /// Where the order of blocks comes from.
    pub seed: u64,
    /// Seconds of a block, if they were given.
    pub block_seconds: Option<f64>,
    /// Whether nothing was switched: a trial of the trial.
    pub nothing_switched: bool,
}

/// What a trial came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrialOutcome {
    /// The policy is better.
    Keep,
    /// It is worse.
    Leave,
    /// It makes less difference than counts.
    NoDifference,
    /// Time was over first.
    Undecided,
    /// The policy found nothing to change.
    NothingToDo,
    /// A guard's limit was crossed.
    Guarded,
    /// Somebody ended it.
    Interrupted,
    /// The target ended, or nothing could be measured or switched.
    Failed,
}

/// How a trial ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialVerdict {
    /// What it came to.
    pub outcome: TrialOutcome,
    /// Why it ended, where that was not because of what was shown.
    pub reason: Option<String>,
}

/// What the policy does to the metric, as a share of what it is without: 0.03 is 3 % more.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialEffect {
    /// What fits best; `None` before the first pair.
    pub estimate: Option<f64>,
    /// The least change that is not ruled out; `None` without a bound.
    pub low: Option<f64>,
    /// The greatest change that is not ruled out.
    pub high: Option<f64>,
}

/// Two blocks that are compared with each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialPair {
    /// Seconds since the start at which its second block ended.
    pub at_seconds: f64,
    /// Whether the policy was on in the first of its blocks.
    pub on_first: bool,
    /// Seconds that each block lasted.
    pub block_seconds: f64,
    /// Seconds before each block that do not count.
    pub settle_seconds: f64,
    /// The metric with the policy on.
    pub on: f64,
    /// The metric with the policy off.
    pub off: f64,
    /// The share of the policy's regions that were huge at the end of the block in which it was on; `None` where that was not seen.
    pub huge_on: Option<f64>,
    /// The same of the block in which it was off.
    pub huge_off: Option<f64>,
    /// What was not ruled out after this pair.
    pub effect: TrialEffect,
}

/// What switching took and came to.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialSwitching {
    /// Regions that the policy made huge, at the end.
    pub regions: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that were huge before the trial; they were left alone. `None` where the kernel does not tell.
    pub huge_before_bytes: Option<u64>,
    /// Memory that collapses added, at the most.
    pub growth_bytes: u64,
    /// How often the policy was switched on again.
    pub times_on: u64,
    /// How often it was switched off.
    pub times_off: u64,
    /// Seconds of the longest switch on; `None` if there was none.
    pub longest_on_seconds: Option<f64>,
    /// Seconds of the longest switch off.
    pub longest_off_seconds: Option<f64>,
    /// Collapses of the policy's regions that did not come about when they should have.
    pub not_collapsed: u64,
    /// Splits likewise.
    pub not_split: u64,
    /// Regions of the policy that are huge after the trial.
    pub left_huge: u64,
}

/// A limit on something that must not suffer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialGuard {
    /// As it was given: `p99 < 5ms`.
    pub condition: String,
    /// Readings of it.
    pub readings: u64,
    /// The last of them.
    pub last: Option<f64>,
    /// The one farthest towards the limit, or beyond it.
    pub worst: Option<f64>,
}

/// Why a text is not a trial.
#[derive(Debug, thiserror::Error)]
pub enum TrialReadError {
    /// It is no JSON, or has other fields.
    #[error("it is not the JSON of a trial: {0}")]
    Json(#[from] serde_json::Error),
    /// It is of another format.
    #[error("its schema is `{0}`, and this version reads {TRIAL_SCHEMA}")]
    Schema(String),
}

impl Trial {
    /// Reads what `superhue trial --json` printed.
    ///
    /// # Errors
    /// If it is something else.
    pub fn from_json(text: &str) -> Result<Self, TrialReadError> {
        let value: serde_json::Value = serde_json::from_str(text)?;
        let schema = value
            .get("schema")
            .and_then(serde_json::Value::as_str)
            .unwrap_or_default();
        if schema != TRIAL_SCHEMA {
            return Err(TrialReadError::Schema(schema.to_owned()));
        }
        Ok(serde_json::from_value(value)?)
    }
}

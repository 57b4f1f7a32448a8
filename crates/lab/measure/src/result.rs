//! The result document: everything about a comparison, in one versioned JSON file.
//!
//! Measuring, writing down and drawing are separate steps: table and plot are made from this document alone. So an old result can be shown
//! again, and table and plot contain nothing that is not in the file. All values are in bytes and seconds; a value that could not be measured is
//! `null` with its reason beside it.
//!
//! Readers ignore unknown fields, so fields may be added under the same schema name. A change of a field's meaning requires a new schema
//! name.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::condition::GateResult;
use crate::design::{Arm, Design, DesignError, Settings, references};
use crate::metric::Metric;
use crate::run::{Execution, Record};
use crate::summary::{ArmSummary, MetricSummary, ReferenceComparison};
use crate::verdict::summarise;

/// Value of the field `schema` of the document.
pub const SCHEMA: &str = "superhue-compare/1";

/// Value of the field `schema` of the document of a [`Suite`](crate::Suite).
pub const SUITE_SCHEMA: &str = "superhue-suite/1";

/// Facts that the driver knows and this crate does not.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Context {
    /// Command that was compared, argument by argument.
    pub command: Vec<String>,
    /// Facts about the machine and the software that the driver found (CPU, kernel, THP mode, hypervisor, commit). The crate stores them without
    /// interpreting them.
    pub machine: Value,
    /// Start of the first run, in seconds since the Unix epoch.
    pub started: Option<f64>,
    /// End of the last run, in seconds since the Unix epoch.
    pub finished: Option<f64>,
}

/// A complete comparison: questions, measurements and verdicts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    schema: String,
    /// Command that was compared, argument by argument; with `{NAME}` for parameters.
    pub command: Vec<String>,
    /// Alternatives, at least two; in a scan of parameters, those of one value after the other.
    pub arms: Vec<Arm>,
    /// Settings of the comparison.
    pub settings: Settings,
    /// Facts about the machine and the software, from the driver.
    #[serde(default)]
    pub machine: Value,
    /// Start of the first run, in seconds since the Unix epoch.
    #[serde(default)]
    pub started: Option<f64>,
    /// End of the last run, in seconds since the Unix epoch.
    #[serde(default)]
    pub finished: Option<f64>,
    /// True if it was interrupted from outside before all runs were done.
    #[serde(default)]
    pub interrupted: bool,
    /// Reason why the runner gave up; `None` if it did not.
    #[serde(default)]
    pub aborted: Option<String>,
    /// Metrics that were measured.
    pub metrics: Vec<Metric>,
    /// Every run, warm-ups and failures included, in the order in which they took place.
    pub samples: Vec<Record>,
    /// Summaries of the samples: one for every metric, in their order.
    pub summaries: Vec<MetricSummary>,
    /// Conditions of the user, and their results; see [`gate`](crate::gate).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<GateResult>,
}

/// Counts of good and failed measured runs of one arm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally<'a> {
    /// Runs that did not fail.
    pub good: usize,
    /// Runs that failed.
    pub failed: usize,
    /// Reason why the first of them failed.
    pub why_failed: Option<&'a str>,
}

/// Reason why a text is not a result document.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The text is not JSON, or a field is missing or of the wrong type.
    #[error("not a result of `superhue compare`: {0}")]
    Json(#[from] serde_json::Error),
    /// The document has no field `schema`.
    #[error("not a result of `superhue compare`: there is no field `schema`")]
    NoSchema,
    /// The document has another version, or is of another kind.
    #[error(
        "this version reads `{SCHEMA}` and `{SUITE_SCHEMA}`, not `{0}`: use the superhue that wrote the file"
    )]
    OtherSchema(String),
    /// Arms, metrics and settings do not fit together.
    #[error("the result contradicts itself: {0}")]
    Design(#[from] DesignError),
    /// A sample or a summary names something that does not exist.
    #[error("the result contradicts itself: {0}")]
    Inconsistent(String),
}

impl Comparison {
    /// Makes the document and computes the verdicts.
    #[must_use]
    pub fn new(design: Design, execution: Execution, context: Context) -> Self {
        let (arms, metrics, settings) = design.into_parts();
        let mut samples = execution.records;
        for record in &mut samples {
            let names = metrics.iter().map(|metric| metric.name.as_str());
            record.sample.complete(names);
        }
        let references = references(&arms, settings.reference);
        let summaries = summarise(&metrics, &references, &settings, &samples);
        Self {
            schema: SCHEMA.to_owned(),
            command: context.command,
            arms,
            settings,
            machine: context.machine,
            started: context.started,
            finished: context.finished,
            interrupted: execution.interrupted,
            aborted: execution.aborted,
            metrics,
            samples,
            summaries,
            gates: Vec::new(),
        }
    }

    /// Returns the index of the arm with which this one is compared; for a reference, its own index.
    #[must_use]
    pub fn reference_of(&self, arm: usize) -> usize {
        let references = references(&self.arms, self.settings.reference);
        references.get(arm).copied().unwrap_or(arm)
    }

    /// Returns true if parameters were scanned; with more than one value there is more than one reference.
    #[must_use]
    pub fn is_scan(&self) -> bool {
        self.arms.iter().any(|arm| !arm.parameters.is_empty())
    }

    /// Returns the document as indented JSON, with a newline at the end.
    ///
    /// # Errors
    /// Returns an error of `serde_json`; a comparison made by [`new`](Self::new) gives no reason for one.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }

    /// Reads a document.
    ///
    /// # Errors
    /// Fails if it is not JSON, has another schema, is incomplete, or contradicts itself.
    pub fn from_json(text: &str) -> Result<Self, ReadError> {
        let value: Value = serde_json::from_str(text)?;
        match value.get("schema").and_then(Value::as_str) {
            Some(SCHEMA) => {}
            Some(other) => return Err(ReadError::OtherSchema(other.chars().take(60).collect())),
            None => return Err(ReadError::NoSchema),
        }
        let comparison: Self = serde_json::from_value(value)?;
        comparison.check()?;
        Ok(comparison)
    }

    /// Returns the comparison of an arm with the reference on a metric; `None` for the reference itself and for a metric or arm that does not
    /// exist.
    #[must_use]
    pub fn against(&self, metric: &str, arm: usize) -> Option<&ReferenceComparison> {
        self.summary(metric, arm)?.against.as_ref()
    }

    /// Returns the summary of an arm's runs on a metric.
    #[must_use]
    pub fn summary(&self, metric: &str, arm: usize) -> Option<&ArmSummary> {
        let summary = self.summaries.iter().find(|s| s.metric == metric)?;
        summary.arms.get(arm)
    }

    /// Counts the good and the failed measured runs of an arm.
    #[must_use]
    pub fn tally(&self, arm: usize) -> Tally<'_> {
        let mut tally = Tally::default();
        for record in self.samples.iter().filter(|r| r.arm == arm && !r.warmup) {
            match &record.failed {
                None => tally.good += 1,
                Some(why) => {
                    tally.failed += 1;
                    tally.why_failed = tally.why_failed.or(Some(why));
                }
            }
        }
        tally
    }

    /// Checks a document from outside, because later code relies on its indices.
    pub(crate) fn check(&self) -> Result<(), ReadError> {
        Design::new(
            self.arms.clone(),
            self.metrics.clone(),
            self.settings.clone(),
        )?;
        let arms = self.arms.len();
        if let Some(record) = self.samples.iter().find(|record| record.arm >= arms) {
            let arm = record.arm;
            let message = format!("a sample is of arm number {arm}, but there are {arms}");
            return Err(ReadError::Inconsistent(message));
        }
        let names = |list: Vec<&str>| list.join(", ");
        let measured = names(self.metrics.iter().map(|m| m.name.as_str()).collect());
        let summarised = names(self.summaries.iter().map(|s| s.metric.as_str()).collect());
        if measured != summarised {
            let message = format!("measured is {measured}, but summarised {summarised}");
            return Err(ReadError::Inconsistent(message));
        }
        let findings = self.gates.iter().flat_map(|gate| &gate.findings);
        if let Some(finding) = findings.into_iter().find(|finding| finding.arm >= arms) {
            let message = format!("a gate is about arm number {}", finding.arm);
            return Err(ReadError::Inconsistent(message));
        }
        for summary in &self.summaries {
            if !summary.arms.iter().map(|arm| arm.arm).eq(0..arms) {
                let metric = &summary.metric;
                let message = format!("the summary of {metric} is not one of all arms in order");
                return Err(ReadError::Inconsistent(message));
            }
        }
        Ok(())
    }
}

//! The result document: everything about a comparison, in one versioned JSON file.
//!
//! Measuring, writing down and drawing are separate steps: the table and the plot are made from
//! this document alone, so an old result can be looked at again, and nothing is shown that is not
//! also in the file. Bytes and seconds throughout; a value that could not be measured is `null`
//! with its reason beside it.
//!
//! Readers ignore fields they do not know, so fields may be added under the same schema name. What
//! changes the meaning of a field gets a new one.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::design::{Arm, Design, DesignError, Settings, references};
use crate::gate::{Condition, GateResult};
use crate::metric::Metric;
use crate::run::{Execution, Record};
use crate::suite::SUITE_SCHEMA;
use crate::summary::{Against, ArmSummary, MetricSummary};
use crate::verdict::summarise;

/// What the field `schema` of the document says.
pub const SCHEMA: &str = "superhue-compare/1";

/// What the driver knows and this crate does not.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Context {
    /// The command that was compared, argument by argument.
    pub command: Vec<String>,
    /// The machine and the software: whatever the driver can find out (CPU, kernel, THP mode,
    /// hypervisor, commit). Kept as it is, and not interpreted.
    pub machine: Value,
    /// When the first run started, in seconds since the Unix epoch.
    pub started: Option<f64>,
    /// When the last run ended, in seconds since the Unix epoch.
    pub finished: Option<f64>,
}

/// A comparison, complete: what was asked, what was measured, what follows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    schema: String,
    /// The command that was compared, argument by argument; with `{NAME}` for parameters.
    pub command: Vec<String>,
    /// The alternatives, at least two; in a scan of parameters, those of one value after the other.
    pub arms: Vec<Arm>,
    /// How it was done.
    pub settings: Settings,
    /// What the driver wrote about the machine and the software.
    #[serde(default)]
    pub machine: Value,
    /// When the first run started, in seconds since the Unix epoch.
    #[serde(default)]
    pub started: Option<f64>,
    /// When the last run ended, in seconds since the Unix epoch.
    #[serde(default)]
    pub finished: Option<f64>,
    /// Whether it was stopped from outside before all runs were done.
    #[serde(default)]
    pub interrupted: bool,
    /// Why it was given up, if it was.
    #[serde(default)]
    pub aborted: Option<String>,
    /// What was measured.
    pub metrics: Vec<Metric>,
    /// Every run, warm-ups and failures included, in the order in which they took place.
    pub samples: Vec<Record>,
    /// What the samples come to: one for every metric, in their order.
    pub summaries: Vec<MetricSummary>,
    /// What the user wanted to hold, and whether it does; see [`gate`](crate::gate).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<GateResult>,
}

/// How the measured runs of one arm ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally<'a> {
    /// Runs that did not fail.
    pub good: usize,
    /// Runs that failed.
    pub failed: usize,
    /// Why the first of them failed.
    pub why_failed: Option<&'a str>,
}

/// Why a text is not a result document.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is not JSON, or a field is missing or of the wrong type.
    #[error("not a result of `superhue compare`: {0}")]
    Json(#[from] serde_json::Error),
    /// It does not say what it is.
    #[error("not a result of `superhue compare`: there is no field `schema`")]
    NoSchema,
    /// It is of another version, or something else.
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
    /// Makes the document, and passes the verdicts.
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

    /// Finds out which conditions hold and keeps that in [`gates`](Self::gates), in place of what was
    /// there.
    pub fn check_conditions(&mut self, conditions: &[Condition]) {
        self.gates = crate::gate::check_conditions(self, conditions);
    }

    /// The index of the arm that this one is compared with; its own for a reference.
    #[must_use]
    pub fn reference_of(&self, arm: usize) -> usize {
        let references = references(&self.arms, self.settings.reference);
        references.get(arm).copied().unwrap_or(arm)
    }

    /// Whether parameters were scanned, so that there is more than one reference.
    #[must_use]
    pub fn is_scan(&self) -> bool {
        self.arms.iter().any(|arm| !arm.parameters.is_empty())
    }

    /// The document as indented JSON, with a newline at the end.
    ///
    /// # Errors
    /// Those of `serde_json`; a comparison made by [`new`](Self::new) gives it no reason for one.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }

    /// Reads a document.
    ///
    /// # Errors
    /// If it is not JSON, of another schema, incomplete, or contradicts itself.
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

    /// The comparison of an arm with the reference on a metric; `None` for the reference itself
    /// and for what does not exist.
    #[must_use]
    pub fn against(&self, metric: &str, arm: usize) -> Option<&Against> {
        self.summary(metric, arm)?.against.as_ref()
    }

    /// What the runs of an arm come to on a metric.
    #[must_use]
    pub fn summary(&self, metric: &str, arm: usize) -> Option<&ArmSummary> {
        let summary = self.summaries.iter().find(|s| s.metric == metric)?;
        summary.arms.get(arm)
    }

    /// How the measured runs of an arm ended.
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

    /// The document came from outside; what follows relies on its indices.
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

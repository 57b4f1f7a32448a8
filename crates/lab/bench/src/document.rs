//! The result: everything about a measurement, in one versioned JSON document.

pub mod isolation;
pub mod summary;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::arm::Arm;
use crate::json;
use crate::machine::Caches;
use crate::painter::FillCounts;
use crate::workload::{Figure, Point, Sweep};
use isolation::Isolation;
use summary::{ArmSummary, summarise};

/// Value of the field `schema`.
pub const SCHEMA: &str = "superhue-bench/1";

/// A complete measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// [`SCHEMA`].
    pub schema: String,
    /// The command line that made it.
    pub command: Vec<String>,
    /// Machine and software, as far as the driver knows them; kept, and not interpreted.
    pub machine: Value,
    /// The CPU that everything ran on.
    pub cpu: u32,
    /// Data caches of that CPU.
    pub caches: Caches,
    /// Source of the colors; `None` if they were not determined.
    pub colors: Option<Colors>,
    /// Settings of the measurement.
    pub settings: Settings,
    /// Start, in seconds since the Unix epoch.
    pub started: Option<f64>,
    /// End, in seconds since the Unix epoch.
    pub finished: Option<f64>,
    /// True if it was stopped from outside before the end.
    pub interrupted: bool,
    /// Parts that could not be measured, with the reasons.
    pub skipped: Vec<SkippedPart>,
    /// The workloads.
    pub sweeps: Vec<SweepResult>,
    /// Victims and partners, if they were measured.
    pub isolation: Option<Isolation>,
}

/// Source of the colors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Colors {
    /// Number of colors.
    pub count: usize,
    /// Name of the oracle.
    pub oracle: String,
}

/// Settings of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The arms, in the order of tables.
    pub arms: Vec<Arm>,
    /// Fresh allocations of each arm at each size.
    pub allocations: usize,
    /// Timed passes over each allocation, after one untimed pass; the best pass gives the figure of the allocation.
    pub passes: usize,
    /// Intended length of a pass, in seconds of CPU time.
    pub pass_seconds: f64,
    /// Set of sizes.
    pub sweep: Sweep,
    /// Seed of the order of arms and of all random choices.
    pub seed: u64,
}

/// Part that could not be measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedPart {
    /// The part.
    pub what: String,
    /// The reason, and a way to change it.
    pub reason: String,
}

/// One workload at all its sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepResult {
    /// Name of the workload on the command line.
    pub workload: String,
    /// Description of its work.
    pub about: String,
    /// Unit and direction of its figures.
    pub figure: Figure,
    /// The sizes, ascending.
    pub points: Vec<PointResult>,
}

/// One size of a workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PointResult {
    /// The size.
    #[serde(flatten)]
    pub point: Point,
    /// Repetitions of the work in one pass, the same for all arms.
    pub times: u64,
    /// The arms that were measured.
    pub arms: Vec<ArmResult>,
}

/// One arm at one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArmResult {
    /// The arm.
    pub arm: Arm,
    /// The figure of each pass over each allocation, in the order measured.
    pub samples: Vec<Vec<f64>>,
    /// Placement of the pages, summed over all allocations.
    pub pages: FillCounts,
    /// Reasons why allocations failed, one entry for each.
    pub failed: Vec<String>,
    /// Summary of the samples; computed from them, also when a document is read.
    pub summary: Option<ArmSummary>,
}

/// Reason why a text is no document.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The text is not JSON, or a field is missing or of the wrong type.
    #[error("not a result of `superhue bench`")]
    Json(#[from] serde_json::Error),
    /// The document has another schema version, or is of another kind.
    #[error("not a result of this version's `superhue bench`: its schema is {0}, not `{SCHEMA}`")]
    OtherSchema(String),
    /// The document has numbers that no measurement gives.
    #[error("the result contradicts itself: {0}")]
    Inconsistent(String),
}

impl Document {
    /// Writes indented JSON with lists of numbers on one line each, and a newline at the end.
    ///
    /// # Errors
    /// Errors of `serde_json`: numbers are finite, so none is known.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        json::to_string(self)
    }

    /// Reads a document, and computes the summaries of its samples again.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn from_json(text: &str) -> Result<Self, ReadError> {
        let value: Value = serde_json::from_str(text)?;
        match value.get("schema") {
            Some(Value::String(schema)) if schema == SCHEMA => {}
            Some(other) => {
                let other = other.to_string();
                return Err(ReadError::OtherSchema(other.chars().take(60).collect()));
            }
            None => return Err(ReadError::OtherSchema("missing".to_owned())),
        }
        let mut document: Self = serde_json::from_value(value)?;
        document.check()?;
        document.summarise();
        Ok(document)
    }

    /// Computes the summaries of all samples.
    pub fn summarise(&mut self) {
        for sweep in &mut self.sweeps {
            for point in &mut sweep.points {
                summarise(&sweep.figure, point);
            }
        }
        if let Some(isolation) = &mut self.isolation {
            isolation.summarise();
        }
    }

    /// Returns true if anything was measured.
    #[must_use]
    pub fn has_results(&self) -> bool {
        let mut arms = self
            .sweeps
            .iter()
            .flat_map(|sweep| &sweep.points)
            .flat_map(|point| &point.arms);
        arms.any(|arm| !arm.samples.is_empty())
            || self.isolation.as_ref().is_some_and(Isolation::has_results)
    }

    /// Checks a document from outside: later code divides by its numbers.
    fn check(&self) -> Result<(), ReadError> {
        let bad = |what: &str| Err(ReadError::Inconsistent(what.to_owned()));
        for point in self.sweeps.iter().flat_map(|sweep| &sweep.points) {
            if !(point.point.share.is_finite() && point.point.share > 0.0) {
                return bad("a size is no share of the cache");
            }
            for arm in &point.arms {
                if arm.samples.iter().any(Vec::is_empty) {
                    return bad("an allocation was not measured");
                }
                let mut figures = arm.samples.iter().flatten();
                if figures.any(|figure| !(figure.is_finite() && *figure > 0.0)) {
                    return bad("a figure is not above 0");
                }
            }
        }
        match &self.isolation {
            Some(isolation) if !isolation.is_consistent() => bad("a job took no time"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;

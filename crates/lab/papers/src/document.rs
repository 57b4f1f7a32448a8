//! The result: every figure, in one versioned JSON document.

use serde::{Deserialize, Serialize};

/// Value of the field `schema`.
pub const SCHEMA: &str = "superhue-lab/1";

/// A run of the lab.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// [`SCHEMA`].
    pub schema: String,
    /// Seed of all random choices.
    pub seed: u64,
    /// True if the run had few points and few draws.
    pub quick: bool,
    /// Files of frames that real kernels dealt, if there were any.
    pub frames: Vec<Frames>,
    /// The figures.
    pub figures: Vec<Figure>,
}

/// A file of frames.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frames {
    /// Name of the file.
    pub name: String,
    /// Description of the guest, as the file gives it.
    pub how: String,
    /// FNV-1a of its draws, in hex.
    pub sum: String,
}

/// One figure of a paper, beside the lab's own results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Name on the command line.
    pub name: String,
    /// Headline of the figure.
    pub title: String,
    /// Table or figure of the paper that it stands beside.
    pub paper: String,
    /// Statements of the paper, in words.
    pub says: Vec<String>,
    /// The machine that is modelled.
    pub machine: String,
    /// The cache whose misses [`ArmResult::misses`] counts, if it is not the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
    /// The work, and its memory.
    pub workload: String,
    /// Quantity in which the points differ.
    pub axis: String,
    /// Quantity of [`ArmResult::value`].
    pub value: String,
    /// True if more of it is better.
    pub higher_is_better: bool,
    /// One entry for each size.
    pub points: Vec<Point>,
    /// Conclusions, one sentence each.
    pub verdict: Vec<String>,
    /// Cases in which the paper's idea costs something.
    pub losing: Vec<String>,
    /// Effects that the model leaves out.
    pub not_modelled: Vec<String>,
}

/// One size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Label on the axis.
    pub label: String,
    /// Bytes of memory.
    pub bytes: u64,
    /// For a point of a real program: the result of its run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traced: Option<TraceReport>,
    /// The arms.
    pub arms: Vec<ArmResult>,
}

/// One arm at one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArmResult {
    /// Name of the arm.
    pub arm: String,
    /// Draws replayed.
    pub draws: usize,
    /// Number of draws that a real kernel dealt.
    pub real: usize,
    /// References of the program in a draw.
    pub references: u64,
    /// Misses of the last cache, per 1,000 references.
    pub misses: Spread,
    /// Walks of the page table, per 1,000 references.
    pub walks: Spread,
    /// Modelled value, in the figure's unit.
    pub value: Spread,
    /// Number of the paper for it, in the same unit.
    pub paper: Option<f64>,
}

/// A program whose references were replayed while it ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceReport {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The emulator that ran it, in its own words.
    pub emulator: String,
    /// Version of the program, if the caller determined it.
    pub program: Option<String>,
    /// End of the program, in words.
    pub ended: String,
    /// Exit status of the program, if it ended by itself.
    pub status: Option<i32>,
    /// References read.
    pub references: u64,
    /// Number of the first references, which only touched pages.
    pub skipped: u64,
    /// Bytes of memory on huge pages, in the arms that have them.
    pub superpage_bytes: u64,
    /// Threads beside the first.
    pub threads: u64,
    /// Processes that it started.
    pub processes: u64,
    /// Programs that replaced it by `execve(2)`: one at most.
    pub executed: u64,
}

/// Distribution over the draws.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The least.
    pub least: f64,
    /// The 5th percentile.
    pub p5: f64,
    /// The median.
    pub median: f64,
    /// The mean.
    pub mean: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The most.
    pub most: f64,
}

impl Spread {
    /// Computes the spread of values, of which there is at least one.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1) as f64;
        let at = |q: f64| {
            let place = q * last;
            let (low, high) = (place.floor() as usize, place.ceil() as usize);
            match (sorted.get(low), sorted.get(high)) {
                (Some(low), Some(high)) => rounded(low + (high - low) * place.fract()),
                _ => 0.0,
            }
        };
        Self {
            least: at(0.0),
            p5: at(0.05),
            median: at(0.5),
            mean: rounded(sorted.iter().sum::<f64>() / sorted.len().max(1) as f64),
            p95: at(0.95),
            most: at(1.0),
        }
    }

    /// The worst draw.
    #[must_use]
    pub const fn worst(&self, higher_is_better: bool) -> f64 {
        if higher_is_better {
            self.least
        } else {
            self.most
        }
    }
}

/// Rounds to six significant digits: the printed number is short, and the same on every machine.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// Reason why a text is no document.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The text is not JSON, or a field is missing or of the wrong type.
    #[error("not a result of `superhue lab`")]
    Json(#[from] serde_json::Error),
    /// The text has another schema version, or is another kind of document.
    #[error("not a result of this version's `superhue lab`: its schema is {0:?}, not `{SCHEMA}`")]
    OtherSchema(String),
}

impl Document {
    /// Reads a document.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn from_json(text: &str) -> Result<Self, ReadError> {
        let document: Self = serde_json::from_str(text)?;
        if document.schema != SCHEMA {
            return Err(ReadError::OtherSchema(
                document.schema.chars().take(60).collect(),
            ));
        }
        Ok(document)
    }

    /// Writes indented JSON, with a newline at the end.
    ///
    /// # Errors
    /// Errors of `serde_json`: numbers are finite, so none is known.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

impl Figure {
    /// Name of the caches whose misses [`ArmResult::misses`] counts.
    #[must_use]
    pub fn misses(&self) -> String {
        match (&self.cache, self.name.as_str()) {
            (Some(cache), _) => format!("the {cache}"),
            (None, "p1-rule") => "the private caches".to_owned(),
            (None, _) => "the last cache".to_owned(),
        }
    }

    /// The result of an arm at a point.
    #[must_use]
    pub fn result(&self, point: &str, arm: &str) -> Option<&ArmResult> {
        let point = self.points.iter().find(|other| other.label == point)?;
        point.arm(arm)
    }

    /// The arms, in the order of tables.
    #[must_use]
    pub fn arms(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for arm in self.points.iter().flat_map(|point| &point.arms) {
            if !names.contains(&arm.arm.as_str()) {
                names.push(&arm.arm);
            }
        }
        names
    }
}

impl Point {
    /// The result of an arm.
    #[must_use]
    pub fn arm(&self, name: &str) -> Option<&ArmResult> {
        self.arms.iter().find(|arm| arm.arm == name)
    }
}

//! Stored result of tracking a process's heat: `superhue-heat/1`.

use serde::{Deserialize, Serialize};

use crate::cells::decode;

/// Name of the schema, the first field of every document.
pub const SCHEMA: &str = "superhue-heat/1";

/// Limits above those of any recorder: `from_json` refuses larger documents rather than draw them for minutes.
const MOST_COLUMNS: usize = 4096;
const MOST_BANDS: usize = 256;
const MOST_ROWS: u32 = 65_536;
const MOST_SEGMENTS: usize = 1 << 20;

/// Heat of a process: accesses to its memory over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Heat {
    /// [`SCHEMA`].
    pub schema: String,
    /// Process that was tracked.
    pub process: Process,
    /// Tracker and its scope.
    pub tracker: Target,
    /// Duration and number of samples.
    pub watched: Observation,
    /// Amount of memory that receives the accesses.
    pub hot_set: HotSet,
    /// Cost of tracking; `None` if it is unknown.
    pub cost: Option<Cost>,
    /// Counts per page, by mapping, ascending.
    pub mappings: Vec<Mapping>,
    /// Accesses over time.
    pub series: Series,
}

/// Tracked process.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Process {
    /// Process ID.
    pub pid: u32,
    /// Command name.
    pub name: String,
    /// Arguments; empty if they could not be read.
    pub command: Vec<String>,
}

/// Method of tracking.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Target {
    /// Tracker: ptwalk, idle or damon.
    pub name: String,
    /// Reason for this tracker.
    pub why: String,
    /// Memory that it tracks: `all` or `anonymous`.
    pub scope: String,
}

/// Reason why watching ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndReason {
    /// The time expired.
    #[default]
    Duration,
    /// The process exited.
    Exited,
    /// A signal interrupted it.
    Interrupted,
    /// The process could no longer be read, for example because it executed a program with more rights.
    Unreadable,
}

/// Duration and samples of an observation.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Observation {
    /// Number of samples.
    pub samples: u64,
    /// Time during which accesses were watched: the sum of the intervals.
    pub seconds: f64,
    /// Time from the start of the first sample to the end, pauses included; 0 in documents without this field.
    #[serde(default)]
    pub elapsed_seconds: f64,
    /// Shortest interval between arming and reading; 0 without samples.
    pub shortest_interval_seconds: f64,
    /// Longest interval between arming and reading.
    pub longest_interval_seconds: f64,
    /// Reason why it ended.
    pub ended: EndReason,
    /// Estimated share of accesses to memory that no sample found accessed, 0 to 1: the hot set lacks that memory. `None` if the samples are too
    /// few for an estimate, or do not tell pages apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unseen_share: Option<f64>,
}

/// Amount of memory that receives the sampled accesses, hottest first.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HotSet {
    /// Memory that was resident at the last sample.
    pub resident_bytes: u64,
    /// Bytes that receive 50, 90 and 99 % of the sampled accesses; `None` if there were none.
    pub bytes_50: Option<u64>,
    /// See `bytes_50`.
    pub bytes_90: Option<u64>,
    /// See `bytes_50`.
    pub bytes_99: Option<u64>,
    /// Points of the curve, ascending in both fields; the last point includes every touched page.
    pub points: Vec<HotPoint>,
}

/// Point of the curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HotPoint {
    /// Number of the hottest bytes.
    pub bytes: u64,
    /// Share of the sampled accesses to those bytes, 0 to 1.
    pub share: f64,
}

/// Cost of tracking.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Cost {
    /// CPU time of the tracker in seconds.
    pub own_cpu_seconds: f64,
    /// Share of one CPU that the tracker used, 0 to 1.
    pub own_cpu_share: f64,
    /// Estimated slowdown of the target, 0 to 1.
    pub target_slowdown: f64,
}

/// One mapping and its counts.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Name in the kernel; `None` for plain anonymous memory.
    pub name: Option<String>,
    /// Permissions of the process: `rw-p`, as in `/proc/PID/maps`.
    pub permissions: String,
    /// Resident memory in base pages, in bytes.
    pub base_bytes: u64,
    /// Resident memory in huge pages, in bytes.
    pub huge_bytes: u64,
    /// Runs of adjacent pages with equal counts.
    pub runs: Vec<Run>,
}

/// Adjacent resident memory with equal counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Number of samples that found each of its pages touched.
    pub count: u64,
}

/// Accesses over time, ready to be drawn.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Series {
    /// Columns of the picture, ascending.
    pub columns: Vec<Column>,
    /// Rows of the picture: groups of mappings, ascending by address.
    pub bands: Vec<Band>,
}

/// Time between arming and reading, or several such times joined.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Start in seconds after the first arming.
    pub from_seconds: f64,
    /// End in seconds after the first arming.
    pub to_seconds: f64,
    /// Number of samples joined in it.
    pub samples: u32,
}

/// One mapping, or neighbours that are shown as one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Band {
    /// Label.
    pub label: String,
    /// Number of mappings in it.
    pub mappings: u32,
    /// Bytes that were ever resident.
    pub bytes: u64,
    /// Bytes of them that huge page-table entries mapped at the last sample.
    pub huge_bytes: u64,
    /// Address ranges that were resident, as start and end; the memory between them is omitted.
    pub segments: Vec<[u64; 2]>,
    /// Number of rows: equal parts of the joined segments.
    pub rows: u32,
    /// A string for each column, with one character per row; see [`encode`](crate::encode).
    pub cells: Vec<String>,
}

/// Reason why a document cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The document is not JSON, or lacks the fields.
    #[error("it is no heat document: {0}")]
    Json(#[from] serde_json::Error),
    /// The document is of another kind, or has another version.
    #[error("it is `{0}`, and this program reads `{SCHEMA}`: write it again by `superhue heat`")]
    Schema(String),
    /// The document's parts contradict each other.
    #[error("it is damaged: {0}")]
    Damaged(String),
}

impl Heat {
    /// Returns the document as JSON, in one line.
    ///
    /// # Errors
    /// A document of this crate gives no reason for an error.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// Reads a document that [`Self::to_json`] wrote.
    ///
    /// # Errors
    /// Returns a [`ReadError`] for any document that could not be drawn.
    pub fn from_json(text: &str) -> Result<Self, ReadError> {
        #[derive(Deserialize)]
        struct Header {
            schema: String,
        }
        let header: Header = serde_json::from_str(text)?;
        if header.schema != SCHEMA {
            return Err(ReadError::Schema(header.schema.chars().take(60).collect()));
        }
        let heat: Self = serde_json::from_str(text)?;
        heat.check().map_err(ReadError::Damaged)?;
        Ok(heat)
    }

    fn check(&self) -> Result<(), String> {
        self.series.check()?;
        let mut last = HotPoint {
            bytes: 0,
            share: 0.0,
        };
        for point in &self.hot_set.points {
            if !(last.share..=1.000_001).contains(&point.share) || point.bytes < last.bytes {
                return Err("the points of the hot set do not ascend".to_owned());
            }
            last = *point;
        }
        let watched = &self.watched;
        for seconds in [
            watched.seconds,
            watched.elapsed_seconds,
            watched.shortest_interval_seconds,
            watched.longest_interval_seconds,
        ] {
            if !seconds.is_finite() || seconds < 0.0 {
                return Err("a time is no time".to_owned());
            }
        }
        let mut end = 0;
        for mapping in &self.mappings {
            if mapping.start < end || mapping.end <= mapping.start {
                return Err(format!(
                    "the mapping at {:#x} does not ascend",
                    mapping.start
                ));
            }
            let mut at = mapping.start;
            for run in &mapping.runs {
                if run.start < at || run.end <= run.start || run.end > mapping.end {
                    return Err(format!("the pages at {:#x} do not ascend", run.start));
                }
                at = run.end;
            }
            end = mapping.end;
        }
        Ok(())
    }
}

impl Series {
    fn check(&self) -> Result<(), String> {
        if self.columns.len() > MOST_COLUMNS || self.bands.len() > MOST_BANDS {
            return Err("it has more columns or bands than superhue ever writes".to_owned());
        }
        let mut end = 0.0;
        for column in &self.columns {
            let finite = column.from_seconds.is_finite() && column.to_seconds.is_finite();
            if !finite || column.from_seconds < end || column.to_seconds < column.from_seconds {
                return Err("the columns do not ascend".to_owned());
            }
            end = column.to_seconds;
        }
        let rows: u64 = self.bands.iter().map(|band| u64::from(band.rows)).sum();
        if rows > u64::from(MOST_ROWS) {
            return Err("it has more rows than superhue ever writes".to_owned());
        }
        self.bands
            .iter()
            .try_for_each(|band| band.check(self.columns.len()))
    }
}

impl Band {
    fn check(&self, columns: usize) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("band `{}`: {what}", self.label));
        if self.cells.len() != columns {
            return wrong("another number of columns than the series");
        }
        if self.rows == 0 || self.segments.is_empty() || self.segments.len() > MOST_SEGMENTS {
            return wrong("no rows, or no memory");
        }
        let mut at = 0;
        for &[start, end] in &self.segments {
            if start < at || end <= start {
                return wrong("its segments do not ascend");
            }
            at = end;
        }
        let right = |column: &String| {
            column.len() == self.rows as usize && column.bytes().all(|one| decode(one).is_some())
        };
        if !self.cells.iter().all(right) {
            return wrong("a column with other letters, or more or fewer, than its rows");
        }
        Ok(())
    }
}

//! What is kept of a look at a process's heat: `superhue-heat/1`.

use serde::{Deserialize, Serialize};

use crate::cells::decode;

/// The schema's name, the first field of every document.
pub const SCHEMA: &str = "superhue-heat/1";

/// More than any recorder makes: larger documents are refused rather than drawn for minutes.
const MOST_COLUMNS: usize = 4096;
const MOST_BANDS: usize = 256;
const MOST_ROWS: u32 = 65_536;
const MOST_SEGMENTS: usize = 1 << 20;

/// Which memory of a process is accessed, and when.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Heat {
    /// [`SCHEMA`].
    pub schema: String,
    /// Whose memory.
    pub process: Process,
    /// Who looked.
    pub tracker: Target,
    /// For how long, how often.
    pub watched: Observation,
    /// How much memory the accesses go to.
    pub hot_set: HotSet,
    /// What looking cost, as far as it is known.
    pub cost: Option<Cost>,
    /// Counts per page, by mapping, ascending.
    pub mappings: Vec<Mapping>,
    /// Accesses over time.
    pub series: Series,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Command name.
    pub name: String,
    /// Its arguments; empty if they could not be read.
    pub command: Vec<String>,
}

/// How it was tracked.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Target {
    /// Which tracker: ptwalk, idle or damon.
    pub name: String,
    /// Why this one.
    pub why: String,
    /// Which memory: `all` or `anonymous`.
    pub scope: String,
}

/// Why watching ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// The time was over.
    #[default]
    Duration,
    /// The process exited or was replaced by exec.
    Exited,
    /// Somebody interrupted it.
    Interrupted,
}

/// How it was watched.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Observation {
    /// Samples taken.
    pub samples: u64,
    /// How long accesses were watched: the sum of the intervals.
    pub seconds: f64,
    /// From the beginning of the first sample to the end, pauses included; 0 in documents that do
    /// not say.
    #[serde(default)]
    pub elapsed_seconds: f64,
    /// Shortest interval between arming and reading; 0 without samples.
    pub shortest_interval_seconds: f64,
    /// Longest interval.
    pub longest_interval_seconds: f64,
    /// Why it ended.
    pub ended: Ended,
}

/// How much memory the sampled accesses go to, hottest first.
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
    /// The curve, ascending in both; ends where every touched page is in.
    pub points: Vec<HotPoint>,
}

/// A point of the curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HotPoint {
    /// The hottest so many bytes ...
    pub bytes: u64,
    /// ... receive this share of the sampled accesses, 0 to 1.
    pub share: f64,
}

/// What looking cost.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Cost {
    /// CPU time of the tracker.
    pub own_cpu_seconds: f64,
    /// Share of one CPU, 0 to 1.
    pub own_cpu_share: f64,
    /// By how much the target is slower for it (estimated), 0 to 1.
    pub target_slowdown: f64,
}

/// One mapping and its counts.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// What the kernel calls it; `None` for plain anonymous memory.
    pub name: Option<String>,
    /// What the process may do with it: `rw-p`, as in `/proc/PID/maps`.
    pub permissions: String,
    /// Resident memory in base pages.
    pub base_bytes: u64,
    /// Resident memory in superpages.
    pub huge_bytes: u64,
    /// Adjacent pages of equal count.
    pub runs: Vec<Run>,
}

/// Adjacent resident memory with equal counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Samples that found each of its pages touched.
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

/// A time between arming and reading, or several joined.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Its start, from the first arming on.
    pub from_seconds: f64,
    /// Its end.
    pub to_seconds: f64,
    /// Samples joined in it.
    pub samples: u32,
}

/// One mapping, or neighbours that are shown as one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Band {
    /// What to call it.
    pub label: String,
    /// Mappings it stands for.
    pub mappings: u32,
    /// Bytes ever seen resident.
    pub bytes: u64,
    /// The part of them that one entry mapped whole at the last sample.
    pub huge_bytes: u64,
    /// The ranges that were resident, as start and end; what lies between is left out.
    pub segments: Vec<[u64; 2]>,
    /// Rows: the segments, put together, in so many equal parts.
    pub rows: u32,
    /// For each column a string of one character per row; see [`encode`](crate::encode).
    pub cells: Vec<String>,
}

/// Why a document cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is no JSON, or not of this shape.
    #[error("it is no heat document: {0}")]
    Json(#[from] serde_json::Error),
    /// It is another document, or of another version.
    #[error("it is `{0}`, and this program reads `{SCHEMA}`: write it again by `superhue heat`")]
    Schema(String),
    /// Its parts contradict each other.
    #[error("it is damaged: {0}")]
    Damaged(String),
}

impl Heat {
    /// The document as JSON, in one line.
    ///
    /// # Errors
    /// None that a document of this crate meets.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// Reads a document that [`Self::to_json`] wrote.
    ///
    /// # Errors
    /// [`ReadError`]: whatever is drawn later has been checked here.
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

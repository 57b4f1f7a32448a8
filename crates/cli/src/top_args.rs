//! The options of `superhue top`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};
use superhue::model::{ByteCount, parse_duration};
use superhue::parse;
use superhue::trackers::TrackerKind;

use crate::named::trackers;
use crate::targets_args::{TARGETS, TargetArgs, WideArgs};
use crate::utc::{self, RecordTime};

/// The smallest record: a snapshot of a thousand processes takes a few 100 KiB, and a record has two files.
const LEAST_RECORD: ByteCount = ByteCount(1 << 20);

/// Options of output, which a recorder has none of. An option that needs another one has its conflicts, too: clap does not demand an option that
/// cannot be given.
const OF_ONE_LOOK: [&str; 3] = ["once", "json", "wide"];

/// Options that a record leaves no use for: it shows what was read then.
const OF_READING: [&str; 7] = [
    "record",
    "record_limit",
    "interval",
    "track",
    "tracker",
    "max_overhead",
    "socket",
];

/// `superhue top`.
#[derive(Debug, Clone, Args)]
pub struct TopArgs {
    /// The first view: services (by cgroup), processes or shared objects.
    #[arg(value_enum, default_value_t = ViewName::Services)]
    pub view: ViewName,
    #[command(flatten)]
    pub targets: TargetArgs,
    /// Time between two reads of the figures on the screen, 100ms to 1h. Figures that take long to read are older: see AGE.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    pub interval: Duration,
    /// Print one table and end, as without a terminal.
    #[arg(long)]
    pub once: bool,
    /// Print all figures as JSON, once.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub width: WideArgs,
    /// Sample the accesses of the processes on the screen, for their hot sets and the heat of their mappings, as `heat
    /// --follow` does. Without it, hot sets appear where the daemon tracks.
    #[arg(long)]
    pub track: bool,
    /// With --track: method of finding out which pages are accessed. [default: the first that works]
    #[arg(long, value_name = "TRACKER", requires = "track", value_parser = trackers())]
    pub tracker: Option<TrackerKind>,
    /// Largest CPU time of superhue itself, as a share of one CPU, with reading, tracking and drawing. --once and --json
    /// read everything.
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = parse::max_overhead)]
    pub max_overhead: f64,
    /// Path of the daemon's socket, for its actions.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath,
          default_value = superhue_daemon::ctl::DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Write snapshots to FILE instead of showing them, one in each --interval, until a signal ends it. Writes FILE and FILE.1 in
    /// turn. Continues an existing record. Shared objects are recorded by `top objects`, mappings of processes are not.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Records",
          conflicts_with_all = OF_ONE_LOOK)]
    pub record: Option<PathBuf>,
    /// With --record: largest size of both files together, at least 1M; the oldest snapshots are overwritten.
    #[arg(long, value_name = "SIZE", default_value = "256M", requires = "record", help_heading = "Records",
          conflicts_with_all = OF_ONE_LOOK, value_parser = parse_record_limit)]
    pub record_limit: ByteCount,
    /// Show the snapshots of the record FILE. Keys: n and b show the next and the previous one, N and B one that is a minute later or earlier,
    /// g goes to a time. With --once or --json, print one of them.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Records",
          conflicts_with_all = OF_READING, conflicts_with_all = TARGETS)]
    pub replay: Option<PathBuf>,
    /// With --replay: begin at this time (UTC): 2026-11-28T10:30, 10:30:05, @1795861800 (seconds since 1970), +10m (after the start of
    /// the record), -90s (before its end). [default: the last snapshot]
    #[arg(long, value_name = "TIME", requires = "replay", help_heading = "Records", allow_hyphen_values = true,
          conflicts_with_all = OF_READING, conflicts_with_all = TARGETS, value_parser = utc::parse)]
    pub at: Option<RecordTime>,
}

/// Meaning of one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ViewName {
    /// A service: the processes of a unit, or of a cgroup.
    Services,
    /// A process.
    Processes,
    /// Shared memory: a memfd, a System V segment, a file on tmpfs.
    Objects,
}

/// Reads an interval that a person can read and wait for: 100 ms to an hour.
fn parse_interval(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text)?;
    if !(Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&time) {
        return Err(format!("`{text}` is not between 100ms and 1h"));
    }
    Ok(time)
}

/// Reads a limit that leaves room for some snapshots.
fn parse_record_limit(text: &str) -> Result<ByteCount, String> {
    let limit: ByteCount = text
        .parse()
        .map_err(|error: superhue::model::ParseSizeError| error.to_string())?;
    if limit < LEAST_RECORD {
        return Err(format!("`{text}` is less than 1M"));
    }
    Ok(limit)
}

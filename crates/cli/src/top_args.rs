//! The options of `superhue top`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};
use superhue::model::parse_duration;
use superhue::parse;
use superhue::trackers::TrackerKind;

use crate::named::trackers;
use crate::targets_args::{TargetArgs, WideArgs};

/// `superhue top`.
#[derive(Debug, Clone, Args)]
pub struct TopArgs {
    /// The first view: services (by cgroup), processes or shared objects.
    #[arg(value_enum, default_value_t = ViewName::Services)]
    pub view: ViewName,
    #[command(flatten)]
    pub targets: TargetArgs,
    /// Largest age of a figure on the screen; a figure that takes long to read becomes older, and shows its age.
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

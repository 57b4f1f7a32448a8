//! Options of `advise`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use superhue::model::ByteCount;

use crate::values::parse_some_time;

/// `superhue advise`.
#[derive(Debug, Args)]
pub struct AdviseArgs {
    /// The processes, by number. [default: all that can be seen]
    #[arg(value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pids: Vec<u32>,
    /// All processes, which is the default.
    #[arg(long, conflicts_with_all = ["pids", "unit", "cgroup"])]
    pub all: bool,
    /// The processes of this unit of systemd: redis.service, or redis.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["pids", "cgroup"])]
    pub unit: Option<String>,
    /// The processes of this cgroup and of those below it: its path below /sys/fs/cgroup, or in full.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::DirPath, conflicts_with = "pids")]
    pub cgroup: Option<PathBuf>,
    /// How long to watch, all processes together. Measuring what a TLB miss costs takes some seconds more, at most once an hour.
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = parse_some_time)]
    pub time: Duration,
    /// Measure what a TLB miss costs in no more memory than this, three times; never in more than a quarter of what is available.
    #[arg(long, value_name = "SIZE", default_value = "2G", allow_hyphen_values = true, value_parser = parse_footprint)]
    pub footprint: ByteCount,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Memory in which walks are measured.
fn parse_footprint(text: &str) -> Result<ByteCount, String> {
    let footprint: ByteCount = text.parse().map_err(|error| format!("{error}"))?;
    if footprint.0 < 16 << 20 {
        return Err(format!(
            "`{text}` is less than 16M, which the TLB nearly reaches"
        ));
    }
    Ok(footprint)
}

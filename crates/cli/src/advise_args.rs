//! Options of `advise`.

use std::time::Duration;

use clap::Args;
use superhue::model::ByteCount;

use crate::targets_args::TargetArgs;
use crate::tlb_args::TlbArgs;
use crate::values::parse_some_time;

/// `superhue advise`.
#[derive(Debug, Args)]
pub struct AdviseArgs {
    #[command(flatten)]
    pub targets: TargetArgs,
    /// Time to watch, for all processes together. Measuring the cost of a TLB miss takes some seconds more, at most once an hour.
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = parse_some_time)]
    pub time: Duration,
    /// Largest memory in which the cost of a TLB miss is measured: at least 16M. The measurement takes three times as much, and no more than a quarter
    /// of the available memory.
    #[arg(long, value_name = "SIZE", default_value = "2G", allow_hyphen_values = true, value_parser = parse_footprint)]
    pub footprint: ByteCount,
    #[command(flatten)]
    pub tlb: TlbArgs,
    /// Print all columns: memory touched within 1 and 100 ms, memory that was not touched, page tables, verdicts in sentences.
    #[arg(long)]
    pub wide: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Reads the size of the memory in which walks are measured.
fn parse_footprint(text: &str) -> Result<ByteCount, String> {
    let footprint: ByteCount = text.parse().map_err(|error| format!("{error}"))?;
    if footprint.0 < 16 << 20 {
        return Err(format!(
            "`{text}` is less than 16M, which the TLB nearly reaches"
        ));
    }
    Ok(footprint)
}

//! `churn`: maps memory, fills it and gives it back, over and over.
//!
//! Mappings vanish between a tracker's look and its act, so a tracker that promotes them wastes its work.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Result;
use superhue_model::ByteCount;

use crate::memory::Mapping;
use crate::{Report, args};

/// Options of `churn`.
#[derive(Debug, Clone, clap::Args)]
pub struct ChurnOptions {
    /// Memory to map and fill each time
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = args::size)]
    pub size: ByteCount,
    /// Time to run
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = args::seconds)]
    pub seconds: Duration,
}

/// Maps, fills and unmaps memory, at least once.
///
/// Prints `rounds` and `throughput_mib_per_second` (memory filled per second).
///
/// # Errors
/// If there is not enough memory or the output is closed.
pub fn run(options: &ChurnOptions, report: &mut Report<impl Write>) -> Result<()> {
    let start = Instant::now();
    let mut rounds = 0_u32;
    let mut filled = 0.0;
    loop {
        let mapping = Mapping::to_fill(options.size)?;
        mapping.fill();
        rounds += 1;
        filled += mapping.size().mib();
        if start.elapsed() >= options.seconds {
            break;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    report.line("rounds", rounds)?;
    report.number("throughput_mib_per_second", filled / seconds)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_round_is_the_least() {
        let options = ChurnOptions {
            size: ByteCount(1 << 20),
            seconds: Duration::ZERO,
        };
        let mut text = Vec::new();
        run(&options, &mut Report::new(&mut text)).unwrap();
        assert!(text.starts_with(b"rounds 1\n"));
    }
}

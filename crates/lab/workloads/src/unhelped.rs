//! `unhelped`: a program that huge pages make no faster.
//!
//! The program goes over its memory block by block, and over each block many times before the next. After the first
//! time, a block (128 KiB: 32 base pages) is in the second-level cache and its pages are in the first-level TLB, so the
//! page size matters for one access in tens of thousands. Blocked matrix products, compressors and encoders work like
//! this. The right policy is to do nothing: collapsing costs time, although a tracker of accesses sees every page touched.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Result;
use superhue_model::ByteCount;

use crate::access;
use crate::memory::{Mapping, WORDS_PER_PAGE};
use crate::random::scale;
use crate::{Report, args, procfs};

/// Words in a block: 32 pages, half of what the smallest first-level data TLB of present processors maps.
const BLOCK: usize = 32 * WORDS_PER_PAGE;

/// Rounds over a block before the next block.
const ROUNDS: u64 = 64;

/// Options of `unhelped`.
#[derive(Debug, Clone, clap::Args)]
pub struct UnhelpedOptions {
    /// Memory to fill and work on
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = args::size)]
    pub size: ByteCount,
    /// Time to measure
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = args::seconds)]
    pub seconds: Duration,
}

/// Fills the memory, then works on random blocks.
///
/// Prints `throughput_mops` (million words read and written per second) and `rss_bytes`.
///
/// # Errors
/// If there is not enough memory or the output is closed.
pub fn run(options: &UnhelpedOptions, report: &mut Report<impl Write>) -> Result<()> {
    let mapping = Mapping::to_fill(options.size)?;
    mapping.fill();
    let words = mapping.words();
    let blocks = words.len() / BLOCK;
    let block = BLOCK as u64 * ROUNDS;
    let result = access::measure(1, options.seconds, |rng, _count| {
        // Does more than the requested loads in a call, a millisecond's work; the rate is scaled below.
        let start = scale(rng.next_u64(), blocks) * BLOCK;
        work(words.get(start..start + BLOCK).unwrap_or_default())
    })?;
    #[allow(clippy::cast_precision_loss, reason = "a few millions")]
    let per_call = block as f64 / access::BATCH as f64;
    report.number("throughput_mops", result.mops * per_call)?;
    report.line("rss_bytes", procfs::own_rss()?.0)?;
    Ok(())
}

/// Goes over a block [`ROUNDS`] times, and mixes each word with the words before it.
fn work(block: &[AtomicU64]) -> u64 {
    let mut state = 1_u64;
    for _ in 0..ROUNDS {
        for word in block {
            state = state.rotate_left(5) ^ word.load(Relaxed);
            word.store(state | 1, Relaxed);
        }
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_changes_every_word_and_depends_on_them() {
        let block: Vec<AtomicU64> = (0..64).map(AtomicU64::new).collect();
        let first = work(&block);
        assert!(block.iter().all(|word| word.load(Relaxed) != 0));
        assert_ne!(first, work(&block));
    }

    #[test]
    fn the_smallest_memory_has_blocks() {
        let options = UnhelpedOptions {
            size: ByteCount(4096),
            seconds: Duration::ZERO,
        };
        let mut text = Vec::new();
        run(&options, &mut Report::new(&mut text)).unwrap();
        assert!(text.starts_with(b"throughput_mops "));
    }
}

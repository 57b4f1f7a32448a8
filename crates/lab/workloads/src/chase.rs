//! `chase`: a pointer chase over a small hot set, whose pages lie scattered in much memory that is filled once and then
//! left alone.
//!
//! ```text
//!   filled     |....x.......x..x.........x....x...x......|     x: a page of the hot set, drawn at random
//!   chase      one random cycle through all lines of all these pages; each load waits for the one before
//! ```
//!
//! The colors of the hot set's pages decide whether the set stays in the cache.

use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::Result;
use superhue_model::{BASE_PAGE_SIZE, ByteCount};

use crate::memory::{Mapping, WORDS_PER_PAGE};
use crate::random::{XorShift, scale};
use crate::{Report, UsageError, args};

/// Words of a cache line.
const LINE: usize = 8;

/// Options of `chase`.
#[derive(Debug, Clone, clap::Args)]
pub struct ChaseOptions {
    /// Memory to fill
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = args::size)]
    pub size: ByteCount,
    /// Memory to chase over, within that
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = args::size)]
    pub hot: ByteCount,
    /// Time to chase
    #[arg(long, value_name = "SECONDS", default_value = "6", value_parser = args::seconds)]
    pub seconds: Duration,
    /// Time between two reports
    #[arg(long, value_name = "SECONDS", default_value = "0.25", value_parser = args::seconds)]
    pub every: Duration,
    /// Seed of the choice of the hot set's pages
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Fills the memory, then chases.
///
/// Prints `fill_seconds`; at every `--every`, `at_seconds` (since the start of the chase) and `ns_per_load` of the best
/// pass since the last report; at the end `best_ns_per_load`.
///
/// # Errors
/// If there is not enough memory, the hot set is larger than it, or the output is closed.
pub fn run(options: &ChaseOptions, report: &mut Report<impl Write>) -> Result<()> {
    if options.hot.0 > options.size.0 || options.hot.0 < BASE_PAGE_SIZE {
        return Err(UsageError(
            "--hot must be a page at least, and no more than --size".to_owned(),
        )
        .into());
    }
    let begun = Instant::now();
    let mapping = Mapping::to_fill(options.size)?;
    mapping.fill();
    report.number("fill_seconds", begun.elapsed().as_secs_f64())?;
    let words = mapping.words();
    let mut rng = XorShift::new(options.seed);
    let mut pages: Vec<usize> = (0..words.len() / WORDS_PER_PAGE).collect();
    shuffle(&mut pages, &mut rng);
    pages.truncate(usize::try_from(options.hot.0 / BASE_PAGE_SIZE)?);
    let mut lines: Vec<usize> = (pages.iter())
        .flat_map(|page| {
            (0..WORDS_PER_PAGE / LINE).map(move |line| page * WORDS_PER_PAGE + line * LINE)
        })
        .collect();
    drop(pages);
    shuffle(&mut lines, &mut rng);
    for (at, next) in lines.iter().zip(lines.iter().cycle().skip(1)) {
        words[*at].store(*next as u64, Relaxed);
    }
    let (loads, mut at) = (lines.len(), lines[0]);
    drop(lines);
    let begun = Instant::now();
    let (mut next, mut best, mut of_all) = (options.every, f64::MAX, f64::MAX);
    loop {
        let pass = Instant::now();
        for _ in 0..loads {
            at = words[at].load(Relaxed) as usize;
        }
        #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
        let each = pass.elapsed().as_nanos() as f64 / loads as f64;
        best = best.min(each);
        of_all = of_all.min(each);
        let elapsed = begun.elapsed();
        if elapsed >= next {
            report.number("at_seconds", elapsed.as_secs_f64())?;
            report.number("ns_per_load", best)?;
            best = f64::MAX;
            next += options.every;
        }
        if elapsed >= options.seconds {
            break;
        }
    }
    std::hint::black_box(at);
    report.number("best_ns_per_load", of_all)?;
    Ok(())
}

/// Shuffles by the method of Fisher and Yates.
fn shuffle(items: &mut [usize], rng: &mut XorShift) {
    for last in (1..items.len()).rev() {
        items.swap(last, scale(rng.next_u64(), last + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hot_set_larger_than_all_memory_is_refused_and_a_small_one_chased() {
        let mut options = ChaseOptions {
            size: ByteCount(2 << 20),
            hot: ByteCount(4 << 20),
            seconds: Duration::ZERO,
            every: Duration::ZERO,
            seed: 1,
        };
        let mut out = Vec::new();
        assert!(run(&options, &mut Report::new(&mut out)).is_err());
        options.hot = ByteCount(64 << 10);
        run(&options, &mut Report::new(&mut out)).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("best_ns_per_load"), "{text}");
    }
}

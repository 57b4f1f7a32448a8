//! `verify`: memory that detects a single word that is lost, stale or in the wrong place.
//!
//! Every word encodes its place and the pass that wrote it:
//!
//! ```text
//!   word = mix(address of the word in the mapping, pass)
//! ```
//!
//! Each thread goes over its pages again and again, checks each word against the pass before and writes the word of the
//! next pass. If the pages are moved meanwhile (collapse, split, compaction, swap), it detects a page that came back as
//! zeroes, an old copy of it (a write lost during the move) and two exchanged pages. Pages are dealt to threads in
//! turn, so that all threads write to every region while it is moved.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use superhue_model::ByteCount;

use crate::memory::{Mapping, WORDS_PER_PAGE};
use crate::random::mix;
use crate::{Report, args};

/// Options of `verify`.
#[derive(Debug, Clone, clap::Args)]
pub struct VerifyOptions {
    /// Memory to write and check
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = args::size)]
    pub size: ByteCount,
    /// Time to run
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = args::seconds)]
    pub seconds: Duration,
    /// Threads that write and check
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
}

/// Counts of the checks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Checks {
    checked_words: u64,
    mismatches: u64,
    passes: u64,
}

/// Writes, then checks and rewrites until the time expires, at least once.
///
/// Prints `checked_bytes`, `passes` (of the slowest thread) and `mismatches` (words).
///
/// # Errors
/// If a word was wrong, there is not enough memory, or the output is closed.
pub fn run(options: &VerifyOptions, report: &mut Report<impl Write>) -> Result<()> {
    let mapping = Mapping::to_fill(options.size)?;
    let threads = usize::from(options.threads);
    let deadline = Instant::now() + options.seconds;
    let tallies = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|first| {
                let words = mapping.words();
                scope.spawn(move || work(words, first, threads, deadline))
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| {
                worker
                    .join()
                    .map_err(|_| anyhow!("a checking thread panicked"))
            })
            .collect::<Result<Vec<_>>>()
    })?;
    let checked: u64 = tallies.iter().map(|tally| tally.checked_words).sum();
    let mismatches: u64 = tallies.iter().map(|tally| tally.mismatches).sum();
    report.line("checked_bytes", checked * 8)?;
    let passes = tallies.iter().map(|tally| tally.passes).min();
    report.line("passes", passes.unwrap_or(0))?;
    report.line("mismatches", mismatches)?;
    if mismatches > 0 {
        bail!("{mismatches} words did not hold what had been written to them");
    }
    Ok(())
}

/// Does the work of one thread on the words of the mapping: pages `first`, `first + step`, `first + 2 * step`, ...
fn work(words: &[AtomicU64], first: usize, step: usize, deadline: Instant) -> Checks {
    let mut tally = Checks::default();
    let pages = || {
        let pages = words.chunks_exact(WORDS_PER_PAGE).enumerate();
        pages.skip(first).step_by(step)
    };
    for (number, page) in pages() {
        write(page, number, 0);
    }
    loop {
        for (number, page) in pages() {
            tally.mismatches += check(page, number, tally.passes);
            tally.checked_words += page.len() as u64;
            write(page, number, tally.passes + 1);
        }
        tally.passes += 1;
        if Instant::now() >= deadline {
            return tally;
        }
    }
}

/// Value of word `index` of page `number` after `pass`.
fn expected(number: usize, index: usize, pass: u64) -> u64 {
    mix((number * WORDS_PER_PAGE + index) as u64 ^ mix(pass))
}

fn write(page: &[AtomicU64], number: usize, pass: u64) {
    for (index, word) in page.iter().enumerate() {
        word.store(expected(number, index, pass), Relaxed);
    }
}

/// Number of words of the page that do not have the value of `pass`.
fn check(page: &[AtomicU64], number: usize, pass: u64) -> u64 {
    page.iter()
        .enumerate()
        .map(|(index, word)| u64::from(word.load(Relaxed) != expected(number, index, pass)))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_checked_by_one_thread() {
        let options = VerifyOptions {
            size: ByteCount(4 << 20),
            seconds: Duration::ZERO,
            threads: 3,
        };
        let mut text = Vec::new();
        run(&options, &mut Report::new(&mut text)).unwrap();
        let text = String::from_utf8(text).unwrap();
        // At least one pass each, even though the time expires before the first.
        assert_eq!(text, "checked_bytes 4194304\npasses 1\nmismatches 0\n");
    }

    #[test]
    fn lost_stale_and_misplaced_words_are_noticed() {
        let mapping = Mapping::new(ByteCount(2 << 20)).unwrap();
        let pages: Vec<_> = mapping.pages().collect();
        let pass = 5;
        for (number, page) in pages.iter().enumerate() {
            write(page, number, pass);
        }
        assert_eq!(check(pages[3], 3, pass), 0);
        pages[3][100].store(0, Relaxed);
        assert_eq!(check(pages[3], 3, pass), 1, "one word lost");
        write(pages[4], 4, pass - 1);
        assert_eq!(check(pages[4], 4, pass), 512, "a stale page");
        write(pages[5], 6, pass);
        assert_eq!(check(pages[5], 5, pass), 512, "another page in its place");
    }
}

//! Cost of a page: the kernel's own fault, and every way of placing one. Prints JSON.
//!
//! `cargo run --release -p superhue-color --example move_cost [ROUNDS]`. Every round tries the ways in turn, so that
//! other work on the machine affects all of them. The cost of finding colors is left out: the oracle here knows them.
#![allow(clippy::print_stdout, reason = "that is what it is for")]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures for people"
)]

#[path = "../tests/it/support.rs"]
#[allow(
    dead_code,
    clippy::unwrap_used,
    reason = "helpers of tests, of which this needs some"
)]
mod support;

use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use superhue_color::Page;
use superhue_color::choice::Walk;
use superhue_color::oracles::{Oracle, OracleError, OracleKind};
use superhue_color::place::Placer;
use superhue_model::Color;

use support::{Memory, placer, pool, walk};

const COLORS: usize = 32;
/// Pages placed at a time: 16 MiB.
const PAGES: usize = 4096;

/// Consecutive pages have consecutive colors (as inside a huge page), or any color (as base pages have).
struct KnownColors {
    in_rows: bool,
}

impl Oracle for KnownColors {
    fn kind(&self) -> OracleKind {
        OracleKind::Measured
    }

    fn colors(&self) -> usize {
        COLORS
    }

    fn classify(
        &mut self,
        pages: &[Page],
        colors: &mut [Option<Color>],
    ) -> Result<(), OracleError> {
        for (page, color) in pages.iter().zip(colors) {
            let number = (page.address() / support::PAGE) as u64;
            let number = if self.in_rows {
                number
            } else {
                number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40
            };
            *color = Some(Color((number % COLORS as u64) as u16));
        }
        Ok(())
    }
}

/// A pool with enough for `PAGES` in the order of the walk.
fn full_pool(placer: &mut Placer, oracle: &mut KnownColors, walk: &Walk) -> bool {
    while (0..COLORS).any(|color| placer.pool().count(Color(color as u16)) < PAGES / COLORS) {
        if placer.pool().refill(oracle).is_err() {
            break;
        }
    }
    placer.pool().provide(walk, 1, oracle).is_ok()
}

fn touch(memory: &Memory) {
    for page in 0..memory.pages {
        memory.word(page, 0).store(1, Relaxed);
    }
}

/// Microseconds a page.
fn timed(work: impl FnOnce() -> u64) -> Option<f64> {
    let start = Instant::now();
    let pages = work();
    (pages == PAGES as u64).then(|| start.elapsed().as_secs_f64() * 1e6 / PAGES as f64)
}

fn kernel_fault() -> Option<f64> {
    let memory = Memory::new(PAGES);
    timed(|| {
        touch(&memory);
        PAGES as u64
    })
}

fn populate() -> Option<f64> {
    let memory = Memory::new(PAGES);
    timed(|| {
        memory.advise(libc::MADV_POPULATE_WRITE);
        PAGES as u64
    })
}

/// Filling the pool: populating and sorting.
fn refill(placer: &mut Placer) -> Option<f64> {
    let mut oracle = KnownColors { in_rows: false };
    placer.pool().release();
    let before = placer.pool().held().0;
    let start = Instant::now();
    while placer.pool().held().0 - before < PAGES as u64 {
        placer.pool().refill(&mut oracle).ok()?;
    }
    Some(start.elapsed().as_secs_f64() * 1e6 / (placer.pool().held().0 - before) as f64)
}

fn place(placer: &mut Placer, in_rows: bool) -> Option<f64> {
    let (mut oracle, mut walk) = (KnownColors { in_rows }, walk("spread", COLORS));
    placer.pool().release();
    if !full_pool(placer, &mut oracle, &walk) {
        return None;
    }
    let memory = Memory::new(PAGES);
    let range = memory.range();
    timed(|| {
        let placed = placer.fill(range, &mut walk, &mut oracle);
        placed.map_or(0, |placed| placed.placed.0)
    })
}

/// Median, and the 10th and 90th percentiles of the samples.
fn summary(samples: &[Option<f64>]) -> serde_json::Value {
    let mut known: Vec<f64> = samples.iter().flatten().copied().collect();
    known.sort_by(f64::total_cmp);
    let at = |share: f64| known.get(((known.len() as f64 - 1.0) * share).round() as usize);
    serde_json::json!({
        "median": at(0.5), "p10": at(0.1), "p90": at(0.9), "samples": samples,
    })
}

fn main() -> ExitCode {
    let asked = std::env::args()
        .nth(1)
        .and_then(|rounds| rounds.parse().ok());
    let rounds: usize = asked.unwrap_or(30);
    let Some(mut placer) = placer(pool(1024, 32768, COLORS)) else {
        return ExitCode::FAILURE;
    };
    // A frame that the host has not backed yet costs ten times what is measured here.
    touch(&Memory::new(65536));
    let names = [
        "kernel_base_page_fault",
        "kernel_madv_populate_write",
        "pool_refill",
        "pool_to_placed_single",
        "pool_to_placed_in_runs",
    ];
    let mut samples = vec![Vec::with_capacity(rounds); names.len()];
    for _ in 0..rounds {
        let round = [
            kernel_fault(),
            populate(),
            refill(&mut placer),
            place(&mut placer, false),
            place(&mut placer, true),
        ];
        for (samples, sample) in samples.iter_mut().zip(round) {
            samples.push(sample);
        }
    }
    let ratios = |at: usize| -> Vec<Option<f64>> {
        (samples[at].iter().zip(&samples[0]))
            .map(|(ours, kernel)| Some((*ours)? / (*kernel)?))
            .collect()
    };
    let costs: serde_json::Map<String, serde_json::Value> = (names.iter().zip(&samples))
        .map(|(name, samples)| ((*name).to_owned(), summary(samples)))
        .collect();
    let report = serde_json::json!({
        "what": "microseconds per 4 KiB page, 16 MiB at a time, telling colors left out",
        "command": format!("cargo run --release -p superhue-color --example move_cost {rounds}"),
        "kernel": rustix::system::uname().release().to_string_lossy(),
        "cpus": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "rounds": rounds,
        "costs": costs,
        "pool_to_placed_single_against_kernel_fault": summary(&ratios(3)),
        "pool_to_placed_in_runs_against_kernel_fault": summary(&ratios(4)),
    });
    println!("{report:#}");
    ExitCode::SUCCESS
}

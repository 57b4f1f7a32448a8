//! The checker of `tests/moving.rs`, for as many moves as asked for: prints what happened as JSON.
//!
//! `cargo run --release -p superhue-color --example soak_moves [MOVES]` (10 million if not said). Fails if a byte was lost.
#![allow(clippy::print_stdout, reason = "that is what it is for")]

#[path = "../tests/checker/mod.rs"]
mod checker;
#[path = "../tests/support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use support::heap::Heap;
use support::{FakeOracle, placer, pool, walk};

#[global_allocator]
static HEAP: Heap = Heap::new();

const COLORS: usize = 32;

fn main() -> ExitCode {
    let asked = std::env::args().nth(1).and_then(|moves| moves.parse().ok());
    let moves = asked.unwrap_or(10_000_000);
    let Some(mut placer) = placer(pool(1024, 16384, COLORS)) else {
        return ExitCode::FAILURE;
    };
    let mut oracle = FakeOracle::new(COLORS);
    let mut walk = walk("spread", COLORS);
    let start = Instant::now();
    let (done, tally) = checker::run(moves, &mut placer, &mut walk, &mut oracle);
    let seconds = start.elapsed().as_secs_f64();
    let count = |counter: &AtomicU64| counter.load(Relaxed);
    let refused: serde_json::Map<String, serde_json::Value> = (done.replaced.pages.refused.iter())
        .map(|(why, pages)| (why.name().to_owned(), pages.0.into()))
        .collect();
    let kernel = rustix::system::uname();
    let report = serde_json::json!({
        "what": "page moves under a program that checks every byte it uses",
        "command": format!("cargo run --release -p superhue-color --example soak_moves {moves}"),
        "kernel": kernel.release().to_string_lossy(),
        "cpus": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "seconds": seconds,
        "page_moves": done.moves,
        "pages_replaced": done.replaced.pages.placed.0,
        "pages_moved_back": done.replaced.pages.already.0,
        "faults_answered_meanwhile": done.replaced.faults.0,
        "pages_left_by_reason": refused,
        "moves_the_kernel_denied_and_had_made": done.denied,
        "rounds": done.rounds,
        "program": {
            "checked_word_writes": count(&tally.writes),
            "system_calls_through_pages": count(&tally.calls),
            "direct_reads_and_writes": count(&tally.direct),
            "mapping_changes": count(&tally.mappings),
            "forks": count(&tally.forks),
            "threads_started_and_joined": count(&tally.threads),
        },
        "corrupted_bytes": count(&tally.corrupted),
        "unexpected_errors": count(&tally.errors) + done.failures.len() as u64 + done.replaced.lost,
        "failures": done.failures,
    });
    println!("{report:#}");
    let clean = count(&tally.corrupted) + count(&tally.errors) + done.replaced.lost == 0;
    if clean && done.failures.is_empty() && done.moves >= moves {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

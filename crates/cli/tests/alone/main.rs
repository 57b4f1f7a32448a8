//! Tests that disturb all others on the machine, so they have a program of their own: cargo runs one program after the other.
//!
//! `hostile.rs` has rules for users that other tests run as, and processes that hold up every reader. `journal.rs` changes
//! the machine's huge page settings and kills superhues whose journals any other superhue would find. `advise.rs` tracks every
//! busy process. `trial.rs` makes swap in memory.
//!
//! What the lock protects ([`superhue_testing::alone`]): the machine.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests, of which clippy sees only the functions as such"
)]

mod advise;
mod hostile;
mod journal;
mod settings;
#[path = "../support/mod.rs"]
mod support;
mod trial;

//! Plans performed on real processes, and swap of our own on the real machine.
//!
//! What the lock protects ([`superhue_testing::alone`]): while a child lives that was forked from this process, both share the
//! huge pages of this process, and the kernel leaves those whole.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests, of which clippy sees only the functions as such; children talk on their standard output"
)]

mod reach;
mod split;
mod swap;

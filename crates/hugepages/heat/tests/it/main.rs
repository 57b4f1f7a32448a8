//! The trackers on a live kernel.
//!
//! What the lock protects ([`superhue_testing::alone`]): DAMON exists once on a machine, and the huge page switch and the
//! accessed bits exist once in this process. Children inherit the switch.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed; what is measured and skipped is said on standard output"
)]

mod heat_live;
mod ptwalk;

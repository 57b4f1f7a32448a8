//! The command from the outside: what it prints, writes, refuses, and leaves as it was.
//!
//! What the lock protects ([`superhue_testing::alone`]): swap that a test makes, and its journal in a folder that all superhues
//! share; and the accesses of this very process, which one superhue at a time may track.
//!
//! `tests/alone` has the tests that would disturb these.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests, of which clippy sees only the functions as such"
)]

mod allocator;
mod attach;
mod bad_input;
mod bench;
mod cache_allocation;
mod cannot;
mod colors;
mod colors_faults;
mod colors_kernel;
mod colors_plan;
mod command_line;
mod compare;
mod compare_ci;
mod cut_short;
mod daemon;
mod design;
mod file_capability;
mod filling;
mod given_back;
mod heat;
mod lab;
mod limits;
mod metrics;
mod schemas;
mod shared;
mod signals;
mod suite;
#[path = "../support/mod.rs"]
mod support;
mod top;
mod top_record;
mod track;
mod tracking_faults;
mod transparency;
mod trial;
mod users;
mod why;

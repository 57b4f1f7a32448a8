//! Processes as data: recorded ones, those of this machine, and the pages of this very process.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed"
)]

mod fixtures;
mod live;
mod pages;
mod support;
mod zeroes;

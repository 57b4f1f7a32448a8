//! Pictures of heat and of latencies.

#![allow(
    clippy::unwrap_used,
    reason = "tests, of which clippy sees only the functions as such"
)]

mod pictures;
mod support;

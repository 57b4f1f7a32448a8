//! Programs in C built against libsuperhue and its headers.

#![allow(
    clippy::unwrap_used,
    reason = "tests, of which clippy sees only the functions as such"
)]

mod application;
mod colored;
mod compile;
#[path = "../../../track/tests/it/support.rs"]
mod support;

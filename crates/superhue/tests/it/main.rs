//! The public interface against the running kernel.

#![allow(
    clippy::unwrap_used,
    reason = "tests, of which clippy sees only the functions as such"
)]

mod probe;
mod support;

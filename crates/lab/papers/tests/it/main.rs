//! Figures, traces and the witness: replays on models of machines, and their documents.

#![allow(
    clippy::unwrap_used,
    reason = "tests, of which clippy sees only the functions as such"
)]

mod figures;
mod trace;
mod witness;

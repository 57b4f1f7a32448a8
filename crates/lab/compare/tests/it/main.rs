//! Comparisons from samples to verdicts, gates, tables and files, on machines that `simulation.rs` imagines.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests, of which clippy sees only the functions as such"
)]

mod document;
mod exported;
mod false_alarms;
mod gates;
mod sequence;
mod shown;
mod simulation;
mod suites;
mod verdicts;

//! Policies against a small model of the kernel: processes whose pages come and go, collapses that add pages, and every way in which a collapse may
//! fail.
//!
//! `kernel.rs` is the model. `harness.rs` runs a policy on it, and checks each plan against rules written down a second time, independently of the
//! policies. `sampler.rs` stands for the tracker.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test helper that cannot go on should fail its test"
)]

mod back_off;
mod bounded;
mod examples;
mod fairness;
mod harness;
mod hostile;
mod hot;
mod kernel;
mod progress;
mod safety;
mod sampler;
mod stall;

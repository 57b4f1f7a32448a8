//! The workloads as commands, and the load generator against a server in this process.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests, of which clippy sees only the functions as such"
)]

mod command;
mod load;

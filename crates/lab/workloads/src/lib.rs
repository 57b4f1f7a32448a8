//! Programs that use memory in known ways, to measure Superhue on them.
//!
//! Each subcommand of `superhue-workload` is one small module here. Three families:
//!
//! - *Memory programs* do one thing to anonymous memory and report the result: [`dense`] (random loads over memory that
//!   huge pages suit), [`sparse`] (memory that huge pages only bloat), [`hold`], [`grow`], [`churn`], [`tree`] (shapes
//!   that a tracker must cope with), [`prefork`] (memory that processes share since a fork), [`verify`] (notices a
//!   single lost byte while its pages are moved) and [`stalls`] (measures the time for which others hold it up).
//! - *Memory programs with a hot part*: [`pattern`] (the microbenchmark of the HPS paper), [`moving`] (the hot part
//!   moves every ten seconds), [`waste`] (most of the memory is nearly full and cold), [`paced`] (accesses at a given
//!   rate) and [`unhelped`] (no page size makes it faster). The first four go over pages in a given [`order`], all but
//!   the first over memory with holes ([`parts`]).
//! - [`load`] drives a real `memcached` or `redis-server` with skewed reads.
//!
//! All of them end by themselves, take sizes as `2G` and times as `100ms`, and print lines of the form `name value`
//! ([`Report`]), or JSON objects where many figures belong together. A `compare` can read both with one regular
//! expression. They never ask for huge pages themselves unless an option demands it: the system, or Superhue, decides.
//!
//! ```
//! use std::time::Duration;
//!
//! use superhue_model::ByteCount;
//! use superhue_workloads::{Report, verify};
//!
//! let options = verify::VerifyOptions { size: ByteCount(4 << 20), seconds: Duration::ZERO, threads: 2 };
//! let mut said = Vec::new();
//! verify::run(&options, &mut Report::new(&mut said))?;
//! assert_eq!(said, b"checked_bytes 4194304\npasses 1\nmismatches 0\n");
//! # Ok::<(), anyhow::Error>(())
//! ```
//!
//! The library exists for the tests and for programs that embed a workload; the command is the
//! interface.

pub mod access;
pub mod args;
pub mod chase;
pub mod churn;
pub mod coverage;
pub mod dense;
pub mod grow;
pub mod hold;
pub mod load;
pub mod memory;
pub mod moving;
pub mod order;
pub mod paced;
pub mod parts;
pub mod pattern;
pub mod prefork;
pub mod procfs;
pub mod random;
mod report;
pub mod sparse;
pub mod stalls;
pub mod tree;
pub mod unhelped;
pub mod verify;
pub mod waste;

pub use report::Report;

/// Arguments that are each valid but contradict each other. Exit status 2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

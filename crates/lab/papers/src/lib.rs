//! The lab: every figure of the papers, on models of the machines that they were measured on.
//!
//! ```text
//!   frames that real kernels dealt ──> Memory ──> Placement ──┐
//!   (or drawn by their rules)             arm, bytes, draw    ├──> System ──> counts ──> Figure
//!   a paper's loop (workload.rs) ── loads and stores ─────────┘                            │
//!                                                                   Document (JSON) <──────┤
//!                                              table, picture, docs/lab/README.md  <───────┘
//! ```
//!
//! ```
//! use superhue_papers::figure::{self, Settings};
//! use superhue_papers::memory::Memory;
//!
//! let rule = figure::named("p1-rule").unwrap();
//! let settings = Settings { quick: true, draws: Some(1), machine: None, plugin: "/usr/lib/superhue/trace.so".into() };
//! let figure = rule.make(&settings, &Memory::drawn(1))?;
//! // Half of the colors, and 384 KiB in them: only those by the rule leave a private cache of 512 KiB whole.
//! let misses = |arm| figure.result("384K", arm).unwrap().misses.median;
//! assert_eq!((misses("halves"), misses("no-rule")), (0.0, 125.0));
//! # Ok::<(), superhue_papers::ReplayError>(())
//! ```
//!
//! Coloring changes luck, so the lab replays each point over many draws, and reports their median, worst and spread.
//! Misses come first: they are counted. Modelled time is a weighted sum of counts by the costs that the machine's file
//! declares.
//!
//! A user's own program is replayed while it runs ([`program`]), on frames that are drawn.
//!
//! The same seed and the same frames give the same document, byte for byte.

pub mod arm;
pub mod document;
pub mod figure;
pub mod memory;
pub mod native;
mod number;
mod outcome;
pub mod page;
mod parallel;
pub mod picture;
pub mod program;
pub mod table;
pub mod witness;
pub mod workload;

pub use superhue_cachesim as cachesim;

/// Reason why the lab cannot do something. The text also describes how to change it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ReplayError(pub String);

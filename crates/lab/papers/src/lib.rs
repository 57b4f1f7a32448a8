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
//! What coloring changes is luck, so each point is replayed over many draws, and what is told is their
//! median, worst and spread. Misses come first: they are counted. Modelled time is a weighted sum of
//! counts by the costs that the machine's file declares.
//!
//! The same seed and the same frames give the same document, byte for byte.

pub mod arm;
pub mod document;
pub mod figure;
pub mod memory;
pub mod native;
pub mod page;
mod parallel;
pub mod picture;
pub mod table;
pub mod witness;
pub mod workload;

pub use superhue_cachesim as cachesim;

/// Why the lab cannot do something. The text says what, and how to change it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Trouble(pub String);

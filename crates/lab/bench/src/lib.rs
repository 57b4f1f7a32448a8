//! The workloads of the papers on page coloring, measured over many fresh allocations.
//!
//! What colors change is luck: how many pages of a working set fall on the same cache sets depends on the
//! frames that a process was dealt. So one run says nothing. Every figure here is measured over many *fresh
//! allocations*, in the arms' turns, and what is told is the spread between allocations as well as the median.
//!
//! ```text
//!   Workload x Point (size) ──> for each round, for each arm in a balanced order:
//!                                 frames   so that the same frames are not dealt again
//!                                 allocate as the arm says (arm.rs, allocate.rs, painter.rs)
//!                                 passes   time the same work several times (measure.rs)
//!   isolation               ──> jobs of a victim while a partner has the CPU in between (isolation/)
//!             │
//!             v
//!   Document (JSON) ──> table, plot, findings: from the document alone
//! ```
//!
//! The workloads are plain safe Rust over slices: the same machine code for every arm, which differ in the
//! frames under the slices and in nothing else.

pub mod allocate;
pub mod arm;
pub mod buffer;
mod clock;
pub mod colors;
pub mod document;
mod fftw;
pub mod findings;
pub mod frames;
pub mod isolation;
pub mod json;
pub mod machine;
pub mod measure;
pub mod painter;
pub mod plot;
pub mod summary;
pub mod table;
pub mod verify;
pub mod workload;

/// Why something could not be measured. The text says what, and where it can be, how to change it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Trouble(pub String);

impl Trouble {
    /// Puts what was being done before the reason.
    #[must_use]
    pub fn during(doing: &str, reason: impl std::fmt::Display) -> Self {
        Self(format!("{doing}: {reason}"))
    }
}

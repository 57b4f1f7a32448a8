//! The workloads of the papers on page coloring, measured over many fresh allocations.
//!
//! Colors change luck: the number of pages of a working set that fall on the same cache sets depends on the frames that
//! the kernel dealt to the process. So one run proves nothing. The crate measures every figure over many *fresh
//! allocations*, with the arms in turns, and reports the spread between allocations as well as the median.
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
//! One measurement, without turns and colors:
//!
//! ```
//! use std::time::Instant;
//!
//! use rand::SeedableRng;
//! use rand::rngs::Xoshiro256PlusPlus;
//! use superhue_bench::buffer::Buffer;
//! use superhue_bench::workload::{self, Point};
//!
//! let mut chase = workload::all().remove(0);
//! let bytes = 32 << 10;
//! let point = Point { label: "L1".to_owned(), parameter: bytes, bytes, level: 1, share: 1.0 };
//! let mut memory = Buffer::new(point.size())?;
//! chase.prepare(&point, &mut memory, &mut Xoshiro256PlusPlus::seed_from_u64(1))?;
//!
//! let begun = Instant::now();
//! chase.work(&point, &mut memory, 10);
//! let (loads, seconds) = (10.0 * chase.amount(&point), begun.elapsed().as_secs_f64());
//! println!("{:.2} {}", chase.figure().of(loads, seconds), chase.figure().unit); // 1.05 ns/load, say
//! assert_eq!(loads, 10.0 * 512.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The workloads are plain safe Rust over slices. Every arm runs the same machine code; arms differ only in the frames
//! under the slices.

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
pub mod table;
pub mod verify;
pub mod workload;

/// Reason why something could not be measured. The text gives the reason and, if there is one, a way to change it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BenchError(pub String);

impl BenchError {
    /// Puts the failed operation before the reason.
    #[must_use]
    pub fn during(doing: &str, reason: impl std::fmt::Display) -> Self {
        Self(format!("{doing}: {reason}"))
    }
}

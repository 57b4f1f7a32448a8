//! Page colors inside one process: find them, decide which pages get which color, move pages into frames of that color.
//!
//! A page's color is the part of a cache's set index that its frame decides: pages of one color compete for the same
//! sets. The kernel decides which frames a process gets, and a VM does not know which host frames back its memory. So
//! colors are *measured*, on pages of our own, and pages are *moved* into the frames they should have. Both are
//! possible only inside the process that owns the memory, so one crate holds all of it. The same code serves a program
//! that links it, `superhue colors`, `superhue bench` and the visiting process.
//!
//! ```text
//!   oracles   Probe ──> Palette ──> Oracle: pages -> colors
//!   choice                          Walk:   which color comes next; balance: which hot pages are too many of theirs
//!   place     Pool of classified pages ──> Placer ──UFFDIO_MOVE──> the program's memory
//!   kernel    what a kernel with page coloring lets the caller do
//!   plan      tasks, their schedule, their demands ──> disjoint sets for those that run at the same time
//! ```
//!
//! Pages of this process by color, found by timing alone:
//!
//! ```no_run
//! use superhue_color::oracles::{Backing, HardwareProbe, Palette, Sample, Search};
//! use superhue_model::ByteCount;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let sample = Sample::new(ByteCount(32 << 20), Backing::BasePages)?;
//! let mut probe = HardwareProbe::new()?;
//! let palette = Palette::discover(&mut probe, sample.pages(), &Search::default())?;
//! println!("{} colors", palette.colors());
//! # Ok(())
//! # }
//! ```

pub mod chase;
pub mod choice;
pub mod kernel;
pub mod oracles;
mod page;
pub mod place;
pub mod plan;
pub mod walks;

pub use page::Page;

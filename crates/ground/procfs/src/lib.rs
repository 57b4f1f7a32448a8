//! Kernel files and hardware as data. This crate only reads and changes nothing.
//!
//! Every reader takes a root (see [`Roots`]), so that tests feed it trees recorded on other machines, and every reader's parser
//! takes bytes, so that fuzzing feeds it nonsense: malformed input is an error, never a panic.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use superhue_procfs::Roots;
//! use superhue_procfs::process::{identify, maps, memory_use};
//!
//! let (roots, pid) = (Roots::default(), std::process::id());
//! let regions: usize = maps(&roots, pid)?.iter().map(|vma| vma.range.regions().count()).sum();
//! println!("{}: {:?}, {regions} aligned windows of 2 MiB", identify(&roots, pid)?, memory_use(&roots, pid)?);
//! # Ok(())
//! # }
//! ```
//!
//! * [`process`]: one process: identity, memory map, resident and huge-mapped pages.
//! * [`cgroup`]: the processes of a control group.
//! * [`system`]: settings and counters of huge pages, free memory by order.
//! * [`hardware`]: caches, TLB reach, hypervisor, and a verdict on what they report.

pub mod cgroup;
mod error;
pub mod hardware;
mod mounts;
pub mod process;
mod root;
pub mod system;

pub use error::{PROCESS_REMEDY, ReadError};
pub use root::Roots;

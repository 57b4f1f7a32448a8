//! Kernel and hardware to [`Snapshot`](superhue_model::Snapshot): what is there.
//!
//! Nothing in this crate changes anything, but for the accessed bits that [`heat`] clears. Every reader takes a root (see [`Roots`]), so that tests
//! feed it trees recorded on other machines, and every reader's parser takes bytes, so that fuzzing
//! feeds it nonsense: malformed input is an error, never a panic.
//!
//! * [`process`]: one process: identity, memory map, resident and huge-mapped pages.
//! * [`cgroup`]: the processes of a control group.
//! * [`system`]: superpage settings and counters, free memory by order.
//! * [`coloring`]: what a kernel with page coloring lets this caller do.
//! * [`heat`]: which pages are accessed, by three kinds of trackers.
//! * [`hardware`]: caches, TLB reach, hypervisor, and whether what they claim is usable.
//! * [`probe`]: what the kernel lets *this* caller do, found out by trying it on scratch memory.
//! * [`Allowance`]: what observing may cost.

mod allowance;
pub mod cgroup;
pub mod coloring;
mod error;
pub mod hardware;
pub mod heat;
mod mounts;
pub mod probe;
pub mod process;
mod root;
pub mod system;

pub use allowance::Allowance;
pub use error::ReadError;
pub use root::Roots;

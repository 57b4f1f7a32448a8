//! Cost of a program's references on a cache and a TLB, given the frames of its pages.
//!
//! ```text
//!   machine file ──> Machine ──┐
//!                              ├──> System ──> Counts ──> modelled cycles
//!   Placement (page -> frame) ─┤      ^
//!   loads and stores ──────────┘──────┘
//! ```
//!
//! The models are pure and deterministic: the same machine, placement and references give the same counts on any
//! computer. A [`Machine`] has caches that are indexed by physical address (set-associative, with sectors, hashed
//! slices, private or shared by cores, inclusive or not), TLBs for pages of two sizes, walks of the page table that go
//! through the caches, and declared costs. A [`Placement`] maps a program's pages to frames; the frames are drawn at
//! random, in sequence or by color, or read from a dump of a real kernel ([`dump`]). A [`space::Space`] is for programs
//! whose pages become known only when they touch them.
//!
//! The models leave out instructions and their fetches, prefetching, references that overlap, the bus, and memory
//! banks. So misses are counts, and modelled cycles are a weighted sum of counts and nothing more.
//!
//! ```
//! use superhue_cachesim::{Machine, Placement, System, machines};
//!
//! let machine = Machine::parse("celeron-900.toml", machines::CELERON_900).unwrap();
//! let pages = Placement::sequential(32, 4096, 0);
//! let mut system = System::new(&machine);
//! for at in (0..128 * 1024).step_by(8) {
//!     system.load(0, &pages, at);
//! }
//! // 128 KiB in lines of 32 bytes, each fetched once; four lines of entries of the page table, and one above them.
//! let counts = system.counts(0);
//! assert_eq!((counts.memory, counts.walk_memory), (4096, 4 + 1));
//! ```

pub mod cache;
pub mod dump;
pub mod machine;
pub mod machines;
pub mod placement;
mod random;
pub mod space;
pub mod system;
pub mod tlb;

pub use machine::{Machine, MachineError};
pub use placement::{Pages, Placement};
pub use random::Random;
pub use system::{Counts, System};

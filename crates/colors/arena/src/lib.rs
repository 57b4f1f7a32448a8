//! For applications: memory in chosen page colors, and the colors of existing memory.
//!
//! Pages of one color compete for the same sets of a cache; pages of different colors never do. So a program whose hot
//! memory has all colors evenly ([`Colors::set`] of `spread`) uses the whole cache, whatever page frames the kernel chose; and
//! two programs with different colors do not evict each other.
//!
//! * [`Colors`]: the machine's colors, found by measurement, without privilege;
//! * [`ColoredArena`]: memory in some of them from the first touch on, as an `Allocator` of `allocator-api2`;
//! * [`Colors::place`]: moves existing memory;
//! * [`Verdict`]: result of an independent test of either.
//!
//! ```no_run
//! use superhue_arena::{ArenaOptions, ColoredArena, Colors};
//!
//! let colors = Colors::open()?;
//! // A control loop on the upper half of the cache; the rest of the program takes the lower one.
//! let own = colors.set("16-31")?;
//! let arena = ColoredArena::new(&colors, &own, ArenaOptions::new().strict(true).locked(true))?;
//! let state = allocator_api2::boxed::Box::new_in([0_f64; 4096], arena.clone());
//! assert!(arena.verify()?.share() > Some(0.99));
//! # Ok::<(), superhue_arena::ColorError>(())
//! ```
//!
//! Colors belong to memory as it lies now: a fork, swapping, merging of equal pages (KSM), compaction and migration of a
//! virtual machine change them. [`ColoredArena::verify`] detects this.

mod allocator;
mod arena;
mod colors;
mod error;
#[cfg(debug_assertions)]
#[doc(hidden)]
pub mod frames;
pub mod gate;
mod heap;
mod judge;
mod measured;
mod options;
mod place;
mod placement;
mod residence;
mod verdict;

pub use arena::{ColoredArena, Usage};
pub use colors::Colors;
pub use error::ColorError;
pub use judge::Judge;
pub use options::ArenaOptions;
pub use placement::Placement;
pub use verdict::Verdict;

pub use superhue_color::oracles::{Oracle, OracleError, OracleKind};
pub use superhue_color::place::Refusal;
pub use superhue_model::{ByteCount, Color, ColorSet, PageCount};

//! Oracles: ways to find the color of a page.
//!
//! Two pages have the same color if they push each other out of the cache. Every other way is a guess, and is tested against that.
//!
//! ```text
//!   time       load a page, load others, time the page again: is it still in the cache?   probe.rs, contrast.rs
//!   hunt       of a pool of pages, those that evict each other: an eviction set is one     hunt.rs, discover.rs
//!              color, and gets a number
//!   keep       the sets of all colors, the palette, in a file that all processes map        palette.rs, shared.rs
//!   classify   which sets push an unknown page out? 7 tests tell 32 colors apart            code.rs, Palette::classify
//!   judge      do pages of one color evict a page of it, and no others?                     judge.rs
//! ```
//!
//! An [`Oracle`] returns the color of a page. [`MeasuredOracle`] works as shown above. [`PfnOracle`] (frame number), [`OffsetOracle`]
//! (place in a huge page) and [`KernelOracle`] (a kernel with our patches) calculate, which is quicker, and wrong in most virtual
//! machines; so [`judge()`] decides by timing whether to trust one. The command tries them in order of cost and takes the first that
//! passes (`crates/cli/src/verb/colors/oracles.rs`).

mod bounded;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod clock;
mod code;
mod contrast;
pub mod curve;
mod discover;
mod file;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod hardware;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[path = "unsupported.rs"]
mod hardware;
mod header;
mod held;
mod hunt;
mod judge;
mod kernel;
mod local;
mod mapping;
mod measured;
mod offset;
mod oracle;
mod pagemap;
mod palette;
mod pfn;
mod pinned;
mod probe;
mod sample;
mod shared;
#[cfg(test)]
mod simulate;
mod usual;

#[cfg(test)]
mod tests;

pub use contrast::Contrast;
pub use curve::{Curve, CurvePoint, cliff};
pub use hardware::HardwareProbe;
pub use header::{Header, HeaderError};
pub use held::PagePins;
pub use judge::{Judgement, Share, Trust, judge};
pub use kernel::KernelOracle;
pub use local::{LocalOracle, judge_here};
pub use mapping::Mapping;
pub use measured::MeasuredOracle;
pub use offset::OffsetOracle;
pub use oracle::{Oracle, OracleError, OracleKind};
pub use pagemap::{Frames, HugePages, Pagemap};
pub use palette::{Agreement, DiscoverError, Palette, Search, SelfTest};
pub use pfn::PfnOracle;
pub use probe::{LINE_SIZE, LINES_OF_PAGE, Lines, Probe, ProbeError};
pub use sample::{Backing, Sample, contrast};
pub use shared::{PaletteConfig, PaletteError, Progress, SharedPalette};
pub use usual::TypicalTrialTime;

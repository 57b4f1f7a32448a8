//! Plain data shared by every stage of Superhue.
//!
//! Superhue works as `observe -> decide -> act`. Each of the three stages depends on this crate and on no other stage,
//! so the compiler enforces the direction in which information flows:
//!
//! ```text
//!   observe:  kernel, hardware  ->  Snapshot      state of the memory
//!   decide:   Snapshot          ->  Plan          changes to make (pure)
//!   act:      Plan              ->  Outcome       result of each change
//! ```
//!
//! ```
//! use superhue_model::{ByteCount, ColorIndex, PAGES_PER_REGION, Pfn, Region, VirtAddr};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let region = Region::containing(VirtAddr(0x7f12_3456_7000));
//! assert_eq!(region.range().len(), "2MiB".parse::<ByteCount>()?);
//! assert_eq!(region.range().len().whole_pages().0, PAGES_PER_REGION);
//! // 1 MiB, 16 ways, 4 KiB pages: 16 page colors, which follow one another.
//! let index = ColorIndex::plain(16)?;
//! assert_eq!(index.color_of(Pfn(0x1_2347)).0, 7);
//! # Ok(())
//! # }
//! ```
//!
//! Nothing here does I/O, reads a clock or needs `unsafe`. A field that the kernel may not offer is
//! an [`Option`], and `None` means "not known", never zero.

mod color;
mod errno;
mod heat;
mod memory;
mod object;
mod outcome;
mod plan;
mod plural;
mod random;
mod region;
mod share;
mod snapshot;
mod units;
pub mod words;

pub use color::{
    Color, ColorIndex, ColorIndexError, ColorRequest, ColorSet, ColorSetError, MAX_COLOR_BITS,
    ParseColorsError, ParseIndexError,
};
pub use errno::Errno;
pub use heat::{PageSet, ProcessHeat, RegionHeat};
pub use memory::Memory;
pub use object::{ObjectId, ObjectPart, ObjectView, Owner};
pub use outcome::{ActionResult, Effect, Outcome, SkipReason};
pub use plan::{Action, CollapseBound, Plan};
pub use plural::counted;
pub use random::Random;
pub use region::{Region, VirtRange};
pub use share::{ParseShareError, Share};
pub use snapshot::{ProcessId, ProcessView, RegionView, Snapshot, TornPage, Vma, VmaKind};
pub use units::{ByteCount, PageCount, ParseSizeError, Pfn, VirtAddr, parse_duration};

/// log2 of the base page size this version works with.
///
/// `superhue check` recognises a kernel with larger base pages (arm64 with 16 or 64 KiB) and refuses it with the
/// reason.
pub const BASE_PAGE_SHIFT: u32 = 12;

/// Bytes in a base page.
pub const BASE_PAGE_SIZE: u64 = 1 << BASE_PAGE_SHIFT;

/// log2 of the huge page size: one page-middle-directory entry maps that much with 4 KiB base pages.
pub const HUGE_PAGE_SHIFT: u32 = 21;

/// Bytes in a huge page, and in a [`Region`].
pub const HUGE_PAGE_SIZE: u64 = 1 << HUGE_PAGE_SHIFT;

/// Base pages in a huge page (`HPAGE_PMD_NR` in the kernel).
pub const PAGES_PER_REGION: u64 = HUGE_PAGE_SIZE / BASE_PAGE_SIZE;

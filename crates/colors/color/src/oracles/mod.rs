//! How the color of a page is found: by timing (eviction sets, palette), by its frame number, by its place in a huge page.

mod bounded;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod clock;
mod code;
mod compact;
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
mod random;
mod sample;
mod shared;
#[cfg(any(test, feature = "simulate"))]
pub mod simulate;

mod usual;

#[cfg(test)]
mod tests;

pub use contrast::Contrast;
pub use curve::{Curve, CurvePoint, cliff};
pub use hardware::HardwareProbe;
pub use header::{Header, HeaderError};
pub use held::Held;
pub use judge::{Judgement, Share, Trust, judge};
pub use kernel::KernelOracle;
pub use local::{LocalOracle, judge_here};
pub use mapping::Mapping;
pub use measured::MeasuredOracle;
pub use offset::OffsetOracle;
pub use oracle::{Oracle, OracleError, OracleKind};
pub use pagemap::{Frames, Pagemap, Superpages};
pub use palette::{Agreement, DiscoverError, Palette, Search, SelfTest};
pub use pfn::PfnOracle;
pub use probe::{LINE_SIZE, LINES_OF_PAGE, Lines, Probe, ProbeError};
pub use sample::{Backing, Sample, contrast};
pub use shared::{PaletteConfig, PaletteError, Progress, SharedPalette};
pub use usual::Usual;

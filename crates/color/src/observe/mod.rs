//! Observing: timing, eviction sets, colors of pages.

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
mod mapping;
mod measured;
mod oracle;
mod palette;
mod pinned;
mod probe;
mod random;
mod shared;
#[cfg(any(test, feature = "simulate"))]
pub mod simulate;

#[cfg(test)]
mod tests;

pub use contrast::Contrast;
pub use curve::{Curve, CurvePoint, cliff};
pub use hardware::HardwareProbe;
pub use header::{Header, HeaderError};
pub use measured::MeasuredOracle;
pub use oracle::{Oracle, OracleError, OracleKind};
pub use palette::{Agreement, DiscoverError, Palette, Search, SelfTest};
pub use probe::{LINE_SIZE, LINES_OF_PAGE, Lines, Probe, ProbeError};
pub use shared::{PaletteConfig, PaletteError, Progress, SharedPalette};

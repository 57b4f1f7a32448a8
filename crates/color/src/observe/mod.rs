//! Observing: timing, eviction sets, colors of pages.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod clock;
mod code;
mod contrast;
mod curve;
mod discover;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod hardware;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[path = "unsupported.rs"]
mod hardware;
mod oracle;
mod palette;
mod probe;
mod random;
#[cfg(any(test, feature = "simulate"))]
pub mod simulate;

#[cfg(test)]
mod tests;

pub use contrast::Contrast;
pub use hardware::HardwareProbe;
pub use oracle::{Oracle, OracleError, OracleKind};
pub use palette::{Agreement, DiscoverError, Palette, Search, SelfTest};
pub use probe::{LINE_SIZE, LINES_OF_PAGE, Lines, Probe, ProbeError};

//! Observing: timing, eviction sets, colors of pages.

mod oracle;
mod palette;
mod probe;

pub use oracle::{Oracle, OracleError, OracleKind};
pub use palette::{Agreement, DiscoverError, Palette, Search};
pub use probe::{HardwareProbe, Lines, Probe, ProbeError};

//! Observing: timing, eviction sets, colors of pages.

mod offset;
mod oracle;
mod pagemap;
mod palette;
mod pfn;
mod probe;
mod sample;

pub use offset::OffsetOracle;
pub use oracle::{Oracle, OracleError, OracleKind};
pub use pagemap::{Frames, Pagemap, Superpages};
pub use palette::{Agreement, DiscoverError, Palette, Search};
pub use pfn::PfnOracle;
pub use probe::{HardwareProbe, Lines, Probe, ProbeError};
pub use sample::{Backing, Sample};

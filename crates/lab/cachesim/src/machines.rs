//! The machines of the papers, and two later ones.

use crate::machine::{Machine, MachineError};

/// Intel Celeron 900 MHz, 128 KiB: P0, P3.
pub const CELERON_900: &str = include_str!("../machines/celeron-900.toml");
/// Intel Pentium 4 1.6 GHz, 512 KiB: P0, P3.
pub const PENTIUM4_1600: &str = include_str!("../machines/pentium4-1600.toml");
/// Alpha 21264, 2 MiB direct-mapped: P2.
pub const ALPHA_21264: &str = include_str!("../machines/alpha-21264.toml");
/// AMD Athlon with 512 KiB: P2.
pub const ATHLON_K75: &str = include_str!("../machines/athlon-k75.toml");
/// Intel Core 2 Duo, 2 MiB shared: P1.
pub const CORE2_DUO: &str = include_str!("../machines/core2-duo.toml");
/// Intel Xeon E31270, three levels.
pub const XEON_E31270: &str = include_str!("../machines/xeon-e31270.toml");
/// AMD Zen, one core complex.
pub const ZEN: &str = include_str!("../machines/zen.toml");

/// Names of the files, and their texts.
pub const ALL: [(&str, &str); 7] = [
    ("celeron-900.toml", CELERON_900),
    ("pentium4-1600.toml", PENTIUM4_1600),
    ("alpha-21264.toml", ALPHA_21264),
    ("athlon-k75.toml", ATHLON_K75),
    ("core2-duo.toml", CORE2_DUO),
    ("xeon-e31270.toml", XEON_E31270),
    ("zen.toml", ZEN),
];

/// A built-in machine by the name of its file, with or without the ending; `None` if there is no such file.
#[must_use]
pub fn named(name: &str) -> Option<Result<Machine, MachineError>> {
    let (file, text) = ALL
        .iter()
        .find(|(file, _)| *file == name || file.strip_suffix(".toml") == Some(name))?;
    Some(Machine::parse(file, text))
}

//! The one point in which the promoting policies differ: which region is ripe, and when.

use std::time::Duration;

/// When a region with so many resident pages may be promoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ripeness {
    /// Not as it is.
    Never,
    /// At the first look that shows it.
    AtOnce,
    /// Once looks this far apart have shown the same; always at least two looks.
    AfterQuiet(Duration),
}

/// A promotion rule. It decides on the number of resident pages alone, so that regions it does not
/// want need not be remembered: their history cannot matter.
pub(crate) trait Rule {
    /// Judges a region that is not huge and has `resident` (1 to 512) pages.
    fn ripeness(&self, resident: u16) -> Ripeness;
}

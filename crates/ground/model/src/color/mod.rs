//! Page colors: which page frames compete for the same sets of a cache.
//!
//! * [`Color`]: a number, meaningful together with the number of colors;
//! * [`ColorSet`]: some of the colors (`0-3,8`);
//! * [`ColorIndex`]: the color of a frame as a function of its number, on caches that have such a function.

mod index;
mod set;

pub use index::{ColorIndex, ColorIndexError, MAX_COLOR_BITS, ParseIndexError};
pub use set::{ColorRequest, ColorSet, ColorSetError, ParseColorsError};

use std::fmt;

use serde::{Deserialize, Serialize};

/// Page color: frames of one color index the same sets of the cache in question.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Color(pub u16);

impl fmt::Display for Color {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

//! Sets of colors, and the forms in which a user requests them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Color;

/// Set of colors out of a fixed number, with at least one color.
///
/// Written as in Xen's `llc-colors` and in cpusets: numbers and ranges, ascending, separated by commas
/// (`0-3,8`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct ColorSet {
    /// For each color, true if it belongs to the set.
    has: Vec<bool>,
}

/// Reason why a list of colors is no set of the colors of this cache.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ColorSetError {
    /// There is no such color.
    #[error("there is no color {color}: this cache has {colors}, 0 to {}", .colors - 1)]
    OutOfRange {
        /// The first color that does not exist.
        color: usize,
        /// Number of colors.
        colors: usize,
    },
    /// A share so small that no color is left.
    #[error("{percent} % of {colors} colors are none: ask for at least {} %", 100_usize.div_ceil(*.colors))]
    NoColor {
        /// Share that the user requested, in percent.
        percent: f64,
        /// Number of colors.
        colors: usize,
    },
}

impl ColorSet {
    /// All of `colors` colors.
    ///
    /// # Panics
    /// If `colors` is 0.
    #[must_use]
    pub fn all(colors: usize) -> Self {
        assert!(colors > 0, "a cache has one color at least");
        Self {
            has: vec![true; colors],
        }
    }

    /// Number of colors, in the set or not.
    #[must_use]
    pub fn colors(&self) -> usize {
        self.has.len()
    }

    /// Number of colors in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.has.iter().filter(|has| **has).count()
    }

    /// Returns true if all colors belong to the set.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.has.iter().all(|has| *has)
    }

    /// Returns false: a set has at least one color.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Returns true if `color` belongs to the set.
    #[must_use]
    pub fn contains(&self, color: Color) -> bool {
        self.has.get(usize::from(color.0)).copied() == Some(true)
    }

    /// The colors of the set, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Color> + '_ {
        let numbered = (0_u16..).zip(&self.has);
        numbered.filter_map(|(color, has)| has.then_some(Color(color)))
    }

    /// Makes the set of those of `colors` colors whose bits are set; `None` if no bit is set. See [`Self::to_words`].
    #[must_use]
    pub fn from_words(words: &[u64], colors: usize) -> Option<Self> {
        let bit = |color: usize| {
            let word = words.get(color / 64);
            word.is_some_and(|word| word >> (color % 64) & 1 == 1)
        };
        let has: Vec<bool> = (0..colors).map(bit).collect();
        has.contains(&true).then_some(Self { has })
    }

    /// The set in the form that the kernel takes: a bitmap, lowest color first.
    #[must_use]
    pub fn to_words(&self) -> Vec<u64> {
        let word = |part: &[bool]| {
            let bits = part.iter().enumerate();
            bits.fold(0, |word, (bit, has)| word | (u64::from(*has) << bit))
        };
        self.has.chunks(64).map(word).collect()
    }
}

impl fmt::Display for ColorSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        let mut colors = self.iter().map(|color| color.0).peekable();
        while let Some(start) = colors.next() {
            let mut end = start;
            while let Some(next) = colors.next_if(|next| *next == end + 1) {
                end = next;
            }
            if !std::mem::take(&mut first) {
                f.write_str(",")?;
            }
            match end - start {
                0 => write!(f, "{start}")?,
                _ => write!(f, "{start}-{end}")?,
            }
        }
        Ok(())
    }
}

/// Request of a user (`--colors`), before the number of colors is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ColorRequest {
    /// No coloring: the kernel chooses the pages.
    Off,
    /// All colors, in turn.
    Spread,
    /// Named colors: ranges of first and last color, ascending and disjoint.
    List(Vec<(u16, u16)>),
    /// Share of all colors in percent, the lowest ones.
    Percent(f64),
}

/// Reason why a text requests no colors.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseColorsError {
    /// The text has none of the forms.
    #[error("`{0}` names no colors: write off, spread, a list as 0-3,8, or a share as 50%")]
    Syntax(String),
    /// A range goes down.
    #[error("`{0}` goes down: write the lower color first")]
    Descending(String),
    /// A color comes twice, or before a lower one.
    #[error("color {color} of `{text}` comes after {after}: list colors once, in ascending order")]
    Disordered {
        /// The whole list.
        text: String,
        /// The color.
        color: u16,
        /// The color before it in the list.
        after: u16,
    },
    /// A share that is not a number above 0 and at most 100.
    #[error("`{0}` is no share of the colors: write a number above 0, at most 100, and %")]
    Percent(String),
}

impl ColorRequest {
    /// The set that the request means in a cache with `colors` colors; `None` for [`Self::Off`].
    ///
    /// # Errors
    /// If the requested colors do not exist, or the share is less than one color.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "at most 100 % of what fits"
    )]
    pub fn of(&self, colors: usize) -> Result<Option<ColorSet>, ColorSetError> {
        let mut set = ColorSet::all(colors);
        match self {
            Self::Off => return Ok(None),
            Self::Spread => {}
            Self::List(ranges) => {
                let wanted = |color: usize| {
                    let mut ranges = ranges.iter();
                    ranges.any(|(low, high)| (*low..=*high).any(|has| usize::from(has) == color))
                };
                let last = ranges.last().map_or(0, |range| usize::from(range.1));
                if last >= colors {
                    let first = ranges.iter().find(|range| usize::from(range.1) >= colors);
                    let color = first.map_or(last, |range| usize::from(range.0).max(colors));
                    return Err(ColorSetError::OutOfRange { color, colors });
                }
                for (color, has) in set.has.iter_mut().enumerate() {
                    *has = wanted(color);
                }
            }
            Self::Percent(percent) => {
                let taken = (colors as f64 * percent / 100.0).floor() as usize;
                if taken == 0 {
                    let percent = *percent;
                    return Err(ColorSetError::NoColor { percent, colors });
                }
                for has in set.has.iter_mut().skip(taken) {
                    *has = false;
                }
            }
        }
        Ok(Some(set))
    }
}

impl FromStr for ColorRequest {
    type Err = ParseColorsError;

    fn from_str(text: &str) -> Result<Self, ParseColorsError> {
        let text = text.trim();
        match text {
            "off" => return Ok(Self::Off),
            "spread" => return Ok(Self::Spread),
            _ => {}
        }
        if let Some(number) = text.strip_suffix('%') {
            let percent = number.trim().parse::<f64>().ok();
            let percent = percent.filter(|percent| *percent > 0.0 && *percent <= 100.0);
            return percent
                .map(Self::Percent)
                .ok_or_else(|| ParseColorsError::Percent(text.to_owned()));
        }
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for part in text.split(',') {
            let syntax = || ParseColorsError::Syntax(text.to_owned());
            let number = |digits: &str| {
                let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
                plain.then(|| digits.parse::<u16>().ok()).flatten()
            };
            let (low, high) = part
                .trim()
                .split_once('-')
                .unwrap_or((part.trim(), part.trim()));
            let (low, high) = number(low).zip(number(high)).ok_or_else(syntax)?;
            if high < low {
                return Err(ParseColorsError::Descending(part.trim().to_owned()));
            }
            if let Some(&(_, after)) = ranges.last()
                && low <= after
            {
                let (text, color) = (text.to_owned(), low);
                return Err(ParseColorsError::Disordered { text, color, after });
            }
            ranges.push((low, high));
        }
        Ok(Self::List(ranges))
    }
}

impl fmt::Display for ColorRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Spread => f.write_str("spread"),
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::List(ranges) => {
                for (place, (low, high)) in ranges.iter().enumerate() {
                    let comma = if place == 0 { "" } else { "," };
                    if low == high {
                        write!(f, "{comma}{low}")?;
                    } else {
                        write!(f, "{comma}{low}-{high}")?;
                    }
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(text: &str, colors: usize) -> Result<String, String> {
        let request: ColorRequest = text
            .parse()
            .map_err(|error: ParseColorsError| error.to_string())?;
        let set = request.of(colors).map_err(|error| error.to_string())?;
        Ok(set.map_or_else(|| "none".to_owned(), |set| set.to_string()))
    }

    #[test]
    fn requests_are_read_and_applied() {
        for (text, colors, means) in [
            ("off", 32, "none"),
            ("spread", 32, "0-31"),
            ("0-3,8", 32, "0-3,8"),
            (" 0 - 3", 32, ""),
            ("7", 8, "7"),
            ("0,1,2", 8, "0-2"),
            ("50%", 32, "0-15"),
            ("100 %", 4, "0-3"),
            ("26%", 4, "0"),
            ("0", 1, "0"),
        ] {
            match set(text, colors) {
                Ok(got) => assert_eq!(got, means, "{text}"),
                Err(error) => assert!(means.is_empty(), "{text}: {error}"),
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, colors, says) in [
            ("", 32, "names no colors"),
            ("red", 32, "names no colors"),
            ("-1", 32, "names no colors"),
            ("1-", 32, "names no colors"),
            ("1,,2", 32, "names no colors"),
            ("+1", 32, "names no colors"),
            ("70000", 32, "names no colors"),
            ("3-1", 32, "goes down"),
            ("0-3,3", 32, "color 3 of `0-3,3` comes after 3"),
            ("8,0-3", 32, "color 0 of `8,0-3` comes after 8"),
            (
                "30-40",
                32,
                "there is no color 32: this cache has 32, 0 to 31",
            ),
            ("64", 32, "there is no color 64"),
            ("0%", 32, "no share"),
            ("101%", 32, "no share"),
            ("nan%", 32, "no share"),
            ("1%", 32, "ask for at least 4 %"),
        ] {
            let error = set(text, colors).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn bitmaps_are_the_kernels() {
        let set: ColorRequest = "0-3,8,64".parse().unwrap();
        let set = set.of(128).unwrap().unwrap();
        assert_eq!(set.to_words(), [0x10f, 1]);
        assert_eq!((set.len(), set.colors(), set.is_all()), (6, 128, false));
        assert!(set.contains(Color(64)) && !set.contains(Color(65)) && !set.contains(Color(500)));
    }

    proptest! {
        #[test]
        fn sets_are_read_as_they_are_written(has in prop::collection::vec(any::<bool>(), 1..200)) {
            prop_assume!(has.contains(&true));
            let set = ColorSet { has };
            let again: ColorRequest = set.to_string().parse().unwrap();
            prop_assert_eq!(again.to_string(), set.to_string());
            prop_assert_eq!(again.of(set.colors()).unwrap().unwrap(), set);
        }

        #[test]
        fn nothing_panics(text in "[-0-9, %a-z.]{0,12}", colors in 1_usize..70) {
            if let Ok(request) = text.parse::<ColorRequest>() {
                let _ = request.of(colors);
            }
        }
    }
}

//! The color of a page frame as a function of its number.

use serde::Serialize;

use super::Color;
use crate::{BASE_PAGE_SHIFT, BASE_PAGE_SIZE, Pfn};

/// Color bits at most: 1,024 colors, for which a way of 4 MiB would be needed.
pub const MAX_COLOR_BITS: usize = 10;

/// Color of a page frame as a function of its number: each color bit is the parity of some bits of the physical
/// address.
///
/// A cache that is not hashed has one address bit for each bit of its index. [`Self::from_masks`] brings the masks into
/// the form that the kernel patch series uses (`kernel/`, `mm/page_color_geometry.c`): reduced row echelon with the
/// lowest address bits first. So Superhue and the kernel number colors alike, and the pages of an aligned block have
/// consecutive colors.
/// then have consecutive colors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ColorIndex {
    /// Over page frame numbers, lowest color bit first.
    masks: Vec<u64>,
}

/// Reason why masks make no index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ColorIndexError {
    /// A mask is 0.
    #[error("a mask has no bits")]
    Empty,
    /// A mask has bits that all pages have in common.
    #[error(
        "mask {mask:#x} has bits inside the page offset ({:#x}), which are the same for all pages: leave them out",
        BASE_PAGE_SIZE - 1
    )]
    InsidePage {
        /// The mask.
        mask: u64,
    },
    /// A mask follows from the others.
    #[error(
        "of {given} masks only {independent} are independent: leave out those that follow from others"
    )]
    Dependent {
        /// Number of masks given.
        given: usize,
        /// Number of independent masks among them.
        independent: usize,
    },
    /// Not a power of two.
    #[error("{colors} colors are no power of two, so no bits of the address make them")]
    NotAPower {
        /// Number of colors requested.
        colors: u64,
    },
    /// More bits than [`MAX_COLOR_BITS`].
    #[error("{given} masks make more than {} colors", 1 << MAX_COLOR_BITS)]
    TooMany {
        /// Number of masks given.
        given: usize,
    },
}

/// Characters that an error message repeats of a line that is no mask.
const LONGEST_SHOWN: usize = 40;

/// Reason why the text of a file makes no index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseIndexError {
    /// A line is not a number.
    #[error("line {line}: `{text}` is no hexadecimal mask of at most 64 bits, such as 0x21000")]
    NoMask {
        /// Line number, from 1.
        line: usize,
        /// First characters of the line.
        text: String,
    },
    /// A line is a mask that no index can have.
    #[error("line {line}: {error}")]
    Line {
        /// Line number, from 1.
        line: usize,
        /// Fault of the mask.
        error: ColorIndexError,
    },
    /// The text has nothing but comments.
    #[error("no mask is in it: write one hexadecimal mask of physical address bits on each line")]
    NoMasks,
    /// The masks together make no index.
    #[error(transparent)]
    Together(#[from] ColorIndexError),
}

impl ColorIndex {
    /// The index of a cache that is not hashed: the lowest bits of the frame number.
    ///
    /// # Errors
    /// If `colors` is not a power of two, or above 2^[`MAX_COLOR_BITS`].
    pub fn plain(colors: u64) -> Result<Self, ColorIndexError> {
        if !colors.is_power_of_two() {
            return Err(ColorIndexError::NotAPower { colors });
        }
        let masks: Vec<u64> = (0..colors.ilog2())
            .map(|bit| BASE_PAGE_SIZE << bit.min(u64::BITS - BASE_PAGE_SHIFT - 1))
            .collect();
        Self::from_masks(&masks)
    }

    /// Reads masks from the text of a file. Each line is one hexadecimal mask of physical address bits, with or without
    /// `0x`; the parity of these bits is one bit of the index. `#` begins a comment; empty lines are ignored.
    ///
    /// # Errors
    /// The first line that is no mask, with its number from 1; else see [`Self::from_masks`].
    pub fn parse(text: &str) -> Result<Self, ParseIndexError> {
        let mut masks = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let word = line.split('#').next().unwrap_or_default().trim();
            if word.is_empty() {
                continue;
            }
            let digits =
                (word.strip_prefix("0x").or_else(|| word.strip_prefix("0X"))).unwrap_or(word);
            let is_hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            let mask = u64::from_str_radix(digits, 16).ok();
            let Some(mask) = mask.filter(|_| is_hexadecimal) else {
                let text = word.chars().take(LONGEST_SHOWN).collect();
                return Err(ParseIndexError::NoMask { line: number, text });
            };
            // Checks each line alone, so that the error can name the line.
            if let Err(error @ (ColorIndexError::Empty | ColorIndexError::InsidePage { .. })) =
                Self::from_masks(&[mask])
            {
                return Err(ParseIndexError::Line {
                    line: number,
                    error,
                });
            }
            masks.push(mask);
        }
        if masks.is_empty() {
            return Err(ParseIndexError::NoMasks);
        }
        Ok(Self::from_masks(&masks)?)
    }

    /// Makes an index from masks of physical addresses; the parities under the masks are its bits.
    ///
    /// # Errors
    /// If the masks make no index: see [`ColorIndexError`].
    pub fn from_masks(masks: &[u64]) -> Result<Self, ColorIndexError> {
        if masks.len() > MAX_COLOR_BITS {
            return Err(ColorIndexError::TooMany { given: masks.len() });
        }
        for &mask in masks {
            if mask == 0 {
                return Err(ColorIndexError::Empty);
            } else if mask % BASE_PAGE_SIZE != 0 {
                return Err(ColorIndexError::InsidePage { mask });
            }
        }
        let mut reduced: Vec<u64> = masks.iter().map(|mask| mask >> BASE_PAGE_SHIFT).collect();
        let independent = reduce(&mut reduced);
        if independent < masks.len() {
            let given = masks.len();
            return Err(ColorIndexError::Dependent { given, independent });
        }
        Ok(Self { masks: reduced })
    }

    /// Number of colors: a power of two.
    #[must_use]
    pub fn colors(&self) -> usize {
        1 << self.masks.len()
    }

    /// The color of a page frame.
    #[must_use]
    pub fn color_of(&self, frame: Pfn) -> Color {
        let bits = self.masks.iter().enumerate();
        let parity = |mask: u64| u16::from((frame.0 & mask).count_ones() % 2 == 1);
        Color(bits.fold(0, |color, (bit, &mask)| color | (parity(mask) << bit)))
    }

    /// The masks, of physical addresses, lowest color bit first.
    pub fn masks(&self) -> impl Iterator<Item = u64> + '_ {
        self.masks.iter().map(|mask| mask << BASE_PAGE_SHIFT)
    }
}

/// Brings masks into reduced row echelon form, lowest bits first. Returns the number of independent masks.
fn reduce(masks: &mut [u64]) -> usize {
    let mut rank = 0;
    for bit in 0..u64::BITS {
        let has = |mask: &u64| mask >> bit & 1 == 1;
        let Some(found) = masks.iter().skip(rank).position(has) else {
            continue;
        };
        masks.swap(rank, rank + found);
        let Some(&pivot) = masks.get(rank) else {
            break;
        };
        for (place, mask) in masks.iter_mut().enumerate() {
            if place != rank && has(mask) {
                *mask ^= pivot;
            }
        }
        rank += 1;
    }
    rank
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn plain_bits_are_a_field_of_the_frame_number() {
        let index = ColorIndex::from_masks(&[0x2000, 0x1000, 0x4000]).unwrap();
        assert_eq!(index.colors(), 8);
        for frame in 0..64 {
            assert_eq!(u64::from(index.color_of(Pfn(frame)).0), frame % 8);
        }
        assert_eq!(index.masks().collect::<Vec<_>>(), [0x1000, 0x2000, 0x4000]);
    }

    #[test]
    fn no_masks_are_one_color() {
        let index = ColorIndex::from_masks(&[]).unwrap();
        assert_eq!((index.colors(), index.color_of(Pfn(77))), (1, Color(0)));
    }

    #[test]
    fn nonsense_is_refused_with_the_reason() {
        let refused = |masks: &[u64]| ColorIndex::from_masks(masks).unwrap_err();
        assert_eq!(refused(&[0x1000, 0]), ColorIndexError::Empty);
        // All bits that index 1,024 sets of 64 bytes.
        let all: Vec<u64> = (6..16).map(|bit| 1 << bit).collect();
        let inside = refused(&all);
        assert_eq!(inside, ColorIndexError::InsidePage { mask: 0x40 });
        assert!(inside.to_string().contains("0xfff"), "{inside}");
        let dependent = refused(&[0x1000, 0x2000, 0x3000]);
        assert_eq!(
            dependent,
            ColorIndexError::Dependent {
                given: 3,
                independent: 2
            }
        );
        let many: Vec<u64> = (12..23).map(|bit| 1 << bit).collect();
        assert_eq!(refused(&many), ColorIndexError::TooMany { given: 11 });
    }

    #[test]
    fn a_file_of_masks_is_read_with_its_comments() {
        let text = "# Bits 12 and 17, hashed\n0x21000\n\n 0X42000 # the next\n84000\n";
        let index = ColorIndex::parse(text).unwrap();
        assert_eq!(
            index,
            ColorIndex::from_masks(&[0x21000, 0x42000, 0x84000]).unwrap()
        );
        assert_eq!(ColorIndex::plain(8).unwrap().colors(), 8);
        assert_eq!(ColorIndex::plain(1).unwrap().colors(), 1);
    }

    #[test]
    fn a_file_of_nonsense_is_refused_with_its_line() {
        let refused = |text: &str| ColorIndex::parse(text).unwrap_err().to_string();
        assert!(refused("0x1000\nzebra\n").starts_with("line 2: `zebra` is no hexadecimal mask"));
        for nonsense in ["-1", "+1000", "0x", "0x10000000000000000", "1000 2000"] {
            assert!(
                refused(nonsense).contains("no hexadecimal mask"),
                "{nonsense}"
            );
        }
        let inside = refused("# all bits\n0x40\n");
        assert!(inside.starts_with("line 2: ") && inside.contains("inside the page offset"));
        assert_eq!(refused("0"), "line 1: a mask has no bits");
        assert!(refused("# none\n\n").contains("no mask is in it"));
        assert!(refused("1000\n1000").contains("only 1 are independent"));
        assert!(
            ColorIndex::plain(48)
                .unwrap_err()
                .to_string()
                .contains("no power of two")
        );
        assert_eq!(
            ColorIndex::plain(1 << 40).unwrap_err(),
            ColorIndexError::TooMany { given: 40 }
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[0-9a-fxX#\\n \\-+]{0,60}|\\PC{0,60}") {
            if let Ok(index) = ColorIndex::parse(&text) {
                let lines: Vec<String> = index.masks().map(|mask| format!("{mask:#x}")).collect();
                prop_assert_eq!(ColorIndex::parse(&lines.join("\n")), Ok(index));
            }
        }

        /// The free lists of the kernel patch series rely on this.
        #[test]
        fn aligned_blocks_have_consecutive_colors(
            masks in prop::collection::vec((1_u64..1 << 24).prop_map(|mask| mask << 12), 1..8),
            order in 0_u32..8,
            block in 0_u64..1 << 16,
        ) {
            let Ok(index) = ColorIndex::from_masks(&masks) else { return Ok(()) };
            let first = block << order;
            let colors: BTreeSet<u16> =
                (first..first + (1 << order)).map(|frame| index.color_of(Pfn(frame)).0).collect();
            let (low, high) = (*colors.first().unwrap(), *colors.last().unwrap());
            prop_assert_eq!(usize::from(high - low) + 1, colors.len());
            prop_assert!(colors.len().is_power_of_two());
            prop_assert_eq!(usize::from(low) % colors.len(), 0);
        }

        /// Frames with the same parities have the same color, whatever the form of the masks.
        #[test]
        fn the_form_of_the_masks_does_not_matter(
            masks in prop::collection::vec((1_u64..1 << 24).prop_map(|mask| mask << 12), 1..8),
            frames in prop::collection::vec(0_u64..1 << 24, 2),
        ) {
            let Ok(index) = ColorIndex::from_masks(&masks) else { return Ok(()) };
            let parities = |frame: u64| -> Vec<u32> {
                masks.iter().map(|mask| (frame << 12 & mask).count_ones() % 2).collect()
            };
            let same = parities(frames[0]) == parities(frames[1]);
            prop_assert_eq!(same, index.color_of(Pfn(frames[0])) == index.color_of(Pfn(frames[1])));
        }
    }
}

//! The masks of a cache's index, from pages whose colors were measured and whose frames are known.
//!
//! Each bit of an index is the parity of some bits of the frame number. Two pages of one color have all parities in
//! common, so the difference of their frames is in the kernel of each mask; differences enough leave no other masks.
//! Some pages are measured wrongly, and one wrong difference spoils the result. So each draw takes few differences,
//! draws are repeated, and a result must be right for nearly all pages.

use superhue_model::{BASE_PAGE_SHIFT, Color, ColorIndex, Pfn, Random};

/// Draws of differences.
const DRAWS: usize = 256;
/// A draw ends when this number of differences in a row added nothing.
const ENOUGH: usize = 12;
/// Percent of the pages that the index must place as measured.
const RIGHT: usize = 95;

/// The index that divides `pages` into `colors` colors as measured; `None` if there is none, or too little is known.
///
/// The index numbers the colors differently. Inside a virtual machine there is none, unless the host's frames are those of
/// the guest up to the highest bit of the index.
#[must_use]
pub fn masks_of(pages: &[(Pfn, Color)], colors: usize) -> Option<ColorIndex> {
    if colors < 2 || !colors.is_power_of_two() {
        return None;
    }
    let mut classes = vec![Vec::new(); colors];
    for &(frame, color) in pages {
        classes.get_mut(usize::from(color.0))?.push(frame.0);
    }
    let first = pages.first()?.0.0;
    let varying = pages
        .iter()
        .fold(0, |bits, (frame, _)| bits | (frame.0 ^ first));
    let mut random = Random::new(pages.len() as u64);
    (0..DRAWS).find_map(|_| {
        let span = draw(&classes, &mut random);
        let masks = annihilators(&span, varying);
        if 1_usize.checked_shl(u32::try_from(masks.len()).ok()?) != Some(colors) {
            return None;
        }
        let masks: Vec<u64> = masks.iter().map(|mask| mask << BASE_PAGE_SHIFT).collect();
        let index = ColorIndex::from_masks(&masks).ok()?;
        agrees(&index, &classes).then_some(index)
    })
}

/// Independent differences of pages of one color, in echelon form: each has a highest bit that no other has.
fn draw(classes: &[Vec<u64>], random: &mut Random) -> Vec<u64> {
    let mut span: Vec<u64> = Vec::new();
    let mut in_a_row = 0;
    // Empty classes make for draws without a difference.
    for _ in 0..DRAWS {
        let Some((one, other)) = pair(classes, random) else {
            continue;
        };
        let mut difference = one ^ other;
        for known in &span {
            difference = difference.min(difference ^ known);
        }
        if difference == 0 {
            in_a_row += 1;
            if in_a_row == ENOUGH {
                break;
            }
            continue;
        }
        in_a_row = 0;
        for known in &mut span {
            *known = (*known).min(*known ^ difference);
        }
        span.push(difference);
        span.sort_unstable_by(|a, b| b.cmp(a));
    }
    span
}

fn pair(classes: &[Vec<u64>], random: &mut Random) -> Option<(u64, u64)> {
    let class = classes.get(random.below(classes.len()))?;
    let one = class.get(random.below(class.len()))?;
    let other = class.get(random.below(class.len()))?;
    Some((*one, *other))
}

/// A basis of the masks over the bits `varying` whose parity is even for all of `span`, which is in reduced echelon
/// form by highest bits.
fn annihilators(span: &[u64], varying: u64) -> Vec<u64> {
    let pivots = span.iter().fold(0, |bits, known| bits | highest(*known));
    let free = (0..u64::BITS)
        .map(|bit| 1_u64 << bit)
        .filter(|bit| varying & bit & !pivots != 0);
    free.map(|bit| {
        let with = span.iter().filter(|known| **known & bit != 0);
        with.fold(bit, |mask, known| mask | highest(*known))
    })
    .collect()
}

const fn highest(word: u64) -> u64 {
    if word == 0 {
        0
    } else {
        1 << (u64::BITS - 1 - word.leading_zeros())
    }
}

/// Returns true if nearly all pages of a class have one color of the index, and each class has a color of its own.
fn agrees(index: &ColorIndex, classes: &[Vec<u64>]) -> bool {
    let colors = classes.len();
    let mut taken = vec![false; colors];
    let (mut right, mut all) = (0, 0);
    for class in classes.iter().filter(|class| !class.is_empty()) {
        let mut counts = vec![0_usize; colors];
        for frame in class {
            if let Some(count) = counts.get_mut(usize::from(index.color_of(Pfn(*frame)).0)) {
                *count += 1;
            }
        }
        let most = counts.iter().enumerate().max_by_key(|(_, count)| **count);
        let Some((color, most)) = most else {
            return false;
        };
        match taken.get_mut(color) {
            Some(taken) if !*taken => *taken = true,
            _ => return false,
        }
        right += most;
        all += class.len();
    }
    right * 100 >= all * RIGHT
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `count` frames below 2^22 with their colors, renumbered; every `wrong`-th frame has a wrong color.
    fn measured(index: &ColorIndex, count: u64, wrong: Option<u64>) -> Vec<(Pfn, Color)> {
        let mut random = Random::new(count);
        let colors = u16::try_from(index.colors()).unwrap();
        let frames = (0..count).map(|number| {
            let frame = Pfn(random.below(1 << 22) as u64);
            let other = u16::from(wrong.is_some_and(|wrong| number % wrong == 0));
            let color = (index.color_of(frame).0 * 5 + 3 + other) % colors;
            (frame, Color(color))
        });
        frames.collect()
    }

    #[test]
    fn plain_and_hashed_indexes_are_found() {
        for masks in [
            vec![0x1000, 0x2000, 0x4000, 0x8000, 0x10000],
            vec![0x21000, 0x42000, 0x8_4000],
            vec![0x1000],
        ] {
            let index = ColorIndex::from_masks(&masks).unwrap();
            let found = masks_of(&measured(&index, 2000, None), index.colors());
            assert_eq!(found.as_ref(), Some(&index));
            let noisy = masks_of(&measured(&index, 2000, Some(40)), index.colors());
            assert_eq!(noisy.as_ref(), Some(&index), "2.5 % are wrong");
        }
    }

    #[test]
    fn where_frames_say_nothing_there_is_no_index() {
        let index = ColorIndex::plain(32).unwrap();
        let mut random = Random::new(1);
        let dealt: Vec<_> = (measured(&index, 2000, None).into_iter())
            .map(|(frame, _)| (frame, Color(u16::try_from(random.below(32)).unwrap())))
            .collect();
        assert_eq!(masks_of(&dealt, 32), None);
        assert_eq!(masks_of(&[], 32), None);
        assert_eq!(
            masks_of(&measured(&index, 2000, None), 24),
            None,
            "no power of two"
        );
        assert_eq!(masks_of(&measured(&index, 10, None), 32), None, "too few");
    }

    proptest! {
        #[test]
        fn what_is_found_tells_the_pages_apart(bits in 1..6_u32, seed: u64, wrong in proptest::option::of(50..90_u64)) {
            let mut random = Random::new(seed);
            let masks: Vec<u64> = (0..bits).map(|bit| {
                let high = random.below(1 << 8) as u64;
                (1 << bit | high << 12) << 12
            }).collect();
            let index = ColorIndex::from_masks(&masks).unwrap();
            let found = masks_of(&measured(&index, 3000, wrong), index.colors());
            prop_assert_eq!(found, Some(index));
        }

        #[test]
        fn never_panics(pages in proptest::collection::vec((any::<u64>(), any::<u16>()), 0..40), colors in 0..70_usize) {
            let pages: Vec<_> = pages.into_iter().map(|(frame, color)| (Pfn(frame), Color(color))).collect();
            let _ = masks_of(&pages, colors);
        }
    }
}

//! Hot pages that must change color so that each part of the cache gets an equal number.
//!
//! A cache of `colors` parts with `ways` ways holds a set of pages whole if no color has more than `ways` of them. What the
//! kernel hands out is random: of 480 pages over 32 colors some have 23 and some 8. So pages of colors with too many
//! get colors with too few, and all others stay where they are:
//!
//! ```text
//!   before    #########.  ####......  #######...  ####......      pages of each color
//!   after     ######....  ######....  ######....  ######....      three pages change frames
//! ```

use superhue_model::Color;

/// A hot page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HotPage {
    /// Color of the page; `None` if unknown.
    pub color: Option<Color>,
    /// True if the page may get another frame. Pages of a huge page may not.
    pub movable: bool,
}

/// Pages of each color.
#[must_use]
pub fn counts(pages: &[HotPage], colors: usize) -> Vec<usize> {
    let mut counts = vec![0; colors];
    for color in pages.iter().filter_map(|page| page.color) {
        if let Some(count) = counts.get_mut(usize::from(color.0)) {
            *count += 1;
        }
    }
    counts
}

/// Returns which of `pages`, named by index, must get which color, so that no color has over one page more than another, as
/// far as movable pages allow. The moves are as few as possible: each page goes from a color above the mean to one below.
/// Movable pages of an unknown color all move.
#[must_use]
pub fn balance(pages: &[HotPage], colors: usize) -> Vec<(usize, Color)> {
    if colors == 0 {
        return Vec::new();
    }
    let mut counts = counts(pages, colors);
    let mut movable: Vec<Vec<usize>> = vec![Vec::new(); colors];
    let mut unknown = Vec::new();
    for (at, page) in pages.iter().enumerate().rev() {
        match page.color.map(|color| usize::from(color.0)) {
            _ if !page.movable => {}
            Some(color) if color < colors => movable[color].push(at),
            _ => unknown.push(at),
        }
    }
    let mut moves = Vec::new();
    let named = |color| Color(u16::try_from(color).unwrap_or(u16::MAX));
    let emptiest = |counts: &[usize]| (0..colors).min_by_key(|&color| counts[color]);
    while let Some(at) = unknown.pop() {
        let Some(to) = emptiest(&counts) else { break };
        counts[to] += 1;
        moves.push((at, named(to)));
    }
    loop {
        let fullest = (0..colors)
            .filter(|&color| !movable[color].is_empty())
            .max_by_key(|&color| counts[color]);
        let (Some(from), Some(to)) = (fullest, emptiest(&counts)) else {
            break;
        };
        if counts[from] < counts[to] + 2 {
            break;
        }
        let Some(at) = movable[from].pop() else { break };
        counts[from] -= 1;
        counts[to] += 1;
        moves.push((at, named(to)));
    }
    moves
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hot(color: u16, movable: bool) -> HotPage {
        HotPage {
            color: Some(Color(color)),
            movable,
        }
    }

    fn after(pages: &[HotPage], moves: &[(usize, Color)], colors: usize) -> Vec<usize> {
        let mut pages = pages.to_vec();
        for &(at, color) in moves {
            pages[at].color = Some(color);
        }
        counts(&pages, colors)
    }

    #[test]
    fn what_is_even_stays() {
        let pages: Vec<HotPage> = (0..64).map(|at| hot(at % 32, true)).collect();
        assert!(balance(&pages, 32).is_empty());
        assert!(balance(&[], 32).is_empty());
        assert!(balance(&pages, 0).is_empty());
    }

    #[test]
    fn pages_of_unknown_colors_go_where_the_fewest_are() {
        let unknown = |movable| HotPage {
            color: None,
            movable,
        };
        let pages = [unknown(true), hot(0, true), unknown(false), unknown(true)];
        assert_eq!(balance(&pages, 3), [(0, Color(1)), (3, Color(2))]);
    }

    #[test]
    fn pages_of_huge_pages_count_and_stay() {
        let pages = [hot(0, false), hot(0, false), hot(0, true), hot(1, true)];
        assert_eq!(balance(&pages, 3), [(2, Color(2))]);
        assert!(balance(&[hot(0, false), hot(0, false)], 2).is_empty());
    }

    proptest! {
        #[test]
        fn movable_pages_end_even_by_as_few_moves_as_can_be(
            given in prop::collection::vec(0..32_u16, 0..1200),
        ) {
            let pages: Vec<HotPage> = given.iter().map(|&color| hot(color, true)).collect();
            let moves = balance(&pages, 32);
            let counts = after(&pages, &moves, 32);
            let most = counts.iter().max().copied().unwrap_or(0);
            let least = counts.iter().min().copied().unwrap_or(0);
            prop_assert!(most - least <= 1);
            let ceiling = given.len().div_ceil(32);
            let before = super::counts(&pages, 32);
            let above: usize = before.iter().map(|count| count.saturating_sub(ceiling)).sum();
            let below: usize = before.iter().map(|count| (given.len() / 32).saturating_sub(*count)).sum();
            prop_assert_eq!(moves.len(), above.max(below));
            let mut moved: Vec<usize> = moves.iter().map(|(at, _)| *at).collect();
            moved.sort_unstable();
            moved.dedup();
            prop_assert_eq!(moved.len(), moves.len());
        }
    }
}

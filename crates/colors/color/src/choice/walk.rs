//! Consecutive pages walk through the colors.

use superhue_model::{Color, ColorSet};

/// Hands out the colors of a set in turn, from a start of the caller's choice.
///
/// As in the page coloring of Linux 2.4 (Papadopoulos 2003; Hayasaka and Shimizu): a process begins at a random color, so
/// that processes do not all crowd the first ones, and each page takes the color after that of the page before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walk {
    colors: Vec<Color>,
    next: usize,
}

impl Walk {
    /// Walks through `set`, beginning `start` colors into it (modulo its length).
    #[must_use]
    pub fn new(set: &ColorSet, start: usize) -> Self {
        let colors: Vec<Color> = set.iter().collect();
        let next = start % colors.len().max(1);
        Self { colors, next }
    }

    /// The color the next page should have.
    #[must_use]
    pub fn wanted(&self) -> Color {
        self.colors.get(self.next).copied().unwrap_or_default()
    }

    /// The colors to try for the next page: the wanted one, then those after it, all of the set once.
    pub fn preferences(&self) -> impl Iterator<Item = Color> + '_ {
        let (before, after) = self.colors.split_at(self.next.min(self.colors.len()));
        after.iter().chain(before).copied()
    }

    /// Records that a page of a color of the set was placed: the walk continues after it (P0's `target_color = color + 1`).
    pub fn placed(&mut self, color: Color) {
        if let Ok(at) = self.colors.binary_search(&color) {
            self.next = (at + 1) % self.colors.len();
        }
    }

    /// The color after this one of the set.
    #[must_use]
    pub fn following(&self, color: Color) -> Option<Color> {
        let at = self.colors.binary_search(&color).ok()?;
        self.colors.get((at + 1) % self.colors.len()).copied()
    }

    /// Returns true if a page of this color belongs to the set.
    #[must_use]
    pub fn allows(&self, color: Color) -> bool {
        self.colors.binary_search(&color).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use superhue_model::ColorRequest;

    use super::*;

    fn walk(text: &str, colors: usize, start: usize) -> Walk {
        let request: ColorRequest = text.parse().unwrap();
        Walk::new(&request.of(colors).unwrap().unwrap(), start)
    }

    #[test]
    fn consecutive_pages_get_consecutive_colors() {
        let mut walk = walk("spread", 4, 6);
        let taken: Vec<u16> = (0..6)
            .map(|_| {
                let color = walk.wanted();
                walk.placed(color);
                color.0
            })
            .collect();
        assert_eq!(taken, [2, 3, 0, 1, 2, 3]);
    }

    #[test]
    fn a_missing_color_is_skipped_and_the_walk_goes_on_after_what_was_taken() {
        let mut walk = walk("1-3,6", 8, 1);
        assert_eq!(
            walk.preferences().map(|color| color.0).collect::<Vec<_>>(),
            [2, 3, 6, 1]
        );
        walk.placed(Color(6));
        assert_eq!(walk.wanted(), Color(1));
        assert_eq!(walk.following(Color(3)), Some(Color(6)));
        assert_eq!(walk.following(Color(5)), None);
        walk.placed(Color(5));
        assert_eq!(
            walk.wanted(),
            Color(1),
            "what is not of the set changes nothing"
        );
        assert!(walk.allows(Color(6)) && !walk.allows(Color(0)));
    }
}

//! Code that decides which colors are tested together, so that few tests identify every color.
//!
//! Every color gets a word of `tests` bits, all with the same number of ones. Test `t` pushes with the eviction sets of
//! all colors whose word has bit `t`; the tests that pushed a page out spell the word of its color. As all words have
//! the same number of ones, a single wrong test makes a word that belongs to no color: such errors are detected. 32
//! colors take 7 tests (3 ones: 35 words) instead of 32.

use superhue_model::Color;

/// Words of constant weight, one for each color.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Code {
    /// Bits in a word.
    tests: u32,
    /// Ascending; the word of each color.
    words: Vec<u64>,
}

impl Code {
    /// The shortest words for `colors` colors, with the fewest ones (each one costs a pass over an eviction set).
    pub(super) fn new(colors: usize) -> Self {
        // 2^64 sets of words are more than colors can be: the loop ends long before.
        for tests in 1..=63 {
            for ones in 1..=u32::max(tests / 2, 1) {
                let words: Vec<u64> = Words::new(tests, ones).take(colors).collect();
                if words.len() == colors {
                    return Self { tests, words };
                }
            }
        }
        Self {
            tests: 0,
            words: Vec::new(),
        }
    }

    /// Returns the number of tests that a page takes.
    pub(super) const fn tests(&self) -> u32 {
        self.tests
    }

    /// The colors whose sets push in a test.
    pub(super) fn pushing(&self, test: u32) -> impl Iterator<Item = usize> {
        let words = self.words.iter().enumerate();
        words.filter_map(move |(color, word)| (word >> test & 1 == 1).then_some(color))
    }

    /// The color whose word this is.
    pub(super) fn decode(&self, word: u64) -> Option<Color> {
        let color = self.words.binary_search(&word).ok()?;
        u16::try_from(color).ok().map(Color)
    }
}

/// All words of one length with the same number of ones, ascending.
struct Words {
    next: u64,
    end: u64,
}

impl Words {
    /// `1 <= ones <= tests <= 63`.
    const fn new(tests: u32, ones: u32) -> Self {
        Self {
            next: (1 << ones) - 1,
            end: 1 << tests,
        }
    }
}

impl Iterator for Words {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let word = self.next;
        if word == 0 || word >= self.end {
            return None;
        }
        // The next larger word with as many ones (Gosper): the lowest block of ones carries its top bit upwards, and
        // the rest of the block moves down to bit 0.
        let lowest = word & word.wrapping_neg();
        let carried = word + lowest;
        self.next = (((carried ^ word) >> 2) / lowest) | carried;
        Some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_differ_and_have_the_same_number_of_ones() {
        for colors in 1..=300 {
            let code = Code::new(colors);
            assert_eq!(code.words.len(), colors);
            assert!(code.words.is_sorted_by(|a, b| a < b));
            let ones = code.words[0].count_ones();
            for (color, &word) in code.words.iter().enumerate() {
                assert_eq!(word.count_ones(), ones);
                assert!(word < 1 << code.tests());
                assert_eq!(code.decode(word), Some(Color(color as u16)));
            }
        }
    }

    #[test]
    fn the_words_are_short() {
        let tests = [1, 2, 16, 24, 32, 35, 64, 256, 1_024].map(|colors| Code::new(colors).tests());
        assert_eq!(tests, [1, 2, 6, 7, 7, 7, 8, 11, 13]);
    }

    #[test]
    fn a_single_wrong_test_makes_no_word() {
        let code = Code::new(32);
        for &word in &code.words {
            for test in 0..code.tests() {
                assert_eq!(code.decode(word ^ (1 << test)), None);
            }
        }
        assert_eq!(code.decode(0), None);
    }

    #[test]
    fn a_color_pushes_in_the_tests_of_its_word() {
        let code = Code::new(32);
        for test in 0..code.tests() {
            let pushing: Vec<usize> = code.pushing(test).collect();
            assert!(!pushing.is_empty() && pushing.len() < 32);
            for color in 0..32 {
                assert_eq!(pushing.contains(&color), code.words[color] >> test & 1 == 1);
            }
        }
    }
}

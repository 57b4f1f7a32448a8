//! One character for each cell of a picture, so that a column of cells is a short string that people can read, too:
//!
//! ```text
//!   .            nothing resident
//!   0            resident, not touched
//!   1..9A..Za..z touched: from at most 1/61 of its pages (times samples) to all of them
//! ```

/// State of some pages during some samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cell {
    /// No page is resident.
    Absent,
    /// Share of resident pages, times samples, that were touched: 0 to 1.
    Heat(f32),
}

/// Number of letters for touched cells.
const LEVELS: u8 = 61;

/// Returns the character of a cell. A touched cell, however cold, differs from an untouched one.
#[must_use]
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to 1..=61"
)]
pub fn encode(cell: Cell) -> char {
    let level = match cell {
        Cell::Absent => return '.',
        Cell::Heat(heat) if heat > 0.0 => (heat * f32::from(LEVELS)).ceil().clamp(1.0, 61.0) as u8,
        Cell::Heat(_) => 0,
    };
    char::from(match level {
        0..=9 => b'0' + level,
        10..=35 => b'A' + level - 10,
        _ => b'a' + level - 36,
    })
}

/// Returns the cell of a character; `None` for a character without a meaning.
#[must_use]
pub fn decode(letter: u8) -> Option<Cell> {
    let level = match letter {
        b'.' => return Some(Cell::Absent),
        b'0'..=b'9' => letter - b'0',
        b'A'..=b'Z' => letter - b'A' + 10,
        b'a'..=b'z' => letter - b'a' + 36,
        _ => return None,
    };
    Some(Cell::Heat(f32::from(level) / f32::from(LEVELS)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_cell_survives_its_letter(heat in 0.0f32..=1.0) {
            let letter = encode(Cell::Heat(heat));
            let Some(Cell::Heat(back)) = decode(letter as u8) else { panic!("{letter}") };
            prop_assert!((back - heat).abs() <= 1.0 / 60.0);
            prop_assert_eq!(back > 0.0, heat > 0.0);
            prop_assert_eq!(encode(Cell::Heat(back)), letter);
        }
    }

    #[test]
    fn ends_and_nonsense() {
        assert_eq!(encode(Cell::Absent), '.');
        assert_eq!(encode(Cell::Heat(0.0)), '0');
        assert_eq!(encode(Cell::Heat(1e-9)), '1');
        assert_eq!(encode(Cell::Heat(1.0)), 'z');
        assert_eq!(encode(Cell::Heat(f32::NAN)), '0');
        assert_eq!(decode(b'.'), Some(Cell::Absent));
        assert_eq!(decode(b'z'), Some(Cell::Heat(1.0)));
        for nonsense in [b' ', b'-', b'{', 0, 255] {
            assert_eq!(decode(nonsense), None);
        }
    }
}

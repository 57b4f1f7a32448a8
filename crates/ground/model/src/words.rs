//! Names from untrusted sources on their way to a terminal, a log or a metric: made harmless, and reversibly so.
//!
//! Any user who names a program, a file or a control group chooses its bytes: terminal commands, line ends, marks that
//! reverse the direction of the text around them.
//!
//! ```
//! use superhue_model::words::{harmless, restored};
//!
//! assert_eq!(harmless("redis\u{1b}[31m"), r"redis\u{1b}[31m");
//! assert_eq!(restored(r"redis\u{1b}[31m"), "redis\u{1b}[31m");
//! // A text that looks like such a mark, but is none, stays distinct.
//! assert_eq!(harmless(r"a\u{1b}"), r"a\u{5c}u{1b}");
//! assert_eq!(harmless(r"dev-disk\x2duuid ä 日本"), r"dev-disk\x2duuid ä 日本");
//! ```
//!
//! The kernel allows any bytes in a name. [`of_bytes`] makes a word of them, and [`bytes_of`] restores the bytes:
//!
//! ```
//! use superhue_model::words::{bytes_of, of_bytes};
//!
//! let name = b"tenant-\xff.slice";
//! assert_eq!(bytes_of(&of_bytes(name)), name);
//! assert_eq!(of_bytes("tenant-ä.slice".as_bytes()), "tenant-ä.slice");
//! ```

use std::borrow::Cow;

/// Letters that stand for bytes 0x80 to 0xff: private ones (plane 16), which no name has a use for.
const STAND_INS: std::ops::RangeInclusive<u32> = 0x10_ff80..=0x10_ffff;
const FIRST_BYTE: u32 = 0x10_ff00;

/// Returns a name as a word: one private letter stands for each byte that is no UTF-8, and for each byte of a letter
/// that is a stand-in itself.
#[must_use]
pub fn of_bytes(name: &[u8]) -> Cow<'_, str> {
    if let Ok(word) = str::from_utf8(name)
        && !word.chars().any(is_stand_in)
    {
        return word.into();
    }
    let mut word = String::with_capacity(name.len() * 2);
    let stand_in = |byte: &u8| char::from_u32(FIRST_BYTE + u32::from(*byte)).unwrap_or('\u{fffd}');
    for chunk in name.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if is_stand_in(letter) {
                let mut bytes = [0; 4];
                word.extend(
                    letter
                        .encode_utf8(&mut bytes)
                        .as_bytes()
                        .iter()
                        .map(stand_in),
                );
            } else {
                word.push(letter);
            }
        }
        word.extend(chunk.invalid().iter().map(stand_in));
    }
    word.into()
}

/// Returns the name from which [`of_bytes`] made `word`.
#[must_use]
pub fn bytes_of(word: &str) -> Vec<u8> {
    let mut name = Vec::with_capacity(word.len());
    for letter in word.chars() {
        let byte = u8::try_from(u32::from(letter).wrapping_sub(FIRST_BYTE));
        match byte {
            Ok(byte) if is_stand_in(letter) => name.push(byte),
            _ => name.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    name
}

fn is_stand_in(letter: char) -> bool {
    STAND_INS.contains(&u32::from(letter))
}

/// Returns true if a letter shows itself and does nothing else: it is neither a control character, nor a stand-in for a
/// byte, nor a letter that changes how other letters are shown (directions, joiners, marks without width, ends of
/// lines, tags).
#[must_use]
pub fn is_harmless(letter: char) -> bool {
    !letter.is_control()
        && !is_stand_in(letter)
        && !matches!(
            letter,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// Returns the word with a mark such as `\u{1b}` in place of each letter that is not harmless, and of each backslash
/// that would look like the start of a mark.
#[must_use]
pub fn harmless(word: &str) -> Cow<'_, str> {
    escaped(word, |_| false)
}

/// Does the same for a text of Superhue's own, in which line ends and tabs stay.
#[must_use]
pub fn harmless_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |letter| matches!(letter, '\n' | '\t'))
}

fn escaped(word: &str, is_fine: impl Fn(char) -> bool) -> Cow<'_, str> {
    let needs_none = |letter: char| is_harmless(letter) || is_fine(letter);
    if word.chars().all(needs_none) && !word.contains("\\u{") {
        return word.into();
    }
    let mut text = String::with_capacity(word.len() + 16);
    for (index, letter) in word.char_indices() {
        let rest = word.get(index..).unwrap_or_default();
        if needs_none(letter) && !rest.starts_with("\\u{") {
            text.push(letter);
        } else {
            text.push_str(&format!("\\u{{{:x}}}", u32::from(letter)));
        }
    }
    text.into()
}

/// Returns the word from which [`harmless`] made `text`.
#[must_use]
pub fn restored(text: &str) -> String {
    let mut word = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\\u{") {
        word.push_str(before);
        let mark = after.split_once('}');
        let letter = mark.and_then(|(number, after)| {
            let letter = char::from_u32(u32::from_str_radix(number, 16).ok()?)?;
            Some((letter, after))
        });
        match letter {
            Some((letter, after)) => {
                word.push(letter);
                rest = after;
            }
            None => {
                word.push_str("\\u{");
                rest = after;
            }
        }
    }
    word.push_str(rest);
    word
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_word_is_harmless_and_comes_back(word: String) {
            let shown = harmless(&word);
            prop_assert!(shown.chars().all(is_harmless), "{shown:?}");
            prop_assert_eq!(restored(&shown), word);
        }

        #[test]
        fn every_name_comes_back(name: Vec<u8>) {
            prop_assert_eq!(bytes_of(&of_bytes(&name)), name);
        }

        #[test]
        fn names_like_stand_ins_come_back(name in "[a\u{10ff80}-\u{10ffff}]{0,8}", byte: u8) {
            let name = [name.as_bytes(), &[byte]].concat();
            prop_assert_eq!(bytes_of(&of_bytes(&name)), name);
        }

        #[test]
        fn what_looks_like_marks_comes_back(word in r"[\\u{}0-9a-f\x1b]{0,24}") {
            prop_assert_eq!(restored(&harmless(&word)), word);
        }
    }

    #[test]
    fn lines_of_ours_stay_lines() {
        assert_eq!(harmless_lines("a\tb\nc\u{1b}\r"), "a\tb\nc\\u{1b}\\u{d}");
        assert_eq!(harmless("a\nb"), "a\\u{a}b");
        let long = "\u{9b}".repeat(4096);
        assert_eq!(restored(&harmless(&long)), long);
    }
}

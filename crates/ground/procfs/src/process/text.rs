//! Parsers for numbers, fields and names in the kernel's text, by bytes.
//!
//! `str` is of no use here: command names and paths may hold any byte but NUL, and checking
//! megabytes of memory map for UTF-8 first would cost as much as reading them.

use superhue_model::ByteCount;

/// Line of a kernel file that could not be parsed, and the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ParseError {
    /// Line, counted from 1.
    pub line: usize,
    /// Reason.
    pub what: &'static str,
}

impl ParseError {
    /// Makes an error on line `line`.
    pub(super) const fn new(line: usize, what: &'static str) -> Self {
        Self { line, what }
    }
}

/// Parses a whole decimal number; `None` for an empty text, a sign, another byte, or a number beyond `u64`.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |value, &byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Parses a whole number in lower-case hexadecimal without prefix, as the kernel prints addresses.
pub(super) fn hex(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 16 {
        return None;
    }
    text.iter().try_fold(0_u64, |value, &byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u64::from(digit))
    })
}

/// Parses a size as `proc` prints most of them: `   132 kB`.
pub(super) fn kib(text: &[u8]) -> Option<ByteCount> {
    let number = text.trim_ascii().strip_suffix(b" kB")?;
    decimal(number.trim_ascii()).map(ByteCount::from_kib)
}

/// Takes the text up to the next space off the front of `rest`; `None` if no text is left.
pub(super) fn next_field<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let text = rest.trim_ascii_start();
    if text.is_empty() {
        return None;
    }
    let end = text
        .iter()
        .position(|&byte| byte == b' ')
        .unwrap_or(text.len());
    let (field, after) = text.split_at(end);
    *rest = after;
    Some(field)
}

/// Splits `Key:   value` into its two halves, the value without surrounding blanks.
pub(super) fn key_value(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|&byte| byte == b':')?;
    let (key, value) = line.split_at(colon);
    Some((key, value.get(1..)?.trim_ascii()))
}

/// Makes a name safe to print: replaces bytes that are not UTF-8 and escapes control characters.
///
/// The kernel escapes only the newline, so a file or thread name may contain terminal commands.
pub(super) fn shown(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    if !text.contains(char::is_control) {
        return text.into_owned();
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Like [`shown`], with at most `most` bytes of text: an escape is longer than what it stands for.
pub(super) fn shown_within(name: &[u8], most: usize) -> String {
    let mut text = shown(name.get(..most).unwrap_or(name));
    if text.len() > most {
        let end = (0..=most).rev().find(|&at| text.is_char_boundary(at));
        text.truncate(end.unwrap_or(0));
        text.shrink_to_fit();
    }
    text
}

/// Splits a text that is wholly in memory into lines, numbered from 1, without their newlines and without empty lines.
pub(super) fn lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    text.split(|&byte| byte == b'\n')
        .zip(1..)
        .filter(|(line, _)| !line.is_empty())
        .map(|(line, number)| (number, line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_exact_or_refused() {
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        for text in ["", "-1", "+1", " 1", "1 ", "0x1", "18446744073709551616"] {
            assert_eq!(decimal(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(hex(b"ffffffffff600000"), Some(0xffff_ffff_ff60_0000));
        for text in ["", "0x1", "FF", "10000000000000000", "g"] {
            assert_eq!(hex(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(kib(b"     132 kB"), Some(ByteCount(132 << 10)));
        assert_eq!(kib(b"99999999999999999999 kB"), None);
        assert_eq!(kib(b"132"), None);
    }

    #[test]
    fn names_cannot_command_a_terminal() {
        assert_eq!(shown(b"a b"), "a b");
        assert_eq!(shown(b"\x1b[2Jx\n"), "\\u{1b}[2Jx\\n");
        assert_eq!(shown(b"\xff"), "\u{fffd}");
    }

    proptest! {
        #[test]
        fn numbers_survive_printing(n: u64) {
            prop_assert_eq!(decimal(n.to_string().as_bytes()), Some(n));
            prop_assert_eq!(hex(format!("{n:x}").as_bytes()), Some(n));
            prop_assert_eq!(hex(format!("{n:016x}").as_bytes()), Some(n));
        }

        #[test]
        fn shown_names_keep_to_their_bound(name: Vec<u8>, most in 0_usize..64) {
            prop_assert!(shown_within(&name, most).len() <= most);
        }

        #[test]
        fn shown_names_hold_no_control_characters(name: Vec<u8>) {
            prop_assert!(!shown(&name).contains(char::is_control));
        }
    }
}

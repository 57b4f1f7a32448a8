//! Converts the bytes that a terminal sends to keys, and names to text that is safe to send to a terminal.

use std::collections::VecDeque;

use superhue::model::words::is_harmless;

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// A letter.
    Char(char),
    /// A letter with Control, as the lower case one.
    Control(char),
    Enter,
    Escape,
    Backspace,
    Tab,
    BackTab,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
}

/// The longest sequence that terminals send for a key; a longer one is no key.
const MAX_SEQUENCE_BYTES: usize = 32;

/// Bytes that have arrived and are not a key yet.
#[derive(Debug, Default)]
pub(super) struct Keys(VecDeque<u8>);

/// Meaning of the first bytes.
enum KeyMatch {
    /// Number of bytes, and their key; `None` if they mean nothing here.
    Is(usize, Option<Key>),
    /// More bytes are needed to know.
    Incomplete,
}

impl Keys {
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    /// Returns true if the start of a key has arrived.
    pub(super) fn is_waiting(&self) -> bool {
        !self.0.is_empty()
    }

    /// The next key. If `is_all`, no more bytes will come for it: an escape that nothing follows is the Escape key.
    pub(super) fn next(&mut self, is_all: bool) -> Option<Key> {
        loop {
            let bytes = self.0.make_contiguous();
            let (length, key) = match first(bytes) {
                KeyMatch::Is(length, key) => (length, key),
                KeyMatch::Incomplete if is_all && !bytes.is_empty() => {
                    (1, (bytes[0] == 0x1b).then_some(Key::Escape))
                }
                KeyMatch::Incomplete => return None,
            };
            self.0.drain(..length.max(1));
            if key.is_some() {
                return key;
            }
        }
    }
}

fn first(bytes: &[u8]) -> KeyMatch {
    let Some(&byte) = bytes.first() else {
        return KeyMatch::Incomplete;
    };
    let one = |key| KeyMatch::Is(1, Some(key));
    match byte {
        b'\r' | b'\n' => one(Key::Enter),
        b'\t' => one(Key::Tab),
        0x08 | 0x7f => one(Key::Backspace),
        0x1b => sequence(bytes),
        1..=26 => one(Key::Control(char::from(byte - 1 + b'a'))),
        0..=0x1f => KeyMatch::Is(1, None),
        0x20..=0x7e => one(Key::Char(char::from(byte))),
        _ => letter(bytes),
    }
}

/// A character of several bytes.
fn letter(bytes: &[u8]) -> KeyMatch {
    let length = match bytes[0] {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => return KeyMatch::Is(1, None),
    };
    let Some(bytes) = bytes.get(..length) else {
        return KeyMatch::Incomplete;
    };
    match str::from_utf8(bytes).ok().and_then(|it| it.chars().next()) {
        Some(letter) if is_harmless(letter) => KeyMatch::Is(length, Some(Key::Char(letter))),
        Some(_) => KeyMatch::Is(length, None),
        None => KeyMatch::Is(1, None),
    }
}

/// A sequence that begins with an escape: `ESC [ parameters letter`, `ESC O letter` (ECMA-48, and the sequences of xterm).
fn sequence(bytes: &[u8]) -> KeyMatch {
    match bytes.get(1) {
        None => KeyMatch::Incomplete,
        Some(b'O') => match bytes.get(2) {
            None => KeyMatch::Incomplete,
            Some(&letter) => KeyMatch::Is(3, named(&[], letter)),
        },
        Some(b'[') => {
            let rest = &bytes[2..];
            let end = rest.iter().position(|byte| (0x40..=0x7e).contains(byte));
            match end {
                Some(end) => KeyMatch::Is(end + 3, named(&rest[..end], rest[end])),
                None if rest.len() >= MAX_SEQUENCE_BYTES => KeyMatch::Is(bytes.len(), None),
                None => KeyMatch::Incomplete,
            }
        }
        // Escape and then another key, or Alt with a key, which means nothing here.
        Some(_) => KeyMatch::Is(1, Some(Key::Escape)),
    }
}

fn named(parameters: &[u8], letter: u8) -> Option<Key> {
    let number = || parameters.split(|&byte| byte == b';').next();
    Some(match letter {
        b'A' => Key::Up,
        b'B' => Key::Down,
        b'C' => Key::Right,
        b'D' => Key::Left,
        b'H' => Key::Home,
        b'F' => Key::End,
        b'Z' => Key::BackTab,
        b'M' if parameters.is_empty() => Key::Enter,
        b'~' => match number()? {
            b"1" | b"7" => Key::Home,
            b"4" | b"8" => Key::End,
            b"5" => Key::PageUp,
            b"6" => Key::PageDown,
            _ => return None,
        },
        _ => return None,
    })
}

/// Returns a text that does nothing to a terminal but take room: a foreign name must neither move the cursor nor change
/// the direction of the text beside it.
#[must_use]
pub fn printable(text: &str) -> String {
    let shown = |letter| {
        if is_harmless(letter) {
            letter
        } else {
            '\u{fffd}'
        }
    };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(pieces: &[&[u8]]) -> Vec<Key> {
        let mut keys = Keys::default();
        let mut found = Vec::new();
        for piece in pieces {
            keys.feed(piece);
            found.extend(std::iter::from_fn(|| keys.next(false)));
        }
        found.extend(std::iter::from_fn(|| keys.next(true)));
        assert!(!keys.is_waiting());
        found
    }

    #[test]
    fn keys_are_told_from_their_sequences() {
        let all = b"q\r\x7f\t\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[1;5C\x1b[H\x1b[4~\x1b[Z\x03";
        let expected = [
            Key::Char('q'),
            Key::Enter,
            Key::Backspace,
            Key::Tab,
            Key::Up,
            Key::Down,
            Key::PageUp,
            Key::PageDown,
            Key::Right,
            Key::Home,
            Key::End,
            Key::BackTab,
            Key::Control('c'),
        ];
        assert_eq!(keys(&[all]), expected);
        let bytes: Vec<&[u8]> = all.chunks(1).collect();
        assert_eq!(keys(&bytes), expected, "byte by byte");
    }

    #[test]
    fn an_escape_alone_is_a_key_and_what_is_unknown_is_none() {
        assert_eq!(keys(&[b"\x1b"]), [Key::Escape]);
        assert_eq!(keys(&[b"\x1bq"]), [Key::Escape, Key::Char('q')]);
        assert_eq!(
            keys(&[b"\x1b[200~x\x1b[<0;3;4Mq"]),
            [Key::Char('x'), Key::Char('q')]
        );
        assert_eq!(
            keys(&["ä€\u{202e}".as_bytes()]),
            [Key::Char('ä'), Key::Char('€')]
        );
        assert_eq!(keys(&[b"\xff\xc3("]), [Key::Char('(')]);
        let long = [b"\x1b[".to_vec(), vec![b'1'; 100], b"q".to_vec()].concat();
        assert!(keys(&[&long]).len() <= 1 + 100);
    }

    /// Tries every sequence of a few of the bytes that matter.
    #[test]
    fn whatever_arrives_is_used_up() {
        let alphabet = b"\x1b[O;1~A\xc3\xa4\xff\x00\x03q";
        for n in 0..alphabet.len().pow(4) {
            let mut n = n;
            let bytes: Vec<u8> = (0..4)
                .map(|_| {
                    let byte = alphabet[n % alphabet.len()];
                    n /= alphabet.len();
                    byte
                })
                .collect();
            keys(&[&bytes]);
        }
    }

    #[test]
    fn what_is_printed_does_nothing() {
        let evil = "a\u{1b}[2J\r\n\u{9b}1m\u{202e}b\u{200b}\u{feff}c\u{e0041}";
        let shown = printable(evil);
        assert_eq!(shown.chars().count(), evil.chars().count());
        assert!(
            shown
                .chars()
                .all(|it| it == '\u{fffd}' || it.is_ascii_graphic()),
            "{shown:?}"
        );
        assert_eq!(printable("redis-server ä 日本"), "redis-server ä 日本");
    }
}

//! Small formats that many kernel files share: one number, one switch, one chosen word.

use std::fmt::Display;

/// Fault in the contents of a kernel file, in words.
///
/// Carries no path: parsers see text only. Readers add the path, see
/// [`ReadError::Malformed`](crate::ReadError::Malformed).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(String);

impl ParseError {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    /// Makes an error that quotes `text` and names the expected form.
    pub(crate) fn no(text: &str, expected: &str) -> Self {
        Self(format!("{} is no {expected}", quote(text.trim())))
    }

    /// Makes an error in the line with the given index, counted from 0 here and from 1 in the message.
    pub(crate) fn in_line(index: usize, what: impl Display) -> Self {
        Self(format!("line {}: {what}", index.saturating_add(1)))
    }
}

/// Quotes the beginning of `text` for an error message, with visible control characters.
pub(crate) fn quote(text: &str) -> String {
    const ENOUGH: usize = 40;
    let beginning: String = text.chars().take(ENOUGH).collect();
    let more = if beginning.len() < text.len() {
        "..."
    } else {
        ""
    };
    format!("{beginning:?}{more}")
}

/// Parses a decimal number, which most sysfs attributes hold.
///
/// # Errors
/// If the text is no whole number of at most 64 bits.
pub fn number(text: &str) -> Result<u64, ParseError> {
    text.trim()
        .parse()
        .map_err(|_| ParseError::no(text, "number"))
}

/// Parses a switch: `0` or `1`.
///
/// # Errors
/// If the text is neither.
pub fn switch(text: &str) -> Result<bool, ParseError> {
    match text.trim() {
        "0" => Ok(false),
        "1" => Ok(true),
        other => Err(ParseError::new(format!(
            "{} is neither 0 nor 1",
            quote(other)
        ))),
    }
}

/// Parses the chosen one of several words: `always [madvise] never` is `madvise`.
///
/// sysfs shows an attribute with a fixed set of values in this form
/// (`Documentation/admin-guide/mm/transhuge.rst`).
///
/// # Errors
/// If not exactly one word is in brackets.
pub fn chosen(text: &str) -> Result<&str, ParseError> {
    let mut bracketed = text
        .split_whitespace()
        .filter_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
        .filter(|word| !word.is_empty());
    match (bracketed.next(), bracketed.next()) {
        (Some(word), None) => Ok(word),
        (Some(_), Some(_)) => Err(ParseError::new(format!(
            "more than one choice in brackets: {}",
            quote(text.trim())
        ))),
        (None, _) => Err(ParseError::new(format!(
            "no choice in brackets: {}",
            quote(text.trim())
        ))),
    }
}

/// Defines an enumeration of the words of an attribute, parsed by [`chosen`].
///
/// In JSON and on screen each variant is the kernel's own word.
macro_rules! choice {
    (
        $(#[$meta:meta])*
        $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// Returns the kernel's word for it.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }

            /// Parses the attribute: all words, the chosen one in brackets.
            ///
            /// # Errors
            /// If not exactly one word is in brackets, or the word is unknown.
            pub fn parse(text: &str) -> Result<Self, $crate::system::ParseError> {
                match $crate::system::chosen(text)? {
                    $($word => Ok(Self::$variant),)+
                    other => Err($crate::system::ParseError::new(format!(
                        "unknown choice {}",
                        $crate::system::parse::quote(other)
                    ))),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.word())
            }
        }
    };
}
pub(crate) use choice;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bracketed_word_is_the_choice() {
        assert_eq!(chosen("always [madvise] never\n"), Ok("madvise"));
        assert_eq!(
            chosen("always defer [defer+madvise] madvise never\n"),
            Ok("defer+madvise")
        );
        assert_eq!(chosen("[never]"), Ok("never"));
        for text in [
            "",
            "always madvise never",
            "[always] [never]",
            "[]",
            "[ always ]",
            "[a",
            "b]",
        ] {
            assert!(chosen(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn numbers_and_switches() {
        assert_eq!(number("4096\n"), Ok(4096));
        assert_eq!(number("18446744073709551615"), Ok(u64::MAX));
        for text in ["", "-1", "1 2", "0x10", "18446744073709551616"] {
            assert!(number(text).is_err(), "{text:?}");
        }
        assert_eq!(switch("1\n"), Ok(true));
        assert_eq!(switch("0"), Ok(false));
        assert!(switch("2").is_err());
    }

    #[test]
    fn messages_quote_what_was_found_and_stay_short() {
        assert_eq!(
            number("4K\n").unwrap_err().to_string(),
            "\"4K\" is no number"
        );
        let long = "x".repeat(10_000);
        assert!(number(&long).unwrap_err().to_string().len() < 80);
    }

    proptest! {
        #[test]
        fn never_panics(text in ".*") {
            let _ = (number(&text), switch(&text), chosen(&text));
        }

        #[test]
        fn the_choice_is_found_among_others(before in "[a-z]{0,8}", word in "[a-z_+]{1,12}", after in "[a-z]{0,8}") {
            let text = format!("{before} [{word}] {after}\n");
            prop_assert_eq!(chosen(&text), Ok(word.as_str()));
        }
    }
}

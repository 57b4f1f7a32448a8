//! Colors on a terminal, and none elsewhere.
//!
//! A color never carries a meaning of its own: the text beside it says the same. `NO_COLOR` switches colors off, as in other programs
//! (<https://no-color.org>: any value but an empty one), and so does a terminal that says that it is dumb.

use std::env;
use std::io::{IsTerminal, stdout};

/// Meaning of a color.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shade {
    /// The text tells of something that works.
    Good,
    /// Part of it works, or attention is due.
    Doubtful,
    /// The text tells of something that does not work.
    Bad,
    /// The text matters most.
    Strong,
}

/// Way to write text: with colors, or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paint {
    /// Without colors.
    Plain,
    /// With escape sequences of ECMA-48.
    Ansi,
}

impl Paint {
    /// Returns the way that suits standard output.
    pub fn of_stdout() -> Self {
        Self::of(
            stdout().is_terminal(),
            env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()),
            env::var_os("TERM").is_some_and(|term| term == "dumb"),
        )
    }

    const fn of(is_terminal: bool, no_color: bool, is_dumb: bool) -> Self {
        match is_terminal && !no_color && !is_dumb {
            true => Self::Ansi,
            false => Self::Plain,
        }
    }

    /// Returns the text in the color, which ends with it. The text must be harmless to a terminal.
    pub fn text(self, text: &str, shade: Option<Shade>) -> String {
        let code = match (self, shade) {
            (Self::Plain, _) | (_, None) => return text.to_owned(),
            (_, Some(Shade::Good)) => "32",
            (_, Some(Shade::Doubtful)) => "33",
            (_, Some(Shade::Bad)) => "31",
            (_, Some(Shade::Strong)) => "1",
        };
        match text.is_empty() {
            true => String::new(),
            false => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colors_are_for_terminals_that_want_them() {
        assert_eq!(Paint::of(true, false, false), Paint::Ansi);
        for (is_terminal, no_color, is_dumb) in [
            (false, false, false),
            (true, true, false),
            (true, false, true),
        ] {
            let paint = Paint::of(is_terminal, no_color, is_dumb);
            assert_eq!(paint.text("x", Some(Shade::Bad)), "x");
        }
        assert_eq!(Paint::Ansi.text("", Some(Shade::Bad)), "");
        assert_eq!(Paint::Ansi.text("x", None), "x");
    }
}

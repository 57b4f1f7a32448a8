//! `/proc/sys/vm/page_color_*`: colors of tasks that have not requested any.

use serde::Serialize;
use superhue_model::ColorSet;

use super::super::file::hint;
use super::super::{ParseError, switch};
use super::lines::set;
use crate::Roots;

/// Settings of the whole machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ColorSettings {
    /// True if every task without a set takes all colors in turn; `None` if it could not be read.
    pub spread: Option<bool>,
    /// Colors of the kernel's own memory and of tasks without a set, as a list; `None` means any.
    pub unassigned: Option<String>,
}

impl ColorSettings {
    /// Reads the sysctls, all of which every user may read. A missing or malformed one is `None`.
    #[must_use]
    pub fn read(roots: &Roots, colors: usize) -> Self {
        let sysctl = |name: &str| hint(&roots.proc.join("sys/vm").join(name));
        let unassigned = sysctl("page_color_unassigned");
        Self {
            spread: sysctl("page_color_spread").and_then(|text| switch(&text).ok()),
            unassigned: unassigned
                .and_then(|text| Self::parse_set(&text, colors).ok())
                .map(|set| set.to_string()),
        }
    }

    /// Parses a set of colors as sysctls and control groups show it: `0-7,16`.
    ///
    /// # Errors
    /// If it is not a set of `colors` colors.
    pub fn parse_set(text: &str, colors: usize) -> Result<ColorSet, ParseError> {
        set(text.trim(), colors)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn settings_are_read_and_nonsense_is_unknown() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let nothing = ColorSettings::read(&roots, 64);
        assert_eq!((nothing.spread, nothing.unassigned), (None, None));
        let vm = roots.proc.join("sys/vm");
        fs::create_dir_all(&vm).unwrap();
        fs::write(vm.join("page_color_spread"), "1\n").unwrap();
        fs::write(vm.join("page_color_unassigned"), "0-7,16\n").unwrap();
        let read = ColorSettings::read(&roots, 64);
        assert_eq!(read.spread, Some(true));
        assert_eq!(read.unassigned.as_deref(), Some("0-7,16"));
        assert_eq!(
            ColorSettings::read(&roots, 8).unassigned,
            None,
            "no such color"
        );
        fs::write(vm.join("page_color_spread"), "many\n").unwrap();
        fs::write(vm.join("page_color_unassigned"), "\n").unwrap();
        let read = ColorSettings::read(&roots, 64);
        assert_eq!((read.spread, read.unassigned), (None, None));
    }
}

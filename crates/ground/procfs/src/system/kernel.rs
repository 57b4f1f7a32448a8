//! Identity of the running kernel and of its boot.
//!
//! Recorded with every result, so that figures can be distinguished later. Superhue never derives the kernel's *abilities* from
//! its version, but tries them: see [`probe`](crate::probe).

use serde::Serialize;
use superhue_model::ByteCount;

use super::file;
use super::parse::ParseError;
use crate::{ReadError, Roots};

/// The running kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Kernel {
    /// Release, as of `uname -r` (`/proc/sys/kernel/osrelease`).
    pub release: String,
    /// Release, compiler and build (`/proc/version`).
    pub version: Option<String>,
    /// Random number of each boot (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: Option<String>,
    /// Size of a base page (`sysconf(3)`, `_SC_PAGESIZE`). Always that of the running kernel, even
    /// if the rest comes from a recorded tree.
    pub page_size: ByteCount,
}

impl Kernel {
    /// Reads the kernel's identity from `/proc`.
    ///
    /// # Errors
    /// If not even the release can be read.
    pub fn read(roots: &Roots) -> Result<Self, ReadError> {
        let directory = roots.proc.join("sys/kernel");
        Ok(Self {
            release: file::read(
                &directory.join("osrelease"),
                "procfs is not mounted here",
                release,
            )?,
            version: file::hint(&roots.proc.join("version")),
            boot_id: file::hint(&directory.join("random/boot_id")),
            page_size: ByteCount(rustix::param::page_size() as u64),
        })
    }
}

/// Parses a release: one line without blanks.
fn release(text: &str) -> Result<String, ParseError> {
    let trimmed = text.trim_end();
    if trimmed.is_empty() || trimmed.contains(char::is_whitespace) {
        return Err(ParseError::no(text, "release"));
    }
    Ok(trimmed.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_one_word() {
        assert_eq!(release("6.18.0-rc1+\n"), Ok("6.18.0-rc1+".to_owned()));
        for text in ["", "\n", "6.18 beta\n"] {
            assert!(release(text).is_err(), "{text:?}");
        }
    }
}

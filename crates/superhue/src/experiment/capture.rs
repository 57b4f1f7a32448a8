//! The output of a run, kept in memory.

use std::fs::File;
use std::io::{self, Read, Seek};

use rustix::fs::{MemfdFlags, memfd_create};

/// A file without a name that a command writes its output to.
#[derive(Debug)]
pub(crate) struct Capture(File);

impl Capture {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(File::from(memfd_create(
            "superhue-output",
            MemfdFlags::CLOEXEC,
        )?)))
    }

    /// Returns the file that a command should write to.
    pub(crate) const fn file(&self) -> &File {
        &self.0
    }

    /// Returns the output; bytes that are not text are replaced.
    pub(crate) fn text(mut self) -> io::Result<String> {
        let mut bytes = Vec::new();
        self.0.rewind()?;
        self.0.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

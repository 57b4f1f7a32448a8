//! Ownership of kdamonds.
//!
//! DAMON's files exist once for the whole machine, and do not show who set them up. So a superhue that uses them locks a file of its own, and
//! writes the boot and its process number there before its first change. The kernel drops the lock at every kind of death; the words stay:
//!
//! ```text
//!   /run/superhue/damon     locked, any words    a superhue uses DAMON
//!                           free, no words       no superhue uses DAMON
//!                           free, BOOT PID       a superhue died: its kdamonds may still exist
//! ```
//!
//! The words make the next superhue end kdamonds, and the lock keeps other superhues out. So both count only in a file that no other user can have
//! opened. Even then the kdamonds may be those of an administrator, who has removed ours and set up others. [`is_ours`] checks the further
//! conditions.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use superhue_state::{Folder, LockedFile, StateError};

use super::sysfs::Kdamonds;

/// The file's name in its folder.
pub(super) const NAME: &str = "damon";

/// The right to use DAMON, among superhues.
#[derive(Debug)]
pub(super) struct Claim {
    file: LockedFile,
    boot: String,
}

/// Reason why there is no claim.
#[derive(Debug)]
pub(super) enum ClaimError {
    /// Another superhue has it; its process number, if it wrote one.
    Taken(Option<u32>),
    /// The file cannot be used.
    Io(PathBuf, io::Error),
}

impl Claim {
    /// Takes the lock in `folder`, and makes the folder if need be. `boot` is the number of this boot.
    pub(super) fn take(folder: &Path, boot: &str) -> Result<Self, ClaimError> {
        let path = folder.join(NAME);
        let failed = |error| ClaimError::Io(path.clone(), error);
        let made = Folder::make(folder, 0o755).and_then(|folder| folder.private_file(NAME));
        let mut file = made.map_err(|error| match error {
            StateError::Io { path, source, .. } => ClaimError::Io(path, source),
            error => failed(error.into()),
        })?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self {
                file: LockedFile::of(file),
                boot: boot.to_owned(),
            }),
            Err(Errno::WOULDBLOCK) => {
                let words = read(&mut file).unwrap_or_default();
                let pid = words.split_whitespace().nth(1);
                Err(ClaimError::Taken(pid.and_then(|pid| pid.parse().ok())))
            }
            Err(errno) => Err(failed(errno.into())),
        }
    }

    /// Returns true if a former owner died in this boot without clearing up.
    pub(super) fn was_left(&mut self) -> bool {
        let words = read(&mut self.file).unwrap_or_default();
        !self.boot.is_empty() && words.split_whitespace().next() == Some(self.boot.as_str())
    }

    /// Records that from now on kdamonds may be ours.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        let words = format!("{} {}\n", self.boot, std::process::id());
        self.replace(&words)
    }

    /// Records that no kdamond is ours any more.
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.replace("")
    }

    /// Drops the lock, as the kernel does when the owner dies.
    #[cfg(test)]
    pub(super) fn forget_lock(&self) {
        let _ = flock(&*self.file, FlockOperation::Unlock);
    }

    fn replace(&mut self, words: &str) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(words.as_bytes())
    }
}

fn read(file: &mut File) -> io::Result<String> {
    let mut words = String::new();
    file.rewind()?;
    file.take(256).read_to_string(&mut words)?;
    Ok(words)
}

/// Returns true if the existing kdamonds are like ours: as many as we make, and each either off or with all of our settings.
///
/// A kdamond that is off watches nothing, and may be half set up; one that is on was set up whole.
pub(super) fn is_ours(kdamonds: &Kdamonds, expected: u64) -> bool {
    kdamonds.count().is_ok_and(|count| count == expected)
        && (0..expected).all(|index| {
            let kdamond = kdamonds.nth(index);
            match kdamond.is_on() {
                Ok(true) => kdamond.has_our_settings(),
                Ok(false) => true,
                Err(_) => false,
            }
        })
}

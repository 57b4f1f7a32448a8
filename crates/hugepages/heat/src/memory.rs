//! The memory a process had when it was armed.

use std::fs::File;

use superhue_model::ProcessId;
use superhue_procfs::process::{stat, still_is};
use superhue_procfs::{ReadError, Roots};

use super::tracker::TrackError;

/// `/proc/PID/pagemap`, opened once: it stays bound to the memory that the process had then, and
/// reads nothing once that was given up (`pagemap_read` in `fs/proc/task_mmu.c`).
#[derive(Debug)]
pub(super) struct Memory {
    process: ProcessId,
    pagemap: File,
}

impl Memory {
    /// Opens the memory that `process` has now.
    pub(super) fn of(roots: &Roots, process: ProcessId) -> Result<Self, TrackError> {
        let path = roots.of_process(process.pid, "pagemap");
        let pagemap =
            File::open(&path).map_err(|error| ReadError::of_process(process.pid, &path, error))?;
        // The open file stays bound to one process even if the number is reused. Check that it is the one meant.
        if !still_is(roots, process) {
            return Err(ReadError::Vanished { pid: process.pid }.into());
        }
        Ok(Self { process, pagemap })
    }

    /// Returns its page tables as a file of words.
    pub(super) const fn pagemap(&self) -> &File {
        &self.pagemap
    }

    /// Checks that the process still has this memory.
    ///
    /// # Errors
    /// `Replaced`; [`ReadError::Vanished`] if it exited.
    pub(super) fn check(&self, roots: &Roots) -> Result<(), TrackError> {
        let mut word = [0; 8];
        // The first word is there even though nothing is mapped at address 0.
        match rustix::io::pread(&self.pagemap, &mut word, 0) {
            Ok(0) => {}
            Ok(_) => return Ok(()),
            Err(errno) => {
                let path = roots.of_process(self.process.pid, "pagemap");
                return Err(ReadError::of_process(self.process.pid, &path, errno.into()).into());
            }
        }
        let lives = stat(roots, self.process.pid)
            .is_ok_and(|stat| stat.start_ticks == self.process.start_ticks && !stat.is_zombie());
        Err(if lives {
            TrackError::Replaced(self.process)
        } else {
            let pid = self.process.pid;
            ReadError::Vanished { pid }.into()
        })
    }
}

//! `/proc/PID/clear_refs`: clearing the accessed bits of a process, and flushing its TLB entries.
//!
//! `2` clears those of private memory without a file, `1` all. Neither flushes the TLB on x86: a
//! translation that stays there is used without setting the bit again, and a hot page is not seen.
//! The same goes for bits that page_idle clears.
//!
//! `4` ends in a flush of the whole process (`clear_refs_write` in `fs/proc/task_mmu.c`), and that is
//! all it does on a kernel without soft-dirty tracking. On one that has it, it would write-protect
//! every page and wipe marks that checkpointing (CRIU) relies on. So it is written only where a trial
//! shows that there is no such tracking: memory mapped and written a moment ago is always marked
//! soft-dirty (bit 55 of `pagemap`) by a kernel that knows marks.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use superhue_model::{BASE_PAGE_SHIFT, BASE_PAGE_SIZE, ProcessId};
use superhue_procfs::ReadError;
use superhue_procfs::{Roots, process};
use superhue_sys::scratch::Scratch;

const SOFT_DIRTY: u64 = 1 << 55;
const IS_PRESENT: u64 = 1 << 63;

/// Trials that must all agree: another process could wipe the mark between writing and looking.
const TRIALS: usize = 3;

/// How long the kernel held the lock without which the process can neither map memory nor (as a
/// rule) fault.
pub(super) type Locked = Duration;

/// An open `clear_refs`. It belongs to the process and not to its number: when the process is gone
/// writing fails, whoever has the number by then.
#[derive(Debug)]
pub(super) struct ClearRefs {
    pid: u32,
    path: PathBuf,
    file: File,
}

impl ClearRefs {
    pub(super) fn open(roots: &Roots, process: ProcessId) -> Result<Self, ReadError> {
        let pid = process.pid;
        let path = roots.of_process(pid, "clear_refs");
        let opened = OpenOptions::new().write(true).open(&path);
        let file = opened.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::ACCESS | Errno::PERM) => ReadError::Denied {
                path: path.clone(),
                remedy: "run as the process's owner or with CAP_DAC_OVERRIDE",
            },
            Some(Errno::ROFS) => ReadError::Denied {
                path: path.clone(),
                remedy: "its accessed bits are cleared there: mount /proc writable",
            },
            _ => ReadError::of_process(pid, &path, error),
        })?;
        // Opened first, looked at second: what was opened is this process's.
        if !process::still_is(roots, process) {
            return Err(ReadError::Vanished { pid });
        }
        Ok(Self { pid, path, file })
    }

    /// Clears the bits of all its memory, or of private memory without a file.
    #[cfg_attr(
        any(not(feature = "ptwalk"), not(target_arch = "x86_64")),
        expect(
            dead_code,
            reason = "page_idle clears bits by itself, and only needs the flush"
        )
    )]
    pub(super) fn clear(&mut self, all: bool) -> Result<Locked, ReadError> {
        self.write(if all { b"1" } else { b"2" })
    }

    /// Flushes, which only who asked [`may_flush`] may do.
    pub(super) fn flush(&mut self) -> Result<Locked, ReadError> {
        self.write(b"4")
    }

    fn write(&mut self, what: &[u8]) -> Result<Locked, ReadError> {
        let started = Instant::now();
        self.file
            .write_all(what)
            .map_err(|error| ReadError::of_process(self.pid, &self.path, error))?;
        Ok(started.elapsed())
    }
}

/// Whether `4` is known to do nothing but flush. `false` in any doubt.
pub(super) fn may_flush(roots: &Roots) -> bool {
    (0..TRIALS).all(|_| is_marked(roots) == Some(false))
}

/// Whether memory just written is marked soft-dirty; `None` if that could not be found out.
fn is_marked(roots: &Roots) -> Option<bool> {
    let mut scratch = Scratch::untouched(BASE_PAGE_SIZE as usize).ok()?;
    scratch.touch();
    let pagemap = File::open(roots.proc.join("self/pagemap")).ok()?;
    let mut word = [0; 8];
    let offset = (scratch.range().start.0 >> BASE_PAGE_SHIFT) * 8;
    pagemap.read_exact_at(&mut word, offset).ok()?;
    let word = u64::from_ne_bytes(word);
    // What is not present says nothing (a page swapped out at once).
    (word & IS_PRESENT != 0).then_some(word & SOFT_DIRTY != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_flushed_where_marks_cannot_be_seen() {
        let nowhere = tempfile::tempdir().unwrap();
        assert!(!may_flush(&Roots::under(nowhere.path())));
    }

    /// The trial against what the kernel says of itself, where it does.
    #[test]
    fn the_trial_agrees_with_the_kernels_configuration() {
        let Ok(config) = std::process::Command::new("zcat")
            .arg("/proc/config.gz")
            .output()
        else {
            return;
        };
        let config = String::from_utf8_lossy(&config.stdout);
        if config.contains("CONFIG_MEM_SOFT_DIRTY=y") {
            assert!(!may_flush(&Roots::default()));
        } else if config.contains("# CONFIG_MEM_SOFT_DIRTY is not set") {
            assert!(may_flush(&Roots::default()));
        }
    }
}

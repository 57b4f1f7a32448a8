//! `/proc/PID/clear_refs`: clearing the accessed bits of a process, and flushing its TLB entries.
//!
//! `2` clears the bits of private memory without a file, `1` all. Neither flushes the TLB on x86: the processor uses a translation that stays there
//! without setting the bit again, so a hot page looks cold. The same holds for bits that page_idle clears.
//!
//! `4` ends in a flush of the whole process (`clear_refs_write` in `fs/proc/task_mmu.c`), and does nothing else on a kernel without soft-dirty
//! tracking. On a kernel with it, `4` would write-protect every page, and wipe marks that checkpointing (CRIU) relies on. So Superhue writes it
//! only where a trial shows that there is no such tracking: a kernel that knows marks always marks memory mapped and written a moment ago as
//! soft-dirty (bit 55 of `pagemap`).

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

/// Bytes of memory that are measured, beside those that the process has.
const MEASURED: usize = 4 << 21;

/// Trials that must all agree: another process could wipe the mark between writing and looking.
const TRIALS: usize = 3;

/// Time for which the kernel held the lock that the process needs to map memory and (as a rule) to fault.
pub(super) type LockTime = Duration;

/// An open `clear_refs`. It is bound to the process, not to its number: after the process has exited, writing fails even if the number is reused.
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
        // The check comes after the open, so that the opened file belongs to this process.
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
    pub(super) fn clear(&mut self, all: bool) -> Result<LockTime, ReadError> {
        self.write(if all { b"1" } else { b"2" })
    }

    /// Flushes the TLB entries. The caller must have checked [`may_flush`].
    pub(super) fn flush(&mut self) -> Result<LockTime, ReadError> {
        self.write(b"4")
    }

    fn write(&mut self, what: &[u8]) -> Result<LockTime, ReadError> {
        let started = Instant::now();
        self.file
            .write_all(what)
            .map_err(|error| ReadError::of_process(self.pid, &self.path, error))?;
        Ok(started.elapsed())
    }
}

/// Measures the time that clearing one accessed bit takes here: of all private memory of this process, and some more. `None` where that fails.
///
/// The least of some trials, in a process whose other threads are mostly idle. Threads that access the memory at the same time prolong it.
#[must_use]
pub fn clearing_cost(roots: &Roots) -> Option<Duration> {
    let mut scratch = Scratch::in_base_pages(MEASURED).ok()?;
    let own = std::process::id();
    let path = roots.of_process(own, "clear_refs");
    let mut file = OpenOptions::new().write(true).open(path).ok()?;
    let mut least = Duration::MAX;
    for trial in 0..TRIALS {
        // Sets the bits.
        scratch.fill(trial as u64);
        let begun = Instant::now();
        file.write_all(b"2").ok()?;
        least = least.min(begun.elapsed());
    }
    let pages = process::resident_now(roots, own).ok()?.anonymous().0;
    let each = least.as_nanos() / u128::from(pages.max(1));
    u64::try_from(each).ok().map(Duration::from_nanos)
}

/// Returns true if `4` is known to do nothing but flush; `false` in any doubt.
pub(super) fn may_flush(roots: &Roots) -> bool {
    (0..TRIALS).all(|_| is_marked(roots) == Some(false))
}

/// Returns true if memory just written is marked soft-dirty; `None` if that could not be found out.
fn is_marked(roots: &Roots) -> Option<bool> {
    let mut scratch = Scratch::untouched(BASE_PAGE_SIZE as usize).ok()?;
    scratch.touch();
    let pagemap = File::open(roots.proc.join("self/pagemap")).ok()?;
    let mut word = [0; 8];
    let offset = (scratch.range().start.0 >> BASE_PAGE_SHIFT) * 8;
    pagemap.read_exact_at(&mut word, offset).ok()?;
    let word = u64::from_ne_bytes(word);
    // A page that is not present (swapped out at once) shows nothing.
    (word & IS_PRESENT != 0).then_some(word & SOFT_DIRTY != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clearing_a_bit_takes_some_nanoseconds() {
        let cost = clearing_cost(&Roots::default()).unwrap();
        // A busy machine may take its CPU away in each of the trials.
        assert!(
            cost > Duration::ZERO && cost < Duration::from_millis(1),
            "{cost:?}"
        );
        let nowhere = tempfile::tempdir().unwrap();
        assert_eq!(clearing_cost(&Roots::under(nowhere.path())), None);
    }

    #[test]
    fn nothing_is_flushed_where_marks_cannot_be_seen() {
        let nowhere = tempfile::tempdir().unwrap();
        assert!(!may_flush(&Roots::under(nowhere.path())));
    }

    /// Compares the trial with the kernel's configuration, where the kernel shows it.
    #[test]
    fn the_trial_agrees_with_the_kernels_configuration() {
        let config = std::process::Command::new("zcat")
            .arg("/proc/config.gz")
            .output();
        let config = config.map(|output| output.stdout).unwrap_or_default();
        let config = String::from_utf8_lossy(&config);
        if config.contains("CONFIG_MEM_SOFT_DIRTY=y") {
            assert!(!may_flush(&Roots::default()));
        } else if config.contains("# CONFIG_MEM_SOFT_DIRTY is not set") {
            assert!(may_flush(&Roots::default()));
        } else {
            superhue_testing::skip(
                "config.gz",
                "/proc/config.gz does not tell whether soft-dirty marks are built in",
            );
        }
    }
}

//! At most one superhue for each target.
//!
//! A superhue that tracks a process holds a `flock(2)` on `/proc/PID/personality`. Every process has that file. Only its owner and root may open
//! it, so other users cannot block the lock. The open file keeps no resource of the process alive, and its inode belongs to this process and to no
//! later one with its number. The kernel drops the lock at any death of the holder; `/proc/locks` shows the holder, and the link in
//! `/proc/HOLDER/fd` shows the target.
//!
//! Two superhues that see the same process through different mounts of procfs (as in another container) do not exclude each other.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::{FlockOperation, flock};
use superhue_model::ProcessId;
use superhue_procfs::process::still_is;
use superhue_procfs::{ReadError, Roots};
use superhue_state::LockedFile;

use super::TrackError;

/// The file that is locked.
pub(super) const NAME: &str = "personality";

/// Files of all locks of this process, of which some may be gone; `None` once it takes no more.
static FILES: Mutex<Option<Vec<Weak<LockedFile>>>> = Mutex::new(Some(Vec::new()));

/// The right to track a process, until it is dropped or the holder dies.
#[derive(Debug)]
pub struct TargetLock {
    _file: Arc<LockedFile>,
}

impl TargetLock {
    /// Takes the lock.
    ///
    /// # Errors
    /// [`TrackError::Foreign`] while another superhue (or another tracker in this one) tracks the process; [`TrackError::Read`] if the process has
    /// exited, or is not the caller's.
    pub fn take(roots: &Roots, process: ProcessId) -> Result<Self, TrackError> {
        let pid = process.pid;
        let path = roots.of_process(pid, NAME);
        let sort = |error| ReadError::of_process(pid, &path, error);
        let file = File::open(&path).map_err(sort)?;
        if !still_is(roots, process) {
            return Err(ReadError::Vanished { pid }.into());
        }
        let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(files) = &mut *files else {
            return Err(sort(io::ErrorKind::Interrupted.into()).into());
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                let file = Arc::new(LockedFile::of(file));
                files.retain(|file| file.strong_count() > 0);
                files.push(Arc::downgrade(&file));
                Ok(Self { _file: file })
            }
            Err(rustix::io::Errno::WOULDBLOCK) => Err(taken(roots, pid, &file)),
            Err(errno) => Err(sort(io::Error::from(errno)).into()),
        }
    }
}

/// Drops all locks of this process, which is about to end, and takes no more. A thread that a target holds up keeps the files open even after a kill, and
/// the next tracker would find the locks taken.
pub fn release_target_locks() {
    let files = FILES.lock().unwrap_or_else(PoisonError::into_inner).take();
    release(&files.unwrap_or_default());
}

fn release(files: &[Weak<LockedFile>]) {
    for file in files.iter().filter_map(Weak::upgrade) {
        let _ = flock(&**file, FlockOperation::Unlock);
    }
}

fn taken(roots: &Roots, pid: u32, file: &File) -> TrackError {
    let locks = fs::read(roots.proc.join("locks")).unwrap_or_default();
    let inode = file.metadata().map_or(0, |metadata| metadata.ino());
    match lock_holder(&locks, inode) {
        Some(by) if by == std::process::id() => TrackError::Foreign {
            by: "another tracker of this superhue".to_owned(),
            remedy: format!("name process {pid} once only"),
        },
        Some(by) => TrackError::Foreign {
            by: format!("superhue (process {by})"),
            remedy: format!("end process {by} first, or leave process {pid} to it"),
        },
        None => TrackError::Foreign {
            by: "another superhue".to_owned(),
            remedy: "end it first (`fuser -v` of that process's file `personality` tells which it \
                     is)"
            .to_owned(),
        },
    }
}

/// Returns the holder of a `flock` on the file with this inode, from the text of `/proc/locks`:
///
/// ```text
///   1: FLOCK  ADVISORY  WRITE 28769 00:15:966340 0 EOF
///   1: -> FLOCK  ADVISORY  WRITE 28770 00:15:966340 0 EOF       (waits)
/// ```
///
/// Ignores the device: `stat(2)` may show another one than the kernel's own (btrfs).
#[must_use]
pub fn lock_holder(locks: &[u8], inode: u64) -> Option<u32> {
    String::from_utf8_lossy(locks).lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        if fields.next()? != "FLOCK" {
            return None;
        }
        let pid: u32 = fields.nth(2)?.parse().ok()?;
        let file = fields.next()?;
        let found: u64 = file.rsplit(':').next()?.parse().ok()?;
        // 0: the holder is in another PID namespace.
        (found == inode && pid > 0).then_some(pid)
    })
}

/// Returns the process that a holder of this open file tracks, from the path of its link.
pub(super) fn target(link: &Path) -> Option<u32> {
    let mut names = link.components().rev().map(|name| name.as_os_str());
    if names.next()? != NAME {
        return None;
    }
    names.next()?.to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use superhue_procfs::process::identify;

    use super::*;

    #[test]
    fn a_target_has_one_tracker_at_a_time() {
        let roots = Roots::default();
        let process = identify(&roots, std::process::id()).unwrap();
        let lock = TargetLock::take(&roots, process).unwrap();
        let error = TargetLock::take(&roots, process).unwrap_err();
        assert!(matches!(error, TrackError::Foreign { .. }), "{error}");
        assert!(
            error
                .to_string()
                .contains("another tracker of this superhue"),
            "{error}"
        );
        drop(lock);
        let held = TargetLock::take(&roots, process).unwrap();
        // Other tests of this process hold locks, too.
        release(&[Arc::downgrade(&held._file)]);
        TargetLock::take(&roots, process).unwrap();
        drop(held);
    }

    #[test]
    fn a_dropped_lock_is_free_although_a_child_has_the_file() {
        let roots = Roots::default();
        let child = std::process::Command::new("sleep").arg("600").spawn();
        let mut child = child.unwrap();
        let process = identify(&roots, child.id()).unwrap();
        let lock = TargetLock::take(&roots, process).unwrap();
        // As fork does it.
        let inherited = lock._file.try_clone().unwrap();
        drop(lock);
        let again = TargetLock::take(&roots, process);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(again.is_ok(), "{again:?}");
        drop(inherited);
    }

    #[test]
    fn a_process_that_is_gone_or_another_is_not_locked() {
        let roots = Roots::default();
        let mut process = identify(&roots, std::process::id()).unwrap();
        process.start_ticks += 1;
        let error = TargetLock::take(&roots, process).unwrap_err();
        let TrackError::Read(error) = error else {
            panic!("{error}");
        };
        assert!(error.is_vanished());
        process.pid = u32::MAX;
        assert!(TargetLock::take(&roots, process).is_err());
    }

    #[test]
    fn the_holder_is_named() {
        let locks = b"1: POSIX  ADVISORY  WRITE 11 00:15:966340 0 EOF\n\
                      2: -> FLOCK  ADVISORY  WRITE 12 00:15:966340 0 EOF\n\
                      3: FLOCK  ADVISORY  WRITE 28769 00:15:966340 0 EOF\n\
                      4: FLOCK  ADVISORY  WRITE 0 00:15:966341 0 EOF\n";
        assert_eq!(lock_holder(locks, 966_340), Some(28769));
        assert_eq!(lock_holder(locks, 966_341), None);
        assert_eq!(lock_holder(b"", 1), None);
        assert_eq!(target(Path::new("/proc/77/personality")), Some(77));
        assert_eq!(target(Path::new("/proc/77/stat")), None);
        assert_eq!(target(Path::new("/etc/personality")), None);
        assert_eq!(target(Path::new("")), None);
    }

    proptest! {
        #[test]
        fn nonsense_never_panics(locks: Vec<u8>, inode: u64) {
            let _ = lock_holder(&locks, inode);
        }
    }
}

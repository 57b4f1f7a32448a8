//! Palette files: their places, the users that may have written them, and their replacement.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::CWD;
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, FlockOperation, MemfdFlags, Mode, OFlags, Stat, fallocate,
    fchmod, flock, fstat, ftruncate, memfd_create, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use superhue_model::BASE_PAGE_SIZE;
use superhue_state::{Folder, StateError};

use superhue_sys::collapse::is_in_memory;

use super::PaletteError;

/// Suffix of a lock's name.
const LOCK: &str = ".lock";

/// Larger files are no palettes: 4 GiB.
const MAX_PALETTE_BYTES: u64 = 1 << 32;

fn failed(what: &'static str, path: &Path) -> impl FnOnce(Errno) -> PaletteError {
    let path = path.to_owned();
    move |errno| PaletteError::System { what, path, errno }
}

fn untrusted(path: &Path, reason: &str) -> PaletteError {
    PaletteError::Untrusted {
        path: path.to_owned(),
        reason: reason.to_owned(),
    }
}

/// Opens a palette file for reading and returns it with its length, if its owner is root or the own user.
///
/// # Errors
/// [`PaletteError::Missing`]; [`PaletteError::Untrusted`] with the reason; others of `open(2)`.
pub(super) fn open(path: &Path) -> Result<(OwnedFd, u64), PaletteError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match openat(CWD, path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::NOTDIR) => {
            return Err(PaletteError::Missing(path.to_owned()));
        }
        Err(Errno::LOOP) => return Err(untrusted(path, "it is a symbolic link")),
        Err(errno) => return Err(failed("open", path)(errno)),
    };
    let length = length_of(&file, path)?;
    Ok((file, length))
}

/// Returns the length in bytes of an open file, if its owner, mode, type, size and file system allow a palette.
pub(super) fn length_of(file: &OwnedFd, path: &Path) -> Result<u64, PaletteError> {
    let stat = fstat(file).map_err(failed("examine", path))?;
    if let Some(reason) = distrust(&stat, geteuid().as_raw()) {
        return Err(untrusted(path, reason));
    }
    if !is_in_memory(file).map_err(failed("examine the file system of", path))? {
        return Err(untrusted(path, "it is not in memory (no tmpfs)"));
    }
    u64::try_from(stat.st_size).map_err(|_| untrusted(path, "it has no size"))
}

/// Returns the reason not to trust such a file; `None` if there is none.
fn distrust(stat: &Stat, us: u32) -> Option<&'static str> {
    let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        Some("it is no regular file")
    } else if stat.st_uid != 0 && stat.st_uid != us {
        Some("it belongs to another user")
    } else if stat.st_mode & 0o022 != 0 {
        Some("others may write to it")
    } else if size == 0 || !size.is_multiple_of(BASE_PAGE_SIZE) || size > MAX_PALETTE_BYTES {
        Some("it does not have the size of a palette")
    } else {
        None
    }
}

/// A palette file that is being made.
#[derive(Debug)]
pub(super) struct Draft {
    file: OwnedFd,
    /// The path that errors name.
    path: PathBuf,
    named: Option<TempPaletteFile>,
}

/// A file under a temporary name beside its final place. It takes that place in one step when it is ready; the lock
/// keeps other processes from making one meanwhile. Dropped unfinished, it is removed.
#[derive(Debug)]
struct TempPaletteFile {
    /// The temporary path.
    path: PathBuf,
    place: PathBuf,
    /// Held until this is dropped.
    _lock: File,
    finished: bool,
}

/// Waits until no other process makes a palette for this place, at most `patience`.
///
/// # Errors
/// [`PaletteError::Locked`]; [`PaletteError::Untrusted`] if another user may hold the lock for ever, because that user
/// owns it or may open it; those of the kernel.
pub(super) fn lock(place: &Path, patience: Duration) -> Result<File, PaletteError> {
    let (Some(parent), Some(_)) = (place.parent(), place.file_name()) else {
        return Err(untrusted(place, "it is no place for a file"));
    };
    let folder = match Folder::open(parent).map_err(told)? {
        Some(folder) => folder,
        // Makes one level only: the folders above belong to the system.
        None => Folder::make(parent, 0o755).map_err(told)?,
    };
    let path = beside(place, LOCK);
    folder
        .lock(path.file_name().unwrap_or_default(), patience)
        .map_err(told)
}

fn told(error: StateError) -> PaletteError {
    match error {
        StateError::Untrusted { path, reason, .. } => PaletteError::Untrusted {
            path,
            reason: format!(
                "{reason}; root can remove it, and a palette that root makes (`superhue colors`) is for everybody"
            ),
        },
        error @ StateError::Locked { .. } => PaletteError::Locked(error.to_string()),
        StateError::Io { what, path, source } => PaletteError::System {
            what,
            path,
            errno: Errno::from_io_error(&source).unwrap_or(Errno::IO),
        },
    }
}

/// Returns true if an open file is the one at `path`.
fn is_at(file: &OwnedFd, path: &Path) -> bool {
    match (fstat(file), statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)) {
        (Ok(open), Ok(there)) => (open.st_dev, open.st_ino) == (there.st_dev, there.st_ino),
        _ => false,
    }
}

impl Draft {
    /// Makes an empty file of `length` bytes, all of them in memory, under the lock of its place.
    ///
    /// # Errors
    /// Errors of `open(2)` and `fallocate(2)`: `ENOSPC` where the file system is full.
    pub(super) fn new(place: &Path, lock: File, length: u64) -> Result<Self, PaletteError> {
        let path = beside(place, ".new");
        // A process that was killed may have left one behind: we hold the lock.
        let _ = unlinkat(CWD, &path, AtFlags::empty());
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o644);
        let file = openat(CWD, &path, flags, mode).map_err(|errno| match errno {
            Errno::EXIST => untrusted(
                &path,
                "somebody else has put it there, and only they and root can remove it",
            ),
            errno => failed("create", &path)(errno),
        })?;
        let draft = Self {
            file,
            path: path.clone(),
            named: Some(TempPaletteFile {
                path,
                place: place.to_owned(),
                _lock: lock,
                finished: false,
            }),
        };
        // Independent of the umask: other users may read the palettes that root has found.
        fchmod(&draft.file, mode).map_err(failed("set the mode of", &draft.path))?;
        require_in_memory(&draft.file, place)?;
        draft.reserve(length)?;
        Ok(draft)
    }

    /// Makes one without a name, for this process alone.
    ///
    /// # Errors
    /// Errors of `memfd_create(2)` and `fallocate(2)`.
    pub(super) fn unnamed(length: u64) -> Result<Self, PaletteError> {
        let path = PathBuf::from("memory of this process");
        let file = memfd_create("superhue-palette", MemfdFlags::CLOEXEC)
            .map_err(failed("create", &path))?;
        let mode = Mode::RUSR | Mode::WUSR;
        fchmod(&file, mode).map_err(failed("set the mode of", &path))?;
        let named = None;
        let draft = Self { file, path, named };
        draft.reserve(length)?;
        Ok(draft)
    }

    fn reserve(&self, length: u64) -> Result<(), PaletteError> {
        ftruncate(&self.file, length).map_err(failed("set the size of", &self.path))?;
        fallocate(&self.file, FallocateFlags::empty(), 0, length)
            .map_err(failed("find memory for", &self.path))
    }

    pub(super) const fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Returns the path that errors name.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives back the pages that are not in `used` (numbers in the file), except the first `head`.
    ///
    /// # Errors
    /// Errors of `fallocate(2)`.
    pub(super) fn punch(&self, head: u32, used: &[u32], pages: u32) -> Result<(), PaletteError> {
        let mut used = used.to_vec();
        used.sort_unstable();
        let mut next = head;
        for end in used.into_iter().chain([pages]) {
            if end > next {
                let offset = u64::from(next) * BASE_PAGE_SIZE;
                let length = u64::from(end - next) * BASE_PAGE_SIZE;
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&self.file, how, offset, length)
                    .map_err(failed("give memory back from", &self.path))?;
            }
            next = end.saturating_add(1);
        }
        Ok(())
    }

    /// Writes the start of the file.
    ///
    /// # Errors
    /// Errors of `pwrite(2)`.
    pub(super) fn write(&self, bytes: &[u8]) -> Result<(), PaletteError> {
        let mut written = 0;
        while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pwrite(&self.file, rest, written as u64) {
                Ok(0) => return Err(failed("write", &self.path)(Errno::IO)),
                Ok(more) => written += more,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed("write", &self.path)(errno)),
            }
        }
        Ok(())
    }

    /// Moves it to its place, if it has one; processes that use the previous file keep that.
    ///
    /// # Errors
    /// Errors of `rename(2)`.
    pub(super) fn finish(mut self) -> Result<OwnedFd, PaletteError> {
        if let Some(named) = &mut self.named {
            renameat(CWD, &named.path, CWD, &named.place).map_err(failed("rename", &named.path))?;
            named.finished = true;
        }
        Ok(self.file)
    }
}

/// Refuses folders whose files are not in memory, before anything is written there.
fn require_in_memory(file: &OwnedFd, path: &Path) -> Result<(), PaletteError> {
    if is_in_memory(file).map_err(failed("examine the file system of", path))? {
        Ok(())
    } else {
        Err(untrusted(
            path,
            "a file there would not be in memory (no tmpfs)",
        ))
    }
}

impl Drop for TempPaletteFile {
    fn drop(&mut self) {
        if !self.finished {
            // An error is harmless here: the next draft removes the file again.
            let _ = unlinkat(CWD, &self.path, AtFlags::empty());
        }
    }
}

/// Removes a palette file and its lock and leftovers; returns true if there was one. Files of other users stay.
///
/// # Errors
/// Errors of `unlink(2)`.
pub(super) fn remove(place: &Path) -> Result<bool, PaletteError> {
    let us = geteuid();
    let theirs = |stat: Stat| stat.st_uid != us.as_raw();
    if !us.is_root() && statat(CWD, place, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(theirs) {
        return Ok(false);
    }
    remove_leftovers(place);
    match unlinkat(CWD, place, AtFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        Err(errno) => Err(failed("remove", place)(errno)),
    }
}

/// Removes the lock, and the leftover of a process that was killed while it made a palette; both stay while a process makes one.
fn remove_leftovers(place: &Path) {
    let lock = beside(place, LOCK);
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(file) = openat(CWD, &lock, flags, Mode::empty()) else {
        return;
    };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() && is_at(&file, &lock) {
        // An error is harmless here: the next draft removes the files again.
        let _ = unlinkat(CWD, beside(place, ".new"), AtFlags::empty());
        let _ = unlinkat(CWD, &lock, AtFlags::empty());
    }
}

fn beside(place: &Path, suffix: &str) -> PathBuf {
    let mut name = place.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

//! Folders whose files Superhue trusts.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fchmod, fstat, fsync, major, minor, mkdirat,
    openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::file::read_bounded;
use crate::{StateError, lock_within};

/// Mode bits that let other users write.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;
/// Mode of a file for its owner alone.
const PRIVATE: u32 = 0o600;

/// Open folder, owned by root or by this process's user, in which no other user can change this user's files.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
    path: PathBuf,
}

/// Use of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    /// The file is opened for its lock, so no other user may be able to open it.
    Lock,
}

impl Folder {
    /// Opens a folder. Makes it first if it is missing, with exactly these permissions, independent of the umask.
    /// Removes excess permissions from a folder of this process's user.
    ///
    /// # Errors
    /// [`StateError::Untrusted`] if it belongs to another user; errors of the kernel.
    pub fn make(path: &Path, mode: u32) -> Result<Self, StateError> {
        let is_new = match mkdirat(CWD, path, Mode::from_raw_mode(mode)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(StateError::io("make the folder", path)(errno)),
        };
        let fd = open_folder(path)?;
        let stat = fstat(&fd).map_err(StateError::io("examine", path))?;
        let now = stat.st_mode & 0o7777;
        let wanted = if is_new { mode } else { now & mode };
        // Folders with the sticky bit (`/tmp`, `/dev/shm`) belong to the system.
        if stat.st_uid == geteuid().as_raw() && now != wanted && now & STICKY == 0 {
            fchmod(&fd, Mode::from_raw_mode(wanted))
                .map_err(StateError::io("set the mode of", path))?;
        }
        Self::trusted(fd, path)
    }

    /// Opens an existing folder; `None` if there is none.
    ///
    /// # Errors
    /// As [`Self::make`].
    pub fn open(path: &Path) -> Result<Option<Self>, StateError> {
        match open_folder(path) {
            Ok(fd) => Self::trusted(fd, path).map(Some),
            Err(StateError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn trusted(fd: OwnedFd, path: &Path) -> Result<Self, StateError> {
        let stat = fstat(&fd).map_err(StateError::io("examine", path))?;
        if let Some(reason) = foreign(&stat) {
            return Err(StateError::untrusted(path, reason));
        }
        if stat.st_mode & OTHERS_WRITE != 0 && stat.st_mode & STICKY == 0 {
            return Err(StateError::Untrusted {
                path: path.to_owned(),
                reason: "others may write to it".to_owned(),
                remedy: "forbid that (chmod go-w), and look what they have left there",
            });
        }
        Ok(Self {
            fd,
            path: path.to_owned(),
        })
    }

    /// Returns the path by which the folder was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if only this process's user and root can reach its files.
    #[must_use]
    pub fn is_private(&self) -> bool {
        let stat = fstat(&self.fd);
        stat.is_ok_and(|stat| not_ours(&stat).is_none() && stat.st_mode & 0o077 == 0)
    }

    /// The names of its entries, sorted.
    ///
    /// # Errors
    /// Errors of `getdents(2)`.
    pub fn names(&self) -> Result<Vec<OsString>, StateError> {
        let failed = || StateError::io("list", &self.path);
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd).map_err(failed())? {
            let name = entry.map_err(failed())?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        names.sort();
        Ok(names)
    }

    /// Opens a file for reading; `None` if there is none.
    ///
    /// # Errors
    /// [`StateError::Untrusted`] if another user can have written it; errors of the kernel.
    pub fn open_file(&self, name: impl AsRef<Path>) -> Result<Option<File>, StateError> {
        let path = self.path.join(name.as_ref());
        match self.open_at(name.as_ref(), OFlags::RDONLY) {
            Ok(file) => {
                require_trusted(&file, &path, Use::Read)?;
                Ok(Some(file.into()))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(refused(&path, errno)),
        }
    }

    /// Reads the contents of a file of at most `largest` bytes.
    ///
    /// # Errors
    /// Errors of the kernel; the file is larger.
    pub fn read(
        &self,
        name: impl AsRef<Path>,
        file: &File,
        largest: u64,
    ) -> Result<Vec<u8>, StateError> {
        let read = file
            .try_clone()
            .and_then(|file| read_bounded(file, largest));
        read.map_err(|source| StateError::Io {
            what: "read",
            path: self.path.join(name.as_ref()),
            source,
        })
    }

    /// Makes a new file with mode 0600, independent of the umask.
    ///
    /// # Errors
    /// Errors of `open(2)`.
    pub fn create_file(&self, name: impl AsRef<Path>) -> Result<File, StateError> {
        let path = self.path.join(name.as_ref());
        let file = self
            .open_at(name.as_ref(), OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
            .map_err(StateError::io("make", &path))?;
        fchmod(&file, Mode::from_raw_mode(PRIVATE))
            .map_err(StateError::io("set the mode of", &path))?;
        Ok(file.into())
    }

    /// Opens a file for writing and locking; only its owner, this process's user, can open it. Makes the file if it is
    /// missing.
    ///
    /// # Errors
    /// [`StateError::Untrusted`] if another user can have opened it; errors of the kernel.
    pub fn private_file(&self, name: impl AsRef<Path>) -> Result<File, StateError> {
        let path = self.path.join(name.as_ref());
        let found = match self.open_at(name.as_ref(), OFlags::RDWR) {
            // `O_CREAT` only after `ENOENT`: in sticky folders kernels refuse to open another user's file with it
            // (`fs.protected_regular`).
            Err(Errno::NOENT) => {
                match self.open_at(name.as_ref(), OFlags::RDWR | OFlags::CREATE | OFlags::EXCL) {
                    Err(Errno::EXIST) => self.open_at(name.as_ref(), OFlags::RDWR),
                    made => made,
                }
            }
            found => found,
        };
        let file = match found {
            Ok(file) => file,
            Err(errno @ (Errno::ACCESS | Errno::PERM)) => {
                let stat = statat(&self.fd, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW);
                return Err(match stat.ok().as_ref().and_then(not_ours) {
                    Some(reason) => StateError::untrusted(&path, reason),
                    None => StateError::io("open", &path)(errno),
                });
            }
            Err(errno) => return Err(refused(&path, errno)),
        };
        require_trusted(&file, &path, Use::Lock)?;
        Ok(file.into())
    }

    /// Takes the lock `name` of this folder until the caller drops the file. Makes the lock file if it is missing.
    ///
    /// # Errors
    /// [`StateError::Locked`] if another process holds it for longer than `patience`; otherwise as
    /// [`Self::private_file`].
    pub fn lock(&self, name: impl AsRef<Path>, patience: Duration) -> Result<File, StateError> {
        let path = self.path.join(name.as_ref());
        loop {
            let file = self.private_file(name.as_ref())?;
            let taken = lock_within(&file, patience).map_err(StateError::io("lock", &path))?;
            if !taken {
                return Err(StateError::Locked {
                    path,
                    waited: patience,
                    holder: holder(&file),
                });
            }
            // Otherwise another process has removed the lock file during the wait, and the next turn makes a new one.
            if self.is_at(&file, name.as_ref()) {
                return Ok(file);
            }
        }
    }

    /// Returns true if the open file is the one with this name.
    fn is_at(&self, file: &File, name: &Path) -> bool {
        match (
            fstat(file),
            statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW),
        ) {
            (Ok(open), Ok(there)) => (open.st_dev, open.st_ino) == (there.st_dev, there.st_ino),
            _ => false,
        }
    }

    /// Renames a file, replaces any file of the new name, and makes the change durable.
    ///
    /// # Errors
    /// Errors of `rename(2)` and `fsync(2)`.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), StateError> {
        let path = self.path.join(from.as_ref());
        renameat(&self.fd, from.as_ref(), &self.fd, to.as_ref())
            .and_then(|()| fsync(&self.fd))
            .map_err(StateError::io("rename", &path))
    }

    /// Removes a file. A missing file is no failure.
    ///
    /// # Errors
    /// Errors of `unlink(2)`.
    pub fn remove(&self, name: impl AsRef<Path>) -> Result<(), StateError> {
        match unlinkat(&self.fd, name.as_ref(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(StateError::io("remove", &self.path.join(name.as_ref()))(
                errno,
            )),
        }
    }

    fn open_at(&self, name: &Path, how: OFlags) -> Result<OwnedFd, Errno> {
        // Before the type is known: opening a pipe must not block, and a terminal must not become the controlling
        // terminal.
        let flags = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        openat(&self.fd, name, flags, Mode::from_raw_mode(PRIVATE))
    }
}

fn open_folder(path: &Path) -> Result<OwnedFd, StateError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOTDIR | Errno::LOOP => StateError::untrusted(path, "it is no folder"),
        errno => StateError::io("open", path)(errno),
    })
}

fn refused(path: &Path, errno: Errno) -> StateError {
    match errno {
        Errno::LOOP => StateError::untrusted(path, "it is a symbolic link"),
        // A socket, or a folder opened for writing.
        Errno::NXIO | Errno::ISDIR => StateError::untrusted(path, "it is no regular file"),
        errno => StateError::io("open", path)(errno),
    }
}

fn require_trusted(file: &OwnedFd, path: &Path, how: Use) -> Result<(), StateError> {
    let stat = fstat(file).map_err(StateError::io("examine", path))?;
    let reason = if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        Some("it is no regular file".to_owned())
    } else if stat.st_nlink > 1 {
        Some("it has other names besides".to_owned())
    } else if how == Use::Lock {
        not_ours(&stat)
    } else {
        foreign(&stat)
    };
    let reason = reason.or_else(|| {
        let forbidden = if how == Use::Lock {
            0o077
        } else {
            OTHERS_WRITE
        };
        let others_may = if how == Use::Lock {
            "others may open it, and so may hold its lock"
        } else {
            "others may write to it"
        };
        (stat.st_mode & forbidden != 0).then(|| others_may.to_owned())
    });
    reason.map_or(Ok(()), |reason| Err(StateError::untrusted(path, reason)))
}

/// Names the owner, if that is neither root nor this process's user.
fn foreign(stat: &Stat) -> Option<String> {
    let us = geteuid().as_raw();
    (stat.st_uid != 0 && stat.st_uid != us).then(|| belongs(stat))
}

/// Names the owner, if that is not this process's user.
fn not_ours(stat: &Stat) -> Option<String> {
    (stat.st_uid != geteuid().as_raw()).then(|| belongs(stat))
}

fn belongs(stat: &Stat) -> String {
    format!("it belongs to user {}", stat.st_uid)
}

/// Finds the process that holds the lock of a file, as far as `/proc/locks` names it.
fn holder(file: &File) -> Option<u32> {
    let stat = fstat(file).ok()?;
    let device = (major(stat.st_dev), minor(stat.st_dev));
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        // 3: FLOCK  ADVISORY  WRITE 28769 00:15:966340 0 EOF
        let mut words = line.split_ascii_whitespace().skip(1);
        let is_flock = words.next() == Some("FLOCK");
        let pid: u32 = words.nth(2)?.parse().ok()?;
        let mut file = words.next()?.split(':');
        let mut hex = || u32::from_str_radix(file.next()?, 16).ok();
        let found = (hex()?, hex()?);
        let inode: u64 = file.next()?.parse().ok()?;
        (is_flock && found == device && inode == stat.st_ino && pid > 0).then_some(pid)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use superhue_testing::{NOBODY, is_root, skip};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    fn private() -> (tempfile::TempDir, Folder) {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::make(&root.path().join("ours"), 0o700).unwrap();
        (root, folder)
    }

    fn reason<T: std::fmt::Debug>(result: Result<T, StateError>) -> String {
        let error = result.unwrap_err();
        assert!(matches!(error, StateError::Untrusted { .. }), "{error}");
        error.to_string()
    }

    #[test]
    fn folders_and_files_have_the_modes_they_should() {
        let (_root, folder) = private();
        assert_eq!(mode(folder.path()), 0o700);
        folder.create_file("new").unwrap();
        drop(folder.lock("lock", Duration::ZERO).unwrap());
        for name in ["new", "lock"] {
            assert_eq!(mode(&folder.path().join(name)), 0o600);
        }
        assert_eq!(folder.names().unwrap(), ["lock", "new"]);
        // Excess permissions are removed; missing ones are not added.
        chmod(folder.path(), 0o777);
        Folder::make(folder.path(), 0o700).unwrap();
        assert_eq!(mode(folder.path()), 0o700);
        Folder::make(folder.path(), 0o755).unwrap();
        assert_eq!(mode(folder.path()), 0o700);
    }

    #[test]
    fn what_is_no_folder_or_open_to_others_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let (link, file) = (root.path().join("link"), root.path().join("file"));
        symlink(root.path(), &link).unwrap();
        fs::write(&file, "").unwrap();
        assert!(reason(Folder::open(&link)).contains("no folder"));
        assert!(reason(Folder::make(&link, 0o700)).contains("no folder"));
        assert!(reason(Folder::make(&file, 0o700)).contains("no folder"));
        assert!(Folder::open(&root.path().join("none")).unwrap().is_none());
        chmod(root.path(), 0o777);
        assert!(reason(Folder::open(root.path())).contains("others may write"));
        chmod(root.path(), 0o1777);
        Folder::make(root.path(), 0o700).unwrap();
        assert_eq!(mode(root.path()), 0o1777, "sticky folders are the system's");
    }

    #[test]
    fn planted_files_are_refused_and_hold_nobody_up() {
        let (_root, folder) = private();
        let path = folder.path().join("it");
        let file = Mode::from_raw_mode(0o600);
        let both = |what: &str| {
            assert!(reason(folder.open_file("it")).contains(what));
            assert!(reason(folder.lock("it", Duration::ZERO)).contains(what));
            if path.is_dir() {
                fs::remove_dir(&path).unwrap();
            } else {
                fs::remove_file(&path).unwrap();
            }
        };
        symlink("/etc/passwd", &path).unwrap();
        both("symbolic link");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, file, 0).unwrap();
        both("no regular file");
        fs::create_dir(&path).unwrap();
        both("no regular file");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        both("no regular file");
        fs::write(&path, "").unwrap();
        fs::hard_link(&path, folder.path().join("other")).unwrap();
        both("other names");
        fs::write(&path, "").unwrap();
        chmod(&path, 0o622);
        both("others may");
        fs::write(&path, "").unwrap();
        chmod(&path, 0o644);
        assert!(folder.open_file("it").unwrap().is_some());
        assert!(reason(folder.lock("it", Duration::ZERO)).contains("others may open"));
    }

    #[test]
    fn what_belongs_to_others_is_refused() {
        if !is_root() {
            return skip("root", "cannot make a file of another user");
        }
        let (_root, folder) = private();
        let path = folder.path().join("it");
        fs::write(&path, "").unwrap();
        chmod(&path, 0o600);
        std::os::unix::fs::chown(&path, Some(NOBODY), None).unwrap();
        let owner = format!("belongs to user {NOBODY}");
        assert!(reason(folder.open_file("it")).contains(&owner));
        assert!(reason(folder.lock("it", Duration::ZERO)).contains(&owner));
        std::os::unix::fs::chown(folder.path(), Some(NOBODY), None).unwrap();
        assert!(reason(Folder::open(folder.path())).contains(&owner));
        assert!(reason(Folder::make(folder.path(), 0o700)).contains(&owner));
    }

    #[test]
    fn a_lock_is_not_waited_for_without_end() {
        let (_root, folder) = private();
        let held = folder.lock("lock", Duration::ZERO).unwrap();
        let error = folder.lock("lock", Duration::from_millis(30)).unwrap_err();
        assert!(matches!(error, StateError::Locked { .. }), "{error}");
        let us = format!("by process {}", std::process::id());
        assert!(error.to_string().contains(&us), "{error}");
        drop(held);
        folder.lock("lock", Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn files_are_read_so_far_and_no_further() {
        let (_root, folder) = private();
        fs::write(folder.path().join("it"), "12345").unwrap();
        let file = folder.open_file("it").unwrap().unwrap();
        assert!(folder.read("it", &file, 4).is_err());
        let file = folder.open_file("it").unwrap().unwrap();
        assert_eq!(folder.read("it", &file, 5).unwrap(), b"12345");
        assert!(folder.open_file("none").unwrap().is_none());
    }
}

//! Opens a file for writing in a folder that others may write to: superhue does not write to their links, pipes and files.
//!
//! In a folder that other users may write (`/tmp`), a name can be anything when superhue writes there as root: a link to any file of the machine,
//! or a pipe without a reader. The kernel keeps programs from following such links, and from opening such files, if `fs.protected_symlinks`,
//! `protected_regular` and `protected_fifos` are set (`Documentation/admin-guide/sysctl/fs.rst`). This module always does so, and in every folder
//! that another user may write, sticky or not: it walks the path step by step, and checks each link before it follows it.

use std::collections::VecDeque;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, Stat, fchmod, fchown, fstat, fstatfs,
    openat, readlinkat, renameat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

/// Mode of a file that is made, less the umask.
const USUAL: u32 = 0o666;
/// Mode of a file that only its owner may read.
const PRIVATE: u32 = 0o600;
/// Most links on one path, as in the kernel.
const LINKS: usize = 40;

/// The longest link.
const MAX_LINK_BYTES: usize = 4096;

/// A file that can be written, and its place in the file system.
#[derive(Debug)]
pub struct Place {
    /// The file, open for writing.
    file: File,
    /// True if it was made just now.
    is_new: bool,
    /// Folder and name of the file; `None` for a descriptor of a process, which has no place of its own.
    at: Option<(OwnedFd, OsString)>,
}

/// Reason why a file was not written.
#[derive(Debug)]
pub struct WriteError {
    /// The error of the system.
    pub error: io::Error,
    /// True if the file is as it was; false if it may hold a part of the new contents.
    pub is_unchanged: bool,
}

/// Opens `path` for writing, and makes it if it is missing; returns true with the file if it was made.
///
/// # Errors
/// As for [`find_place`].
pub fn open_to_write(path: &Path) -> io::Result<(File, bool)> {
    find_place(path).map(|place| (place.file, place.is_new))
}

/// Opens `path` for writing as [`open_to_write`] does; a file that it makes can be read by its owner only.
///
/// # Errors
/// As for [`find_place`].
pub fn open_private(path: &Path) -> io::Result<(File, bool)> {
    find_place_of(path, PRIVATE).map(|place| (place.file, place.is_new))
}

/// Opens `path` for writing, and makes it if it is missing.
///
/// # Errors
/// Errors of `open(2)`; `ELOOP`, `EACCES` with a sentence about the link or file of another user.
pub fn find_place(path: &Path) -> io::Result<Place> {
    find_place_of(path, USUAL)
}

fn find_place_of(path: &Path, mode: u32) -> io::Result<Place> {
    let mut rest = parts(path);
    let start = if path.has_root() { "/" } else { "." };
    let mut folder = open_folder(CWD, OsStr::new(start))?;
    let mut links = 0;
    let Some(mut part) = rest.pop_front() else {
        return Err(Errno::ISDIR.into());
    };
    loop {
        let about = fstat(&folder)?;
        let is_shared = is_shared(&about);
        let link = match open_itself(&folder, &part) {
            Ok(found) if is_link(&fstat(&found)?) => Some(fstat(&found)?),
            Ok(_) | Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno.into()),
        };
        // Links of procfs lead directly to an open file, not along a path.
        let is_magic = fstatfs(&folder)?.f_type == PROC_SUPER_MAGIC;
        if let Some(link) = link.filter(|_| !is_magic) {
            if is_shared && !is_ours(&link) {
                return Err(refused(
                    &part,
                    "a link of another user, in a folder that others may write",
                    Errno::LOOP,
                ));
            }
            links += 1;
            if links > LINKS {
                return Err(Errno::LOOP.into());
            }
            let target = target(&folder, &part)?;
            if target.as_bytes().starts_with(b"/") {
                folder = open_folder(CWD, OsStr::new("/"))?;
            }
            let mut way = parts(Path::new(&target));
            way.append(&mut rest);
            rest = way;
        } else if rest.is_empty() {
            let (file, is_new) = open_last(&folder, &part, mode, is_shared, is_magic)?;
            let at = (!is_magic).then_some((folder, part));
            return Ok(Place { file, is_new, at });
        } else {
            folder = open_folder(&folder, &part)?;
        }
        let Some(next) = rest.pop_front() else {
            return Err(Errno::ISDIR.into());
        };
        part = next;
    }
}

impl Place {
    /// Removes the file if it was made just now: until its contents are there, nothing is.
    pub fn clear(&self) {
        if let Some((folder, name)) = self.at.as_ref().filter(|_| self.is_new) {
            let _ = unlinkat(folder, name.as_os_str(), AtFlags::empty());
        }
    }

    /// Gives the file these contents, in one step where that is possible: a reader sees the old file or the new one, also if the disk is full or
    /// superhue is killed.
    ///
    /// A pipe or a device has nothing to replace. A file with several names, or in a folder where superhue can make no other, is overwritten.
    ///
    /// # Errors
    /// A full disk, for example.
    pub fn replace(mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let changed = |error| WriteError {
            error,
            is_unchanged: false,
        };
        let about = fstat(&self.file).map_err(|errno| changed(errno.into()))?;
        let is_file = FileType::from_raw_mode(about.st_mode) == FileType::RegularFile;
        let is_single = about.st_nlink <= 1;
        if let Some((folder, name)) = self.at.as_ref().filter(|_| is_file && is_single) {
            match Beside::make(folder, &about) {
                Ok(beside) => {
                    return beside
                        .fill_and_rename(bytes, name)
                        .map_err(|error| WriteError {
                            error,
                            is_unchanged: true,
                        });
                }
                Err(Errno::ACCESS | Errno::PERM) => {}
                Err(errno) => {
                    return Err(WriteError {
                        error: errno.into(),
                        is_unchanged: true,
                    });
                }
            }
        }
        self.overwrite(bytes, is_file).map_err(changed)
    }

    fn overwrite(&mut self, bytes: &[u8], is_file: bool) -> io::Result<()> {
        if is_file {
            self.file.rewind()?;
            self.file.set_len(0)?;
        }
        self.file.write_all(bytes)?;
        self.file.flush()
    }
}

/// A file that is to take the place of another one in its folder. It is removed unless it does.
struct Beside<'a> {
    folder: &'a OwnedFd,
    name: String,
    file: File,
}

impl<'a> Beside<'a> {
    /// Makes a file with the owner and the permissions of another one.
    fn make(folder: &'a OwnedFd, about: &Stat) -> Result<Self, Errno> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!(".superhue-{}-{number}", std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(folder, name.as_str(), flags, Mode::RUSR | Mode::WUSR)?;
        let beside = Self {
            folder,
            name,
            file: file.into(),
        };
        let made = fstat(&beside.file)?;
        if (made.st_uid, made.st_gid) != (about.st_uid, about.st_gid) {
            let (user, group) = (Uid::from_raw(about.st_uid), Gid::from_raw(about.st_gid));
            fchown(&beside.file, Some(user), Some(group))?;
        }
        fchmod(&beside.file, Mode::from_raw_mode(about.st_mode & 0o7777))?;
        Ok(beside)
    }

    fn fill_and_rename(mut self, bytes: &[u8], name: &OsStr) -> io::Result<()> {
        self.file.write_all(bytes)?;
        // Some file systems find out only now that they are full.
        self.file.sync_data()?;
        renameat(self.folder, self.name.as_str(), self.folder, name)?;
        self.name.clear();
        Ok(())
    }
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            let _ = unlinkat(self.folder, self.name.as_str(), AtFlags::empty());
        }
    }
}

fn parts(path: &Path) -> VecDeque<OsString> {
    let all = path.as_os_str().as_bytes().split(|&byte| byte == b'/');
    let parts = all.filter(|part| !part.is_empty() && *part != b".");
    let mut parts: VecDeque<OsString> = parts
        .map(|part| OsStr::from_bytes(part).to_owned())
        .collect();
    // `a/` is a folder.
    if path.as_os_str().as_bytes().ends_with(b"/") {
        parts.push_back(OsString::from("."));
    }
    parts
}

fn open_folder(at: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

/// Opens the object of this name without following it, even if it is a link.
fn open_itself(folder: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(folder, name, flags, Mode::empty())
}

fn target(folder: &OwnedFd, name: &OsStr) -> io::Result<OsString> {
    let target: CString = readlinkat(folder, name, Vec::with_capacity(MAX_LINK_BYTES))?;
    Ok(OsString::from_vec(target.into_bytes()))
}

fn is_link(about: &Stat) -> bool {
    FileType::from_raw_mode(about.st_mode) == FileType::Symlink
}

/// Returns true if it belongs to root or to the user of this process.
fn is_ours(about: &Stat) -> bool {
    about.st_uid == 0 || about.st_uid == rustix::process::geteuid().as_raw()
}

/// Returns true if other users may make and rename files in a folder.
fn is_shared(folder: &Stat) -> bool {
    !is_ours(folder) || folder.st_mode & 0o022 != 0
}

fn open_last(
    folder: &OwnedFd,
    name: &OsStr,
    mode: u32,
    is_shared: bool,
    is_magic: bool,
) -> io::Result<(File, bool)> {
    let to_write = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    if is_magic {
        return Ok((open_at(folder, name, to_write, mode)?, false));
    }
    let make = to_write | OFlags::CREATE | OFlags::EXCL;
    match open_at(folder, name, make, mode) {
        Ok(file) => return Ok((file, true)),
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    // In a folder of our own, opening a pipe waits for a reader, as usual.
    let flags = to_write | OFlags::NOFOLLOW;
    if !is_shared {
        return Ok((open_at(folder, name, flags, mode)?, false));
    }
    let found = open_itself(folder, name)?;
    let about = fstat(&found)?;
    if !is_ours(&about) {
        return Err(refused(
            name,
            "another user's, in a folder that others may write",
            Errno::ACCESS,
        ));
    }
    if FileType::from_raw_mode(about.st_mode) == FileType::RegularFile && about.st_nlink > 1 {
        return Err(refused(
            name,
            "a further name of a file elsewhere, in a folder that others may write",
            Errno::ACCESS,
        ));
    }
    let file = open_at(folder, name, flags, mode)?;
    let opened = fstat(&file)?;
    if (opened.st_dev, opened.st_ino) != (about.st_dev, about.st_ino) {
        return Err(refused(
            name,
            "another file than a moment ago",
            Errno::ACCESS,
        ));
    }
    Ok((file, false))
}

/// Opens a file; one that this makes has `mode`, less the umask.
fn open_at(folder: &OwnedFd, name: &OsStr, flags: OFlags, mode: u32) -> Result<File, Errno> {
    openat(folder, name, flags, Mode::from_raw_mode(mode)).map(File::from)
}

fn refused(name: &OsStr, what: &str, errno: Errno) -> io::Error {
    let kind = io::Error::from(errno).kind();
    let text = format!(
        "`{}` is {what}: remove it, or write elsewhere",
        name.display()
    );
    io::Error::new(kind, text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use rustix::fs::{chownat, mknodat};

    use super::*;

    const OTHER: u32 = 65533;

    fn folder(mode: u32) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
        folder
    }

    fn give(path: &Path) {
        chownat(
            CWD,
            path,
            Some(Uid::from_raw(OTHER)),
            None,
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .unwrap();
    }

    #[test]
    fn files_are_made_and_opened_through_links_of_ours() {
        let folder = folder(0o755);
        let at = |name: &str| folder.path().join(name);
        let (mut file, is_new) = open_to_write(&at("a")).unwrap();
        file.write_all(b"x").unwrap();
        assert!(is_new && at("a").exists());
        assert!(!open_to_write(&at("a")).unwrap().1);
        fs::create_dir(at("real")).unwrap();
        symlink("real", at("link")).unwrap();
        symlink("../a", at("real/up")).unwrap();
        assert!(!open_to_write(&at("link/up")).unwrap().1);
        symlink("new", at("real/dangling")).unwrap();
        assert!(open_to_write(&at("link/dangling")).unwrap().1);
        assert!(at("real/new").exists());
        symlink("loop", at("loop")).unwrap();
        let error = open_to_write(&at("loop")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::LOOP.raw_os_error()));
        for wrong in ["", "real", "real/", "none/x", "a/x"] {
            assert!(open_to_write(&at(wrong)).is_err(), "{wrong}");
        }
        for device in ["/dev/null", "/dev/stderr", "/proc/self/fd/2"] {
            let opened = open_to_write(Path::new(device));
            // Standard error may be a socket, or open for reading only.
            assert!(device != "/dev/null" || !opened.unwrap().1, "{device}");
        }
    }

    fn names(folder: &tempfile::TempDir) -> Vec<String> {
        let entries = fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn contents_are_replaced_in_one_step() {
        let folder = folder(0o755);
        let at = |name: &str| folder.path().join(name);
        fs::write(at("old"), "old and long").unwrap();
        fs::set_permissions(at("old"), fs::Permissions::from_mode(0o640)).unwrap();
        symlink("old", at("link")).unwrap();
        let before = fs::metadata(at("old")).unwrap();
        find_place(&at("link")).unwrap().replace(b"new").unwrap();
        let after = fs::metadata(at("old")).unwrap();
        assert_eq!(fs::read(at("old")).unwrap(), b"new");
        assert_eq!(after.mode(), before.mode());
        assert_ne!(after.ino(), before.ino(), "another file has the name");
        assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());

        let place = find_place(&at("fresh")).unwrap();
        place.clear();
        assert_eq!(names(&folder), ["link", "old"], "nothing until it is there");
        place.replace(b"it").unwrap();
        assert_eq!(fs::read(at("fresh")).unwrap(), b"it");

        // Both names of a file get the contents.
        fs::hard_link(at("old"), at("second")).unwrap();
        find_place(&at("second")).unwrap().replace(b"x").unwrap();
        assert_eq!(fs::read(at("old")).unwrap(), b"x");
        assert_eq!(names(&folder), ["fresh", "link", "old", "second"]);
    }

    #[test]
    fn a_file_that_cannot_be_written_stays_as_it_was() {
        let folder = folder(0o755);
        let path = folder.path().join("old");
        fs::write(&path, "old").unwrap();
        let place = find_place(&path).unwrap();
        // A descriptor that cannot be written stands for a full disk.
        let (folder_fd, name) = place.at.as_ref().unwrap();
        let about = fstat(&place.file).unwrap();
        let beside = Beside::make(folder_fd, &about).unwrap();
        assert_eq!(names(&folder).len(), 2);
        let read_only = File::open(&path).unwrap();
        let broken = Beside {
            file: read_only,
            name: beside.name.clone(),
            folder: folder_fd,
        };
        assert!(broken.fill_and_rename(b"new", name).is_err());
        assert_eq!(names(&folder), ["old"], "no part is left behind");
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }

    #[test]
    fn what_others_put_there_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return superhue_testing::skip("root", "giving files away needs one");
        }
        for mode in [0o1777, 0o777] {
            let folder = folder(mode);
            let at = |name: &str| folder.path().join(name);
            let refused = |name: &str| open_to_write(&at(name)).unwrap_err().to_string();
            fs::write(at("victim"), "precious").unwrap();
            symlink(at("victim"), at("link")).unwrap();
            give(&at("link"));
            assert!(
                refused("link").contains("`link` is a link of another user"),
                "{}",
                refused("link")
            );
            assert_eq!(fs::read(at("victim")).unwrap(), b"precious");
            fs::hard_link(at("victim"), at("hard")).unwrap();
            assert!(refused("hard").contains("a further name"));
            mknodat(
                CWD,
                at("fifo"),
                FileType::Fifo,
                Mode::from_raw_mode(0o666),
                0,
            )
            .unwrap();
            give(&at("fifo"));
            assert!(refused("fifo").contains("another user's"));
            fs::write(at("squatted"), "").unwrap();
            give(&at("squatted"));
            assert!(refused("squatted").contains("another user's"));
            // Also for a link further up the path.
            symlink(folder.path(), at("way")).unwrap();
            give(&at("way"));
            assert!(refused("way/x").contains("a link of another user"));
            assert!(open_to_write(&at("fresh")).unwrap().1);
            assert!(!open_to_write(&at("fresh")).unwrap().1, "our own");
        }
    }
}

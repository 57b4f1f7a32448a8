//! Opens a file for writing in a folder that others may write to: superhue does not write to their links, pipes and files.
//!
//! In a folder that other users may write (`/tmp`), a name can be anything when superhue writes there as root: a link to any file of the machine,
//! or a pipe without a reader. The kernel keeps programs from following such links, and from opening such files, if `fs.protected_symlinks`,
//! `protected_regular` and `protected_fifos` are set (`Documentation/admin-guide/sysctl/fs.rst`). This module always does so, and in every folder
//! that another user may write, sticky or not: it walks the path step by step, and checks each link before it follows it.

use std::collections::VecDeque;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::fs::{
    CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, Stat, fstat, fstatfs, openat, readlinkat,
};
use rustix::io::Errno;

/// Most links on one path, as in the kernel.
const LINKS: usize = 40;

/// The longest link.
const MAX_LINK_BYTES: usize = 4096;

/// Opens `path` for writing, and makes it if it is missing; returns true with the file if it was made.
///
/// # Errors
/// Those of `open(2)`; `ELOOP`, `EACCES` with a sentence about the link or file of another user.
pub fn open_to_write(path: &Path) -> io::Result<(File, bool)> {
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
            return open_last(&folder, &part, is_shared, is_magic);
        } else {
            folder = open_folder(&folder, &part)?;
        }
        let Some(next) = rest.pop_front() else {
            return Err(Errno::ISDIR.into());
        };
        part = next;
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
    is_shared: bool,
    is_magic: bool,
) -> io::Result<(File, bool)> {
    let to_write = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    if is_magic {
        return Ok((open_at(folder, name, to_write)?, false));
    }
    let make = to_write | OFlags::CREATE | OFlags::EXCL;
    match open_at(folder, name, make) {
        Ok(file) => return Ok((file, true)),
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    // In a folder of our own, opening a pipe waits for a reader, as usual.
    let flags = to_write | OFlags::NOFOLLOW;
    if !is_shared {
        return Ok((open_at(folder, name, flags)?, false));
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
    let file = open_at(folder, name, flags)?;
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

fn open_at(folder: &OwnedFd, name: &OsStr, flags: OFlags) -> Result<File, Errno> {
    let mode = Mode::from_raw_mode(0o666);
    openat(folder, name, flags, mode).map(File::from)
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
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rustix::fs::{AtFlags, chownat, mknodat};
    use rustix::process::Uid;

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

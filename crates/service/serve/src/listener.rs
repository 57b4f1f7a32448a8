//! The socket's path: taken, in use, or left behind.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use superhue_state::{Folder, StateError};
use superhue_sys::seqpacket::{pass_credentials, refuse_descriptors};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Reason why the service cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another service listens there.
    #[error(
        "{} is in use: another superhue service listens there; stop it, or choose another --socket",
        .0.display()
    )]
    InUse(PathBuf),
    /// The path is there and is no socket.
    #[error("{} exists and is no socket: remove it, or choose another --socket", .0.display())]
    NoSocket(PathBuf),
    /// The path is not valid for a socket.
    #[error(
        "{} cannot be the path of a socket ({errno}): at most 107 bytes; choose another --socket",
        path.display()
    )]
    Path {
        /// The path.
        path: PathBuf,
        /// The reason.
        errno: Errno,
    },
    /// Another user can write to the folder or hold the lock.
    #[error("{0}")]
    Untrusted(#[from] StateError),
    /// Another operation failed.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// Operation that failed.
        what: &'static str,
        /// Path of the operation.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// Permissions of the socket, and its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// True if messages stay apart (`SOCK_SEQPACKET`), false for a stream of bytes.
    pub packets: bool,
    /// Permissions of the path: users who may write to it may connect.
    pub mode: u32,
    /// The group of the path, if not that of the process.
    pub group: Option<u32>,
}

impl Access {
    /// All users, with packets.
    pub const EVERYBODY: Self = Self {
        packets: true,
        mode: 0o666,
        group: None,
    };
}

/// The socket, listening. Removes its path on drop.
///
/// Beside the socket `PATH` lies `PATH.lock`. The service holds it locked as long as it lives, however it
/// ends. The file stays: if it were removed, two services could each hold a lock of that name.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the path.
    place: (u64, u64),
    _lock: File,
}

impl Listener {
    /// Wait for the lock of a service that has just been killed: a process that it was starting has its descriptors until it executes its program.
    pub const AFTER_KILL: Duration = Duration::from_secs(3);

    /// Takes the path as [`Self::within`] does, for all users, after a kill too.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn new(path: &Path) -> Result<Self, ListenError> {
        Self::within(path, Access::EVERYBODY, Self::AFTER_KILL)
    }

    /// Takes the path as [`Self::within`] does, without waiting.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn with(path: &Path, access: Access) -> Result<Self, ListenError> {
        Self::within(path, access, Duration::ZERO)
    }

    /// Takes the path within `patience` if another process has its lock: makes its folder if that is missing, and replaces the socket of a dead service.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn within(path: &Path, access: Access, patience: Duration) -> Result<Self, ListenError> {
        let io = |what| {
            let path = path.to_owned();
            move |error: io::Error| ListenError::Io {
                what,
                path,
                source: error,
            }
        };
        let address = SocketAddrUnix::new(path).map_err(|errno| ListenError::Path {
            path: path.to_owned(),
            errno,
        })?;
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let folder = match Folder::open(parent) {
            Ok(None) => Folder::make(parent, 0o755)?,
            folder => folder?.ok_or_else(|| ListenError::NoSocket(path.to_owned()))?,
        };
        let is_other = |found: &fs::Metadata| !found.file_type().is_socket();
        // Before the lock is made beside it.
        if fs::symlink_metadata(path).is_ok_and(|found| is_other(&found)) {
            return Err(ListenError::NoSocket(path.to_owned()));
        }
        let lock = match folder.lock(lock_beside(path), patience) {
            Ok(lock) => lock,
            Err(StateError::Locked { .. }) => return Err(ListenError::InUse(path.to_owned())),
            Err(error) => return Err(error.into()),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = match access.packets {
            true => SocketType::SEQPACKET,
            false => SocketType::STREAM,
        };
        let new = || socket_with(AddressFamily::UNIX, kind, flags, None);
        match fs::symlink_metadata(path) {
            Ok(found) if is_other(&found) => {
                return Err(ListenError::NoSocket(path.to_owned()));
            }
            Ok(_) => {
                // The lock is ours, so a service of this program is dead. Another program may listen
                // there.
                let try_it = new().map_err(|errno| io("cannot make")(errno.into()))?;
                if !matches!(connect(&try_it, &address), Err(Errno::CONNREFUSED)) {
                    return Err(ListenError::InUse(path.to_owned()));
                }
                fs::remove_file(path).map_err(io("cannot replace"))?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io("cannot look at")(error)),
        }
        let socket = new().map_err(|errno| io("cannot make")(errno.into()))?;
        // Inherited by every connection, before its first message.
        let set_up = |errno: Errno| io("cannot set up")(errno.into());
        pass_credentials(&socket).map_err(set_up)?;
        match refuse_descriptors(&socket) {
            Ok(()) | Err(Errno::NOPROTOOPT) => {}
            Err(errno) => return Err(set_up(errno)),
        }
        bind(&socket, &address).map_err(|errno| io("cannot bind")(errno.into()))?;
        // No client can connect before it listens.
        if let Some(group) = access.group {
            let owner = std::os::unix::fs::lchown(path, None, Some(group));
            owner.map_err(io("cannot set the group of"))?;
        }
        let mode = fs::Permissions::from_mode(access.mode);
        fs::set_permissions(path, mode).map_err(io("cannot set the mode of"))?;
        let found = fs::symlink_metadata(path).map_err(io("cannot look at"))?;
        listen(&socket, BACKLOG).map_err(|errno| io("cannot listen at")(errno.into()))?;
        Ok(Self {
            socket,
            path: path.to_owned(),
            place: (found.dev(), found.ino()),
            _lock: lock,
        })
    }

    /// Returns its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns the name of the lock beside the socket.
fn lock_beside(path: &Path) -> OsString {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".lock");
    name
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.place);
        if ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_taken_once_and_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/track.sock");
        let listener = Listener::new(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o666);
        assert_eq!(
            fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777,
            0o755
        );
        assert!(matches!(Listener::new(&path), Err(ListenError::InUse(_))));
        drop(listener);
        assert!(!path.exists());
        // A child that another test forks holds the lock, too, until it executes its program.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while let Err(error) = Listener::new(&path) {
            assert!(matches!(error, ListenError::InUse(_)), "{error}");
            assert!(std::time::Instant::now() < deadline, "{error}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn descriptors_are_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("track.sock");
        let listener = Listener::new(&path).unwrap();
        let address = SocketAddrUnix::new(&path).unwrap();
        let flags = SocketFlags::CLOEXEC;
        let client = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        connect(&client, &address).unwrap();
        let served = rustix::net::accept(&listener).unwrap();
        let file = File::open("/dev/null").unwrap();
        let sent = superhue_sys::seqpacket::send(&client, b"x", Some(file.as_fd()));
        if refuse_descriptors(&client) == Ok(()) {
            assert_eq!(sent, Err(Errno::PERM));
            superhue_sys::seqpacket::send(&client, b"x", None).unwrap();
        }
        let mut buffer = [0; 8];
        let got = superhue_sys::seqpacket::receive_no_descriptors(&served, &mut buffer).unwrap();
        assert_eq!(
            (got.bytes, got.sender.unwrap().pid),
            (1, std::process::id())
        );
        assert!(got.descriptor.is_none());
    }

    #[test]
    fn what_a_dead_service_left_is_replaced_and_what_is_none_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("track.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a closed socket leaves its path");
        // The dead one was of another type: a socket that refuses connections is dead all the same.
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        loop {
            match Listener::new(&path) {
                Ok(listener) => break drop(listener),
                // A child that another test forks holds the dead one, too, until it executes its program.
                Err(error) => assert!(matches!(error, ListenError::InUse(_)), "{error}"),
            }
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
        let _ = fs::remove_file(&path);
        let dead = Listener::new(&path).unwrap();
        // As SIGKILL leaves it: the lock free, the path there.
        let Listener { socket, _lock, .. } = &dead;
        _lock.unlock().unwrap();
        rustix::net::shutdown(socket, rustix::net::Shutdown::Both).unwrap();
        let heir = Listener::new(&path).unwrap();
        drop(dead);
        assert!(path.exists(), "the dead one took its heir's path away");
        drop(heir);
        fs::write(&path, "precious").unwrap();
        assert!(matches!(
            Listener::new(&path),
            Err(ListenError::NoSocket(_))
        ));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        let file = folder.path().join("other");
        fs::write(&file, "precious").unwrap();
        let refused = Listener::new(&file).unwrap_err();
        assert!(matches!(refused, ListenError::NoSocket(_)), "{refused}");
        let beside = folder.path().join("other.lock");
        assert!(!beside.exists(), "something was left beside another's file");
        // A lock that another user owns, or could hold, is refused.
        let squatted = folder.path().join("squatted.lock");
        fs::write(&squatted, "").unwrap();
        fs::set_permissions(&squatted, fs::Permissions::from_mode(0o644)).unwrap();
        let refused = Listener::new(&folder.path().join("squatted")).unwrap_err();
        assert!(
            refused.to_string().contains("others may open it"),
            "{refused}"
        );
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let refused = Listener::new(&path).unwrap_err();
        assert!(
            refused.to_string().contains("others may write to it"),
            "{refused}"
        );
        let long = folder.path().join("x".repeat(120));
        assert!(matches!(
            Listener::new(&long),
            Err(ListenError::Path { .. })
        ));
    }
}

//! Unix sockets: credentials of the other end, and messages that carry descriptors beside bytes.
//!
//! See `unix(7)`, `cmsg(3)`. Process numbers belong to the caller's PID namespace:
//! 0 for a process outside it, for which the types of the standard crates have no value.

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::pagemap::last_errno;

/// `SO_PEERPIDFD` of `asm-generic/socket.h` (Linux 6.5).
const SO_PEERPIDFD: libc::c_int = 77;

/// `SO_PEERGROUPS` of `asm-generic/socket.h` (Linux 4.13).
const SO_PEERGROUPS: libc::c_int = 59;

/// Maximum number of groups of a process (`NGROUPS_MAX`).
const MOST_GROUPS: usize = 65536;

/// Room in words for one `struct ucred` and one descriptor, each with its header.
const CONTROL_WORDS: usize = 16;

/// Identity of a process when it connected or sent a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    /// Process id; 0 if it is outside of the caller's PID namespace.
    pub pid: u32,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

impl From<libc::ucred> for Credentials {
    fn from(raw: libc::ucred) -> Self {
        Self {
            pid: u32::try_from(raw.pid).unwrap_or(0),
            uid: raw.uid,
            gid: raw.gid,
        }
    }
}

/// Control words that are enough for credentials, and leave no room for a descriptor.
const CREDENTIALS_WORDS: usize = 4;

/// Message that arrived.
#[derive(Debug)]
pub struct ReceivedMessage {
    /// Number of bytes written into the buffer; 0 also when the other end has closed.
    pub bytes: usize,
    /// True if the message was longer than the buffer; the rest is lost.
    pub truncated: bool,
    /// Sender, checked by the kernel, if [`pass_credentials`] is on.
    pub sender: Option<Credentials>,
    /// Descriptor that came with the message, close-on-exec.
    pub descriptor: Option<OwnedFd>,
}

/// Returns the identity of the process that connected this socket (`SO_PEERCRED`).
///
/// # Errors
/// `ENOTCONN` and others of `getsockopt(2)`.
pub fn peer_credentials(socket: impl AsFd) -> Result<Credentials, Errno> {
    let mut raw = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `raw`; both live across the call.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut raw).cast(),
            &raw mut length,
        )
    };
    if done < 0 {
        Err(last_errno())
    } else {
        Ok(raw.into())
    }
}

/// Returns a pidfd of the process that connected this socket (`SO_PEERPIDFD`), even if another process has its number now.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 6.5; `ESRCH` when it is gone (`EINVAL` on some kernels).
pub fn peer_pidfd(socket: impl AsFd) -> Result<OwnedFd, Errno> {
    let mut fd: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `fd`; both live across the call.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut length,
        )
    };
    if done < 0 {
        return Err(last_errno());
    }
    if fd < 0 {
        return Err(Errno::SRCH);
    }
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the supplementary groups that the process had when it connected this socket (`SO_PEERGROUPS`).
///
/// # Errors
/// `ENOPROTOOPT` before Linux 4.13; `ENODATA` without a peer; others of `getsockopt(2)`.
pub fn peer_groups(socket: impl AsFd) -> Result<Vec<u32>, Errno> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut length = size_of_val(groups.as_slice()) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes into `groups`, and the written or needed length into `length`; both live across
        // the call.
        let done = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = length as usize / size_of::<libc::gid_t>();
        if done == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        match last_errno() {
            Errno::RANGE if count > groups.len() && count <= MOST_GROUPS => groups.resize(count, 0),
            errno => return Err(errno),
        }
    }
}

/// Makes every message received on this socket carry its sender (`SO_PASSCRED`).
///
/// # Errors
/// Errors of `setsockopt(2)`.
pub fn pass_credentials(socket: impl AsFd) -> Result<(), Errno> {
    set_switch(socket, libc::SO_PASSCRED, true)
}

/// Number of the option, which the C library does not have yet (`include/uapi/asm-generic/socket.h`).
const SO_PASSRIGHTS: libc::c_int = 83;

/// Makes the kernel refuse messages with descriptors to this socket, and to those that connect to it while it listens (`SO_PASSRIGHTS`). Closing a
/// descriptor of another process may take as long as that process wants.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 6.16; others of `setsockopt(2)`.
pub fn refuse_descriptors(socket: impl AsFd) -> Result<(), Errno> {
    set_switch(socket, SO_PASSRIGHTS, false)
}

/// Switches an option of a socket on or off (`setsockopt(2)`, `SOL_SOCKET`).
fn set_switch(socket: impl AsFd, option: libc::c_int, on: bool) -> Result<(), Errno> {
    let value = libc::c_int::from(on);
    // SAFETY: the kernel reads one integer, which lives across the call.
    let done = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if done < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Receives one message into `buffer`, without waiting. Async-signal-safe.
///
/// # Errors
/// `EAGAIN` when there is no message; `ECONNRESET`; others of `recvmsg(2)`.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<ReceivedMessage, Errno> {
    receive_with(socket, buffer, CONTROL_WORDS)
}

/// Receives one message as [`receive`] does, but takes no descriptors, for a service that any user may connect to: the kernel closes those that came.
///
/// # Errors
/// Errors of [`receive`].
pub fn receive_no_descriptors(
    socket: impl AsFd,
    buffer: &mut [u8],
) -> Result<ReceivedMessage, Errno> {
    receive_with(socket, buffer, CREDENTIALS_WORDS)
}

/// Returns true if the other end of a connection is closed, or was shut down. Never waits; async-signal-safe.
#[must_use]
pub fn has_hung_up(socket: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&socket, PollFlags::RDHUP)];
    let now = Timespec::default();
    let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().intersects(ended)
}

/// Receives one message, with this many `words` at most for what comes beside it.
fn receive_with(
    socket: impl AsFd,
    buffer: &mut [u8],
    words: usize,
) -> Result<ReceivedMessage, Errno> {
    let mut control = [0_u64; CONTROL_WORDS];
    let mut iov = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: all-zero is a valid `msghdr` (null pointers with zero lengths).
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = words.min(CONTROL_WORDS) * size_of::<u64>();
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: `message` names one buffer and the control words with their lengths; all live across
    // the call.
    let bytes = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
    if bytes < 0 {
        return Err(last_errno());
    }
    let mut received = ReceivedMessage {
        bytes: usize::try_from(bytes).unwrap_or(0).min(buffer.len()),
        truncated: message.msg_flags & libc::MSG_TRUNC != 0,
        sender: None,
        descriptor: None,
    };
    // SAFETY: the kernel filled the control words; the macros stay within `msg_controllen`, and the
    // words are aligned as they require.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: non-null headers lie within the control words.
        let (level, kind, length) = unsafe {
            (
                (*header).cmsg_level,
                (*header).cmsg_type,
                (*header).cmsg_len,
            )
        };
        // SAFETY: as above.
        let data = unsafe { libc::CMSG_DATA(header) };
        let payload = length.saturating_sub(data as usize - header as usize);
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            for index in 0..payload / size_of::<libc::c_int>() {
                // SAFETY: `payload` bytes follow the header, maybe unaligned; each descriptor in
                // them was just made for us. The loop takes all of them, so that none leaks.
                let fd = unsafe {
                    let fd = data.cast::<libc::c_int>().add(index).read_unaligned();
                    OwnedFd::from_raw_fd(fd)
                };
                received.descriptor = Some(fd);
            }
        } else if level == libc::SOL_SOCKET
            && kind == libc::SCM_CREDENTIALS
            && payload >= size_of::<libc::ucred>()
        {
            // SAFETY: that many bytes follow the header; any bytes are a valid `ucred`.
            let raw = unsafe { data.cast::<libc::ucred>().read_unaligned() };
            received.sender = Some(raw.into());
        }
        // SAFETY: as for the first header.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    Ok(received)
}

/// Sends one message, with a descriptor if one is given, without waiting and without `SIGPIPE`.
/// Async-signal-safe.
///
/// # Errors
/// `EAGAIN` when the other end does not read; `EPIPE`, `ECONNRESET` when it is gone; others of
/// `sendmsg(2)`.
pub fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut control = [0_u64; CONTROL_WORDS];
    let mut iov = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: all-zero is a valid `msghdr` (null pointers with zero lengths).
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    if let Some(descriptor) = descriptor {
        let size = size_of::<libc::c_int>() as libc::c_uint;
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: plain arithmetic.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(size) } as usize;
        // SAFETY: the control words hold `msg_controllen` bytes, aligned, so the first header lies
        // within them and one descriptor fits behind it.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size) as usize;
            libc::CMSG_DATA(header)
                .cast::<libc::c_int>()
                .write_unaligned(descriptor.as_raw_fd());
        }
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `message` names one buffer, which the kernel only reads, and the control words.
    let sent = unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, flags) };
    if sent < 0 { Err(last_errno()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap()
    }

    #[test]
    fn a_descriptor_travels_with_its_message_and_is_closed_on_exec() {
        let (a, b) = pair();
        let file = std::fs::File::open("/dev/null").unwrap();
        send(&a, b"hello", Some(file.as_fd())).unwrap();
        let mut buffer = [0; 16];
        let got = receive(&b, &mut buffer).unwrap();
        assert_eq!(
            (&buffer[..got.bytes], got.truncated),
            (&b"hello"[..], false)
        );
        let flags = rustix::io::fcntl_getfd(got.descriptor.unwrap()).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        assert_eq!(receive(&b, &mut buffer).unwrap_err(), Errno::AGAIN);
        drop(a);
        // A child that another test forks at this moment holds the other end, until it executes or ends.
        let got = loop {
            match receive(&b, &mut buffer) {
                Err(Errno::AGAIN) => std::thread::yield_now(),
                got => break got.unwrap(),
            }
        };
        assert_eq!(got.bytes, 0);
        assert_eq!(send(&b, b"x", None).unwrap_err(), Errno::PIPE);
    }

    #[test]
    fn the_sender_is_told_and_long_messages_are_known_as_such() {
        let (a, b) = pair();
        pass_credentials(&b).unwrap();
        send(&a, &[7; 40], None).unwrap();
        let mut buffer = [0; 16];
        let got = receive(&b, &mut buffer).unwrap();
        assert!(got.truncated);
        let me = Credentials {
            pid: std::process::id(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        };
        assert_eq!(got.sender, Some(me));
        assert_eq!(peer_credentials(&b).unwrap(), me);
    }

    #[test]
    fn the_groups_of_the_other_end_are_read_however_many_there_are() {
        use rustix::thread::{Gid, set_thread_groups};
        let groups_of = |groups: Vec<u32>| {
            // In a thread of its own, whose groups differ from those of the process.
            let there = std::thread::spawn(move || {
                let raw: Vec<Gid> = groups.iter().map(|&group| Gid::from_raw(group)).collect();
                set_thread_groups(&raw)?;
                peer_groups(pair().0)
            });
            there.join().unwrap()
        };
        let many: Vec<u32> = (1..300).collect();
        match groups_of(many.clone()) {
            Ok(found) => assert_eq!(found, many),
            Err(errno) => return superhue_testing::skip("CAP_SETGID", &errno.to_string()),
        }
        assert_eq!(groups_of(Vec::new()), Ok(Vec::new()));
    }
}

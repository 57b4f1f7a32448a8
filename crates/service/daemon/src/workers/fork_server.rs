//! The process that starts workers: it forks them, so they share what the loader and the allocator have written.
//!
//! ```text
//!   daemon ──one message: capabilities; a socket, a board──> superhue worker    stdin: a socket pair; nothing else
//!          <──one message: number or errno; a pidfd────────       │fork
//!                                                                 └──> worker: stdin the socket, stdout the board
//! ```
//!
//! A worker that is executed on its own has 1.4 MiB that it shares with no other: relocations of this program, and the heap after parsing the command
//! line. A worker that is forked here has a third of that.
//!
//! The fork server reads no process and has one thread, so no process can hold it up, and a fork of it takes no lock along. It is executed, not
//! forked from the daemon, so it inherits nothing by mistake. It ends with the daemon (the thread that starts it, and that starts all workers), and
//! its workers end with it.

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open, setpgid};
use rustix::stdio::{dup2_stdin, dup2_stdout};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, set_capabilities,
};
use superhue_sys::process::{
    SignalSet, close_on_exec_from, cpu_time_of, die_with_parent, fork_alone, set_ignored,
};
use superhue_sys::{heap, image};

use super::{VERB, WorkError, refused};

/// This program, also after its file was replaced.
const PROGRAM: &str = "/proc/self/exe";

/// Settings of glibc's allocator (`mallopt(3)`): a worker has two threads, of which one is asleep, and there are many workers. One arena for both, and
/// free memory at its end goes back to the kernel.
const ALLOCATOR: [(&str, &str); 3] = [
    ("MALLOC_ARENA_MAX", "1"),
    ("MALLOC_MMAP_THRESHOLD_", "65536"),
    ("MALLOC_TRIM_THRESHOLD_", "65536"),
];

/// The longest wait for a fork, which takes less than a millisecond, or longer where memory or the CPU is short. The daemon starts another server after it,
/// and all workers of this one end.
const AT_MOST: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// `SIGCHLD`.
const SIGCHLD: i32 = 17;

/// Bytes of a request: capabilities as bits.
const REQUEST: usize = size_of::<u64>();

/// Bytes of an answer: the number of the process, the errno if there is none.
const ANSWER: usize = 2 * size_of::<u32>();

thread_local! {
    /// The server of this thread: the kernel ends it with the thread that started it, not with the process (`PR_SET_PDEATHSIG(2const)`).
    static SERVER: RefCell<Option<ForkServer>> = const { RefCell::new(None) };
}

/// The daemon's end of a server. It is killed when this is dropped.
#[derive(Debug)]
struct ForkServer {
    child: Child,
    socket: OwnedFd,
}

/// A worker that has just begun.
#[derive(Debug)]
pub(super) struct ForkedWorker {
    pub(super) pid: u32,
    /// Readable when the worker has ended. No process has to wait for it.
    pub(super) pidfd: OwnedFd,
}

/// Starts a worker that keeps `kept` of our capabilities, and has these as its standard input and output.
///
/// # Errors
/// Errors of making a socket and a process.
pub(super) fn fork(
    kept: CapabilitySet,
    input: &OwnedFd,
    output: &OwnedFd,
) -> io::Result<ForkedWorker> {
    SERVER.with_borrow_mut(|server| {
        if let Some(running) = &*server
            && let Ok(answer) = running.ask(kept, input, output)
        {
            return Ok(answer?);
        }
        // There is none, or it has ended, or it was stopped.
        *server = None;
        let running = server.insert(ForkServer::start()?);
        let answer = running.ask(kept, input, output);
        if answer.is_err() {
            *server = None;
        }
        Ok(answer??)
    })
}

/// Returns the CPU time that the server has used so far.
pub(crate) fn cpu_time() -> Duration {
    SERVER.with_borrow(|server| {
        let used = (server.as_ref()).and_then(|running| cpu_time_of(running.child.id()));
        used.unwrap_or_default()
    })
}

impl ForkServer {
    fn start() -> io::Result<Self> {
        // A library may have opened descriptors without the flag, and the daemon may have inherited some.
        close_on_exec_from(3)?;
        let (socket, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let mut command = Command::new(PROGRAM);
        command
            .arg0("superhue")
            .args([VERB, "--parent", &std::process::id().to_string()])
            .env_clear()
            .envs(ALLOCATOR)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = with_our_capabilities(|| command.spawn())?;
        Ok(Self { child, socket })
    }

    /// Sends a request. The outer error is that of the server, the inner one that of the fork.
    fn ask(
        &self,
        kept: CapabilitySet,
        input: &OwnedFd,
        output: &OwnedFd,
    ) -> Result<Result<ForkedWorker, Errno>, Errno> {
        send(
            &self.socket,
            &kept.bits().to_ne_bytes(),
            &[input.as_fd(), output.as_fd()],
        )?;
        let mut answered = [PollFd::new(&self.socket, PollFlags::IN)];
        if rustix::io::retry_on_intr(|| poll(&mut answered, Some(&AT_MOST)))? == 0 {
            return Err(Errno::TIMEDOUT);
        }
        let mut answer = [0; ANSWER];
        let Some(mut descriptors) = receive(&self.socket, &mut answer)? else {
            return Err(Errno::PIPE);
        };
        let (pid, errno) = answer.split_at(size_of::<u32>());
        let number = |bytes: &[u8]| bytes.try_into().map(u32::from_ne_bytes).unwrap_or_default();
        match (number(pid), descriptors.pop()) {
            (pid, Some(pidfd)) if pid != 0 => Ok(Ok(ForkedWorker { pid, pidfd })),
            _ => Ok(Err(Errno::from_raw_os_error(
                i32::try_from(number(errno)).unwrap_or_default(),
            ))),
        }
    }
}

impl Drop for ForkServer {
    fn drop(&mut self) {
        // It never sleeps uninterruptibly.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Role of a process when [`serve`] returns in it.
pub(super) enum Role {
    /// The server, whose daemon has closed the connection.
    Ended,
    /// A worker, whose socket and board are standard input and output, and which must keep these capabilities.
    Worker(CapabilitySet),
}

/// Forks workers as the daemon, process `parent`, requests at standard input. Returns in each worker, too.
///
/// # Errors
/// [`WorkError`] if the daemon has not started this.
pub(super) fn serve(parent: u32) -> Result<Role, WorkError> {
    // Only the daemon ends it, not a signal to all processes of a service or a terminal.
    let _ = SignalSet::of(&[1, 2, 15]).block();
    end_with(parent)?;
    let own = getpid();
    let input = std::io::stdin();
    // What parsing the command line has left: workers would copy it when they reuse it.
    heap::trim();
    image::unmap_code();
    // The kernel forgets workers that have ended: the daemon has pidfds of them.
    set_ignored(SIGCHLD, true);
    loop {
        let mut request = [0; REQUEST];
        let received = receive(input.as_fd(), &mut request);
        let descriptors =
            received.map_err(|_| WorkError::NotStartedSo("standard input is not its socket"))?;
        let Some(descriptors) = descriptors else {
            return Ok(Role::Ended);
        };
        let Ok([socket, board]) = <[OwnedFd; 2]>::try_from(descriptors) else {
            return Err(WorkError::NotStartedSo("descriptors are missing"));
        };
        match fork_alone() {
            Ok(None) => {
                set_ignored(SIGCHLD, false);
                end_with(u32::try_from(own.as_raw_nonzero().get()).unwrap_or_default())?;
                let _ = setpgid(None, None);
                // Nothing of the server is left afterwards.
                dup2_stdin(&socket).map_err(refused("take its socket"))?;
                dup2_stdout(&board).map_err(refused("take its board"))?;
                let kept = u64::from_ne_bytes(request);
                return Ok(Role::Worker(CapabilitySet::from_bits_retain(kept)));
            }
            Ok(Some(pid)) => {
                let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
                // It waits for its first message, which the daemon has not sent.
                let opened = number.ok_or(Errno::SRCH);
                let opened = opened.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
                answer(input.as_fd(), pid, opened)
            }
            Err(errno) => answer(input.as_fd(), 0, Err(errno)),
        }
        .map_err(refused("answer the daemon"))?;
    }
}

/// Makes the kernel end this process with its parent, which is `parent`.
fn end_with(parent: u32) -> Result<(), WorkError> {
    match die_with_parent(parent).map_err(refused("end with the daemon"))? {
        true => Ok(()),
        false => Err(WorkError::NotStartedSo("the daemon has ended")),
    }
}

fn answer(socket: BorrowedFd<'_>, pid: u32, pidfd: Result<OwnedFd, Errno>) -> Result<(), Errno> {
    let errno = pidfd.as_ref().err().copied().map_or(0, Errno::raw_os_error);
    let errno = u32::try_from(errno).unwrap_or_default();
    let mut bytes = [0; ANSWER];
    let (first, second) = bytes.split_at_mut(size_of::<u32>());
    first.copy_from_slice(&pid.to_ne_bytes());
    second.copy_from_slice(&errno.to_ne_bytes());
    match &pidfd {
        Ok(pidfd) => send(socket, &bytes, &[pidfd.as_fd()]),
        Err(_) => send(socket, &bytes, &[]),
    }
}

/// Sends one message with descriptors, two at most.
fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    rustix::io::retry_on_intr(|| {
        sendmsg(
            &socket,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
    })?;
    Ok(())
}

/// Waits for a message of the buffer's length; returns its descriptors, `None` at the end.
fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<Option<Vec<OwnedFd>>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let length = buffer.len();
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(
            &socket,
            &mut [IoSliceMut::new(buffer)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(all) = message {
            descriptors.extend(all);
        }
    }
    match received.bytes {
        0 => Ok(None),
        bytes if bytes == length => Ok(Some(descriptors)),
        _ => Err(Errno::INVAL),
    }
}

/// Starts a program that keeps our capabilities. Root's program keeps what this process may have anyhow; another user's would lose all.
fn with_our_capabilities<T>(start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = capabilities(None)?;
    if rustix::process::geteuid().is_root() || before.permitted.is_empty() {
        return start();
    }
    set_capabilities(
        None,
        CapabilitySets {
            inheritable: before.permitted,
            ..before
        },
    )?;
    for one in before.permitted.iter() {
        configure_capability_in_ambient_set(one, true)?;
    }
    let started = start();
    let _ = clear_ambient_capability_set();
    let _ = set_capabilities(None, before);
    started
}

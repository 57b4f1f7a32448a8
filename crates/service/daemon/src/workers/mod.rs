//! Processes that do what may have to wait for a process of others.
//!
//! Whoever owns a process can hold up all who read or change it, for any time: it executes itself while a file system in user space does not answer,
//! or holds the lock of its memory in the same way. So the daemon's own thread reads the files of no process and changes none. Its workers do:
//!
//! ```text
//!   daemon ──Task, then Wanted or Questions──> superhue worker     stdin: a socket pair; stdout: the board (superhue_sys::busy)
//!          <──Said or Answers────────────────                     no other descriptor, no capability that its rule does not need
//!
//!   watch    one for each tenant of a rule (`watches.rs`): the loop of `superhue::live`
//!   reader   one: what processes are (`roster.rs`)
//! ```
//!
//! A worker that sleeps in the kernel over one process for longer than its [`Patience`] is given up: it gets SIGKILL, which it may not be able to obey
//! before that process allows it, and is never waited for. It holds nothing that another one needs: neither sockets nor locks nor files of the
//! daemon, so a new daemon can start while it still sleeps. Another one takes its place, which leaves that process alone
//! ([`superhue_sys::busy::leave_alone`]). Which process it is, is known from the board.
//!
//! Chosen over threads: a thread that sleeps uninterruptibly keeps the process, its sockets and its locks alive. Chosen over forks of the daemon: an
//! executed program inherits nothing by mistake, and may have threads.

mod reader;
mod watch;
mod wire;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use rustix::process::{
    Pid, Signal, WaitOptions, getppid, set_parent_process_death_signal, waitpid,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, set_capabilities,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use superhue::act::{Frames, framed_within};
use superhue::held_up::{HeldUp, Minder, Patience};
use superhue_sys::busy::{self, Board};
use superhue_sys::process::{SignalSet, close_on_exec_from, cpu_time_of};
use superhue_track::drop_privileges;

pub(crate) use reader::{Came, Reader, read_one};
pub(crate) use watch::BEAT;
pub(crate) use wire::{Answered, Fed, Question, Said, Task, Wanted, WatchTask};

use wire::LONGEST;

/// This program, also after its file was replaced.
const PROGRAM: &str = "/proc/self/exe";

/// Settings of glibc's allocator (`mallopt(3)`): a worker has two threads, of which one is asleep, and there are many workers. One arena for both, and
/// what is free at its end goes back to the kernel.
const ALLOCATOR: [(&str, &str); 3] = [
    ("MALLOC_ARENA_MAX", "1"),
    ("MALLOC_MMAP_THRESHOLD_", "65536"),
    ("MALLOC_TRIM_THRESHOLD_", "65536"),
];

/// The name of the verb.
pub const VERB: &str = "worker";

/// Bytes read at a time.
const GULP: usize = 64 << 10;

/// Why a worker does not work.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// It was not started by the daemon.
    #[error("superhue worker is started by the daemon alone: {0}")]
    NotStartedSo(&'static str),
    /// The kernel says no.
    #[error("cannot {what}: {errno}")]
    Refused {
        /// What was tried.
        what: &'static str,
        /// Why not.
        errno: Errno,
    },
    /// What it was told makes no sense.
    #[error("{0}")]
    Malformed(String),
}

/// Does what the daemon, process `parent`, says at standard input, until one of them ends. `capabilities` (bits) are kept.
///
/// # Errors
/// See [`WorkError`].
pub fn work(parent: u32, kept: u64) -> Result<(), WorkError> {
    let input = io::stdin().as_fd().try_clone_to_owned();
    let input = input.map_err(|_| WorkError::NotStartedSo("there is no standard input"))?;
    // Ended by the daemon, not by whoever stops all processes of a service or a terminal at once.
    let _ = SignalSet::of(&[1, 2, 15]).block();
    let death = set_parent_process_death_signal(Some(Signal::KILL));
    death.map_err(refused("end with the daemon"))?;
    let now = getppid().map(Pid::as_raw_nonzero);
    if now.is_none_or(|pid| u32::try_from(pid.get()) != Ok(parent)) {
        return Err(WorkError::NotStartedSo("the daemon has ended"));
    }
    busy::tell(io::stdout()).map_err(|_| WorkError::NotStartedSo("standard output is no board"))?;
    drop_privileges(CapabilitySet::from_bits_retain(kept))
        .map_err(refused("give up capabilities"))?;
    let mut channel = Channel::new(input);
    let Some(task) = channel.wait_for()? else {
        return Ok(());
    };
    match task {
        Task::Watch(task) => watch::serve(&mut channel, &task),
        Task::Read(roots) => reader::serve(&mut channel, &roots),
    }
}

fn refused(what: &'static str) -> impl Fn(Errno) -> WorkError {
    move |errno| WorkError::Refused { what, errno }
}

/// One end of the connection between daemon and worker. Nothing here waits but what says so.
#[derive(Debug)]
struct Channel {
    socket: OwnedFd,
    frames: Frames,
    /// What the other end has not taken yet.
    pending: Vec<u8>,
    /// The other end has gone.
    is_over: bool,
}

impl Channel {
    const fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            frames: Frames::within(LONGEST),
            pending: Vec::new(),
            is_over: false,
        }
    }

    /// Says something, as far as the other end takes it now.
    fn say(&mut self, message: &impl Serialize) {
        match framed_within(message, LONGEST) {
            Ok(bytes) => self.pending.extend_from_slice(&bytes),
            Err(error) => tracing::error!(%error, "a message is too long"),
        }
        self.flush();
    }

    fn flush(&mut self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        while !self.pending.is_empty() {
            match send(&self.socket, &self.pending, flags) {
                Ok(sent) => drop(self.pending.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.pending.clear();
                    self.is_over = true;
                }
            }
        }
    }

    /// What has arrived.
    fn receive<T: DeserializeOwned>(&mut self) -> Result<Vec<T>, String> {
        let mut buffer = vec![0; GULP];
        loop {
            match recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => {
                    self.is_over = true;
                    break;
                }
                Ok((_, bytes)) => self.frames.push(buffer.get(..bytes).unwrap_or_default()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    self.is_over = true;
                    break;
                }
            }
        }
        let mut all = Vec::new();
        while let Some(message) = self.frames.take()? {
            all.push(message);
        }
        Ok(all)
    }

    /// Waits for one message; `None` at the end.
    fn wait_for<T: DeserializeOwned>(&mut self) -> Result<Option<T>, WorkError> {
        let mut buffer = vec![0; GULP];
        loop {
            if let Some(message) = self.frames.take().map_err(WorkError::Malformed)? {
                return Ok(Some(message));
            }
            match recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((_, 0)) => return Ok(None),
                Ok((_, bytes)) => self.frames.push(buffer.get(..bytes).unwrap_or_default()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(refused("hear the daemon")(errno)),
            }
        }
    }
}

/// A worker, as the daemon has it. Killed, and not waited for, when it is dropped.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    channel: Channel,
    board: Board,
    minder: Minder,
}

impl Worker {
    /// Starts one that keeps `kept` of our capabilities.
    ///
    /// # Errors
    /// Those of making a socket, a file in memory, a process.
    pub(crate) fn start(task: &Task, kept: CapabilitySet, patience: Patience) -> io::Result<Self> {
        reap();
        // A library may have opened descriptors without the flag, and the daemon may have inherited some.
        close_on_exec_from(3)?;
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let (board, file) = Board::in_file()?;
        let mut command = Command::new(PROGRAM);
        command
            .arg0("superhue")
            .args([VERB, "--parent", &std::process::id().to_string()])
            .args(["--capabilities", &kept.bits().to_string()])
            .env_clear()
            .envs(ALLOCATOR)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::from(file))
            .stderr(Stdio::null());
        let child = with_capabilities(kept, || command.spawn())?;
        let mut channel = Channel::new(ours);
        channel.say(task);
        Ok(Self {
            child,
            channel,
            board,
            minder: Minder::new(patience),
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has taken all that was said.
    pub(crate) fn listens(&mut self) -> bool {
        self.channel.flush();
        self.channel.pending.is_empty()
    }

    pub(crate) fn say(&mut self, message: &impl Serialize) {
        self.channel.say(message);
    }

    /// What it has said since.
    ///
    /// # Errors
    /// If that makes no sense.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Result<Vec<T>, String> {
        self.channel.receive()
    }

    /// Whether a message has arrived in part, and the rest is to be fetched soon.
    pub(crate) const fn is_within(&self) -> bool {
        self.channel.frames.is_within()
    }

    /// The process that holds it up. To be asked several times within the patience.
    pub(crate) fn held_up(&mut self) -> Option<HeldUp> {
        self.minder.look(self.child.id(), &self.board)
    }

    /// Whether it is no more.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// CPU time that it used so far, all its threads.
    pub(crate) fn cpu_time(&self) -> Duration {
        cpu_time_of(self.child.id()).unwrap_or_default()
    }

    /// Has it end as soon as it can: it sees the end of the stream.
    pub(crate) fn stop(&self) {
        let _ = rustix::net::shutdown(&self.channel.socket, rustix::net::Shutdown::Both);
    }

    /// Ends it. It may still be there afterwards, if it sleeps.
    pub(crate) fn kill(&mut self) {
        // The number is the child's until it was waited for.
        let _ = self.child.kill();
    }
}

impl AsFd for Worker {
    /// Readable when it has said something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.socket.as_fd()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
        if let Ok(None) = self.child.try_wait() {
            (KILLED.lock().unwrap_or_else(PoisonError::into_inner)).push(self.child.id());
        }
        reap();
    }
}

/// Workers that were killed, and have not been waited for: their numbers are theirs until then.
static KILLED: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Takes note of those that have ended.
pub(crate) fn reap() {
    let mut killed = KILLED.lock().unwrap_or_else(PoisonError::into_inner);
    killed.retain(|&pid| {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        matches!(waitpid(pid, WaitOptions::NOHANG), Ok(None))
    });
}

/// Starts a program that keeps these of our capabilities. Root's keeps what this process may have anyhow; another user's would lose all.
fn with_capabilities<T>(
    kept: CapabilitySet,
    start: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let before = capabilities(None)?;
    let kept = kept & before.permitted;
    if rustix::process::geteuid().is_root() || kept.is_empty() {
        return start();
    }
    set_capabilities(
        None,
        CapabilitySets {
            inheritable: kept,
            ..before
        },
    )?;
    for one in kept.iter() {
        configure_capability_in_ambient_set(one, true)?;
    }
    let started = start();
    let _ = clear_ambient_capability_set();
    let _ = set_capabilities(None, before);
    started
}

/// In tests the program is the one that the tests are in: as a worker it does not run them.
#[cfg(test)]
mod in_tests {
    #[used]
    #[allow(unsafe_code, reason = "the only way to run before the tests")]
    #[unsafe(link_section = ".init_array")]
    static WORK: extern "C" fn() = work;

    extern "C" fn work() {
        let arguments: Vec<String> = std::env::args().collect();
        if arguments.get(1).is_some_and(|verb| verb == super::VERB) {
            let number = |index: usize| arguments.get(index).and_then(|it| it.parse().ok());
            let parent = number(3).and_then(|it| u32::try_from(it).ok());
            let worked = super::work(parent.unwrap_or(0), number(5).unwrap_or(0));
            std::process::exit(i32::from(worked.is_err()));
        }
    }
}

//! Workers: processes for all work that may have to wait for another process.
//!
//! The owner of a process can hold up every reader and every changer of it, for any time: the process executes itself while a file system in user
//! space does not answer, or holds the lock of its memory in the same way. So the daemon's own thread reads the files of no process and changes
//! none. Its workers do:
//!
//! ```text
//!   daemon ──Task, then WatchUpdate or Questions──> worker      stdin: a socket pair; stdout: the board (superhue_sys::busy)
//!          <──WatchMessage or Answers────────────────              no other descriptor, no capability that its rule does not need
//!
//!   fork server   one: starts the others (`fork_server.rs`)
//!   watch         one for each tenant of a rule (`watches/`): the loop of `superhue::live`
//!   reader        one: facts about processes (`roster/`)
//! ```
//!
//! A worker that sleeps in the kernel over one process for longer than its [`SleepLimits`] is given up. It first releases its locks on tracked processes,
//! by the thread that takes its messages. Then it gets SIGKILL, which it may not be able to obey before that process allows it, and the daemon never
//! waits for it. It holds no socket, lock or file of the daemon, so a new daemon can start while it still sleeps. Another worker takes its place, and
//! leaves that process alone ([`superhue_sys::busy::leave_alone`]). The board names the process.
//!
//! Processes rather than threads: a thread that sleeps uninterruptibly keeps the process, its sockets and its locks alive.

mod fork_server;
mod reader;
mod watch;
mod wire;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use rustix::process::{Signal, pidfd_send_signal};
use rustix::thread::CapabilitySet;
use serde::Serialize;
use serde::de::DeserializeOwned;
use superhue::act::{Frames, framed_within};
use superhue::held_up::{BlockingProcess, SleepLimits, SleepMonitor};
use superhue_serve::drop_privileges;
use superhue_sys::busy::{self, BusyBoard};
use superhue_sys::process::cpu_time_of;

use fork_server::{ForkedWorker, Role};

pub(crate) use fork_server::cpu_time as cpu_time_of_fork_server;
pub(crate) use reader::{ReadOneError, Reader, ReaderOutcome, read_one};
pub(crate) use watch::{BEAT, TRIM_INTERVAL};
pub(crate) use wire::{
    MemberTable, ProcessAnswer, Question, Task, WatchMessage, WatchTask, WatchUpdate,
};

use wire::MAX_MESSAGE_BYTES;

/// The name of the verb.
pub const VERB: &str = "worker";

/// Bytes read at a time.
const GULP: usize = 64 << 10;

/// Reason why a worker does not work.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// The worker was not started by the daemon.
    #[error("superhue worker is started by the daemon alone: {0}")]
    NotStartedSo(&'static str),
    /// A system call failed.
    #[error("cannot {what}: {errno}")]
    Refused {
        /// Operation that failed.
        what: &'static str,
        /// The kernel's reason.
        errno: Errno,
    },
    /// A message makes no sense.
    #[error("{0}")]
    Malformed(String),
}

/// Forks workers for the daemon, process `parent`, and does in each what the daemon requests, until one of them ends.
///
/// # Errors
/// See [`WorkError`].
pub fn work(parent: u32) -> Result<(), WorkError> {
    match fork_server::serve(parent)? {
        Role::Ended => Ok(()),
        Role::Worker(kept) => work_with(parent, kept),
    }
}

/// Does what the daemon requests at standard input; keeps `kept` of our capabilities.
fn work_with(daemon: u32, kept: CapabilitySet) -> Result<(), WorkError> {
    let input = io::stdin().as_fd().try_clone_to_owned();
    let input = input.map_err(|_| WorkError::NotStartedSo("there is no standard input"))?;
    busy::tell(io::stdout()).map_err(|_| WorkError::NotStartedSo("standard output is no board"))?;
    drop_privileges(kept).map_err(refused("give up capabilities"))?;
    let mut channel = Channel::new(input);
    let Some(task) = channel.wait_for()? else {
        return Ok(());
    };
    match task {
        Task::Watch(task) => watch::serve(&mut channel, &task),
        Task::Read(roots) => reader::serve(&mut channel, &roots, daemon),
    }
}

fn refused(what: &'static str) -> impl Fn(Errno) -> WorkError {
    move |errno| WorkError::Refused { what, errno }
}

/// One end of the connection between daemon and worker. Only `wait_for` waits.
#[derive(Debug)]
struct Channel {
    socket: OwnedFd,
    frames: Frames,
    /// Bytes that the other end has not taken yet.
    pending: Vec<u8>,
    /// The other end has gone.
    is_over: bool,
}

impl Channel {
    const fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            frames: Frames::within(MAX_MESSAGE_BYTES),
            pending: Vec::new(),
            is_over: false,
        }
    }

    /// Sends a message, as far as the other end takes it now.
    fn say(&mut self, message: &impl Serialize) {
        match framed_within(message, MAX_MESSAGE_BYTES) {
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

    /// Returns the messages that have arrived.
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

/// A worker, on the daemon's side. Killed, and not waited for, on drop.
#[derive(Debug)]
pub(crate) struct Worker {
    forked: ForkedWorker,
    channel: Channel,
    board: BusyBoard,
    minder: SleepMonitor,
    /// CPU time at the last call of `cpu_time`.
    used: Cell<Duration>,
    /// True if it has ended: its number may be another process's.
    is_gone: Cell<bool>,
}

impl Worker {
    /// Starts a worker that keeps `kept` of our capabilities.
    ///
    /// # Errors
    /// Errors of making a socket, a file in memory, a process.
    pub(crate) fn start(
        task: &Task,
        kept: CapabilitySet,
        patience: SleepLimits,
    ) -> io::Result<Self> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let (board, file) = BusyBoard::in_file()?;
        let forked = fork_server::fork(kept, &theirs, &file)?;
        let mut channel = Channel::new(ours);
        channel.say(task);
        Ok(Self {
            forked,
            channel,
            board,
            minder: SleepMonitor::new(patience),
            used: Cell::default(),
            is_gone: Cell::default(),
        })
    }

    pub(crate) const fn pid(&self) -> u32 {
        self.forked.pid
    }

    /// Returns true if it has taken all messages.
    pub(crate) fn listens(&mut self) -> bool {
        self.channel.flush();
        self.channel.pending.is_empty()
    }

    pub(crate) fn say(&mut self, message: &impl Serialize) {
        self.channel.say(message);
    }

    /// Returns its messages since the last call.
    ///
    /// # Errors
    /// If they make no sense.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Result<Vec<T>, String> {
        self.channel.receive()
    }

    /// Returns true if a message has arrived in part, and the rest must be taken soon.
    pub(crate) const fn is_within(&self) -> bool {
        self.channel.frames.is_within()
    }

    /// Returns the process that holds it up. To be called several times within the patience.
    pub(crate) fn held_up(&mut self) -> Option<BlockingProcess> {
        let found = self.minder.look(self.forked.pid, &self.board);
        // The number is its own as long as it has not ended.
        found.filter(|_| !self.has_ended())
    }

    /// Returns true if it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        let mut ended = [PollFd::new(&self.forked.pidfd, PollFlags::IN)];
        let is_gone = matches!(poll(&mut ended, Some(&Timespec::default())), Ok(1..));
        self.is_gone.set(is_gone);
        is_gone
    }

    /// Returns the CPU time of all its threads so far; of a worker that has ended, the value at an earlier call.
    pub(crate) fn cpu_time(&self) -> Duration {
        if !self.is_gone.get() {
            let now = cpu_time_of(self.forked.pid).unwrap_or_default();
            self.used.set(now.max(self.used.get()));
        }
        self.used.get()
    }

    /// Asks it to end as soon as it can: it sees the end of the stream.
    pub(crate) fn stop(&self) {
        let _ = rustix::net::shutdown(&self.channel.socket, rustix::net::Shutdown::Both);
    }

    /// Kills it. It may still exist afterwards, if it sleeps.
    pub(crate) fn kill(&mut self) {
        let _ = pidfd_send_signal(&self.forked.pidfd, Signal::KILL);
    }
}

/// Returns for each worker whether it has sent something or has ended.
pub(crate) fn have_news(workers: &[&Worker]) -> Vec<bool> {
    let descriptors = workers
        .iter()
        .flat_map(|worker| [worker.channel.socket.as_fd(), worker.forked.pidfd.as_fd()]);
    let mut descriptors: Vec<PollFd<'_>> = descriptors
        .map(|one| PollFd::from_borrowed_fd(one, PollFlags::IN))
        .collect();
    if poll(&mut descriptors, Some(&Timespec::default())).is_err() {
        // The caller then looks at each of them.
        return vec![true; workers.len()];
    }
    let is_ready = |one: &PollFd<'_>| !one.revents().is_empty();
    (descriptors.chunks(2))
        .map(|both| both.iter().any(is_ready))
        .collect()
}

impl AsFd for Worker {
    /// Becomes readable when it has sent something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.socket.as_fd()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// In tests, workers execute the test program itself: as a worker it must not run the tests.
#[cfg(test)]
mod in_tests {
    #[used]
    #[allow(unsafe_code, reason = "the only way to run before the tests")]
    #[unsafe(link_section = ".init_array")]
    static WORK: extern "C" fn() = work;

    extern "C" fn work() {
        let arguments: Vec<String> = std::env::args().collect();
        if arguments.get(1).is_some_and(|verb| verb == super::VERB) {
            let parent = arguments.get(3).and_then(|it| it.parse().ok());
            let worked = super::work(parent.unwrap_or(0));
            std::process::exit(i32::from(worked.is_err()));
        }
    }
}

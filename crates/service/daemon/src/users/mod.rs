//! Makes huge pages for users who lack `CAP_SYS_NICE` and whom the configuration allows.
//!
//! ```text
//!   superhue run, as alice ──connects──> users.sock ──> daemon: is alice allowed? is there room?  ──no──> refused, with the reason
//!                                                          │ yes: starts a worker, and never waits for it
//!                                                          v
//!             <──orders and outcomes──>  superhue actuator: becomes alice, keeps CAP_SYS_NICE and nothing else (`worker.rs`)
//! ```
//!
//! The kernel guarantees that a user reaches only processes of that user: `process_madvise(2)` requires ptrace read access with the credentials of
//! the worker, which are those of the user. The kernel refuses setuid programs, processes that are not dumpable, and other users' processes. The
//! daemon reads nothing that a client writes: the kernel names the client (`SO_PEERCRED`), and the worker has the socket.
//!
//! The kernel or a client that does not read can hold a worker up. That holds up no other client: the worker is a process of its own, and
//! counts as one of those that the user may have.

mod admission;
mod worker;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags, accept_with, send};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::CapabilitySet;
use superhue::act::{Greeting, framed};
use superhue_serve::{Access, Listener};
use superhue_sys::process::close_on_exec_from;
use superhue_sys::seqpacket::{peer_credentials, peer_groups};

use crate::account::UsersAccount;
use crate::capabilities::missing;

pub use admission::{AllowEntry, UserSettings};
pub use worker::{WorkError, work};

use admission::{Client, StartLimiter};

/// Connections accepted in one turn, and the rest after it. So a flood costs the loop a part of its time only.
const MAX_ACCEPTS_PER_TURN: usize = 16;
const REST: Duration = Duration::from_millis(10);

/// Time without accepting when no descriptors are left.
const SHORTAGE: Duration = Duration::from_secs(1);

/// Events taken at a time.
const EVENTS: usize = 64;

const LISTENER: u64 = u64::MAX;

/// This program, also after its file was replaced.
const PROGRAM: &str = "/proc/self/exe";

/// The capabilities that workers take: `SETUID`, `SETGID` and `SETPCAP` to become the user with an empty bounding set, `SYS_NICE` to keep,
/// `KILL` to end them. The signal at the daemon's death (`PR_SET_PDEATHSIG`) needs `KILL`, too: the kernel checks the credentials of the dying
/// daemon (`group_send_sig_info`).
pub const NEEDED: CapabilitySet = CapabilitySet::SETUID
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SYS_NICE);

/// The socket for users, and the workers that act for the connected clients.
#[derive(Debug)]
pub(crate) struct Users {
    path: PathBuf,
    settings: Option<UserSettings>,
    listener: Option<Listener>,
    epoll: OwnedFd,
    workers: BTreeMap<u64, Worker>,
    next: u64,
    starts: StartLimiter,
    paused: bool,
    /// The end of a rest from accepting.
    rests: Option<Duration>,
    account: UsersAccount,
}

/// A process that acts for a client.
#[derive(Debug)]
struct Worker {
    uid: u32,
    child: Child,
    pidfd: OwnedFd,
}

impl Users {
    /// Makes a service that is off; `path` is its socket.
    pub(crate) fn new(path: PathBuf) -> Result<Self, Errno> {
        Ok(Self {
            path,
            settings: None,
            listener: None,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            workers: BTreeMap::new(),
            next: 0,
            starts: StartLimiter::default(),
            paused: false,
            rests: None,
            account: UsersAccount::default(),
        })
    }

    /// Returns the path of the socket, beside the control socket.
    pub(crate) fn socket_beside(control: &Path) -> PathBuf {
        control.with_file_name("users.sock")
    }

    /// Follows new settings. Workers under other settings end; their clients may connect again.
    pub(crate) fn follow(&mut self, settings: Option<UserSettings>, held: CapabilitySet) {
        // After a failure, a reload tries again.
        if settings == self.settings && self.account.error.is_none() {
            return;
        }
        self.end_all();
        self.settings = settings;
        self.account.error = None;
        if self.settings.is_none() {
            self.close();
        } else if let Some(names) = missing(NEEDED, held) {
            self.close();
            self.account.error = Some(format!(
                "users are not served without {names}: start the daemon as root, and let its unit have them"
            ));
        } else if self.listener.is_none()
            && let Err(text) = self.listen()
        {
            self.account.error = Some(text);
        }
        match (&self.settings, &self.account.error) {
            (_, Some(error)) => tracing::error!(error, "users are not served"),
            (Some(settings), None) => tracing::info!(
                socket = %self.path.display(),
                allowed = settings.allow.len(),
                "serving users"
            ),
            (None, None) => tracing::info!("users are served no more"),
        }
    }

    fn listen(&mut self) -> Result<(), String> {
        let everybody = Access {
            packets: false,
            mode: 0o666,
            group: None,
        };
        let listener = Listener::with(&self.path, everybody).map_err(|error| error.to_string())?;
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::add(&self.epoll, &listener, data, epoll::EventFlags::IN)
            .map_err(|errno| format!("cannot serve {}: {errno}", self.path.display()))?;
        self.listener = Some(listener);
        Ok(())
    }

    fn close(&mut self) {
        if let Some(listener) = self.listener.take() {
            let _ = epoll::delete(&self.epoll, &listener);
        }
        self.rests = None;
    }

    /// Ends all workers while the daemon is paused.
    pub(crate) fn pause(&mut self, paused: bool) {
        self.paused = paused;
        if paused {
            self.end_all();
        }
    }

    /// Returns the end of a rest from accepting.
    pub(crate) const fn due(&self) -> Option<Duration> {
        self.rests
    }

    pub(crate) fn account(&self) -> UsersAccount {
        UsersAccount {
            socket: self
                .listener
                .as_ref()
                .map(|listener| listener.path().display().to_string()),
            clients: self.workers.len() as u64,
            ..self.account.clone()
        }
    }

    /// Accepts connections, and reaps workers that have ended.
    pub(crate) fn step(&mut self, at: Duration) {
        if self.rests.is_some_and(|until| at >= until) {
            self.rests = None;
            self.hear(epoll::EventFlags::IN);
        }
        let mut events = Vec::with_capacity(EVENTS);
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&none));
        for event in &events {
            match event.data.u64() {
                LISTENER => self.accept(at),
                id => self.reap(id),
            }
        }
    }

    /// Sets the events of the listener that wake the loop.
    fn hear(&self, what: epoll::EventFlags) {
        if let Some(listener) = &self.listener {
            let data = epoll::EventData::new_u64(LISTENER);
            let _ = epoll::modify(&self.epoll, listener, data, what);
        }
    }

    fn rest(&mut self, until: Duration) {
        self.rests = Some(until);
        self.hear(epoll::EventFlags::empty());
    }

    fn accept(&mut self, at: Duration) {
        for _ in 0..MAX_ACCEPTS_PER_TURN {
            let Some(listener) = &self.listener else {
                return;
            };
            match accept_with(listener, SocketFlags::CLOEXEC) {
                Ok(socket) => self.admit(socket, at),
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    return self.rest(at + SHORTAGE);
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => break,
            }
        }
        self.rest(at + REST);
    }

    fn admit(&mut self, socket: OwnedFd, at: Duration) {
        match self.start_for(&socket, at) {
            Ok(worker) => {
                let id = self.next;
                self.next += 1;
                tracing::debug!(uid = worker.uid, pid = worker.child.id(), "acts for a user");
                let data = epoll::EventData::new_u64(id);
                // Without it the worker stays counted until the daemon ends.
                let _ = epoll::add(&self.epoll, &worker.pidfd, data, epoll::EventFlags::IN);
                self.workers.insert(id, worker);
                self.account.started += 1;
            }
            Err(text) => {
                self.account.refused += 1;
                tracing::debug!(because = text, "a user is refused");
                let bytes = framed(&Greeting::Refused { text }).unwrap_or_default();
                let _ = send(&socket, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            }
        }
    }

    /// Starts a worker for a client.
    ///
    /// # Errors
    /// A sentence for the client.
    fn start_for(&mut self, socket: &OwnedFd, at: Duration) -> Result<Worker, String> {
        let settings = self.settings.as_ref().ok_or("users are served no more")?;
        let unknown = |errno| format!("the kernel does not tell who you are: {errno}");
        let peer = peer_credentials(socket).map_err(unknown)?;
        let client = Client {
            uid: peer.uid,
            gid: peer.gid,
            groups: peer_groups(socket).map_err(unknown)?,
        };
        settings.admits(&client)?;
        if self.paused {
            return Err("the daemon is paused: superhue ctl resume".to_owned());
        }
        let same = self
            .workers
            .values()
            .filter(|it| it.uid == peer.uid)
            .count();
        settings.have_room(self.workers.len(), same)?;
        self.starts.take(peer.uid, at)?;
        let terms = serde_json::to_string(&settings.terms).unwrap_or_default();
        let failed = |error: std::io::Error| format!("the daemon cannot start a process: {error}");
        // A library may have opened descriptors without the flag, and the daemon may have inherited some.
        close_on_exec_from(3).map_err(|errno| failed(errno.into()))?;
        let socket = socket.try_clone().map_err(failed)?;
        let mut child = Command::new(PROGRAM)
            .arg0("superhue")
            .args(["actuator", "--terms", &terms])
            .args(["--parent", &std::process::id().to_string()])
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(socket))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        // The number belongs to the child until the daemon waits for it.
        match pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
            Some(Ok(pidfd)) => Ok(Worker {
                uid: peer.uid,
                child,
                pidfd,
            }),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                Err("the daemon cannot watch over a process: it has no descriptors left".to_owned())
            }
        }
    }

    fn reap(&mut self, id: u64) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        let Ok(Some(status)) = worker.child.try_wait() else {
            return;
        };
        // A signal is no failure: the user may send one.
        self.account.failed += u64::from(status.code().is_some_and(|code| code != 0));
        tracing::debug!(uid = worker.uid, pid = worker.child.id(), %status, "acts for a user no more");
        let _ = epoll::delete(&self.epoll, &worker.pidfd);
        self.workers.remove(&id);
    }

    fn end_all(&self) {
        for worker in self.workers.values() {
            let _ = pidfd_send_signal(&worker.pidfd, Signal::KILL);
        }
    }
}

impl AsFd for Users {
    /// Becomes readable when [`Users::step`] has work.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Drop for Users {
    /// Ends all workers; the kernel does the same when the daemon is killed (`PR_SET_PDEATHSIG`).
    fn drop(&mut self) {
        self.end_all();
    }
}

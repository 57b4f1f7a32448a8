//! One connection, from its first message to its end.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use superhue_client::Page;
use superhue_client::protocol::{Answer, Reason, Track};
use superhue_model::ProcessId;
use superhue_procfs::Roots;
use superhue_sys::seqpacket::{Credentials, has_hung_up, peer_credentials, peer_pidfd, send};
use superhue_sys::signal::queue_signal;

use crate::image::{Image, has_memory, same_pid_namespace};
use crate::publish::{ActiveSet, ListFile, hottest_first};

/// Progress of a connection.
#[derive(Debug)]
pub(crate) enum Stage {
    /// The client has sent nothing yet.
    Silent,
    /// The client has sent a request, and must answer the challenge.
    Challenged(Box<TrackRequest>, u64),
    /// The client is served.
    Tracked(Box<TrackedClient>),
}

/// A valid request.
#[derive(Debug)]
pub(crate) struct TrackRequest {
    track: Track,
    /// The program that the client ran at its request.
    client: Image,
    /// The program to watch; the same unless root named another process.
    pub(crate) target: Image,
    pidfd: OwnedFd,
    target_pidfd: Option<OwnedFd>,
}

/// State of a served client.
#[derive(Debug)]
pub(crate) struct TrackedClient {
    pub(crate) asked: TrackRequest,
    list: ListFile,
    told: ActiveSet,
    /// True if that set had as many pages as the client's threshold.
    was_enough: bool,
    /// The client has not fetched the newest list yet.
    unfetched: bool,
    /// A notice could not be delivered: it is due.
    owed: bool,
    /// A notice was delivered, and the client has not fetched since.
    outstanding: bool,
    /// Serial number of the list that the last delivered notice was about.
    notified: u64,
    /// Time of the last check that the client still executes the same program.
    checked: Option<Instant>,
}

/// Time for which such a check holds for a client that only repeats itself.
const CHECKED_FOR: Duration = Duration::from_millis(100);

/// Result of publishing a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PublishOutcome {
    pub(crate) superseded: bool,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) socket: OwnedFd,
    pub(crate) peer: Credentials,
    /// End of the time for the greeting.
    pub(crate) deadline: Duration,
    pub(crate) stage: Stage,
}

fn refusal(errno: Errno, text: impl Into<String>) -> Reason {
    Reason::new(errno, text.into())
}

impl Client {
    pub(crate) fn new(socket: OwnedFd, deadline: Duration) -> Result<Self, Errno> {
        let peer = peer_credentials(&socket)?;
        Ok(Self {
            socket,
            peer,
            deadline,
            stage: Stage::Silent,
        })
    }

    /// Sends an answer; does not wait for the client.
    pub(crate) fn say(&self, answer: &Answer) -> Result<(), Errno> {
        send(&self.socket, answer.packet().bytes(), None)
    }

    pub(crate) fn target(&self) -> Option<ProcessId> {
        match &self.stage {
            Stage::Tracked(tracked) => Some(tracked.asked.target.process),
            _ => None,
        }
    }

    /// Returns descriptors that become readable when the client's process, or the one it watches, exits.
    pub(crate) fn pidfds(&self) -> impl Iterator<Item = &OwnedFd> {
        let asked = match &self.stage {
            Stage::Tracked(tracked) => Some(&tracked.asked),
            _ => None,
        };
        asked
            .into_iter()
            .flat_map(|asked| [Some(&asked.pidfd), asked.target_pidfd.as_ref()])
            .flatten()
    }

    /// Checks the client's process, and notes the program that it runs.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub(crate) fn ask(&self, roots: &Roots, track: Track) -> Result<TrackRequest, Reason> {
        let peer = self.peer;
        if peer.pid == 0 {
            return Err(refusal(
                Errno::PERM,
                "this service cannot see the process that asks: it is in another PID namespace \
                 (a container that is no descendant); run `superhue track` in that namespace or \
                 an ancestor of it",
            ));
        }
        let gone = |errno: Errno| {
            refusal(
                errno,
                format!("process {} cannot be looked at: {errno}", peer.pid),
            )
        };
        let pidfd = match peer_pidfd(&self.socket) {
            Ok(pidfd) => pidfd,
            // Before Linux 6.5. Should the number have passed to another process meanwhile, that process
            // does not have the socket to answer the challenge.
            Err(Errno::NOPROTOOPT) => open_pidfd(peer.pid).map_err(gone)?,
            Err(errno) => return Err(gone(errno)),
        };
        let client = Image::of(roots, peer.pid).map_err(gone)?;
        if track.pid == 0 || (track.pid == peer.pid && peer.uid != 0) {
            has_memory(roots, peer.pid).map_err(|error| refusal(Errno::SRCH, error.to_string()))?;
            return Ok(TrackRequest {
                track,
                client,
                target: client,
                pidfd,
                target_pidfd: None,
            });
        }
        if peer.uid != 0 {
            return Err(refusal(
                Errno::PERM,
                format!(
                    "process {} of user {} may ask for itself only, not for process {}: root may \
                     ask for any",
                    peer.pid, peer.uid, track.pid
                ),
            ));
        }
        if !same_pid_namespace(roots, peer.pid) {
            return Err(refusal(
                Errno::PERM,
                "the process that asks numbers processes differently from this service (another \
                 PID namespace): it may ask for itself only (pid 0)",
            ));
        }
        let absent = |errno: Errno| {
            refusal(
                errno,
                format!("process {} cannot be watched: {errno}", track.pid),
            )
        };
        has_memory(roots, track.pid).map_err(|error| refusal(Errno::SRCH, error.to_string()))?;
        let target_pidfd = open_pidfd(track.pid).map_err(absent)?;
        let target = Image::of(roots, track.pid).map_err(absent)?;
        Ok(TrackRequest {
            track,
            client,
            target,
            pidfd,
            target_pidfd: Some(target_pidfd),
        })
    }

    /// Sends the list's descriptor to the client.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub(crate) fn begin(&mut self, roots: &Roots, asked: TrackRequest) -> Result<(), Reason> {
        if !asked.client.still_is(roots) || !asked.target.still_is(roots) {
            return Err(another_program());
        }
        let cannot =
            |errno: Errno| refusal(errno, format!("the service cannot make a list: {errno}"));
        let list = ListFile::new().map_err(cannot)?;
        let reader = list.reader().map_err(cannot)?;
        let packet = Answer::Tracked.packet();
        send(&self.socket, packet.bytes(), Some(reader.as_fd())).map_err(cannot)?;
        self.stage = Stage::Tracked(Box::new(TrackedClient {
            asked,
            list,
            told: ActiveSet::default(),
            was_enough: false,
            unfetched: false,
            owed: false,
            outstanding: false,
            notified: 0,
            checked: None,
        }));
        Ok(())
    }
}

impl TrackedClient {
    /// Returns the least heat of a page that the client calls active.
    pub(crate) const fn min_heat(&self) -> u32 {
        self.asked.track.min_heat
    }

    /// Returns the bytes of its list, and of the set that was published last.
    pub(crate) fn held(&self) -> usize {
        self.list.held() + self.told.held()
    }

    /// Publishes the pages (ascending) if they are news to this client.
    ///
    /// # Errors
    /// The reason why the service ends the connection.
    pub(crate) fn offer(
        &mut self,
        socket: &OwnedFd,
        roots: &Roots,
        mut pages: Vec<Page>,
        limit: usize,
    ) -> Result<Option<PublishOutcome>, Reason> {
        if !self.asked.client.still_is(roots) || !self.asked.target.still_is(roots) {
            return Err(another_program());
        }
        let set = ActiveSet::of(&pages);
        let active = set.len();
        let is_enough = active >= self.asked.track.threshold;
        // A set that reaches the threshold is news in any case.
        let is_news = set.is_news(&self.told) || (is_enough && !self.was_enough);
        if !is_news {
            self.pay(socket, roots);
            return Ok(None);
        }
        let cut = hottest_first(&mut pages, limit);
        let superseded = self.unfetched;
        self.list
            .publish(&pages, active, cut, superseded)
            .map_err(|errno| refusal(errno, format!("the list cannot be written: {errno}")))?;
        self.told = set;
        // After a notice the service sends no other one before the client fetches. A list below the threshold is there to be fetched, without one.
        self.owed = is_enough && !self.outstanding;
        self.was_enough = is_enough;
        self.unfetched = true;
        self.pay(socket, roots);
        Ok(Some(PublishOutcome { superseded }))
    }

    /// Delivers the notice that is due, if there is one.
    fn pay(&mut self, socket: &OwnedFd, roots: &Roots) {
        // A signal must not come after the client has ended the tracking, nor reach another program that it executes.
        if !self.owed || has_hung_up(socket) || !self.asked.client.still_is(roots) {
            return;
        }
        let (serial, active) = (self.list.serial(), self.list.active());
        let delivered = match i32::try_from(self.asked.track.signo) {
            Ok(signo) if signo != 0 => {
                let count = i32::try_from(active).unwrap_or(i32::MAX);
                queue_signal(&self.asked.pidfd, signo, count)
            }
            _ => send(
                socket,
                Answer::Notice { serial, active }.packet().bytes(),
                None,
            ),
        };
        match delivered {
            Ok(()) => {
                self.owed = false;
                self.outstanding = true;
                self.notified = serial;
            }
            // Its queue is full: the next call tries again.
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => tracing::debug!(%errno, "a notice could not be delivered"),
        }
    }

    /// Notes that the client has read list `serial`; returns true if it had not read that before.
    ///
    /// # Errors
    /// The reason why the service ends the connection: every holder of the socket can send this message,
    /// and a signal that is due then must not reach another program that the process has become (a setuid
    /// one).
    pub(crate) fn fetched(
        &mut self,
        socket: &OwnedFd,
        roots: &Roots,
        serial: u64,
    ) -> Result<bool, Reason> {
        // A client may send this as fast as it can, and each check reads files.
        let is_known = self.checked.is_some_and(|at| at.elapsed() < CHECKED_FOR);
        if !self.unfetched && !self.owed && is_known {
            return Ok(false);
        }
        self.checked = Some(Instant::now());
        if !self.asked.client.still_is(roots) {
            return Err(another_program());
        }
        if serial >= self.list.serial() {
            self.unfetched = false;
            self.owed = false;
            self.outstanding = false;
            return Ok(true);
        }
        if serial >= self.notified && self.unfetched {
            // The list was replaced while the client read it.
            self.outstanding = false;
            self.owed = self.was_enough;
            self.pay(socket, roots);
        }
        Ok(false)
    }
}

fn another_program() -> Reason {
    refusal(
        Errno::SRCH,
        "the process has exited, executed another program or changed its user, and has to ask again",
    )
}

fn open_pidfd(pid: u32) -> Result<OwnedFd, Errno> {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or(Errno::SRCH)?;
    pidfd_open(pid, PidfdFlags::empty())
}

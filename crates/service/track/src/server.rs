//! The main loop of the service.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use superhue_client::protocol::{Answer, MAX_MESSAGE_BYTES, Reason, Request};
use superhue_model::ProcessId;
use superhue_procfs::Roots;
use superhue_serve::Listener;
use superhue_sys::process::thread_cpu_time;
use superhue_sys::seqpacket::receive_no_descriptors;

use crate::budget::{Holding, MAKING, surplus};
use crate::client::{Client, Stage};
use crate::heat::{Heat, TrackingLoss};

/// Samples of a process before its first list.
const WARM_UP: u64 = 3;
/// Connections accepted, and messages read of one client, in one turn.
const MAX_MESSAGES_PER_TURN: usize = 32;
/// One place in this many is kept for root.
const KEPT_FOR_ROOT: usize = 16;

/// Time that new connections wait when descriptors are short.
const SHORTAGE: Duration = Duration::from_millis(100);

const LISTENER: u64 = 0;
const STOP: u64 = 1;

/// Limits on clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Clients in all.
    pub clients: usize,
    /// Clients of one user other than root.
    pub per_user: usize,
    /// Entries in a client's list; the coldest are cut. Each takes 8 bytes.
    pub max_pages: usize,
    /// Bytes that clients may take, all together: their lists, the heat of their memory, and a list in
    /// the making. If that does not suffice, the service ends the client that takes most, of the user who
    /// takes most.
    pub memory: u64,
    /// Time in which a client must complete the greeting.
    pub greeting: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 256,
            per_user: 64,
            max_pages: 1 << 20,
            memory: 1 << 30,
            greeting: Duration::from_secs(5),
        }
    }
}

/// Counters of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerCounters {
    /// Connections accepted.
    pub connections: u64,
    /// Clients tracked.
    pub tracked: u64,
    /// Connections refused, for any reason.
    pub refused: u64,
    /// Connections ended because of a malformed message.
    pub malformed: u64,
    /// Lists published.
    pub published: u64,
    /// Of these, lists replaced before the client had fetched them.
    pub superseded: u64,
}

/// Error that ends the service.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {errno}")]
pub struct ServerError {
    what: &'static str,
    errno: Errno,
}

const fn failed(what: &'static str) -> impl Fn(Errno) -> ServerError {
    move |errno| ServerError { what, errno }
}

/// The service.
pub struct Server<H> {
    heat: H,
    roots: Roots,
    limits: Limits,
    listener: Listener,
    epoll: OwnedFd,
    random: File,
    clients: BTreeMap<u64, Client>,
    /// Numbers of clients are never used again.
    next: u64,
    begun: Instant,
    /// Time until which no connection is accepted.
    paused: Option<Duration>,
    served: ServerCounters,
}

impl<H: Heat> Server<H> {
    /// Makes a service at this socket.
    ///
    /// # Errors
    /// If the kernel refuses an epoll, or there is no `/dev/urandom`.
    pub fn new(listener: Listener, heat: H, limits: Limits) -> Result<Self, ServerError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("epoll_create"))?;
        let random = File::open("/dev/urandom")
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
            .map_err(failed("cannot open /dev/urandom"))?;
        Ok(Self {
            heat,
            roots: Roots::default(),
            limits,
            listener,
            epoll,
            random,
            clients: BTreeMap::new(),
            next: 1,
            begun: Instant::now(),
            paused: None,
            served: ServerCounters::default(),
        })
    }

    /// Returns the counters so far.
    #[must_use]
    pub const fn served(&self) -> ServerCounters {
        self.served
    }

    /// Serves until `stop` is readable, then notifies every client and returns.
    ///
    /// # Errors
    /// If `epoll_wait` or `epoll_ctl` fails.
    pub fn run(&mut self, stop: impl AsFd) -> Result<(), ServerError> {
        let wait = failed("epoll");
        self.watch(&self.listener, LISTENER).map_err(&wait)?;
        self.watch(&stop, STOP).map_err(&wait)?;
        let mut events = Vec::with_capacity(256);
        loop {
            let timeout = self.next_due().map(|due| timespec(due, self.now()));
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(wait(errno)),
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    STOP => {
                        self.end_all();
                        return Ok(());
                    }
                    LISTENER => self.accept(),
                    token if token % 2 == 0 => self.read_requests(token / 2),
                    token => self.drop_client(token / 2, Some(exited())),
                }
            }
            self.resume();
            self.sample();
            self.let_silent_go();
        }
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn watch(&self, descriptor: impl AsFd, token: u64) -> Result<(), Errno> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.epoll, descriptor, data, epoll::EventFlags::IN)
    }

    fn next_due(&self) -> Option<Duration> {
        let greeting = self.clients.values();
        let greeting = greeting
            .filter(|client| !matches!(client.stage, Stage::Tracked(_)))
            .map(|client| client.deadline);
        let due = [self.heat.due(), self.paused];
        greeting.chain(due.into_iter().flatten()).min()
    }

    fn accept(&mut self) {
        for _ in 0..MAX_MESSAGES_PER_TURN {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match accept_with(&self.listener, flags) {
                Ok(socket) => self.admit(socket),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(errno) => {
                    // No descriptors or memory: the connections wait, and the loop does not spin.
                    tracing::warn!(%errno, "cannot accept connections for a moment");
                    let _ = epoll::delete(&self.epoll, &self.listener);
                    self.paused = Some(self.now() + SHORTAGE);
                    return;
                }
            }
        }
    }

    fn resume(&mut self) {
        if self.paused.is_some_and(|until| self.now() >= until) {
            // The shortage may last: without the listener no client would be accepted again.
            self.paused = match self.watch(&self.listener, LISTENER) {
                Ok(()) | Err(Errno::EXIST) => None,
                Err(_) => Some(self.now() + SHORTAGE),
            };
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        self.served.connections += 1;
        let Ok(client) = Client::new(socket, self.now() + self.limits.greeting) else {
            return;
        };
        let peer = client.peer;
        let same = |other: &&Client| other.peer.uid == peer.uid;
        // One person can have many user numbers, so some places are kept for root.
        let kept = if peer.uid == 0 {
            0
        } else {
            self.limits.clients / KEPT_FOR_ROOT
        };
        let crowded = if self.clients.len() + kept >= self.limits.clients {
            Some(format!(
                "the service has {} clients and takes no more: see its --max-clients",
                self.clients.len()
            ))
        } else if peer.uid != 0
            && self.clients.values().filter(same).count() >= self.limits.per_user
        {
            Some(format!(
                "user {} has {} clients, which is the most for one user",
                peer.uid, self.limits.per_user
            ))
        } else {
            None
        };
        if let Some(text) = crowded {
            self.served.refused += 1;
            let _ = client.say(&Answer::Refused(Reason::new(Errno::USERS, text)));
            return;
        }
        let id = self.next;
        self.next += 1;
        if self.watch(&client.socket, id * 2).is_ok() {
            self.clients.insert(id, client);
        }
    }

    /// Reads the requests of a client.
    fn read_requests(&mut self, id: u64) {
        for _ in 0..MAX_MESSAGES_PER_TURN {
            let Some(client) = self.clients.get(&id) else {
                return;
            };
            let mut buffer = [0; MAX_MESSAGE_BYTES];
            let received = match receive_no_descriptors(&client.socket, &mut buffer) {
                Ok(received) if received.bytes == 0 => return self.drop_client(id, None),
                Ok(received) => received,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => continue,
                Err(_) => return self.drop_client(id, None),
            };
            let message = buffer.get(..received.bytes).unwrap_or_default();
            let request = if received.truncated {
                Err("the message is too long".to_owned())
            } else {
                Request::parse(message).map_err(|malformed| malformed.to_string())
            };
            let answered = match request {
                Ok(request) => self.obey(id, request, received.sender.map(|sender| sender.pid)),
                Err(text) => {
                    self.served.malformed += 1;
                    Err(Reason::new(Errno::PROTO, text))
                }
            };
            if let Err(reason) = answered {
                return self.drop_client(id, Some(reason));
            }
        }
    }

    fn obey(&mut self, id: u64, request: Request, sender: Option<u32>) -> Result<(), Reason> {
        let out_of_turn = || Reason::new(Errno::PROTO, "a message out of turn".to_owned());
        let Some(client) = self.clients.get_mut(&id) else {
            return Ok(());
        };
        match (request, &mut client.stage) {
            (Request::Track(track), Stage::Silent) => {
                let asked = client.ask(&self.roots, track)?;
                let nonce = random(&mut self.random)?;
                client.stage = Stage::Challenged(Box::new(asked), nonce);
                let said = client.say(&Answer::Challenge { nonce });
                said.map_err(|errno| Reason::new(errno, "it does not listen".to_owned()))
            }
            (Request::Confirm { nonce }, Stage::Challenged(_, expected)) => {
                if nonce != *expected || sender != Some(client.peer.pid) {
                    let text = "another process than the one that connected has answered: each \
                                has to connect for itself";
                    return Err(Reason::new(Errno::PERM, text.to_owned()));
                }
                let Stage::Challenged(asked, _) =
                    std::mem::replace(&mut client.stage, Stage::Silent)
                else {
                    return Err(out_of_turn());
                };
                client.begin(&self.roots, *asked)?;
                self.started(id)
            }
            (Request::Fetched { serial }, Stage::Tracked(tracked)) => {
                // A client that asks again and again for the list that it has learns nothing new from more samples.
                if tracked.fetched(&client.socket, &self.roots, serial)? {
                    self.heat.resample_soon(tracked.asked.target.process);
                }
                Ok(())
            }
            _ => Err(out_of_turn()),
        }
    }

    fn started(&mut self, id: u64) -> Result<(), Reason> {
        let Some(client) = self.clients.get(&id) else {
            return Ok(());
        };
        for pidfd in client.pidfds() {
            self.watch(pidfd, id * 2 + 1)
                .map_err(|errno| Reason::new(errno, format!("epoll: {errno}")))?;
        }
        if let Some(process) = client.target() {
            tracing::info!(client = client.peer.pid, uid = client.peer.uid, %process.pid, "tracking");
            self.heat.add(process);
            self.served.tracked += 1;
        }
        Ok(())
    }

    /// Ends a client; `reason` is `None` if the client itself has closed the connection.
    fn drop_client(&mut self, id: u64, reason: Option<Reason>) {
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        let target = client.target();
        if let Some(reason) = reason {
            tracing::info!(client = client.peer.pid, reason = reason.text, "letting go");
            let answer = if target.is_some() {
                Answer::Ended(reason)
            } else {
                self.served.refused += 1;
                Answer::Refused(reason)
            };
            // A client that does not read misses it.
            let _ = client.say(&answer);
        }
        // Descriptors that its process shares with forked processes would keep the entries alive.
        let _ = epoll::delete(&self.epoll, &client.socket);
        for pidfd in client.pidfds() {
            let _ = epoll::delete(&self.epoll, pidfd);
        }
        if let Some(process) = target {
            self.release(process);
        }
    }

    /// Stops watching a process that no client asks for any more.
    fn release(&mut self, process: ProcessId) {
        let wanted = |client: &Client| client.target() == Some(process);
        if !self.clients.values().any(wanted) {
            self.heat.remove(process);
        }
    }

    fn sample(&mut self) {
        let now = self.now();
        if self.heat.due().is_none_or(|due| due > now) {
            return;
        }
        let sampled = self.heat.step(now);
        let before = thread_cpu_time();
        for sampled in sampled {
            match sampled.result {
                Ok(()) => self.tell(sampled.process),
                Err(lost) => self.lose(sampled.process, &lost),
            }
            self.make_room();
        }
        self.heat.spend(thread_cpu_time().saturating_sub(before));
    }

    fn ids_watching(&self, process: ProcessId) -> Vec<u64> {
        let watching =
            |(id, client): (&u64, &Client)| (client.target() == Some(process)).then_some(*id);
        self.clients.iter().filter_map(watching).collect()
    }

    /// Publishes the result of a sample to the clients that watch the process.
    fn tell(&mut self, process: ProcessId) {
        if self.heat.samples(process) < WARM_UP {
            return;
        }
        let most = usize::try_from(self.limits.memory / 2 / MAKING).unwrap_or(usize::MAX);
        for id in self.ids_watching(process) {
            let Some(client) = self.clients.get_mut(&id) else {
                continue;
            };
            let Stage::Tracked(tracked) = &mut client.stage else {
                continue;
            };
            let Some(pages) = self.heat.active(process, tracked.min_heat(), most) else {
                let text = format!(
                    "process {} has more than {most} active pages, too many for the service's \
                     memory: start it with a higher --max-memory, or ask for hotter pages only",
                    process.pid
                );
                self.drop_client(id, Some(Reason::new(Errno::NOMEM, text)));
                continue;
            };
            match tracked.offer(&client.socket, &self.roots, pages, self.limits.max_pages) {
                Ok(None) => {}
                Ok(Some(published)) => {
                    self.served.published += 1;
                    self.served.superseded += u64::from(published.superseded);
                }
                Err(reason) => self.drop_client(id, Some(reason)),
            }
        }
    }

    /// Ends clients until the remaining ones have room.
    fn make_room(&mut self) {
        let most = self.limits.memory / 2;
        while let Some(one) = surplus(&self.holdings(), most) {
            let text = format!(
                "clients take more than the {} MiB the service has for what it keeps, and this \
                 one, of the user who takes most, {} MiB: start the service with a higher \
                 --max-memory",
                most >> 20,
                one.bytes >> 20
            );
            self.drop_client(one.id, Some(Reason::new(Errno::NOMEM, text)));
        }
    }

    fn holdings(&self) -> Vec<Holding> {
        let mut watchers: BTreeMap<ProcessId, u64> = BTreeMap::new();
        for process in self.clients.values().filter_map(Client::target) {
            *watchers.entry(process).or_default() += 1;
        }
        let holding = |(&id, client): (&u64, &Client)| {
            let Stage::Tracked(tracked) = &client.stage else {
                return None;
            };
            let target = tracked.asked.target.process;
            let sharing = watchers.get(&target).copied().unwrap_or(1);
            let own = u64::try_from(tracked.held()).unwrap_or(u64::MAX);
            Some(Holding {
                id,
                uid: client.peer.uid,
                bytes: own.saturating_add(self.heat.held(target).div_ceil(sharing)),
            })
        };
        self.clients.iter().filter_map(holding).collect()
    }

    fn lose(&mut self, process: ProcessId, lost: &TrackingLoss) {
        for id in self.ids_watching(process) {
            self.drop_client(id, Some(Reason::new(lost.errno, lost.text.clone())));
        }
        self.heat.remove(process);
    }

    fn let_silent_go(&mut self) {
        let now = self.now();
        let is_late =
            |client: &Client| !matches!(client.stage, Stage::Tracked(_)) && client.deadline <= now;
        let late = self.clients.iter().filter(|(_, client)| is_late(client));
        let ids: Vec<u64> = late.map(|(id, _)| *id).collect();
        for id in ids {
            // It may have answered in time, while this service was busy with samples.
            self.read_requests(id);
            if !self.clients.get(&id).is_some_and(is_late) {
                continue;
            }
            let text = "it did not say in time what it wants";
            self.drop_client(id, Some(Reason::new(Errno::TIMEDOUT, text.to_owned())));
        }
    }

    fn end_all(&mut self) {
        let ids: Vec<u64> = self.clients.keys().copied().collect();
        for id in ids {
            let text = "the service was stopped; enable tracking again once it runs";
            self.drop_client(id, Some(Reason::new(Errno::PIPE, text.to_owned())));
        }
    }
}

fn exited() -> Reason {
    Reason::new(Errno::SRCH, "the process has exited".to_owned())
}

fn random(source: &mut File) -> Result<u64, Reason> {
    let mut bytes = [0; 8];
    source
        .read_exact(&mut bytes)
        .map_err(|error| Reason::new(Errno::IO, format!("/dev/urandom: {error}")))?;
    Ok(u64::from_le_bytes(bytes))
}

fn timespec(due: Duration, now: Duration) -> Timespec {
    // Rounded up: a moment too early would make the loop spin.
    let left = due.saturating_sub(now) + Duration::from_micros(1);
    Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    }
}

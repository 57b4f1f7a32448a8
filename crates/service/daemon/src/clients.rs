//! Whoever connects to a socket of the daemon, kept within bounds.
//!
//! The loop never waits for a client. What one can cost is bounded: one request of so many bytes, one answer, the time for both, and so
//! many connections of one user and in all. Whoever is too many, too slow or too long is let go. What is said on the connection is the
//! business of a [`Talk`]: `superhue ctl` and metrics have one each.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags, accept_with, recv, send, shutdown};
use superhue_sys::seqpacket::peer_credentials;

/// Connections accepted, and clients served, in one turn.
const TURN: usize = 32;

/// How long nothing is accepted when there are no descriptors left.
const SHORTAGE: Duration = Duration::from_secs(1);

/// What is read of a client at a time.
const GULP: usize = 4096;

/// What is read, and thrown away, of a client that goes on after its request.
const LISTENED_TO: usize = 256 << 10;

const LISTENER: u64 = u64::MAX;

/// What clients may cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes of a request.
    pub(crate) longest_request: usize,
    /// How long a client may take for its request, and for fetching the answer.
    pub(crate) patience: Duration,
    /// Connections at a time of one user, but for root; `None` where users are not told apart.
    pub(crate) of_one_user: Option<usize>,
    /// Connections at a time.
    pub(crate) of_all: usize,
    /// When there is no room, the client that has been silent for longest goes, rather than the new one being refused.
    pub(crate) newcomers_first: bool,
    /// The end of a connection is left to the client, who would otherwise lose an answer to a request that was too long (TCP throws away
    /// what was sent when a socket is closed that has unread data).
    pub(crate) linger: bool,
}

/// How a request came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// As the protocol says.
    Whole,
    /// The client has closed its side.
    Closed,
    /// It has as many bytes as a request may have, and no end.
    TooLong,
}

/// What a client is told.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reply {
    /// Its own.
    pub(crate) head: Vec<u8>,
    /// What follows, shared by all who are told the same.
    pub(crate) body: Arc<str>,
    /// Whether it was refused what it asked for.
    pub(crate) refused: bool,
}

/// What is said on a connection.
pub(crate) trait Talk {
    /// Where a request ends: how many bytes it has. Of `said`, the first `known` bytes were shown before.
    fn end(&self, said: &[u8], known: usize) -> Option<usize>;

    /// The answer.
    fn answer(&mut self, request: &[u8], ended: Ended) -> Reply;

    /// What one too many is told.
    fn too_many(&self) -> Vec<u8>;
}

/// A socket and those connected to it.
#[derive(Debug)]
pub(crate) struct Clients<L> {
    listener: L,
    limits: Limits,
    epoll: OwnedFd,
    clients: BTreeMap<u64, Client>,
    next: u64,
    /// Nothing is accepted until then.
    paused: Option<Duration>,
    pub(crate) requests: u64,
    pub(crate) refused: u64,
}

#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    uid: u32,
    deadline: Duration,
    request: Vec<u8>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// It has not asked yet.
    Asks,
    /// It is being told; so many bytes are sent.
    Told { reply: Reply, sent: usize },
    /// It has been told all, and may say no more than so many bytes before it goes.
    Goes { left: usize },
}

/// What a step with a client has come to.
enum Stage {
    /// It is waited for.
    Waits,
    /// So many bytes of what it said are its request.
    Asked(usize, Ended),
    /// It has all it gets, or is gone.
    Over,
}

impl<L: AsFd> Clients<L> {
    pub(crate) fn new(listener: L, limits: Limits) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::add(&epoll, &listener, data, epoll::EventFlags::IN)?;
        Ok(Self {
            listener,
            limits,
            epoll,
            clients: BTreeMap::new(),
            next: 0,
            paused: None,
            requests: 0,
            refused: 0,
        })
    }

    /// When somebody has to be let go, or accepting begins again.
    pub(crate) fn due(&self) -> Option<Duration> {
        let deadlines = self.clients.values().map(|client| client.deadline);
        deadlines.chain(self.paused).min()
    }

    /// How many are connected.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.clients.len()
    }

    /// Serves whoever can be served now.
    pub(crate) fn step(&mut self, at: Duration, talk: &mut dyn Talk) {
        if self.paused.is_some_and(|until| at >= until) {
            self.paused = None;
            let data = epoll::EventData::new_u64(LISTENER);
            let _ = epoll::add(&self.epoll, &self.listener, data, epoll::EventFlags::IN);
        }
        let mut events = Vec::with_capacity(TURN);
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&none));
        for event in &events {
            let id = event.data.u64();
            if id == LISTENER {
                self.accept(at, talk);
            } else {
                self.serve(id, talk);
            }
        }
        let late = self
            .clients
            .iter()
            .filter(|(_, client)| client.deadline <= at);
        let late: Vec<u64> = late.map(|(&id, _)| id).collect();
        for id in late {
            self.refuse(id);
        }
    }

    fn accept(&mut self, at: Duration, talk: &mut dyn Talk) {
        for _ in 0..TURN {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match accept_with(&self.listener, flags) {
                Ok(socket) => self.admit(socket, at, talk),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(errno) => {
                    tracing::warn!(%errno, "cannot accept connections for a moment");
                    let _ = epoll::delete(&self.epoll, &self.listener);
                    self.paused = Some(at + SHORTAGE);
                    return;
                }
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd, at: Duration, talk: &mut dyn Talk) {
        let uid = match self.limits.of_one_user {
            Some(_) => peer_credentials(&socket).map_or(u32::MAX, |peer| peer.uid),
            None => u32::MAX,
        };
        if self.is_full(uid) && !self.make_room() {
            self.refused += 1;
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = send(&socket, &talk.too_many(), flags);
            return;
        }
        let id = self.next;
        self.next += 1;
        let data = epoll::EventData::new_u64(id);
        if epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN).is_ok() {
            let client = Client {
                socket,
                uid,
                deadline: at + self.limits.patience,
                request: Vec::new(),
                state: State::Asks,
            };
            self.clients.insert(id, client);
            // Most have said what they want by now; it is heard before others push them out.
            self.serve(id, talk);
        }
    }

    fn is_full(&self, uid: u32) -> bool {
        let Limits {
            of_one_user,
            of_all,
            ..
        } = self.limits;
        let Some(of_one) = of_one_user else {
            return self.clients.len() >= of_all;
        };
        let same = self.clients.values().filter(|client| client.uid == uid);
        // Room is kept for root.
        let is_full_for_users = same.count() >= of_one || self.clients.len() + of_one >= of_all;
        uid != 0 && is_full_for_users || self.clients.len() >= of_all
    }

    /// Lets the one go that is least likely to be missed; whether there is one.
    fn make_room(&mut self) -> bool {
        if !self.limits.newcomers_first {
            return false;
        }
        let silent = |client: &&Client| !matches!(client.state, State::Told { .. });
        let first = (self.clients.iter()).find(|(_, client)| silent(client));
        let Some(id) = first.or(self.clients.iter().next()).map(|(&id, _)| id) else {
            return false;
        };
        self.refuse(id);
        true
    }

    fn serve(&mut self, id: u64, talk: &mut dyn Talk) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let mut stage = client.step(&self.limits, talk);
        if let Stage::Asked(bytes, ended) = stage {
            self.requests += 1;
            let mut request = std::mem::take(&mut client.request);
            request.truncate(bytes);
            let reply = talk.answer(&request, ended);
            self.refused += u64::from(reply.refused);
            client.state = State::Told { reply, sent: 0 };
            stage = client.step(&self.limits, talk);
            if matches!(stage, Stage::Waits) && matches!(client.state, State::Told { .. }) {
                client.wait_for(&self.epoll, id, epoll::EventFlags::OUT);
            }
        } else if matches!(client.state, State::Goes { .. }) {
            client.wait_for(&self.epoll, id, epoll::EventFlags::IN);
        }
        if matches!(stage, Stage::Over) {
            self.let_go(id);
        }
    }

    fn refuse(&mut self, id: u64) {
        // Who has been told all and only does not go was served.
        let is_served =
            (self.clients.get(&id)).is_some_and(|it| matches!(it.state, State::Goes { .. }));
        self.refused += u64::from(!is_served);
        self.let_go(id);
    }

    fn let_go(&mut self, id: u64) {
        if let Some(client) = self.clients.remove(&id) {
            let _ = epoll::delete(&self.epoll, &client.socket);
        }
    }
}

impl<L> AsFd for Clients<L> {
    /// Readable when somebody can be served.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Client {
    fn wait_for(&self, epoll: &OwnedFd, id: u64, what: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(id);
        let _ = epoll::modify(epoll, &self.socket, data, what);
    }

    fn step(&mut self, limits: &Limits, talk: &dyn Talk) -> Stage {
        match &mut self.state {
            State::Asks => self.receive(limits, talk),
            State::Told { reply, sent } => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                while let Some(left) = reply.after(*sent) {
                    match send(&self.socket, left, flags) {
                        Ok(more) => *sent += more,
                        Err(Errno::INTR) => {}
                        Err(Errno::AGAIN) => return Stage::Waits,
                        Err(_) => return Stage::Over,
                    }
                }
                if !limits.linger || shutdown(&self.socket, Shutdown::Write).is_err() {
                    return Stage::Over;
                }
                self.state = State::Goes { left: LISTENED_TO };
                self.see_off()
            }
            State::Goes { .. } => self.see_off(),
        }
    }

    fn receive(&mut self, limits: &Limits, talk: &dyn Talk) -> Stage {
        let mut buffer = [0; GULP];
        loop {
            let known = self.request.len();
            let room = limits.longest_request.saturating_sub(known).min(GULP);
            let Some(free) = buffer.get_mut(..room).filter(|room| !room.is_empty()) else {
                return Stage::Asked(known, Ended::TooLong);
            };
            match recv(&self.socket, free, RecvFlags::DONTWAIT) {
                Ok((_, 0)) if self.request.is_empty() => return Stage::Over,
                // Whoever has closed his side has said all.
                Ok((_, 0)) => return Stage::Asked(known, Ended::Closed),
                Ok((_, bytes)) => {
                    self.request
                        .extend_from_slice(buffer.get(..bytes).unwrap_or_default());
                    if let Some(end) = talk.end(&self.request, known) {
                        return Stage::Asked(end, Ended::Whole);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Stage::Waits,
                Err(_) => return Stage::Over,
            }
        }
    }

    /// Listens to what is said after the answer, a little at a time, until the client goes.
    fn see_off(&mut self) -> Stage {
        let mut buffer = [0; GULP];
        let State::Goes { left } = &mut self.state else {
            return Stage::Over;
        };
        loop {
            match recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((_, bytes)) if bytes > 0 && *left > bytes => *left -= bytes,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Stage::Waits,
                Ok(_) | Err(_) => return Stage::Over,
            }
        }
    }
}

impl Reply {
    /// What is left when so many bytes are sent; `None` if nothing is.
    fn after(&self, sent: usize) -> Option<&[u8]> {
        let left = match self.head.get(sent..) {
            Some(head) if !head.is_empty() => head,
            _ => self.body.as_bytes().get(sent - self.head.len()..)?,
        };
        (!left.is_empty()).then_some(left)
    }
}

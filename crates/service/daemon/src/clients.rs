//! Clients of a socket of the daemon, within limits.
//!
//! The loop never waits for a client. The cost of a client is bounded: one request of limited length, one answer, the time for both, and the number
//! of connections of one user and in all. The daemon disconnects clients beyond these limits. A [`ClientProtocol`] is the protocol on a connection: metrics
//! have one, and `superhue ctl`.
//!
//! An answer can come with a *lease*: the connection stays open for that time, and each further request may extend it. So a connection can stand for
//! something that must not outlive its client. The kernel closes the connection when the client ends, by whatever means; the lease ends it when the
//! client is stopped or hangs.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags, accept_with, recv, send, shutdown};
use superhue_sys::seqpacket::{Credentials, peer_credentials};

/// Connections accepted, and clients served, in one turn.
const MAX_CLIENTS_PER_TURN: usize = 32;

/// Time without accepting connections after descriptors ran out.
const SHORTAGE: Duration = Duration::from_secs(1);

/// Bytes read from a client at a time.
const GULP: usize = 4096;

/// Bytes read, and discarded, from a client that sends more after its request.
const LISTENED_TO: usize = 256 << 10;

/// Connections with a lease at a time, of one user other than root. They last, so they have few of the places of [`Limits`].
pub(crate) const MAX_LEASED_OF_ONE_USER: usize = 4;

/// Connections with a lease at a time.
pub(crate) const MAX_LEASED: usize = 16;

const LISTENER: u64 = u64::MAX;

/// Limits on clients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Longest request, in bytes.
    pub(crate) longest_request: usize,
    /// Time in which a client must send its request and fetch the answer.
    pub(crate) patience: Duration,
    /// Connections at a time of one user other than root; `None` where users are unknown.
    pub(crate) of_one_user: Option<usize>,
    /// Connections at a time.
    pub(crate) of_all: usize,
    /// True if an old client is disconnected for a new one when there is no room; false if the new one is refused.
    pub(crate) newcomers_first: bool,
    /// True to let the client end the connection. Otherwise it would lose the answer to a request that was too long (TCP discards sent data if a
    /// socket is closed that has unread data).
    pub(crate) linger: bool,
}

/// End of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestEnd {
    /// The end that the protocol defines.
    Whole,
    /// The client has closed its side.
    Closed,
    /// The request has reached the length limit without an end.
    TooLong,
}

/// Client that sent a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Requester {
    /// Number of the connection: no two have the same.
    pub(crate) client: u64,
    /// Process that opened the connection; `None` if unknown.
    pub(crate) peer: Option<Credentials>,
    /// True if the answer may come with a lease.
    pub(crate) may_lease: bool,
}

/// Answer to a client.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reply {
    /// The part for this client.
    pub(crate) head: Vec<u8>,
    /// The rest, shared by all clients with the same answer.
    pub(crate) body: Arc<str>,
    /// True if the request was refused.
    pub(crate) refused: bool,
    /// Time for which the connection stays open for another request; `None` closes it after this answer.
    pub(crate) lease: Option<Duration>,
}

/// Protocol on a connection.
pub(crate) trait ClientProtocol {
    /// Returns the length of the request at the start of `said`, its end mark included, if it is complete. An earlier call has seen the first
    /// `known` bytes.
    fn end(&self, said: &[u8], known: usize) -> Option<usize>;

    /// Returns the answer to a client.
    fn answer(&mut self, from: Requester, request: &[u8], ended: RequestEnd) -> Reply;

    /// Notes the end of the connection of a client that had a lease; called once for each.
    fn ended(&mut self, client: u64);

    /// Returns the text for a client that is refused because there are too many.
    fn too_many(&self) -> Vec<u8>;
}

/// A socket and the clients connected to it.
#[derive(Debug)]
pub(crate) struct Clients<L> {
    listener: L,
    limits: Limits,
    epoll: OwnedFd,
    clients: BTreeMap<u64, Client>,
    next: u64,
    /// Time until which nothing is accepted.
    paused: Option<Duration>,
    pub(crate) requests: u64,
    pub(crate) refused: u64,
}

#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    peer: Option<Credentials>,
    deadline: Duration,
    request: Vec<u8>,
    /// True if `request` has a whole request, which came together with the one before.
    has_next: bool,
    state: State,
    /// True once an answer came with a lease.
    has_lease: bool,
}

#[derive(Debug)]
enum State {
    /// The client has not sent a whole request yet.
    Asks,
    /// The client receives its answer; `sent` bytes are sent.
    Told { reply: Reply, sent: usize },
    /// The client has its whole answer, and may send at most `left` bytes before it is disconnected.
    Goes { left: usize },
}

/// Result of a step with a client.
enum Stage {
    /// The client has to send or receive more.
    Waits,
    /// The request is complete; its length in bytes.
    Asked(usize, RequestEnd),
    /// The client has its whole answer, or is gone.
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

    /// Returns the time when a client is late, or accepting begins again.
    pub(crate) fn due(&self) -> Option<Duration> {
        let deadlines = self.clients.values().map(|client| client.deadline);
        deadlines.chain(self.paused).min()
    }

    /// Returns the number of clients.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.clients.len()
    }

    /// Accepts clients, serves those that are ready, and disconnects late ones.
    pub(crate) fn step(&mut self, at: Duration, talk: &mut dyn ClientProtocol) {
        if self.paused.is_some_and(|until| at >= until) {
            let data = epoll::EventData::new_u64(LISTENER);
            let added = epoll::add(&self.epoll, &self.listener, data, epoll::EventFlags::IN);
            // The shortage may last: without the listener no client would be accepted again.
            self.paused = match added {
                Ok(()) | Err(Errno::EXIST) => None,
                Err(_) => Some(at + SHORTAGE),
            };
        }
        let mut events = Vec::with_capacity(MAX_CLIENTS_PER_TURN);
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
                self.serve(id, at, talk);
            }
        }
        let late = self
            .clients
            .iter()
            .filter(|(_, client)| client.deadline <= at);
        let late: Vec<u64> = late.map(|(&id, _)| id).collect();
        for id in late {
            self.refuse(id, talk);
        }
    }

    fn accept(&mut self, at: Duration, talk: &mut dyn ClientProtocol) {
        for _ in 0..MAX_CLIENTS_PER_TURN {
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

    fn admit(&mut self, socket: OwnedFd, at: Duration, talk: &mut dyn ClientProtocol) {
        let of_one_user = self.limits.of_one_user;
        let peer = of_one_user.and_then(|_| peer_credentials(&socket).ok());
        if self.is_full(uid_of(peer)) && !self.make_room(talk) {
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
                peer,
                deadline: at + self.limits.patience,
                request: Vec::new(),
                has_next: false,
                state: State::Asks,
                has_lease: false,
            };
            self.clients.insert(id, client);
            // Most clients have sent their request by now: serve it before other clients push them out.
            self.serve(id, at, talk);
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
        !has_room(self.clients.values(), uid, of_one, of_all)
    }

    /// Returns true if the client has a lease, or there is room for one more.
    fn may_lease(&self, client: &Client) -> bool {
        let leased = self.clients.values().filter(|other| other.has_lease);
        let uid = uid_of(client.peer);
        client.has_lease || has_room(leased, uid, MAX_LEASED_OF_ONE_USER, MAX_LEASED)
    }

    /// Disconnects the oldest client without an answer under way, else the oldest. Returns false if newcomers do not come first, or there is none.
    fn make_room(&mut self, talk: &mut dyn ClientProtocol) -> bool {
        if !self.limits.newcomers_first {
            return false;
        }
        let silent = |client: &&Client| !matches!(client.state, State::Told { .. });
        let first = (self.clients.iter()).find(|(_, client)| silent(client));
        let Some(id) = first.or(self.clients.iter().next()).map(|(&id, _)| id) else {
            return false;
        };
        self.refuse(id, talk);
        true
    }

    fn serve(&mut self, id: u64, at: Duration, talk: &mut dyn ClientProtocol) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let mut stage = client.step(&self.limits, talk);
        if let Stage::Asked(bytes, ended) = stage {
            self.answer(id, (bytes, ended), at, talk);
            let Some(client) = self.clients.get_mut(&id) else {
                return;
            };
            stage = client.step(&self.limits, talk);
        }
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        if matches!(stage, Stage::Over) {
            self.let_go(id, talk);
            return;
        }
        let awaited = match client.state {
            State::Told { .. } => epoll::EventFlags::OUT,
            // The socket does not become readable for bytes that are read already. It is writable at once, which wakes the loop.
            State::Asks if client.has_next => epoll::EventFlags::OUT,
            State::Asks | State::Goes { .. } => epoll::EventFlags::IN,
        };
        client.wait_for(&self.epoll, id, awaited);
    }

    /// Gives a client the answer to its request, the first `bytes` of those that it sent.
    fn answer(
        &mut self,
        id: u64,
        (bytes, ended): (usize, RequestEnd),
        at: Duration,
        talk: &mut dyn ClientProtocol,
    ) {
        let from = self.clients.get(&id).map(|client| Requester {
            client: id,
            peer: client.peer,
            may_lease: self.may_lease(client),
        });
        let (Some(from), Some(client)) = (from, self.clients.get_mut(&id)) else {
            return;
        };
        self.requests += 1;
        let mut request = std::mem::take(&mut client.request);
        let rest = request.split_off(bytes.min(request.len()));
        let reply = talk.answer(from, &request, ended);
        self.refused += u64::from(reply.refused);
        if let Some(lease) = reply.lease {
            (client.deadline, client.has_lease) = (at + lease, true);
            client.has_next = talk.end(&rest, 0).is_some();
            client.request = rest;
        } else if client.has_lease {
            // The connection ends after this answer, so it has no more time for it than any other one.
            client.deadline = at + self.limits.patience;
        }
        client.state = State::Told { reply, sent: 0 };
    }

    fn refuse(&mut self, id: u64, talk: &mut dyn ClientProtocol) {
        // A client that has its whole answer was served, whether it does not disconnect or its lease has run out.
        let is_served = self.clients.get(&id).is_some_and(|it| match it.state {
            State::Goes { .. } => true,
            State::Asks => it.has_lease && it.request.is_empty(),
            State::Told { .. } => false,
        });
        self.refused += u64::from(!is_served);
        self.let_go(id, talk);
    }

    fn let_go(&mut self, id: u64, talk: &mut dyn ClientProtocol) {
        if let Some(client) = self.clients.remove(&id) {
            let _ = epoll::delete(&self.epoll, &client.socket);
            if client.has_lease {
                talk.ended(id);
            }
        }
    }
}

impl<L> AsFd for Clients<L> {
    /// Becomes readable when a client is ready.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Returns the user of a client; the largest number, which the kernel gives to no user, if unknown.
fn uid_of(peer: Option<Credentials>) -> u32 {
    peer.map_or(u32::MAX, |peer| peer.uid)
}

/// Returns true if there is room for one more client of a user beside these, of `of_one` of each user and `of_all` in all. Room is kept for root.
fn has_room<'a>(
    clients: impl Iterator<Item = &'a Client>,
    uid: u32,
    of_one: usize,
    of_all: usize,
) -> bool {
    let (mut same, mut all) = (0, 0);
    for client in clients {
        same += usize::from(uid_of(client.peer) == uid);
        all += 1;
    }
    all < of_all && (uid == 0 || same < of_one && all + of_one < of_all)
}

impl Client {
    fn wait_for(&self, epoll: &OwnedFd, id: u64, what: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(id);
        let _ = epoll::modify(epoll, &self.socket, data, what);
    }

    fn step(&mut self, limits: &Limits, talk: &dyn ClientProtocol) -> Stage {
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
                if reply.lease.is_some() {
                    // A request that is there already comes in the next turn: the other clients come first.
                    self.state = State::Asks;
                    return Stage::Waits;
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

    fn receive(&mut self, limits: &Limits, talk: &dyn ClientProtocol) -> Stage {
        if std::mem::take(&mut self.has_next)
            && let Some(end) = talk.end(&self.request, 0)
        {
            return Stage::Asked(end, RequestEnd::Whole);
        }
        let mut buffer = [0; GULP];
        loop {
            let known = self.request.len();
            let room = limits.longest_request.saturating_sub(known).min(GULP);
            let Some(free) = buffer.get_mut(..room).filter(|room| !room.is_empty()) else {
                return Stage::Asked(known, RequestEnd::TooLong);
            };
            match recv(&self.socket, free, RecvFlags::DONTWAIT) {
                Ok((_, 0)) if self.request.is_empty() => return Stage::Over,
                // A client that has closed its side sends no more.
                Ok((_, 0)) => return Stage::Asked(known, RequestEnd::Closed),
                Ok((_, bytes)) => {
                    self.request
                        .extend_from_slice(buffer.get(..bytes).unwrap_or_default());
                    if let Some(end) = talk.end(&self.request, known) {
                        return Stage::Asked(end, RequestEnd::Whole);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Stage::Waits,
                Err(_) => return Stage::Over,
            }
        }
    }

    /// Reads and discards what the client sends after the answer, until it disconnects or has sent too much.
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
    /// Returns the next part after `sent` bytes; `None` if nothing is left.
    fn after(&self, sent: usize) -> Option<&[u8]> {
        let left = match self.head.get(sent..) {
            Some(head) if !head.is_empty() => head,
            _ => self.body.as_bytes().get(sent - self.head.len()..)?,
        };
        (!left.is_empty()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// A protocol without answers.
    struct Silent;

    impl ClientProtocol for Silent {
        fn end(&self, _: &[u8], _: usize) -> Option<usize> {
            None
        }

        fn answer(&mut self, _: Requester, _: &[u8], _: RequestEnd) -> Reply {
            Reply::default()
        }

        fn ended(&mut self, _: u64) {}

        fn too_many(&self) -> Vec<u8> {
            Vec::new()
        }
    }

    #[test]
    fn clients_are_accepted_again_however_long_a_shortage_lasts() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits {
            longest_request: 64,
            patience: Duration::from_secs(5),
            of_one_user: None,
            of_all: 4,
            newcomers_first: false,
            linger: false,
        };
        let mut clients = Clients::new(listener, limits).unwrap();
        // As after a failed `accept`.
        epoll::delete(&clients.epoll, &clients.listener).unwrap();
        clients.paused = Some(Duration::ZERO);
        let _client = TcpStream::connect(address).unwrap();
        // Nothing can be added to a descriptor that is no epoll.
        let other = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let epoll = std::mem::replace(&mut clients.epoll, other);
        clients.step(Duration::ZERO, &mut Silent);
        assert_eq!((clients.count(), clients.due()), (0, Some(SHORTAGE)));
        clients.epoll = epoll;
        clients.step(SHORTAGE, &mut Silent);
        assert_eq!((clients.count(), clients.paused), (1, None));
    }
}

//! Serves the control socket within the daemon's one thread: nothing here waits for a client.
//!
//! What a client can cost is bounded: one request of [`LONGEST_REQUEST`] bytes, one answer, [`PATIENCE`], and so many connections of one
//! user and in all. Whoever is too many, too slow or too long is let go.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};
use superhue_sys::seqpacket::peer_credentials;
use superhue_track::Listener;

use super::protocol::{LONGEST_REQUEST, Request};
use super::{read_request, written};
use crate::ctl::Answer;

/// How long a client may take for its request, and for fetching the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Connections at a time: of one user, but for root, and in all.
const OF_ONE_USER: usize = 16;
const OF_ALL: usize = 64;

/// Connections accepted, and clients served, in one turn.
const TURN: usize = 32;

/// How long nothing is accepted when there are no descriptors left.
const SHORTAGE: Duration = Duration::from_secs(1);

const LISTENER: u64 = u64::MAX;

/// The control socket and those connected to it.
#[derive(Debug)]
pub(crate) struct Server {
    listener: Listener,
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
    /// What is left of the answer; `None` before there is one.
    answer: Option<(Vec<u8>, usize)>,
}

/// What a step with a client has come to.
enum Stage {
    /// It is waited for.
    Waits,
    /// The first line of what it said.
    Asked(Vec<u8>),
    /// It has all it gets, or is gone.
    Over,
}

impl Server {
    pub(crate) fn new(listener: Listener) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::add(&epoll, &listener, data, epoll::EventFlags::IN)?;
        Ok(Self {
            listener,
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

    /// Serves whoever can be served now.
    pub(crate) fn step(&mut self, at: Duration, answer: &mut dyn FnMut(Request) -> Answer) {
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
                self.accept(at);
            } else {
                self.serve(id, answer);
            }
        }
        let late = self
            .clients
            .iter()
            .filter(|(_, client)| client.deadline <= at);
        let late: Vec<u64> = late.map(|(&id, _)| id).collect();
        for id in late {
            self.refused += 1;
            self.let_go(id);
        }
    }

    fn accept(&mut self, at: Duration) {
        for _ in 0..TURN {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match accept_with(&self.listener, flags) {
                Ok(socket) => self.admit(socket, at),
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

    fn admit(&mut self, socket: OwnedFd, at: Duration) {
        let uid = peer_credentials(&socket).map_or(u32::MAX, |peer| peer.uid);
        let same = self.clients.values().filter(|client| client.uid == uid);
        // Room is kept for root.
        let is_full = uid != 0
            && (same.count() >= OF_ONE_USER || self.clients.len() >= OF_ALL - OF_ONE_USER)
            || self.clients.len() >= OF_ALL;
        if is_full {
            self.refused += 1;
            let text = "too many connections at a time: try again".to_owned();
            let line = written(Answer::Refused { text });
            let _ = send(
                &socket,
                line.as_bytes(),
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            );
            return;
        }
        let id = self.next;
        self.next += 1;
        let data = epoll::EventData::new_u64(id);
        if epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN).is_ok() {
            let client = Client {
                socket,
                uid,
                deadline: at + PATIENCE,
                request: Vec::new(),
                answer: None,
            };
            self.clients.insert(id, client);
        }
    }

    fn serve(&mut self, id: u64, answer: &mut dyn FnMut(Request) -> Answer) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let mut stage = client.step();
        if let Stage::Asked(line) = stage {
            self.requests += 1;
            let told = match read_request(&line) {
                Ok(request) => answer(request),
                Err(text) => {
                    self.refused += 1;
                    Answer::Refused { text }
                }
            };
            client.answer = Some((written(told).into_bytes(), 0));
            stage = client.step();
            if matches!(stage, Stage::Waits) {
                let data = epoll::EventData::new_u64(id);
                let flags = epoll::EventFlags::OUT;
                let _ = epoll::modify(&self.epoll, &client.socket, data, flags);
            }
        }
        if matches!(stage, Stage::Over) {
            self.let_go(id);
        }
    }

    fn let_go(&mut self, id: u64) {
        if let Some(client) = self.clients.remove(&id) {
            let _ = epoll::delete(&self.epoll, &client.socket);
        }
    }
}

impl AsFd for Server {
    /// Readable when somebody can be served.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Client {
    fn step(&mut self) -> Stage {
        match &mut self.answer {
            Some((bytes, sent)) => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                while let Some(left) = bytes.get(*sent..).filter(|left| !left.is_empty()) {
                    match send(&self.socket, left, flags) {
                        Ok(more) => *sent += more,
                        Err(Errno::INTR) => {}
                        Err(Errno::AGAIN) => return Stage::Waits,
                        Err(_) => return Stage::Over,
                    }
                }
                Stage::Over
            }
            None => self.receive(),
        }
    }

    fn receive(&mut self) -> Stage {
        let mut buffer = [0; LONGEST_REQUEST];
        loop {
            let room = LONGEST_REQUEST - self.request.len();
            let Some(free) = buffer.get_mut(..room).filter(|room| !room.is_empty()) else {
                return Stage::Asked(std::mem::take(&mut self.request));
            };
            match recv(&self.socket, free, RecvFlags::DONTWAIT) {
                Ok((_, 0)) if self.request.is_empty() => return Stage::Over,
                // Without an end of the line: whoever has closed his side has said all.
                Ok((_, 0)) => return Stage::Asked(std::mem::take(&mut self.request)),
                Ok((_, bytes)) => {
                    let said = buffer.get(..bytes).unwrap_or_default();
                    let end = said.iter().position(|&byte| byte == b'\n');
                    self.request
                        .extend_from_slice(said.get(..end.unwrap_or(bytes)).unwrap_or_default());
                    if end.is_some() {
                        return Stage::Asked(std::mem::take(&mut self.request));
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Stage::Waits,
                Err(_) => return Stage::Over,
            }
        }
    }
}

#[cfg(test)]
mod tests;

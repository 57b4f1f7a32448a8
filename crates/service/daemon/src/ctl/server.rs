//! The control socket on the daemon's side: [`Clients`] that send one line and receive one.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;
use superhue_serve::Listener;

use super::protocol::{LEASE, LONGEST_REQUEST, Request};
use super::{read_request, written};
use crate::clients::{
    ClientProtocol, Clients, Limits, MAX_LEASED, MAX_LEASED_OF_ONE_USER, Reply, RequestEnd,
    Requester,
};
use crate::ctl::Answer;

const LIMITS: Limits = Limits {
    longest_request: LONGEST_REQUEST,
    patience: Duration::from_secs(5),
    of_one_user: Some(16),
    of_all: 64,
    newcomers_first: false,
    linger: false,
};

/// Party that answers the requests: the daemon.
pub(crate) trait Answers {
    /// Answers a client. [`Answer::Held`] keeps the connection open for [`LEASE`].
    fn answer(&mut self, from: Requester, request: Request) -> Answer;

    /// Notes the end of a connection that [`Answer::Held`] kept open, however it ended; called once for each.
    fn ended(&mut self, client: u64);
}

/// The control socket and the clients connected to it.
#[derive(Debug)]
pub(crate) struct Server(Clients<Listener>);

impl Server {
    pub(crate) fn new(listener: Listener) -> Result<Self, Errno> {
        Clients::new(listener, LIMITS).map(Self)
    }

    /// See [`Clients::due`].
    pub(crate) fn due(&self) -> Option<Duration> {
        self.0.due()
    }

    /// Accepts clients and serves those that are ready.
    pub(crate) fn step(&mut self, at: Duration, answers: &mut dyn Answers) {
        self.0.step(at, &mut Lines(answers));
    }

    /// Returns the number of requests, and of those that were refused.
    pub(crate) const fn served(&self) -> (u64, u64) {
        (self.0.requests, self.0.refused)
    }
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The protocol: a line as the request, a line as the answer.
struct Lines<'a>(&'a mut dyn Answers);

impl Lines<'_> {
    fn told(&mut self, from: Requester, request: Request) -> Answer {
        if from.may_lease || !matches!(request, Request::Hold { .. }) {
            return self.0.answer(from, request);
        }
        Answer::Refused {
            text: format!(
                "too many connections hold rules (at most {MAX_LEASED_OF_ONE_USER} of one user, and {MAX_LEASED} in all): \
                 superhue ctl status shows their processes; end one of them, then try again"
            ),
        }
    }
}

impl ClientProtocol for Lines<'_> {
    fn end(&self, said: &[u8], known: usize) -> Option<usize> {
        let news = said.get(known..).unwrap_or_default();
        let end = news.iter().position(|&byte| byte == b'\n');
        end.map(|end| known + end + 1)
    }

    // A request without an end of the line is parsed all the same.
    fn answer(&mut self, from: Requester, request: &[u8], _: RequestEnd) -> Reply {
        let request = read_request(request.strip_suffix(b"\n").unwrap_or(request));
        let refused = request.is_err();
        let told = match request {
            Ok(request) => self.told(from, request),
            Err(text) => Answer::Refused { text },
        };
        let lease = matches!(told, Answer::Held(_)).then_some(LEASE);
        Reply {
            head: written(told).into_bytes(),
            refused,
            lease,
            ..Reply::default()
        }
    }

    fn ended(&mut self, client: u64) {
        self.0.ended(client);
    }

    fn too_many(&self) -> Vec<u8> {
        let text = "too many connections at a time: try again".to_owned();
        written(Answer::Refused { text }).into_bytes()
    }
}

#[cfg(test)]
mod tests;

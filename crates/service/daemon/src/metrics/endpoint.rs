//! The endpoint for metrics: a port or a Unix socket, which another program may occupy for a while.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::listen;
use superhue_serve::{Access, ListenError, Listener};

use super::Format;
use super::http::{Http, LONGEST_HEAD};
use crate::account::MetricsAccount;
use crate::clients::{Clients, Limits};
use crate::config::MetricsAddress;

/// Time before another attempt after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

/// Rest after a step, as a multiple of its time: after a step that took a millisecond, the next one is 9 ms away.
const PAUSE: u32 = 9;

/// Length of the queue of connections: the kernel takes -1 for its own limit (`net.core.somaxconn`, 4096).
const AS_MANY_AS_ALLOWED: i32 = -1;

const LIMITS: Limits = Limits {
    longest_request: LONGEST_HEAD,
    patience: Duration::from_secs(10),
    // The user at the other end of a port is unknown.
    of_one_user: None,
    of_all: 64,
    newcomers_first: true,
    linger: true,
};

/// A listening socket.
#[derive(Debug)]
enum MetricsListener {
    Port(TcpListener),
    Socket(Listener),
}

impl AsFd for MetricsListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Port(listener) => listener.as_fd(),
            Self::Socket(listener) => listener.as_fd(),
        }
    }
}

/// The endpoint, if the configuration has one.
#[derive(Debug, Default)]
pub(crate) struct Endpoint {
    address: Option<MetricsAddress>,
    clients: Option<Clients<MetricsListener>>,
    /// Reason why it does not serve, and time of the next attempt.
    trouble: Option<(String, Duration)>,
    /// Time until which it serves no client.
    rests_until: Duration,
    /// Requests at earlier sockets, and refused ones.
    before: (u64, u64),
}

impl Endpoint {
    /// Serves at this address from now on, or nowhere. Does nothing if the address is the same.
    pub(crate) fn follow(&mut self, address: Option<MetricsAddress>, at: Duration) {
        if self.address == address {
            return;
        }
        let (requests, refused) = self.served();
        self.before = (requests, refused);
        // Closed first: the new one may be the same port at another address.
        self.clients = None;
        self.trouble = None;
        self.address = address;
        self.rests_until = Duration::ZERO;
        self.open(at);
    }

    /// Returns the time of the next work without a request.
    pub(crate) fn due(&self) -> Option<Duration> {
        let retry = self.trouble.as_ref().map(|(_, at)| *at);
        let clients = self.clients.as_ref();
        let clients = clients.and_then(|clients| Some(clients.due()?.max(self.rests_until)));
        let rest = (self.clients.is_some() && self.rests_until > Duration::ZERO)
            .then_some(self.rests_until);
        [retry, clients, rest].into_iter().flatten().min()
    }

    /// Returns the descriptor that becomes readable when a client is ready; `None` during a rest.
    pub(crate) fn descriptor(&self, at: Duration) -> Option<BorrowedFd<'_>> {
        let clients = self.clients.as_ref()?;
        (at >= self.rests_until).then(|| clients.as_fd())
    }

    /// Accepts clients and serves those that are ready, with the page that `text` makes.
    pub(crate) fn step(&mut self, at: Duration, text: &mut dyn FnMut(Format) -> Arc<str>) {
        if self.trouble.as_ref().is_some_and(|(_, until)| at >= *until) {
            self.open(at);
        }
        if at < self.rests_until {
            return;
        }
        if let Some(clients) = &mut self.clients {
            let begun = Instant::now();
            clients.step(at, &mut Http(text));
            let took = begun.elapsed();
            // A short step is not worth a rest.
            self.rests_until = if took > Duration::from_micros(200) {
                at + took * PAUSE
            } else {
                Duration::ZERO
            };
        }
    }

    pub(crate) fn account(&self) -> MetricsAccount {
        let (requests, requests_refused) = self.served();
        MetricsAccount {
            address: self.address.as_ref().map(ToString::to_string),
            error: self.trouble.as_ref().map(|(text, _)| text.clone()),
            requests,
            requests_refused,
        }
    }

    fn served(&self) -> (u64, u64) {
        let (requests, refused) = self.before;
        let now = (self.clients.as_ref()).map_or((0, 0), |it| (it.requests, it.refused));
        (requests + now.0, refused + now.1)
    }

    /// Listens. Reports a failure once, and tries again later.
    fn open(&mut self, at: Duration) {
        let Some(address) = &self.address else {
            return;
        };
        let made = door(address).and_then(|door| {
            Clients::new(door, LIMITS).map_err(|errno| format!("cannot wait for clients: {errno}"))
        });
        match made {
            Ok(clients) => {
                tracing::info!(%address, "serving metrics");
                self.trouble = None;
                self.clients = Some(clients);
            }
            Err(text) => {
                let text = format!("metrics cannot be served at {address}: {text}");
                if (self.trouble.as_ref()).is_none_or(|(before, _)| *before != text) {
                    let every = format!("{} s", AFTER_FAILURE.as_secs());
                    tracing::warn!(every, "{text}; tried again");
                }
                self.trouble = Some((text, at + AFTER_FAILURE));
            }
        }
    }
}

/// Takes the port or the path.
fn door(address: &MetricsAddress) -> Result<MetricsListener, String> {
    match address {
        MetricsAddress::Port(address) => {
            let listener = TcpListener::bind(address).map_err(|error| why_no_port(&error))?;
            // The standard library's queue holds 128 connections; the kernel drops others, and their clients try again a second later.
            let done = listen(&listener, AS_MANY_AS_ALLOWED).map_err(io::Error::from);
            let done = done.and_then(|()| listener.set_nonblocking(true));
            done.map_err(|error| why_no_port(&error))?;
            Ok(MetricsListener::Port(listener))
        }
        MetricsAddress::Socket(path) => {
            // As for a port: every user who reaches the folder may connect.
            let access = Access {
                packets: false,
                mode: 0o666,
                group: None,
            };
            let listener = Listener::with(path, access).map_err(|error| match error {
                ListenError::InUse(_) => "another service listens there".to_owned(),
                ListenError::NoSocket(_) => "what is there is no socket: remove it".to_owned(),
                other => other.to_string(),
            })?;
            Ok(MetricsListener::Socket(listener))
        }
    }
}

fn why_no_port(error: &io::Error) -> String {
    let remedy = match Errno::from_io_error(error) {
        Some(Errno::ADDRINUSE) => "; another program listens there (ss -ltnp says which)",
        Some(Errno::ADDRNOTAVAIL) => "; this machine has no such address",
        Some(Errno::ACCESS) => {
            "; ports below 1024 take a capability that the daemon gives up: use another one"
        }
        Some(Errno::AFNOSUPPORT | Errno::PERM) => {
            "; does the daemon's unit allow it? It takes AF_INET and AF_INET6 in RestrictAddressFamilies"
        }
        _ => "",
    };
    format!("{error}{remedy}")
}

#[cfg(test)]
mod tests;

//! The client: connects to the service, and sends it plans.

use std::env;
use std::ffi::OsString;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde::de::DeserializeOwned;
use superhue_model::{ActionResult, Effect, Outcome, Owner, Plan, SkipReason};

use super::wire::{
    Frames, Greeting, MOST_ACTIONS, MOST_MAPPERS, ObjectMappers, Order, Reply, Terms, VERSION,
    framed,
};
use crate::{Actuator, Mappers};

/// Default socket of the daemon for users.
pub const DEFAULT_SOCKET: &str = "/run/superhue/users.sock";

/// The environment variable that names another socket.
pub const SOCKET_VARIABLE: &str = "SUPERHUE_USERS_SOCKET";

/// Time for the greeting. The daemon starts a process first.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for an order. The kernel can delay the worker, for example at the memory lock of the program.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for the reply to an order after the client has stopped.
const STOPPED_REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Time between two calls of `stop`.
const LOOK: Duration = Duration::from_millis(20);

/// Time without the service before the next attempt to connect.
const PAUSE: Duration = Duration::from_secs(5);

/// Bytes read at a time.
const READ_BUFFER_BYTES: usize = 16 << 10;

/// Reason why the service is not available.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// No daemon listens.
    #[error("no daemon serves users at {}", .0.display())]
    NotThere(PathBuf),
    /// The daemon refused, with this reason.
    #[error("{0}")]
    Refused(String),
    /// The daemon did not answer in time.
    #[error("the daemon at {} has not answered in {} s", path.display(), GREETING_TIMEOUT.as_secs())]
    Late {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The daemon is in another PID namespace.
    #[error("the daemon at {} is in another PID namespace: it knows this process by another number, or not at all", .0.display())]
    OtherNamespace(PathBuf),
    /// The answer is from another program, or from another version.
    #[error("what {} answered is not understood: {why}", path.display())]
    NotUnderstood {
        /// Path of the socket.
        path: PathBuf,
        /// Reason.
        why: String,
    },
    /// Any other failure.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the socket.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// The service of the daemon for users who lack `CAP_SYS_NICE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserService {
    path: PathBuf,
}

impl Default for UserService {
    /// Uses [`SOCKET_VARIABLE`] if it is set and not empty, else [`DEFAULT_SOCKET`].
    fn default() -> Self {
        let given = env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty());
        let path = given.unwrap_or_else(|| OsString::from(DEFAULT_SOCKET));
        Self { path: path.into() }
    }
}

impl UserService {
    /// Names the service at `path`.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Connects, which takes some milliseconds.
    ///
    /// # Errors
    /// See [`ServiceError`].
    pub fn connect(&self) -> Result<Connection, ServiceError> {
        let path = || self.path.clone();
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                ServiceError::NotThere(path())
            }
            _ => ServiceError::Io {
                path: path(),
                source,
            },
        };
        let stream = UnixStream::connect(&self.path).map_err(failed)?;
        let mut link = Link::new(stream);
        let deadline = Instant::now() + GREETING_TIMEOUT;
        let greeting = link
            .receive(deadline, &|| false)
            .map_err(|lost| match lost {
                ReceiveError::Late | ReceiveError::Stopped => ServiceError::Late { path: path() },
                ReceiveError::Closed => ServiceError::NotUnderstood {
                    path: path(),
                    why: "it closed the connection".to_owned(),
                },
                ReceiveError::Malformed(why) => ServiceError::NotUnderstood { path: path(), why },
                ReceiveError::Io(errno) => failed(errno.into()),
            })?;
        match greeting {
            Greeting::Refused { text } => Err(ServiceError::Refused(text)),
            Greeting::Welcome { version, .. } if version != VERSION => {
                let why = format!(
                    "it speaks version {version} of the protocol, and this is version {VERSION}: \
                     restart the daemon, or install the same superhue"
                );
                Err(ServiceError::NotUnderstood { path: path(), why })
            }
            // The same number is another process there.
            Greeting::Welcome { client, .. } if client != std::process::id() => {
                Err(ServiceError::OtherNamespace(path()))
            }
            Greeting::Welcome { terms, .. } => Ok(Connection { link, terms }),
        }
    }
}

/// A connection to a worker. The worker ends when this is dropped.
#[derive(Debug)]
pub struct Connection {
    link: Link,
    terms: Terms,
}

impl Connection {
    /// Returns the limits for this client.
    #[must_use]
    pub const fn terms(&self) -> Terms {
        self.terms
    }
}

/// Sends plans to the service. When the service fails, its actions are skipped as [`SkipReason::ServiceLost`]. The actuator connects again
/// after some seconds, because a daemon may have been restarted.
pub struct RemoteActuator {
    service: UserService,
    connection: Option<Connection>,
    /// The time of the last failure.
    lost: Option<Instant>,
    mappers: Option<Mappers>,
}

impl RemoteActuator {
    /// Makes an actuator that uses `connection`. Without one it connects at the first plan.
    #[must_use]
    pub fn new(service: UserService, connection: Option<Connection>) -> Self {
        Self {
            service,
            connection,
            lost: None,
            mappers: None,
        }
    }

    /// Collapses regions of shared objects through the processes that `mappers` names.
    #[must_use]
    pub fn with_mappers(mut self, mappers: Mappers) -> Self {
        self.mappers = Some(mappers);
        self
    }

    /// Sends an order; `None` if the service failed.
    fn have_done(&mut self, plan: Plan, stop: &dyn Fn() -> bool) -> Option<Outcome> {
        if self.connection.is_none() {
            let is_soon = |lost: &Instant| lost.elapsed() < PAUSE;
            if self.lost.as_ref().is_some_and(is_soon) {
                return None;
            }
            self.connection = self.service.connect().ok();
        }
        let order = self.order(plan);
        let done = match self.connection.as_mut() {
            Some(connection) => connection.link.exchange(&order, stop),
            None => Err(ReceiveError::Closed),
        };
        match done {
            Ok(outcome) => Some(outcome),
            Err(_) => {
                self.connection = None;
                self.lost = Some(Instant::now());
                None
            }
        }
    }

    fn order(&self, plan: Plan) -> Order {
        let ways = plan.actions.iter().filter_map(|action| {
            let (Owner::Object(object), Some(mappers)) = (action.owner(), &self.mappers) else {
                return None;
            };
            let region = action.region();
            let mut through = mappers(object, region);
            through.truncate(MOST_MAPPERS);
            Some(ObjectMappers {
                object,
                region,
                through,
            })
        });
        Order {
            ways: ways.collect(),
            plan,
        }
    }
}

impl Actuator for RemoteActuator {
    fn perform(&mut self, plan: &Plan, stop: &dyn Fn() -> bool) -> Outcome {
        let mut results = Vec::with_capacity(plan.actions.len());
        let mut bounded = plan.part(&[]);
        for actions in plan.actions.chunks(MOST_ACTIONS) {
            let reason = if stop() {
                SkipReason::Cancelled
            } else {
                match self.have_done(bounded.part(actions), stop) {
                    Some(outcome) => {
                        bounded.spend_all(&outcome);
                        results.extend(outcome.results);
                        continue;
                    }
                    None => SkipReason::ServiceLost,
                }
            };
            results.extend(actions.iter().map(|&action| ActionResult {
                action,
                effect: Effect::Skipped { reason },
                took: Duration::ZERO,
            }));
        }
        Outcome { results }
    }
}

/// Reason why no message came.
#[derive(Debug)]
enum ReceiveError {
    Late,
    Stopped,
    Closed,
    Malformed(String),
    Io(Errno),
}

impl From<Errno> for ReceiveError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno)
    }
}

/// A stream with a deadline for each message.
#[derive(Debug)]
struct Link {
    stream: UnixStream,
    frames: Frames,
}

impl Link {
    fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            frames: Frames::default(),
        }
    }

    /// Sends an order, and receives its result.
    fn exchange(
        &mut self,
        order: &Order,
        stop: &dyn Fn() -> bool,
    ) -> Result<Outcome, ReceiveError> {
        let bytes = framed(order).map_err(|error| ReceiveError::Malformed(error.to_string()))?;
        let deadline = Instant::now() + REPLY_TIMEOUT;
        self.send(&bytes, deadline)?;
        let reply = match self.receive(deadline, stop) {
            // The worker sees the end of the stream, cancels the rest, and replies.
            Err(ReceiveError::Stopped) => {
                let _ = self.stream.shutdown(Shutdown::Write);
                self.receive(Instant::now() + STOPPED_REPLY_TIMEOUT, &|| false)
            }
            reply => reply,
        };
        let Reply { outcome } = reply?;
        let tried = outcome.results.iter().map(|result| &result.action);
        if tried.eq(&order.plan.actions) {
            Ok(outcome)
        } else {
            Err(ReceiveError::Malformed(
                "an answer to another order".to_owned(),
            ))
        }
    }

    fn send(&mut self, mut bytes: &[u8], deadline: Instant) -> Result<(), ReceiveError> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        while !bytes.is_empty() {
            match send(&self.stream, bytes, flags) {
                Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, deadline)?,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn receive<T: DeserializeOwned>(
        &mut self,
        deadline: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Result<T, ReceiveError> {
        let mut gulp = [0; READ_BUFFER_BYTES];
        loop {
            if let Some(message) = self.frames.take().map_err(ReceiveError::Malformed)? {
                return Ok(message);
            }
            match recv(&self.stream, &mut gulp, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(ReceiveError::Closed),
                Ok((_, count)) => self.frames.push(gulp.get(..count).unwrap_or_default()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if stop() => return Err(ReceiveError::Stopped),
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, deadline)?,
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Waits until the stream is ready, for [`LOOK`] at most.
    fn wait(&self, what: PollFlags, deadline: Instant) -> Result<(), ReceiveError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ReceiveError::Late);
        }
        let left = left.min(LOOK);
        let left = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(&self.stream, what)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

//! The connection to the service.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, shutdown,
    socket_with,
};
use superhue_sys::seqpacket::{has_hung_up, receive, send};

use crate::ClientError;
use crate::list::{self, Header, Page};
use crate::protocol::{Answer, MAX_MESSAGE_BYTES, MessageError, Reason, Request, Track};

/// Default path of the service's socket.
pub const DEFAULT_SOCKET: &str = "/run/superhue/track.sock";
/// The environment variable that names another socket. The caller decides whether to trust it: a setuid
/// program should not read it.
pub const SOCKET_VARIABLE: &str = "SUPERHUE_TRACK_SOCKET";

/// Default for the least heat of an active page, per mille.
const MIN_HEAT_DEFAULT: u32 = 50;
/// Attempts to fetch a list that grows meanwhile.
const FETCH_TRIES: usize = 16;
/// Attempts to read a list that is replaced meanwhile, each of which reads several times.
const READ_TRIES: usize = 4;

/// Options for tracking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackingOptions {
    /// The service's socket.
    pub socket: PathBuf,
    /// Notify once this many pages are active; a huge page counts 512.
    pub threshold: u64,
    /// Notify by this signal, with the count in `si_value`; `None`: by [`Tracking::wait`].
    pub signal: Option<i32>,
    /// A page is active from this heat on, 1 to 1000 per mille.
    pub min_heat: u32,
    /// Process to watch; `None`: this process. Only root may watch another one.
    pub pid: Option<u32>,
    /// Time within which the service must answer.
    pub timeout: Duration,
}

impl Default for TrackingOptions {
    fn default() -> Self {
        Self {
            socket: DEFAULT_SOCKET.into(),
            threshold: 1,
            signal: None,
            min_heat: MIN_HEAT_DEFAULT,
            pid: None,
            timeout: Duration::from_secs(5),
        }
    }
}

/// Notice of a new list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notice {
    /// Active pages in it; a huge page counts 512.
    pub active: u64,
}

/// Result of a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchCounts {
    /// Entries copied.
    pub count: usize,
    /// Entries there are in all.
    pub available: usize,
}

/// Counters since tracking was enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Lists the service wrote.
    pub published: u64,
    /// Of these, lists replaced before they were fetched.
    pub superseded: u64,
    /// Active pages in the newest; a huge page counts 512.
    pub active: u64,
    /// Pages that the newest lacks because of the service's limit, the coldest; a huge page counts 512.
    pub cut: u64,
}

/// A process that is tracked, until this value is dropped.
///
/// May be shared by threads. In a forked child every call fails with [`ClientError::Forked`].
#[derive(Debug)]
pub struct Tracking {
    socket: OwnedFd,
    list: OwnedFd,
    owner: rustix::process::Pid,
    /// True if the watched process is the owner itself.
    own: bool,
    disabled: AtomicBool,
    /// Reason that the service gave when it ended the tracking. `fetch` never locks it.
    ended: Mutex<Option<Reason>>,
}

impl Tracking {
    /// Asks the service to track the process.
    ///
    /// # Errors
    /// See [`ClientError`]: `Unreachable`, `Silent`, `Refused`, `Protocol`, `Invalid`.
    pub fn enable(options: &TrackingOptions) -> Result<Self, ClientError> {
        let signo = options.signal.unwrap_or(0);
        let track = Track {
            pid: options.pid.unwrap_or(0),
            signo: u32::try_from(signo).map_err(|_| ClientError::Invalid("no such signal"))?,
            threshold: options.threshold,
            min_heat: options.min_heat,
        };
        track.check().map_err(|bad| match bad {
            MessageError::Field(what) => ClientError::Invalid(what),
            _ => ClientError::Invalid("options"),
        })?;
        let deadline = Instant::now().checked_add(options.timeout);
        let path = options.socket.display().to_string();
        let silent = || ClientError::Silent { path: path.clone() };
        let unreachable = |errno| ClientError::Unreachable {
            path: path.clone(),
            errno,
        };
        let address = SocketAddrUnix::new(&options.socket).map_err(unreachable)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(unreachable)?;
        // A full backlog is `EAGAIN` at once: a Unix socket cannot be polled for it.
        loop {
            match connect(&socket, &address) {
                Ok(()) => break,
                Err(Errno::AGAIN | Errno::INTR) => {
                    if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                        return Err(silent());
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(errno) => return Err(unreachable(errno)),
            }
        }
        say(&socket, Request::Track(track))?;
        loop {
            let mut buffer = [0; MAX_MESSAGE_BYTES];
            let received = loop {
                match receive(&socket, &mut buffer) {
                    Err(Errno::AGAIN) => match readable(&socket, deadline) {
                        Ok(true) | Err(Errno::INTR) => {}
                        Ok(false) => return Err(silent()),
                        Err(errno) => return Err(system("poll", errno)),
                    },
                    // The service closed with something of ours unread. The kernel reports that once;
                    // earlier messages, a refusal perhaps, come next.
                    Err(Errno::INTR | Errno::CONNRESET) => {}
                    Err(errno) => return Err(system("recvmsg", errno)),
                    Ok(received) => break received,
                }
            };
            if received.bytes == 0 {
                return Err(ClientError::ServiceGone);
            }
            match parse(&buffer, received.bytes)? {
                Answer::Challenge { nonce } => say(&socket, Request::Confirm { nonce })?,
                Answer::Tracked => {
                    let list = received.descriptor.ok_or(ClientError::Protocol {
                        what: "it sent no list",
                    })?;
                    return Ok(Self {
                        socket,
                        list,
                        owner: rustix::process::getpid(),
                        own: options.pid.is_none_or(|pid| pid == std::process::id()),
                        disabled: AtomicBool::new(false),
                        ended: Mutex::new(None),
                    });
                }
                Answer::Refused(reason) | Answer::Ended(reason) => return Err(refused(reason)),
                Answer::Notice { .. } => {
                    return Err(ClientError::Protocol {
                        what: "a notice before it tracks",
                    });
                }
            }
        }
    }

    /// Returns true if the watched process is the calling one, so that it can act on the list.
    #[must_use]
    pub const fn is_of_caller(&self) -> bool {
        self.own
    }

    /// Ends tracking and wakes the threads in [`Self::wait`]; they return [`ClientError::Disabled`].
    pub fn disable(&self) {
        self.disabled.store(true, Ordering::Release);
        // Not in a child: the connection is its parent's.
        if rustix::process::getpid() == self.owner {
            let _ = shutdown(&self.socket, Shutdown::Both);
        }
    }

    fn check(&self) -> Result<(), ClientError> {
        if rustix::process::getpid() != self.owner {
            return Err(ClientError::Forked);
        }
        if self.disabled.load(Ordering::Acquire) {
            return Err(ClientError::Disabled);
        }
        Ok(())
    }

    /// Waits for a notice; returns `None` when `timeout` expires. Waits without end if `timeout` is
    /// `None`.
    ///
    /// Several notices that have arrived count as one. Without a [fetch](Self::fetch) no other follows.
    ///
    /// # Errors
    /// `ServiceGone`; `Refused` with its reason if the service ended the tracking; `Disabled`;
    /// `Forked`; `Interrupted`.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<Notice>, ClientError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            self.check()?;
            match self.drain() {
                Ok(Some(notice)) => return Ok(Some(notice)),
                Ok(None) => {}
                Err(error) => {
                    self.check()?;
                    return Err(error);
                }
            }
            match readable(&self.socket, deadline) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(Errno::INTR) => return Err(ClientError::Interrupted),
                Err(errno) => return Err(system("poll", errno)),
            }
        }
    }

    /// Reads all messages that have arrived; returns the newest notice.
    fn drain(&self) -> Result<Option<Notice>, ClientError> {
        let mut newest = None;
        loop {
            let mut buffer = [0; MAX_MESSAGE_BYTES];
            match receive(&self.socket, &mut buffer) {
                Err(Errno::AGAIN) => return Ok(newest),
                // As in the greeting: messages sent before the end come after the error.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(Errno::PIPE | Errno::NOTCONN) => return Err(self.gone()),
                Err(errno) => return Err(system("recvmsg", errno)),
                Ok(received) if received.bytes == 0 => return Err(self.gone()),
                Ok(received) => match parse(&buffer, received.bytes)? {
                    Answer::Notice { active, .. } => newest = Some(Notice { active }),
                    Answer::Ended(reason) | Answer::Refused(reason) => {
                        if let Ok(mut ended) = self.ended.lock() {
                            *ended = Some(reason);
                        }
                    }
                    Answer::Challenge { .. } | Answer::Tracked => {
                        return Err(ClientError::Protocol {
                            what: "an answer to nothing",
                        });
                    }
                },
            }
        }
    }

    fn gone(&self) -> ClientError {
        let ended = self.ended.lock().ok().and_then(|ended| ended.clone());
        ended.map_or(ClientError::ServiceGone, refused)
    }

    /// Copies the newest list, hottest first, as much as fits. Async-signal-safe; never waits.
    ///
    /// # Errors
    /// `Busy`, and another notice follows if the next list reaches the threshold; `ServiceGone` if the service or the tracking ended; `Disabled`; `Forked`.
    pub fn fetch(&self, pages: &mut [Page]) -> Result<FetchCounts, ClientError> {
        self.check()?;
        let (count, header) = self.read_list(|| list::read(&self.list, pages))?;
        if pages.is_empty() && header.entries > 0 {
            self.still_served()?;
            // The caller wanted only the length: the list was not read, and a notice that is due stays due.
            return Ok(FetchCounts {
                count,
                available: usize::try_from(header.entries).unwrap_or(usize::MAX),
            });
        }
        match send(
            &self.socket,
            Request::Fetched {
                serial: header.serial,
            }
            .packet()
            .bytes(),
            None,
        ) {
            // The service is busy, and will learn the serial from the next fetch; its socket's buffer
            // holds hundreds of these.
            Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => {
                self.check()?;
                return Err(ClientError::ServiceGone);
            }
        }
        Ok(FetchCounts {
            count,
            available: usize::try_from(header.entries).unwrap_or(usize::MAX),
        })
    }

    /// Fetches the newest list, whole, hottest first.
    ///
    /// # Errors
    /// As for [`Self::fetch`]; `System` when memory is short.
    pub fn fetch_all(&self) -> Result<Vec<Page>, ClientError> {
        let mut pages = Vec::new();
        for _ in 0..FETCH_TRIES {
            self.check()?;
            let header = self.read_list(|| Header::read(&self.list))?;
            let entries = usize::try_from(header.entries).unwrap_or(usize::MAX);
            pages.clear();
            pages
                .try_reserve(entries)
                .map_err(|_| system("memory for the list", Errno::NOMEM))?;
            pages.resize(entries, Page::default());
            let fetched = self.fetch(&mut pages)?;
            pages.truncate(fetched.count);
            if fetched.available == fetched.count {
                return Ok(pages);
            }
        }
        Err(ClientError::Busy)
    }

    /// Returns the counters.
    ///
    /// # Errors
    /// `Busy`, `ServiceGone`, `Disabled`, `Forked`.
    pub fn statistics(&self) -> Result<Statistics, ClientError> {
        self.check()?;
        self.still_served()?;
        let header = self.list_result(Header::read(&self.list))?;
        Ok(Statistics {
            published: header.serial,
            superseded: header.superseded,
            active: header.active,
            cut: header.cut,
        })
    }

    /// Reads from the list. If the service is just replacing it, asks for a notice of the new one: the notice of the old one may be taken already.
    fn read_list<T>(&self, mut read: impl FnMut() -> Result<T, Errno>) -> Result<T, ClientError> {
        for _ in 0..READ_TRIES {
            match read() {
                Err(Errno::AGAIN) => {}
                other => return self.list_result(other),
            }
            // A service that was killed leaves the list as it was.
            self.still_served()?;
            if let Some(serial) = Header::serial_being_replaced(&self.list) {
                let _ = send(
                    &self.socket,
                    Request::Fetched { serial }.packet().bytes(),
                    None,
                );
                break;
            }
        }
        Err(ClientError::Busy)
    }

    /// Checks that the service holds the other end of the connection.
    fn still_served(&self) -> Result<(), ClientError> {
        if has_hung_up(&self.socket) {
            self.check()?;
            return Err(ClientError::ServiceGone);
        }
        Ok(())
    }

    fn list_result<T>(&self, result: Result<T, Errno>) -> Result<T, ClientError> {
        result.map_err(|errno| match errno {
            Errno::AGAIN => ClientError::Busy,
            // The service empties the list when it ends the tracking.
            Errno::IO => ClientError::ServiceGone,
            errno => system("reading the list", errno),
        })
    }
}

fn say(socket: &OwnedFd, request: Request) -> Result<(), ClientError> {
    match send(socket, request.packet().bytes(), None) {
        Ok(()) => Ok(()),
        // A refusal may be waiting to be read.
        Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
        Err(errno) => Err(system("sendmsg", errno)),
    }
}

fn parse(buffer: &[u8], bytes: usize) -> Result<Answer, ClientError> {
    let message = buffer.get(..bytes).unwrap_or_default();
    Answer::parse(message).map_err(|malformed| ClientError::Protocol {
        what: match malformed {
            MessageError::Magic => "not its messages",
            MessageError::Version(_) => "another version",
            MessageError::Shape => "a message of unknown kind",
            MessageError::Field(what) => what,
        },
    })
}

fn refused(reason: Reason) -> ClientError {
    ClientError::Refused {
        errno: reason.errno,
        reason: reason.text,
    }
}

const fn system(what: &'static str, errno: Errno) -> ClientError {
    ClientError::System { what, errno }
}

/// Waits until there is something to read or the connection has ended; returns false at the deadline.
fn readable(socket: impl AsFd, deadline: Option<Instant>) -> Result<bool, Errno> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let timeout = left.map(|left| Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    });
    let mut polled = [PollFd::new(&socket, PollFlags::IN)];
    poll(&mut polled, timeout.as_ref()).map(|ready| ready > 0)
}
impl Drop for Tracking {
    /// Ends the tracking, also where a forked child still holds the connection.
    fn drop(&mut self) {
        self.disable();
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::io::pwrite;
    use rustix::net::socketpair;
    use superhue_sys::seqpacket::receive_no_descriptors;

    use super::*;

    /// Makes a connection, and returns the service's end of it.
    fn connected() -> (Tracking, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (socket, service) = pair.unwrap();
        let list = memfd_create("list", MemfdFlags::CLOEXEC).unwrap();
        let header = Header {
            serial: 7,
            active: 1,
            ..Header::default()
        };
        let page = Page {
            address: 0x1000,
            heat: 1000,
            ..Page::default()
        };
        list::write(&list, header, &[page]).unwrap();
        let tracking = Tracking {
            socket,
            list,
            owner: rustix::process::getpid(),
            own: true,
            disabled: AtomicBool::new(false),
            ended: Mutex::new(None),
        };
        (tracking, service)
    }

    fn requests(service: &OwnedFd) -> Vec<Request> {
        let mut buffer = [0; MAX_MESSAGE_BYTES];
        let next = || {
            let received = receive_no_descriptors(service, &mut buffer).ok()?;
            Request::parse(buffer.get(..received.bytes)?).ok()
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_list_that_is_being_replaced_is_announced_again() {
        let (tracking, service) = connected();
        assert_eq!(tracking.fetch_all().unwrap().len(), 1);
        assert_eq!(requests(&service), [Request::Fetched { serial: 7 }]);
        // The service writes list 8: until then the number is that of the old one.
        pwrite(&tracking.list, &3_u64.to_le_bytes(), 0).unwrap();
        for _ in 0..2 {
            let fetched = tracking.fetch_all();
            assert!(matches!(fetched, Err(ClientError::Busy)), "{fetched:?}");
            assert_eq!(requests(&service), [Request::Fetched { serial: 7 }]);
        }
    }

    #[test]
    fn a_service_that_was_killed_is_noticed() {
        let (tracking, service) = connected();
        assert_eq!(tracking.fetch(&mut []).unwrap().available, 1);
        drop(service);
        let gone = |error| matches!(error, ClientError::ServiceGone);
        assert!(tracking.fetch(&mut []).is_err_and(gone));
        assert!(tracking.statistics().is_err_and(gone));
        pwrite(&tracking.list, &3_u64.to_le_bytes(), 0).unwrap();
        assert!(tracking.fetch(&mut [Page::default()]).is_err_and(gone));
    }
}

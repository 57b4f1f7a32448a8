//! Non-blocking output to the terminal.
//!
//! A terminal whose other end accepts nothing (a connection that stalls) would block a writer for as long as that lasts, even if signals
//! arrive. So it is opened a second time, where that is allowed, in non-blocking mode; the open file description that superhue inherited
//! is shared with other processes, and keeps its mode.

use std::fs::File;
use std::io::{self, ErrorKind, Write, stdout};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::termios::ttyname;
use superhue::sys::process::SignalSet;

use super::Ending;

/// Longest wait for room at a time: the longest delay of a signal.
const STEP: Duration = Duration::from_millis(100);

/// The terminal.
pub(super) struct Output {
    file: Option<File>,
    pending: Vec<u8>,
    signals: SignalSet,
    ending: Option<Ending>,
    /// Time at which it stops waiting for the terminal.
    until: Option<Instant>,
}

impl Output {
    /// Wraps standard output; waits for room until one of `signals` (which are blocked) arrives.
    pub(super) fn new(signals: SignalSet) -> Self {
        Self {
            file: opened_again(),
            pending: Vec::new(),
            signals,
            ending: None,
            until: None,
        }
    }

    /// Returns the reason why nothing can be written any more.
    pub(super) fn ending(&self) -> Ending {
        self.ending.unwrap_or(Ending::HungUp)
    }

    /// From now on waits at most for `time`, whatever signals arrive.
    pub(super) fn give_up_after(&mut self, time: Duration) {
        self.until = Some(Instant::now() + time);
        self.pending.clear();
    }

    fn write_some(&self) -> Result<usize, Errno> {
        match &self.file {
            Some(file) => rustix::io::write(file, &self.pending),
            None => rustix::io::write(stdout(), &self.pending),
        }
    }

    fn wait_for_room(&mut self) -> io::Result<()> {
        let given = stdout();
        let room = match &self.file {
            Some(file) => file.as_fd(),
            None => given.as_fd(),
        };
        let mut fds = [PollFd::new(&room, PollFlags::OUT)];
        let step = Timespec::try_from(STEP).unwrap_or_default();
        match poll(&mut fds, Some(&step)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        match self.until {
            Some(until) if Instant::now() >= until => Err(ErrorKind::TimedOut.into()),
            Some(_) => Ok(()),
            None => match self.signals.wait(Duration::ZERO) {
                Some(signal) => {
                    self.ending = Some(Ending::Signal(signal.number));
                    Err(ErrorKind::Other.into())
                }
                None => Ok(()),
            },
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.pending.is_empty() {
            match self.write_some() {
                Ok(written) => {
                    self.pending.drain(..written);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait_for_room()?,
                Err(errno) => {
                    self.pending.clear();
                    return Err(errno.into());
                }
            }
        }
        Ok(())
    }
}

/// Opens the terminal of standard output again, in non-blocking mode; `None` if that is not allowed, or it would be
/// another terminal.
fn opened_again() -> Option<File> {
    let name = ttyname(stdout(), Vec::new()).ok()?;
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(open(name.as_c_str(), flags, Mode::empty()).ok()?);
    let (given, found) = (
        rustix::fs::fstat(stdout()).ok()?,
        rustix::fs::fstat(&file).ok()?,
    );
    (given.st_rdev == found.st_rdev && given.st_dev == found.st_dev).then_some(file)
}

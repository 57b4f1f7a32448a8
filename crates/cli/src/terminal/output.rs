//! What is written to the terminal, without being held up by it.
//!
//! A terminal whose other end takes nothing more (a connection that stalls) would hold up whoever writes to it for as long as that lasts,
//! signals or not. So it is opened a second time, where that is allowed, in a way that does not wait; the description that superhue was
//! given is shared with others, and stays as it is.

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

/// Longest wait for room at a time: how late a signal may be noticed.
const STEP: Duration = Duration::from_millis(100);

/// The terminal.
pub(super) struct Output {
    file: Option<File>,
    pending: Vec<u8>,
    signals: SignalSet,
    ending: Option<Ending>,
    /// Then it is no longer waited for.
    until: Option<Instant>,
}

impl Output {
    /// Standard output, which is waited for until one of `signals` (which are held back) comes.
    pub(super) fn new(signals: SignalSet) -> Self {
        Self {
            file: opened_again(),
            pending: Vec::new(),
            signals,
            ending: None,
            until: None,
        }
    }

    /// Why nothing can be written any more.
    pub(super) fn ending(&self) -> Ending {
        self.ending.unwrap_or(Ending::HungUp)
    }

    /// From now on waits for so long at most, whatever signals come.
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

/// The terminal that standard output is, opened so that writing does not wait; `None` where that is not allowed, or it would be another
/// one.
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

//! A full screen in the terminal: `heat --follow`, `top`.
//!
//! ```text
//!   Screen::open ──> draw, next, draw, next ... ──> dropped: the terminal is as it was before
//!                      │      └── a key, another size, or how it ended
//!                      └── only what has changed is written
//! ```
//!
//! Signals that end superhue are blocked and polled, so that the terminal is restored before it ends. A terminal may disappear at any
//! moment (a connection that breaks, a window that is closed), or accept nothing more for a while (a connection that stalls). Neither
//! makes superhue hang: every wait for the terminal also checks for signals, and a hangup is an ending like others.
//!
//! Keys are read here and not by crossterm, which reads on for ever at the end of a terminal that was hung up, and
//! waits inside a sequence of which only a part has arrived.

mod keys;
mod output;

use std::io::{self, Write, stdin, stdout};
use std::time::{Duration, Instant};

use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use superhue::sys::process::{SignalSet, set_ignored, stop_here};

use crate::output::{FAILED, Failure};

use keys::Keys;
pub use keys::{Key, printable};
use output::Output;

/// Signals that end superhue: `SIGHUP`, `SIGINT`, `SIGTERM`.
pub const ENDING: [i32; 3] = [1, 2, 15];
const SIGHUP: i32 = 1;
/// Other signals that are polled: `SIGCONT`, `SIGTSTP`, `SIGWINCH`.
const OTHERS: [i32; 3] = [18, 20, 28];

/// Longest wait for a key at a time: the longest delay of a signal.
const STEP: Duration = Duration::from_millis(100);
/// Time after which an incomplete sequence counts as a key.
const SEQUENCE: Duration = Duration::from_millis(50);
/// Longest wait for a terminal that accepts nothing while it is restored.
const FAREWELL: Duration = Duration::from_millis(500);

/// Another screen, cleared, without cursor; and back.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[2J\x1b[?25l";
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

/// An event of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Nothing happened in the given time.
    Nothing,
    /// A key.
    Key(Key),
    /// The screen must be redrawn: the terminal has another size, or another program used it.
    Redraw,
    /// The screen has ended.
    Ended(Ending),
}

/// Reason for the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// By a signal.
    Signal(i32),
    /// The terminal is gone.
    HungUp,
}

impl Ending {
    /// The exit status, as in shells: 128 plus the signal. A terminal that is gone counts as `SIGHUP`.
    #[must_use]
    pub fn status(self) -> u8 {
        let signal = match self {
            Self::Signal(signal) => signal,
            Self::HungUp => SIGHUP,
        };
        128 + u8::try_from(signal).unwrap_or(0)
    }

    /// Returns true if no reader is left at the terminal.
    #[must_use]
    pub fn is_hangup(self) -> bool {
        matches!(self, Self::HungUp | Self::Signal(SIGHUP))
    }
}

/// Returns true if standard input and output are terminals.
#[must_use]
pub fn is_there() -> bool {
    isatty(stdin()) && isatty(stdout())
}

/// The terminal, while it shows a full screen.
pub struct Screen {
    output: Output,
    shown: Buffer,
    before: Termios,
    keys: Keys,
    signals: SignalSet,
    blocked_before: SignalSet,
}

impl Screen {
    /// Takes over the terminal. While the screen lives, signals that end superhue are blocked in this thread, and in
    /// those that it starts afterwards.
    ///
    /// # Errors
    /// If the terminal cannot be used.
    pub fn open() -> Result<Self, Failure> {
        let signals = SignalSet::of(&[&ENDING[..], &OTHERS[..]].concat());
        let blocked_before = signals.block();
        let opened = tcgetattr(stdin()).and_then(|before| {
            let mut raw = before.clone();
            raw.make_raw();
            tcsetattr(stdin(), OptionalActions::Now, &raw)?;
            Ok(before)
        });
        let before = match opened {
            Ok(before) => before,
            Err(errno) => {
                blocked_before.apply();
                let text = format!("cannot use the terminal for a full screen: {errno}");
                return Err(Failure::new(FAILED, text));
            }
        };
        let mut screen = Self {
            output: Output::new(SignalSet::of(&ENDING)),
            shown: Buffer::empty(Rect::ZERO),
            before,
            keys: Keys::default(),
            signals,
            blocked_before,
        };
        screen.fit();
        // An error here shows at the first drawing.
        let _ = screen.write(ENTER);
        Ok(screen)
    }

    /// Shows what `draw` draws into a buffer of the terminal's size.
    ///
    /// # Errors
    /// The ending, if the terminal accepts nothing any more.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Buffer)) -> Result<(), Ending> {
        self.fit();
        let mut next = Buffer::empty(self.shown.area);
        draw(&mut next);
        let changed = self.shown.diff(&next);
        let mut backend = CrosstermBackend::new(&mut self.output);
        let written = backend
            .draw(changed.into_iter())
            .and_then(|()| Backend::flush(&mut backend));
        self.shown = next;
        written.map_err(|_| over(self.output.ending()))
    }

    /// Waits for an event, at most for `pause`.
    pub fn next(&mut self, pause: Duration) -> Event {
        let until = Instant::now() + pause;
        loop {
            match self.signals.wait(Duration::ZERO).map(|it| it.number) {
                Some(signal) if ENDING.contains(&signal) => {
                    return Event::Ended(over(Ending::Signal(signal)));
                }
                Some(20) => return self.suspend(),
                Some(18) => return self.resume(),
                Some(_) => return Event::Redraw,
                None => {}
            }
            if let Some(key) = self.keys.next(false) {
                return self.pressed(key);
            }
            let left = until.saturating_duration_since(Instant::now());
            let wait = if self.keys.is_waiting() {
                SEQUENCE
            } else {
                left.min(STEP)
            };
            match self.read(wait) {
                Input::Gone => return Event::Ended(over(Ending::HungUp)),
                Input::Some => {}
                Input::None => {
                    if let Some(key) = self.keys.next(true) {
                        return self.pressed(key);
                    }
                    if left.is_zero() {
                        return Event::Nothing;
                    }
                }
            }
        }
    }

    fn pressed(&mut self, key: Key) -> Event {
        match key {
            Key::Control('z') => self.suspend(),
            key => Event::Key(key),
        }
    }

    /// Gives the terminal back while superhue is stopped.
    fn suspend(&mut self) -> Event {
        self.leave();
        stop_here();
        self.resume()
    }

    fn resume(&mut self) -> Event {
        // Both arrive when superhue is continued.
        let _ = SignalSet::of(&OTHERS).wait(Duration::ZERO);
        let mut raw = self.before.clone();
        raw.make_raw();
        let _ = tcsetattr(stdin(), OptionalActions::Now, &raw);
        let _ = self.write(ENTER);
        self.shown = Buffer::empty(self.shown.area);
        Event::Redraw
    }

    /// Adapts the buffer to the terminal's size.
    fn fit(&mut self) {
        let size = tcgetwinsize(stdout()).ok();
        let size = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
        // Assumed for terminals without a size.
        let (width, height) = size.map_or((80, 24), |size| (size.ws_col, size.ws_row));
        // A buffer for the largest sizes that a terminal can report would fill the memory.
        let area = Rect::new(0, 0, width.min(1000), height.min(1000));
        if area != self.shown.area {
            self.shown = Buffer::empty(area);
            let _ = self.write(b"\x1b[0m\x1b[2J");
        }
    }

    fn read(&mut self, wait: Duration) -> Input {
        let input = stdin();
        let mut fds = [PollFd::new(&input, PollFlags::IN)];
        let timeout = Timespec::try_from(wait).unwrap_or_default();
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => return Input::None,
            Ok(_) => {}
            Err(_) => return Input::Gone,
        }
        let found = fds[0].revents();
        if found.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Input::Gone;
        }
        let mut bytes = [0; 256];
        match rustix::io::read(&input, &mut bytes) {
            Ok(0) => Input::Gone,
            Ok(count) => {
                self.keys.feed(bytes.get(..count).unwrap_or_default());
                Input::Some
            }
            Err(Errno::INTR | Errno::AGAIN) => Input::None,
            Err(_) => Input::Gone,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.write_all(bytes)?;
        self.output.flush()
    }

    fn leave(&mut self) {
        self.output.give_up_after(FAREWELL);
        let _ = self.write(LEAVE);
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
        self.blocked_before.apply();
    }
}

/// Records the end. A hangup may show before its signal arrives; the signal must then not keep superhue from writing
/// the result to a file.
fn over(ending: Ending) -> Ending {
    if ending.is_hangup() {
        set_ignored(SIGHUP, true);
    }
    ending
}

/// Result of waiting for the terminal.
enum Input {
    None,
    Some,
    /// The other end is closed.
    Gone,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_have_the_status_that_shells_show() {
        assert_eq!(Ending::HungUp.status(), 129);
        assert_eq!(Ending::Signal(2).status(), 130);
        assert_eq!(Ending::Signal(15).status(), 143);
        assert!(Ending::HungUp.is_hangup() && Ending::Signal(1).is_hangup());
        assert!(!Ending::Signal(2).is_hangup());
    }
}

//! A rule that the daemon leaves alone for this process, so that a trial of the rule can switch its memory.
//!
//! ```text
//!   take     connect, {"request":"hold","rule":"redis"} -> {"answer":"held",...}
//!   keep     the same request again, about once a second    the answer has the present processes
//!   finish   {"request":"trial-ended",...}                  the daemon keeps the result, and acts again
//!   drop     close                                          the daemon acts again
//! ```
//!
//! The hold is the connection. Nothing has to be undone: the kernel closes the socket when this process ends, also by SIGKILL, and a program that it
//! executes meanwhile does not inherit it (`SOCK_CLOEXEC`). A process that is stopped loses the hold with its lease.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::ask::{ANSWER_TIMEOUT, AskError, because, exchange, understood};
use super::protocol::{Answer, HeldRule, LONGEST_ANSWER, Request, written};
use crate::account::TrialAccount;

/// Time between two renewals. The daemon looks for processes about as often.
const RENEWED_EVERY: Duration = Duration::from_secs(1);

/// Bytes read at a time.
const GULP: usize = 16 << 10;

/// Reason why a rule is not held, or not any more.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// The daemon cannot be reached, or does not answer.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The daemon refuses: an unknown rule, one without a process, one that a reload has changed.
    #[error("{0}")]
    Refused(String),
    /// The connection has ended.
    #[error("the daemon at {} does not hold rule `{rule}` any more: {why}", socket.display())]
    Ended {
        /// Path of the socket.
        socket: PathBuf,
        /// The rule's name.
        rule: String,
        /// The reason, as far as it is known here.
        why: String,
    },
}

/// A rule that the daemon leaves alone until this is dropped.
#[derive(Debug)]
pub struct RuleHold {
    socket: PathBuf,
    stream: UnixStream,
    held: HeldRule,
    /// The part of an answer that has arrived.
    received: Vec<u8>,
    /// Time of the last request, and true while its answer is not there.
    asked: Instant,
    is_waiting: bool,
}

impl RuleHold {
    /// Asks the daemon that listens at `socket` to leave the processes of a rule alone.
    ///
    /// # Errors
    /// See [`HoldError`]. Nothing is held then.
    pub fn take(socket: &Path, rule: &str, now: Instant) -> Result<Self, HoldError> {
        let request = Request::Hold {
            rule: rule.to_owned(),
        };
        let failed = |error| because(socket, error);
        let stream = UnixStream::connect(socket).map_err(failed)?;
        let line = exchange(&stream, request).map_err(failed)?;
        let held = held_in(understood(socket, &line)?, socket)?;
        stream.set_nonblocking(true).map_err(failed)?;
        Ok(Self {
            socket: socket.to_owned(),
            stream,
            held,
            received: Vec::new(),
            asked: now,
            is_waiting: false,
        })
    }

    /// Returns the rule as the daemon described it last.
    #[must_use]
    pub const fn rule(&self) -> &HeldRule {
        &self.held
    }

    /// Extends the hold if that is due, and returns the rule as the daemon described it last. Never waits for the daemon: its answer is taken by a
    /// later call. Call it about once a second.
    ///
    /// # Errors
    /// The hold has ended, or the daemon has not answered in time. See [`HoldError`].
    pub fn keep(&mut self, now: Instant) -> Result<&HeldRule, HoldError> {
        if self.is_waiting
            && let Some(line) = self.receive(now)?
        {
            self.held = held_in(understood(&self.socket, &line)?, &self.socket)?;
            self.is_waiting = false;
        }
        let since = now.saturating_duration_since(self.asked);
        if self.is_waiting && since >= ANSWER_TIMEOUT {
            return Err(AskError::Late(self.socket.clone()).into());
        }
        if !self.is_waiting && since >= RENEWED_EVERY {
            self.renew(now)?;
        }
        Ok(&self.held)
    }

    /// Gives the daemon the result of the trial, and ends the hold. Waits for the daemon's answer, but not for long.
    ///
    /// # Errors
    /// The hold has ended before, the daemon refuses, or does not answer in time. See [`HoldError`].
    pub fn finish(mut self, trial: TrialAccount, now: Instant) -> Result<(), HoldError> {
        let rule = self.held.rule.name.clone();
        let request = written(Request::TrialEnded { rule, trial });
        let answers = match self.send_last(&request) {
            Ok(answers) => answers,
            Err(error) => return Err(self.failure(error, now)),
        };
        let mut answers = answers.as_slice();
        // The answer to the last renewal comes first.
        if self.is_waiting {
            held_in(
                understood(&self.socket, line_of(&mut answers))?,
                &self.socket,
            )?;
        }
        match understood(&self.socket, line_of(&mut answers))? {
            Answer::Done { .. } => Ok(()),
            Answer::Refused { text } => Err(HoldError::Refused(text)),
            _ => Err(other_answer(&self.socket)),
        }
    }

    /// Sends the last request, and returns all that the daemon sends before it closes the connection.
    fn send_last(&mut self, request: &str) -> io::Result<Vec<u8>> {
        self.stream.set_nonblocking(false)?;
        match self.stream.write_all(request.as_bytes()) {
            // The daemon may have sent the reason before it closed the connection.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
            _ => {}
        }
        let mut received = std::mem::take(&mut self.received);
        let longest = 2 * LONGEST_ANSWER as u64;
        match (&self.stream).take(longest).read_to_end(&mut received) {
            Err(error)
                if error.kind() == io::ErrorKind::ConnectionReset && !received.is_empty() => {}
            read => drop(read?),
        }
        match received.is_empty() {
            true => Err(io::ErrorKind::BrokenPipe.into()),
            false => Ok(received),
        }
    }

    fn renew(&mut self, now: Instant) -> Result<(), HoldError> {
        let rule = self.held.rule.name.clone();
        // A line always fits into the buffer of a socket that has sent everything before it.
        let sent = self
            .stream
            .write_all(written(Request::Hold { rule }).as_bytes());
        sent.map_err(|error| self.failure(error, now))?;
        (self.asked, self.is_waiting) = (now, true);
        Ok(())
    }

    /// Returns the answer, if all of it is there.
    fn receive(&mut self, now: Instant) -> Result<Option<Vec<u8>>, HoldError> {
        let mut gulp = [0; GULP];
        loop {
            let bytes = match self.stream.read(&mut gulp) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(self.failure(error, now)),
            };
            let part = gulp.get(..bytes).unwrap_or_default();
            self.received.extend_from_slice(part);
            if part.contains(&b'\n') || self.received.len() > LONGEST_ANSWER {
                return Ok(Some(std::mem::take(&mut self.received)));
            }
            if part.is_empty() {
                return Err(self.failure(io::ErrorKind::BrokenPipe.into(), now));
            }
        }
    }

    /// Returns the reason why an operation on the connection failed.
    fn failure(&self, error: io::Error, now: Instant) -> HoldError {
        let is_over = matches!(
            error.kind(),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
        );
        if !is_over {
            return because(&self.socket, error).into();
        }
        let lease = Duration::from_secs(self.held.lease_seconds);
        let why = if now.saturating_duration_since(self.asked) >= lease {
            format!(
                "this process sent no request for {} s, because it was stopped or had no CPU time; try again",
                lease.as_secs()
            )
        } else {
            "the daemon has closed the connection, because it has ended or restarted; try again when it runs"
                .to_owned()
        };
        HoldError::Ended {
            socket: self.socket.clone(),
            rule: self.held.rule.name.clone(),
            why,
        }
    }
}

/// Returns the rule in an answer.
fn held_in(answer: Answer, socket: &Path) -> Result<HeldRule, HoldError> {
    match answer {
        Answer::Held(held) => Ok(held),
        Answer::Refused { text } => Err(HoldError::Refused(text)),
        _ => Err(other_answer(socket)),
    }
}

fn other_answer(socket: &Path) -> HoldError {
    HoldError::Ask(AskError::NotUnderstood {
        socket: socket.to_owned(),
        why: "it is the answer to another request".to_owned(),
    })
}

/// Takes the first line of some bytes, its end included.
fn line_of<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let end = bytes.iter().position(|&byte| byte == b'\n');
    let (line, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
    *bytes = rest;
    line
}

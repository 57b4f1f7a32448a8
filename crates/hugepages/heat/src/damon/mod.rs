//! The tracker `damon`: the kernel's own monitor of accesses, one kdamond for each process.
//!
//! Interface: `Documentation/admin-guide/mm/damon/usage.rst`, `mm/damon/sysfs.c`. Needs root,
//! `CONFIG_DAMON_SYSFS` and `CONFIG_DAMON_VADDR`, Linux 6.2.
//!
//! DAMON divides the memory into ranges (at most 1,000). Every 5 ms it checks one page of each, chosen at random, and it counts for 100 ms; then it
//! splits ranges, and joins similar ones. Its cost does not grow with the process, and its result gets better over about ten such rounds. It knows
//! ranges only, and a range is no better than its random page.
//!
//! DAMON runs on its own: [`arm`](Tracker::arm) starts it once, and a sample is its last round, not all of the time since. Reading waits for a
//! round to end, 0.1 to 0.3 s, in which the kernel sleeps.
//!
//! A machine has one set of kdamonds. Its first user keeps it; see `claim.rs`.

mod claim;
mod left;
mod sysfs;

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use superhue_model::{ProcessId, VirtRange};
use superhue_procfs::Roots;
use superhue_procfs::process::cpu_now;
use superhue_procfs::system::hint;

use super::memory::Memory;
use super::tracker::{ArmingResult, RangeRate, Reading, TrackError, Tracker, TrackerKind};
use claim::{Claim, ClaimError, is_ours};
pub use left::{DamonCleanup, end_left_damon};
use sysfs::{AGGREGATE_US, DamonRange, Kdamond, Kdamonds, SAMPLE_US};

const KIND: TrackerKind = TrackerKind::Damon;
/// Number of processes watched at a time. The number of kdamonds can change only while none runs, so all are made in advance: a kdamond that is off
/// is only a folder.
const ROOM: u64 = 32;
/// Folder of the claim, which shows superhues which of them uses DAMON.
const STATE: &str = "/run/superhue";
/// Rounds to wait for the first one that shows a range.
const ROUNDS: u32 = 5;
/// Looks per round.
const SAMPLES: f64 = AGGREGATE_US as f64 / SAMPLE_US as f64;

/// Finds touched ranges with DAMON; see the [module](super). Dropping it removes all that it set up.
#[derive(Debug)]
pub struct DamonTracker {
    roots: Roots,
    kdamonds: Kdamonds,
    claim: Claim,
    processes: HashMap<ProcessId, Target>,
}

/// A process with a kdamond.
#[derive(Debug)]
struct Target {
    index: u64,
    memory: Memory,
    /// Number of the kdamond's thread.
    thread: Option<u32>,
    /// CPU time of that thread that was already reported.
    charged: Duration,
}

impl DamonTracker {
    /// Sets DAMON up, without a process yet. First removes the kdamonds that a killed superhue left running.
    ///
    /// # Errors
    /// [`TrackError::Unusable`] with what is missing; [`TrackError::Foreign`] if another user has set up DAMON. Then nothing was changed.
    pub fn new(roots: &Roots) -> Result<Self, TrackError> {
        Self::with_state(roots, Path::new(STATE))
    }

    fn with_state(roots: &Roots, state: &Path) -> Result<Self, TrackError> {
        let kdamonds = Kdamonds::in_sysfs(&roots.sys);
        let count = kdamonds
            .count()
            .map_err(|error| cannot_use(&kdamonds, &error))?;
        let boot = hint(&roots.proc.join("sys/kernel/random/boot_id")).unwrap_or_default();
        let mut claim = Claim::take(state, &boot).map_err(explain)?;
        if count > 0 {
            if !(claim.was_left() && is_ours(&kdamonds, ROOM)) {
                return Err(others(&kdamonds, count));
            }
            kdamonds
                .clear(count)
                .map_err(|error| cannot_use(&kdamonds, &error))?;
        }
        claim.begin().map_err(|error| {
            unusable(format!("cannot write {}/damon: {error}", state.display()))
        })?;
        // From here on Drop removes the kdamonds.
        let tracker = Self {
            roots: roots.clone(),
            kdamonds,
            claim,
            processes: HashMap::new(),
        };
        tracker.set_up()?;
        Ok(tracker)
    }

    fn set_up(&self) -> Result<(), TrackError> {
        let operations = self
            .kdamonds
            .set_count(ROOM)
            .and_then(|()| self.kdamonds.nth(0).operations())
            .map_err(|error| cannot_use(&self.kdamonds, &error))?;
        if operations.split_whitespace().any(|known| known == "vaddr") {
            return Ok(());
        }
        let known = operations.split_whitespace().collect::<Vec<_>>().join(", ");
        Err(unusable(format!(
            "DAMON can monitor {known} here, not vaddr; needs: a kernel with CONFIG_DAMON_VADDR=y"
        )))
    }

    /// Starts a kdamond for the process.
    fn start(&self, process: ProcessId) -> Result<Target, TrackError> {
        let taken = |index| self.processes.values().any(|one| one.index == index);
        let index = (0..ROOM).find(|&index| !taken(index)).ok_or_else(|| {
            unusable(format!(
                "{ROOM} processes are watched already, as many as it takes; use another tracker"
            ))
        })?;
        let memory = Memory::of(&self.roots, process)?;
        let kdamond = self.kdamonds.nth(index);
        // A kdamond of ours that could not be turned off at release has our settings; this one belongs to another user.
        if kdamond.is_on().unwrap_or(false) && !kdamond.has_our_settings() {
            return Err(self.disturbed());
        }
        let started = kdamond
            .turn_off()
            .and_then(|()| kdamond.set_up(process.pid))
            .and_then(|()| kdamond.turn_on());
        if let Err(error) = started {
            memory.check(&self.roots)?;
            return Err(cannot_start(&self.kdamonds, &error));
        }
        // The kernel looked up the number when the kdamond was turned on. Check that it is still the same process.
        let watched = Target {
            index,
            memory,
            thread: kdamond.thread(),
            charged: Duration::ZERO,
        };
        if let Err(error) = watched.memory.check(&self.roots) {
            let _ = kdamond.turn_off();
            return Err(error);
        }
        Ok(watched)
    }

    /// Returns true if the kdamond of a process is on, with our settings and this target.
    fn is_watching(&self, process: ProcessId, watched: &Target) -> io::Result<bool> {
        let kdamond = self.kdamonds.nth(watched.index);
        Ok(kdamond.is_on()? && kdamond.has_our_settings() && kdamond.target() == Some(process.pid))
    }

    /// Returns the kdamond of the process. Releases the process if it has exited, or if another user changed its kdamond.
    fn verify(&mut self, process: ProcessId) -> Result<Kdamond, TrackError> {
        let Some(watched) = self.processes.get(&process) else {
            return Err(TrackError::Replaced(process));
        };
        let kdamond = self.kdamonds.nth(watched.index);
        // A kdamond ends with its process, so the process is checked second.
        let watching = self.is_watching(process, watched);
        if let Err(error) = watched.memory.check(&self.roots) {
            self.release(process);
            return Err(error);
        }
        match watching {
            Ok(true) => Ok(kdamond),
            Ok(false) | Err(_) => {
                self.processes.remove(&process);
                Err(self.disturbed())
            }
        }
    }

    fn disturbed(&self) -> TrackError {
        let path = self.kdamonds.path().display();
        TrackError::Foreign {
            by: format!("somebody who changed {path} meanwhile"),
            remedy: "leave DAMON to one user at a time, or choose another tracker".into(),
        }
    }
}

impl Target {
    /// Returns the CPU time of the kdamond that was not reported yet.
    fn charge(&mut self, roots: &Roots) -> Duration {
        let now = self
            .thread
            .and_then(|thread| cpu_now(roots, thread).ok())
            .map_or(self.charged, |cpu| cpu.total());
        let new = now.saturating_sub(self.charged);
        self.charged = now;
        new
    }
}

/// Returns the rates within `ranges`; both lists are ascending and disjoint.
fn rates(found: &[DamonRange], ranges: &[VirtRange]) -> Vec<RangeRate> {
    let mut rates = Vec::new();
    let mut found = found.iter().peekable();
    for range in ranges {
        while let Some(one) = found.peek() {
            let part = VirtRange {
                start: one.range.start.max(range.start),
                end: one.range.end.min(range.end),
            };
            if !part.is_empty() {
                rates.push(RangeRate {
                    range: part,
                    rate: (one.accesses as f64 / SAMPLES).min(1.0) as f32,
                });
            }
            if one.range.end > range.end {
                break;
            }
            found.next();
        }
    }
    rates
}

impl Tracker for DamonTracker {
    fn kind(&self) -> TrackerKind {
        KIND
    }

    /// Starts watching, if need be. `elsewhere` is the CPU time of the kdamond since the last call, in whole clock ticks.
    fn arm(&mut self, process: ProcessId) -> Result<ArmingResult, TrackError> {
        let start = Instant::now();
        if self.processes.contains_key(&process) {
            match self.verify(process) {
                Ok(_) => {}
                // The ranges are those of the former program: start over.
                Err(TrackError::Replaced(_)) => {}
                Err(error) => return Err(error),
            }
        }
        if !self.processes.contains_key(&process) {
            let watched = self.start(process)?;
            self.processes.insert(process, watched);
        }
        let charge = self
            .processes
            .get_mut(&process)
            .map_or(Duration::ZERO, |watched| watched.charge(&self.roots));
        Ok(ArmingResult {
            took: start.elapsed(),
            elsewhere: charge,
            locked: Duration::ZERO,
            flushed: false,
        })
    }

    fn read(&mut self, process: ProcessId, ranges: &[VirtRange]) -> Result<Reading, TrackError> {
        let kdamond = self.verify(process)?;
        let mut found = kdamond.update();
        // Right after the kdamond was turned on, the kernel may stop waiting before the first round ends, and then shows no range. Every process has
        // some soon.
        for _ in 1..ROUNDS {
            if !found.as_ref().is_ok_and(Vec::is_empty) {
                break;
            }
            found = kdamond.update();
        }
        // The process may have exited, or executed another program, during the round.
        self.verify(process)?;
        let found = found.map_err(|error| cannot_use(&self.kdamonds, &error))?;
        Ok(Reading::Ranges(rates(&found, ranges)))
    }

    fn release(&mut self, process: ProcessId) {
        if let Some(watched) = self.processes.remove(&process) {
            let kdamond = self.kdamonds.nth(watched.index);
            // A kdamond that cannot be turned off now is turned off at the end, or by the next superhue.
            if kdamond.target() == Some(process.pid) && kdamond.has_our_settings() {
                let _ = kdamond.turn_off();
            }
        }
    }
}

impl Drop for DamonTracker {
    fn drop(&mut self) {
        let left = match self.kdamonds.count() {
            // Another user removed them.
            Ok(0) => true,
            // The present ones may belong to another user.
            Ok(count) if !is_ours(&self.kdamonds, ROOM) => count != ROOM,
            Ok(count) => self.kdamonds.clear(count).is_ok(),
            Err(_) => false,
        };
        // If this failed, the words stay, so that the next superhue tries again.
        if left {
            let _ = self.claim.end();
        }
    }
}

fn unusable(why: impl Into<String>) -> TrackError {
    TrackError::Unusable {
        kind: KIND,
        why: why.into(),
    }
}

fn cannot_use(kdamonds: &Kdamonds, error: &io::Error) -> TrackError {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => {
            "a kernel with CONFIG_DAMON_SYSFS=y and CONFIG_DAMON_VADDR=y, Linux 6.2"
        }
        io::ErrorKind::PermissionDenied => "run as root, where /sys is writable",
        io::ErrorKind::ReadOnlyFilesystem => "a /sys that is writable",
        io::ErrorKind::ResourceBusy => "DAMON left by the process that uses it",
        _ => "see `superhue check`",
    };
    unusable(format!(
        "{}: {error}; needs: {remedy}",
        kdamonds.path().display()
    ))
}

fn cannot_start(kdamonds: &Kdamonds, error: &io::Error) -> TrackError {
    if error.kind() != io::ErrorKind::ResourceBusy {
        return cannot_use(kdamonds, error);
    }
    TrackError::Foreign {
        by: "a user of DAMON within the kernel (damon_reclaim, damon_lru_sort)".into(),
        remedy: "write N to /sys/module/damon_reclaim/parameters/enabled and to that of \
                 damon_lru_sort, or choose another tracker"
            .into(),
    }
}

fn others(kdamonds: &Kdamonds, count: u64) -> TrackError {
    let path = kdamonds.path().display();
    TrackError::Foreign {
        by: format!("somebody who set up DAMON ({count} in {path})"),
        remedy: format!(
            "end that monitoring (turn each off, then write 0 to {path}/nr_kdamonds), or choose \
             another tracker"
        ),
    }
}

fn explain(unclaimed: ClaimError) -> TrackError {
    match unclaimed {
        ClaimError::Taken(pid) => TrackError::Foreign {
            by: pid.map_or("another superhue".into(), |pid| {
                format!("another superhue (process {pid})")
            }),
            remedy: "wait until it ends, or choose another tracker".into(),
        },
        ClaimError::Io(path, error) => {
            let remedy = match error.kind() {
                io::ErrorKind::PermissionDenied => "run as root",
                _ => "a /run that is writable",
            };
            unusable(format!("{}: {error}; needs: {remedy}", path.display()))
        }
    }
}

#[cfg(test)]
mod tests;

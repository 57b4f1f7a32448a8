//! The interface between the service and a sampler of accesses.

use std::time::Duration;

use rustix::io::Errno;
use superhue_client::Page;
use superhue_model::ProcessId;

/// Samples the accesses of several processes under a bound on cost.
pub trait Heat {
    /// Watches a process from now on. Does nothing if it is watched already.
    fn add(&mut self, process: ProcessId);

    /// Stops watching a process.
    fn remove(&mut self, process: ProcessId);

    /// Notes that the process has fetched a list and may act on it, so that it is worth sampling again
    /// soon.
    fn resample_soon(&mut self, process: ProcessId);

    /// Does the work that is due; `at` is the time since some fixed moment.
    fn step(&mut self, at: Duration) -> Vec<SampleOutcome>;

    /// Counts CPU time that the service has spent on lists of pages: it is part of the bounded cost.
    fn spend(&mut self, _cost: Duration) {}

    /// Returns the time of the next work, on the clock of `step`; `None` if there is none until another
    /// process is added.
    fn due(&self) -> Option<Duration>;

    /// Returns the number of samples taken of a process.
    fn samples(&self, process: ProcessId) -> u64;

    /// Returns the bytes of memory that the heat of a process takes.
    fn held(&self, process: ProcessId) -> u64;

    /// Returns the pages of at least this heat (1 to 1000 per mille), ascending by address; `None` if
    /// there are more than `most`.
    fn active(&self, process: ProcessId, min_heat: u32, most: usize) -> Option<Vec<Page>>;
}

/// Result of a sample.
#[derive(Debug)]
pub struct SampleOutcome {
    /// The process that was sampled.
    pub process: ProcessId,
    /// `Err` if the process can no longer be watched.
    pub result: Result<(), TrackingLoss>,
}

/// Reason why a process can no longer be watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackingLoss {
    /// The kind: `ESRCH` gone, `EOPNOTSUPP` the tracker fails, `EBUSY` another program watches it.
    pub errno: Errno,
    /// Text for people: the reason and the remedy.
    pub text: String,
}

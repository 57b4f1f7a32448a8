//! What the service needs of whoever samples accesses.

use std::time::Duration;

use rustix::io::Errno;
use superhue_client::Page;
use superhue_model::ProcessId;

/// Samples the accesses of several processes under a bound on cost.
pub trait Heat {
    /// Watches a process from now on. Does nothing if it does already.
    fn add(&mut self, process: ProcessId);

    /// Lets go of a process.
    fn remove(&mut self, process: ProcessId);

    /// The process was told something and may act on it: what it touches then is no news.
    fn resample_soon(&mut self, process: ProcessId);

    /// Does what is due; `at` is the time since some fixed moment.
    fn step(&mut self, at: Duration) -> Vec<Sampled>;

    /// When there is something to do next, on the clock of `step`; `None`: not until another process
    /// is added.
    fn due(&self) -> Option<Duration>;

    /// Samples taken of a process.
    fn samples(&self, process: ProcessId) -> u64;

    /// Bytes of memory that what is known of a process takes.
    fn held(&self, process: ProcessId) -> u64;

    /// The pages of at least this heat (1 to 1000 per mille), ascending by address; `None` if there
    /// are more than `most`.
    fn active(&self, process: ProcessId, min_heat: u32, most: usize) -> Option<Vec<Page>>;
}

/// What became of a sample.
#[derive(Debug)]
pub struct Sampled {
    /// Of which process.
    pub process: ProcessId,
    /// Whether there is one.
    pub result: Result<(), Lost>,
}

/// Why a process can no longer be watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The kind: `ESRCH` gone, `EOPNOTSUPP` the tracker fails, `EBUSY` somebody else watches.
    pub errno: Errno,
    /// For people: why, and what to do.
    pub text: String,
}

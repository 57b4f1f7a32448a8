//! Ends what takes too long, with all that it has started.

use std::iter::once;
use std::time::{Duration, Instant};

use superhue_model::ProcessId;
use superhue_procfs::Roots;
use superhue_procfs::process::descendants;

use crate::family::running;
use crate::supervise::send;

/// How long programs have between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);

/// A process of ours and its descendants, which were told to end. Those that are still there when this is
/// dropped are killed.
pub(super) struct Overdue {
    members: Vec<ProcessId>,
    since: Instant,
}

impl Overdue {
    /// Sends SIGTERM to a child that was not waited for yet, and to its descendants.
    pub(super) fn tell(child: u32) -> Self {
        let roots = Roots::default();
        let others = descendants(&roots, child).unwrap_or_default();
        let members = once(child).chain(others);
        let members: Vec<_> = members.filter_map(|pid| running(&roots, pid)).collect();
        for id in &members {
            send(id.pid, libc::SIGTERM);
        }
        Self {
            members,
            since: Instant::now(),
        }
    }

    /// When they have had time enough.
    pub(super) fn deadline(&self) -> Instant {
        self.since + GRACE
    }
}

impl Drop for Overdue {
    fn drop(&mut self) {
        let roots = Roots::default();
        for id in &self.members {
            // A number that somebody else has by now is left alone.
            if running(&roots, id.pid) == Some(*id) {
                send(id.pid, libc::SIGKILL);
            }
        }
    }
}

//! Which processes are watched: those named, and those that descend from them.
//!
//! A descendant stays known after its parent has died and it was handed to another one, so daemons
//! that fork twice are followed as long as some look caught them in between. Those that also opened
//! a session of their own are found again by its number.

use std::collections::BTreeSet;
use std::time::Duration;

use superhue_model::ProcessId;
use superhue_observe::Roots;
use superhue_observe::process::{descendants, identify, session_members, stat, still_is};

/// How often sessions are searched for members that were missed: that reads every process.
const SESSION_SEARCH_EVERY: Duration = Duration::from_secs(1);

/// The watched processes.
#[derive(Debug)]
pub(crate) struct Family {
    follow: bool,
    members: BTreeSet<ProcessId>,
    /// Sessions opened by a member.
    sessions: BTreeSet<u32>,
    next_search: Duration,
    seen: u64,
}

impl Family {
    pub(crate) fn new(founders: impl IntoIterator<Item = ProcessId>, follow: bool) -> Self {
        let members: BTreeSet<ProcessId> = founders.into_iter().collect();
        let seen = members.len() as u64;
        Self {
            follow,
            members,
            sessions: BTreeSet::new(),
            next_search: Duration::ZERO,
            seen,
        }
    }

    /// Processes that have ever belonged to it.
    pub(crate) const fn seen(&self) -> u64 {
        self.seen
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.members.iter().copied()
    }

    /// Drops members that are no more and takes in new descendants.
    pub(crate) fn update(&mut self, roots: &Roots, at: Duration) {
        self.members.retain(|&id| still_is(roots, id));
        if !self.follow {
            return;
        }
        let mut found = BTreeSet::new();
        for id in &self.members {
            if !found.contains(&id.pid) {
                found.extend(descendants(roots, id.pid).unwrap_or_default());
            }
        }
        if at >= self.next_search {
            self.next_search = at + SESSION_SEARCH_EVERY;
            self.sessions.extend(self.members.iter().filter_map(|id| {
                let session = stat(roots, id.pid).ok()?.session?;
                (session == id.pid).then_some(session)
            }));
            for &session in &self.sessions {
                found.extend(session_members(roots, session).unwrap_or_default());
            }
        }
        for pid in found {
            if let Ok(id) = identify(roots, pid) {
                self.seen += u64::from(self.members.insert(id));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    struct Bounded(Child);

    impl Drop for Bounded {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn descendants_are_taken_in_and_the_dead_let_go() {
        let roots = Roots::default();
        let script = "sleep 60 & echo; wait";
        let child = Command::new("sh")
            .args(["-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut child = Bounded(child);
        // The line says that the grandchild exists.
        let mut line = [0];
        std::io::Read::read_exact(child.0.stdout.as_mut().unwrap(), &mut line).unwrap();
        let founder = identify(&roots, child.0.id()).unwrap();

        let mut alone = Family::new([founder], false);
        alone.update(&roots, Duration::ZERO);
        assert_eq!(alone.members().count(), 1);

        let mut family = Family::new([founder], true);
        family.update(&roots, Duration::ZERO);
        assert_eq!((family.members().count(), family.seen()), (2, 2));

        // Its parent gone, the grandchild stays known.
        drop(child);
        family.update(&roots, Duration::from_secs(2));
        let left: Vec<ProcessId> = family.members().collect();
        assert_eq!(left.len(), 1);
        assert_ne!(left[0], founder);
        let grandchild = rustix::process::Pid::from_raw(i32::try_from(left[0].pid).unwrap());
        rustix::process::kill_process(grandchild.unwrap(), rustix::process::Signal::KILL).unwrap();
    }
}

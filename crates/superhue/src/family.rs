//! Set of watched processes: the named ones and their descendants, or the members of a population that changes by itself (a cgroup, a user's
//! processes, all).
//!
//! A descendant stays known after its parent has died and the kernel has given it another one. So daemons that fork twice are followed if a look
//! caught them in between. Daemons that also opened a session of their own are found again by its number.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use superhue_model::ProcessId;
use superhue_procfs::Roots;
use superhue_procfs::process::{descendants, session_members, stat};

use crate::ceiling;
use crate::controls::MemberFeed;
use crate::targets::Population;

/// Interval between searches of all processes for missed members of sessions.
const SEARCH_EVERY: Duration = Duration::from_secs(1);

/// The watched processes.
#[derive(Debug)]
pub(crate) struct Family {
    source: Source,
    members: BTreeSet<ProcessId>,
    next_search: Duration,
    /// Cost that watching may have, as a share of one CPU's time.
    max_overhead: f64,
    seen: u64,
    /// Members of a population that the caller may not look at: checked once, left alone since.
    denied: BTreeSet<ProcessId>,
    denied_seen: u64,
    unreachable: u64,
    is_over: bool,
}

/// Source of the members.
#[derive(Debug)]
enum Source {
    /// The caller named them.
    Named {
        follow: bool,
        /// Sessions opened by a member; the session has the member's number.
        sessions: BTreeMap<u32, ProcessId>,
    },
    /// Processes of a population.
    Population(Population),
    /// Another part of the program supplies them.
    MemberFeed(MemberFeed),
}

impl Family {
    pub(crate) fn new(targets: impl IntoIterator<Item = ProcessId>, follow: bool) -> Self {
        let sessions = BTreeMap::new();
        let members = targets.into_iter().collect();
        Self::from_source(Source::Named { follow, sessions }, members)
    }

    /// Watches the members of a population, as found at the first update and later ones.
    pub(crate) fn of(population: Population) -> Self {
        Self::from_source(Source::Population(population), BTreeSet::new())
    }

    /// Watches the members that another part of the program supplies.
    pub(crate) fn fed(fed: MemberFeed) -> Self {
        Self::from_source(Source::MemberFeed(fed), BTreeSet::new())
    }

    fn from_source(source: Source, members: BTreeSet<ProcessId>) -> Self {
        Self {
            source,
            seen: members.len() as u64,
            members,
            next_search: Duration::ZERO,
            max_overhead: 0.01,
            denied: BTreeSet::new(),
            denied_seen: 0,
            unreachable: 0,
            is_over: false,
        }
    }

    /// Bounds the cost of searches by their part of a ceiling.
    pub(crate) fn bounded_by(mut self, max_overhead: f64) -> Self {
        self.max_overhead = max_overhead;
        self
    }

    /// Does the same as [`Self::bounded_by`], at any time.
    pub(crate) const fn limit(&mut self, max_overhead: f64) {
        self.max_overhead = max_overhead;
    }

    /// Returns the number of processes that have ever belonged to it.
    pub(crate) const fn seen(&self) -> u64 {
        self.seen
    }

    /// Returns the number of processes that would belong to it, but that the caller may not look at.
    pub(crate) const fn denied(&self) -> u64 {
        self.denied_seen
    }

    /// Returns the largest number of processes that it had at one time without a number in this pid namespace.
    pub(crate) const fn unreachable(&self) -> u64 {
        self.unreachable
    }

    /// Returns true if it has no members and can get none. A population without members waits for new ones.
    pub(crate) fn is_over(&self) -> bool {
        match self.source {
            Source::Named { .. } => self.members.is_empty(),
            Source::Population(_) => self.is_over,
            Source::MemberFeed(_) => false,
        }
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.members.iter().copied()
    }

    /// Returns true if the oldest member has ended: then all may have ended. Costs one read of `/proc`.
    pub(crate) fn has_lost_its_oldest(&self, roots: &Roots) -> bool {
        let oldest = self
            .members
            .iter()
            .min_by_key(|id| (id.start_ticks, id.pid));
        oldest.is_some_and(|id| running(roots, id.pid) != Some(*id))
    }

    /// Returns true if it is made of processes that were named, and their descendants.
    pub(crate) const fn is_named(&self) -> bool {
        matches!(self.source, Source::Named { .. })
    }

    /// Drops members that have ended and takes in new ones.
    pub(crate) fn update(&mut self, roots: &Roots, at: Duration) {
        match &mut self.source {
            Source::Named { .. } => self.update_named(roots, at),
            Source::Population(_) => self.update_population(roots, at),
            Source::MemberFeed(fed) => {
                if let Some(members) = fed.take() {
                    self.replace_members(roots, members.keys().copied());
                }
            }
        }
    }

    fn update_named(&mut self, roots: &Roots, at: Duration) {
        self.members
            .retain(|id| running(roots, id.pid) == Some(*id));
        let Source::Named { follow, sessions } = &mut self.source else {
            return;
        };
        if !*follow {
            return;
        }
        let mut found = BTreeSet::new();
        for id in &self.members {
            if !found.contains(&id.pid) {
                found.extend(descendants(roots, id.pid).unwrap_or_default());
            }
        }
        if at >= self.next_search {
            let begun = Instant::now();
            sessions.extend(self.members.iter().filter_map(|&id| {
                let session = stat(roots, id.pid).ok()?.session?;
                (session == id.pid).then_some((session, id))
            }));
            found.extend(in_sessions(roots, sessions));
            let affordable = ceiling::apart(begun.elapsed(), self.max_overhead * ceiling::SEARCHES);
            self.next_search = at + SEARCH_EVERY.max(affordable);
        }
        // The known members were checked just now.
        let known: BTreeSet<u32> = self.members.iter().map(|id| id.pid).collect();
        for &pid in found.difference(&known) {
            if let Some(id) = running(roots, pid) {
                self.seen += u64::from(self.members.insert(id));
            }
        }
    }

    /// Updates a population now and then only, as it may be large; in between, the looks at members notice those that have exited.
    fn update_population(&mut self, roots: &Roots, at: Duration) {
        let Source::Population(population) = &self.source else {
            return;
        };
        if at < self.next_search {
            return;
        }
        let begun = Instant::now();
        let every = population.search_every();
        match population.search(roots) {
            Ok(found) => {
                self.is_over |= found.is_over;
                self.unreachable = self.unreachable.max(found.unreachable);
                self.replace_members(roots, found.members.into_iter());
            }
            Err(error) => {
                tracing::debug!(%error, "the members are those of the last search");
                self.members.retain(|id| !has_ended(roots, *id));
            }
        }
        let cost = begun.elapsed();
        tracing::debug!(
            members = self.members.len(),
            denied = self.denied.len(),
            ?cost,
            "searched"
        );
        let affordable = ceiling::apart(cost, self.max_overhead * ceiling::SEARCHES);
        self.next_search = at + every.max(affordable);
    }

    /// Replaces the members, without processes that the caller may not look at.
    fn replace_members(&mut self, roots: &Roots, found: impl Iterator<Item = ProcessId>) {
        let (mut members, mut denied) = (BTreeSet::new(), BTreeSet::new());
        for id in found {
            if self.members.contains(&id) {
                members.insert(id);
            } else if self.denied.contains(&id) || is_denied(roots, id) {
                self.denied_seen += u64::from(!self.denied.contains(&id));
                denied.insert(id);
            } else {
                self.seen += 1;
                members.insert(id);
            }
        }
        (self.members, self.denied) = (members, denied);
    }
}

/// Returns the processes in sessions. Forgets a session when it is empty, or when its number has gone to another process.
fn in_sessions(roots: &Roots, sessions: &mut BTreeMap<u32, ProcessId>) -> BTreeSet<u32> {
    if sessions.is_empty() {
        return BTreeSet::new();
    }
    let numbers = sessions.keys().copied().collect();
    let mut members: BTreeMap<u32, Vec<ProcessId>> = BTreeMap::new();
    // Processes that cannot be searched for now may still exist.
    let Ok(found) = session_members(roots, &numbers) else {
        return BTreeSet::new();
    };
    for (id, session) in found {
        members.entry(session).or_default().push(id);
    }
    sessions.retain(|session, opened_by| {
        let is_ours = |id: &ProcessId| id.pid != *session || id == opened_by;
        members
            .get(session)
            .is_some_and(|ids| ids.iter().all(is_ours))
    });
    let ours = members
        .iter()
        .filter(|(session, _)| sessions.contains_key(session));
    ours.flat_map(|(_, ids)| ids).map(|id| id.pid).collect()
}

/// Returns the process that has the number `pid` now; `None` for a zombie: it has no memory, and its parent may never reap it.
pub(crate) fn running(roots: &Roots, pid: u32) -> Option<ProcessId> {
    let stat = stat(roots, pid).ok().filter(|stat| !stat.has_ended())?;
    let start_ticks = stat.start_ticks;
    Some(ProcessId { pid, start_ticks })
}

/// Returns true if a process is known to have ended; a process that cannot be read for now may still exist.
fn has_ended(roots: &Roots, id: ProcessId) -> bool {
    match stat(roots, id.pid) {
        Ok(stat) => stat.has_ended() || stat.start_ticks != id.start_ticks,
        Err(error) => error.is_vanished(),
    }
}

/// Returns true if the caller may not look at the memory of a process: if its map cannot be opened.
fn is_denied(roots: &Roots, id: ProcessId) -> bool {
    File::open(roots.of_process(id.pid, "maps"))
        .is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};
    use superhue_procfs::process::identify;

    struct ChildGuard(Child);

    impl Drop for ChildGuard {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_population_is_searched_once_a_second_and_waits_while_it_is_empty() {
        let roots = Roots::default();
        let nobody_has = u32::MAX - 1;
        let mut empty = Family::of(Population::Everybody {
            user: Some(nobody_has),
        });
        empty.update(&roots, Duration::ZERO);
        assert_eq!((empty.members().count(), empty.is_over()), (0, false));

        let own = rustix::process::geteuid().as_raw();
        let mut mine = Family::of(Population::Everybody { user: Some(own) });
        mine.update(&roots, Duration::ZERO);
        let has = |family: &Family, pid| family.members().any(|id| id.pid == pid);
        assert!(!has(&mine, std::process::id()), "never oneself");
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let child = ChildGuard(child);
        let pid = child.0.id();
        mine.update(&roots, Duration::from_millis(999));
        assert!(!has(&mine, pid), "too early to search again");
        // Far enough ahead for any machine, however long it takes to read every process.
        mine.update(&roots, Duration::from_secs(3600));
        assert!(has(&mine, pid));
        drop(child);
        mine.update(&roots, Duration::from_secs(7200));
        assert!(!has(&mine, pid));
    }

    #[test]
    fn the_members_of_a_cgroup_are_those_it_lists() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots {
            sys: folder.path().to_owned(),
            ..Roots::default()
        };
        let mounts = "1 1 0:1 / /sys/cg rw - cgroup2 cgroup2 rw\n";
        let proc = folder.path().join("proc");
        let group = folder.path().join("cg/a");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::create_dir_all(proc.join("self")).unwrap();
        std::fs::write(proc.join("self/mountinfo"), mounts).unwrap();
        let child = ChildGuard(Command::new("sleep").arg("60").spawn().unwrap());
        let (pid, own) = (child.0.id(), std::process::id());
        // Numbers: of a process that is gone, of one that exists, of one in another namespace, and our own.
        let list = format!("4194305\n{pid}\n0\n{own}\n");
        std::fs::write(group.join("cgroup.procs"), list).unwrap();
        let recorded = Roots {
            proc,
            ..roots.clone()
        };
        let targets = crate::Targets::Cgroup("a".into());
        let mut family = Family::of(Population::of(&targets, &recorded).unwrap().unwrap());
        family.update(&roots, Duration::ZERO);
        assert!(family.members().map(|id| id.pid).eq([pid]));
        assert_eq!((family.unreachable(), family.is_over()), (1, false));
        // The list cannot be read: the members stay, until they end.
        std::fs::remove_file(group.join("cgroup.procs")).unwrap();
        std::fs::create_dir(group.join("cgroup.procs")).unwrap();
        family.update(&roots, Duration::from_secs(1200));
        assert_eq!((family.members().count(), family.is_over()), (1, false));
        drop(child);
        family.update(&roots, Duration::from_secs(2400));
        assert_eq!((family.members().count(), family.is_over()), (0, false));
        std::fs::remove_dir_all(&group).unwrap();
        family.update(&roots, Duration::from_secs(3600));
        assert_eq!((family.members().count(), family.is_over()), (0, true));
    }

    #[test]
    fn a_unit_is_followed_over_restarts() {
        let folder = tempfile::tempdir().unwrap();
        let proc = folder.path().join("proc");
        let group = folder.path().join("cg/system.slice/a.service");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::create_dir_all(proc.join("self")).unwrap();
        let mounts = "1 1 0:1 / /sys/cg rw - cgroup2 cgroup2 rw\n";
        std::fs::write(proc.join("self/mountinfo"), mounts).unwrap();
        let recorded = Roots {
            proc,
            sys: folder.path().to_owned(),
        };
        let child = ChildGuard(Command::new("sleep").arg("60").spawn().unwrap());
        let list = format!("{}\n", child.0.id());
        std::fs::write(group.join("cgroup.procs"), &list).unwrap();
        let targets = crate::Targets::Unit("a".into());
        let mut family = Family::of(Population::of(&targets, &recorded).unwrap().unwrap());
        let roots = Roots::default();
        let mut members = |hours: u64| {
            family.update(&roots, Duration::from_secs(3600 * hours));
            (family.members().count(), family.is_over())
        };
        assert_eq!(members(0), (1, false));
        std::fs::remove_dir_all(&group).unwrap();
        assert_eq!(members(1), (0, false), "it has stopped");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::write(group.join("cgroup.procs"), &list).unwrap();
        members(2);
        assert_eq!(members(3), (1, false), "it has started again");
        let missing = crate::Targets::Unit("b".into());
        assert!(Population::of(&missing, &recorded).is_err());
    }

    #[test]
    fn a_session_is_forgotten_when_it_is_empty_or_somebody_elses() {
        let roots = Roots::default();
        let own = std::process::id();
        let id = identify(&roots, own).unwrap();
        let number = stat(&roots, own).unwrap().session.unwrap();
        let opener = identify(&roots, number).unwrap_or(id);
        let mut sessions = BTreeMap::from([(number, opener), (u32::MAX - 1, id)]);
        assert!(in_sessions(&roots, &mut sessions).contains(&own));
        assert!(sessions.keys().eq([&number]));

        // The number has gone to another process since, which opened a session as well.
        let script = "echo; read -r _";
        let mut opened = Command::new("setsid")
            .args(["--wait", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Read::read_exact(opened.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let opened = ChildGuard(opened);
        let found = descendants(&roots, opened.0.id()).unwrap();
        let leader = found.first().copied().unwrap_or(opened.0.id());
        let before = ProcessId {
            pid: leader,
            start_ticks: 1,
        };
        let mut sessions = BTreeMap::from([(leader, before)]);
        assert_eq!(in_sessions(&roots, &mut sessions), BTreeSet::new());
        assert_eq!(sessions, BTreeMap::new());
        let now = identify(&roots, leader).unwrap();
        let mut sessions = BTreeMap::from([(leader, now)]);
        assert_eq!(in_sessions(&roots, &mut sessions), [leader].into());
    }

    #[test]
    fn who_has_ended_is_no_member_though_nobody_waited_for_him() {
        let roots = Roots::default();
        let mut child = ChildGuard(Command::new("sleep").arg("60").spawn().unwrap());
        let target = identify(&roots, child.0.id()).unwrap();
        let mut family = Family::new([target], true);
        family.update(&roots, Duration::ZERO);
        assert_eq!((family.members().count(), family.is_over()), (1, false));
        child.0.kill().unwrap();
        while !stat(&roots, target.pid).unwrap().is_zombie() {
            std::thread::yield_now();
        }
        assert!(family.has_lost_its_oldest(&roots));
        family.update(&roots, Duration::ZERO);
        assert!(family.is_over());
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
        let mut child = ChildGuard(child);
        // The line shows that the grandchild exists.
        let mut line = [0];
        std::io::Read::read_exact(child.0.stdout.as_mut().unwrap(), &mut line).unwrap();
        let target = identify(&roots, child.0.id()).unwrap();

        let mut alone = Family::new([target], false);
        alone.update(&roots, Duration::ZERO);
        assert_eq!(alone.members().count(), 1);

        let mut family = Family::new([target], true);
        family.update(&roots, Duration::ZERO);
        assert_eq!((family.members().count(), family.seen()), (2, 2));
        assert!(!family.has_lost_its_oldest(&roots));

        // The parent is gone, and the grandchild stays known.
        drop(child);
        assert!(family.has_lost_its_oldest(&roots));
        family.update(&roots, Duration::from_secs(2));
        let left: Vec<ProcessId> = family.members().collect();
        assert_eq!(left.len(), 1);
        assert_ne!(left[0], target);
        let grandchild = rustix::process::Pid::from_raw(i32::try_from(left[0].pid).unwrap());
        rustix::process::kill_process(grandchild.unwrap(), rustix::process::Signal::KILL).unwrap();
    }
}

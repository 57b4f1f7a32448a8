//! Check whether the control groups of a process have room for a collapse, so that no group reaches a limit because of Superhue.
//!
//! For a moment a collapse takes 2 MiB more than the process has: the kernel charges the huge page before it frees the pages that it replaces. The
//! part of the 2 MiB that was not resident (the growth) stays charged. So each limit above the process must leave this much free:
//!
//! ```text
//!   for a moment    2 MiB + 64 pages for each CPU + 1/64 of the limit; + 32 MiB if the group has grown by itself within a second
//!   permanently     the growth + 1/8 of the limit, and the group has not grown by itself for a second
//! ```
//!
//! * The kernel charges a group in batches of 64 pages for each CPU that works for it (`MEMCG_CHARGE_BATCH`), so that much can be
//!   added at once without any use.
//! * 1/64 is for memory that the program allocates while Superhue looks and collapses. A program that fills its memory takes 1 MiB in a millisecond,
//!   and a collapse on a busy machine needs several milliseconds. Without more room a program of 8 MiB with 9.4 MiB to use reached its limit once in
//!   some hundred runs: there was room for the huge page at the check, but no longer at the charge.
//! * A program that grows will need the rest, and Superhue cannot take a huge page back fast enough. So growth must wait until the program stands
//!   still, and must leave it an eighth even then.
//!
//! A policy without a budget (`always`) may add 1/32 of the limit in all: the kernel takes none of it back before the program needs all of its limit.
//!
//! The kernel can reclaim cached files, but only at the limit, where it counts each time (`max` of `memory.events.local`). They count as free in groups
//! that have been at their limit anyway.
//!
//! Below the limit, two signs show that a group is short of memory, and then Superhue collapses nothing in it for a second: the group reached a limit
//! since the last check, or its programs wait for memory in more than [`MOST_PRESSURE`] percent of the time.

use std::collections::HashMap;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use superhue_act::Target;
use superhue_model::{
    BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE, ProcessId, Region, SkipReason, VirtAddr,
};
use superhue_procfs::Roots;
use superhue_procfs::hardware::CpuList;
use superhue_procfs::process::resident_now;
use superhue_sys::cgroup::{Group, RemovedCgroup, Usage, groups};

/// Pages that the kernel charges to a group at once, for each CPU (`MEMCG_CHARGE_BATCH` in include/linux/memcontrol.h).
const BATCH: u64 = 64;

/// Parts of a limit that are left free: when memory is taken for a moment, and when it is taken permanently.
const PART_FOR_A_MOMENT: u64 = 64;
const PART_FOR_GOOD: u64 = 8;

/// The part of a limit that may be added in all where no budget bounds it.
const PART_WITHOUT_BUDGET: u64 = 32;

/// Growth of a group by this part of its limit shows that it grows.
const PART_THAT_SHOWS: u64 = 64;

/// Bytes that must be left in addition, for a moment, in a group that grows.
const WHILE_IT_GROWS: u64 = 32 << 20;

/// Time for which a group must not have grown by itself before anything is added.
const MIN_QUIET_TIME: Duration = Duration::from_secs(1);

/// Programs that wait for memory in more than this percentage of the time are short of it. The kernel's own remedies (`kswapd`) keep a busy machine
/// below 1 %; the daemons that end programs (systemd-oomd, lmkd) begin at 50 to 70 %.
const MOST_PRESSURE: f64 = 10.0;

/// Time for which the signs of a shortage stay valid; they change slowly: pressure every 2 s.
const SHORTAGE_KNOWN_FOR: Duration = Duration::from_millis(100);

/// Time for which a shortage counts.
const SHORTAGE: Duration = Duration::from_secs(1);

/// Time for which the groups of a process stay valid.
const HOME_KNOWN_FOR: Duration = Duration::from_secs(1);

/// Time after which an approved collapse shows in the memory that the group uses.
const PASSED: Duration = Duration::from_secs(1);

/// A group without checks for this long is forgotten; its files are closed after [`HOME_KNOWN_FOR`].
const REMEMBERED: Duration = Duration::from_secs(60);

/// Groups whose files are open at most.
const MOST_OPEN: usize = 64;

/// The control groups of processes, as far as they limit memory.
#[derive(Debug)]
pub(crate) struct GroupLimits {
    roots: Roots,
    cpus: u64,
    /// True if a budget bounds the growth.
    has_budget: bool,
    homes: HashMap<ProcessId, ProcessGroups>,
    groups: HashMap<PathBuf, GroupState>,
    tended: Duration,
    /// The last approved collapse, the groups that count it, and the bytes that it adds to each.
    last: Option<(Target, Arc<[PathBuf]>, Vec<ByteCount>)>,
}

/// Groups of a process, its own first.
#[derive(Debug, Clone)]
struct ProcessGroups {
    looked: Duration,
    folders: Option<Arc<[PathBuf]>>,
    /// Anonymous memory of the process at the time `looked`.
    anonymous: ByteCount,
}

/// State of a group.
#[derive(Debug)]
struct GroupState {
    files: Option<Group>,
    asked: Duration,
    /// Bytes used if all approved collapses were made, and the time of the last approval.
    expected: u64,
    passed: Option<Duration>,
    /// Bytes that all approved collapses add.
    added: u64,
    /// Time at which it was last seen to have grown by itself.
    grown: Duration,
    /// Number of times that it had reached a limit, and the time of that reading.
    at_limit: Option<(u64, Duration)>,
    /// True if its programs wait for memory too much; `None` where the kernel does not report it. As old as `at_limit`.
    pressed: Option<bool>,
    /// Time until which it counts as short of memory.
    short_until: Duration,
}

impl GroupLimits {
    /// Makes one for the groups that `roots` show. Reads no group before the first check.
    pub(crate) fn new(roots: Roots) -> Self {
        // All online CPUs: a group's programs need not run on the CPUs that we may use.
        let online = fs::read_to_string(roots.sys.join("devices/system/cpu/online")).ok();
        let online = online.and_then(|text| CpuList::parse(&text).ok());
        let usable = || thread::available_parallelism().map_or(1, NonZero::get);
        let cpus = online.map_or_else(usable, |online| online.len());
        Self {
            roots,
            cpus: u64::try_from(cpus).unwrap_or(u64::MAX),
            has_budget: true,
            homes: HashMap::new(),
            groups: HashMap::new(),
            tended: Duration::ZERO,
            last: None,
        }
    }

    /// Prepares it for a policy that no budget bounds.
    pub(crate) const fn without_budget(mut self) -> Self {
        self.has_budget = false;
        self
    }

    /// Returns the objection to the collapse of `target` at the time `at`. Without one, it counts the collapse as made, until [`Self::take_back`].
    pub(crate) fn object(&mut self, at: Duration, target: &Target) -> Option<SkipReason> {
        self.tend(at);
        self.last = None;
        let first = self.look(at, target);
        let looked = first.or_else(|RemovedCgroup| {
            // A group can only be removed without processes, so its former processes are in another group by now.
            self.homes.clear();
            self.groups.values_mut().for_each(GroupState::close);
            self.look(at, target)
        });
        // The process has moved a second time in the same moment: it does not stay in any group.
        looked.unwrap_or(Some(SkipReason::NoHeadroom))
    }

    /// Returns true if the groups of a process that do not grow have room for a collapse that adds nothing. Reserves nothing.
    pub(crate) fn has_room(&mut self, process: ProcessId) -> bool {
        let target = Target::at(process, Region::containing(VirtAddr(0)));
        // A group may have grown right before the first check, which therefore leaves more room.
        let _ = self.object(Duration::ZERO, &target);
        self.object(MIN_QUIET_TIME, &target).is_none()
    }

    /// Counts the last approved collapse as not made, if it is the one of `target`.
    pub(crate) fn take_back(&mut self, target: &Target) {
        let last = self.last.take().filter(|(last, ..)| last == target);
        let Some((_, folders, added)) = last else {
            return;
        };
        for (folder, growth) in folders.iter().zip(added) {
            if let Some(known) = self.groups.get_mut(folder) {
                known.take_back(growth);
            }
        }
    }

    /// Checks each group above the process.
    fn look(&mut self, at: Duration, target: &Target) -> Result<Option<SkipReason>, RemovedCgroup> {
        let growth = target.growth.bytes();
        // Limits of a group that is not visible are unknown.
        let Some(folders) = self.home(at, target.process) else {
            return Ok(Some(SkipReason::NoHeadroom));
        };
        let anonymous = match (target.object, self.homes.get(&target.process)) {
            (None, Some(home)) => home.anonymous,
            _ => ByteCount(0),
        };
        let mut pressed = None;
        let mut added = Vec::with_capacity(folders.len());
        for folder in folders.iter() {
            let known = known_of(&mut self.groups, folder, at);
            let is_short = known.is_short(at);
            // The pressure of the nearest group that reports it shows how its programs fare, for whatever reason.
            pressed = pressed.or(known.pressed);
            if is_short || pressed == Some(true) {
                return Ok(Some(SkipReason::MemoryPressure));
            }
            match known.object(at, (growth, anonymous), self.cpus, self.has_budget)? {
                Ok(growth) => added.push(growth),
                Err(reason) => return Ok(Some(reason)),
            }
        }
        for (folder, &growth) in folders.iter().zip(&added) {
            known_of(&mut self.groups, folder, at).expect(at, growth);
        }
        self.last = Some((*target, folders, added));
        Ok(None)
    }

    /// Returns the folders of the process's groups; `None` if one of them is not visible.
    fn home(&mut self, at: Duration, process: ProcessId) -> Option<Arc<[PathBuf]>> {
        let is_known = |home: &&ProcessGroups| at.saturating_sub(home.looked) < HOME_KNOWN_FOR;
        if let Some(home) = self.homes.get(&process).filter(is_known) {
            return home.folders.clone();
        }
        let Roots { proc, sys } = &self.roots;
        let folders: Option<Arc<[PathBuf]>> =
            groups(proc, sys, &process.pid.to_string()).map(Into::into);
        let resident = resident_now(&self.roots, process.pid);
        let home = ProcessGroups {
            looked: at,
            folders: folders.clone(),
            anonymous: resident.map_or(ByteCount(0), |resident| resident.anonymous().bytes()),
        };
        self.homes.insert(process, home);
        folders
    }

    /// Forgets groups and processes without recent checks.
    fn tend(&mut self, at: Duration) {
        let is_older = |then: Duration, age| at.saturating_sub(then) >= age;
        let open = self.groups.values().filter(|known| known.files.is_some());
        if open.count() > MOST_OPEN {
            self.groups.values_mut().for_each(GroupState::close);
        }
        if !is_older(self.tended, HOME_KNOWN_FOR) {
            return;
        }
        self.tended = at;
        self.homes
            .retain(|_, home| !is_older(home.looked, HOME_KNOWN_FOR));
        // What was added without a budget counts for as long as the group exists.
        self.groups.retain(|folder, known| {
            !is_older(known.asked, REMEMBERED) || (known.added > 0 && folder.exists())
        });
        let unused = self.groups.values_mut();
        unused
            .filter(|known| is_older(known.asked, HOME_KNOWN_FOR))
            .for_each(GroupState::close);
    }
}

/// Returns the state of the group at `folder`, its files open.
fn known_of<'a>(
    groups: &'a mut HashMap<PathBuf, GroupState>,
    folder: &Path,
    at: Duration,
) -> &'a mut GroupState {
    let known = groups.entry(folder.to_owned());
    let known = known.or_insert_with(|| GroupState::new(at));
    known.asked = at;
    if known.files.is_none() {
        known.files = Some(Group::open(folder));
    }
    known
}

impl GroupState {
    /// Makes an empty state. The group may have grown just now.
    const fn new(at: Duration) -> Self {
        Self {
            files: None,
            asked: at,
            expected: 0,
            passed: None,
            added: 0,
            grown: at,
            at_limit: None,
            pressed: None,
            short_until: Duration::ZERO,
        }
    }

    /// Closes its files; its state stays.
    fn close(&mut self) {
        self.files = None;
    }

    /// Returns true if it has reached a limit within the last second.
    fn is_short(&mut self, at: Duration) -> bool {
        let is_known =
            |(_, looked): (u64, Duration)| at.saturating_sub(looked) < SHORTAGE_KNOWN_FOR;
        if let Some(files) = &self.files
            && !self.at_limit.is_some_and(is_known)
        {
            let times = files.times_at_limit();
            if self
                .at_limit
                .is_some_and(|before| is_new(before, times, at))
            {
                self.short_until = at + SHORTAGE;
            }
            self.at_limit = Some((times, at));
            self.pressed = files.pressure().map(|percent| percent > MOST_PRESSURE);
        }
        at < self.short_until
    }

    /// Returns the objection to a collapse that adds `growth` to a process with so much anonymous memory; without one, the bytes that it adds to the
    /// charge of the group.
    fn object(
        &mut self,
        at: Duration,
        (growth, anonymous): (ByteCount, ByteCount),
        cpus: u64,
        has_budget: bool,
    ) -> Result<Result<ByteCount, SkipReason>, RemovedCgroup> {
        let Some(files) = &self.files else {
            return Ok(Ok(growth));
        };
        let Some(usage) = files.usage()? else {
            return Ok(Ok(growth));
        };
        let (limit, used) = (usage.limit.0, usage.used.0);
        // A process that was moved leaves its memory charged to its former group, and a huge page is charged to the present one, whole
        // ("cgroup-v2.rst", Memory Ownership).
        let growth = match used < anonymous.0 {
            true => ByteCount(HUGE_PAGE_SIZE),
            false => growth,
        };
        self.added = self.added.min(used);
        let is_over = |passed: Duration| at.saturating_sub(passed) >= PASSED;
        if self.passed.is_some_and(is_over) {
            self.passed = None;
        }
        if used > self.expected.saturating_add(limit / PART_THAT_SHOWS) {
            self.grown = at;
            self.expected = used;
        } else if used < self.expected && self.passed.is_none() {
            self.expected = used;
        }
        let promised = if self.passed.is_some() {
            self.expected
        } else {
            0
        };
        let usage = Usage {
            used: ByteCount(used.max(promised)),
            ..usage
        };
        let batches = BATCH * BASE_PAGE_SIZE * cpus;
        let is_growing = at.saturating_sub(self.grown) < MIN_QUIET_TIME;
        let own = if is_growing { WHILE_IT_GROWS } else { 0 };
        let for_a_moment = HUGE_PAGE_SIZE + batches + limit / PART_FOR_A_MOMENT + own;
        let for_good = growth.0 + limit / PART_FOR_GOOD;
        let mut left = usage.left_with(ByteCount(0)).0;
        let was_at_limit = self.at_limit.is_some_and(|(times, _)| times > 0);
        if left < for_a_moment.max(for_good) && was_at_limit {
            left = usage.left_with(files.cached()).0;
        }
        let is_spent = !has_budget && self.added + growth.0 > limit / PART_WITHOUT_BUDGET;
        Ok(if left < for_a_moment {
            Err(SkipReason::NoHeadroom)
        } else if growth.0 > 0 && (left < for_good || is_growing || is_spent) {
            Err(SkipReason::NoRoomToGrow)
        } else {
            Ok(growth)
        })
    }

    /// Counts a collapse that adds `growth` and is about to be made.
    fn expect(&mut self, at: Duration, growth: ByteCount) {
        if growth.0 > 0 {
            self.expected = self.expected.saturating_add(growth.0);
            self.added = self.added.saturating_add(growth.0);
            self.passed = Some(at);
        }
    }

    /// Counts a collapse that would have added `growth` as not made.
    const fn take_back(&mut self, growth: ByteCount) {
        self.expected = self.expected.saturating_sub(growth.0);
        self.added = self.added.saturating_sub(growth.0);
    }
}

/// Returns true if a limit was met lately: the count was `before` at that time, and is `times` now. Readings far apart do not show when it
/// happened, except that a group that meets its limit all the time has met it lately.
fn is_new(before: (u64, Duration), times: u64, at: Duration) -> bool {
    const LATELY: Duration = SHORTAGE.saturating_mul(2);
    let gap = at.saturating_sub(before.1);
    let met = u32::try_from(times.saturating_sub(before.0)).unwrap_or(u32::MAX);
    met > 0 && gap <= LATELY.saturating_mul(met)
}

#[cfg(test)]
mod tests {
    use superhue_model::PageCount;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A machine with one CPU, and a process in the group `a/b`.
    struct Fake {
        folder: tempfile::TempDir,
        limits: GroupLimits,
        at: Duration,
    }

    impl Fake {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let roots = Roots::under(folder.path());
            let write = |path: PathBuf, text: &str| {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            };
            write(roots.sys.join("devices/system/cpu/online"), "0\n");
            write(roots.proc.join("7/cgroup"), "0::/a/b\n");
            let fake = Self {
                limits: GroupLimits::new(roots),
                folder,
                at: Duration::from_secs(100),
            };
            assert_eq!(fake.limits.cpus, 1);
            fake
        }

        fn write(&self, group: &str, name: &str, text: impl ToString) {
            let folder = self.folder.path().join("sys/fs/cgroup").join(group);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(name), text.to_string()).unwrap();
        }

        fn move_to(&self, group: &str) {
            let path = self.folder.path().join("proc/7/cgroup");
            fs::write(path, format!("0::{group}\n")).unwrap();
        }

        /// Lets time pass, and checks a collapse that adds `growth` pages.
        fn after(&mut self, ms: u64, growth: u64) -> Option<SkipReason> {
            self.at += Duration::from_millis(ms);
            self.limits.object(self.at, &target(growth))
        }
    }

    fn target(growth: u64) -> Target {
        Target {
            object: None,
            process: ProcessId {
                pid: 7,
                start_ticks: 1,
            },
            region: Region::containing(VirtAddr(2 << 20)),
            growth: PageCount(growth),
        }
    }

    const NO_ROOM: Option<SkipReason> = Some(SkipReason::NoHeadroom);
    const NO_GROWTH: Option<SkipReason> = Some(SkipReason::NoRoomToGrow);
    const SHORT: Option<SkipReason> = Some(SkipReason::MemoryPressure);

    #[test]
    fn where_there_is_no_limit_nothing_speaks_against_it() {
        let mut fake = Fake::new();
        assert_eq!(fake.after(0, 512), None, "no group");
        fake.write("a/b", "memory.max", "max\n");
        fake.write("a/b", "memory.current", 5 * MIB);
        assert_eq!(fake.after(2000, 512), None, "no limit");
        fake.write("a/b", "memory.max", "");
        assert_eq!(fake.after(2000, 512), None, "an empty file");
        fs::remove_file(fake.folder.path().join("proc/7/cgroup")).unwrap();
        assert_eq!(fake.after(2000, 512), None, "no process");
    }

    #[test]
    fn what_is_not_known_of_a_group_speaks_against_it() {
        let mut fake = Fake::new();
        // Outside the cgroup namespace of this process, in a tree that does not have this process.
        fake.move_to("/../b");
        assert_eq!(fake.after(2000, 0), NO_ROOM);
        assert_eq!(fake.after(2000, 512), NO_ROOM);
        fake.move_to("/a/b");
        assert_eq!(fake.after(2000, 512), None);
    }

    #[test]
    fn a_huge_page_and_a_margin_must_be_left() {
        let mut fake = Fake::new();
        // 2 MiB, 64 pages and 1 MiB.
        fake.write("a", "memory.max", 64 * MIB);
        let most = 64 * MIB - (3 * MIB + MIB / 4);
        fake.write("a", "memory.current", most);
        assert_eq!(fake.after(0, 0), NO_ROOM, "it may be growing");
        assert_eq!(fake.after(999, 0), NO_ROOM);
        assert_eq!(fake.after(1, 0), None);
        fake.write("a", "memory.current", most + 1);
        assert_eq!(fake.after(0, 0), NO_ROOM);
        fake.write("a", "memory.current", most);
        fake.write("a", "memory.max", 32 * MIB);
        assert_eq!(fake.after(0, 0), NO_ROOM, "lowered below what is used");
        fake.write("a", "memory.max", "max");
        assert_eq!(fake.after(0, 0), None);
        fake.write("a/b", "memory.high", most);
        fake.write("a/b", "memory.current", most);
        fake.limits.groups.clear();
        assert_eq!(fake.after(0, 0), NO_ROOM, "its own");
    }

    #[test]
    fn memory_that_another_group_is_charged_for_is_growth() {
        let mut fake = Fake::new();
        fake.write("a/b", "memory.max", 1024 * MIB);
        // Less than an eighth is left, and far more than a huge page.
        fake.write("a/b", "memory.current", 960 * MIB);
        assert_eq!(fake.after(0, 0), None);
        let statm = fake.folder.path().join("proc/7/statm");
        let pages = |mib: u64| format!("{0} {0} 0 0 0 0 0\n", mib << 8);
        fs::write(&statm, pages(900)).unwrap();
        assert_eq!(fake.after(2000, 0), None, "all of it may be its own");
        fs::write(&statm, pages(2000)).unwrap();
        assert_eq!(fake.after(2000, 0), NO_GROWTH);
        fake.write("a/b", "memory.current", 100 * MIB);
        assert_eq!(fake.after(2000, 0), None, "there is room");
        // The next one counts this one, until it shows.
        fake.limits.take_back(&target(0));
        assert_eq!(fake.after(0, 0), None);
    }

    #[test]
    fn room_is_that_of_a_group_that_stands_still() {
        let fake = Fake::new();
        let process = target(0).process;
        let has_room = || GroupLimits::new(fake.limits.roots.clone()).has_room(process);
        assert!(has_room(), "no limit");
        // 2 MiB, 64 pages and 1 MiB.
        fake.write("a", "memory.max", 64 * MIB);
        let most = 64 * MIB - (3 * MIB + MIB / 4);
        fake.write("a", "memory.current", most);
        assert!(has_room());
        fake.write("a", "memory.current", most + 1);
        assert!(!has_room());
        fake.write("a", "memory.current", most);
        fake.write("a/b", "memory.pressure", "some avg10=50.00 avg60=0.00\n");
        assert!(!has_room(), "short of memory");
    }

    #[test]
    fn what_grows_must_stand_still_and_leave_an_eighth() {
        let mut fake = Fake::new();
        fake.write("a", "memory.max", 64 * MIB);
        fake.write("a", "memory.current", 50 * MIB);
        assert_eq!(fake.after(0, 512), NO_ROOM, "it may be growing");
        assert_eq!(fake.after(999, 512), NO_ROOM);
        assert_eq!(fake.after(1, 512), None);
        // The approved collapse counts before it shows.
        assert_eq!(fake.after(1, 512), None);
        assert_eq!(fake.after(1, 512), None);
        assert_eq!(fake.after(1, 512), NO_GROWTH);
        assert_eq!(fake.after(1, 0), None);
        // When it shows it is no growth of the group's own.
        fake.write("a", "memory.current", 54 * MIB);
        assert_eq!(fake.after(2000, 512), None);
        // An approved collapse that was not made does not count for ever.
        assert_eq!(fake.after(500, 512), NO_GROWTH);
        assert_eq!(fake.after(1000, 512), None);
        // But this growth is the group's own.
        fake.write("a", "memory.current", 40 * MIB);
        assert_eq!(fake.after(2000, 0), None);
        fake.write("a", "memory.current", 42 * MIB);
        assert_eq!(fake.after(1000, 0), NO_ROOM);
        assert_eq!(fake.after(1000, 512), None);
        // Where there is much room the group may grow, but Superhue adds nothing.
        fake.write("a", "memory.max", 1024 * MIB);
        fake.write("a", "memory.current", 80 * MIB);
        assert_eq!(fake.after(1000, 512), NO_GROWTH);
        assert_eq!(fake.after(0, 0), None);
    }

    #[test]
    fn without_a_budget_little_of_a_limit_is_added() {
        let mut fake = Fake::new();
        fake.write("a", "memory.max", 256 * MIB);
        fake.write("a", "memory.current", 16 * MIB);
        fake.after(0, 0);
        fake.limits = GroupLimits::new(fake.limits.roots.clone()).without_budget();
        fake.after(0, 0);
        let added = |fake: &mut Fake| (0..20).filter(|_| fake.after(1000, 512).is_none()).count();
        assert_eq!(added(&mut fake), 4, "8 MiB of 256");
        assert_eq!(fake.after(1000, 0), None, "what is full costs nothing");
        // If a group has given nearly all memory back, no more than the rest can be ours.
        for used in [4, 6] {
            fake.write("a", "memory.current", used * MIB);
            assert_eq!(fake.after(2000, 0), None);
            assert_eq!(fake.after(2000, 512), None, "{used}");
        }
        fake.write("a", "memory.current", 8 * MIB);
        assert_eq!(fake.after(2000, 0), None);
        assert_eq!(fake.after(2000, 512), NO_GROWTH);
    }

    #[test]
    fn failed_collapses_add_nothing() {
        let mut fake = Fake::new();
        fake.limits = GroupLimits::new(fake.limits.roots.clone()).without_budget();
        // 8 MiB may be added.
        fake.write("a", "memory.max", 256 * MIB);
        fake.write("a", "memory.current", 16 * MIB);
        fake.after(0, 0);
        for _ in 0..20 {
            assert_eq!(fake.after(1000, 512), None);
            fake.limits.take_back(&target(512));
        }
        // Collapses that are made count, each once, and no other one is taken back.
        for _ in 0..4 {
            assert_eq!(fake.after(1000, 512), None);
            fake.limits.take_back(&target(511));
        }
        assert_eq!(fake.after(1000, 512), NO_GROWTH);
        fake.limits.take_back(&target(512));
        assert_eq!(fake.after(1000, 512), NO_GROWTH, "it was not approved");
        // A moment later, too, only those that are made count against the room that there is.
        fake.limits = GroupLimits::new(fake.limits.roots.clone());
        fake.write("a", "memory.current", 222 * MIB);
        fake.after(0, 0);
        fake.at += Duration::from_secs(1);
        for _ in 0..20 {
            assert_eq!(fake.after(0, 512), None);
            fake.limits.take_back(&target(512));
        }
        assert_eq!(fake.after(0, 512), None);
        assert_eq!(fake.after(0, 512), NO_GROWTH);
    }

    #[test]
    fn cached_files_are_free_only_where_the_limit_was_met_before() {
        let mut fake = Fake::new();
        fake.write("a/b", "memory.max", 64 * MIB);
        fake.write("a/b", "memory.current", 64 * MIB);
        fake.write("a/b", "memory.events", "high 0\nmax 0\noom 0\noom_kill 0\n");
        let stat = format!("inactive_file {}\nactive_file 0\n", 32 * MIB);
        fake.write("a/b", "memory.stat", stat);
        assert_eq!(fake.after(0, 0), NO_ROOM);
        fake.write("a/b", "memory.events", "high 0\nmax 3\noom 0\noom_kill 0\n");
        assert_eq!(fake.after(100, 0), SHORT, "met just now");
        assert_eq!(fake.after(999, 0), SHORT);
        assert_eq!(fake.after(1, 0), None);
    }

    #[test]
    fn a_limit_that_others_met_is_no_shortage() {
        let mut fake = Fake::new();
        let events = |max: u32| format!("high 0\nmax {max}\noom 0\noom_kill 0\n");
        fake.write("a", "memory.events", events(5));
        fake.write("a", "memory.events.local", events(0));
        fake.write("a/b", "memory.events", events(0));
        fake.write("a/b", "memory.events.local", events(0));
        assert_eq!(fake.after(0, 0), None);
        fake.write("a", "memory.events", events(6));
        assert_eq!(fake.after(100, 0), None, "that of a neighbour below a");
        fake.write("a", "memory.events.local", events(1));
        assert_eq!(fake.after(100, 0), SHORT, "a itself");
        assert_eq!(fake.after(1000, 0), None);
        fake.write("a/b", "memory.events.local", events(1));
        assert_eq!(fake.after(2001, 0), None, "some time ago");
        fake.write("a/b", "memory.events.local", events(2));
        assert_eq!(fake.after(2000, 0), SHORT);
        fake.write("a/b", "memory.events.local", events(12));
        assert_eq!(fake.after(20_000, 0), SHORT, "all the time");
    }

    #[test]
    fn a_group_whose_programs_wait_for_memory_is_let_be() {
        let mut fake = Fake::new();
        let pressure = |percent| format!("some avg10={percent} avg60=0.00\nfull avg10=0.00\n");
        fake.write("a", "memory.pressure", pressure("90.00"));
        fake.write("a/b", "memory.pressure", pressure("10.00"));
        assert_eq!(fake.after(0, 0), None, "others' are not its own");
        fake.write("a/b", "memory.pressure", pressure("10.01"));
        assert_eq!(fake.after(99, 0), None, "looked at ten times a second");
        assert_eq!(fake.after(1, 0), SHORT);
        fake.write("a/b", "memory.pressure", "");
        fake.write("a", "memory.pressure", "");
        assert_eq!(fake.after(100, 0), None);
    }

    #[test]
    fn who_moves_is_found_again() {
        let mut fake = Fake::new();
        fake.write("c", "memory.max", MIB);
        fake.write("c", "memory.current", 0);
        assert_eq!(fake.after(0, 0), None);
        fake.move_to("/c");
        assert_eq!(fake.after(999, 0), None);
        assert_eq!(fake.after(1, 0), NO_ROOM);
        fs::remove_dir_all(fake.folder.path().join("sys/fs/cgroup/c")).unwrap();
        fake.move_to("/a");
        assert_eq!(fake.after(1000, 0), None);
        assert_eq!(fake.after(60_000, 0), None);
        assert!(fake.limits.groups.keys().all(|path| !path.ends_with("c")));
    }

    #[test]
    fn files_are_not_held_open_without_bound() {
        let mut fake = Fake::new();
        let open = |fake: &Fake| {
            let known = fake.limits.groups.values();
            known.filter(|known| known.files.is_some()).count()
        };
        for number in 0..200 {
            fake.move_to(&format!("/{number}"));
            fake.limits.homes.clear();
            fake.after(1, 0);
            assert!(open(&fake) <= MOST_OPEN + 2);
        }
        fake.move_to("/a");
        fake.after(2000, 0);
        assert_eq!(open(&fake), 2, "{:?}", fake.limits.groups);
    }
}

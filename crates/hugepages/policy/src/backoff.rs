//! Waiting times after failures.
//!
//! `MADV_COLLAPSE` fails for very different reasons (madvise(2); `madvise_collapse_errno()` in mm/khugepaged.c), and an immediate retry is wrong
//! for all of them:
//!
//! | result                     | meaning                               | what waits                       |
//! |----------------------------|---------------------------------------|----------------------------------|
//! | `EAGAIN`, `EBUSY`, unknown | a page is locked, pinned, off the LRU | the region, 100 ms to 30 s       |
//! | `ENOMEM`                   | no free huge page                     | everything, 250 ms to 60 s       |
//! | `EINVAL`                   | this VMA cannot hold huge pages, or all pages are write-protected since a fork | the region, until its VMA changes, or 30 s to 1 h |
//! | `EPERM`, `EACCES`, `ENOSYS`| not allowed or not supported          | the process, permanently         |
//! | `ESRCH`, vanished          | the process is gone                   | (forgotten)                      |
//! | shared since a fork        | a collapse would use the memory twice | the region, 1 s to 8 s           |
//! | forbidden, watched, guarded | the kernel would refuse              | the region, 1 s to 8 s            |
//! | switched off (prctl(2))    | true of all its memory                | the process, 1 s to 8 s; splits continue |
//! | interleaved between nodes  | a huge page would be on one of them   | the region, 30 s to 1 h          |
//! | a file not yet written     | the kernel would write it first       | the region, 1 s to 8 s           |
//! | pinned                     | buffers of I/O stay for a long time   | the region, 30 s to 1 h          |
//! | given back meanwhile, or freed lazily | a collapse would allocate them again  | the region, like a failed one    |
//! | no room on its tmpfs       | its owner would miss it later         | collapses that add memory to the object, likewise |
//! | no room in a control group | a collapse would meet a limit         | the process, 1 s to 8 s; splits continue |
//! | no room to grow there      | the process might miss the memory later | collapses that add memory to the process, likewise |
//! | the daemon's budget        | it allows this user no more memory    | collapses that add memory to the process, likewise |
//! | the daemon does not answer | no worker may act                     | the process, 1 s to 8 s          |
//! | dry run                    | only listed                           | the region, permanently          |
//! | cancelled                  | its turn never came                   | nothing                          |
//!
//! A split that is not allowed or not supported ends the splitting of its process, and has no other consequence; one that fails for any other
//! reason makes its region wait.
//!
//! Waits double with every failure and, for process and machine, halve with every success. A troubled process or machine gets one action at a time,
//! a probe. So a machine without free huge pages gets one request per wait, and not one per region. Trouble is forgotten when the longest wait has
//! passed without new trouble. A refused region waits like a failed one even if its VMA changes: a growing heap changes all the time.
//!
//! madvise(2) returns `ENOMEM` for an unmapped range, too. The actuator distinguishes the two only where it can see the mappings, so one unlucky
//! region could keep every probe for itself. Therefore the region of a failed probe waits too, and probes go to the least troubled region first.

use std::time::Duration;

use superhue_model::{Action, Effect, Errno, SkipReason};

use crate::clock::Tick;

/// The shortest and the longest wait of an exponential back-off.
#[derive(Debug)]
pub(crate) struct Scale {
    first: Duration,
    longest: Duration,
}

/// Back-off of a region that failed or did not stay huge.
pub(crate) const REGION: Scale = Scale {
    first: Duration::from_millis(100),
    longest: Duration::from_secs(30),
};

/// Back-off of a region shared with a process forked from its own, or the other way round: until that process ends, executes or has written
/// everything. Looking again costs little.
pub(crate) const SHARED: Scale = Scale {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(8),
};

/// Back-off of a process whose control group has no room for a huge page, or is short of memory, or that may have no huge pages (`prctl(2)`). Looking
/// again costs little.
pub(crate) const GROUP_SHORTAGE: Scale = Scale {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(8),
};

/// Back-off of a machine without a free huge page.
pub(crate) const MACHINE: Scale = Scale {
    first: Duration::from_millis(250),
    longest: Duration::from_secs(60),
};

/// Back-off of a process that had exited when an action on it was due.
pub(crate) const PROCESS: Scale = Scale {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(60),
};

/// Back-off of a region that was split for us, so that it is not promoted again soon; of one that is pinned; and of one that the kernel refused.
pub(crate) const REST: Scale = Scale {
    first: Duration::from_secs(30),
    longest: Duration::from_secs(3600),
};

impl Scale {
    /// Returns the wait after `level` failures in a row; none after none.
    fn delay(&self, level: u8) -> Duration {
        let Some(doublings) = level.checked_sub(1) else {
            return Duration::ZERO;
        };
        1u32.checked_shl(u32::from(doublings))
            .and_then(|factor| self.first.checked_mul(factor))
            .map_or(self.longest, |delay| delay.min(self.longest))
    }
}

/// An exponential back-off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Wait {
    until: Tick,
    level: u8,
}

impl Wait {
    /// A wait without trouble.
    pub(crate) const NONE: Self = Self {
        until: Tick::START,
        level: 0,
    };

    /// Returns its end; long past if there never was one.
    pub(crate) const fn until(&self) -> Tick {
        self.until
    }

    /// Returns the number of failures that still count against it.
    pub(crate) const fn level(&self) -> u8 {
        self.level
    }

    /// Returns true if there was trouble that neither success nor time has made good.
    pub(crate) const fn is_troubled(&self) -> bool {
        self.level > 0
    }

    /// Returns the wait on another scale after as many failures in a row.
    pub(crate) fn on(&self, scale: &Scale) -> Duration {
        scale.delay(self.level)
    }

    /// Begins a wait, longer than the last one.
    ///
    /// A failure that arrives during the wait belongs to the trouble that began it (the rest of the same plan), and changes nothing.
    pub(crate) fn fail(&mut self, now: Tick, scale: &Scale) {
        if now < self.until {
            return;
        }
        if scale.delay(self.level) < scale.longest {
            self.level += 1;
        }
        self.until = now.after(scale.delay(self.level));
    }

    /// Remembers the trouble for as long as if the wait had ended `now`.
    pub(crate) fn keep(&mut self, now: Tick) {
        self.until = self.until.max(now);
    }

    /// Halves the next wait. Does not cut short one that is running.
    pub(crate) fn succeed(&mut self) {
        self.level = self.level.saturating_sub(1);
    }

    /// Forgets trouble that has long passed.
    pub(crate) fn forget(&mut self, now: Tick, scale: &Scale) {
        if now >= self.until.after(scale.longest) {
            self.level = 0;
        }
    }
}

/// Reason why a process was given up permanently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GiveUp {
    NotPermitted,
}

/// Consequence of a result for the next plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Consequence {
    Done,
    Listed,
    RegionWaits,
    RegionShared,
    RegionPinned,
    RegionRefused,
    MachineWaits,
    ProcessShort,
    GrowthWaits,
    ProcessGivenUp(GiveUp),
    ProcessGone,
    Withdrawn,
    NoSplits,
}

impl Consequence {
    /// Returns the consequence for this action: the right to split proves nothing about the right to promote, nor does a lack of memory for one
    /// about the other.
    pub(crate) const fn about(self, action: &Action) -> Self {
        match (self, action) {
            (Self::ProcessGivenUp(_), Action::Split { .. }) => Self::NoSplits,
            (Self::RegionRefused | Self::MachineWaits, Action::Split { .. }) => Self::RegionWaits,
            (consequence, _) => consequence,
        }
    }

    /// Returns the consequence by the table above.
    pub(crate) const fn of(effect: Effect) -> Self {
        match effect {
            Effect::Done => Self::Done,
            Effect::Vanished => Self::ProcessGone,
            Effect::Skipped { reason } => match reason {
                SkipReason::DryRun => Self::Listed,
                // Each may pass, and asking again costs little.
                SkipReason::Shared
                | SkipReason::Forbidden
                | SkipReason::Userfaultfd
                | SkipReason::Guarded
                | SkipReason::NotWritten
                | SkipReason::OtherKind => Self::RegionShared,
                // Neither passes soon.
                SkipReason::Pinned | SkipReason::Interleaved => Self::RegionPinned,
                // The next look counts them as absent.
                SkipReason::GivenBack | SkipReason::FreedLazily => Self::RegionWaits,
                SkipReason::NoRoomToGrow | SkipReason::NoRoomOnTmpfs | SkipReason::UserBudget => {
                    Self::GrowthWaits
                }
                // True of all its memory.
                SkipReason::NoHeadroom
                | SkipReason::MemoryPressure
                | SkipReason::ServiceLost
                | SkipReason::Disabled => Self::ProcessShort,
                // Other memory may be mapped there later, and only a later look shows it.
                SkipReason::Unmapped => Self::RegionWaits,
                SkipReason::Cancelled | SkipReason::UserRate => Self::Withdrawn,
            },
            Effect::Failed { errno } => match errno {
                Errno::ENOMEM => Self::MachineWaits,
                Errno::EINVAL => Self::RegionRefused,
                Errno::EPERM | Errno::EACCES | Errno::ENOSYS => {
                    Self::ProcessGivenUp(GiveUp::NotPermitted)
                }
                Errno::ESRCH => Self::ProcessGone,
                _ => Self::RegionWaits,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails as soon as each wait ends, and returns the waits in milliseconds.
    fn waits(scale: &Scale, count: usize) -> Vec<u64> {
        let mut wait = Wait::NONE;
        let mut now = Tick::default();
        (0..count)
            .map(|_| {
                wait.fail(now, scale);
                let lasted = wait.until().nanos_since(now) / 1_000_000;
                now = wait.until();
                wait.forget(now, scale);
                lasted
            })
            .collect()
    }

    #[test]
    fn waits_double_up_to_the_longest() {
        assert_eq!(
            waits(&REGION, 11),
            [
                100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000
            ]
        );
        assert_eq!(waits(&MACHINE, 10)[7..], [32000, 60000, 60000]);
        assert_eq!(waits(&PROCESS, 8)[5..], [32000, 60000, 60000]);
        assert_eq!(waits(&REGION, 10_000)[9_999], 30_000);
    }

    #[test]
    fn one_trouble_counts_once() {
        let mut wait = Wait::NONE;
        let now = Tick::default().after(Duration::from_secs(1));
        wait.fail(now, &MACHINE);
        let once = wait;
        (0..100).for_each(|_| wait.fail(now, &MACHINE));
        assert_eq!(wait, once);
    }

    #[test]
    fn success_counts_however_long_the_trouble_was() {
        let mut wait = Wait::NONE;
        for _ in 0..1000 {
            wait.fail(wait.until(), &MACHINE);
        }
        wait.succeed();
        let now = wait.until();
        wait.succeed();
        wait.fail(now, &MACHINE);
        assert_eq!(wait.until(), now.after(Duration::from_secs(32)));
    }

    #[test]
    fn success_halves_and_time_forgets() {
        let mut wait = Wait::NONE;
        let mut now = Tick::default();
        for _ in 0..4 {
            wait.fail(now, &MACHINE);
            now = wait.until();
        }
        assert_eq!(wait.level(), 4);
        wait.succeed();
        assert_eq!(wait.level(), 3);
        wait.fail(now, &MACHINE);
        assert_eq!(wait.until(), now.after(Duration::from_secs(2)));
        let until = wait.until();
        wait.forget(until.after(Duration::from_millis(59_999)), &MACHINE);
        assert!(wait.is_troubled());
        wait.forget(until.after(Duration::from_secs(60)), &MACHINE);
        assert!(!wait.is_troubled());
    }

    #[test]
    fn every_error_has_its_consequence() {
        let failed = |errno| Consequence::of(Effect::Failed { errno });
        for errno in [Errno::EAGAIN, Errno::EBUSY, Errno::EINTR, Errno(9999)] {
            assert_eq!(failed(errno), Consequence::RegionWaits, "{errno}");
        }
        assert_eq!(failed(Errno::ENOMEM), Consequence::MachineWaits);
        assert_eq!(failed(Errno::EINVAL), Consequence::RegionRefused);
        assert_eq!(failed(Errno::ESRCH), Consequence::ProcessGone);
        for errno in [Errno::EPERM, Errno::EACCES, Errno::ENOSYS] {
            assert_eq!(
                failed(errno),
                Consequence::ProcessGivenUp(GiveUp::NotPermitted),
                "{errno}"
            );
        }
        let skipped = |reason| Consequence::of(Effect::Skipped { reason });
        assert_eq!(skipped(SkipReason::DryRun), Consequence::Listed);
        assert_eq!(skipped(SkipReason::Shared), Consequence::RegionShared);
        for reason in [SkipReason::NoRoomToGrow, SkipReason::UserBudget] {
            assert_eq!(skipped(reason), Consequence::GrowthWaits);
        }
        for reason in [
            SkipReason::NoHeadroom,
            SkipReason::MemoryPressure,
            SkipReason::ServiceLost,
            SkipReason::Disabled,
        ] {
            assert_eq!(skipped(reason), Consequence::ProcessShort);
        }
        assert_eq!(skipped(SkipReason::Unmapped), Consequence::RegionWaits);
        for reason in [SkipReason::Cancelled, SkipReason::UserRate] {
            assert_eq!(skipped(reason), Consequence::Withdrawn);
        }
        assert_eq!(Consequence::of(Effect::Vanished), Consequence::ProcessGone);
    }
}

//! A thread that is not interrupted while it holds a lock of another process.
//!
//! A collapse holds `mmap_lock` of the process whose memory it changes. On a busy machine the kernel takes the CPU from the collapsing thread in
//! the middle, for milliseconds, and the process waits for all of that time:
//!
//! ```text
//!   ordinary   lock ##|.. others run ..|##|.. others run ..|## unlock      the process waits for all of it
//!   urgent     lock ###### unlock                                          and here for the work alone
//! ```
//!
//! Two degrees, both for the calling thread alone:
//!
//! | | scheduling (`sched(7)`) | for |
//! |---|---|---|
//! | [`Urgent::first`] | `SCHED_FIFO` at priority 1; where that is not permitted, as below | one region, or few page tables: milliseconds |
//! | [`Urgent::raised`] | a nice value of -20, which counts within the control group and the session of the thread | many page tables |
//! | [`Urgent::raised_for`] | the same, and none for work of more than 5 ms | page tables that are only read |

use std::cell::Cell;
use std::marker::PhantomData;
use std::time::Duration;

use rustix::process::{getpriority_process, setpriority_process};

use crate::scheduling::Scheduling;

/// The highest priority of ordinary scheduling.
const HIGHEST: i32 = -20;

/// Longest reading for which a thread is raised. A reader holds up only threads that change mappings of the process. A raised thread holds up all
/// others on its CPU, for as long.
const LONGEST_RAISED: Duration = Duration::from_millis(5);

/// Time to look at one page: 30 ms for the base pages of 2 GiB (Intel Xeon; 8 ms on AMD EPYC).
const READING: Duration = Duration::from_nanos(60);

/// Guard: the calling thread is scheduled before others until the guard is dropped.
///
/// Needs `CAP_SYS_NICE`, or the limits `RLIMIT_RTPRIO` and `RLIMIT_NICE`; without, the thread keeps its scheduling.
#[derive(Debug)]
pub struct Urgent {
    before: Before,
    /// A guard restores the thread that made it, so it must not move to another one.
    _not_send: PhantomData<*const ()>,
}

/// The change to undo.
#[derive(Debug)]
enum Before {
    /// The scheduling was not changed.
    Same,
    Nice(i32),
    /// The guard undoes it itself.
    Class {
        _guard: RealTime,
    },
}

thread_local! {
    /// Scheduling to which a [`RealTime`] of this thread returns; `None` without one.
    static SUSPENDED: Cell<Option<Scheduling>> = const { Cell::new(None) };
}

/// Does `work` as the thread would without a [`RealTime`] that lasts: work that may take long, within work that must not be interrupted.
pub fn suspended<T>(work: impl FnOnce() -> T) -> T {
    let Some(before) = SUSPENDED.take() else {
        return work();
    };
    let is_suspended = before.set(0).is_ok();
    let result = work();
    if is_suspended {
        let _ = Scheduling::first().set(0);
    }
    SUSPENDED.set(Some(before));
    result
}

/// Guard: the calling thread is scheduled as `SCHED_FIFO` at priority 1 until the guard is dropped.
#[derive(Debug)]
pub struct RealTime {
    before: Scheduling,
    /// A guard restores the thread that made it, so it must not move to another one.
    _not_send: PhantomData<*const ()>,
}

impl RealTime {
    /// Changes the scheduling of the thread; `None` where that is not permitted.
    #[must_use]
    pub fn begin() -> Option<Self> {
        let before = Scheduling::of(0).ok();
        let is_first = Scheduling::first().set(0).is_ok();
        before.filter(|_| is_first).map(|before| {
            // The outer one counts.
            let outer = SUSPENDED.replace(Some(before));
            if outer.is_some() {
                SUSPENDED.set(outer);
            }
            Self {
                before,
                _not_send: PhantomData,
            }
        })
    }
}

impl Drop for RealTime {
    fn drop(&mut self) {
        // A thread needs no permission to lower its own priority.
        let _ = self.before.set(0);
        if self.before.is_ordinary() {
            SUSPENDED.set(None);
        }
    }
}

impl Urgent {
    /// Runs the thread before all that are not real-time. Only for work of some milliseconds: the others wait.
    #[must_use]
    pub fn first() -> Self {
        if Scheduling::of(0).is_ok_and(|now| !now.is_ordinary()) {
            // It is real-time already.
            return Self::with(Before::Same);
        }
        match RealTime::begin() {
            Some(_guard) => Self::with(Before::Class { _guard }),
            None => Self::raised(),
        }
    }

    /// Raises the priority of the thread among ordinary ones.
    #[must_use]
    pub fn raised() -> Self {
        // Of the calling thread: on Linux, each thread has its own.
        let before = getpriority_process(None).ok().filter(|&it| it > HIGHEST);
        match before.filter(|_| setpriority_process(None, HIGHEST).is_ok()) {
            Some(before) => Self::with(Before::Nice(before)),
            None => Self::with(Before::Same),
        }
    }

    /// Does the same for reading the page tables of this many base and huge pages, unless that takes so long that others would wait for it.
    #[must_use]
    pub fn raised_for(pages: u64) -> Self {
        let expected = u32::try_from(pages).map_or(Duration::MAX, |it| READING.saturating_mul(it));
        if expected <= LONGEST_RAISED {
            Self::raised()
        } else {
            Self::with(Before::Same)
        }
    }

    const fn with(before: Before) -> Self {
        Self {
            before,
            _not_send: PhantomData,
        }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if let Before::Nice(before) = self.before {
            let _ = setpriority_process(None, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> (i32, Scheduling) {
        (
            getpriority_process(None).unwrap(),
            Scheduling::of(0).unwrap(),
        )
    }

    /// Compares the scheduling under a guard, and after it, with the one before.
    fn restored(guard: fn() -> Urgent, is_changed: fn((i32, Scheduling)) -> bool) {
        let before = state();
        let urgent = guard();
        let during = state();
        let could = !matches!(urgent.before, Before::Same);
        assert_eq!(is_changed(during), could);
        {
            // Within another one, nothing is left to change or to restore.
            let _inner = guard();
            assert_eq!(state(), during);
        }
        assert_eq!(state(), during);
        drop(urgent);
        assert_eq!(state(), before);
        if !could {
            superhue_testing::skip("CAP_SYS_NICE", "the priority cannot be raised here");
        }
    }

    #[test]
    fn long_reading_is_not_urgent() {
        let before = state();
        let urgent = Urgent::raised_for(83_334);
        assert_eq!(state(), before);
        drop(urgent);
        restored(|| Urgent::raised_for(83_333), |(nice, _)| nice == HIGHEST);
    }

    #[test]
    fn long_work_within_urgent_work_is_as_before() {
        let before = state();
        assert_eq!(suspended(state), before);
        let urgent = Urgent::first();
        let during = state();
        if during.1.is_ordinary() {
            return superhue_testing::skip("CAP_SYS_NICE", "no real-time scheduling here");
        }
        assert_eq!(suspended(state), before);
        assert_eq!(suspended(|| suspended(state)), before);
        assert_eq!(state(), during);
        drop(urgent);
        assert_eq!((state(), suspended(state)), (before, before));
    }

    #[test]
    fn the_scheduling_is_changed_and_put_back() {
        restored(Urgent::raised, |(nice, _)| nice == HIGHEST);
        restored(Urgent::first, |(nice, class)| {
            nice == HIGHEST || !class.is_ordinary()
        });
    }
}

//! Tasks that may run at the same time, and so must not share a color.
//!
//! Two tasks conflict if one may put lines into the cache between the begin and the end of a run of the other:
//!
//! ```text
//!   different CPUs that share the cache     conflict                      unless their windows never overlap, or the plan says so
//!   one CPU, run to completion              no conflict: a run ends before another begins
//!   one CPU, preemptive                     conflict: the task that interrupts evicts lines of the other
//! ```
//!
//! So a run may find other tasks' lines in its colors when it *begins*: a task that shares colors starts with a cold cache. Its costs must be
//! measured that way.

use std::time::Duration;

/// Order of tasks on one CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preemption {
    /// A run ends before another one on the same CPU begins: a cyclic executive, or `SCHED_FIFO` with one priority and no blocking.
    Cyclic,
    /// Tasks on one CPU interrupt each other.
    Preemptive,
}

/// Part of each period in which a task may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Time between the starts of two runs, in nanoseconds; above 0.
    period: u64,
    /// Earliest start within the period.
    offset: u64,
    /// Time from the earliest start to the latest end.
    length: u64,
}

/// Reason why times are no window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// There is no period to be a part of.
    #[error("the period is 0, or longer than 500 years")]
    Period,
    /// The window starts after its period.
    #[error("the offset is not less than the period")]
    Offset,
    /// The window is longer than its period, or empty.
    #[error("the window is empty or longer than the period")]
    Length,
}

impl Window {
    /// Makes a window: in each `period`, from `offset` on for `length`. It may extend into the next period.
    ///
    /// # Errors
    /// If the period is 0 or beyond 64 bits of nanoseconds, the offset is not below it, or the length is 0 or above it.
    pub fn new(period: Duration, offset: Duration, length: Duration) -> Result<Self, WindowError> {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).ok();
        let period = nanoseconds(period).filter(|&period| period > 0);
        let period = period.ok_or(WindowError::Period)?;
        let offset = nanoseconds(offset).filter(|&offset| offset < period);
        let length = nanoseconds(length).filter(|&length| length > 0 && length <= period);
        Ok(Self {
            period,
            offset: offset.ok_or(WindowError::Offset)?,
            length: length.ok_or(WindowError::Length)?,
        })
    }

    /// Returns true if the two windows ever have a moment in common.
    ///
    /// The distance between their starts takes all values that are congruent to the difference of the offsets modulo the greatest common
    /// divisor of the periods.
    #[must_use]
    pub const fn overlaps(&self, other: &Self) -> bool {
        let step = gcd(self.period, other.period);
        let (mine, its) = (self.offset % step, other.offset % step);
        let behind = if its >= mine {
            its - mine
        } else {
            its + (step - mine)
        };
        let ahead = if behind == 0 { 0 } else { step - behind };
        behind < self.length || ahead < other.length
    }
}

const fn gcd(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// CPUs that share the cache whose colors are divided: groups, each with a cache of its own. No group: all CPUs share one cache.
pub(super) fn share_cache(groups: &[Vec<u32>], one: u32, other: u32) -> bool {
    let both = |group: &Vec<u32>| group.contains(&one) && group.contains(&other);
    one == other || groups.is_empty() || groups.iter().any(both)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    fn window(period: u64, offset: u64, length: u64) -> Window {
        let ms = Duration::from_millis;
        Window::new(ms(period), ms(offset), ms(length)).unwrap()
    }

    #[test]
    fn windows_overlap_as_a_walk_through_all_milliseconds_shows() {
        let mut random = Random::new(9);
        let (mut apart, mut together) = (0, 0);
        for _ in 0..1500 {
            let mut one = || {
                let period = 1 + random.below(24) as u64;
                let offset = random.below(usize::try_from(period).unwrap()) as u64;
                let length = 1 + random.below(usize::try_from(period.min(4)).unwrap()) as u64;
                (period, offset, length)
            };
            let (a, b) = (one(), one());
            let runs = |at: u64, (period, offset, length): (u64, u64, u64)| {
                (at + period - offset) % period < length
            };
            // Both patterns repeat after the product of the periods.
            let meets = (0..a.0 * b.0).any(|at| runs(at, a) && runs(at, b));
            let (first, second) = (window(a.0, a.1, a.2), window(b.0, b.1, b.2));
            assert_eq!(first.overlaps(&second), meets, "{a:?} {b:?}");
            assert_eq!(second.overlaps(&first), meets);
            apart += u32::from(!meets);
            together += u32::from(meets);
        }
        assert!(apart > 50 && together > 50, "{apart} {together}");
    }

    #[test]
    fn windows_that_cannot_be_are_refused() {
        let ms = Duration::from_millis;
        let made = |period, offset, length| Window::new(ms(period), ms(offset), ms(length));
        assert_eq!(made(0, 0, 1), Err(WindowError::Period));
        assert_eq!(made(10, 10, 1), Err(WindowError::Offset));
        assert_eq!(made(10, 0, 0), Err(WindowError::Length));
        assert_eq!(made(10, 0, 11), Err(WindowError::Length));
        assert!(made(10, 9, 10).is_ok());
        let long = Window::new(Duration::MAX, ms(0), ms(1));
        assert_eq!(long, Err(WindowError::Period));
    }

    #[test]
    fn cpus_share_a_cache_by_groups() {
        let groups = [vec![0, 1], vec![2, 3]];
        assert!(share_cache(&groups, 0, 1) && !share_cache(&groups, 1, 2));
        assert!(share_cache(&groups, 7, 7) && share_cache(&[], 0, 9));
    }
}

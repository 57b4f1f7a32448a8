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

use std::collections::BTreeSet;
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

/// CPUs, each with the cache that it uses, of those whose colors are divided.
#[derive(Debug)]
pub(super) struct Caches {
    /// CPU and number of its cache; ascending, each CPU once.
    of: Vec<(u32, usize)>,
}

impl Caches {
    /// All these CPUs share one cache.
    pub(super) fn one(cpus: impl Iterator<Item = u32>) -> Self {
        let cpus: BTreeSet<u32> = cpus.collect();
        Self {
            of: cpus.into_iter().map(|cpu| (cpu, 0)).collect(),
        }
    }

    /// Each group has a cache of its own. No CPU is in two of them.
    pub(super) fn of_groups(groups: &[Vec<u32>]) -> Self {
        let caches = groups.iter().enumerate();
        let mut of: Vec<(u32, usize)> = caches
            .flat_map(|(cache, group)| group.iter().map(move |&cpu| (cpu, cache)))
            .collect();
        of.sort_unstable();
        Self { of }
    }

    /// Returns the place of a task that runs on these CPUs.
    ///
    /// # Errors
    /// The first of them that uses no known cache.
    pub(super) fn place(&self, cpus: &[u32]) -> Result<Place, u32> {
        let known = cpus.iter().map(|&cpu| {
            let at = self.of.binary_search_by_key(&cpu, |known| known.0);
            at.map(|at| (self.of[at].1, at)).map_err(|_| cpu)
        });
        let mut known = known.collect::<Result<Vec<(usize, usize)>, u32>>()?;
        known.sort_unstable();
        known.dedup();
        let mut place = Place::default();
        for of_cache in known.chunk_by(|one, other| one.0 == other.0) {
            place.caches.insert(of_cache[0].0);
            if let [(_, cpu)] = of_cache {
                place.only.insert(*cpu);
            }
        }
        Ok(place)
    }
}

/// Caches that a task uses.
///
/// A plan may have tens of thousands of CPUs and of caches: sets of bits compare two tasks fast enough, pairs of CPUs would take days.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// Numbers of the caches.
    caches: Bits,
    /// Positions in [`Caches`] of the CPUs that are the task's only ones at their cache.
    only: Bits,
}

impl Place {
    /// Returns true if the two tasks may use a cache at the same time: from two CPUs or, with preemption, from one.
    pub(super) fn meets(&self, other: &Self, preemption: Preemption) -> bool {
        let common = self.caches.common(&other.caches);
        match preemption {
            Preemption::Preemptive => common > 0,
            // Both are confined to one CPU in this number of the common caches.
            Preemption::Cyclic => common > self.only.common(&other.only),
        }
    }
}

/// Set of numbers.
#[derive(Debug, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn insert(&mut self, number: usize) {
        let word = number / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (number % 64);
    }

    /// Returns the number of members that two sets have in common.
    fn common(&self, other: &Self) -> u32 {
        let words = self.0.iter().zip(&other.0);
        words.map(|(one, other)| (one & other).count_ones()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use superhue_model::Random;

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
    fn tasks_meet_in_a_cache_as_all_pairs_of_their_cpus_show() {
        let mut random = Random::new(13);
        let mut met = [0; 2];
        for round in 0..2000 {
            let groups: &[Vec<u32>] = &[vec![9, 0, 4], vec![70_000], vec![2, 3, 1]];
            let cpus = groups.concat();
            let mut some = || -> Vec<u32> {
                let number = 1 + random.below(3);
                let at = (0..number).map(|_| cpus[random.below(cpus.len())]);
                at.collect()
            };
            let (a, b) = (some(), some());
            let is_one = round % 2 == 0;
            let caches = match is_one {
                true => Caches::one(cpus.iter().copied()),
                false => Caches::of_groups(groups),
            };
            let cache = |cpu: &u32| groups.iter().position(|group| group.contains(cpu));
            for preemption in [Preemption::Cyclic, Preemption::Preemptive] {
                let meets = |one: &u32, other: &u32| match one == other {
                    true => preemption == Preemption::Preemptive,
                    false => is_one || cache(one) == cache(other),
                };
                let expected = a.iter().any(|one| b.iter().any(|other| meets(one, other)));
                let places = (caches.place(&a).unwrap(), caches.place(&b).unwrap());
                let found = places.0.meets(&places.1, preemption);
                assert_eq!(found, expected, "{a:?} {b:?} {preemption:?} {is_one}");
                met[usize::from(found)] += 1;
            }
            assert_eq!(caches.place(&[0, 8, 7]).unwrap_err(), 8);
        }
        assert!(met[0] > 500 && met[1] > 500, "{met:?}");
    }
}

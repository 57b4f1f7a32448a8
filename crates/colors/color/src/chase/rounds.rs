//! Rounds of chases over all numbers of pages.

use std::fmt;
use std::time::{Duration, Instant};

use super::{MOST_HUGE, MOST_PAGES, PageChase};
use crate::walks::cpu_seconds;

/// Fewest pages of a chase.
const LEAST_PAGES: f64 = 16.0;

/// Numbers of pages while they double.
const PER_DOUBLING: f64 = 8.0;

/// Rounds at most.
const ROUNDS: usize = 20;

/// Rounds that make a measurement: each half of them has four times of each chase.
pub const LEAST_ROUNDS: usize = 8;

/// Seconds of CPU time after which no round begins.
const CPU_LIMIT: f64 = 0.6;

/// Time after which no round begins, on a machine whose CPUs others use; twice that if there are fewer than [`LEAST_ROUNDS`].
const WALL_LIMIT: Duration = Duration::from_secs(4);

/// Pages of the test of huge pages: more than a first TLB has entries, and fewer lines than a first cache.
const SPREAD: usize = 384;

/// Nanoseconds per load: for each number of pages those of a chase and of its control, in each round.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ChaseTimes {
    /// Numbers of pages, ascending.
    pub pages: Vec<u32>,
    /// Times by number of pages, and by round.
    pub times: Vec<Vec<[f64; 2]>>,
}

/// Times of all chases but those of full walks.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rounds {
    /// Through base pages.
    pub base: ChaseTimes,
    /// Through huge pages; empty without any.
    pub huge: ChaseTimes,
    /// Through the parts of one huge page, and of its control, by round.
    pub spread: Vec<[f64; 2]>,
}

impl Rounds {
    /// Times all chases, 20 times if less than a second of CPU time allows that. A round has all numbers of pages, so that a disturbance of a
    /// second spoils one time of each and not all times of one.
    #[must_use]
    pub fn measure(chase: &mut PageChase) -> Self {
        let (begun, cpu) = (Instant::now(), cpu_seconds());
        let (of_base, of_huge) = (sizes(MOST_PAGES), sizes(MOST_HUGE));
        let mut rounds = Self {
            base: ChaseTimes::of(&of_base),
            huge: ChaseTimes::of(if chase.has_huge() { &of_huge } else { &[] }),
            spread: Vec::new(),
        };
        for round in 0..ROUNDS {
            let is_over = cpu_seconds() - cpu >= CPU_LIMIT || begun.elapsed() >= WALL_LIMIT;
            if is_over && (round >= LEAST_ROUNDS || begun.elapsed() >= 2 * WALL_LIMIT) {
                break;
            }
            for (&slots, times) in of_base.iter().zip(&mut rounds.base.times) {
                times.push(chase.time_base(slots));
            }
            for (&slots, times) in of_huge.iter().zip(&mut rounds.huge.times) {
                times.extend(chase.time_huge(slots));
            }
            rounds.spread.extend(chase.time_spread(SPREAD));
        }
        rounds
    }
}

impl ChaseTimes {
    fn of(sizes: &[usize]) -> Self {
        let pages = sizes
            .iter()
            .map(|&size| u32::try_from(size).unwrap_or(u32::MAX));
        Self {
            pages: pages.collect(),
            times: sizes.iter().map(|_| Vec::new()).collect(),
        }
    }

    /// Number of rounds that all chases have.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.times.iter().map(Vec::len).min().unwrap_or_default()
    }
}

/// One line for each number of pages: the kind of page, the number, and for each round the time of the chase and that of its control.
impl fmt::Display for Rounds {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |to: &mut fmt::Formatter<'_>, kind: &str, pages: u32, times: &[[f64; 2]]| {
            write!(to, "{kind} {pages}")?;
            for [chase, control] in times {
                write!(to, " {chase:.2},{control:.2}")?;
            }
            writeln!(to)
        };
        for (kind, times) in [("base", &self.base), ("huge", &self.huge)] {
            for (&pages, times) in times.pages.iter().zip(&times.times) {
                line(to, kind, pages, times)?;
            }
        }
        line(to, "spread", SPREAD as u32, &self.spread)
    }
}

/// Numbers of pages, ascending, up to `most`.
fn sizes(most: usize) -> Vec<usize> {
    let sizes = (0..).map(|step| LEAST_PAGES * (f64::from(step) / PER_DOUBLING).exp2());
    let sizes = sizes.map(|size| size.round() as usize);
    sizes.take_while(|size| *size <= most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_pages_ascend_and_double_in_eight_steps() {
        let sizes = sizes(MOST_PAGES);
        assert_eq!((sizes[0], sizes[8], sizes[16]), (16, 32, 64));
        assert!(sizes.is_sorted_by(|a, b| a < b));
        assert!(*sizes.last().unwrap() <= MOST_PAGES);
        assert!(*sizes.last().unwrap() > MOST_PAGES * 8 / 10);
    }

    /// Checks that every chase has a time in every round. No exact figure is tested: timing decides no test.
    #[test]
    fn every_round_has_every_chase() {
        let mut chase = PageChase::new().unwrap();
        let rounds = Rounds::measure(&mut chase);
        let count = rounds.base.rounds();
        assert!((1..=ROUNDS).contains(&count));
        assert_eq!(rounds.base.times.len(), rounds.base.pages.len());
        assert_eq!(rounds.huge.pages.is_empty(), !chase.has_huge());
        let all = rounds.base.times.iter().chain(&rounds.huge.times);
        for times in all {
            assert_eq!(times.len(), count);
            assert!(
                times
                    .as_flattened()
                    .iter()
                    .all(|ns| ns.is_finite() && *ns > 0.0)
            );
        }
        let lines = rounds.base.pages.len() + rounds.huge.pages.len() + 1;
        assert_eq!(rounds.to_string().lines().count(), lines);
    }
}

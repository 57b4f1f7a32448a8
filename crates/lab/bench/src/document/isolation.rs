//! Part of the result about victims and partners.

use serde::{Deserialize, Serialize};
use superhue_measure::Interval;
use superhue_measure::stats::bootstrap::middle;
use superhue_measure::stats::quantile::{quantile, sorted};
use superhue_measure::summary::FEWEST;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::summary::Estimate;

/// Resamples of rounds for an interval; few, because each sorts thousands of jobs.
const RESAMPLES: usize = 400;

/// Placement of the memory of victim and partner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Partition {
    /// As the kernel deals the pages.
    Kernel,
    /// Victim and partner each on colors of its own.
    Colored,
    /// The control: as many pages of the same pool, each of a random one of all colors.
    Shuffled,
}

impl Partition {
    /// All placements.
    pub const ALL: [Self; 3] = [Self::Kernel, Self::Colored, Self::Shuffled];

    /// Returns the name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Colored => "colored",
            Self::Shuffled => "shuffled",
        }
    }
}

/// All results of isolation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Isolation {
    /// Jobs in each round.
    pub jobs: usize,
    /// Sleep of the victim between jobs, in seconds.
    pub pause_seconds: f64,
    /// The victim's colors, as a list; `None` if no colors are known.
    pub victim_colors: Option<String>,
    /// The partner's.
    pub partner_colors: Option<String>,
    /// The share of the cache that the victim gives up to be alone on its colors; `None` if no colors are known.
    pub capacity_given_up: Option<f64>,
    /// Each combination that was measured.
    pub cases: Vec<Case>,
}

/// A victim, a partner, and the placement of both.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Name of the victim's task.
    pub victim: String,
    /// Bytes of the victim's memory.
    pub victim_bytes: u64,
    /// Name of the partner's task; `alone` if it leaves the caches alone.
    pub partner: String,
    /// Bytes of the partner's memory.
    pub partner_bytes: u64,
    /// The partner's CPU, if it differs from the victim's.
    pub partner_cpu: Option<u32>,
    /// Placement of both.
    pub placement: Partition,
    /// CPU time of each job in nanoseconds, for each round of fresh allocations.
    pub rounds: Vec<Vec<u64>>,
    /// Reasons why rounds failed.
    pub failed: Vec<String>,
    /// Summary of the jobs; computed from them.
    pub summary: Option<JobSummary>,
}

/// Summary of the jobs of a case, in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSummary {
    /// Number of jobs.
    pub jobs: usize,
    /// Median of the jobs.
    pub median: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
    /// The slowest.
    pub worst: f64,
    /// The median divided by that of the same victim with the same placement alone; `None` if this is that case. In both
    /// cases the partner is on the same CPU.
    pub median_disturbance: Option<Estimate>,
    /// The same for the 99.9th percentile.
    pub p999_disturbance: Option<Estimate>,
    /// The median divided by that of the same victim alone as the kernel places it: the cost of the placement itself.
    pub cost_alone: Option<f64>,
}

/// Name of the partner that leaves the caches alone.
pub const ALONE: &str = "alone";

impl Case {
    /// The partner in words: `beside thrasher on CPU 1`.
    #[must_use]
    pub fn beside(&self) -> String {
        match (self.partner.as_str(), self.partner_cpu) {
            (ALONE, None) => ALONE.to_owned(),
            (ALONE, Some(cpu)) => format!("{ALONE}, CPU {cpu} spins"),
            (partner, None) => format!("beside {partner}"),
            (partner, Some(cpu)) => format!("beside {partner} on CPU {cpu}"),
        }
    }
}

impl Isolation {
    /// Returns true if anything was measured.
    #[must_use]
    pub fn has_results(&self) -> bool {
        self.cases.iter().any(|case| !case.rounds.is_empty())
    }

    /// Returns true if every round has jobs and every job took time.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let mut rounds = self.cases.iter().flat_map(|case| &case.rounds);
        rounds.all(|round| !round.is_empty() && round.iter().all(|job| *job > 0))
    }

    /// The case of the same victim beside the partner [`ALONE`] on the same CPU as that of `case`, with this placement.
    #[must_use]
    pub fn alone(&self, case: &Case, placement: Partition) -> Option<&Case> {
        self.cases.iter().find(|other| {
            other.partner == ALONE
                && other.placement == placement
                && other.victim == case.victim
                && other.victim_bytes == case.victim_bytes
                && other.partner_cpu == case.partner_cpu
        })
    }

    /// Computes the summaries of the jobs.
    pub(crate) fn summarise(&mut self) {
        let summaries: Vec<_> = self.cases.iter().map(|case| self.summary(case)).collect();
        for (case, summary) in self.cases.iter_mut().zip(summaries) {
            case.summary = summary;
        }
    }

    fn summary(&self, case: &Case) -> Option<JobSummary> {
        let jobs = pooled(case.rounds.iter());
        let of = |q: f64| quantile(&jobs, q).map(|nanoseconds| nanoseconds * 1e-9);
        let alone = self
            .alone(case, case.placement)
            .filter(|_| case.partner != ALONE);
        let kernel = self
            .alone(case, Partition::Kernel)
            .filter(|_| case.partner == ALONE);
        let median_of = |case: &Case| quantile(&pooled(case.rounds.iter()), 0.5);
        Some(JobSummary {
            jobs: jobs.len(),
            median: of(0.5)?,
            p99: of(0.99)?,
            p999: of(0.999)?,
            worst: of(1.0)?,
            median_disturbance: alone.and_then(|alone| ratio(case, alone, 0.5)),
            p999_disturbance: alone.and_then(|alone| ratio(case, alone, 0.999)),
            cost_alone: kernel.and_then(|kernel| Some(of(0.5)? * 1e9 / median_of(kernel)?)),
        })
    }
}

fn pooled<'a>(rounds: impl Iterator<Item = &'a Vec<u64>>) -> Vec<f64> {
    sorted(
        &rounds
            .flatten()
            .map(|job| *job as f64)
            .collect::<Vec<f64>>(),
    )
}

/// A quantile of `case` divided by that of `alone`. The interval is from resampling whole rounds, as jobs of one
/// allocation have their luck in common; there is none with fewer than [`FEWEST`] rounds of either.
fn ratio(case: &Case, alone: &Case, q: f64) -> Option<Estimate> {
    let value =
        quantile(&pooled(case.rounds.iter()), q)? / quantile(&pooled(alone.rounds.iter()), q)?;
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut resampled = |case: &Case| {
        let rounds = &case.rounds;
        let drawn: Vec<&Vec<u64>> = rounds
            .iter()
            .map(|_| &rounds[rng.random_range(0..rounds.len())])
            .collect();
        quantile(&pooled(drawn.into_iter()), q)
    };
    let ratios = (0..RESAMPLES)
        .filter_map(|_| Some(resampled(case)? / resampled(alone)?))
        .collect();
    let has_enough = case.rounds.len().min(alone.rounds.len()) >= FEWEST;
    let interval: Option<Interval> = has_enough.then(|| middle(ratios)).flatten();
    Some(Estimate { value, interval })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(partner: &str, placement: Partition, job: u64) -> Case {
        Case {
            victim: "mcol".to_owned(),
            victim_bytes: 4096,
            partner: partner.to_owned(),
            partner_bytes: 0,
            partner_cpu: None,
            placement,
            rounds: vec![vec![job; 10]; 3],
            failed: Vec::new(),
            summary: None,
        }
    }

    fn isolation(cases: Vec<Case>) -> Isolation {
        Isolation {
            jobs: 10,
            pause_seconds: 0.0,
            victim_colors: None,
            partner_colors: None,
            capacity_given_up: None,
            cases,
        }
    }

    #[test]
    fn disturbance_is_against_the_same_placement_alone() {
        let mut isolation = isolation(vec![
            case(ALONE, Partition::Kernel, 100),
            case("thrasher", Partition::Kernel, 300),
            case(ALONE, Partition::Colored, 110),
            case("thrasher", Partition::Colored, 121),
        ]);
        isolation.summarise();
        let of = |index: usize| isolation.cases[index].summary.clone().unwrap();
        assert_eq!(of(1).p999_disturbance.unwrap().value, 3.0);
        assert!((of(3).median_disturbance.unwrap().value - 1.1).abs() < 1e-9);
        assert_eq!(of(0).median_disturbance, None);
        assert!((of(2).cost_alone.unwrap() - 1.1).abs() < 1e-9);
        assert!(isolation.is_consistent() && isolation.has_results());
        assert_eq!(of(1).p999_disturbance.unwrap().interval, None, "3 rounds");
        for case in &mut isolation.cases {
            case.rounds.push(vec![100; 10]);
        }
        isolation.summarise();
        let of = |index: usize| isolation.cases[index].summary.clone().unwrap();
        assert!(of(1).p999_disturbance.unwrap().interval.is_some());
    }

    #[test]
    fn disturbance_is_against_alone_with_the_partner_on_the_same_cpu() {
        let on = |cpu, case: Case| Case {
            partner_cpu: cpu,
            ..case
        };
        let mut isolation = isolation(vec![
            on(None, case(ALONE, Partition::Kernel, 100)),
            on(Some(1), case(ALONE, Partition::Kernel, 200)),
            on(None, case("thrasher", Partition::Kernel, 300)),
            on(Some(1), case("thrasher", Partition::Kernel, 300)),
            on(Some(1), case(ALONE, Partition::Colored, 220)),
        ]);
        isolation.summarise();
        let of = |index: usize| isolation.cases[index].summary.clone().unwrap();
        assert_eq!(of(2).median_disturbance.unwrap().value, 3.0);
        assert_eq!(of(3).median_disturbance.unwrap().value, 1.5);
        assert!((of(4).cost_alone.unwrap() - 1.1).abs() < 1e-9);
        let said = crate::findings::of_isolation(&isolation).join("\n");
        assert!(
            said.contains("beside thrasher, against alone: p99.9 kernel 3.00x"),
            "{said}"
        );
        assert!(
            said.contains(
                "beside thrasher on CPU 1, against alone, CPU 1 spins: p99.9 kernel 1.50x"
            ),
            "{said}"
        );
    }
}

//! The promise of the crate: comparing a program with itself shows no difference on any metric, and a comparison finds a real difference.
//!
//! Simulations with fixed seeds: the counts below are the same on every machine.

use superhue_measure::Verdict;

use crate::simulation::{NoiseModel, compare};

/// Number of comparisons of each kind.
const REPETITIONS: u64 = 200;

/// Resamples per interval; a hundred are precise enough for counting.
const RESAMPLES: usize = 100;

/// Returns the number of comparisons that show a difference on any of the metrics.
fn alarms(world: NoiseModel, factors: &[f64], metrics: usize, runs: usize) -> u64 {
    let alarm = |seed: &u64| {
        let comparison = compare(world, factors, metrics, runs, RESAMPLES, *seed);
        let mut arms = comparison.summaries.iter().flat_map(|s| &s.arms);
        arms.any(|arm| arm.against.is_some_and(|a| a.verdict.is_difference()))
    };
    (0..REPETITIONS).filter(alarm).count() as u64
}

/// Asserts that comparisons of equal arms raise no more false alarms than the promised 2.5 % (`superhue_measure::summary::LEVEL`) and three standard
/// errors of that number of comparisons.
fn expect_promise(alarms: u64, comparisons: u64, what: &dyn std::fmt::Debug) {
    let expected = 0.025 * comparisons as f64;
    let most = expected + 3.0 * (expected * 0.975).sqrt();
    assert!(
        alarms as f64 <= most,
        "{what:?}: {alarms} false alarms in {comparisons} comparisons, and {most:.1} at most"
    );
}

/// Asserts the same of 1,000 comparisons.
fn expect_silence(world: NoiseModel) {
    // Five runs cannot answer ten questions, but they can answer five.
    let kinds = [(5, 5), (10, 6), (10, 7), (10, 8), (10, 10)];
    let alarms = kinds.map(|(metrics, runs)| alarms(world, &[1.0, 1.0], metrics, runs));
    let comparisons = REPETITIONS * kinds.len() as u64;
    expect_promise(alarms.iter().sum(), comparisons, &(world, alarms));
}

#[test]
fn no_difference_under_normal_noise() {
    expect_silence(NoiseModel::Normal(0.02));
}

#[test]
fn no_difference_under_heavy_tails() {
    expect_silence(NoiseModel::HeavyTailed);
}

#[test]
fn no_difference_between_two_modes() {
    expect_silence(NoiseModel::Bimodal);
}

#[test]
fn no_difference_while_the_machine_drifts() {
    expect_silence(NoiseModel::Drifting);
}

#[test]
fn no_difference_where_position_matters() {
    expect_silence(NoiseModel::FirstIsSlow);
}

#[test]
fn no_difference_in_slow_minutes() {
    expect_silence(NoiseModel::Wandering);
}

/// There are enough arms for the removal of round effects. There are few metrics, because each arm is a question of its own.
#[test]
fn no_difference_among_seven_equal_arms_in_rounds_that_are_evened_out() {
    for world in [
        NoiseModel::SlowRounds,
        NoiseModel::Wandering,
        NoiseModel::Drifting,
        NoiseModel::HeavyTailed,
        NoiseModel::Normal(0.02),
        NoiseModel::Bimodal,
        NoiseModel::FirstIsSlow,
        NoiseModel::Counts,
    ] {
        let alarms = [7, 8, 10].map(|runs| alarms(world, &[1.0; 7], 2, runs));
        expect_promise(alarms.iter().sum(), 3 * REPETITIONS, &(world, alarms));
    }
}

#[test]
fn no_difference_in_small_counts() {
    expect_silence(NoiseModel::Counts);
}

#[test]
fn no_difference_in_a_mixture_with_constants() {
    expect_silence(NoiseModel::Mixed);
}

#[test]
fn no_difference_among_four_equal_arms() {
    let alarms = [7, 8, 9].map(|runs| alarms(NoiseModel::Normal(0.02), &[1.0; 4], 10, runs));
    expect_promise(alarms.iter().sum(), 3 * REPETITIONS, &alarms);
}

/// Suites run until intervals are narrow enough. That rule looks at the values repeatedly, but not at the position of the intervals: it must not
/// cause findings.
#[test]
fn no_difference_when_runs_go_on_until_intervals_are_narrow() {
    for world in [NoiseModel::Normal(0.03), NoiseModel::Normal(0.05)] {
        let mut stopped = std::collections::BTreeMap::new();
        let alarm = |seed: &u64| {
            let after = |runs| compare(world, &[1.0; 3], 3, runs, RESAMPLES, *seed);
            // The machine and the order depend on the seed alone: more runs begin with the same runs.
            let runs = (6..24)
                .step_by(2)
                .find(|runs| after(*runs).is_precise("m0", 0.03));
            let runs = runs.unwrap_or(24);
            *stopped.entry(runs).or_insert(0) += 1;
            let comparison = after(runs);
            let mut arms = comparison.summaries.iter().flat_map(|s| &s.arms);
            arms.any(|arm| arm.against.is_some_and(|a| a.verdict.is_difference()))
        };
        let alarms = (0..REPETITIONS).filter(alarm).count() as u64;
        expect_promise(alarms, REPETITIONS, &(world, &stopped));
        assert!(stopped.len() > 3, "{world:?}: {stopped:?}");
    }
}

/// Finds a real difference in this noise: the tests above would prove nothing if the verdicts never found any.
#[test]
fn five_percent_under_one_percent_of_noise_are_found() {
    let found = |factor: f64, seed: &u64| {
        let world = NoiseModel::Normal(0.01);
        let comparison = compare(world, &[1.0, factor], 10, 8, RESAMPLES, *seed);
        let expected = if factor > 1.0 {
            Verdict::Worse
        } else {
            Verdict::Better
        };
        comparison.against("m0", 1).unwrap().verdict == expected
    };
    for factor in [1.05, 0.95] {
        let found = (0..REPETITIONS).filter(|s| found(factor, s)).count() as u64;
        assert!(found * 100 >= REPETITIONS * 95, "{factor}: {found}");
    }
}

/// Drift widens the interval of a comparison, but a difference larger than the drift is found.
#[test]
fn a_large_difference_is_found_in_drift() {
    let found = |seed: &u64| {
        let comparison = compare(NoiseModel::Drifting, &[1.0, 1.4], 10, 8, RESAMPLES, *seed);
        comparison.against("m0", 1).unwrap().verdict == Verdict::Worse
    };
    let found = (0..REPETITIONS).filter(found).count() as u64;
    assert!(found * 100 >= REPETITIONS * 95, "{found}");
}

/// Returns the median width of the intervals of an arm that takes 1.1 times as long, and how often (of 100) they contain the true ratio.
fn intervals(world: NoiseModel, arms: usize, runs: usize) -> (f64, f64) {
    let (mut widths, mut covered) = (Vec::new(), 0);
    let comparisons = 5 * REPETITIONS;
    for seed in 0..comparisons {
        let mut factors = vec![1.0; arms];
        factors[1] = 1.1;
        let comparison = compare(world, &factors, 1, runs, RESAMPLES, seed);
        let ratio = comparison.against("m0", 1).unwrap().ratio.unwrap();
        let interval = ratio.interval.unwrap();
        widths.push(interval.high / interval.low - 1.0);
        covered += u32::from(!interval.excludes(1.1));
    }
    widths.sort_by(f64::total_cmp);
    let share = f64::from(covered) / comparisons as f64 * 100.0;
    (widths[widths.len() / 2], share)
}

/// Five arms leave too few other arms. Ten arms show slow rounds, and change nothing where no round is slow.
#[test]
fn other_arms_make_intervals_narrower_where_rounds_are_slow() {
    let widths = [NoiseModel::SlowRounds, NoiseModel::Normal(0.05)].map(|world| {
        let (among_five, _) = intervals(world, 5, 8);
        let (among_ten, covered) = intervals(world, 10, 8);
        assert!(covered >= 94.0, "{world:?}: {covered}");
        among_ten / among_five
    });
    assert!(widths[0] < 0.7 && widths[1] < 1.05, "{widths:?}");
}

#[test]
fn the_interval_covers_the_truth() {
    for (runs, least) in [(5, 94.0), (8, 94.0), (10, 94.0)] {
        let (mut covered, mut all) = (0, 0);
        for seed in 0..REPETITIONS {
            let comparison = compare(
                NoiseModel::HeavyTailed,
                &[1.0, 1.3],
                10,
                runs,
                RESAMPLES,
                seed,
            );
            for summary in &comparison.summaries {
                let ratio = summary.arms[1].against.unwrap().ratio.unwrap();
                covered += u32::from(!ratio.interval.unwrap().excludes(1.3));
                all += 1;
            }
        }
        let share = f64::from(covered) / f64::from(all) * 100.0;
        assert!(share >= least, "{runs} runs: {share} %");
    }
}

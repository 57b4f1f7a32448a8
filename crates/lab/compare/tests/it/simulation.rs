//! Imagined machines on which tests compare arms, through the whole pipeline of a driver.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, LogNormal, Normal, Poisson};
use superhue_measure::{
    Arm, Better, Comparison, Context, Design, Metric, Runner, RunnerError, Sample, Settings, Unit,
    execute,
};

/// Distribution of a metric's values. All are positive and of the order of 1.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NoiseModel {
    /// Values around 1 with this relative spread.
    Normal(f64),
    /// Heavy-tailed: a run in ten takes twice as long or more.
    HeavyTailed,
    /// Three runs in ten are 30 % slower, as if no huge pages had been available.
    Bimodal,
    /// Each run is 2 % slower than the one before it.
    Drifting,
    /// The first run of every round is 10 % slower.
    FirstIsSlow,
    /// Rounds take turns: full speed, 10 % slower, 30 % slower; with noise of 5 % on top.
    SlowRounds,
    /// Slow minutes: the machine's pace wanders by 2 % from run to run and by 10 % in the long run, with noise of 5 % on top.
    Wandering,
    /// Counts of a few events: mostly ties.
    Counts,
    /// All of the above in turn, and constants.
    Mixed,
}

impl NoiseModel {
    fn draw(self, metric: usize, turn: usize, arms: usize, rng: &mut Xoshiro256PlusPlus) -> f64 {
        let mut noise = |spread: f64| -> f64 {
            let value: f64 = Normal::new(1.0, spread).unwrap().sample(rng);
            value.max(0.01)
        };
        match self {
            Self::Normal(spread) => noise(spread),
            Self::HeavyTailed => LogNormal::new(0.0, 0.6).unwrap().sample(rng),
            Self::Bimodal => noise(0.01) * [1.0, 1.3][usize::from(rng.random_bool(0.3))],
            Self::Drifting => noise(0.01) * (1.0 + 0.02 * turn as f64),
            Self::FirstIsSlow => noise(0.02) * if turn.is_multiple_of(arms) { 1.1 } else { 1.0 },
            Self::SlowRounds => noise(0.05) * [1.0, 1.1, 1.3][turn / arms % 3],
            Self::Wandering => noise(0.05),
            Self::Counts => Poisson::new(0.7).unwrap().sample(rng),
            Self::Mixed => match metric % 8 {
                0 => Self::Normal(0.02).draw(metric, turn, arms, rng),
                1 => Self::HeavyTailed.draw(metric, turn, arms, rng),
                2 => Self::Bimodal.draw(metric, turn, arms, rng),
                3 => Self::Drifting.draw(metric, turn, arms, rng),
                4 => Self::FirstIsSlow.draw(metric, turn, arms, rng),
                5 => Self::Counts.draw(metric, turn, arms, rng),
                6 => 0.0,
                _ => 42.0,
            },
        }
    }
}

/// Machine on which each arm's values are those of the world times the arm's factor.
struct Machine<'a> {
    world: NoiseModel,
    factors: &'a [f64],
    metrics: usize,
    turn: usize,
    /// Logarithm of the machine's slowness.
    pace: f64,
    rng: Xoshiro256PlusPlus,
}

impl Runner for Machine<'_> {
    fn run(&mut self, arm: usize, _warmup: bool) -> Result<Sample, RunnerError> {
        let mut sample = Sample::new();
        if matches!(self.world, NoiseModel::Wandering) {
            let step: f64 = Normal::new(0.0, 0.02).unwrap().sample(&mut self.rng);
            self.pace = 0.98 * self.pace + step;
        }
        for metric in 0..self.metrics {
            let value = (self.world).draw(metric, self.turn, self.factors.len(), &mut self.rng);
            sample.set(
                &format!("m{metric}"),
                value * self.pace.exp() * self.factors[arm],
            );
        }
        self.turn += 1;
        Ok(sample)
    }
}

/// Runs one comparison of as many arms as there are factors, on metrics `m0`, `m1`, ... (lower is better).
pub(crate) fn compare(
    world: NoiseModel,
    factors: &[f64],
    metrics: usize,
    runs: usize,
    resamples: usize,
    seed: u64,
) -> Comparison {
    let arms = (0..factors.len())
        .map(|arm| Arm::new(format!("arm{arm}"), ""))
        .collect();
    let described = (0..metrics).map(|metric| Metric {
        name: format!("m{metric}"),
        label: format!("m{metric}"),
        unit: Unit::Seconds,
        better: Better::Lower,
    });
    let settings = Settings {
        runs,
        warmup: 0,
        seed,
        resamples,
        ..Settings::default()
    };
    let design = Design::new(arms, described.collect(), settings).unwrap();
    let mut machine = Machine {
        world,
        factors,
        metrics,
        turn: 0,
        pace: 0.0,
        // A seed other than that of the schedule, or noise and order would be related.
        rng: Xoshiro256PlusPlus::seed_from_u64(!seed),
    };
    let execution = execute(&design.schedule(), &mut machine, &mut |_| (), &|| false);
    Comparison::new(design, execution, Context::default())
}

/// Runs a scan of the parameter `size` with the values 1, 2, ...: `factors` has the factors of all arms at each of them. It has one metric,
/// `m0`, with one percent of noise.
pub(crate) fn scan(factors: &[&[f64]], runs: usize) -> Comparison {
    scan_seeded(factors, runs, 5)
}

/// Runs the same scan with the given seed for noise and order.
pub(crate) fn scan_seeded(factors: &[&[f64]], runs: usize, seed: u64) -> Comparison {
    let mut arms = Vec::new();
    for (value, factors) in factors.iter().enumerate() {
        for arm in 0..factors.len() {
            let mut arm = Arm::new(format!("arm{arm}"), format!("--option {arm}"));
            let value = (value + 1).to_string();
            arm.parameters.insert("size".to_owned(), value);
            arms.push(arm);
        }
    }
    let settings = Settings {
        runs,
        warmup: 1,
        seed,
        resamples: 200,
        ..Settings::default()
    };
    let metric = Metric {
        name: "m0".to_owned(),
        label: "m0".to_owned(),
        unit: Unit::Seconds,
        better: Better::Lower,
    };
    let design = Design::new(arms, vec![metric], settings).unwrap();
    let mut machine = Machine {
        world: NoiseModel::Normal(0.01),
        factors: &factors.concat(),
        metrics: 1,
        turn: 0,
        pace: 0.0,
        rng: Xoshiro256PlusPlus::seed_from_u64(!seed),
    };
    let execution = execute(&design.schedule(), &mut machine, &mut |_| (), &|| false);
    let context = Context {
        command: vec![
            "./sort".to_owned(),
            "--size".to_owned(),
            "{size}".to_owned(),
        ],
        ..Context::default()
    };
    Comparison::new(design, execution, context)
}

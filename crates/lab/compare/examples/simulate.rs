//! A comparison of imagined programs: shows the use of the crate by a driver, and its output.
//!
//! ```text
//! cargo run -p superhue-compare --example simulate -- OUTPUT_DIRECTORY
//! ```
//!
//! prints the table, and writes `simulated.json` and, drawn from that file, `simulated.svg`.

use std::path::PathBuf;

use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use rand_distr::{Distribution, LogNormal};
use superhue_compare::ComparisonView;
use superhue_measure::{
    Arm, Builtin, Comparison, Context, Design, Runner, RunnerError, Sample, Settings, UserMetric,
    execute,
};

/// Program with 200 MiB of live data that is faster with huge pages, and whose memory grows under `always`.
struct SimulatedRunner {
    rng: Xoshiro256PlusPlus,
    ops: UserMetric,
    runs: usize,
}

impl SimulatedRunner {
    fn about(&mut self, value: f64, spread: f64) -> Result<f64, RunnerError> {
        let noise = LogNormal::new(0.0, spread).map_err(|e| RunnerError::Abort(e.to_string()))?;
        Ok(value * noise.sample(&mut self.rng))
    }
}

impl Runner for SimulatedRunner {
    fn run(&mut self, arm: usize, warmup: bool) -> Result<Sample, RunnerError> {
        self.runs += 1;
        let mut sample = Sample::new();
        // Caches are cold at first, and the machine slows down as it gets warm.
        let weather = 1.0
            + if warmup {
                0.2
            } else {
                0.001 * self.runs as f64
            };
        let wall = self.about([1.24, 0.98, 1.01][arm] * weather, 0.012)?;
        let system = self.about([0.11, 0.07, 0.08][arm], 0.05)?;
        sample.set(Builtin::Wall.name(), wall);
        sample.set(Builtin::System.name(), system);
        sample.set(Builtin::Cpu.name(), wall * 0.97 + system * 0.1);
        let rss = self.about([206.0, 231.0, 207.0][arm], 0.002)?;
        sample.set(Builtin::MaxRss.name(), (rss * 256.0).round() * 4096.0);
        let faults = self.about([51_200.0, 900.0, 4_000.0][arm], 0.01)?;
        sample.set(Builtin::MinorFaults.name(), faults.round());
        sample.set(Builtin::MajorFaults.name(), 0.0);
        let coverage = self.about([1.0, 0.98, 0.95][arm], 0.005)?.min(1.0);
        let coverage = if arm == 0 { 0.0 } else { coverage };
        sample.set(Builtin::CoveragePeak.name(), coverage);
        if arm == 0 {
            sample.set_missing(Builtin::SecondsTo95.name(), "never reached 95 %");
        } else {
            let seconds = self.about([0.0, 0.02, 0.35][arm], 0.2)?;
            sample.set(Builtin::SecondsTo95.name(), seconds);
        }
        sample.set(Builtin::SuperhueCpu.name(), [0.0, 0.0, 0.021][arm]);
        let output = format!("warming up\nthroughput: {:.1} ops/s\n", 50_000.0 / wall);
        sample.record(&self.ops.metric().name.clone(), self.ops.extract(&output));
        if self.runs == 17 {
            let reason = "exit status 1, expected 0".to_owned();
            return Err(RunnerError::Failed { reason, sample });
        }
        Ok(sample)
    }
}

#[allow(clippy::print_stdout, reason = "the table is what the example is for")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| ".".to_owned()));
    let ops = UserMetric::parse("throughput=throughput: ([0-9.]+) ops/s")?;
    let mut metrics: Vec<_> = (Builtin::ALL.into_iter())
        .filter(|builtin| {
            use Builtin::{CoverageMean, ServerCpuPerLoad, User};
            !matches!(builtin, CoverageMean | ServerCpuPerLoad | User)
        })
        .map(Builtin::metric)
        .collect();
    metrics.insert(1, ops.metric().clone());
    let arms = vec![
        Arm::new("never", "--pages never"),
        Arm::new("always", "--pages always"),
        Arm::new("hot", "--pages hot --budget 5%"),
    ];
    let settings = Settings {
        seed: 42,
        ..Settings::default()
    };

    let design = Design::new(arms, metrics, settings)?;
    let mut runner = SimulatedRunner {
        rng: Xoshiro256PlusPlus::seed_from_u64(1),
        ops,
        runs: 0,
    };
    let execution = execute(&design.schedule(), &mut runner, &mut |_| (), &|| false);
    let context = Context {
        command: ["./tree-walk", "--nodes", "3000000"]
            .map(str::to_owned)
            .to_vec(),
        machine: "imagined".into(),
        ..Context::default()
    };
    let comparison = Comparison::new(design, execution, context);
    println!("{}", ComparisonView(&comparison).table(100));

    // There are three steps: measure, write, draw. The third needs only the file.
    let json = directory.join("simulated.json");
    std::fs::write(&json, comparison.to_json()?)?;
    let read = Comparison::from_json(&std::fs::read_to_string(&json)?)?;
    std::fs::write(
        directory.join("simulated.svg"),
        ComparisonView(&read).plot(),
    )?;
    Ok(())
}

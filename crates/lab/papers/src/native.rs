//! P4's figures 10 to 20: measurements on a present machine, from kept results of `superhue compare`.
//!
//! These are results of programs that ran, not of models: throughput and memory of the paper's sweeps under each
//! policy.

use std::fmt::Write as _;

use serde::Deserialize;

use crate::ReplayError;
use crate::number::number;

/// The paper's sweeps: name; memory that `always` and the paper's system add, in percent; measurements of 16 passes until the
/// paper's system is as fast as `always`.
const SWEEPS: [(&str, f64, f64, u32); 3] = [
    ("sequential", 0.017, 0.002, 300),
    ("random", 0.017, 0.002, 300),
    ("skewed", 147.0, 0.031, 80),
];

/// Least share of the throughput of `always` that meets the bar,
const THROUGHPUT: f64 = 0.994;
/// with at most this share of the memory that `always` adds.
const GROWTH: f64 = 0.062;

/// Results of a sweep.
#[derive(Debug, Clone, PartialEq)]
struct Sweep {
    name: &'static str,
    runs: u64,
    /// GiB per second of never, always and hot.
    throughput: [f64; 3],
    /// 95 % interval of the throughput of hot, as a share of that of always.
    share: Option<Interval>,
    memory: [f64; 3],
    /// Seconds from the start until always and hot converged; `None` if a run did not converge.
    converged: [Option<f64>; 2],
}

/// All kept sweeps.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Native {
    sweeps: Vec<Sweep>,
}

#[derive(Deserialize)]
struct CompareDocument {
    schema: String,
    arms: Vec<ArmName>,
    settings: Settings,
    summaries: Vec<Summary>,
}

#[derive(Deserialize)]
struct ArmName {
    name: String,
}

#[derive(Deserialize)]
struct Settings {
    runs: u64,
    /// Index of the arm with which the others are compared.
    reference: usize,
}

#[derive(Deserialize)]
struct Summary {
    metric: String,
    arms: Vec<ArmMetric>,
}

#[derive(Deserialize)]
struct ArmMetric {
    arm: usize,
    values: Option<Values>,
    against: Option<ReferenceRatio>,
}

#[derive(Deserialize)]
struct ReferenceRatio {
    /// `None` for a metric that may be 0.
    ratio: Option<Ratio>,
}

#[derive(Deserialize)]
struct Ratio {
    interval: Option<Interval>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
struct Interval {
    low: f64,
    high: f64,
}

#[derive(Deserialize)]
struct Values {
    median: Median,
}

#[derive(Deserialize)]
struct Median {
    value: f64,
}

impl CompareDocument {
    fn of(&self, metric: &str, arm: &str) -> Option<&ArmMetric> {
        let index = self.arms.iter().position(|other| other.name == arm)?;
        let summary = self.summaries.iter().find(|other| other.metric == metric)?;
        summary.arms.iter().find(|other| other.arm == index)
    }

    /// The median of a metric for an arm, if it was measured.
    fn median(&self, metric: &str, arm: &str) -> Option<f64> {
        let value = self.of(metric, arm)?.values.as_ref()?.median.value;
        value.is_finite().then_some(value)
    }

    /// The interval of a metric of an arm, as a share of that of `reference`; `None` unless the arm was compared with
    /// `reference`.
    fn share(&self, metric: &str, arm: &str, reference: &str) -> Option<Interval> {
        if self.arms.get(self.settings.reference)?.name != reference {
            return None;
        }
        self.of(metric, arm)?
            .against
            .as_ref()?
            .ratio
            .as_ref()?
            .interval
    }
}

impl Native {
    /// The names of the files in `docs/results`.
    #[must_use]
    pub fn files() -> [String; 3] {
        SWEEPS.map(|(name, ..)| format!("hps-{name}.json"))
    }

    /// Adds a file of [`Self::files`].
    ///
    /// # Errors
    /// If it is no result of `superhue compare`, or lacks an arm.
    pub fn add(&mut self, file: &str, text: &str) -> Result<(), ReplayError> {
        let kept: CompareDocument = serde_json::from_str(text)
            .map_err(|error| ReplayError(format!("not a result of `superhue compare`: {error}")))?;
        if !kept.schema.starts_with("superhue-compare/") {
            let what = "not a result of `superhue compare`: it has another schema".to_owned();
            return Err(ReplayError(what));
        }
        let name = SWEEPS.iter().map(|sweep| sweep.0);
        let name = { name }.find(|name| file == format!("hps-{name}.json"));
        let name = name.ok_or_else(|| ReplayError(format!("no sweep is kept in {file}")))?;
        let need = |metric: &str, arm: &str| {
            let value = kept.median(metric, arm).filter(|value| *value > 0.0);
            value.ok_or_else(|| ReplayError(format!("has no {metric} of the arm {arm}")))
        };
        let all = |metric: &str| -> Result<[f64; 3], ReplayError> {
            Ok([
                need(metric, "never")?,
                need(metric, "always")?,
                need(metric, "hot")?,
            ])
        };
        self.sweeps.push(Sweep {
            name,
            runs: kept.settings.runs,
            throughput: all("gib_per_second")?,
            share: kept.share("gib_per_second", "hot", "always"),
            memory: all("rss_bytes")?,
            converged: ["always", "hot"].map(|arm| kept.median("seconds_to_95", arm)),
        });
        Ok(())
    }

    /// Writes the section of the page.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = String::from(
            "Sequential, random and skewed sweeps over 1 GiB, measured natively with `superhue compare` (`scripts/measure`): nothing here is\n\
             modelled. `hot` stands for the paper's system here; it decides from outside the program. The numbers of the paper's\n\
             text stand beside ours. Medians of runs in interleaved rounds; intervals, and every sample, are in the files.\n\n\
             | sweep | runs | GiB/s: never | always | hot | hot / always | memory of always | the paper | of hot | the paper | 95 % on superpages: always | hot | the paper |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        let percent = |of: f64, base: f64| format!("{:+.3} %", (of / base - 1.0) * 100.0);
        let seconds =
            |at: Option<f64>| at.map_or("never all".to_owned(), |at| format!("{at:.1} s"));
        for sweep in &self.sweeps {
            let Some((_, always, paper, measurements)) =
                SWEEPS.iter().find(|other| other.0 == sweep.name)
            else {
                continue;
            };
            let _ = writeln!(
                text,
                "| [{0}](../results/hps-{0}.svg) | {1} | {2} | {3} | {4} | {5:.3} | {6} | {always:+} % | {7} | {paper:+} % | {8} | {9} | after {measurements} x 16 passes as fast as `always` |",
                sweep.name,
                sweep.runs,
                number(sweep.throughput[0]),
                number(sweep.throughput[1]),
                number(sweep.throughput[2]),
                sweep.throughput[2] / sweep.throughput[1],
                percent(sweep.memory[1], sweep.memory[0]),
                percent(sweep.memory[2], sweep.memory[0]),
                seconds(sweep.converged[0]),
                seconds(sweep.converged[1]),
            );
        }
        text.push('\n');
        for sweep in &self.sweeps {
            let throughput = sweep.throughput[2] / sweep.throughput[1];
            let [never, always, hot] = sweep.memory;
            // If `always` adds less than 0.1 % of memory, hot may add 0.1 %.
            let bound = never + ((always - never) * GROWTH).max(never * 0.001);
            let verdict = if throughput < THROUGHPUT || hot > bound {
                "MISSED"
            } else if sweep.share.is_none_or(|share| share.low < THROUGHPUT) {
                "Not decided"
            } else {
                "Met"
            };
            let interval = sweep.share.map_or_else(String::new, |share| {
                format!(" [{:.1}, {:.1}]", share.low * 100.0, share.high * 100.0)
            });
            let _ = writeln!(
                text,
                "- {verdict}: {}: {:.1} %{interval} of the throughput of `always` (bar: {:.1} %), {} of memory over `never` (bar: {:.1} % of what `always` adds, or 0.1 %).",
                sweep.name,
                throughput * 100.0,
                THROUGHPUT * 100.0,
                percent(hot, never),
                GROWTH * 100.0
            );
        }
        text.push_str(
            "- Losing cases: until a sweep has been watched it runs on base pages, and all files show what that costs in the time to 95 %.\n\
             memcached (section 6) is in [numbers.md](numbers.md#p4).\n",
        );
        text
    }
}

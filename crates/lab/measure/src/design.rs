//! Arms, metrics and settings of a comparison.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::human::listed;
use crate::metric::Metric;
use crate::schedule::Schedule;

/// One of the compared alternatives.
///
/// In a scan of parameters (see [`scan`](crate::scan)) there is one arm for each alternative and each combination of values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arm {
    /// Short name: `hot`. Unique among the arms with the same values of parameters.
    pub name: String,
    /// Options that define this arm, as the user would write them: `--pages hot --budget 5%`.
    pub options: String,
    /// Values of the parameters under which the arm runs, by name; empty without a scan.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

impl Arm {
    /// Makes an arm without parameters.
    #[must_use]
    pub fn new(name: impl Into<String>, options: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            options: options.into(),
            parameters: BTreeMap::new(),
        }
    }

    /// Formats its parameter values for people: `size=10, kind=hash`; empty without a scan.
    #[must_use]
    pub fn values(&self) -> String {
        let values: Vec<String> = (self.parameters.iter())
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        values.join(", ")
    }

    /// Name and values: `hot, size=10`. Unique in the comparison.
    #[must_use]
    pub fn title(&self) -> String {
        match self.values() {
            values if values.is_empty() => self.name.clone(),
            values => format!("{}, {values}", self.name),
        }
    }
}

/// Returns the number of arms that are compared with each other: all arms, or those with the same parameter values. These arms stand side by
/// side in the list, one value after the other.
#[must_use]
pub fn arms_per_value(arms: &[Arm]) -> usize {
    let first = arms.first().map(|arm| &arm.parameters);
    arms.iter()
        .take_while(|arm| Some(&arm.parameters) == first)
        .count()
        .max(1)
}

/// Returns, for each arm, the index of its reference; for a reference, its own index.
#[must_use]
pub fn references(arms: &[Arm], reference: usize) -> Vec<usize> {
    let each = arms_per_value(arms);
    (0..arms.len())
        .map(|arm| arm / each * each + reference)
        .collect()
}

/// Returns the arms of each combination of values; without a scan, one range over all arms.
#[must_use]
pub fn groups(arms: &[Arm]) -> Vec<Range<usize>> {
    let each = arms_per_value(arms);
    (0..arms.len())
        .step_by(each)
        .map(|first| first..(first + each).min(arms.len()))
        .collect()
}

/// Settings of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Measured runs per arm.
    pub runs: usize,
    /// Warm-up runs per arm, before the measured ones; they are discarded.
    pub warmup: usize,
    /// Seed for the order of the runs and the resamples of the bootstrap.
    pub seed: u64,
    /// Index of the arm with which the other arms are compared; in a scan, its place among the arms of each combination of values.
    pub reference: usize,
    /// Smallest relative difference that a verdict calls better or worse: 0.005 is half a percent.
    pub smallest: f64,
    /// Number of resamples for each interval.
    pub resamples: usize,
}

impl Default for Settings {
    /// Ten runs after one warm-up, differences from 0.5 %, 10,000 resamples, first arm as
    /// reference, seed 0.
    fn default() -> Self {
        Self {
            runs: 10,
            warmup: 1,
            seed: 0,
            reference: 0,
            smallest: 0.005,
            resamples: 10_000,
        }
    }
}

/// Arms, metrics and settings that fit together.
#[derive(Debug, Clone, PartialEq)]
pub struct Design {
    arms: Vec<Arm>,
    metrics: Vec<Metric>,
    settings: Settings,
}

/// Reason why arms, metrics and settings do not make a comparison.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DesignError {
    /// Fewer than two arms.
    #[error("a comparison needs at least two arms, not {0}: name one more")]
    TooFewArms(usize),
    /// Two arms have the same name and the same parameter values.
    #[error("two arms are called `{0}`: rename one (the same options under two names are fine)")]
    DuplicateArm(String),
    /// The values of the parameters do not all have the same arms.
    #[error("the arms of {0} are not those of the first value: every value needs the same arms")]
    UnevenScan(String),
    /// An arm has no name.
    #[error("an arm has no name: give it one")]
    UnnamedArm,
    /// There is no metric.
    #[error("there is nothing to compare: name at least one metric")]
    NoMetrics,
    /// Two metrics have the same name.
    #[error("two metrics are called `{0}`: rename one of them")]
    DuplicateMetric(String),
    /// There are no measured runs.
    #[error("zero runs measure nothing: ask for at least one, better ten")]
    NoRuns,
    /// There are fewer than 100 resamples.
    #[error("an interval from {0} resamples means nothing: ask for at least 100, better 10,000")]
    TooFewResamples(usize),
    /// The index of the reference is not that of an arm.
    #[error("arm number {reference} cannot be the reference: there are {arms} arms")]
    Reference {
        /// The given index.
        reference: usize,
        /// Number of arms.
        arms: usize,
    },
    /// The smallest difference is negative or not a number.
    #[error("{0} is not a smallest difference: give a share of at least 0, e.g. 0.005")]
    Smallest(f64),
}

impl Design {
    /// Makes a design, after checking that arms, metrics and settings fit together.
    ///
    /// # Errors
    /// Fails for fewer than two arms, unnamed arms, two arms of one name, different arms at different parameter values, no metrics, two metrics of
    /// one name, no runs, fewer than 100 resamples, a reference that is not an arm, or a smallest difference below 0.
    pub fn new(
        arms: Vec<Arm>,
        metrics: Vec<Metric>,
        settings: Settings,
    ) -> Result<Self, DesignError> {
        let each = check_arms(&arms)?;
        if metrics.is_empty() {
            return Err(DesignError::NoMetrics);
        }
        for (index, metric) in metrics.iter().enumerate() {
            if metrics[..index]
                .iter()
                .any(|other| other.name == metric.name)
            {
                return Err(DesignError::DuplicateMetric(metric.name.clone()));
            }
        }
        if settings.runs == 0 {
            return Err(DesignError::NoRuns);
        }
        if settings.resamples < 100 {
            return Err(DesignError::TooFewResamples(settings.resamples));
        }
        if settings.reference >= each {
            return Err(DesignError::Reference {
                reference: settings.reference,
                arms: each,
            });
        }
        if settings.smallest.is_nan() || settings.smallest < 0.0 {
            return Err(DesignError::Smallest(settings.smallest));
        }
        Ok(Self {
            arms,
            metrics,
            settings,
        })
    }

    /// Returns the arms: at least two, with distinct names at each parameter value.
    #[must_use]
    pub fn arms(&self) -> &[Arm] {
        &self.arms
    }

    /// Returns the metrics: at least one, with distinct names.
    #[must_use]
    pub fn metrics(&self) -> &[Metric] {
        &self.metrics
    }

    /// Returns the settings.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the order of the runs.
    #[must_use]
    pub fn schedule(&self) -> Schedule {
        let settings = &self.settings;
        let each = arms_per_value(&self.arms);
        Schedule::scan(
            each,
            self.arms.len() / each,
            settings.runs,
            settings.warmup,
            settings.seed,
        )
    }

    /// Returns the number of questions that the comparison asks: one for each metric and each arm but the reference, at each parameter value.
    #[must_use]
    pub fn questions(&self) -> usize {
        let groups = groups(&self.arms).len();
        self.metrics.len() * (self.arms.len() - groups)
    }

    pub(crate) fn into_parts(self) -> (Vec<Arm>, Vec<Metric>, Settings) {
        (self.arms, self.metrics, self.settings)
    }
}

/// Checks names and values. Returns the number of arms of each combination of values.
fn check_arms(arms: &[Arm]) -> Result<usize, DesignError> {
    let each = arms_per_value(arms);
    if each < 2 {
        return Err(DesignError::TooFewArms(each.min(arms.len())));
    }
    for (index, arm) in arms.iter().enumerate() {
        if arm.name.trim().is_empty() {
            return Err(DesignError::UnnamedArm);
        }
        let is_same = |other: &Arm| other.name == arm.name && other.parameters == arm.parameters;
        if arms[..index].iter().any(is_same) {
            return Err(DesignError::DuplicateArm(arm.title()));
        }
    }
    for group in groups(arms) {
        let group = &arms[group];
        let names = |arms: &[Arm]| -> Vec<String> { arms.iter().map(|a| a.name.clone()).collect() };
        let known = |arm: &Arm| -> Vec<String> { arm.parameters.keys().cloned().collect() };
        let is_even = names(group) == names(&arms[..each])
            && (group.iter())
                .all(|arm| arm.parameters == group[0].parameters && known(arm) == known(&arms[0]));
        if !is_even {
            return Err(DesignError::UnevenScan(listed(&names(group), "and")));
        }
    }
    Ok(each)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::Builtin;

    #[test]
    fn a_scan_has_the_same_arms_for_every_value() {
        let arm = |name: &str, size: &str| {
            let mut arm = Arm::new(name, "");
            arm.parameters.insert("size".into(), size.into());
            arm
        };
        let design = |arms| Design::new(arms, vec![Builtin::Wall.metric()], Settings::default());
        let even = vec![arm("a", "1"), arm("b", "1"), arm("a", "2"), arm("b", "2")];
        assert_eq!(references(&even, 0), [0, 0, 2, 2]);
        assert_eq!(references(&even, 1), [1, 1, 3, 3]);
        assert_eq!(groups(&even), [0..2, 2..4]);
        assert_eq!(even[3].title(), "b, size=2");
        let even = design(even).unwrap();
        assert_eq!(even.questions(), 2);
        assert_eq!(even.schedule().turns().len(), 4 * 11);
        let uneven = vec![arm("a", "1"), arm("b", "1"), arm("b", "2"), arm("a", "2")];
        assert!(matches!(design(uneven), Err(DesignError::UnevenScan(_))));
        let short = vec![arm("a", "1"), arm("b", "1"), arm("a", "2")];
        assert!(matches!(design(short), Err(DesignError::UnevenScan(_))));
        let single = vec![arm("a", "1"), arm("a", "2")];
        assert_eq!(design(single), Err(DesignError::TooFewArms(1)));
        let twice = vec![arm("a", "1"), arm("b", "1"), arm("a", "1"), arm("b", "1")];
        assert!(matches!(design(twice), Err(DesignError::DuplicateArm(_))));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let arms = |names: &[&str]| names.iter().map(|name| Arm::new(*name, "")).collect();
        let with = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            Design::new(arms(&["a", "b"]), vec![Builtin::Wall.metric()], settings)
        };
        assert!(with(|_| ()).is_ok());
        assert_eq!(with(|s| s.runs = 0), Err(DesignError::NoRuns));
        assert_eq!(
            with(|s| s.resamples = 99),
            Err(DesignError::TooFewResamples(99))
        );
        assert!(matches!(
            with(|s| s.reference = 2),
            Err(DesignError::Reference { .. })
        ));
        assert_eq!(
            with(|s| s.smallest = -0.1),
            Err(DesignError::Smallest(-0.1))
        );
        assert!(with(|s| s.smallest = f64::NAN).is_err());
        let measuring = |metrics: &[Builtin]| {
            let metrics = metrics.iter().map(|metric| metric.metric()).collect();
            Design::new(arms(&["a", "b"]), metrics, Settings::default())
        };
        assert_eq!(measuring(&[]), Err(DesignError::NoMetrics));
        assert_eq!(
            measuring(&[Builtin::Cpu, Builtin::Cpu]),
            Err(DesignError::DuplicateMetric("cpu".into()))
        );
        let named = |names| {
            Design::new(
                arms(names),
                vec![Builtin::Wall.metric()],
                Settings::default(),
            )
        };
        assert_eq!(named(&["a"]), Err(DesignError::TooFewArms(1)));
        assert_eq!(
            named(&["a", "b", "a"]),
            Err(DesignError::DuplicateArm("a".into()))
        );
        assert_eq!(named(&["a", " "]), Err(DesignError::UnnamedArm));
    }
}

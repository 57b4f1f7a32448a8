//! What is to be compared, and how carefully.

use serde::{Deserialize, Serialize};

use crate::metric::Metric;
use crate::schedule::Schedule;

/// One of the alternatives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arm {
    /// Short name, unique in the comparison: `hot`.
    pub name: String,
    /// What makes this arm what it is, as the user would write it: `--pages hot --budget 5%`.
    pub options: String,
}

impl Arm {
    /// An arm.
    #[must_use]
    pub fn new(name: impl Into<String>, options: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            options: options.into(),
        }
    }
}

/// How the comparison is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Measured runs per arm.
    pub runs: usize,
    /// Discarded runs per arm before them.
    pub warmup: usize,
    /// Decides the order of the runs and the resamples of the bootstrap.
    pub seed: u64,
    /// Index of the arm that the others are compared with.
    pub reference: usize,
    /// Relative differences below this are never called better or worse: 0.005 is half a percent.
    pub smallest: f64,
    /// Resamples behind each interval.
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

/// Why arms, metrics and settings do not make a comparison.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DesignError {
    /// Fewer than two arms.
    #[error("a comparison needs at least two arms, not {0}: name one more")]
    TooFewArms(usize),
    /// Two arms have one name.
    #[error("two arms are called `{0}`: rename one (the same options under two names are fine)")]
    DuplicateArm(String),
    /// An arm has no name.
    #[error("an arm has no name: give it one")]
    UnnamedArm,
    /// Nothing is to be measured.
    #[error("there is nothing to compare: name at least one metric")]
    NoMetrics,
    /// Two metrics have one name.
    #[error("two metrics are called `{0}`: rename one of them")]
    DuplicateMetric(String),
    /// No measured runs.
    #[error("zero runs measure nothing: ask for at least one, better ten")]
    NoRuns,
    /// No resamples.
    #[error("an interval from {0} resamples means nothing: ask for at least 100, better 10,000")]
    TooFewResamples(usize),
    /// The reference is no arm.
    #[error("arm number {reference} cannot be the reference: there are {arms} arms")]
    Reference {
        /// The index given.
        reference: usize,
        /// How many arms there are.
        arms: usize,
    },
    /// The smallest difference is negative or not a number.
    #[error("{0} is not a smallest difference: give a share of at least 0, e.g. 0.005")]
    Smallest(f64),
}

impl Design {
    /// Checks that arms, metrics and settings fit together.
    ///
    /// # Errors
    /// With fewer than two arms, unnamed arms or two of one name, no metrics or two of one name,
    /// no runs, fewer than 100 resamples, a reference that is no arm, or a smallest difference
    /// below 0.
    pub fn new(
        arms: Vec<Arm>,
        metrics: Vec<Metric>,
        settings: Settings,
    ) -> Result<Self, DesignError> {
        if arms.len() < 2 {
            return Err(DesignError::TooFewArms(arms.len()));
        }
        for (index, arm) in arms.iter().enumerate() {
            if arm.name.trim().is_empty() {
                return Err(DesignError::UnnamedArm);
            }
            if arms[..index].iter().any(|other| other.name == arm.name) {
                return Err(DesignError::DuplicateArm(arm.name.clone()));
            }
        }
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
        if settings.reference >= arms.len() {
            return Err(DesignError::Reference {
                reference: settings.reference,
                arms: arms.len(),
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

    /// The arms, at least two, with distinct names.
    #[must_use]
    pub fn arms(&self) -> &[Arm] {
        &self.arms
    }

    /// What is measured: at least one metric, with distinct names.
    #[must_use]
    pub fn metrics(&self) -> &[Metric] {
        &self.metrics
    }

    /// The settings.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The order of the runs.
    #[must_use]
    pub fn schedule(&self) -> Schedule {
        let settings = &self.settings;
        Schedule::new(
            self.arms.len(),
            settings.runs,
            settings.warmup,
            settings.seed,
        )
    }

    pub(crate) fn into_parts(self) -> (Vec<Arm>, Vec<Metric>, Settings) {
        (self.arms, self.metrics, self.settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::Builtin;

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

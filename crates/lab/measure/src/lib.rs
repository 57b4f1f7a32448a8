//! The engine of comparisons and trials: runs alternatives ("arms") interleaved and in random order, and says which is better and how sure that is.
//!
//! ```text
//!   Design ──> Schedule ──> execute ──> Comparison ──> sentences, to_json
//!   arms,      order of     your        samples,            ^
//!   metrics,   runs         Runner      verdicts            └── from_json
//!   settings
//! ```
//!
//! Beside comparisons there are conditions for a gate in CI ([`gate`]), scans of parameters ([`scan`]), many programs under the same arms ([`suite`]),
//! and trials of a policy that is switched on and off in a running program ([`sequence`], [`trial`]).
//!
//! The crate draws nothing: tables, pictures and exports are those of the crate `superhue-compare`.
//!
//! The crate starts no process, reads no clock and opens no file. The driver implements [`Runner`]; everything else is arithmetic on what
//! the runner returns, the same for the same input, and therefore tested without a kernel: if a program is compared with itself, the result must
//! say "no difference shown" on every metric in at least 95 of 100 comparisons, whatever the noise looks like (`tests/it/false_alarms.rs`).
//!
//! [`verdict`] explains the verdicts, and [`schedule`] the order of the runs.
//!
//! ```
//! use superhue_measure::{
//!     Arm, Builtin, Comparison, Context, Design, Runner, RunnerError, Sample, Settings, execute,
//! };
//!
//! /// A "program" that takes 100 ms, or 80 ms under the second arm.
//! struct Imagined(u32);
//!
//! impl Runner for Imagined {
//!     fn run(&mut self, arm: usize, _warmup: bool) -> Result<Sample, RunnerError> {
//!         self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
//!         let noise = f64::from(self.0 >> 16) * 1e-8;
//!         let mut sample = Sample::new();
//!         sample.set(Builtin::Wall.name(), [0.100, 0.080][arm] + noise);
//!         Ok(sample)
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let arms = vec![Arm::new("never", "--pages never"), Arm::new("hot", "--pages hot")];
//! let design = Design::new(arms, vec![Builtin::Wall.metric()], Settings::default())?;
//! let execution = execute(&design.schedule(), &mut Imagined(1), &mut |_| (), &|| false);
//! let comparison = Comparison::new(design, execution, Context::default());
//! assert!(comparison.sentences()[0].starts_with("`hot` is 25 % faster than `never`"));
//! assert_eq!(Comparison::from_json(&comparison.to_json()?)?, comparison);
//! # Ok(())
//! # }
//! ```

pub mod condition;
pub mod design;
pub mod gate;
pub mod human;
pub mod metric;
pub mod power;
pub mod result;
pub mod run;
pub mod scan;
pub mod schedule;
pub mod sequence;
pub mod stats;
pub mod suite;
pub mod summary;
pub mod trial;
pub mod user_metric;
pub mod verdict;
pub mod words;

pub use condition::{Condition, ConditionError, Demand, Finding, GateResult, Judgement, Outcome};
pub use design::{Arm, Design, DesignError, Settings};
pub use metric::{Better, Builtin, Metric, Unit};
pub use result::{Comparison, Context, ReadError, SCHEMA, Tally};
pub use run::{Execution, Progress, Record, Runner, RunnerError, Sample, execute, go_on};
pub use scan::{Assignment, Parameter, ScanError, assignments};
pub use schedule::{Schedule, ScheduledRun};
pub use sequence::{Coin, CorrectedEstimates, Evidence, MeanEffect, Range, Sequence, Shown};
pub use stats::bootstrap::Interval;
pub use suite::{Decision, Figure, Plan, Row, Suite, SuiteArm, SuiteProgram};
pub use summary::{ArmSummary, Description, Estimate, MetricSummary, ReferenceComparison, Verdict};
pub use trial::{TRIAL_SCHEMA, Trial};
pub use user_metric::{MetricMiss, UserMetric, UserMetricError};

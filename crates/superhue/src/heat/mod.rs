//! Tracking of accesses over time: trackers driven for many processes at once, within a bound on the cost to these processes and to Superhue.

mod cost;
mod sampler;
mod sampling;
mod target;

pub use cost::TrackingCost;
pub use sampler::{Sample, SampleOutcome, Sampler, spared_entries};
pub use sampling::Sampling;

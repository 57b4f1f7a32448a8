//! Watching accesses over time: trackers driven for many processes at once, within a bound on what
//! that costs them and us.

mod cost;
mod sampler;

pub use cost::TrackingCost;
pub use sampler::{Sampled, Sampler, Sampling};

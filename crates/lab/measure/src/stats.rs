//! The statistics: simple, from textbooks, and each checked against independently computed values.
//!
//! - [`quantile`]: medians, quartiles, absolute deviations.
//! - [`bootstrap`]: uncertainty of a median or of a ratio of medians.
//! - [`rank_sum`]: probability that chance alone separates two arms like this.
//! - [`holm`]: correction of that probability for many questions at once.
//! - [`rounds`]: slowness of whole rounds, estimated from the arms that are not part of the question.
//!
//! All methods use ranks and medians. Run times are skewed, have outliers and come in modes (an interrupt storm, a huge page that was or was not
//! available), so means and normal theory are worst exactly where a comparison matters.

pub mod bootstrap;
pub mod holm;
pub mod quantile;
pub mod rank_sum;
pub mod rounds;

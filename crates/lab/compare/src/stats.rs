//! The statistics, small and by the book, each checked against values worked out elsewhere.
//!
//! - [`quantile`]: medians, quartiles, absolute deviations.
//! - [`bootstrap`]: how far a median or a ratio of medians could be off.
//! - [`rank_sum`]: how often chance alone would separate two arms like this.
//! - [`holm`]: what remains of that when many questions are asked at once.
//! - [`rounds`]: what slowed whole rounds, as the arms tell that are not asked about.
//!
//! Everything works on ranks and medians. Run times are skewed, have outliers and come in modes
//! (an interrupt storm, a THP that was or was not available), so means and normal theory are
//! worst exactly where a comparison matters.

pub mod bootstrap;
pub mod holm;
pub mod quantile;
pub mod rank_sum;
pub mod rounds;

//! Heat: which pages are accessed, by sampling their accessed bits.
//!
//! ```text
//!   tracker    arm ........ interval ........ read        one sample: which pages were touched
//!      |                                       |
//!      |  ptwalk  idle  damon                  v
//!      |                                     HeatMap      counts per page, with decay
//!      |                                    /       \
//!      +<-- interval -- Pace <-- change, cost        ProcessHeat, HotSet   ---> decide, pictures
//! ```
//!
//! The one place in this crate where observing changes something: arming clears the accessed bits
//! of the target's pages and flushes its TLB entries. Its memory stays as it is; what it pays is
//! estimated and bounded by [`Pace`]. The kernel ages pages by the same bits, so reclaim on a
//! machine short of memory sees watched pages as a little colder than they are.

mod tracker;

pub use tracker::{Armed, RangeRate, Reading, RegionBits, TrackError, Tracker, TrackerKind};

//! Heat: finds accessed pages by sampling their accessed bits.
//!
//! ```text
//!   tracker    arm ........ interval ........ read        one sample: which pages were touched
//!      |                                       |
//!      |  ptwalk  idle  damon                  v
//!      |                                     HeatMap      counts per page, with decay
//!      |                                    /       \
//!      +<-- interval -- Pace <-- change, cost        ProcessHeat, HotSet   ---> policy, pictures
//! ```
//!
//! Accesses pass through three types on the way to a decision: a [`Reading`] is one sample of a tracker; the [`HeatMap`] adds samples up, in two
//! bytes a page; `model::ProcessHeat` is the part that the policy receives, by region.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use superhue_heat::{HeatMap, Scope, choose};
//! use superhue_procfs::{Roots, process};
//!
//! let (roots, pid) = (Roots::default(), 1234);
//! let id = process::identify(&roots, pid)?;
//! let mut chosen = choose(&roots, None, Scope::Anonymous)?;
//! let mut heat = HeatMap::new();
//! for _ in 0..10 {
//!     let ranges: Vec<_> = process::maps(&roots, pid)?.iter().map(|vma| vma.range).collect();
//!     chosen.tracker.arm(id)?;
//!     std::thread::sleep(Duration::from_millis(100));
//!     heat.absorb(&chosen.tracker.read(id, &ranges)?, Duration::from_millis(100), false);
//! }
//! println!("{:?}", heat.hot_set());
//! # Ok(())
//! # }
//! ```
//!
//! Among Superhue's readers only this crate changes the target: arming clears the accessed bits of its pages, and flushes its TLB entries. The
//! contents of its memory stay the same; [`Pace`] estimates and bounds the cost. The kernel ages pages by the same bits, so reclaim on a machine
//! short of memory sees watched pages as a little colder than they are.

mod allowance;
mod choose;
mod clear_refs;
mod curve;
mod damon;
mod few;
mod foreign;
mod idle;
mod map;
mod memory;
mod pace;
mod ptwalk;
mod refill;
mod target_lock;
mod tracker;

pub use allowance::Allowance;
pub use choose::{ChooseError, TrackerChoice, choose};
pub use clear_refs::clearing_cost;
pub use curve::{HotPoint, HotSet};
pub use damon::{DamonCleanup, DamonTracker, end_left_damon};
pub use few::{PAGES_PER_RUN, Run, RunTouches};
pub use foreign::{AccessedBitUser, Effect, foreign, onlookers};
pub use idle::IdleTracker;
pub use map::{Change, HALF_LIFE, HeatMap, PageSize, RangeHeat};
pub use pace::{NextSample, Pace, PaceLimits, SampleCost};
pub use ptwalk::{FewPages, PtwalkTracker};
pub use refill::RefillCost;
pub use target_lock::{TargetLock, lock_holder, release_target_locks};
pub use tracker::{
    ArmingResult, RangeRate, Reading, RegionBits, Scope, TrackError, Tracker, TrackerKind,
};

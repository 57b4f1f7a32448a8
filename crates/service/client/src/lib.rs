//! For applications: learn which of your pages are accessed, and take part in their placement.
//!
//! The service `superhue track` watches the process. This crate sends the request, fetches the
//! lists, decides about each 2 MiB region and acts, inside the calling process only. The C
//! interface (`include/hps.h`) is a thin layer over it.
//!
//! ```no_run
//! use superhue_client::{Decision, TrackingOptions, Tracking, act_on, HugeMemory};
//!
//! let tracking = Tracking::enable(&TrackingOptions::default())?;
//! while let Some(notice) = tracking.wait(None)? {
//!     let pages = tracking.fetch_all()?;
//!     let outcome = act_on(
//!         &pages,
//!         |region| region.suggestion,
//!         |sparse| { /* move the hot objects in these pages onto a `HugeMemory` */ },
//!     )?;
//!     println!("{} pages active, {} regions collapsed", notice.active, outcome.collapsed);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Few dependencies, no threads, no BPF. The service uses [`protocol`] and [`list`], too.

mod decide;
mod error;
mod huge;
pub mod list;
pub mod protocol;
mod tracking;

pub use decide::{Decision, Outcome, RegionPages, act_on};
pub use error::ClientError;
pub use huge::HugeMemory;
pub use list::{Page, PageFlags};
pub use tracking::{
    DEFAULT_SOCKET, FetchCounts, Notice, SOCKET_VARIABLE, Statistics, Tracking, TrackingOptions,
};

//! The loop that joins observe, decide and act, and the public Rust API of Superhue.
//!
//! ```text
//!            +------------------------- watch -------------------------+
//!            |                                                         |
//!   family --+--> observe ---Snapshot---> decide ---Plan---> act       |
//!   (who)    |       ^                      ^                 |        |
//!            |       |                      +----Outcome------+        |
//!            |       +-- sleeps as long as nothing changes             |
//!            +---------------------------------------------------------+
//!                 |                    |
//!              timeline              ledger                         ---> Report
//! ```
//!
//! The five processes with the most memory, and how much of it is on huge pages:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use superhue_procfs::Roots;
//!
//! for process in superhue::status_of_all(&Roots::default())?.iter().take(5) {
//!     let (resident, huge) = (process.rss_bytes, process.huge_bytes);
//!     println!("{:>7} {:<16} {resident:?}, {huge:?} huge", process.pid, process.name);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! * [`Session`] starts a command and watches it: `superhue run`, and each run of `superhue compare`.
//! * [`attach`] watches running processes; the members of a [`live`] watch can change while it runs, and it reports its state.
//! * [`status_of`] looks once; [`status_explained`] also reports why memory is not huge ([`why`]).
//! * [`advise`] estimates which processes would gain from huge pages, and how much.
//! * [`tlb`] finds the TLB by CPUID or by timing.
//! * [`experiment`] runs the arms of a comparison.
//! * [`trial`] switches a policy on and off in running processes, and measures whether it pays.
//! * [`probe`] tries what this machine lets its caller do: `superhue check`.
//! * [`color`] gives a program memory in chosen page colors.

mod account;
mod actuator;
pub mod advise;
mod allocator;
mod attach;
mod cache_allocation;
pub mod ceiling;
mod charge;
mod coloring;
mod colors;
mod config;
mod controls;
mod cpu;
mod dropped;
pub mod experiment;
mod family;
mod given_back;
mod group_limits;
pub mod heat;
pub mod held_up;
mod launch;
pub mod live;
mod means;
mod mechanism;
mod object_pages;
mod objects;
mod obstacles;
mod options;
mod pages;
pub mod parse;
pub mod probe;
mod report;
mod service;
mod session;
mod setup;
mod shared_report;
mod status;
mod stop;
mod supervise;
pub mod survey;
mod targets;
mod timeline;
pub mod tlb;
mod tmpfs_room;
pub mod trial;
mod watch;
pub mod why;

/// Memory in chosen page colors, for programs that link this crate.
pub use superhue_arena as color;

/// The crates whose types appear in this API: a user of these types needs no other dependency, and cannot get another version of them.
pub use superhue_act as act;
pub use superhue_color as page_colors;
pub use superhue_heat as trackers;
pub use superhue_model as model;
pub use superhue_procfs as procfs;
pub use superhue_state as state;
pub use superhue_sys as sys;

pub use allocator::{Allocator, AllocatorAdvice, AllocatorReport, AllocatorRequest};
pub use attach::{AttachError, attach};
pub use cache_allocation::CacheAllocationAdvice;
pub use coloring::{ColoringStatus, ProcessColoring, of_machine as coloring_of_machine};
pub use colors::{
    ColoredProgram, ColorsError, ColorsReport, KernelColors, Recoloring, pool_for_colors,
};
pub use config::{Config, MAX_STALL_DEFAULT, lock_bound};
pub use cpu::{cpu_time, own_cpu_time, since_boot, supervised_by};
pub use launch::{InheritedState, LaunchError, PassedDescriptors};
pub use mechanism::Mechanism;
pub use objects::{SharedObject, shared_objects};
pub use options::{ColorPlacement, MIN_ACTIVE_DEFAULT, MIN_RESIDENT_DEFAULT, PlacementOptions};
pub use pages::{Pages, PolicyOption};
pub use report::{
    CollapseReport, CostReport, CoverageReport, CpuReport, EarlierAttempts, Ending, MemoryReport,
    ProcessesReport, Report, SCHEMA, StallReport,
};
pub use service::serve_user;
pub use session::{Session, SessionError, Step};
pub use shared_report::ObjectReport;
pub use status::{
    MappingStatus, ProcessStatus, StatusError, explained as status_explained, one as status_of,
    visible as status_of_all,
};
pub use targets::Targets;
pub use timeline::{Sample, Timeline};

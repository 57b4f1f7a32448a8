//! Plan to [`Outcome`]: the code that changes a process or the machine. Apart from it only `superhue-recolor` changes programs, and
//! `superhue-heat` clears accessed bits and sets up DAMON.
//!
//! * [`Actuator`] carries out plans: [`KernelActuator`] for real, [`DryRun`] for `--dry-run`.
//! * [`RemoteActuator`] sends plans to a worker of the daemon, for users who lack the capability; [`serve`] and [`LimitedActuator`] are the worker's side.
//! * [`SettingsGuard`] changes the machine's huge page settings under a journal, which restores them even after Superhue was killed.
//! * [`SwapInUse`] and [`ZswapInUse`] provide swap in memory for taking out pages of programs: an area that is on, or a zram of our own, under the
//!   same journal.
//!
//! ```
//! use superhue_act::{Actuator as _, DryRun};
//! use superhue_model::{Action, Effect, PageCount, Plan, ProcessId, Region, SkipReason, VirtAddr};
//!
//! let process = ProcessId { pid: 1234, start_ticks: 5678 };
//! let region = Region::containing(VirtAddr(0x7f00_0000_0000));
//! let collapse = Action::Collapse { owner: process.into(), region, growth: PageCount(12) };
//! let outcome = DryRun.perform(&Plan::of(vec![collapse]), &|| false);
//! let listed = Effect::Skipped { reason: SkipReason::DryRun };
//! assert_eq!(outcome.results[0].effect, listed);
//! ```
//!
//! An error of the kernel is part of the [`Outcome`], typed by errno. It never causes a panic, and never ends the watch.

mod cold_frames;
mod debugfs;
mod dry_run;
mod journal;
mod kernel;
mod objects;
mod reach;
mod remote;
mod restored;
mod setting;
mod settings;
mod swap;
mod zram;

use superhue_model::{Outcome, Plan};

pub use dry_run::DryRun;
pub use journal::Journal;
pub use kernel::{Explanation, KernelActuator, RegionCheck};
pub use objects::Mappers;
pub use reach::{FailureReport, IdentityCheck, Objection, Target};
pub use remote::{
    Connection, DEFAULT_SOCKET, Frames, Greeting, LimitedActuator, MAX_MESSAGE_BYTES, MapperTable,
    RemoteActuator, ResidencyView, SOCKET_VARIABLE, ServeError, ServiceError, Terms, UserService,
    VERSION, framed, framed_within, serve,
};
pub use restored::{RestoreReport, RestoredFile, UnrestoredPath};
pub use setting::{ParseSettingError, Setting, SettingsError};
pub use settings::SettingsGuard;
pub use swap::{SIZE as OWN_SWAP_SIZE, SwapError, SwapInUse, ZswapInUse};

/// An interface that carries out plans.
pub trait Actuator: Send {
    /// Tries every action in order; the outcome has one result for each.
    ///
    /// `perform` calls `stop` between actions; once it returns true, the remaining actions are skipped as cancelled.
    fn perform(&mut self, plan: &Plan, stop: &dyn Fn() -> bool) -> Outcome;

    /// Releases resources of processes that have ended. The caller calls it every few seconds.
    fn housekeep(&mut self) {}
}

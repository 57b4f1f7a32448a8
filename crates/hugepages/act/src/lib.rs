//! Plan to [`Outcome`]: the only code that changes a process or the machine.
//!
//! * [`Actuator`] carries out plans: [`KernelActuator`] for real, [`DryRun`] for `--dry-run`.
//! * [`RemoteActuator`] has them carried out by the daemon's leave, for users who may not from outside; [`serve`] and [`Metered`] are
//!   the side that does it.
//! * [`SettingsGuard`] changes the machine's superpage settings under a journal, so that they are
//!   put back even after Superhue was killed.
//! * [`SwapInUse, ZswapInUse`] is swap in memory that programs' pages can be taken out to: what is on, or a zram of our own, under the same journal.
//!
//! ```
//! use superhue_act::{Actuator as _, DryRun};
//! use superhue_model::{Action, Effect, PageCount, Plan, ProcessId, Region, SkipReason, VirtAddr};
//!
//! let process = ProcessId { pid: 1234, start_ticks: 5678 };
//! let region = Region::containing(VirtAddr(0x7f00_0000_0000));
//! let collapse = Action::Collapse { owner: process.into(), region, growth: PageCount(12) };
//! let outcome = DryRun.perform(&Plan { actions: vec![collapse] }, &|| false);
//! let listed = Effect::Skipped { reason: SkipReason::DryRun };
//! assert_eq!(outcome.results[0].effect, listed);
//! ```
//!
//! What the kernel refuses is part of the [`Outcome`], typed by errno, never a panic and never the
//! end of the watch.

mod cold_frames;
mod debugfs;
mod dry_run;
mod journal;
mod kernel;
mod objects;
mod reach;
mod remote;
mod setting;
mod settings;
mod swap;

use superhue_model::{Outcome, Plan};

pub use dry_run::DryRun;
pub use journal::{Journal, LeftAlone, RestoreReport, Restored};
pub use kernel::{Explanation, KernelActuator, RegionCheck};
pub use objects::Mappers;
pub use reach::{IdentityCheck, Objection, Target};
pub use remote::{
    Connection, DEFAULT_SOCKET, Frames, Greeting, LONGEST, Metered, RemoteActuator,
    SOCKET_VARIABLE, ServeError, ServiceError, Sight, Terms, UserService, VERSION, Ways, framed,
    framed_within, serve,
};
pub use setting::{ParseSettingError, Setting, SettingsError};
pub use settings::SettingsGuard;
pub use swap::{SIZE as OWN_SWAP_SIZE, SwapError, SwapInUse, ZswapInUse};

/// Something that carries out plans.
pub trait Actuator: Send {
    /// Tries every action in order; the outcome has one result for each.
    ///
    /// `stop` is asked between actions; once it says yes the rest is skipped as cancelled.
    fn perform(&mut self, plan: &Plan, stop: &dyn Fn() -> bool) -> Outcome;

    /// Lets go of what was kept for processes that are no more. To be called every few seconds.
    fn housekeep(&mut self) {}
}

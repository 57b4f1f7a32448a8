//! Page colors for programs: from the user's request to the work of the kernel or of Superhue, and its result.
//!
//! ```text
//!   placement   mechanism   ──> kernel: geometry (tested), policy ──prctl──> the command; census ──> kernel_report
//!                           └─> recolor: palette, swap, accesses ──> keeper ──> pages of running processes ──> report
//! ```

mod census;
mod claims;
mod geometry;
pub(crate) mod headroom;
mod keeper;
mod kernel_report;
mod palette;
mod placement;
mod policy;
mod prepare;
mod readiness;
mod report;
mod swap;

pub(crate) use census::Census;
pub use geometry::pool_for_colors;
pub(crate) use keeper::Keeper;
pub use kernel_report::KernelColors;
pub(crate) use kernel_report::report as kernel_report;
pub(crate) use policy::KernelPolicy;
pub(crate) use prepare::ColorSetup;
pub use prepare::ColorsError;
pub use report::{ColoredProgram, ColorsReport, Recoloring};

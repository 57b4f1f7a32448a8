//! The service that places the memory of services by rules (`superhue daemon`), and `superhue ctl`, which asks it.
//!
//! ```text
//!   files ──load──> config ──Settings──> daemon ──rules──> roster   who belongs to which rule (groups, processes)
//!                                          │  ──rules──> watches  a superhue::live watch for each rule that has processes
//!   superhue ctl ──one line──> ctl ────────┤
//!   Prometheus ──GET /metrics──> metrics ──┘
//!                                          └──> account: DaemonAccount, for status, metrics, top
//! ```
//!
//! * [`config`] and [`rules`] are pure: texts to rules, facts to decisions.
//! * [`account`] is what there is to know about a daemon at any moment.
//! * [`metrics`] are made from it.
//! * [`privileges`] says which capabilities rules need.

pub mod account;
mod check;
mod clients;
pub mod config;
pub mod ctl;
mod daemon;
pub mod groups;
pub mod kubelet;
mod load;
pub mod metrics;
mod notify;
pub mod pods;
pub mod privileges;
mod roster;
pub mod rules;
mod watches;

pub use check::{Checked, check};
pub use daemon::{Daemon, DaemonError, Options};
pub use load::{DEFAULT_FOLDER, load};

//! The service that places the memory of services by rules (`superhue daemon`), and `superhue ctl`, which sends it requests.
//!
//! ```text
//!   files --load--> config --Settings--> daemon --rules--> roster   the processes of each rule (groups, processes)
//!                                          |  --rules--> watches  a superhue::live watch for each tenant of a rule
//!   superhue ctl --one line--> ctl --------+
//!   Prometheus --GET /metrics--> metrics --+
//!   superhue run, of a user --> users -----+  a process for each client, as that user
//!                                          +--> account: DaemonAccount, for status, metrics, top
//! ```
//!
//! The rule for the processes of a service:
//!
//! ```
//! use superhue_daemon::config::{Lookups, Source, parse};
//! use superhue_daemon::rules::{GroupFacts, candidates};
//!
//! let text = "[[rule]]\nname = \"redis\"\nunit = \"redis*.service\"\nbudget = \"10%\"\n";
//! let file = Source { name: "superhue.toml".to_owned(), text: text.to_owned() };
//! let lookups = Lookups { user_number: &|_| Ok(None), group_number: &|_| Ok(None), variable: &|_| None };
//! let rules = parse(&[file], &lookups).unwrap().rules;
//!
//! let redis = GroupFacts::new("/system.slice/redis-server.service");
//! assert_eq!(candidates(&rules, &redis).certain(&rules), Some(0));
//! let cron = GroupFacts::new("/system.slice/cron.service");
//! assert!(candidates(&rules, &cron).is_empty());
//! ```
//!
//! * [`config`] and [`rules`] are pure: texts to rules, facts to decisions.
//! * [`account`] is the state of a daemon at one moment.
//! * [`metrics`] come from it.
//! * [`users`] makes huge pages for users without the capability.
//! * [`privileges`] lists the capabilities that rules need.

pub mod account;
mod avoidance;
mod beside;
mod capabilities;
mod check;
mod clients;
pub mod config;
mod convergence;
pub mod ctl;
mod daemon;
pub mod groups;
mod holds;
pub mod kubelet;
mod load;
pub mod metrics;
mod notify;
pub mod pods;
pub mod privileges;
mod roster;
pub mod rules;
mod turns;
pub mod users;
mod watches;
pub mod workers;

pub use check::{CheckReport, check};
pub use daemon::{Daemon, DaemonError, DaemonOptions};
pub use load::{DEFAULT_FOLDER, load};
pub use rules::config_of;

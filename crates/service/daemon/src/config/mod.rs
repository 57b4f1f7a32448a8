//! Turns the texts of the configuration into rules. Pure: it reads no files.
//!
//! ```toml
//! [daemon]
//! max-overhead = "2%"            # of one CPU, all rules together
//! metrics = "127.0.0.1:9119"     # or the path of a socket; without it there is no endpoint
//! metrics-services = 200         # services with series of their own
//!
//! [users]                        # users without CAP_SYS_NICE for whom the daemon makes huge pages
//! allow = ["alice", "1000", "@staff"]
//! budget = "256M"                # for one client
//!
//! [[rule]]
//! name = "redis"
//! unit = "redis*.service"        # conditions: unit, cgroup, user, executable, those of pods, or any = true
//! pages = "hot"                  # the placement
//! budget = "5%"
//!
//! [[rule]]
//! name = "others"
//! any = true
//! pages = "off"
//! ```
//!
//! Each of the tables `[daemon]`, `[users]` and `[kubernetes]` may stand in any one of the files. Rules are in the order of the files.
//!
//! All problems are reported at once, each with file, line and column, and then no setting is accepted.

mod raw;
mod reader;
#[cfg(test)]
mod tests;
mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use raw::RawFile;
use reader::{File, Reader};
use superhue_model::Share;

use crate::kubelet::KubeletSettings;
use crate::rules::Rule;
use crate::users::UserSettings;

/// Maximum number of rules. Each costs some 100 ns for every cgroup that appears, and a kilobyte.
pub const MOST_RULES: usize = 10_000;

/// Default ceiling of all rules together: 2 % of one CPU.
const MAX_OVERHEAD: f64 = 0.02;

/// Services with series of their own: the default, and the maximum.
const METRICS_SERVICES: usize = 200;

/// Default budget of one client of a user.
const USERS_BUDGET: Share = Share::BasisPoints(500);

/// Clients of users at a time, in all and of one user: the defaults, and the maximum. Each has a process.
const USERS_CLIENTS: usize = 32;
const USERS_CLIENTS_EACH: usize = 4;

/// Address at which metrics are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsAddress {
    /// A port.
    Port(SocketAddr),
    /// A Unix socket.
    Socket(PathBuf),
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(address) => write!(f, "{address}"),
            Self::Socket(path) => write!(f, "{}", path.display()),
        }
    }
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Name of the file in messages: its path.
    pub name: String,
    /// Text of the file.
    pub text: String,
}

/// Settings in the files.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The ceiling of all rules together, as a share of one CPU's time.
    pub max_overhead: f64,
    /// Address for metrics; `None` for no endpoint.
    pub metrics: Option<MetricsAddress>,
    /// Number of services with series of their own.
    pub metrics_services: usize,
    /// The kubelet to ask for pods; `None` without `[kubernetes]`.
    pub kubelet: Option<KubeletSettings>,
    /// The service for users; `None` without one.
    pub users: Option<UserSettings>,
    /// The rules, in the order in which they are tried.
    pub rules: Vec<Rule>,
    /// The files, in order.
    pub files: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_overhead: MAX_OVERHEAD,
            metrics: None,
            metrics_services: METRICS_SERVICES,
            kubelet: None,
            users: None,
            rules: Vec::new(),
            files: Vec::new(),
        }
    }
}

/// A problem, and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub file: String,
    /// Line and column, from 1; `None` if it is about the whole file.
    pub at: Option<(usize, usize)>,
    /// The problem, and what to write instead.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some((line, column)) = self.at {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.text)
    }
}

/// Functions that look up values outside of the files.
pub struct Lookups<'a> {
    /// Finds users by name. An error is a reason why that is not known.
    pub user_number: &'a dyn Fn(&str) -> Result<Option<u32>, String>,
    /// Finds groups by name; likewise.
    pub group_number: &'a dyn Fn(&str) -> Result<Option<u32>, String>,
    /// Finds variables of the environment.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
}

/// Reads the files, the first one's rules first.
///
/// # Errors
/// The problems (the first few), in the order of the files.
pub fn parse(sources: &[Source], lookups: &Lookups<'_>) -> Result<Settings, Vec<Problem>> {
    let mut reader = Reader {
        settings: Settings {
            files: sources.iter().map(|source| source.name.clone()).collect(),
            ..Settings::default()
        },
        problems: Vec::new(),
        named: BTreeMap::new(),
        tables: BTreeMap::new(),
        is_complete: true,
        lookups,
    };
    let mut files = Vec::new();
    for (index, source) in sources.iter().enumerate() {
        let file = File::new(index, source);
        match toml::from_str::<RawFile>(&source.text) {
            Ok(raw) => files.push((file, raw)),
            Err(error) => {
                let text = error.message().trim_end().replace('\n', "; ");
                reader.problem(&file, error.span(), text);
            }
        }
    }
    // [kubernetes] may be in the file that cannot be read.
    reader.is_complete = files.len() == sources.len();
    // A rule about pods needs [kubernetes], which may stand in a later file.
    for (file, raw) in &files {
        reader.read_tables(file, raw);
    }
    for (file, raw) in files {
        reader.read_rules(&file, raw.rule);
    }
    reader.finish()
}

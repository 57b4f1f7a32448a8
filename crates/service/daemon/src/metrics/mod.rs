//! The daemon's metrics, for Prometheus and whoever reads `OpenMetrics`.
//!
//! ```text
//!   DaemonAccount ──┐
//!   watches ──sums──┼─> page ──prometheus-client──> text ──┬──> endpoint: GET /metrics at a port or a Unix socket
//!   /proc/vmstat ───┘   (families)                         └──> superhue ctl metrics
//! ```
//!
//! The page is made when somebody asks, at most once a second, and all who ask meanwhile get the same one. How many values there are is
//! bounded: by rules, and by services of which the largest are told apart; never by processes.

mod collect;
mod endpoint;
mod families;
mod http;
mod page;
mod sums;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use collect::{Beside, CpuParts};
pub(crate) use endpoint::Endpoint;
pub use families::{FAMILIES, Family, Kind};
pub(crate) use sums::{Seen, Sums};

use crate::account::DaemonAccount;

/// How old a page may be when somebody asks for it.
const PAGE_AT_MOST: Duration = Duration::from_secs(1);

/// In which form metrics are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// Prometheus' text format, 0.0.4: what everything understands, the textfile collector of `node_exporter` too.
    #[default]
    Plain,
    /// `OpenMetrics` 1.0.0.
    #[serde(rename = "openmetrics")]
    OpenMetrics,
}

/// The latest page, and what it takes to make the next one.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    pub(crate) sums: Sums,
    parts: CpuParts,
    latest: Option<Latest>,
}

#[derive(Debug)]
struct Latest {
    at: Duration,
    openmetrics: Arc<str>,
    plain: Option<Arc<str>>,
}

impl Pages {
    /// Whether a new page has to be made for somebody who asks now.
    pub(crate) fn is_old(&self, at: Duration) -> bool {
        let latest = self.latest.as_ref();
        latest.is_none_or(|latest| at.saturating_sub(latest.at) >= PAGE_AT_MOST)
    }

    /// Has the next one who asks get a new page.
    pub(crate) fn outdate(&mut self) {
        self.latest = None;
    }

    /// Makes a page; at most `services` have series of their own.
    pub(crate) fn make(
        &mut self,
        at: Duration,
        account: &DaemonAccount,
        beside: &Beside<'_>,
        (seen, services): (&[Seen], usize),
    ) {
        self.sums.look(seen, services);
        let page = collect::page(account, beside, &self.sums, &mut self.parts);
        self.latest = Some(Latest {
            at,
            openmetrics: page.openmetrics().into(),
            plain: None,
        });
    }

    /// The latest page; empty before there is one.
    pub(crate) fn text(&mut self, format: Format) -> Arc<str> {
        let Some(latest) = &mut self.latest else {
            return "".into();
        };
        match format {
            Format::OpenMetrics => latest.openmetrics.clone(),
            Format::Plain => {
                let plain = || page::plain(&latest.openmetrics).into();
                latest.plain.get_or_insert_with(plain).clone()
            }
        }
    }
}

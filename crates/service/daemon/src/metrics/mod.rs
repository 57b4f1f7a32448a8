//! The daemon's metrics, for Prometheus and other readers of `OpenMetrics`.
//!
//! ```text
//!   DaemonAccount ──┐
//!   watches ──sums──┼─> page ──prometheus-client──> text ──┬──> endpoint: GET /metrics at a port or a Unix socket
//!   /proc/vmstat ───┘   (families)                         └──> superhue ctl metrics
//! ```
//!
//! The daemon makes a page at a request, at most once a second; requests within that second get the same page. The number of values is bounded: by
//! rules, and by services, of which only the largest have series of their own; never by processes.

mod collect;
mod endpoint;
mod families;
mod http;
mod page;
mod sums;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use collect::{CpuParts, MetricsInputs};
pub(crate) use endpoint::Endpoint;
pub use families::{FAMILIES, Family, Kind};
pub(crate) use sums::{Sums, WatchSample};

use crate::account::DaemonAccount;

/// Largest age of a page in an answer.
const PAGE_AT_MOST: Duration = Duration::from_secs(1);

/// Format of the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// Prometheus' text format, 0.0.4: every reader understands it, also the textfile collector of `node_exporter`.
    #[default]
    Plain,
    /// `OpenMetrics` 1.0.0.
    #[serde(rename = "openmetrics")]
    OpenMetrics,
}

/// The latest page, and the state for making the next one.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    pub(crate) sums: Sums,
    parts: CpuParts,
    latest: Option<RenderedPage>,
}

#[derive(Debug)]
struct RenderedPage {
    at: Duration,
    openmetrics: Arc<str>,
    plain: Option<Arc<str>>,
}

impl Pages {
    /// Returns true if a request at time `at` needs a new page.
    pub(crate) fn is_old(&self, at: Duration) -> bool {
        let latest = self.latest.as_ref();
        latest.is_none_or(|latest| at.saturating_sub(latest.at) >= PAGE_AT_MOST)
    }

    /// Makes the page outdated: the next request gets a new one.
    pub(crate) fn outdate(&mut self) {
        self.latest = None;
    }

    /// Makes a page; at most `services` have series of their own.
    pub(crate) fn make(
        &mut self,
        at: Duration,
        account: &DaemonAccount,
        beside: &MetricsInputs<'_>,
        (seen, services): (&[WatchSample], usize),
    ) {
        self.sums.look(seen, services);
        let page = collect::page(account, beside, &self.sums, &mut self.parts);
        self.latest = Some(RenderedPage {
            at,
            openmetrics: page.openmetrics().into(),
            plain: None,
        });
    }

    /// Returns the latest page; empty before there is one.
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

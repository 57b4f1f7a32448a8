//! JSON document of the verb: `superhue-colors/1`.

use std::path::PathBuf;

use serde::Serialize;
use superhue::page_colors::oracles::{Judgement, Share, Trust};
use superhue::procfs::hardware::{AssessedCache, Partition, Virtualization};
use superhue_plot::Latency;

use super::kernel::Kernel;

/// The schema's name.
pub(super) const SCHEMA: &str = "superhue-colors/1";

/// The whole document.
#[derive(Debug, Serialize)]
pub(super) struct Document {
    pub(super) schema: &'static str,
    pub(super) version: &'static str,
    /// The CPU of the measurement.
    pub(super) cpu: u32,
    pub(super) processor: Option<String>,
    pub(super) virtualization: Virtualization,
    /// Reason why the caches are unknown; `null` if they are known.
    pub(super) caches_reason: Option<String>,
    pub(super) caches: Vec<AssessedCache>,
    pub(super) partitions: Vec<Partition>,
    pub(super) between_cpus: String,
    /// The cache whose colors these are.
    pub(super) cache: String,
    pub(super) oracles: Vec<Oracle>,
    /// The kernel's own page coloring, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kernel: Option<Kernel>,
    /// The oracle that is used; `null` if none is trusted.
    pub(super) used: Option<&'static str>,
    /// The file of eviction sets that it shares with all processes; `null` for other oracles.
    pub(super) palette: Option<PathBuf>,
    /// Memory that the oracles were tried on.
    pub(super) pool_bytes: u64,
    pub(super) verification: Option<Latency>,
    /// Reason for a missing verification that was requested.
    pub(super) verification_reason: Option<String>,
}

/// One oracle, and the result of its test.
#[derive(Debug, Serialize)]
pub(super) struct Oracle {
    pub(super) name: &'static str,
    /// `trusted`, `refuted` or `untested`.
    pub(super) trust: &'static str,
    pub(super) reason: Option<String>,
    /// Number of its colors; `null` if the oracle could not be used.
    pub(super) colors: Option<usize>,
    /// Pages of the same color as the pages that push: how many were evicted.
    pub(super) predicted_to_conflict: Hits,
    /// Pages of other colors: how many were evicted.
    pub(super) predicted_not_to_conflict: Hits,
    pub(super) unsure: usize,
    /// The share of right predictions; `null` without any.
    pub(super) confidence: Option<Confidence>,
}

/// Number of pages tried, and of evicted ones.
#[derive(Debug, Serialize)]
pub(super) struct Hits {
    pub(super) tried: usize,
    pub(super) evicted: usize,
}

/// A share, and the interval in which the true share lies with 95 % confidence (Wilson).
#[derive(Debug, Serialize)]
pub(super) struct Confidence {
    pub(super) right: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl From<&Judgement> for Oracle {
    fn from(found: &Judgement) -> Self {
        let (trust, reason) = match &found.trust {
            Trust::Trusted => ("trusted", None),
            Trust::Refuted(reason) => ("refuted", Some(reason.clone())),
            Trust::Untested(reason) => ("untested", Some(reason.clone())),
        };
        let tally = |share: Share| Hits {
            tried: share.of,
            evicted: share.hits,
        };
        let right = found.right();
        let (low, high) = right.interval();
        Self {
            name: found.kind.name(),
            trust,
            reason,
            colors: (found.colors > 0).then_some(found.colors),
            predicted_to_conflict: tally(found.own),
            predicted_not_to_conflict: tally(found.foreign),
            unsure: found.unsure,
            confidence: right.value().map(|right| Confidence { right, low, high }),
        }
    }
}

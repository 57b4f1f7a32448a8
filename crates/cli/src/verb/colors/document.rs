//! What the verb prints as JSON: `superhue-colors/1`.

use std::path::PathBuf;

use serde::Serialize;
use superhue::page_colors::oracles::{Judgement, Share, Trust};
use superhue::procfs::hardware::{AssessedCache, Partition, Virtualization};
use superhue_plot::Latency;

use super::kernel::Kernel;

/// The schema's name.
pub(super) const SCHEMA: &str = "superhue-colors/1";

/// Everything.
#[derive(Debug, Serialize)]
pub(super) struct Document {
    pub(super) schema: &'static str,
    pub(super) version: &'static str,
    /// The CPU measured on.
    pub(super) cpu: u32,
    pub(super) processor: Option<String>,
    pub(super) virtualization: Virtualization,
    /// Why the caches are not known, where they are not.
    pub(super) caches_reason: Option<String>,
    pub(super) caches: Vec<AssessedCache>,
    pub(super) partitions: Vec<Partition>,
    pub(super) between_cpus: String,
    /// The cache the colors are of.
    pub(super) cache: String,
    pub(super) oracles: Vec<Oracle>,
    /// The kernel's own page coloring, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kernel: Option<Kernel>,
    /// The oracle that is used; `null` where none is trusted.
    pub(super) used: Option<&'static str>,
    /// The file of eviction sets that it shares with all processes; `null` for other oracles.
    pub(super) palette: Option<PathBuf>,
    /// Memory the oracles were tried on.
    pub(super) pool_bytes: u64,
    pub(super) verification: Option<Latency>,
    /// Why there is none, where it was asked for.
    pub(super) verification_reason: Option<String>,
}

/// One oracle, and what its test came to.
#[derive(Debug, Serialize)]
pub(super) struct Oracle {
    pub(super) name: &'static str,
    /// `trusted`, `refuted` or `untested`.
    pub(super) trust: &'static str,
    pub(super) reason: Option<String>,
    /// Colors it tells apart; `null` where it could not be asked.
    pub(super) colors: Option<usize>,
    /// Pages of the same color as those that push: how many were evicted.
    pub(super) predicted_to_conflict: Hits,
    /// Pages of other colors: how many were evicted.
    pub(super) predicted_not_to_conflict: Hits,
    pub(super) unsure: usize,
    /// The share of right predictions; `null` without any.
    pub(super) confidence: Option<Confidence>,
}

/// Pages tried.
#[derive(Debug, Serialize)]
pub(super) struct Hits {
    pub(super) tried: usize,
    pub(super) evicted: usize,
}

/// A share with the interval in which the true one lies with 95 % confidence (Wilson).
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

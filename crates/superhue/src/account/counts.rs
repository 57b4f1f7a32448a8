//! Counts of a policy's ledger, by the words that accounts and reports have for them.

use std::collections::BTreeMap;
use std::time::Duration;

use superhue_policy::{Account, Durations, Ledger};

use super::{ActionCounts, DURATION_BOUNDS_SECONDS, DurationBucket};

impl ActionCounts {
    /// Returns the counts of one kind of action.
    pub(crate) fn of(account: &Account) -> Self {
        let failed = account.failed.iter();
        let skipped = account.skipped.iter();
        Self {
            done: account.done,
            failed: failed.map(|(errno, &n)| (errno.to_string(), n)).collect(),
            skipped: skipped
                .map(|(reason, &n)| (reason.describe().to_owned(), n))
                .collect(),
            vanished: account.vanished,
            seconds: account.took.total().as_secs_f64(),
            p99_seconds: account.took.quantile(0.99).as_secs_f64(),
            longest_seconds: account.took.longest().as_secs_f64(),
            buckets: buckets(&account.took),
        }
    }

    /// Returns the counts without the number of actions by duration, for a report.
    pub(crate) fn without_buckets(self) -> Self {
        Self {
            buckets: Vec::new(),
            ..self
        }
    }
}

fn buckets(took: &Durations) -> Vec<DurationBucket> {
    let mut before = 0;
    let mut bucket = |at_most_seconds: Option<f64>| {
        let up_to = at_most_seconds.map_or(took.count(), |bound| {
            took.count_within(Duration::from_secs_f64(bound))
        });
        let count = up_to.saturating_sub(before);
        before = up_to;
        DurationBucket {
            at_most_seconds,
            count,
        }
    };
    let bounds = DURATION_BOUNDS_SECONDS.into_iter().map(Some);
    bounds.chain([None]).map(&mut bucket).collect()
}

/// Returns the number of regions that wait, by the reason for waiting.
pub(crate) fn waiting(ledger: &Ledger) -> BTreeMap<String, u64> {
    nonzero([
        ("still being filled or sampled", ledger.waiting.settling),
        ("after a failure", ledger.waiting.backing_off),
        ("budget", ledger.waiting.budget),
        ("rate limit", ledger.waiting.rate),
        ("--max-stall", ledger.waiting.stall),
    ])
}

/// Leaves out counts of zero.
pub(crate) fn nonzero<const N: usize>(all: [(&str, u64); N]) -> BTreeMap<String, u64> {
    let some = all.into_iter().filter(|&(_, count)| count > 0);
    some.map(|(name, count)| (name.to_owned(), count)).collect()
}

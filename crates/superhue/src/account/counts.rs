//! Counts of a policy's ledger, by the words that accounts and reports have for them.

use std::collections::BTreeMap;

use superhue_model::{Errno, SkipReason};
use superhue_policy::Ledger;

/// Returns refusals by the names of their errors.
pub(crate) fn by_name(failed: &BTreeMap<Errno, u64>) -> BTreeMap<String, u64> {
    let named = failed
        .iter()
        .map(|(errno, &count)| (errno.to_string(), count));
    named.collect()
}

/// Returns skipped actions by the text of their reason.
pub(crate) fn by_reason(skipped: &BTreeMap<SkipReason, u64>) -> BTreeMap<&'static str, u64> {
    let named = skipped
        .iter()
        .map(|(reason, &count)| (reason.describe(), count));
    named.collect()
}

/// Returns the number of regions that wait, by the reason for waiting.
pub(crate) fn waiting(ledger: &Ledger) -> BTreeMap<&'static str, u64> {
    nonzero([
        ("still being filled or sampled", ledger.waiting.settling),
        ("after a failure", ledger.waiting.backing_off),
        ("budget", ledger.waiting.budget),
        ("rate limit", ledger.waiting.rate),
        ("--max-stall", ledger.waiting.stall),
    ])
}

/// Leaves out counts of zero.
pub(crate) fn nonzero<const N: usize>(
    all: [(&'static str, u64); N],
) -> BTreeMap<&'static str, u64> {
    all.into_iter().filter(|&(_, count)| count > 0).collect()
}

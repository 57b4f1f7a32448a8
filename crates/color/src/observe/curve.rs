//! Latency against number of pages.

use super::Probe;
use crate::Page;

/// Ways as the cliff shows them.
pub(super) fn ways(_probe: &mut impl Probe, _members: &[Vec<Page>]) -> Option<u32> {
    None
}

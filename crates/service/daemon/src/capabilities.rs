//! Names of capabilities, for sentences.

use rustix::thread::CapabilitySet;

/// Returns the names of the missing capabilities, for a sentence; `None` if none is missing.
#[must_use]
pub(crate) fn missing(needed: CapabilitySet, held: CapabilitySet) -> Option<String> {
    let missing = needed.difference(held);
    let names: Vec<String> = missing
        .iter_names()
        .map(|(name, _)| format!("CAP_{name}"))
        .collect();
    (!names.is_empty()).then(|| names.join(", "))
}

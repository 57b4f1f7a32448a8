//! Reasons for unknown fields.

use std::collections::BTreeMap;

use serde::Serialize;

/// For fields that are `None`: the file of the value, and the reason why it gave none.
///
/// A missing value is `null` *with a reason*, never 0. Keys are paths relative to the directory that
/// was read (`khugepaged/max_ptes_none`).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub struct Gaps(BTreeMap<String, String>);

impl Gaps {
    /// Returns the reason why the file `name` gave no value; `None` if it did.
    #[must_use]
    pub fn reason(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns true if every value was known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns every file and its reason, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, reason)| (name.as_str(), reason.as_str()))
    }

    pub(crate) fn note(&mut self, name: impl Into<String>, reason: impl Into<String>) {
        self.0.insert(name.into(), reason.into());
    }
}

//! Kept documents that are shown again: `--from FILE`.

use std::path::Path;

use anyhow::Context;
use superhue::state::read_regular;

/// Larger files are no documents of `compare` and `bench`: the longest have some tens of MiB.
pub(crate) const MAX_DOCUMENT_BYTES: u64 = 256 << 20;

/// Returns the text of a document, from a regular file of at most `largest` bytes.
///
/// # Errors
/// The reason why it cannot be one, without the path.
pub(crate) fn read_document(path: &Path, largest: u64) -> anyhow::Result<String> {
    let bytes = read_regular(path, largest)?;
    String::from_utf8(bytes).context("it is no text (UTF-8)")
}

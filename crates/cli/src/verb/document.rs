//! Documents that are shown again: `--from FILE`.

use std::path::Path;

use anyhow::Context;
use superhue::state::read_regular;

/// Larger documents of `compare` and `bench` are none: the longest have some tens of MiB.
pub(crate) const LARGEST: u64 = 256 << 20;

/// The text of a document, from a regular file of at most `largest` bytes.
///
/// # Errors
/// Why it cannot be one, without the path.
pub(crate) fn read_document(path: &Path, largest: u64) -> anyhow::Result<String> {
    let bytes = read_regular(path, largest)?;
    String::from_utf8(bytes).context("it is no text (UTF-8)")
}

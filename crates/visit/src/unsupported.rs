//! Visits are written for x86-64: elsewhere nobody is visited.

use std::io;
use std::os::unix::net::UnixStream;

/// Ends at once.
///
/// # Errors
/// Always: visits are not written for this processor.
pub fn serve(_: UnixStream) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Nothing was left where nobody was visited.
#[must_use]
pub fn is_untidy(_: u32) -> bool {
    false
}

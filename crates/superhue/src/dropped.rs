//! Variables that the C library drops from the environment of a program with capabilities of its file (`ld.so(8)`, secure-execution mode).

use std::collections::BTreeSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;

use superhue_sys::process::is_secure;

/// Returns the variables that the C library dropped from this process' environment, or cut, because Superhue was started with capabilities of its file. The command
/// has no such rights, and gets them.
pub(crate) fn dropped_variables() -> Vec<(OsString, OsString)> {
    if !is_secure() {
        return Vec::new();
    }
    let first = fs::read("/proc/self/environ").unwrap_or_default();
    let words = first.split(|byte| *byte == 0);
    let mut seen = BTreeSet::new();
    let variables = words.filter_map(|word| {
        let at = word.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (word.get(..at)?, word.get(at + 1..)?);
        Some((OsStr::from_bytes(name), OsStr::from_bytes(value)))
    });
    variables
        // The C library also cuts `GLIBC_TUNABLES`. Of variables with one name the first counts (`getenv(3)`).
        .filter(|(name, value)| {
            !name.is_empty() && seen.insert(*name) && env::var_os(name).as_deref() != Some(value)
        })
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

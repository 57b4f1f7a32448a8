//! Why a file below `/proc/PID` is not there, or says nothing: what the process is like tells.

use std::fs;
use std::io;
use std::path::Path;

use crate::{ReadError, Roots};

use super::stat::stat;

/// Why `pid` shows no memory: it is a kernel thread, or it has given its memory up.
pub(super) fn without_memory(roots: &Roots, pid: u32) -> ReadError {
    match stat(roots, pid) {
        Ok(stat) if stat.is_kernel_thread() => ReadError::KernelThread { pid },
        Ok(_) => ReadError::Vanished { pid },
        Err(error) => error,
    }
}

/// Sharpens "vanished" on a file that not every kernel has: is it the process or the file that is
/// not there, or is it a kernel thread?
pub(super) fn refine(
    roots: &Roots,
    pid: u32,
    path: &Path,
    meaning: &'static str,
    error: ReadError,
) -> ReadError {
    if !error.is_vanished() {
        return error;
    }
    let file_is_missing =
        fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    match stat(roots, pid) {
        Ok(stat) if stat.is_kernel_thread() => ReadError::KernelThread { pid },
        Ok(stat) if file_is_missing && !stat.is_zombie() => ReadError::Missing {
            path: path.to_owned(),
            meaning,
        },
        Ok(_) => error,
        Err(error) => error,
    }
}

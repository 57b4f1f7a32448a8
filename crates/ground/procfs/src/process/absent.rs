//! Reasons why a file below `/proc/PID` is missing or empty, found from the state of the process.

use std::fs;
use std::io;
use std::path::Path;

use crate::{ReadError, Roots};

use super::stat::stat;

/// Returns the reason why `pid` shows no memory: it is a kernel thread, or it has given its memory up.
pub(super) fn without_memory(roots: &Roots, pid: u32) -> ReadError {
    match stat(roots, pid) {
        Ok(stat) if stat.is_kernel_thread() => ReadError::KernelThread { pid },
        Ok(_) => ReadError::Vanished { pid },
        Err(error) => error,
    }
}

/// Maximum number of reads of a file that shows no memory although its process lives on.
const ATTEMPTS: usize = 4;

/// Reads a file below `/proc/PID`, and again if it shows no memory although its process lives on.
///
/// An opened file shows the memory that the process had at the open. `execve(2)` gives that memory up
/// (`mmget_not_zero` in `fs/proc/task_mmu.c`): the file is then empty although no process has ended.
pub(super) fn across_exec<T>(
    roots: &Roots,
    pid: u32,
    mut read: impl FnMut() -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    let lives = || stat(roots, pid).is_ok_and(|stat| !stat.is_zombie());
    for _ in 1..ATTEMPTS {
        match read() {
            Err(error) if error.is_vanished() && lives() => {}
            result => return result,
        }
    }
    read()
}

/// Sharpens "vanished" on a file that not every kernel has: is the process missing or the file, or is it a kernel thread?
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

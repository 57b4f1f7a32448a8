//! The file that a command names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::ProgramError;

/// Directories that execvp(3) searches without PATH.
const WITHOUT_PATH: &str = "/bin:/usr/bin";

/// Returns the file that execvp(3) would execute for `command`, with the variable PATH `path`.
pub(super) fn find(command: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, ProgramError> {
    if command.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(command));
    }
    let path = path.unwrap_or_else(|| OsStr::new(WITHOUT_PATH));
    let is_program = |file: &Path| file.is_file() && access(file, Access::EXEC_OK).is_ok();
    std::env::split_paths(path)
        // An empty entry is the current directory.
        .map(|folder| folder.join(command))
        .find(|file| is_program(file))
        .ok_or(ProgramError::NotFound)
}

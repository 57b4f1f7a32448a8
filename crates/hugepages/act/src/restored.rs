//! Result of undoing changes of the machine: restored files, removed devices, and what was left.

use std::path::PathBuf;

use serde::Serialize;

/// Result of undoing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct RestoreReport {
    /// Files that were given their former value.
    pub restored: Vec<RestoredFile>,
    /// Devices of swap in memory that superhue had made and has removed.
    pub swap_removed: Vec<PathBuf>,
    /// Files and devices that were left as they are, each with the reason.
    pub left: Vec<UnrestoredPath>,
    /// Number of journals of running superhues, which undo them on their own.
    pub in_use: u32,
    /// True if the journals belong to another user (root), and the caller may not read them.
    pub hidden: bool,
}

/// A file that was given its former value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RestoredFile {
    /// Path of the file.
    pub path: PathBuf,
    /// The value it has again.
    pub value: String,
}

/// A file or device that was left as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnrestoredPath {
    /// Path of the file or device.
    pub path: PathBuf,
    /// Reason for leaving it.
    pub reason: String,
}

impl RestoreReport {
    /// Adds the report of another journal.
    pub fn add(&mut self, other: Self) {
        self.restored.extend(other.restored);
        self.swap_removed.extend(other.swap_removed);
        self.left.extend(other.left);
        self.in_use += other.in_use;
        self.hidden |= other.hidden;
    }
}

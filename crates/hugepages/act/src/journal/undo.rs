//! Undoes the changes in a journal.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use rustix::fs::OFlags;
use superhue_state::{Folder, LockedFile};

use super::contents::{Change, SettingChange};
use crate::restored::{RestoreReport, RestoredFile, UnrestoredPath};
use crate::setting::{RAISED_BY_KERNEL, read_setting};
use crate::zram::{SwapMachine, UndoResult, ZramDevice, node};

/// A journal this process is responsible for.
#[derive(Debug)]
pub(crate) struct OwnedJournal {
    pub(super) changes: Vec<Change>,
    pub(super) folder: Arc<Folder>,
    pub(super) name: OsString,
    pub(super) machine: Arc<dyn SwapMachine>,
    /// The journal's file; its lock shows that the owner lives.
    pub(super) held: LockedFile,
}

impl OwnedJournal {
    pub(crate) fn settings(&self) -> impl Iterator<Item = &SettingChange> {
        self.changes.iter().filter_map(Change::setting)
    }

    /// Takes every change back, newest first, and removes the journal.
    ///
    /// If a change could not be taken back, the journal stays for a later attempt.
    pub(crate) fn undo(self) -> RestoreReport {
        self.undo_beside(&[])
    }

    /// Takes every change back, except settings that others have journalled too.
    pub(super) fn undo_beside(self, theirs: &[Change]) -> RestoreReport {
        let is_theirs = |change: &SettingChange| {
            let mut settings = theirs.iter().filter_map(Change::setting);
            settings.any(|it| it.path == change.path)
        };
        let mut report = RestoreReport::default();
        let mut failed = false;
        // Read before the others are put back, which may change it.
        let floor_is_ours = self.settings().filter(|it| is_floor(it)).any(|floor| {
            let now = read_setting(&floor.path).unwrap_or_default();
            now == floor.original || now == floor.wanted || is_raised(floor, &now)
        });
        for change in self.changes.iter().rev() {
            let undone = match change {
                Change::Setting(change) if is_theirs(change) => Ok(()),
                Change::Setting(floor) if is_floor(floor) && floor_is_ours => {
                    let now = read_setting(&floor.path).unwrap_or_default();
                    let wanted = if now == floor.original {
                        String::new()
                    } else {
                        now
                    };
                    let change = SettingChange {
                        wanted,
                        ..floor.clone()
                    };
                    write_original(&change, &mut report)
                }
                Change::Setting(change) => write_original(change, &mut report),
                Change::Zram(made) => remove_zram(made, &*self.machine, &mut report),
            };
            failed |= undone.is_err();
        }
        if !failed {
            let _ = self.folder.remove(&self.name);
        }
        drop(self.held);
        report
    }
}

/// Returns true for a change of the floor of free memory.
pub(super) fn is_floor(change: &SettingChange) -> bool {
    change.path.ends_with("sys/vm/min_free_kbytes")
}

/// Returns true if the kernel may have set the value, in a change whose outcome was not recorded: it raises the floor of free memory.
fn is_raised(change: &SettingChange, now: &str) -> bool {
    let number = |text: &str| text.parse::<u64>().ok();
    change.wanted == RAISED_BY_KERNEL && number(now) > number(&change.original)
}

/// A change that could not be taken back.
struct UndoFailure;

/// Writes the former value to a file.
fn write_original(change: &SettingChange, report: &mut RestoreReport) -> Result<(), UndoFailure> {
    let leave = |reason: String| UnrestoredPath {
        path: change.path.clone(),
        reason,
    };
    match read_setting(&change.path) {
        Ok(now) if now == change.original => {}
        Ok(now) if now != change.wanted && !is_raised(change, &now) => {
            report.left.push(leave(format!(
                "somebody has set it to `{now}` since (superhue had changed `{}` to `{}`)",
                change.original, change.wanted
            )))
        }
        Ok(_) => match write_back(change) {
            Ok(()) => report.restored.push(RestoredFile {
                path: change.path.clone(),
                value: change.original.clone(),
            }),
            Err(error) => {
                report.left.push(leave(format!(
                    "cannot write `{}`: {error}; run `superhue restore` as root",
                    change.original
                )));
                return Err(UndoFailure);
            }
        },
        Err(error) => {
            report.left.push(leave(format!("cannot read it: {error}")));
            if error.kind() != io::ErrorKind::NotFound {
                return Err(UndoFailure);
            }
        }
    }
    Ok(())
}

/// Removes a device of ours.
fn remove_zram(
    made: &ZramDevice,
    machine: &dyn SwapMachine,
    report: &mut RestoreReport,
) -> Result<(), UndoFailure> {
    match made.undo(machine) {
        UndoResult::Nothing => {}
        UndoResult::Removed(number) => report.swap_removed.push(node(number)),
        UndoResult::Left(left) => report.left.push(left),
        UndoResult::Failed(left) => {
            report.left.push(left);
            return Err(UndoFailure);
        }
    }
    Ok(())
}

/// Writes the original value. Creates no file, and follows no link.
fn write_back(change: &SettingChange) -> io::Result<()> {
    File::options()
        .write(true)
        .truncate(true)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(&change.path)?
        .write_all(change.original.as_bytes())
}

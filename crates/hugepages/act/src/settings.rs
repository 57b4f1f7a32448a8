//! Temporary changes of the machine's huge page settings.
//!
//! Superhue touches only files below `/sys/kernel/mm/transparent_hugepage`, only when the user asks, and only after the [`Journal`] has recorded
//! how to undo it.

use std::fs;
use std::io;
use std::path::Path;

use crate::journal::{Journal, OwnedJournal, SettingChange};
use crate::restored::RestoreReport;
use crate::setting::{Setting, SettingsError, folder_of, read_setting};

/// Settings that hold until this is dropped.
#[derive(Debug)]
pub struct SettingsGuard {
    pending: Option<OwnedJournal>,
}

impl SettingsGuard {
    /// Changes `settings` below the sysfs at `sys`, after journalling them.
    ///
    /// # Errors
    /// See [`SettingsError`]; nothing is changed then.
    pub fn apply(
        journal: &Journal,
        sys: &Path,
        settings: &[Setting],
    ) -> Result<Self, SettingsError> {
        if settings.is_empty() {
            return Ok(Self { pending: None });
        }
        let folder = folder_of(sys);
        check_writable(&folder, settings)?;
        let pending = journal.begin(|| read_originals(&folder, settings))?;
        let guard = Self {
            pending: Some(pending),
        };
        // From here on an early return undoes the changes: it drops the guard.
        for entry in guard.pending.iter().flat_map(OwnedJournal::settings) {
            write_checked(entry)?;
        }
        Ok(guard)
    }

    /// Restores all settings, and returns the report.
    #[must_use]
    pub fn finish(mut self) -> RestoreReport {
        self.pending
            .take()
            .map(OwnedJournal::undo)
            .unwrap_or_default()
    }
}

impl Drop for SettingsGuard {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            let _ = pending.undo();
        }
    }
}

/// Reads the present values of the settings, for the journal.
fn read_originals(
    folder: &Path,
    settings: &[Setting],
) -> Result<Vec<SettingChange>, SettingsError> {
    let mut entries: Vec<SettingChange> = Vec::with_capacity(settings.len());
    for setting in settings {
        let path = folder.join(&setting.knob);
        if entries.iter().any(|entry| entry.path == path) {
            return Err(SettingsError::Twice { path });
        }
        let original = read_setting(&path).map_err(|error| SettingsError::of(&path, error))?;
        entries.push(SettingChange {
            path,
            original,
            wanted: setting.value.clone(),
        });
    }
    Ok(entries)
}

/// Checks that the caller may change `settings`, before the journal is written: an error should be about the settings, not about the journal.
fn check_writable(folder: &Path, settings: &[Setting]) -> Result<(), SettingsError> {
    for setting in settings {
        let path = folder.join(&setting.knob);
        fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .map_err(|error| SettingsError::of(&path, error))?;
    }
    Ok(())
}

fn write_checked(entry: &SettingChange) -> Result<(), SettingsError> {
    let refused = |now| SettingsError::Refused {
        path: entry.path.clone(),
        value: entry.wanted.clone(),
        now,
    };
    if let Err(error) = fs::write(&entry.path, &entry.wanted) {
        return Err(match error.kind() {
            io::ErrorKind::InvalidInput => refused(
                fs::read_to_string(&entry.path)
                    .unwrap_or_default()
                    .trim()
                    .to_owned(),
            ),
            _ => SettingsError::of(&entry.path, error),
        });
    }
    let now = read_setting(&entry.path).map_err(|error| SettingsError::of(&entry.path, error))?;
    if now == entry.wanted {
        return Ok(());
    }
    // The kernel took another value than the wanted one. The journal would take that for the change of somebody else.
    let _ = fs::write(&entry.path, &entry.original);
    Err(refused(now))
}

#[cfg(test)]
impl SettingsGuard {
    /// Returns the journal entry without undoing it on drop, as a killed owner leaves it.
    pub(crate) fn pending_for_test(mut self) -> Option<OwnedJournal> {
        self.pending.take()
    }
}

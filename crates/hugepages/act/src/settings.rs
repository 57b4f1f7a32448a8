//! Temporary changes of the machine's huge page settings.
//!
//! Superhue touches only files below `/sys/kernel/mm/transparent_hugepage`, only when the user asks, and only after the [`Journal`] has recorded
//! how to undo it. Where the kernel then raises `vm.min_free_kbytes`, that is put back, too.

use std::fs;
use std::io;
use std::path::Path;

use crate::journal::{Journal, OwnedJournal, SettingChange};
use crate::restored::RestoreReport;
use crate::setting::{
    RAISED_BY_KERNEL, Setting, SettingsError, folder_of, free_memory_floor, read_setting,
};

/// Settings that hold until this is dropped.
#[derive(Debug)]
pub struct SettingsGuard {
    pending: Option<(Journal, OwnedJournal)>,
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
        let floor = free_memory_floor(journal.proc());
        let pending = journal.begin(|| {
            // First, so that it is put back last: the kernel raises it whenever a switch is written.
            let mut changes = Vec::from_iter(floor_if_raised(&floor, settings));
            changes.extend(read_originals(&folder, settings)?);
            Ok(changes)
        })?;
        let mut guard = Self {
            pending: Some((journal.clone(), pending)),
        };
        // From here on an early return undoes the changes: it drops the guard.
        let entries = guard.pending.iter().flat_map(|(_, it)| it.settings());
        for entry in entries.filter(|entry| entry.path != floor) {
            write_checked(entry)?;
        }
        if let Some((journal, pending)) = &mut guard.pending
            && pending.settings().any(|entry| entry.path == floor)
        {
            journal.observe(pending, &floor);
        }
        Ok(guard)
    }

    /// Restores all settings, and returns the report.
    #[must_use]
    pub fn finish(mut self) -> RestoreReport {
        self.end()
    }

    fn end(&mut self) -> RestoreReport {
        let pending = self.pending.take();
        pending
            .map(|(journal, pending)| journal.end(pending))
            .unwrap_or_default()
    }
}

impl Drop for SettingsGuard {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Returns the floor of free memory as it is, if the settings may make the kernel raise it and the caller could put it back.
fn floor_if_raised(floor: &Path, settings: &[Setting]) -> Option<SettingChange> {
    let is_switch = |setting: &Setting| {
        let name = Path::new(&setting.knob).file_name();
        name.is_some_and(|name| name.to_string_lossy().ends_with("enabled"))
    };
    settings.iter().any(is_switch).then_some(())?;
    fs::OpenOptions::new().write(true).open(floor).ok()?;
    Some(SettingChange {
        path: floor.to_owned(),
        original: read_setting(floor).ok()?,
        wanted: RAISED_BY_KERNEL.to_owned(),
    })
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
    // The kernel took another value than the wanted one. The journal would take that for a change by another program.
    let _ = fs::write(&entry.path, &entry.original);
    Err(refused(now))
}

#[cfg(test)]
impl SettingsGuard {
    /// Returns the journal entry without undoing it on drop, as a killed owner leaves it.
    pub(crate) fn pending_for_test(mut self) -> Option<OwnedJournal> {
        self.pending.take().map(|(_, pending)| pending)
    }
}

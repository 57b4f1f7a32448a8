//! The lock under which journals are written and taken over.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use superhue_state::{Folder, LockedFile};

use super::Journal;
use super::contents::{Change, SettingChange};
use super::undo::OwnedJournal;
use crate::setting::SettingsError;

/// A lock: other superhues that want to journal or undo something wait until it is dropped.
#[derive(Debug)]
pub(crate) struct JournalLock<'a> {
    pub(super) journal: &'a Journal,
    pub(super) folder: Arc<Folder>,
    /// Changes of superhues that still run.
    pub(super) theirs: Vec<Change>,
    pub(super) _lock: File,
}

impl JournalLock<'_> {
    /// Returns the numbers of the zram devices of superhues that still run.
    pub(crate) fn zrams_of_others(&self) -> impl Iterator<Item = u32> {
        self.theirs.iter().filter_map(|change| match change {
            Change::Zram(made) => made.number(),
            Change::Setting(_) => None,
        })
    }

    /// Returns the change of this setting by a superhue that still runs.
    pub(crate) fn setting_of_others(&self, path: &Path) -> Option<&SettingChange> {
        let mut settings = self.theirs.iter().filter_map(Change::setting);
        settings.find(|change| change.path == path)
    }

    /// Journals changes of settings to come.
    pub(crate) fn write_settings(
        &self,
        changes: Vec<SettingChange>,
    ) -> Result<OwnedJournal, SettingsError> {
        let mut refused = changes.iter();
        if let Some(change) = refused.find(|change| !change.is_a_setting(&self.journal.roots)) {
            let text = format!(
                "`{}` is no value to write back to {}",
                change.original,
                change.path.display()
            );
            let error = io::Error::new(io::ErrorKind::InvalidData, text);
            return Err(self.journal.error(error));
        }
        self.write(changes.into_iter().map(Change::from).collect())
    }

    /// Journals the changes to come.
    pub(crate) fn write(&self, changes: Vec<Change>) -> Result<OwnedJournal, SettingsError> {
        let written = self.journal.write(&self.folder, changes);
        written.map_err(|error| self.journal.error(error))
    }

    /// Replaces the journal of `pending` by a more exact one.
    pub(crate) fn rewrite(
        &self,
        pending: &mut OwnedJournal,
        changes: Vec<Change>,
    ) -> io::Result<()> {
        let held = self
            .journal
            .write_as(&self.folder, &pending.name, &changes)?;
        pending.changes = changes;
        // The former file has no name any more; its lock goes with it.
        pending.held = LockedFile::of(held);
        Ok(())
    }
}

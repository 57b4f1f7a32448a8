//! The journal: a record of how to undo each change of the machine, written before the change.
//!
//! ```text
//!   /run/superhue/journal/lock          taken while journals are made or undone
//!   /run/superhue/journal/PID.N.json    one per running superhue that changed something
//! ```
//!
//! A journal file is complete before it gets its name (write, sync, rename), and its owner holds a lock on it as long as the owner lives. The
//! kernel drops that lock at every kind of death, so a file that can be locked belongs to a dead owner, and its changes are undone. Reused process
//! numbers do not matter. A journal from before a reboot is void: settings in sysfs do not outlive a reboot.
//!
//! The journal holds two kinds of change: settings (of huge pages, the switch of zswap, and the floor of free memory, since `superhue-journal/3`), and
//! a zram device for swap (`zram.rs`). Superhue still undoes journals of versions that knew only settings (`superhue-journal/1`).
//!
//! Undoing is idempotent, and keeps values that another program has set since.
//!
//! Root does what a journal says. So Superhue refuses a journal that another user can have written (folder 0700, files 0600; see `superhue_state`).
//! It writes only huge page settings and the switch of zswap, and removes only devices that it recognises as its own.

mod contents;
mod lock;
mod undo;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use contents::{Change, Contents, MAX_JOURNAL_BYTES, ParsedJournal, schema_of};
use rustix::fs::{FlockOperation, flock};
use superhue_procfs::Roots;
use superhue_state::{Folder, LockedFile, StateError};

use crate::restored::{RestoreReport, UnrestoredPath};
use crate::setting::{SettingsError, free_memory_floor, read_setting};
use crate::zram::{RealMachine, SwapMachine};

pub(crate) use contents::SettingChange;
pub(crate) use lock::JournalLock;
pub(crate) use undo::OwnedJournal;

/// Folder of the journals; volatile on most systems, like the settings themselves.
const DEFAULT_FOLDER: &str = "/run/superhue/journal";

/// Mode of the parent folder, in which other users find the socket of `superhue track` and the palette.
const PARENT_MODE: u32 = 0o755;
const LOCK: &str = "lock";

/// Time that another superhue may hold the lock. It writes a few small files.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// A folder of journals.
#[derive(Debug, Clone)]
pub struct Journal {
    folder: PathBuf,
    /// The file systems that hold the settings.
    roots: Roots,
    /// Interface to swap areas and zram devices.
    pub(crate) machine: Arc<dyn SwapMachine>,
    boot_id: String,
    patience: Duration,
}

impl Default for Journal {
    fn default() -> Self {
        Self::at(DEFAULT_FOLDER, &Roots::default())
    }
}

/// State of a journal file.
#[derive(Debug)]
enum JournalState {
    /// The journal's owner lives.
    InUse(Vec<Change>),
    /// The journal's owner is dead, and its changes are to be undone.
    Dead(OwnedJournal),
    /// The journal cannot be trusted, or a newer superhue wrote it.
    Refused(UnrestoredPath),
    /// The journal's owner has removed it meanwhile.
    Gone,
}

/// The journals of a folder, by the state of their owners.
#[derive(Debug, Default)]
struct FoundJournals {
    dead: Vec<OwnedJournal>,
    /// Number of superhues that still run.
    in_use: u32,
    /// Changes of those superhues.
    theirs: Vec<Change>,
    /// Journals that cannot be trusted. They protect no running superhue.
    refused: Vec<UnrestoredPath>,
}

impl FoundJournals {
    /// Undoes the changes of dead owners, except settings that superhues which still run have journalled too.
    fn undo_dead(&mut self) -> RestoreReport {
        let mut report = RestoreReport::default();
        for pending in self.dead.drain(..) {
            report.add(pending.undo_beside(&self.theirs));
        }
        report
    }
}

impl Journal {
    /// Names the journals in `folder`, which need not exist yet, for a machine that is below `roots`.
    #[must_use]
    pub fn at(folder: impl Into<PathBuf>, roots: &Roots) -> Self {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self {
            folder: folder.into(),
            roots: roots.clone(),
            machine: Arc::new(RealMachine::of(roots)),
            boot_id: boot_id.trim().to_owned(),
            patience: LOCK_TIMEOUT,
        }
    }

    /// Returns the sysfs that holds the settings.
    pub(crate) fn sys(&self) -> &Path {
        &self.roots.sys
    }

    /// Returns the procfs that holds settings.
    pub(crate) fn proc(&self) -> &Path {
        &self.roots.proc
    }

    /// Returns the folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn error(&self, source: impl Into<io::Error>) -> SettingsError {
        SettingsError::Journal {
            path: self.folder.clone(),
            source: source.into(),
        }
    }

    /// Undoes the changes that dead superhues left behind. Does nothing where there are none.
    ///
    /// # Errors
    /// If the folder exists but may not be used, or a setting cannot be written.
    pub fn recover(&self) -> Result<RestoreReport, SettingsError> {
        let mut report = RestoreReport::default();
        let unusable = |error| SettingsError::Recover {
            path: self.folder.clone(),
            source: error,
        };
        // Below a folder of another user, the journals are not ours to write.
        if let Some(parent) = self.folder.parent() {
            match Folder::open(parent) {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(report),
                // If the folder is ours, it is now closed to other users.
                Err(StateError::Untrusted { .. }) => {
                    drop(Folder::make(parent, PARENT_MODE).map_err(unusable)?);
                }
                Err(error) => return Err(unusable(error)),
            }
        }
        let folder = match Folder::open(&self.folder) {
            Ok(Some(folder)) => Arc::new(folder),
            Ok(None) => return Ok(report),
            Err(error) if error.is_denied() => {
                report.hidden = true;
                return Ok(report);
            }
            Err(error) => return Err(unusable(error)),
        };
        let _lock = match self.lock(&folder) {
            Ok(lock) => lock,
            Err(error) if error.is_denied() => {
                report.hidden = true;
                return Ok(report);
            }
            Err(error) => return Err(unusable(error)),
        };
        let mut found = self.find(&folder, None).map_err(unusable)?;
        report.in_use = found.in_use;
        report.left.append(&mut found.refused);
        report.add(found.undo_dead());
        Ok(report)
    }

    /// Journals how to undo the changes that `read` returns, before any of them is made.
    ///
    /// Undoes the changes of dead superhues first, so that `read` finds the user's own values.
    pub(crate) fn begin(
        &self,
        read: impl FnOnce() -> Result<Vec<SettingChange>, SettingsError>,
    ) -> Result<OwnedJournal, SettingsError> {
        let turn = self.turn()?;
        let mut changes = read()?;
        let theirs = || turn.theirs.iter().filter_map(Change::setting);
        // What the kernel has raised for another superhue's settings is not the user's value.
        let floor = free_memory_floor(&self.roots.proc);
        if let Some(raised) = theirs().find(|other| other.path == floor) {
            for change in changes.iter_mut().filter(|change| change.path == floor) {
                change.original.clone_from(&raised.original);
            }
        }
        let is_taken = |change: &&SettingChange| {
            change.path != floor && theirs().any(|other| other.path == change.path)
        };
        if let Some(change) = changes.iter().find(is_taken) {
            return Err(SettingsError::Busy {
                path: change.path.clone(),
            });
        }
        turn.write_settings(changes)
    }

    /// Undoes changes, but leaves settings alone that another superhue needs as they are. That one puts them back.
    pub(crate) fn end(&self, pending: OwnedJournal) -> RestoreReport {
        match self.theirs_beside(&pending) {
            Ok((_lock, theirs)) => pending.undo_beside(&theirs),
            Err(_) => pending.undo(),
        }
    }

    /// Records the value that a journalled setting has now, which the kernel has set by itself. One that is as before stays in the journal: to put the
    /// others back may change it.
    pub(crate) fn observe(&self, pending: &mut OwnedJournal, path: &Path) {
        let Ok(now) = read_setting(path) else { return };
        let mut changes = pending.changes.clone();
        for change in &mut changes {
            if let Change::Setting(change) = change
                && change.path == path
            {
                change.wanted.clone_from(&now);
            }
        }
        // Without the lock, the less exact journal stays.
        if let Ok(turn) = self.turn() {
            let _ = turn.rewrite(pending, changes);
        }
    }

    /// Returns a lock, and the changes of other superhues that still run.
    fn theirs_beside(&self, pending: &OwnedJournal) -> Result<(File, Vec<Change>), StateError> {
        let lock = self.lock(&pending.folder)?;
        let found = self.find(&pending.folder, Some(&pending.name))?;
        Ok((lock, found.theirs))
    }

    /// Makes other superhues wait that want to journal or undo something, and undoes what dead ones left.
    pub(crate) fn turn(&self) -> Result<JournalLock<'_>, SettingsError> {
        let folder = Arc::new(self.make_folder().map_err(|error| self.error(error))?);
        let lock = self.lock(&folder).map_err(|error| self.error(error))?;
        let found = self.find(&folder, None);
        let mut found = found.map_err(|error| self.error(error))?;
        drop(found.undo_dead());
        Ok(JournalLock {
            journal: self,
            folder,
            theirs: found.theirs,
            _lock: lock,
        })
    }

    /// Makes the folder, private to this user, in a parent folder that all users may read.
    fn make_folder(&self) -> Result<Folder, StateError> {
        if let Some(parent) = self.folder.parent() {
            Folder::make(parent, PARENT_MODE)?;
        }
        Folder::make(&self.folder, 0o700)
    }

    fn write(&self, folder: &Arc<Folder>, changes: Vec<Change>) -> io::Result<OwnedJournal> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let pid = std::process::id();
        // A killed superhue with this number, or one of another PID namespace, may have left a journal that must stay.
        let taken = folder.names()?;
        let name = loop {
            let name = format!("{pid}.{}.json", COUNT.fetch_add(1, Ordering::Relaxed));
            if !taken.iter().any(|it| *it == *name) {
                break name;
            }
        };
        let held = self.write_as(folder, OsStr::new(&name), &changes)?;
        Ok(OwnedJournal {
            changes,
            folder: Arc::clone(folder),
            name: name.into(),
            machine: Arc::clone(&self.machine),
            held: LockedFile::of(held),
        })
    }

    /// Writes a whole journal, and replaces a file of that name. The file is locked before it gets the name.
    fn write_as(&self, folder: &Folder, name: &OsStr, changes: &[Change]) -> io::Result<File> {
        let unfinished = Path::new(name).with_extension("unfinished");
        let contents = Contents {
            schema: schema_of(changes).to_owned(),
            boot_id: self.boot_id.clone(),
            pid: std::process::id(),
            entries: changes.to_vec(),
        };
        let mut file = folder.create_file(&unfinished)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let written = serde_json::to_vec_pretty(&contents)
            .map_err(io::Error::from)
            .and_then(|text| file.write_all(&text))
            .and_then(|()| file.sync_all())
            .and_then(|()| Ok(folder.rename(&unfinished, name)?));
        if let Err(error) = written {
            let _ = folder.remove(&unfinished);
            return Err(error);
        }
        Ok(file)
    }

    fn lock(&self, folder: &Folder) -> Result<File, StateError> {
        match folder.lock(LOCK, self.patience) {
            // The lock dates from a time when the folder was open to other users, as old versions could make it. The folder is private now, so the
            // lock can be replaced.
            Err(StateError::Untrusted { .. }) if folder.is_private() => {
                folder.remove(LOCK)?;
                folder.lock(LOCK, self.patience)
            }
            lock => lock,
        }
    }

    /// Returns all journals in a locked folder but the one of that name.
    fn find(
        &self,
        folder: &Arc<Folder>,
        ours: Option<&OsStr>,
    ) -> Result<FoundJournals, StateError> {
        let mut found = FoundJournals::default();
        for name in files(folder)? {
            if Some(&*name) == ours {
                continue;
            }
            match self.take_over(folder, &name)? {
                JournalState::InUse(changes) => {
                    found.in_use += 1;
                    found.theirs.extend(changes);
                }
                JournalState::Dead(pending) => found.dead.push(pending),
                JournalState::Refused(left) => found.refused.push(left),
                JournalState::Gone => {}
            }
        }
        Ok(found)
    }

    /// Opens a journal, for undoing if its owner is dead.
    fn take_over(&self, folder: &Arc<Folder>, name: &OsStr) -> Result<JournalState, StateError> {
        let path = folder.path().join(name);
        let refused = |reason: String| {
            Ok(JournalState::Refused(UnrestoredPath {
                path: path.clone(),
                reason,
            }))
        };
        let file = match folder.open_file(name) {
            Ok(Some(file)) => file,
            Ok(None) => return Ok(JournalState::Gone),
            Err(error @ StateError::Untrusted { .. }) => return refused(error.to_string()),
            Err(error) => return Err(error),
        };
        let lives = flock(&file, FlockOperation::NonBlockingLockExclusive).is_err();
        let contents = folder.read(name, &file, MAX_JOURNAL_BYTES)?;
        let changes = match ParsedJournal::of(&contents, &self.boot_id) {
            ParsedJournal::Changes(changes) => changes,
            ParsedJournal::Nothing => Vec::new(),
            ParsedJournal::Newer => {
                let reason = "a newer superhue wrote it: run that one's `superhue restore`";
                return refused(reason.to_owned());
            }
        };
        let mut settings = changes.iter().filter_map(Change::setting);
        if let Some(change) = settings.find(|change| !change.is_a_setting(&self.roots)) {
            return refused(format!(
                "it wants `{}` written to {}, which superhue never changes; look who made it, and remove it",
                change.original,
                change.path.display()
            ));
        }
        if lives {
            return Ok(JournalState::InUse(changes));
        }
        Ok(JournalState::Dead(OwnedJournal {
            changes,
            folder: Arc::clone(folder),
            name: name.to_owned(),
            machine: Arc::clone(&self.machine),
            held: LockedFile::of(file),
        }))
    }
}

/// Returns the finished journals, and removes leftovers of an owner killed while writing.
fn files(folder: &Folder) -> Result<Vec<OsString>, StateError> {
    let mut found = Vec::new();
    for name in folder.names()? {
        match Path::new(&name).extension().and_then(OsStr::to_str) {
            Some("json") => found.push(name),
            // We hold the lock, so the writer is dead, and it had changed nothing yet.
            Some("unfinished") => drop(folder.remove(&name)),
            _ => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;

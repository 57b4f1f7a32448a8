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

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};
use superhue_procfs::Roots;
use superhue_state::{Folder, StateError};

use crate::restored::{RestoreReport, RestoredFile, UnrestoredPath};
use crate::setting::{
    RAISED_BY_KERNEL, Setting, SettingsError, folder_of, free_memory_floor, is_zswap_value,
    read_setting, zswap_switch,
};
use crate::zram::{RealMachine, SwapMachine, UndoResult, ZramDevice, node};

/// Folder of the journals; volatile on most systems, like the settings themselves.
const DEFAULT_FOLDER: &str = "/run/superhue/journal";

/// Mode of the parent folder, in which other users find the socket of `superhue track` and the palette.
const PARENT_MODE: u32 = 0o755;
const LOCK: &str = "lock";
/// Time that another superhue may hold the lock. It writes a few small files.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a journal at most; a setting takes some 200.
const MAX_JOURNAL_BYTES: u64 = 1 << 20;

/// One change of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Change {
    /// A file was written.
    Setting(SettingChange),
    /// A device was made.
    Zram(ZramDevice),
}

impl From<SettingChange> for Change {
    fn from(change: SettingChange) -> Self {
        Self::Setting(change)
    }
}

impl From<ZramDevice> for Change {
    fn from(made: ZramDevice) -> Self {
        Self::Zram(made)
    }
}

impl Change {
    /// Returns the written setting; `None` for a device.
    fn setting(&self) -> Option<&SettingChange> {
        match self {
            Self::Setting(change) => Some(change),
            Self::Zram(_) => None,
        }
    }
}

/// One changed file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SettingChange {
    pub(crate) path: PathBuf,
    pub(crate) original: String,
    pub(crate) wanted: String,
}

impl SettingChange {
    /// Returns true if this is a change that superhue makes, to a setting of the machine below `roots`.
    fn is_a_setting(&self, roots: &Roots) -> bool {
        let sys = roots.sys.as_path();
        if self.path == free_memory_floor(&roots.proc) {
            let is_number = |text: &str| text.parse::<u64>().is_ok();
            return is_number(&self.original)
                && (is_number(&self.wanted) || self.wanted == RAISED_BY_KERNEL);
        }
        if self.path == zswap_switch(sys) {
            return [&self.original, &self.wanted]
                .iter()
                .all(|it| is_zswap_value(it));
        }
        let knob = self.path.strip_prefix(folder_of(sys)).ok();
        let Some(knob) = knob.and_then(Path::to_str) else {
            return false;
        };
        [&self.original, &self.wanted]
            .iter()
            .all(|value| format!("{knob}={value}").parse::<Setting>().is_ok())
    }
}

/// Contents of a journal file; those of the first version have entries of one kind.
#[derive(Debug, Serialize, Deserialize)]
struct Contents<T = Change> {
    schema: String,
    boot_id: String,
    pid: u32,
    entries: Vec<T>,
}

/// Fields that every version of a journal has.
#[derive(Debug, Deserialize)]
struct Head {
    schema: String,
    boot_id: String,
}

const SCHEMA: &str = "superhue-journal/3";
const SECOND_SCHEMA: &str = "superhue-journal/2";
/// Returns the oldest version that knows all of these changes, so that an older superhue refuses no more than it must.
fn schema_of(changes: &[Change]) -> &'static str {
    let mut settings = changes.iter().filter_map(Change::setting);
    match settings.any(is_floor) {
        true => SCHEMA,
        false => SECOND_SCHEMA,
    }
}

const FIRST_SCHEMA: &str = "superhue-journal/1";
const SCHEMAS: &str = "superhue-journal/";

/// Changes that a journal file lists.
enum ParsedJournal {
    Changes(Vec<Change>),
    /// It is from before a reboot, or a file that no superhue finished writing.
    Nothing,
    /// A later version, whose format this one does not know.
    Newer,
}

impl ParsedJournal {
    fn of(bytes: &[u8], boot_id: &str) -> Self {
        let Ok(head) = serde_json::from_slice::<Head>(bytes) else {
            return Self::Nothing;
        };
        if head.boot_id != boot_id {
            return Self::Nothing;
        }
        let changes = match head.schema.as_str() {
            SCHEMA | SECOND_SCHEMA => {
                serde_json::from_slice::<Contents>(bytes).map(|contents| contents.entries)
            }
            FIRST_SCHEMA => {
                serde_json::from_slice::<Contents<SettingChange>>(bytes).map(|contents| {
                    let changes = contents.entries.into_iter();
                    changes.map(Change::from).collect()
                })
            }
            newer if newer.starts_with(SCHEMAS) => return Self::Newer,
            _ => return Self::Nothing,
        };
        changes.map_or(Self::Nothing, Self::Changes)
    }
}

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
    /// Its owner lives.
    InUse(Vec<Change>),
    /// Its owner is dead, and its changes are to be undone.
    Dead(OwnedJournal),
    /// It cannot be trusted.
    Refused(UnrestoredPath),
    /// Its owner has removed it meanwhile.
    Gone,
}

/// The journals of a folder, by the state of their owners.
#[derive(Debug, Default)]
struct FoundJournals {
    dead: Vec<OwnedJournal>,
    /// Number of superhues that still run.
    in_use: u32,
    /// Their changes.
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
            held,
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
            // lock can be removed for good.
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
            held: file,
        }))
    }
}

/// A lock: other superhues that want to journal or undo something wait until it is dropped.
#[derive(Debug)]
pub(crate) struct JournalLock<'a> {
    journal: &'a Journal,
    folder: Arc<Folder>,
    /// Changes of superhues that still run.
    theirs: Vec<Change>,
    _lock: File,
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
        pending.held = held;
        Ok(())
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

/// A journal this process is responsible for.
#[derive(Debug)]
pub(crate) struct OwnedJournal {
    changes: Vec<Change>,
    folder: Arc<Folder>,
    name: OsString,
    machine: Arc<dyn SwapMachine>,
    /// Holds the lock, which shows that the owner lives.
    held: File,
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
    fn undo_beside(self, theirs: &[Change]) -> RestoreReport {
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
fn is_floor(change: &SettingChange) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Setting, SettingsGuard};

    /// A sysfs with the two settings the tests use, and a journal beside it.
    struct Machine {
        root: tempfile::TempDir,
    }

    impl Machine {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let folder = root.path().join("sys/kernel/mm/transparent_hugepage");
            fs::create_dir_all(folder.join("khugepaged")).unwrap();
            fs::write(folder.join("enabled"), "always [madvise] never\n").unwrap();
            fs::write(folder.join("khugepaged/defrag"), "1\n").unwrap();
            fs::create_dir(root.path().join("run")).unwrap();
            Self { root }
        }

        fn journal(&self) -> Journal {
            Journal {
                patience: Duration::from_millis(20),
                ..Journal::at(
                    self.root.path().join("run/journal"),
                    &Roots::under(self.root.path()),
                )
            }
        }

        fn sys(&self) -> PathBuf {
            self.root.path().join("sys")
        }

        fn value(&self, knob: &str) -> String {
            read_setting(&self.sys().join("kernel/mm/transparent_hugepage").join(knob)).unwrap()
        }

        fn apply(&self, settings: &[&str]) -> Result<SettingsGuard, SettingsError> {
            let settings: Vec<Setting> = settings.iter().map(|s| s.parse().unwrap()).collect();
            SettingsGuard::apply(&self.journal(), &self.sys(), &settings)
        }

        fn journals(&self) -> usize {
            let folder = Folder::open(self.journal().folder()).unwrap();
            folder.map_or(0, |folder| files(&folder).unwrap().len())
        }
    }

    #[test]
    fn settings_hold_until_the_guard_goes() {
        let machine = Machine::new();
        let guard = machine
            .apply(&["enabled=always", "khugepaged/defrag=0"])
            .unwrap();
        assert_eq!(machine.value("enabled"), "always");
        assert_eq!(machine.value("khugepaged/defrag"), "0");
        assert_eq!(machine.journals(), 1);
        let report = guard.finish();
        assert_eq!(report.restored.len(), 2);
        assert_eq!(machine.value("enabled"), "madvise");
        assert_eq!(machine.value("khugepaged/defrag"), "1");
        assert_eq!(machine.journals(), 0);
    }

    #[test]
    fn a_dead_owners_changes_are_undone_and_a_live_ones_are_not() {
        let machine = Machine::new();
        let guard = machine.apply(&["enabled=never"]).unwrap();
        let alive = machine.journal().recover().unwrap();
        assert_eq!((alive.in_use, alive.restored.len()), (1, 0));
        assert_eq!(machine.value("enabled"), "never");
        assert!(matches!(
            machine.apply(&["enabled=always"]),
            Err(SettingsError::Busy { .. })
        ));

        // Death as the kernel sees it: the lock is gone, nothing was undone.
        drop(guard.pending_for_test());
        let dead = machine.journal().recover().unwrap();
        assert_eq!((dead.in_use, dead.restored.len()), (0, 1));
        assert_eq!(machine.value("enabled"), "madvise");
        assert_eq!(
            machine.journal().recover().unwrap(),
            RestoreReport::default()
        );
    }

    #[test]
    fn a_change_after_a_death_finds_the_users_value() {
        let machine = Machine::new();
        drop(
            machine
                .apply(&["enabled=never"])
                .unwrap()
                .pending_for_test(),
        );
        drop(machine.apply(&["enabled=always"]).unwrap());
        assert_eq!(machine.value("enabled"), "madvise");
    }

    #[test]
    fn what_somebody_else_set_since_is_left_alone() {
        let machine = Machine::new();
        let guard = machine.apply(&["enabled=never"]).unwrap();
        let file = machine.sys().join("kernel/mm/transparent_hugepage/enabled");
        fs::write(file, "[always] madvise never\n").unwrap();
        let report = guard.finish();
        assert_eq!((report.restored.len(), report.left.len()), (0, 1));
        assert_eq!(machine.value("enabled"), "always");
        assert_eq!(machine.journals(), 0);
    }

    #[test]
    fn a_journal_from_before_a_reboot_or_of_nonsense_is_void() {
        let machine = Machine::new();
        drop(
            machine
                .apply(&["enabled=never"])
                .unwrap()
                .pending_for_test(),
        );
        let elsewhere = Journal {
            boot_id: "another boot".to_owned(),
            ..machine.journal()
        };
        assert_eq!(elsewhere.recover().unwrap(), RestoreReport::default());
        assert_eq!(machine.value("enabled"), "never");
        assert_eq!(machine.journals(), 0);

        fs::write(
            machine.journal().folder().join("9.json"),
            b"{\"entries\": [",
        )
        .unwrap();
        fs::write(machine.journal().folder().join("9.unfinished"), b"").unwrap();
        assert_eq!(
            machine.journal().recover().unwrap(),
            RestoreReport::default()
        );
        assert_eq!(machine.journals(), 0);
    }

    #[test]
    fn a_refused_change_undoes_those_before_it() {
        let machine = Machine::new();
        let missing = machine.apply(&["enabled=always", "no_such_knob=1"]);
        assert!(matches!(missing, Err(SettingsError::Missing { .. })));
        assert!(matches!(
            machine.apply(&["enabled=always", "enabled=never"]),
            Err(SettingsError::Twice { .. })
        ));
        assert_eq!(machine.value("enabled"), "madvise");
        assert_eq!(
            machine.apply(&[]).unwrap().finish(),
            RestoreReport::default()
        );
    }

    /// Text of a journal of this boot with these entries.
    fn text(machine: &Machine, entries: &[(&Path, &str, &str)]) -> String {
        let entries = entries
            .iter()
            .map(|(path, original, wanted)| SettingChange {
                path: path.to_path_buf(),
                original: (*original).to_owned(),
                wanted: (*wanted).to_owned(),
            });
        let entries = entries.map(Change::from);
        let contents = Contents {
            schema: SCHEMA.to_owned(),
            boot_id: machine.journal().boot_id,
            pid: 9,
            entries: entries.collect(),
        };
        serde_json::to_string(&contents).unwrap()
    }

    /// Writes a journal as if a dead owner had left it.
    fn plant(machine: &Machine, text: &str) {
        let path = machine.journal().folder().join("9.0.json");
        fs::write(&path, text).unwrap();
        let ours = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&path, ours).unwrap();
    }

    #[test]
    fn journals_of_other_versions_are_undone_or_kept() {
        let machine = Machine::new();
        drop(machine.apply(&["enabled=never"]).unwrap());
        let defrag = machine
            .sys()
            .join("kernel/mm/transparent_hugepage/khugepaged/defrag");
        fs::write(&defrag, "0").unwrap();
        // As superhue 0.1 wrote it.
        let first = serde_json::json!({
            "schema": "superhue-journal/1", "boot_id": machine.journal().boot_id, "pid": 9,
            "entries": [{"path": defrag, "original": "1", "wanted": "0"}],
        });
        plant(&machine, &first.to_string());
        let report = machine.journal().recover().unwrap();
        assert_eq!((report.restored.len(), report.left.len()), (1, 0));
        assert_eq!(machine.value("khugepaged/defrag"), "1");
        assert_eq!(machine.journals(), 0);

        let newer = first.to_string().replace("journal/1", "journal/4");
        plant(&machine, &newer);
        let report = machine.journal().recover().unwrap();
        assert!(
            report.left[0].reason.contains("newer superhue"),
            "{report:?}"
        );
        assert_eq!(machine.journals(), 1);
        drop(machine.apply(&["enabled=never"]).unwrap());
    }

    fn mode(path: &Path) -> u32 {
        use std::os::unix::fs::PermissionsExt;
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn the_journal_is_for_its_owner_alone() {
        let machine = Machine::new();
        let folder = machine.journal().folder;
        let guard = machine.apply(&["enabled=never"]).unwrap();
        assert_eq!(mode(&folder), 0o700);
        for file in fs::read_dir(&folder).unwrap() {
            let path = file.unwrap().path();
            assert_eq!(mode(&path), 0o600, "{path:?}");
        }
        drop(guard);
        // Superhue closes a folder that is open to other users before it writes there.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(&folder, open).unwrap();
        drop(machine.apply(&["enabled=never"]).unwrap());
        assert_eq!(mode(&folder), 0o700);
    }

    #[test]
    fn a_journal_changes_huge_page_settings_and_nothing_else() {
        let machine = Machine::new();
        drop(machine.apply(&["enabled=never"]).unwrap());
        let shadow = machine.root.path().join("shadow");
        fs::write(&shadow, "secret").unwrap();
        let settings = machine.sys().join("kernel/mm/transparent_hugepage");
        std::os::unix::fs::symlink(&shadow, settings.join("link")).unwrap();
        let journal = machine.journal().folder().join("9.0.json");
        let up = settings.join("../../../../shadow");
        let defrag = settings.join("khugepaged/defrag");
        let (link, none) = (settings.join("link"), settings.join("none"));
        for (bad, is_refused) in [
            ((shadow.as_path(), "root::0", "secret"), true),
            ((up.as_path(), "root::0", "secret"), true),
            ((defrag.as_path(), "0 0", "1"), true),
            ((link.as_path(), "root::0", "secret"), false),
            ((none.as_path(), "0", "1"), false),
        ] {
            fs::write(&journal, text(&machine, &[(&defrag, "0", "1"), bad])).unwrap();
            let report = machine.journal().recover().unwrap();
            assert_eq!(report.left.len(), 1, "{report:?}");
            assert_eq!(report.restored.is_empty(), is_refused, "{report:?}");
            assert_eq!(
                machine.value("khugepaged/defrag"),
                if is_refused { "1" } else { "0" }
            );
            assert_eq!(fs::read(&shadow).unwrap(), b"secret");
            assert!(!none.exists());
            drop(machine.apply(&["enabled=never"]).unwrap());
            let _ = fs::remove_file(&journal);
            fs::write(&defrag, "1").unwrap();
        }
    }

    #[test]
    fn a_floor_of_free_memory_that_the_kernel_raised_is_put_back() {
        let machine = Machine::new();
        let floor = machine.root.path().join("proc/sys/vm/min_free_kbytes");
        fs::create_dir_all(floor.parent().unwrap()).unwrap();
        fs::write(&floor, "8192\n").unwrap();
        let guard = machine.apply(&["enabled=always"]).unwrap();
        // Nothing was raised here, so nothing else is put back.
        assert_eq!(guard.finish().restored.len(), 1);
        // The kernel may also change it when the switch is put back: here, while the journal is undone.
        let guard = machine.apply(&["enabled=never"]).unwrap();
        fs::write(&floor, "8192").unwrap();
        let pending = guard.pending_for_test().unwrap();
        assert_eq!(pending.settings().next().unwrap().wanted, "8192");
        drop(pending);
        assert_eq!(machine.journal().recover().unwrap().restored.len(), 1);
        for (now, wanted, expected) in [
            ("67584", RAISED_BY_KERNEL, "8192"),
            ("67584", "67584", "8192"),
            // Somebody else has set it since.
            ("4096", RAISED_BY_KERNEL, "4096"),
            ("90000", "67584", "90000"),
        ] {
            fs::write(&floor, now).unwrap();
            plant(&machine, &text(&machine, &[(&floor, "8192", wanted)]));
            let report = machine.journal().recover().unwrap();
            assert_eq!(read_setting(&floor).unwrap(), expected, "{report:?}");
            assert_eq!(report.left.len(), usize::from(expected == now));
        }
        for bad in ["", "-1", "8192; reboot"] {
            plant(&machine, &text(&machine, &[(&floor, bad, "67584")]));
            let report = machine.journal().recover().unwrap();
            assert!(
                report.left[0].reason.contains("never changes"),
                "{report:?}"
            );
        }
    }

    #[test]
    fn planted_journals_are_left_alone_and_block_nobody() {
        let machine = Machine::new();
        drop(machine.apply(&["enabled=never"]).unwrap());
        let folder = machine.journal().folder;
        let defrag = machine
            .sys()
            .join("kernel/mm/transparent_hugepage/khugepaged/defrag");
        let text = text(&machine, &[(&defrag, "0", "1")]);
        let real = machine.root.path().join("real");
        fs::write(&real, &text).unwrap();
        std::os::unix::fs::symlink(&real, folder.join("1.0.json")).unwrap();
        fs::hard_link(&real, folder.join("2.0.json")).unwrap();
        let fifo = rustix::fs::FileType::Fifo;
        let user = rustix::fs::Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(rustix::fs::CWD, folder.join("3.0.json"), fifo, user, 0).unwrap();
        fs::create_dir(folder.join("4.0.json")).unwrap();
        let open = folder.join("5.0.json");
        fs::write(&open, &text).unwrap();
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        fs::set_permissions(&open, everybody).unwrap();
        let mut planted = 5;
        if superhue_testing::is_root() {
            let path = folder.join("6.0.json");
            fs::write(&path, &text).unwrap();
            std::os::unix::fs::chown(&path, Some(superhue_testing::NOBODY), None).unwrap();
            planted += 1;
        } else {
            superhue_testing::skip("root", "cannot make a file of another user");
        }
        let report = machine.journal().recover().unwrap();
        assert_eq!(
            (report.left.len(), report.restored.len()),
            (planted, 0),
            "{report:?}"
        );
        assert_eq!(machine.value("khugepaged/defrag"), "1");
        drop(machine.apply(&["khugepaged/defrag=0"]).unwrap());
        assert_eq!(machine.value("khugepaged/defrag"), "1");
    }

    #[test]
    fn a_lock_that_somebody_holds_ends_in_an_error() {
        let machine = Machine::new();
        drop(machine.apply(&["enabled=never"]).unwrap());
        let lock = machine.journal().folder().join("lock");
        let held = File::open(&lock).unwrap();
        held.lock().unwrap();
        let error = machine.apply(&["enabled=never"]).unwrap_err().to_string();
        assert!(error.contains("still locked after"), "{error}");
        let error = machine.journal().recover().unwrap_err().to_string();
        assert!(error.contains("still locked after"), "{error}");
        // A lock that other users can open is replaced.
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        fs::set_permissions(&lock, everybody).unwrap();
        drop(machine.apply(&["enabled=never"]).unwrap());
        assert_eq!(mode(&lock), 0o600);
    }

    #[test]
    fn a_folder_of_somebody_else_is_not_used() {
        if !superhue_testing::is_root() {
            return superhue_testing::skip("root", "cannot make a folder of another user");
        }
        let machine = Machine::new();
        let guard = machine.apply(&["enabled=never"]).unwrap();
        drop(guard.pending_for_test());
        let folder = machine.journal().folder;
        for theirs in [folder.as_path(), folder.parent().unwrap()] {
            let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            fs::set_permissions(folder.parent().unwrap(), everybody).unwrap();
            let give = |user| std::os::unix::fs::chown(theirs, Some(user), None).unwrap();
            give(superhue_testing::NOBODY);
            let error = machine.journal().recover().unwrap_err().to_string();
            assert!(error.contains("belongs to user 65534"), "{error}");
            assert!(error.contains("nothing was restored"), "{error}");
            let error = machine.apply(&["enabled=always"]).unwrap_err().to_string();
            assert!(error.contains("belongs to user 65534"), "{error}");
            give(0);
        }
        assert_eq!(machine.journal().recover().unwrap().restored.len(), 1);
        assert_eq!(mode(folder.parent().unwrap()), 0o755);
    }
}

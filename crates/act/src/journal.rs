//! The journal: how to undo what was changed on the machine, written before it is changed.
//!
//! ```text
//!   /run/superhue/journal/lock          taken while journals are made or undone
//!   /run/superhue/journal/PID.N.json    one per running superhue that changed something
//! ```
//!
//! A journal file is complete before it gets its name (write, sync, rename), and its owner holds a
//! lock on it for as long as it lives. The kernel drops that lock at every kind of death, so a file
//! that can be locked is a dead owner's and is to be undone; a process number that is used again
//! fools nobody. A journal from before a reboot is void: settings in sysfs do not outlive one.
//!
//! Undoing is idempotent, and leaves alone what somebody else has changed since.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::settings::{SettingsError, read_setting};

/// Where journals are kept; volatile on most systems, like the settings themselves.
const DEFAULT_FOLDER: &str = "/run/superhue/journal";

/// One changed file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) path: PathBuf,
    pub(crate) original: String,
    pub(crate) wanted: String,
}

/// Contents of a journal file.
#[derive(Debug, Serialize, Deserialize)]
struct Contents {
    schema: String,
    boot_id: String,
    pid: u32,
    entries: Vec<Entry>,
}

const SCHEMA: &str = "superhue-journal/1";

/// What undoing came to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct RestoreReport {
    /// Files that were given their former value.
    pub restored: Vec<Restored>,
    /// Files that were left as they are, and why.
    pub left: Vec<LeftAlone>,
    /// Journals of superhues that still run; theirs to undo.
    pub in_use: u32,
}

/// A file that was given its former value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// Which.
    pub path: PathBuf,
    /// The value it has again.
    pub value: String,
}

/// A file that was left as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftAlone {
    /// Which.
    pub path: PathBuf,
    /// Why.
    pub reason: String,
}

impl RestoreReport {
    fn add(&mut self, other: Self) {
        self.restored.extend(other.restored);
        self.left.extend(other.left);
        self.in_use += other.in_use;
    }
}

/// A folder of journals.
#[derive(Debug, Clone)]
pub struct Journal {
    folder: PathBuf,
    boot_id: String,
}

impl Default for Journal {
    fn default() -> Self {
        Self::at(DEFAULT_FOLDER)
    }
}

impl Journal {
    /// The journals in `folder`, which need not exist yet.
    #[must_use]
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self {
            folder: folder.into(),
            boot_id: boot_id.trim().to_owned(),
        }
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn error(&self, source: io::Error) -> SettingsError {
        SettingsError::Journal {
            path: self.folder.clone(),
            source,
        }
    }

    /// Undoes what dead superhues left behind. Does nothing where there is nothing.
    ///
    /// # Errors
    /// When the folder is there but may not be used, or a setting cannot be written.
    pub fn recover(&self) -> Result<RestoreReport, SettingsError> {
        if !self.folder.exists() {
            return Ok(RestoreReport::default());
        }
        let _lock = self.lock().map_err(|error| self.error(error))?;
        let mut report = RestoreReport::default();
        for path in self.files().map_err(|error| self.error(error))? {
            match self.take_over(&path).map_err(|error| self.error(error))? {
                None => report.in_use += 1,
                Some(pending) => report.add(pending.undo()),
            }
        }
        Ok(report)
    }

    /// Writes down how to undo what `read` says will be changed, before any of it is.
    ///
    /// What dead superhues left is undone first, so that `read` finds the user's own values.
    pub(crate) fn begin(
        &self,
        read: impl FnOnce() -> Result<Vec<Entry>, SettingsError>,
    ) -> Result<Pending, SettingsError> {
        fs::create_dir_all(&self.folder).map_err(|error| self.error(error))?;
        let _lock = self.lock().map_err(|error| self.error(error))?;
        let mut in_use = Vec::new();
        for path in self.files().map_err(|error| self.error(error))? {
            match self.take_over(&path).map_err(|error| self.error(error))? {
                Some(pending) => drop(pending.undo()),
                None => in_use.push(path),
            }
        }
        let entries = read()?;
        for path in in_use {
            let theirs = read_contents(&path)
                .map(|contents| contents.entries)
                .unwrap_or_default();
            if let Some(entry) = entries
                .iter()
                .find(|entry| theirs.iter().any(|other| other.path == entry.path))
            {
                return Err(SettingsError::Busy {
                    path: entry.path.clone(),
                });
            }
        }
        self.write(entries).map_err(|error| self.error(error))
    }

    fn write(&self, entries: Vec<Entry>) -> io::Result<Pending> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let pid = std::process::id();
        let name = format!("{pid}.{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let unfinished = self.folder.join(format!("{name}.unfinished"));
        let path = self.folder.join(format!("{name}.json"));
        let contents = Contents {
            schema: SCHEMA.to_owned(),
            boot_id: self.boot_id.clone(),
            pid,
            entries: entries.clone(),
        };
        let mut file = File::create(&unfinished)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let written = serde_json::to_writer_pretty(&mut file, &contents)
            .map_err(io::Error::from)
            .and_then(|()| file.flush())
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&unfinished, &path))
            .and_then(|()| File::open(&self.folder)?.sync_all());
        if let Err(error) = written {
            let _ = fs::remove_file(&unfinished);
            return Err(error);
        }
        Ok(Pending {
            entries,
            path,
            _held: file,
        })
    }

    fn lock(&self) -> io::Result<File> {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.folder.join("lock"))?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    }

    /// The finished journals; leftovers of an owner killed while writing are removed on the way.
    fn files(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for file in fs::read_dir(&self.folder)? {
            let path = file?.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("json") => found.push(path),
                // Under the lock, so its writer is no more, and it had changed nothing yet.
                Some("unfinished") => drop(fs::remove_file(&path)),
                _ => {}
            }
        }
        found.sort();
        Ok(found)
    }

    /// Opens the journal at `path` for undoing; `None` if its owner lives. A void one is removed.
    fn take_over(&self, path: &Path) -> io::Result<Option<Pending>> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Some(Pending::void(path)?));
            }
            Err(error) => return Err(error),
        };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(None);
        }
        let entries = match read_contents(path) {
            Ok(contents) if contents.schema == SCHEMA && contents.boot_id == self.boot_id => {
                contents.entries
            }
            // From before a reboot, or nothing that a superhue finished writing.
            _ => Vec::new(),
        };
        Ok(Some(Pending {
            entries,
            path: path.to_owned(),
            _held: file,
        }))
    }
}

fn read_contents(path: &Path) -> io::Result<Contents> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// A journal this process is responsible for.
#[derive(Debug)]
pub(crate) struct Pending {
    entries: Vec<Entry>,
    path: PathBuf,
    /// Holds the lock that says the owner lives.
    _held: File,
}

impl Pending {
    fn void(path: &Path) -> io::Result<Self> {
        Ok(Self {
            entries: Vec::new(),
            path: path.to_owned(),
            _held: File::open("/dev/null")?,
        })
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Puts every file back, newest change first, and removes the journal.
    ///
    /// If some file could not be written the journal stays, for a later attempt.
    pub(crate) fn undo(self) -> RestoreReport {
        let mut report = RestoreReport::default();
        let mut failed = false;
        for entry in self.entries.iter().rev() {
            let leave = |reason: String| LeftAlone {
                path: entry.path.clone(),
                reason,
            };
            match read_setting(&entry.path) {
                Ok(now) if now == entry.original => {}
                Ok(now) if now != entry.wanted => report.left.push(leave(format!(
                    "somebody has set it to `{now}` since (superhue had changed `{}` to `{}`)",
                    entry.original, entry.wanted
                ))),
                Ok(_) => match fs::write(&entry.path, &entry.original) {
                    Ok(()) => report.restored.push(Restored {
                        path: entry.path.clone(),
                        value: entry.original.clone(),
                    }),
                    Err(error) => {
                        failed = true;
                        report.left.push(leave(format!(
                            "cannot write `{}`: {error}; run `superhue restore` as root",
                            entry.original
                        )));
                    }
                },
                Err(error) => {
                    failed = error.kind() != io::ErrorKind::NotFound;
                    report.left.push(leave(format!("cannot read it: {error}")));
                }
            }
        }
        if !failed {
            let _ = fs::remove_file(&self.path);
        }
        report
    }
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
            Self { root }
        }

        fn journal(&self) -> Journal {
            Journal::at(self.root.path().join("journal"))
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
            self.journal().files().unwrap().len()
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
}

//! Changing the machine's superpage settings for a while.
//!
//! Only files below `/sys/kernel/mm/transparent_hugepage` are touched, only when the user asked, and
//! only after the [`Journal`] says how to undo it.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use superhue_state::StateError;

use crate::journal::{Entry, Journal, Pending, RestoreReport};

/// The folder of the settings, below the root of sysfs.
const FOLDER: &str = "kernel/mm/transparent_hugepage";

/// The folder of the settings below the sysfs at `sys`.
pub(crate) fn folder_of(sys: &Path) -> PathBuf {
    sys.join(FOLDER)
}

/// One setting to change: `enabled=always`, `khugepaged/pages_to_scan=65536`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// File below `/sys/kernel/mm/transparent_hugepage`.
    pub knob: String,
    /// What to write.
    pub value: String,
}

/// Why `KNOB=VALUE` was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not KNOB=VALUE with KNOB a file below /sys/{FOLDER} (e.g. enabled=always, \
     khugepaged/scan_sleep_millisecs=100)"
)]
pub struct ParseSettingError(String);

impl FromStr for Setting {
    type Err = ParseSettingError;

    fn from_str(text: &str) -> Result<Self, ParseSettingError> {
        let fail = || ParseSettingError(text.to_owned());
        let (knob, value) = text.split_once('=').ok_or_else(fail)?;
        let is_inside = !knob.is_empty()
            && Path::new(knob)
                .components()
                .all(|part| matches!(part, Component::Normal(_)));
        let is_word = !value.is_empty() && value.bytes().all(|b| b.is_ascii_graphic() && b != b'[');
        if is_inside && is_word {
            Ok(Self {
                knob: knob.to_owned(),
                value: value.to_owned(),
            })
        } else {
            Err(fail())
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.knob, self.value)
    }
}

/// Why settings could not be changed. Whatever had been changed before is put back.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The kernel has no such setting.
    #[error("{} does not exist: this kernel has no such superpage setting", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The caller may not.
    #[error("may not change {}: run as root, outside a container with read-only sysfs", path.display())]
    Denied {
        /// The file.
        path: PathBuf,
    },
    /// The kernel did not take the value.
    #[error("{} does not accept `{value}` (it now says: {now})", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// What was written.
        value: String,
        /// Its contents.
        now: String,
    },
    /// Another running superhue has changed it.
    #[error("{} was changed by another superhue that still runs: wait until it ends", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// The same setting is asked for twice.
    #[error("{} is asked for twice", path.display())]
    Twice {
        /// The file.
        path: PathBuf,
    },
    /// The journal could not be written, so nothing was changed.
    #[error("cannot write the journal {}: {source}; nothing was changed", path.display())]
    Journal {
        /// Where.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The journals may not be used, so what they say was not undone.
    #[error("cannot use the journals in {}: {source}; nothing was restored", path.display())]
    Recover {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: StateError,
    },
    /// Any other failure.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
}

impl SettingsError {
    pub(crate) fn of(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => Self::Missing { path },
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::Denied { path }
            }
            _ => Self::Io { path, source },
        }
    }
}

/// Settings that hold until this is dropped.
#[derive(Debug)]
pub struct SettingsGuard {
    pending: Option<Pending>,
}

impl SettingsGuard {
    /// Changes `settings` below the sysfs at `sys`, journalled first.
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
        // From here on an early return undoes, by the guard's drop.
        for entry in guard.pending.iter().flat_map(Pending::entries) {
            write_checked(entry)?;
        }
        Ok(guard)
    }

    /// Puts everything back and says what was done.
    #[must_use]
    pub fn finish(mut self) -> RestoreReport {
        self.pending.take().map(Pending::undo).unwrap_or_default()
    }
}

impl Drop for SettingsGuard {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            let _ = pending.undo();
        }
    }
}

/// What the settings are now, for the journal.
fn read_originals(folder: &Path, settings: &[Setting]) -> Result<Vec<Entry>, SettingsError> {
    let mut entries: Vec<Entry> = Vec::with_capacity(settings.len());
    for setting in settings {
        let path = folder.join(&setting.knob);
        if entries.iter().any(|entry| entry.path == path) {
            return Err(SettingsError::Twice { path });
        }
        let original = read_setting(&path).map_err(|error| SettingsError::of(&path, error))?;
        entries.push(Entry {
            path,
            original,
            wanted: setting.value.clone(),
        });
    }
    Ok(entries)
}

/// Whether the caller may change `settings` at all, found out before anything is journalled: the
/// answer should be about the settings, not about the journal.
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

fn write_checked(entry: &Entry) -> Result<(), SettingsError> {
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
        Ok(())
    } else {
        Err(refused(now))
    }
}

/// Reads a setting as it would be written: of `always [madvise] never` that is `madvise`.
pub(crate) fn read_setting(path: &Path) -> io::Result<String> {
    let text = fs::read_to_string(path)?;
    let chosen = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    Ok(chosen.map_or(text.trim(), |(word, _)| word).to_owned())
}

#[cfg(test)]
impl SettingsGuard {
    /// The journal entry without the promise to undo it on drop: what a killed owner leaves.
    pub(crate) fn pending_for_test(mut self) -> Option<Pending> {
        self.pending.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_stay_inside_their_folder() {
        for text in [
            "enabled=always",
            "khugepaged/defrag=1",
            "hugepages-64kB/enabled=inherit",
        ] {
            assert_eq!(text.parse::<Setting>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "enabled",
            "=always",
            "enabled=",
            "../ksm/run=1",
            "/etc/passwd=x",
            "a/../b=1",
            "enabled=a b",
            "enabled=[always]",
            "enabled=al\nways",
            "./enabled=never",
        ] {
            assert!(text.parse::<Setting>().is_err(), "{text}");
        }
    }
}

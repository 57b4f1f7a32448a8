//! One setting of the machine: its name, its value, and the errors of changing it.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use superhue_state::StateError;

/// The folder of the settings, below the root of sysfs.
const FOLDER: &str = "kernel/mm/transparent_hugepage";

/// The folder of the settings below the sysfs at `sys`.
pub(crate) fn folder_of(sys: &Path) -> PathBuf {
    sys.join(FOLDER)
}

/// The switch of zswap, below the root of sysfs.
const ZSWAP_SWITCH: &str = "module/zswap/parameters/enabled";

/// The kernel's words for on and off at that switch.
pub(crate) const ZSWAP_ON: &str = "Y";
pub(crate) const ZSWAP_OFF: &str = "N";

/// Returns the path of the switch of zswap, below the sysfs at `sys`.
pub(crate) fn zswap_switch(sys: &Path) -> PathBuf {
    sys.join(ZSWAP_SWITCH)
}

/// Returns true if `text` is a value of that switch.
pub(crate) fn is_zswap_value(text: &str) -> bool {
    [ZSWAP_ON, ZSWAP_OFF].contains(&text)
}

/// The floor of free memory, below the root of procfs. The kernel raises it when it starts `khugepaged`, as a switch of huge pages may do, and does not
/// always lower it again (`set_recommended_min_free_kbytes` in `mm/khugepaged.c`).
pub(crate) fn free_memory_floor(proc: &Path) -> PathBuf {
    proc.join("sys/vm/min_free_kbytes")
}

/// Word in a journal for a value that the kernel sets by itself, and that was not read yet.
pub(crate) const RAISED_BY_KERNEL: &str = "raised-by-kernel";

/// One setting to change: `enabled=always`, `khugepaged/pages_to_scan=65536`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// File below `/sys/kernel/mm/transparent_hugepage`.
    pub knob: String,
    /// Value to write.
    pub value: String,
}

/// Error: the text is not `KNOB=VALUE`.
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
                value: as_the_kernel_shows(value),
            })
        } else {
            Err(fail())
        }
    }
}

/// Returns a number without a sign and zeroes in front, as the kernel shows it; another word as it is.
fn as_the_kernel_shows(value: &str) -> String {
    let digits = value.strip_prefix('+').unwrap_or(value);
    let number: Option<u64> = digits.parse().ok();
    number.map_or_else(|| value.to_owned(), |number| number.to_string())
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.knob, self.value)
    }
}

/// Reason for a failure to change settings. Changes made before the failure are undone.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The kernel has no such setting.
    #[error("{} does not exist: this kernel has no such huge page setting", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The caller may not change it.
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
        /// Value written.
        value: String,
        /// Contents of the file after the write.
        now: String,
    },
    /// Another running superhue has changed it.
    #[error("{} was changed by another superhue that still runs: wait until it ends", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// The list has the same setting twice.
    #[error("--system names {} twice: give it once", path.display())]
    Twice {
        /// The file.
        path: PathBuf,
    },
    /// The journal could not be written, so nothing was changed.
    #[error("cannot write the journal {}: {source}; nothing was changed", path.display())]
    Journal {
        /// Folder of the journals.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The journals cannot be used, so none of them was undone.
    #[error("cannot use the journals in {}: {source}; nothing was restored", path.display())]
    Recover {
        /// Folder of the journals.
        path: PathBuf,
        /// Reason why it cannot be used.
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

/// Reads a setting in the form in which it is written: `madvise` for `always [madvise] never`.
pub(crate) fn read_setting(path: &Path) -> io::Result<String> {
    let text = fs::read_to_string(path)?;
    let chosen = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    Ok(chosen.map_or(text.trim(), |(word, _)| word).to_owned())
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
        // As the kernel shows it, or the change could not be verified.
        let number: Setting = "khugepaged/pages_to_scan=+04096".parse().unwrap();
        assert_eq!(number.to_string(), "khugepaged/pages_to_scan=4096");
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

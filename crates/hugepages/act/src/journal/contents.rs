//! Contents of a journal: the changes in it, as JSON.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use superhue_procfs::Roots;

use super::undo::is_floor;
use crate::setting::{
    RAISED_BY_KERNEL, Setting, folder_of, free_memory_floor, is_zswap_value, zswap_switch,
};
use crate::zram::ZramDevice;

/// Bytes of a journal at most; a setting takes some 200.
pub(super) const MAX_JOURNAL_BYTES: u64 = 1 << 20;

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
    pub(super) fn setting(&self) -> Option<&SettingChange> {
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
    pub(super) fn is_a_setting(&self, roots: &Roots) -> bool {
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
pub(super) struct Contents<T = Change> {
    pub(super) schema: String,
    pub(super) boot_id: String,
    pub(super) pid: u32,
    pub(super) entries: Vec<T>,
}

/// Fields that every version of a journal has.
#[derive(Debug, Deserialize)]
struct Head {
    schema: String,
    boot_id: String,
}

pub(super) const SCHEMA: &str = "superhue-journal/3";
const SECOND_SCHEMA: &str = "superhue-journal/2";

/// Returns the oldest version that knows all of these changes, so that an older superhue refuses no more than it must.
pub(super) fn schema_of(changes: &[Change]) -> &'static str {
    let mut settings = changes.iter().filter_map(Change::setting);
    match settings.any(is_floor) {
        true => SCHEMA,
        false => SECOND_SCHEMA,
    }
}

const FIRST_SCHEMA: &str = "superhue-journal/1";
const SCHEMAS: &str = "superhue-journal/";

/// Changes that a journal file lists.
pub(super) enum ParsedJournal {
    Changes(Vec<Change>),
    /// The file is from before a reboot, or no superhue finished writing it.
    Nothing,
    /// A later version, whose format this one does not know.
    Newer,
}

impl ParsedJournal {
    pub(super) fn of(bytes: &[u8], boot_id: &str) -> Self {
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

//! Claims on colors, by which superhue processes see each other's sets.
//!
//! Programs that run at the same time must not share colors if they are to leave each other's part of the cache alone (Zhang, Guan, Wang 2014). Each
//! superhue process that keeps a set writes it into a file of its own, and holds the file locked meanwhile. A process that comes later reads the
//! locked files, and warns the user. Only superhue processes of root recolor, so the folder is root's.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use superhue_model::{ColorRequest, ColorSet};
use superhue_state::{Folder, StateError, lock_within};

/// Largest size of a claim in bytes: no list of colors is longer.
const MAX_CLAIM_BYTES: u64 = 4096;

/// Time to wait for the lock on this process's claim: another process takes it for a moment to find out whether the claim is held.
const LOCK_WAIT: Duration = Duration::from_millis(200);

/// Mode of the folder: only root may use it.
const PRIVATE: u32 = 0o700;

/// A claim on a set, held for as long as this value lives.
#[derive(Debug)]
pub(super) struct Claim {
    folder: Folder,
    name: PathBuf,
    _held: File,
}

impl Claim {
    /// Claims `set` of the colors that `numbering` distinguishes from others with the same numbers; returns a sentence for each other claim that
    /// overlaps with it, or may.
    ///
    /// # Errors
    /// Fails if the folder cannot be used: other superhue processes do not see the claim then.
    pub(super) fn make(set: &ColorSet, numbering: u64) -> Result<(Self, Vec<String>), StateError> {
        Self::make_in(Path::new("/run/superhue/sets"), set, numbering)
    }

    fn make_in(
        path: &Path,
        set: &ColorSet,
        numbering: u64,
    ) -> Result<(Self, Vec<String>), StateError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if let Some(above) = path.parent().filter(|above| above.ends_with("superhue")) {
            Folder::make(above, 0o755)?;
        }
        let folder = Folder::make(path, PRIVATE)?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = PathBuf::from(format!("{}.{number}", std::process::id()));
        let mut held = folder.lock(&name, LOCK_WAIT)?;
        let written = held
            .set_len(0)
            .and_then(|()| write!(held, "{set} {numbering:016x}"));
        let claim = Self {
            folder,
            name,
            _held: held,
        };
        written.map_err(|source| StateError::Io {
            what: "write",
            path: path.to_owned(),
            source,
        })?;
        // After its own claim is there: of two superhues that start at once, at least one finds the other.
        let others = others(&claim.folder, set, numbering, &claim.name);
        Ok((claim, others))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // While it is locked: no other process takes the name meanwhile.
        let _ = self.folder.remove(&self.name);
    }
}

/// Returns a sentence for each claim of another process that overlaps with `set`, or may. Removes claims that no process holds any more.
fn others(folder: &Folder, set: &ColorSet, numbering: u64, own: &Path) -> Vec<String> {
    let mut told = Vec::new();
    let names = folder.names().unwrap_or_default().into_iter();
    for name in names.filter(|name| Path::new(name) != own) {
        let Ok(file) = folder.private_file(&name) else {
            continue;
        };
        if lock_within(&file, Duration::ZERO).unwrap_or(false) {
            let _ = folder.remove(&name);
            continue;
        }
        let Ok(text) = folder.read(&name, &file, MAX_CLAIM_BYTES) else {
            continue;
        };
        // Its process has not written it yet, and looks at this one afterwards.
        if text.is_empty() {
            continue;
        }
        let pid = name.to_string_lossy();
        let pid = pid.split('.').next().unwrap_or_default();
        match shared_with(&String::from_utf8_lossy(&text), set, numbering) {
            Some(0) => {}
            Some(shared) => told.push(format!(
                "{shared} of these colors are also kept by superhue {pid}: programs that share colors disturb each other"
            )),
            None => told.push(format!(
                "superhue {pid} keeps colors under other numbers, so it is not known if they overlap: programs that share colors disturb each other"
            )),
        }
    }
    told
}

/// Returns the number of colors that `set` shares with the claim in a text; `None` if its numbers may mean other colors.
fn shared_with(claim: &str, set: &ColorSet, numbering: u64) -> Option<usize> {
    let (theirs, their_numbering) = claim.split_once(' ')?;
    if u64::from_str_radix(their_numbering, 16) != Ok(numbering) {
        return None;
    }
    let theirs: ColorRequest = theirs.parse().ok()?;
    let theirs = theirs.of(set.colors()).ok()??;
    Some(theirs.iter().filter(|color| set.contains(*color)).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> ColorSet {
        let request: ColorRequest = text.parse().unwrap();
        request.of(32).unwrap().unwrap()
    }

    #[test]
    fn overlapping_claims_are_told_for_as_long_as_they_are_held() {
        let folder = tempfile::tempdir().unwrap();
        let sets = folder.path().join("sets");
        let (first, told) = Claim::make_in(&sets, &set("0-7"), 7).unwrap();
        assert!(told.is_empty());
        let (second, told) = Claim::make_in(&sets, &set("4-15"), 7).unwrap();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("4 of these colors"), "{told:?}");
        let (_apart, told) = Claim::make_in(&sets, &set("16-31"), 7).unwrap();
        assert!(told.is_empty());
        drop(first);
        let (_again, told) = Claim::make_in(&sets, &set("0-7"), 7).unwrap();
        assert_eq!(told.len(), 1, "{told:?}");
        drop(second);
        // A claim of a killed process: the file exists, and no process holds it.
        let dead = sets.join("1.0");
        std::fs::write(&dead, "0-31").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&dead, mode).unwrap();
        let (_later, told) = Claim::make_in(&sets, &set("8-15"), 7).unwrap();
        assert!(told.is_empty(), "{told:?}");
        assert!(!dead.exists());
    }

    #[test]
    fn numbers_of_another_palette_may_mean_any_color() {
        let folder = tempfile::tempdir().unwrap();
        let sets = folder.path().join("sets");
        let (_first, _) = Claim::make_in(&sets, &set("0-7"), 1).unwrap();
        let (_second, told) = Claim::make_in(&sets, &set("16-31"), 2).unwrap();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("under other numbers"), "{told:?}");
        // An earlier version wrote no numbering; another cache has other colors.
        assert_eq!(shared_with("0-7", &set("16-31"), 1), None);
        assert_eq!(
            shared_with("40-47 0000000000000001", &set("16-31"), 1),
            None
        );
        assert_eq!(
            shared_with("0-16 0000000000000001", &set("16-31"), 1),
            Some(1)
        );
    }
}

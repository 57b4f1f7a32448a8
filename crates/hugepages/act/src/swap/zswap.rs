//! zswap in front of swap: what makes it safe to take a page out that somebody else in the kernel holds a reference to.
//!
//! While zram writes a page, nobody holds the page's lock, and the kernel lets the program fault it in. It then takes the page for one that
//! may be shared (`do_swap_page` in `mm/memory.c`, `SWP_STABLE_WRITES`), so the program's next write goes to a copy, and whoever holds
//! a reference to the page, as a pipe does after `vmsplice(2)`, keeps the old one. zswap compresses the page under its lock: a fault
//! waits, and gets the page that was there.
//!
//! Seen on Linux 6.18, pages given to pipes while two threads of the program write them, recolored over and over: with zram alone 191 of
//! 1,402,880 parted from the program's; with zswap before it 0 of 1,400,000.

use std::fs;
use std::path::PathBuf;

use superhue_procfs::Roots;

use super::SwapError;
use crate::journal::{Journal, Pending, RestoreReport, SettingChange};
use crate::setting::SettingsError;

/// The switch, below the root of sysfs.
const SWITCH: &str = "module/zswap/parameters/enabled";

/// The kernel's words for on and off.
const ON: &str = "Y";
const OFF: &str = "N";

/// zswap that is on: it was, or has been switched on for as long as this lives.
#[derive(Debug)]
pub struct ZswapInUse {
    pending: Option<Pending>,
}

/// The file of the switch.
pub(crate) fn switch(sys: &std::path::Path) -> PathBuf {
    sys.join(SWITCH)
}

/// Whether a value is one of the switch.
pub(crate) fn is_value(text: &str) -> bool {
    [ON, OFF].contains(&text)
}

impl ZswapInUse {
    /// Whether it is on now; `None` where the kernel has none.
    #[must_use]
    pub fn is_on(roots: &Roots) -> Option<bool> {
        let text = fs::read_to_string(switch(&roots.sys)).ok()?;
        Some(text.trim() == ON)
    }

    /// Whether it could be switched on, as far as that can be told without doing it.
    ///
    /// # Errors
    /// [`SwapError::NoZswap`].
    pub fn may_switch(roots: &Roots) -> Result<(), SwapError> {
        let path = switch(&roots.sys);
        match fs::read_to_string(&path) {
            Ok(_) => Ok(()),
            Err(_) => Err(SwapError::NoZswap { path }),
        }
    }

    /// Finds it on; else, if `make`, switches it on, which the journal knows of first.
    ///
    /// # Errors
    /// [`SwapError::NoZswap`], [`SwapError::ZswapOff`], [`SwapError::Journal`]; nothing is changed then.
    pub fn find_or_switch(journal: &Journal, make: bool) -> Result<Self, SwapError> {
        let path = switch(journal.sys());
        let Ok(now) = fs::read_to_string(&path) else {
            return Err(SwapError::NoZswap { path });
        };
        if now.trim() == ON {
            return Ok(Self { pending: None });
        }
        if !make {
            return Err(SwapError::ZswapOff { path });
        }
        let change = SettingChange {
            path: path.clone(),
            original: now.trim().to_owned(),
            wanted: ON.to_owned(),
        };
        let pending = journal.begin(|| Ok(vec![change]))?;
        let switched = Self {
            pending: Some(pending),
        };
        // From here on an early return undoes, by the drop.
        fs::write(&path, ON).map_err(|error| SettingsError::of(&path, error))?;
        let now = fs::read_to_string(&path).unwrap_or_default();
        if now.trim() == ON {
            return Ok(switched);
        }
        Err(SwapError::Journal(SettingsError::Refused {
            path,
            value: ON.to_owned(),
            now: now.trim().to_owned(),
        }))
    }

    /// Switches it off again, if it was off, and says so.
    #[must_use]
    pub fn finish(mut self) -> RestoreReport {
        self.pending.take().map(Pending::undo).unwrap_or_default()
    }
}

impl Drop for ZswapInUse {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            let _ = pending.undo();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_switched_on_if_asked_and_off_again() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let journal = Journal::at(folder.path().join("run/journal"), &roots);
        fs::create_dir_all(folder.path().join("run")).unwrap();
        let find = |make| ZswapInUse::find_or_switch(&journal, make);
        assert_eq!(ZswapInUse::is_on(&roots), None);
        assert!(matches!(find(true), Err(SwapError::NoZswap { .. })));
        let path = switch(&roots.sys);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "N\n").unwrap();
        assert_eq!(ZswapInUse::is_on(&roots), Some(false));
        assert!(matches!(find(false), Err(SwapError::ZswapOff { .. })));
        let on = find(true).unwrap();
        assert_eq!(ZswapInUse::is_on(&roots), Some(true));
        // Somebody else finds it on, and leaves it so.
        assert!(find(true).unwrap().finish().restored.is_empty());
        assert_eq!(ZswapInUse::is_on(&roots), Some(true));
        assert_eq!(on.finish().restored.len(), 1);
        assert_eq!(ZswapInUse::is_on(&roots), Some(false));
        // One that is killed leaves a journal.
        let mut killed = find(true).unwrap();
        drop(killed.pending.take());
        assert_eq!(ZswapInUse::is_on(&roots), Some(true));
        assert_eq!(journal.recover().unwrap().restored.len(), 1);
        assert_eq!(ZswapInUse::is_on(&roots), Some(false));
    }
}

//! zswap in front of swap: it makes it safe to take out a page to which another part of the kernel holds a reference.
//!
//! While zram writes a page, the page is not locked, and the kernel lets the program fault it in. The kernel then treats the page as possibly
//! shared (`do_swap_page` in `mm/memory.c`, `SWP_STABLE_WRITES`), so the program's next write goes to a copy. A holder of a reference to the page,
//! such as a pipe after `vmsplice(2)`, keeps the old one. zswap compresses the page under its lock: a fault waits, and gets the same page.
//!
//! Measured on Linux 6.18, with pages given to pipes while two threads of the program write them, recolored over and over: with zram alone 191 of
//! 1,402,880 pages parted from the program's; with zswap before it 0 of 1,400,000.
//!
//! zswap is safe only as long as it takes the page. It passes pages on to the device that its compressor cannot make smaller (before Linux 6.18),
//! that a control group's `memory.zswap.max` forbids, or that its pool has no room for. So [`ZswapInUse::try_out`] takes out pages of our own that
//! cannot be compressed, and [`ZswapInUse::refusal`] looks at the limits before each step.

use std::fs;

use superhue_model::{BASE_PAGE_SIZE, ByteCount};
use superhue_procfs::Roots;
use superhue_procfs::cgroup::{swap_room, zswap_room};
use superhue_procfs::system::{SwappedOut, zswap_pool_room};
use superhue_sys::advise::drain_new_pages;
use superhue_sys::scratch::Scratch;

use super::SwapError;
use crate::journal::{Journal, OwnedJournal, SettingChange};
use crate::restored::RestoreReport;
use crate::setting::{SettingsError, ZSWAP_ON, zswap_switch};

/// Pages that are taken out to try zswap, and attempts at it.
const TRIED: u64 = 32;
const ATTEMPTS: u32 = 5;

/// Room for zswap below which it counts as having none: two steps of 512 pages.
const LEAST_ROOM: ByteCount = ByteCount(4 << 20);

/// zswap that is on: it was on, or it is switched on until the last superhue that needs it drops this.
#[derive(Debug)]
pub struct ZswapInUse {
    pending: Option<(Journal, OwnedJournal)>,
}

impl ZswapInUse {
    /// Returns true if zswap is on; `None` where the kernel has none.
    #[must_use]
    pub fn is_on(roots: &Roots) -> Option<bool> {
        let text = fs::read_to_string(zswap_switch(&roots.sys)).ok()?;
        Some(text.trim() == ZSWAP_ON)
    }

    /// Returns the reason why zswap may refuse a page of process `pid` now, as a clause; `None` if nothing speaks against it.
    #[must_use]
    pub fn refusal(roots: &Roots, pid: u32) -> Option<&'static str> {
        if Self::is_on(roots) != Some(true) {
            return Some(
                "it was switched off, without which nothing is safe: see superhue check, --swap",
            );
        }
        if zswap_room(roots, pid).is_some_and(|room| room < LEAST_ROOM) {
            return Some("its control group may not use zswap (memory.zswap.max)");
        }
        if zswap_pool_room(roots).is_some_and(|room| room < LEAST_ROOM) {
            return Some("the pool of zswap is full (zswap.max_pool_percent)");
        }
        None
    }

    /// Takes some pages of our own out that cannot be compressed, to see whether zswap takes them. Swap in memory and zswap must be on.
    ///
    /// # Errors
    /// [`SwapError::ZswapRefuses`].
    pub fn try_out(roots: &Roots) -> Result<(), SwapError> {
        let refuses = |why| SwapError::ZswapRefuses { why };
        let own = std::process::id();
        if let Some(why) = Self::refusal(roots, own) {
            return Err(refuses(why));
        }
        if swap_room(roots, own).is_some_and(|room| room < LEAST_ROOM) {
            return Err(refuses(
                "superhue cannot try it, as its own control group may not swap (memory.swap.max)",
            ));
        }
        let mut least = None;
        for attempt in 0..ATTEMPTS {
            let pages = TRIED * BASE_PAGE_SIZE;
            let length = usize::try_from(pages).unwrap_or_default();
            let mut scratch = Scratch::untouched(length)
                .map_err(|errno| SwapError::step("map memory by", "mmap(2)", errno.into()))?;
            scratch.fill(u64::from(attempt) + 1);
            // Pages that are not on the kernel's lists yet would stay.
            drain_new_pages();
            let before = SwappedOut::read(roots);
            scratch.page_out().map_err(|errno| {
                SwapError::step("take pages of our own out by", "madvise(2)", errno.into())
            })?;
            let (Some(before), Some(after)) = (before, SwappedOut::read(roots)) else {
                return Err(refuses("this kernel does not show which pages it takes"));
            };
            let to_zswap = after.to_zswap.saturating_sub(before.to_zswap);
            let to_devices = after.to_devices.saturating_sub(before.to_devices);
            // Other programs may be swapped out at the same time, which adds to either.
            if to_devices == 0 && to_zswap >= TRIED / 2 {
                return Ok(());
            }
            least = Some(least.map_or(to_devices, |least: u64| least.min(to_devices)));
        }
        Err(refuses(match least {
            Some(1..) => {
                "it does not take pages that cannot be compressed (before Linux 6.18, or for a limit on it)"
            }
            _ => "none of some pages of superhue's own could be taken out to it",
        }))
    }

    /// Checks that the kernel has the switch, without changing it.
    ///
    /// # Errors
    /// [`SwapError::NoZswap`].
    pub fn may_switch(roots: &Roots) -> Result<(), SwapError> {
        let path = zswap_switch(&roots.sys);
        match fs::read_to_string(&path) {
            Ok(_) => Ok(()),
            Err(_) => Err(SwapError::NoZswap { path }),
        }
    }

    /// Finds zswap on; otherwise, if `make`, journals the change and switches it on. Where another superhue has switched it on, `make` journals the
    /// same change, so that zswap stays on when that one ends.
    ///
    /// # Errors
    /// [`SwapError::NoZswap`], [`SwapError::ZswapOff`], [`SwapError::Journal`]; nothing has changed then.
    pub fn find_or_switch(journal: &Journal, make: bool) -> Result<Self, SwapError> {
        let path = zswap_switch(journal.sys());
        let read = || match fs::read_to_string(&path) {
            Ok(text) => Ok(text.trim().to_owned()),
            Err(_) => Err(SwapError::NoZswap { path: path.clone() }),
        };
        let is_on = read()? == ZSWAP_ON;
        if !make {
            return match is_on {
                true => Ok(Self { pending: None }),
                false => Err(SwapError::ZswapOff { path }),
            };
        }
        let turn = match journal.turn() {
            Ok(turn) => turn,
            // A caller that may keep no journal could switch nothing either.
            Err(_) if is_on => return Ok(Self { pending: None }),
            Err(error) => return Err(error.into()),
        };
        // The turn may have undone the change of a dead one.
        let now = read()?;
        let original = match turn.setting_of_others(&path) {
            Some(theirs) if now == ZSWAP_ON => theirs.original.clone(),
            None if now == ZSWAP_ON => return Ok(Self { pending: None }),
            _ => now.clone(),
        };
        let pending = turn.write_settings(vec![SettingChange {
            path: path.clone(),
            original,
            wanted: ZSWAP_ON.to_owned(),
        }])?;
        drop(turn);
        let switched = Self {
            pending: Some((journal.clone(), pending)),
        };
        if now == ZSWAP_ON {
            return Ok(switched);
        }
        // From here on an early return undoes the change: it drops `switched`.
        fs::write(&path, ZSWAP_ON).map_err(|error| SettingsError::of(&path, error))?;
        let now = fs::read_to_string(&path).unwrap_or_default();
        if now.trim() == ZSWAP_ON {
            return Ok(switched);
        }
        Err(SwapError::Journal(SettingsError::Refused {
            path,
            value: ZSWAP_ON.to_owned(),
            now: now.trim().to_owned(),
        }))
    }

    /// Switches zswap off again if it was off and no other superhue needs it, and returns the report.
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

impl Drop for ZswapInUse {
    fn drop(&mut self) {
        let _ = self.end();
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
        let path = zswap_switch(&roots.sys);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "N\n").unwrap();
        assert_eq!(ZswapInUse::is_on(&roots), Some(false));
        assert!(matches!(find(false), Err(SwapError::ZswapOff { .. })));
        let on = find(true).unwrap();
        assert_eq!(ZswapInUse::is_on(&roots), Some(true));
        // A second superhue finds zswap on, and leaves it on.
        assert!(find(true).unwrap().finish().restored.is_empty());
        assert_eq!(ZswapInUse::is_on(&roots), Some(true));
        assert_eq!(on.finish().restored.len(), 1);
        assert_eq!(ZswapInUse::is_on(&roots), Some(false));
        // It stays on until the last one that needs it ends, whichever that is.
        let [first, second] = [(); 2].map(|()| find(true).unwrap());
        assert!(first.finish().restored.is_empty());
        assert_eq!(ZswapInUse::is_on(&roots), Some(true));
        let mut killed = find(true).unwrap();
        drop(killed.pending.take());
        assert!(journal.recover().unwrap().restored.is_empty());
        assert_eq!(ZswapInUse::is_on(&roots), Some(true));
        assert_eq!(second.finish().restored.len(), 1);
        assert_eq!(ZswapInUse::is_on(&roots), Some(false));
        // A killed superhue leaves a journal.
        let mut killed = find(true).unwrap();
        drop(killed.pending.take());
        assert_eq!(ZswapInUse::is_on(&roots), Some(true));
        assert_eq!(journal.recover().unwrap().restored.len(), 1);
        assert_eq!(ZswapInUse::is_on(&roots), Some(false));
    }
}

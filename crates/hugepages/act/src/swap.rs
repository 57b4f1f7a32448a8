//! Swap in memory: an area that is on already, or a temporary small zram of our own.
//!
//! The kernel's own paths change the colors of running programs. A page goes out to swap, its frame becomes free, and the next fault brings the
//! page back into another frame. That takes swap that is itself in memory (zram):
//!
//! | swap on | a page out, and in again | frames that changed, of 512 |
//! |---|---|---|
//! | zram | 10 us, 10 us | 512 |
//! | a file on a disk | 4 us, 5 us; 0.24 ms if it is read from the disk | 0 |
//!
//! (Linux 6.18, two CPUs, virtio disk; 512 pages at a time.) A page that goes to a disk stays in its frame until it is written, and a fault
//! meanwhile maps that frame again. Waiting for each page would stall the program for two disk accesses.
//!
//! *Choice of the area.* The kernel chooses the area for a page by priority ([`room_in_memory`]). So swap in memory counts only if it comes before
//! all other areas that have room.
//!
//! *An area of our own* ([`own`]) is made only if the user asks for it. It has 64 MiB, takes at most 68 MiB of memory, and is removed at the end.
//! It has the lowest priority, unless there is swap on disks, which it must precede. When memory is short, the kernel puts other programs' pages
//! there, too. That makes removal risky: `swapoff` takes all pages back into memory, and the kernel ends programs in control groups that have no
//! room. In that case the area stays on, and stays journalled.
//!
//! *Two at once.* Each superhue that may make an area makes its own: if it used another's, it would have none when that one ends.

mod own;
#[cfg(test)]
mod tests;
mod zswap;

use std::path::PathBuf;
use std::sync::Arc;

use superhue_model::ByteCount;
use superhue_procfs::system::{SwapArea, room_in_memory};
use superhue_procfs::{ReadError, Roots};
use superhue_sys::swap::HIGHEST_PRIORITY;

use crate::journal::{Journal, JournalLock, OwnedJournal};
use crate::restored::RestoreReport;
use crate::zram::{RealMachine, SwapMachine, node};

pub use crate::zram::SwapError;
pub use zswap::ZswapInUse;

/// Size of an area of our own.
pub const SIZE: ByteCount = ByteCount(64 << 20);

/// Memory of such an area at most, if no page can be compressed. A full area needs a little more than its size, and a page without memory is a
/// write error in the kernel's log (Linux 6.18: 2 of 16,383 with a limit of 64 MiB, none with this one).
const MOST_MEMORY: ByteCount = ByteCount(68 << 20);

/// Room below this counts as none: pages go out by the hundred, and other programs' pages do, too.
const LEAST_ROOM: ByteCount = ByteCount(4 << 20);

/// Swap in memory that can be used. Dropping it undoes an area of our own.
#[derive(Debug)]
pub struct SwapInUse {
    machine: Arc<dyn SwapMachine>,
    own: Option<OwnDevice>,
}

#[derive(Debug)]
struct OwnDevice {
    number: u32,
    pending: OwnedJournal,
}

impl SwapInUse {
    /// Finds swap in memory that is on and has room.
    ///
    /// # Errors
    /// [`SwapError::None`], [`SwapError::OnDisk`], [`SwapError::Full`], [`SwapError::Read`].
    pub fn find(roots: &Roots) -> Result<Self, SwapError> {
        Self::find_on(Arc::new(RealMachine::of(roots)))
    }

    /// Finds swap in memory that is on, has room, and belongs to no other superhue. Otherwise, if `make`, journals and makes a zram of our own.
    ///
    /// # Errors
    /// See [`SwapError`]; on an error nothing has changed, or the error lists the remains.
    pub fn find_or_make(journal: &Journal, make: bool) -> Result<Self, SwapError> {
        let machine = Arc::clone(&journal.machine);
        if !make {
            return Self::find_on(machine);
        }
        if let Err(error) = machine.may_make() {
            return Self::find_on(machine).map_err(|_| error);
        }
        let turn = journal.turn()?;
        let others: Vec<u32> = turn.zrams_of_others().collect();
        let mut areas = machine.swaps()?;
        areas.retain(|area| area.zram.is_none_or(|number| !others.contains(&number)));
        if room_in_memory(&areas) >= LEAST_ROOM {
            return Ok(Self { machine, own: None });
        }
        Self::make_in(&turn, machine)
    }

    /// Makes a zram of our own, whatever other areas are on. The journal records it first.
    ///
    /// # Errors
    /// See [`SwapError`]; on an error nothing has changed, or the error lists the remains.
    pub fn make(journal: &Journal) -> Result<Self, SwapError> {
        let machine = Arc::clone(&journal.machine);
        machine.may_make()?;
        Self::make_in(&journal.turn()?, machine)
    }

    fn make_in(turn: &JournalLock<'_>, machine: Arc<dyn SwapMachine>) -> Result<Self, SwapError> {
        let priority = priority_above(&machine.swaps()?)?;
        let (number, pending) = own::make(&*machine, turn, priority)?;
        let own = Some(OwnDevice { number, pending });
        Ok(Self { machine, own })
    }

    fn find_on(machine: Arc<dyn SwapMachine>) -> Result<Self, SwapError> {
        check(&machine.swaps()?)?;
        Ok(Self { machine, own: None })
    }

    /// Checks that a zram can be made here, by the caller's capabilities and the kernel's interfaces. Makes none.
    ///
    /// # Errors
    /// [`SwapError::NoZram`], [`SwapError::Denied`], [`SwapError::Killed`].
    pub fn may_make(roots: &Roots) -> Result<(), SwapError> {
        RealMachine::of(roots).may_make()
    }

    /// Returns the bytes that can go out to memory now. It can be 0: other programs fill the area, or an administrator has switched it off, or has
    /// switched on swap on a disk that comes before it. Takes 1 us for each area.
    ///
    /// # Errors
    /// If `/proc/swaps` cannot be read.
    pub fn room(&self) -> Result<ByteCount, ReadError> {
        Ok(room_in_memory(&self.machine.swaps()?))
    }

    /// Returns the device that was made for this; `None` where swap was on already.
    #[must_use]
    pub fn own(&self) -> Option<PathBuf> {
        self.own.as_ref().map(|own| node(own.number))
    }

    /// Describes the area in a few words: `/dev/zram0, which was on, with 3.9 GiB of room`.
    #[must_use]
    pub fn describe(&self) -> String {
        if let Some(path) = self.own() {
            return format!("{}, made for this run, of {SIZE}", path.display());
        }
        let areas = self.machine.swaps().unwrap_or_default();
        let room = room_in_memory(&areas);
        match first_in_memory(&areas) {
            Some(area) => format!("{}, which was on, with {room} of room", area.path.display()),
            None => "none any more: it was switched off".to_owned(),
        }
    }

    /// Undoes an area of our own, and returns the report.
    #[must_use]
    pub fn finish(mut self) -> RestoreReport {
        let own = self.own.take();
        own.map(|own| own.pending.undo()).unwrap_or_default()
    }
}

impl Drop for SwapInUse {
    fn drop(&mut self) {
        if let Some(own) = self.own.take() {
            let _ = own.pending.undo();
        }
    }
}

fn first_in_memory(areas: &[SwapArea]) -> Option<&SwapArea> {
    let in_memory = areas.iter().filter(|area| area.lies_in_memory());
    in_memory.max_by_key(|area| area.priority)
}

/// Fails with the reason if there is no room in memory.
fn check(areas: &[SwapArea]) -> Result<(), SwapError> {
    let left = room_in_memory(areas);
    if left >= LEAST_ROOM {
        return Ok(());
    }
    let outside = areas
        .iter()
        .filter(|area| !area.lies_in_memory() && area.free().0 > 0);
    let in_memory = first_in_memory(areas);
    Err(
        match (outside.max_by_key(|area| area.priority), in_memory) {
            (None, None) => SwapError::None,
            (Some(outside), Some(area)) if area.priority > outside.priority => {
                SwapError::Full { left }
            }
            (None, Some(_)) => SwapError::Full { left },
            (Some(outside), _) => SwapError::OnDisk {
                path: outside.path.clone(),
            },
        },
    )
}

/// Returns the priority for an area of ours: above all areas that are not in memory, else the lowest (`None`).
fn priority_above(areas: &[SwapArea]) -> Result<Option<u16>, SwapError> {
    let outside = areas.iter().filter(|area| !area.lies_in_memory());
    let Some(highest) = outside.max_by_key(|area| area.priority) else {
        return Ok(None);
    };
    let above = u16::try_from(highest.priority.saturating_add(1).max(0));
    match above {
        Ok(above @ ..=HIGHEST_PRIORITY) => Ok(Some(above)),
        _ => Err(SwapError::Outranked {
            path: highest.path.clone(),
        }),
    }
}

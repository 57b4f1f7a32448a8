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

mod header;
mod machine;
mod own;
#[cfg(test)]
mod tests;
pub(crate) mod zswap;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use superhue_model::ByteCount;
use superhue_procfs::system::{SwapArea, room_in_memory};
use superhue_procfs::{ReadError, Roots};
use superhue_sys::swap::HIGHEST_PRIORITY;

use crate::journal::{Journal, JournalLock, OwnedJournal, RestoreReport, UnrestoredPath};
use crate::setting::SettingsError;

pub(crate) use machine::{RealMachine, SwapMachine, node};
pub(crate) use own::{UndoResult, ZramDevice};
pub use zswap::ZswapInUse;

/// Size of an area of our own.
pub const SIZE: ByteCount = ByteCount(64 << 20);

/// Memory of such an area at most, if no page can be compressed. A full area needs a little more than its size, and a page without memory is a
/// write error in the kernel's log (Linux 6.18: 2 of 16,383 with a limit of 64 MiB, none with this one).
const MOST_MEMORY: ByteCount = ByteCount(68 << 20);

/// Room below this counts as none: pages go out by the hundred, and other programs' pages do, too.
const LEAST_ROOM: ByteCount = ByteCount(4 << 20);

/// Reason why there is no usable swap in memory.
#[derive(Debug, thiserror::Error)]
pub enum SwapError {
    /// No swap is on.
    #[error(
        "no swap is on, and colors of running programs are changed by taking their pages out to swap and in again; --swap makes a \
         small one in memory (zram), as root"
    )]
    None,
    /// Pages would go to a disk.
    #[error(
        "swap is on, but pages go to {} first, which is not in memory: they come back from there in the frames that they had, or \
         20 times as slowly; --swap makes a small one in memory (zram), as root", path.display()
    )]
    OnDisk {
        /// Area on the disk.
        path: PathBuf,
    },
    /// There is too little room.
    #[error(
        "swap in memory is almost full ({left} are left): end what fills it, make it larger, or --swap makes a small one (zram), as root"
    )]
    Full {
        /// Room.
        left: ByteCount,
    },
    /// The kernel has no zram.
    #[error(
        "cannot make swap in memory: {} does not exist; as root `modprobe zram num_devices=0`, and where there is no such module, a \
         kernel with CONFIG_ZRAM", path.display()
    )]
    NoZram {
        /// Missing file.
        path: PathBuf,
    },
    /// The caller lacks permission.
    #[error(
        "may not make swap in memory: run as root (CAP_SYS_ADMIN) where /sys can be written (not in a container; systemd: \
         ProtectKernelTunables=no); or have root set one up (zram-generator; zramctl, mkswap, swapon)"
    )]
    Denied,
    /// A seccomp filter kills the caller of the system call.
    #[error(
        "cannot make swap in memory: a seccomp filter kills the caller of {call}(2); allow it (systemd: SystemCallFilter=@swap, containers: \
         --security-opt seccomp=)"
    )]
    Killed {
        /// The system call.
        call: &'static str,
    },
    /// The kernel gives no number by which to recognise our device.
    #[error(
        "cannot make swap in memory: this kernel does not number its disks (diskseq, Linux 5.15), so that a killed superhue's could \
         not be told from others; set one up by hand (zramctl --find --size 64M, mkswap, swapon)"
    )]
    NoDiskSequence,
    /// Pages would go to another area in any case.
    #[error(
        "cannot make swap in memory that is used before {}, which has the highest priority that there is: give that a lower one \
         (swapoff, swapon --priority)", path.display()
    )]
    Outranked {
        /// Area with the highest priority.
        path: PathBuf,
    },
    /// The kernel has no zswap.
    #[error(
        "{} does not exist, and without zswap a page that a program uses while it is taken out could part from what the kernel \
         holds of it: a kernel with CONFIG_ZSWAP", path.display()
    )]
    NoZswap {
        /// Its switch.
        path: PathBuf,
    },
    /// zswap is off.
    #[error(
        "zswap is off ({} is N), and without it a page that a program uses while it is taken out could part from what the kernel \
         holds of it; --swap switches it on meanwhile, as root", path.display()
    )]
    ZswapOff {
        /// Its switch.
        path: PathBuf,
    },
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] SettingsError),
    /// The present state cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A step failed.
    #[error("cannot {what} {}: {source}; {}", path.display(), left_behind(left))]
    Step {
        /// The step.
        what: &'static str,
        /// Its object.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
        /// Results of earlier steps that could not be undone.
        left: Vec<UnrestoredPath>,
    },
}

impl SwapError {
    fn step(what: &'static str, path: impl AsRef<Path>, source: io::Error) -> Self {
        Self::Step {
            what,
            path: path.as_ref().to_owned(),
            source,
            left: Vec::new(),
        }
    }

    fn random(errno: Errno) -> Self {
        Self::step("number a swap area with", "getrandom(2)", errno.into())
    }

    /// Adds the remains of a failed undo to the error.
    fn leaving(mut self, behind: Vec<UnrestoredPath>) -> Self {
        if let Self::Step { left, .. } = &mut self {
            *left = behind;
        }
        self
    }
}

fn left_behind(left: &[UnrestoredPath]) -> String {
    match left.first() {
        None => "nothing of it is left".to_owned(),
        Some(UnrestoredPath { path, reason }) => format!("{} was left: {reason}", path.display()),
    }
}

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

//! A zram device of our own, made step by step (`swap/own.rs`), and undone from any step.
//!
//! ```text
//!   journalled    what follows                             if superhue is killed in between
//!   intent        zram-control/hot_add makes a device      the new device, if no program has set it up
//!   device        disksize, mem_limit                      the device of this disk sequence number
//!                 swap header with a UUID                  the same
//!                 swapon                                   the same, if the UUID is in its header
//! ```
//!
//! Superhue removes a device only if it is the one in the journal: the kernel gives a disk sequence number (`diskseq`) to one disk only, so another
//! device of the same name does not match. The device must also still be unused by others: it holds no data, or swap with our UUID. The kernel
//! itself refuses to remove a device that another program has open.
//!
//! The number of a device is known only after `hot_add` returns. A superhue killed before that, in some 4 ms, leaves a journal with the time at
//! which it began, and the highest disk sequence number before.

mod error;
mod header;
mod machine;

use std::io;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use superhue_model::ByteCount;
use superhue_procfs::system::Zram;

use crate::restored::UnrestoredPath;
use header::{Uuid, is_first_page_of};

pub use error::SwapError;
pub(crate) use header::first_page;
pub(crate) use machine::{RealMachine, SwapMachine, node};

#[cfg(test)]
pub(crate) use header::{PAGE, Uuid as SwapUuid};

/// Time after the beginning within which the device exists: 4 ms, and more on a busy machine.
const MADE_WITHIN: Duration = Duration::from_secs(10);

/// Error of file times: they are those of the last tick of the kernel's clock.
const TICK: Duration = Duration::from_millis(100);

/// A device of ours, or the intent to make one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ZramDevice {
    /// The device; `None` as long as the kernel has not given its number.
    device: Option<Device>,
    /// The highest disk sequence number before.
    newest_before: u64,
    /// Time of the beginning, in milliseconds since 1970.
    begun_ms: u64,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Number in its swap header.
    pub(crate) uuid: Uuid,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Device {
    number: u32,
    disk_sequence: u64,
}

/// Result of undoing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UndoResult {
    /// There is no such device, or none any more.
    Nothing,
    /// The device of this number was removed.
    Removed(u32),
    /// Another program uses it now, or it cannot be identified.
    Left(UnrestoredPath),
    /// The device could not be removed; a later attempt is needed.
    Failed(UnrestoredPath),
}

impl ZramDevice {
    /// Returns its number, if that is known.
    pub(crate) fn number(&self) -> Option<u32> {
        self.device.map(|device| device.number)
    }

    /// Records the intent to make a device of this size, begun now.
    pub(crate) fn intent(machine: &dyn SwapMachine, size: ByteCount) -> Result<Self, SwapError> {
        let newest = machine.newest_disk()?;
        let begun = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let begun = begun.unwrap_or_default().as_millis();
        Ok(Self {
            device: None,
            newest_before: newest.ok_or(SwapError::NoDiskSequence)?,
            begun_ms: u64::try_from(begun).unwrap_or(u64::MAX),
            size: size.0,
            uuid: Uuid::random().map_err(SwapError::random)?,
        })
    }

    /// Records the device that the kernel has made.
    pub(crate) const fn identify(&mut self, number: u32, disk_sequence: u64) {
        self.device = Some(Device {
            number,
            disk_sequence,
        });
    }

    /// Undoes what was made, as far as it is still ours.
    pub(crate) fn undo(&self, machine: &dyn SwapMachine) -> UndoResult {
        match self.device {
            Some(device) => self.undo_device(machine, device),
            None => self.undo_unknown(machine),
        }
    }

    fn undo_device(&self, machine: &dyn SwapMachine, device: Device) -> UndoResult {
        let number = device.number;
        let left = |reason: String| UnrestoredPath {
            path: node(number),
            reason,
        };
        let failed = |what: &str, error: &io::Error| {
            UndoResult::Failed(left(format!(
                "cannot {what}: {error}; run `superhue restore` as root"
            )))
        };
        let zram = match machine.zram(number) {
            Ok(zram) => zram,
            Err(error) => return failed("look at it", &error),
        };
        let same = |zram: &Zram| zram.disk_sequence == Some(device.disk_sequence);
        let Some(zram) = zram.filter(same) else {
            return UndoResult::Nothing;
        };
        if zram.initialised == Some(false) {
            return remove(machine, number);
        }
        let area = match machine.swaps() {
            Ok(areas) => areas.into_iter().find(|area| area.zram == Some(number)),
            Err(error) => return failed("see whether it is swapped to", &io::Error::other(error)),
        };
        let is_ours = match machine.first_page(number) {
            Ok(page) => is_first_page_of(&page, self.uuid),
            Err(error) => return failed("read its header", &error),
        };
        if !is_ours {
            // Superhue was killed before it wrote the header.
            let is_blank = area.is_none()
                && zram.used.is_some_and(|used| used.stored.0 == 0)
                && zram.size == Some(ByteCount(self.size));
            if is_blank {
                return remove(machine, number);
            }
            let reason = "superhue had made it, and somebody else uses it since";
            return UndoResult::Left(left(reason.to_owned()));
        }
        if let Some(area) = area {
            if let Some(reason) = machine.short_of_room(area.used) {
                let used = area.used;
                return UndoResult::Failed(left(format!(
                    "cannot take back {used} that are swapped to it: {reason}; run `superhue restore` when there is more room"
                )));
            }
            if let Err(error) = machine.swap_off(number) {
                // Another program may have switched it off first.
                let is_on = machine.swaps().map_or(true, |areas| {
                    areas.iter().any(|area| area.zram == Some(number))
                });
                if is_on {
                    return failed("take back what is swapped to it", &error);
                }
            }
        }
        remove(machine, number)
    }

    /// Removes the device that appeared right after the beginning, if no program has set it up.
    fn undo_unknown(&self, machine: &dyn SwapMachine) -> UndoResult {
        let zrams = match machine.zrams() {
            Ok(zrams) => zrams,
            Err(error) => {
                return UndoResult::Failed(UnrestoredPath {
                    path: "/sys/block".into(),
                    reason: format!("cannot look for a zram that was left: {error}"),
                });
            }
        };
        let begun = SystemTime::UNIX_EPOCH + Duration::from_millis(self.begun_ms);
        let is_of_then = |born: SystemTime| (begun - TICK..=begun + MADE_WITHIN).contains(&born);
        let mut found = zrams.iter().filter(|zram| {
            zram.disk_sequence
                .is_some_and(|sequence| sequence > self.newest_before)
                && zram.initialised == Some(false)
                && machine.born(zram.number).is_some_and(is_of_then)
        });
        match (found.next(), found.next()) {
            (None, _) => UndoResult::Nothing,
            (Some(only), None) => remove(machine, only.number),
            (Some(one), Some(other)) => UndoResult::Left(UnrestoredPath {
                path: node(one.number),
                reason: format!(
                    "this device or {} was made by a superhue that was killed; nobody has set them up. If nobody needs it: \
                     echo {} > /sys/class/zram-control/hot_remove",
                    node(other.number).display(),
                    one.number
                ),
            }),
        }
    }
}

fn remove(machine: &dyn SwapMachine, number: u32) -> UndoResult {
    match machine.remove(number) {
        Ok(()) => UndoResult::Removed(number),
        // Another program removed it first.
        Err(_) if matches!(machine.zram(number), Ok(None)) => UndoResult::Nothing,
        Err(error) => UndoResult::Failed(UnrestoredPath {
            path: node(number),
            reason: format!(
                "cannot remove it: {error}; see who has it open (fuser -v), then run `superhue restore` as root"
            ),
        }),
    }
}

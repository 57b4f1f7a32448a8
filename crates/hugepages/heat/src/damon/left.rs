//! Removal of kdamonds that a killed superhue left running, by a superhue that does not use DAMON itself.

use std::fs;
use std::io;
use std::path::Path;

use rustix::process::geteuid;
use superhue_procfs::Roots;
use superhue_procfs::system::hint;

use super::claim::{Claim, ClaimError, NAME, is_ours};
use super::sysfs::Kdamonds;
use super::{ROOM, STATE};

/// Result of the removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DamonCleanup {
    /// Nothing was left: no superhue died using DAMON since the machine started.
    Nothing,
    /// A running superhue uses DAMON; its process number, if it wrote one.
    InUse(Option<u32>),
    /// Number of kdamonds that were on and were ended; all were removed.
    Ended(u64),
    /// The claim belongs to another user (root), who alone can clear up.
    Hidden,
    /// Another user has set up kdamonds since, which are not ours to touch.
    Foreign,
}

/// Ends the kdamonds of a superhue that was killed: those set up after its claim was written, while no process holds the claim, with all of our
/// settings, and as many as we make. Ends no others.
///
/// # Errors
/// If the files cannot be read or written: needs root.
pub fn end_left_damon(roots: &Roots) -> io::Result<DamonCleanup> {
    end_left(roots, Path::new(STATE))
}

pub(super) fn end_left(roots: &Roots, state: &Path) -> io::Result<DamonCleanup> {
    // Taking a claim would make the file. Without words nothing is left, and the caller need not be root.
    let words = fs::symlink_metadata(state.join(NAME)).map_or(0, |data| data.len());
    if words == 0 {
        return Ok(DamonCleanup::Nothing);
    }
    let boot = hint(&roots.proc.join("sys/kernel/random/boot_id")).unwrap_or_default();
    let mut claim = match Claim::take(state, &boot) {
        Ok(claim) => claim,
        Err(ClaimError::Taken(pid)) => return Ok(DamonCleanup::InUse(pid)),
        // An ordinary user may not open root's claim: root must clear up.
        Err(ClaimError::Io(_, error))
            if error.kind() == io::ErrorKind::PermissionDenied && !geteuid().is_root() =>
        {
            return Ok(DamonCleanup::Hidden);
        }
        Err(ClaimError::Io(path, error)) => {
            let text = format!("{}: {error}", path.display());
            return Err(io::Error::new(error.kind(), text));
        }
    };
    if !claim.was_left() {
        return Ok(DamonCleanup::Nothing);
    }
    let kdamonds = Kdamonds::in_sysfs(&roots.sys);
    let count = kdamonds.count()?;
    if count > 0 && !is_ours(&kdamonds, ROOM) {
        return Ok(DamonCleanup::Foreign);
    }
    let is_on = |index: &u64| kdamonds.nth(*index).is_on().unwrap_or(false);
    let on = (0..count).filter(is_on).count();
    if count > 0 {
        kdamonds.clear(count)?;
    }
    // Only now: after a failed removal the next superhue must try again.
    claim.end()?;
    Ok(if count > 0 {
        DamonCleanup::Ended(on as u64)
    } else {
        DamonCleanup::Nothing
    })
}

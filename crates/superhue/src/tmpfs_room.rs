//! Checks that the file system of shared memory has room for the memory that a collapse would add.
//!
//! A huge page of shared memory fills the holes of the object permanently. On a tmpfs with a limit (`size=`, `/dev/shm` of a container) its owner
//! may want that room later, and gets `SIGBUS` where there is none. No process can make the holes again. So half of the file system stays
//! free; memory of all its users counts.
//!
//! ```text
//!   /proc/PID/map_files/START-END      the mapped file, under any present name        CAP_CHECKPOINT_RESTORE
//!   fstatvfs                           0 blocks: no limit (memfd, System V, anonymous shared memory)
//! ```
//!
//! Where the tmpfs has quotas for users or groups, or its room cannot be read, nothing is added.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, fstat, fstatvfs, major, minor, open};
use superhue_act::Target;
use superhue_model::{ObjectId, ObjectPart, ProcessId, SkipReason, Vma};
use superhue_procfs::Roots;
use superhue_procfs::process::{maps, own_tmpfs, tmpfs_has_quota};

/// Divisor of the part of a file system that stays free.
const PART_LEFT: u64 = 2;

/// Returns the objection of the object's tmpfs to the collapse of `target`; `None` without one.
pub(crate) fn objection(roots: &Roots, target: &Target) -> Option<SkipReason> {
    let object = target.object?;
    if target.growth.0 == 0 || own_tmpfs() == Some(object.device) {
        return None;
    }
    // Opened again each time: an open file keeps its file system from being unmounted.
    let room = file_of(roots, target.process, object).and_then(|file| fstatvfs(file).ok());
    let has_room = room.is_some_and(|room| {
        let growth = target.growth.bytes().0.div_ceil(room.f_frsize.max(1));
        room.f_blocks == 0 || room.f_bavail >= growth.saturating_add(room.f_blocks / PART_LEFT)
    });
    (!has_room).then_some(SkipReason::NoRoomOnTmpfs)
}

/// Opens a file, as a path only, on the tmpfs of an object that a process maps.
fn file_of(roots: &Roots, id: ProcessId, object: ObjectId) -> Option<OwnedFd> {
    if tmpfs_has_quota(roots, id.pid, object.device) {
        return None;
    }
    let maps = maps(roots, id.pid).ok()?;
    let is_it = |part: ObjectPart| part.object == object;
    let of_object = |vma: &Vma| vma.kind.part().is_some_and(is_it);
    let range = maps.into_iter().find(of_object)?.range;
    // By its address and not by its name: file systems on the path may have servers that do not answer.
    let link = format!("map_files/{:x}-{:x}", range.start.0, range.end.0);
    let link = roots.of_process(id.pid, &link);
    let file = open(&link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let stat = fstat(&file).ok()?;
    ((major(stat.st_dev), minor(stat.st_dev)) == object.device).then_some(file)
}

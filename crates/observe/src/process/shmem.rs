//! Which files are shared memory alone: those of a tmpfs.
//!
//! A line of `maps` has the device of its file and no more. Files on a tmpfs that is mounted have that mount's device, which
//! `/proc/PID/mountinfo` lists; memfds, anonymous shared memory and System V segments have that of a tmpfs which the kernel mounts for
//! itself (`shm_mnt` in `mm/shmem.c`), which a memfd of our own tells. Those of hugetlb look alike but for their device.

use std::fs;
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, fstat, major, memfd_create, minor};

use crate::{Roots, mounts};

/// The tmpfs devices that one process can have mapped files of. Reads what is needed when it is needed.
pub(super) struct TmpfsDevices<'a> {
    roots: &'a Roots,
    pid: u32,
    mounted: Option<Vec<(u32, u32)>>,
}

impl<'a> TmpfsDevices<'a> {
    pub(super) const fn of(roots: &'a Roots, pid: u32) -> Self {
        Self {
            roots,
            pid,
            mounted: None,
        }
    }

    /// Whether files of this device are memory; no, where that cannot be found out.
    pub(super) fn contains(&mut self, device: (u32, u32)) -> bool {
        own() == Some(device) || self.mounted().contains(&device)
    }

    fn mounted(&mut self) -> &[(u32, u32)] {
        let (roots, pid) = (self.roots, self.pid);
        self.mounted.get_or_insert_with(|| {
            let table = fs::read(roots.of_process(pid, "mountinfo")).unwrap_or_default();
            let tmpfs = mounts::parse(&table).filter(|mount| mount.kind == b"tmpfs");
            tmpfs.map(|mount| mount.device).collect()
        })
    }
}

/// The device of the tmpfs that the kernel mounts for itself, which stays the same until the machine is booted again.
fn own() -> Option<(u32, u32)> {
    static DEVICE: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    *DEVICE.get_or_init(|| {
        let file = memfd_create("superhue-device", MemfdFlags::CLOEXEC).ok()?;
        let device = fstat(&file).ok()?.st_dev;
        Some((major(device), minor(device)))
    })
}

//! Files that are shared memory alone, those of a tmpfs; and files that the kernel makes huge pages of, those on local disks.
//!
//! A line of `maps` has the device of its file and no more. Files on a mounted tmpfs have that mount's device, which
//! `/proc/PID/mountinfo` lists. Memfds, anonymous shared memory and System V segments have the device of a tmpfs that the kernel mounts for
//! itself (`shm_mnt` in `mm/shmem.c`); a memfd of our own shows its number. Memfds of hugetlb look alike except for their device.
//!
//! Of other files only those on local file systems count. A query about a file on a server, as with FUSE and NFS, may
//! never return.

use std::fs::File;
use std::io::Read;
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, fstat, major, memfd_create, minor};
use superhue_model::{ObjectPart, Vma, VmaKind};
use superhue_sys::collapse::collapses_files;

use crate::{Roots, mounts};

/// File systems on local disks that keep large folios in the page cache.
const LOCAL: [&[u8]; 3] = [b"ext4", b"xfs", b"btrfs"];

/// Devices, major and minor, ascending.
type Devices = Vec<(u32, u32)>;

/// Devices from which one process can map files. Reads the table of mounts when it is first needed.
pub(super) struct FileDevices<'a> {
    roots: &'a Roots,
    pid: u32,
    /// Devices of tmpfs, and of local file systems.
    mounted: Option<(Devices, Devices)>,
}

impl<'a> FileDevices<'a> {
    pub(super) const fn of(roots: &'a Roots, pid: u32) -> Self {
        Self {
            roots,
            pid,
            mounted: None,
        }
    }

    /// Distinguishes a shared mapping of memory from one of a file.
    pub(super) fn refine(&mut self, vma: &mut Vma, part: ObjectPart) {
        if vma.kind != VmaKind::Shared {
            return;
        }
        let device = part.object.device;
        // Do not skip inode 0: it is the inode of the first System V segment after boot, since the inode is the segment's id.
        if own_tmpfs() == Some(device) || contains(&self.mounted().0, device) {
            vma.kind = VmaKind::Shmem(part);
        } else if vma.range.regions().next().is_some()
            && contains(&self.mounted().1, device)
            && collapses_files()
        {
            vma.kind = VmaKind::File(part);
        }
    }

    fn mounted(&mut self) -> &(Devices, Devices) {
        let (roots, pid) = (self.roots, self.pid);
        self.mounted.get_or_insert_with(|| {
            // An unreadable table lists neither kind.
            let table = table_of_mounts(roots, pid);
            let local = devices_of(&table, |kind| LOCAL.contains(&kind));
            (parse_tmpfs_devices(&table), local)
        })
    }
}

/// Bytes of a table of mounts that are read: a mount namespace may have 100,000 mounts with long paths.
const LARGEST_TABLE: u64 = 16 << 20;

fn table_of_mounts(roots: &Roots, pid: u32) -> Vec<u8> {
    let mut table = Vec::new();
    if let Ok(file) = File::open(roots.of_process(pid, "mountinfo")) {
        let _ = file.take(LARGEST_TABLE).read_to_end(&mut table);
    }
    table
}

fn contains(devices: &Devices, device: (u32, u32)) -> bool {
    devices.binary_search(&device).is_ok()
}

/// Parses the devices (major and minor) of every tmpfs in the text of `/proc/PID/mountinfo` (`proc_pid_mountinfo(5)`), ascending.
#[must_use]
pub fn parse_tmpfs_devices(text: &[u8]) -> Vec<(u32, u32)> {
    devices_of(text, |kind| kind == b"tmpfs")
}

fn devices_of(text: &[u8], is_wanted: impl Fn(&[u8]) -> bool) -> Devices {
    let wanted = mounts::parse(text).filter(|mount| is_wanted(mount.kind));
    let mut devices: Devices = wanted.map(|mount| mount.device).collect();
    devices.sort_unstable();
    devices.dedup();
    devices
}

/// Returns true if a tmpfs has quotas for users or groups, as far as `mountinfo` of a process shows it (Linux 6.6).
#[must_use]
pub fn tmpfs_has_quota(roots: &Roots, pid: u32, device: (u32, u32)) -> bool {
    let table = table_of_mounts(roots, pid);
    let has_quota = |options: &[u8]| {
        let mut options = options.split(|&byte| byte == b',');
        options.any(|option| option.starts_with(b"usrquota") || option.starts_with(b"grpquota"))
    };
    let mut mounts = mounts::parse(&table).filter(|mount| mount.device == device);
    mounts.any(|mount| has_quota(mount.options))
}

/// Returns the device of the tmpfs that the kernel mounts for itself; it stays the same until the next boot.
#[must_use]
pub fn own_tmpfs() -> Option<(u32, u32)> {
    static DEVICE: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    *DEVICE.get_or_init(|| {
        let file = memfd_create("superhue-device", MemfdFlags::CLOEXEC).ok()?;
        let device = fstat(&file).ok()?.st_dev;
        Some((major(device), minor(device)))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use superhue_model::{ObjectId, VirtAddr, VirtRange};

    use super::*;

    #[test]
    fn the_first_segment_after_boot_is_memory_too() {
        let device = own_tmpfs().unwrap();
        let part = |device| ObjectPart {
            object: ObjectId { device, inode: 0 },
            offset: 0,
        };
        let roots = Roots::default();
        let mut devices = FileDevices::of(&roots, std::process::id());
        for (device, is_memory) in [(device, true), ((0, 0), false)] {
            let mut vma = Vma {
                range: VirtRange::new(VirtAddr(0x1000), VirtAddr(0x2000)).unwrap(),
                kind: VmaKind::Shared,
                writable: true,
            };
            devices.refine(&mut vma, part(device));
            let found = matches!(vma.kind, VmaKind::Shmem(_));
            assert_eq!(found, is_memory, "{device:?}");
        }
    }

    #[test]
    fn every_tmpfs_counts_once() {
        let text = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
                     24 30 0:26 / /dev/shm rw shared:4 master:1 - tmpfs tmpfs rw\n\
                     25 30 0:22 / /run rw - tmpfs tmpfs rw\n\
                     26 30 0:22 /lock /run/lock rw - tmpfs tmpfs rw\n";
        assert_eq!(parse_tmpfs_devices(text), [(0, 22), (0, 26)]);
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let file = roots.of_process(7, "mountinfo");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let quota = b"27 1 0:30 / /q rw - tmpfs tmpfs rw,size=64k,usrquota_block_hardlimit=1M\n";
        fs::write(&file, [&text[..], quota].concat()).unwrap();
        let with = [26, 30].map(|minor| tmpfs_has_quota(&roots, 7, (0, minor)));
        assert_eq!(with, [false, true]);
    }
}

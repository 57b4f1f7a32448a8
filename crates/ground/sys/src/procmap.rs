//! `PROCMAP_QUERY`: reads one mapping of a process without reading all of them (Linux 6.11; `linux/fs.h`).

use std::fs::File;
use std::mem::size_of;
use std::os::fd::AsRawFd;

use rustix::io::Errno;

use crate::pagemap::last_errno;

/// `PROCMAP_QUERY_VMA_*`.
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const EXECUTABLE: u64 = 4;
const SHARED: u64 = 8;

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;

/// `struct procmap_query`.
#[derive(Default)]
#[repr(C)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

const _: () = assert!(size_of::<Query>() == 104);

/// Mapping of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address behind the mapping.
    pub end: u64,
    /// True if it is `rw-p` and has no file.
    pub is_writable_anonymous: bool,
}

/// Returns the mapping at `address`, of the process whose `/proc/PID/maps` is open.
///
/// # Errors
/// `ENOENT` no mapping there; `ENOTTY` before Linux 6.11.
pub fn query(maps: &File, address: u64) -> Result<Mapping, Errno> {
    let mut query = Query {
        size: size_of::<Query>() as u64,
        address,
        ..Query::default()
    };
    // SAFETY: the kernel reads and fills the structure, whose length its first field gives.
    let done = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
    if done < 0 {
        return Err(last_errno());
    }
    let permissions = query.vma_flags & (READABLE | WRITABLE | EXECUTABLE | SHARED);
    Ok(Mapping {
        start: query.start,
        end: query.end,
        is_writable_anonymous: permissions == READABLE | WRITABLE && query.inode == 0,
    })
}

//! Which mapping an address of a process lies in.

use std::fs::{self, File};

use superhue_procfs::process::{NamedVma, parse_named_maps};
use superhue_sys::procmap::{Mapping, query};

/// The mapping at `address`.
pub(crate) fn at(pid: u32, address: u64) -> Option<Mapping> {
    let file = File::open(path(pid)).ok()?;
    match query(&file, address) {
        Ok(mapping) => Some(mapping),
        Err(rustix::io::Errno::NOENT) => None,
        // Before Linux 6.11.
        Err(_) => all(pid)
            .iter()
            .map(mapping)
            .find(|it| (it.start..it.end).contains(&address)),
    }
}

/// Whether a process has no memory (any more).
pub(crate) fn has_none(pid: u32) -> bool {
    fs::read(path(pid)).is_ok_and(|text| text.is_empty())
}

/// Whether the kernel reads and writes for a process on its own (`io_setup(2)`).
pub(crate) fn has_aio(pid: u32) -> bool {
    let text = fs::read(path(pid)).unwrap_or_default();
    let name: &[u8] = b"/[aio]";
    text.windows(name.len()).any(|part| part == name)
}

/// Executable anonymous mappings of `length` bytes or more.
pub(crate) fn executable_anonymous(pid: u32, length: u64) -> Vec<Mapping> {
    let all = all(pid);
    let ours = all.iter().filter(|vma| {
        vma.vma.range.len().0 >= length && &vma.permissions == b"r-xp" && has_no_file(vma)
    });
    ours.map(mapping).collect()
}

/// Code that the kernel gives to every program.
pub(crate) fn vdso(pid: u32) -> Option<Mapping> {
    let all = all(pid);
    let vdso = |vma: &&NamedVma| vma.name.as_deref() == Some("[vdso]");
    all.iter().find(vdso).map(mapping)
}

fn path(pid: u32) -> String {
    format!("/proc/{pid}/maps")
}

/// All of them; none of a process that is gone.
fn all(pid: u32) -> Vec<NamedVma> {
    let text = fs::read(path(pid)).unwrap_or_default();
    parse_named_maps(&text).unwrap_or_default()
}

fn has_no_file(vma: &NamedVma) -> bool {
    vma.part.object.inode == 0
}

fn mapping(vma: &NamedVma) -> Mapping {
    Mapping {
        start: vma.vma.range.start.0,
        end: vma.vma.range.end.0,
        is_writable_anonymous: &vma.permissions == b"rw-p" && has_no_file(vma),
    }
}

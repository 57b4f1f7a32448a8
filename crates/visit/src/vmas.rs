//! Which mapping an address of a process lies in.

use std::fs::{self, File};

use superhue_sys::procmap::{Mapping, query};

/// The mapping at `address`.
pub(crate) fn at(pid: u32, address: u64) -> Option<Mapping> {
    let maps = format!("/proc/{pid}/maps");
    let file = File::open(&maps).ok()?;
    match query(&file, address) {
        Ok(mapping) => Some(mapping),
        Err(rustix::io::Errno::NOENT) => None,
        // Before Linux 6.11.
        Err(_) => {
            let text = fs::read(&maps).ok()?;
            let lines = text.split(|byte| *byte == b'\n');
            lines
                .filter_map(parse)
                .map(|line| line.0)
                .find(|it| (it.start..it.end).contains(&address))
        }
    }
}

/// Whether a process has no memory (any more).
pub(crate) fn has_none(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/maps")).is_ok_and(|text| text.is_empty())
}

/// Whether the kernel reads and writes for a process on its own (`io_setup(2)`).
pub(crate) fn has_aio(pid: u32) -> bool {
    let text = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let name: &[u8] = b"/[aio]";
    text.windows(name.len()).any(|part| part == name)
}

/// Executable anonymous mappings of `length` bytes or more.
pub(crate) fn executable_anonymous(pid: u32, length: u64) -> Vec<Mapping> {
    let text = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let lines = text.split(|byte| *byte == b'\n').filter_map(parse);
    let ours = lines.filter(|(mapping, permissions, inode)| {
        mapping.end - mapping.start >= length && permissions == b"r-xp" && *inode == 0
    });
    ours.map(|(mapping, ..)| mapping).collect()
}

/// `start-end perms offset device inode path`.
fn parse(line: &[u8]) -> Option<(Mapping, [u8; 4], u64)> {
    let line = std::str::from_utf8(line.get(..line.len().min(72))?).ok()?;
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let bound = |text| u64::from_str_radix(text, 16).ok();
    let permissions: [u8; 4] = fields.next()?.as_bytes().try_into().ok()?;
    let inode = fields.nth(2)?.parse().ok()?;
    let mapping = Mapping {
        start: bound(start)?,
        end: bound(end)?,
        is_writable_anonymous: &permissions == b"rw-p" && inode == 0,
    };
    (mapping.start < mapping.end).then_some((mapping, permissions, inode))
}

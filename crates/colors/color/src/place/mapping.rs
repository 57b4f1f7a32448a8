//! Why pages cannot be moved into a mapping: what `/proc/PID/maps` says of it.

use std::ffi::CStr;

use rustix::fs::{Mode, OFlags};
use superhue_model::VirtAddr;

use super::Refusal;

/// The reason that the mapping at `address` gives; asked only after the kernel has said no without a reason (`EINVAL`).
pub(super) fn obstacle_at(address: VirtAddr) -> Refusal {
    match line_of(address) {
        Some((permissions, inode)) => match (permissions, inode) {
            (_, 1..) => Refusal::NotAnonymous,
            ([_, _, _, b's'], 0) => Refusal::NotAnonymous,
            ([b'r', b'w', b'-', _], 0) => Refusal::Locked,
            _ => Refusal::Protected,
        },
        None => Refusal::Changed,
    }
}

/// Permissions and inode number of the mapping at `address`.
fn line_of(address: VirtAddr) -> Option<([u8; 4], u64)> {
    find_line(c"/proc/thread-self/maps", |line| parse(line, address))
}

/// What `look` finds in the first line in which it finds something.
fn find_line<T>(path: &CStr, mut look: impl FnMut(&[u8]) -> Option<T>) -> Option<T> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let mut text = Vec::with_capacity(8192);
    let mut block = [0_u8; 4096];
    loop {
        let read = rustix::io::read(&file, &mut block).ok()?;
        text.extend_from_slice(block.get(..read)?);
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let found = text.get(..end).and_then(&mut look);
            if found.is_some() {
                return found;
            }
            text.drain(..=end);
        }
        if read == 0 {
            return None;
        }
    }
}

/// What the line says, if it is about `address`: `start-end perms offset device inode path`.
fn parse(line: &[u8], address: VirtAddr) -> Option<([u8; 4], u64)> {
    let line = std::str::from_utf8(line.get(..line.len().min(72))?).ok()?;
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let bound = |text| u64::from_str_radix(text, 16).ok();
    if !(bound(start)?..bound(end)?).contains(&address.0) {
        return None;
    }
    let permissions = fields.next()?.as_bytes().try_into().ok()?;
    let inode = fields.nth(2)?.parse().ok()?;
    Some((permissions, inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart() {
        let line = b"7f00-7f10 r--p 00001000 fe:00 42                 /usr/lib/x.so";
        assert_eq!(parse(line, VirtAddr(0x7f0f)), Some((*b"r--p", 42)));
        assert_eq!(parse(line, VirtAddr(0x7f10)), None);
        assert_eq!(parse(b"nonsense", VirtAddr(0)), None);
    }

    #[test]
    fn code_is_not_anonymous_and_what_is_not_mapped_has_changed() {
        let code = VirtAddr(obstacle_at as *const () as u64);
        assert_eq!(obstacle_at(code), Refusal::NotAnonymous);
        assert_eq!(obstacle_at(VirtAddr(4096)), Refusal::Changed);
        let stack = 0_u64;
        let stack = VirtAddr(std::ptr::from_ref(&stack) as u64);
        assert_eq!(obstacle_at(stack), Refusal::Locked);
    }
}

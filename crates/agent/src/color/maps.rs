//! Which mappings of this process may be placed by color: `/proc/self/maps`, read piece by piece.
//!
//! ```text
//!   7f1c4a000000-7f1c4a021000 rw-p 00000000 00:00 0                          [heap]
//!   start        end          mode offset   device inode                     name
//! ```
//!
//! Private anonymous memory that can be written: the heap, stacks, what was mapped, the program's .bss. Its .data is not: the
//! kernel fills its holes from a file. Nor is a library's .bss, which follows the library's file: this thread itself
//! uses its own and libc's, and must not wait for itself.

use rustix::fd::AsFd;
use superhue_model::{VirtAddr, VirtRange};

/// What a line says, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// Where it lies.
    pub(crate) range: VirtRange,
    /// Whether it is private anonymous memory that can be written.
    pub(crate) is_plain: bool,
    /// Whether it is private and can be written, but of a file.
    pub(crate) is_written_file: bool,
    /// Whether it belongs to a library's file.
    pub(crate) is_library: bool,
}

/// Calls `each` with every mapping, in order; `None` if the list cannot be read.
///
/// `maps` is an open `/proc/self/maps`; `buffer` holds the longest line several times over.
pub(crate) fn read(
    maps: impl AsFd,
    buffer: &mut [u8],
    mut each: impl FnMut(Mapping),
) -> Option<()> {
    let (mut offset, mut kept) = (0_u64, 0_usize);
    let mut library_end = None;
    loop {
        let free = buffer.get_mut(kept..).filter(|free| !free.is_empty())?;
        let read = rustix::io::pread(maps.as_fd(), free, offset).ok()?;
        if read == 0 {
            return Some(());
        }
        offset += read as u64;
        let filled = kept + read;
        let mut begin = 0;
        while let Some(text) = buffer.get(begin..filled) {
            let Some(end) = text.iter().position(|&byte| byte == b'\n') else {
                break;
            };
            if let Some(mut mapping) = text.get(..end).and_then(parse) {
                mapping.is_plain &= library_end != Some(mapping.range.start);
                library_end = mapping.is_library.then_some(mapping.range.end);
                each(mapping);
            }
            begin += end + 1;
        }
        buffer.copy_within(begin.min(filled)..filled, 0);
        kept = filled.saturating_sub(begin);
    }
}

/// Names of memory that is the program's own.
const KNOWN: [&[u8]; 2] = [b"[heap]", b"[stack]"];

fn parse(line: &[u8]) -> Option<Mapping> {
    let mut fields = line
        .split(|&byte| byte == b' ')
        .filter(|field| !field.is_empty());
    let mut bounds = fields.next()?.split(|&byte| byte == b'-');
    let (start, end) = (number(bounds.next()?)?, number(bounds.next()?)?);
    let mode = fields.next()?;
    let _offset = fields.next()?;
    let _device = fields.next()?;
    let inode = fields.next()?;
    let name = fields.next().unwrap_or_default();
    let is_private = mode.starts_with(b"rw") && mode.get(3) == Some(&b'p');
    // [vvar], [vdso] and the like are special; named anonymous memory is as any other.
    let is_known = name.is_empty() || name.starts_with(b"[anon:") || KNOWN.contains(&name);
    let is_anonymous = inode == b"0" && is_known;
    Some(Mapping {
        range: VirtRange::new(VirtAddr(start), VirtAddr(end))?,
        is_plain: is_private && is_anonymous,
        is_written_file: is_private && inode != b"0",
        is_library: inode != b"0" && line.windows(3).any(|part| part == b".so"),
    })
}

fn number(hex: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(hex).ok()?;
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn parsed(line: &str) -> Mapping {
        parse(line.as_bytes()).unwrap()
    }

    #[test]
    fn private_anonymous_memory_is_told_from_the_rest() {
        let heap =
            parsed("55d0c000-55d0e000 rw-p 00000000 00:00 0                          [heap]");
        assert!(heap.is_plain && !heap.is_library);
        assert_eq!(heap.range.start, VirtAddr(0x55d0_c000));
        assert!(parsed("7f00-8000 rwxp 00000000 00:00 0 ").is_plain);
        assert!(parsed("7f00-8000 rw-p 00000000 00:00 0   [anon: a name]").is_plain);
        assert!(parsed("7f00-8000 rw-p 00000000 00:00 0   [stack]").is_plain);
        for other in [
            "7f00-8000 r--p 00000000 00:00 0 ",
            "7f00-8000 rw-s 00000000 00:00 0 ",
            "7f00-8000 rw-s 00000000 00:01 1024 /dev/zero (deleted)",
            "7f00-8000 r--p 00000000 00:00 0  [vvar]",
            "7f00-8000 rw-p 00000000 00:00 0  [vvar_vclock]",
        ] {
            assert!(!parsed(other).is_plain, "{other}");
        }
        let data = parsed("7f00-8000 rw-p 001d5000 fe:00 1234   /lib/x.so");
        assert!(!data.is_plain && data.is_written_file && data.is_library);
        for nonsense in ["", "x", "7f00-6000 rw-p 0 00:00 0", "7f00 rw-p 0 0 0"] {
            assert_eq!(parse(nonsense.as_bytes()), None, "{nonsense}");
        }
    }

    #[test]
    fn the_own_list_is_read_in_small_pieces_as_in_one() {
        let maps = File::open("/proc/self/maps").unwrap();
        let mut whole = Vec::new();
        let mut pieces = Vec::new();
        let mut large = vec![0; 1 << 20];
        let mut small = vec![0; 600];
        read(&maps, &mut large, |mapping| whole.push(mapping.range)).unwrap();
        read(&maps, &mut small, |mapping| pieces.push(mapping.range)).unwrap();
        assert!(whole.len() > 10);
        // Both vectors may have grown the heap meanwhile.
        let common = whole.iter().filter(|range| pieces.contains(range)).count();
        assert!(common + 6 > whole.len().max(pieces.len()));
    }
}

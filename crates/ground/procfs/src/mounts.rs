//! `/proc/PID/mountinfo` (`proc_pid_mountinfo(5)`): the mounts.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount<'a> {
    /// Major and minor number of the mounted device.
    pub(crate) device: (u32, u32),
    /// Mount point, as the table writes it; see [`Self::place`].
    place: &'a [u8],
    /// File system type.
    pub(crate) kind: &'a [u8],
    /// Options of the file system, separated by commas.
    pub(crate) options: &'a [u8],
}

impl Mount<'_> {
    /// Returns the mount point.
    pub(crate) fn place(&self) -> PathBuf {
        PathBuf::from(OsString::from_vec(unescape(self.place)))
    }
}

/// Reads the mounts of a table, in its order. Skips lines that are not as documented.
pub(crate) fn parse(text: &[u8]) -> impl Iterator<Item = Mount<'_>> {
    text.split(|&b| b == b'\n').filter_map(|line| {
        let mut words = line.split(|&b| b == b' ');
        let device = device(words.nth(2)?)?;
        let place = words.nth(1)?;
        let mut after = words.skip_while(|&word| word != b"-").skip(1);
        let (kind, options) = (after.next()?, after.nth(1).unwrap_or_default());
        Some(Mount {
            device,
            place,
            kind,
            options,
        })
    })
}

/// Parses `major:minor`, in decimal.
fn device(text: &[u8]) -> Option<(u32, u32)> {
    let (major, minor) = str::from_utf8(text).ok()?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Decodes `\ooo`, with which the kernel's tables write blanks, newlines and backslashes.
pub(crate) fn unescape(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| byte == b'\\').and_then(|digits| {
            let digits = str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_is_understood() {
        let text = b"1 2 0:26 / /mnt/my\\040cg\\134x rw shared:9 - tmpfs tmpfs rw,mode=755\nnonsense\n3 4 x:1 / / - a b c\n";
        let found: Vec<_> = parse(text).collect();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].device, found[0].kind), ((0, 26), &b"tmpfs"[..]));
        assert_eq!(found[0].place(), PathBuf::from("/mnt/my cg\\x"));
        assert_eq!(found[0].options, b"rw,mode=755");
    }

    proptest! {
        #[test]
        fn nonsense_never_panics(text: Vec<u8>) {
            parse(&text).for_each(|mount| drop(mount.place()));
            let _ = unescape(&text);
        }
    }
}

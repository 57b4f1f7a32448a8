//! `/proc/PID/mountinfo`: which file systems hold shared memory.
//!
//! Format: `proc_pid_mountinfo(5)`. A mapping's line in `maps` names the device of its file; that of a tmpfs means shared memory,
//! which the kernel can put on superpages, whereas ordinary files mostly cannot be. Mappings of memory that the kernel keeps in a
//! tmpfs of its own (memfd, System V, shared anonymous) are on a device that is mounted nowhere; they are told by their names.
//!
//! ```text
//!   24 30 0:22 / /dev/shm rw,nosuid,nodev shared:4 - tmpfs tmpfs rw,size=65536k
//! ```

use crate::{ReadError, Roots};

use super::file::for_each_line;
use super::text::{self, ParseError};

/// The devices (major and minor) of every tmpfs that process `pid` has mounted, ascending.
///
/// Reads `/proc/PID/mountinfo`, which anyone may read.
///
/// # Errors
/// [`ReadError::Vanished`] when there is no such process or it is ending; [`ReadError::Malformed`].
pub fn tmpfs_devices(roots: &Roots, pid: u32) -> Result<Vec<(u32, u32)>, ReadError> {
    let path = roots.of_process(pid, "mountinfo");
    let mut devices = Vec::new();
    for_each_line(pid, &path, |number, line| {
        devices.extend(tmpfs(line).map_err(|what| ParseError::new(number, what))?);
        Ok(())
    })?;
    Ok(ordered(devices))
}

/// Understands the text of `/proc/PID/mountinfo`.
///
/// # Errors
/// Names the line that is not as documented.
pub fn parse_tmpfs_devices(text: &[u8]) -> Result<Vec<(u32, u32)>, ParseError> {
    let mut devices = Vec::new();
    for (number, line) in text::lines(text) {
        devices.extend(tmpfs(line).map_err(|what| ParseError::new(number, what))?);
    }
    Ok(ordered(devices))
}

fn ordered(mut devices: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    devices.sort_unstable();
    devices.dedup();
    devices
}

/// The device of a line about a tmpfs.
fn tmpfs(line: &[u8]) -> Result<Option<(u32, u32)>, &'static str> {
    let mut rest = line;
    let mut field = || text::next_field(&mut rest);
    let device = field()
        .and_then(|_| field())
        .and_then(|_| field())
        .and_then(device)
        .ok_or("the device is not two numbers")?;
    // Optional fields, of which there may be any number, end at a dash of its own.
    while field().ok_or("the dash before the type is missing")? != b"-" {}
    let kind = field().ok_or("the type is missing")?;
    Ok((kind == b"tmpfs").then_some(device))
}

/// Major and minor out of `0:22`; decimal here, unlike in `maps`.
fn device(text: &[u8]) -> Option<(u32, u32)> {
    let colon = text.iter().position(|&byte| byte == b':')?;
    let number = |text: &[u8]| text::decimal(text)?.try_into().ok();
    Some((number(&text[..colon])?, number(&text[colon + 1..])?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_tmpfs_counts_once() {
        let text = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
                     24 30 0:26 / /dev/shm rw shared:4 master:1 - tmpfs tmpfs rw\n\
                     25 30 0:22 / /run rw - tmpfs tmpfs rw\n\
                     26 30 0:22 /lock /run/lock rw - tmpfs tmpfs rw\n";
        assert_eq!(
            parse_tmpfs_devices(text),
            Ok(vec![(0, 22), (0, 26)]),
            "ascending"
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, what) in [
            ("24 30", "the device is not two numbers"),
            ("24 30 0.22 / /", "the device is not two numbers"),
            ("24 30 0:22 / / rw", "the dash before the type is missing"),
            ("24 30 0:22 / / rw -", "the type is missing"),
        ] {
            assert_eq!(
                parse_tmpfs_devices(line.as_bytes()),
                Err(ParseError::new(1, what))
            );
        }
    }

    proptest! {
        #[test]
        fn nonsense_never_panics(text: Vec<u8>) {
            let _ = parse_tmpfs_devices(&text);
        }
    }
}

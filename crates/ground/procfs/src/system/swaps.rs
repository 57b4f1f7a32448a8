//! `/proc/swaps`: the areas to which the kernel can swap pages out.
//!
//! See `proc(5)`, `swapon(2)` and `swap_show` in `mm/swapfile.c`. A page goes to the area with room that has the highest priority; areas
//! of equal priority take turns.
//!
//! Some areas are memory themselves: those on a zram device, which keeps the pages compressed. A page that goes there has
//! left its frame when the call returns, and comes back in 10 us. A page that goes to a disk stays in its frame until it is
//! written, and a fault meanwhile gets that very frame.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use superhue_model::ByteCount;

use super::ParseError;
use super::parse::quote;
use super::zram::{Zram, read_zrams};
use crate::{ReadError, Roots, mounts};

/// Type of a swap area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwapKind {
    /// A block device (`partition`).
    Device,
    /// A file of a file system.
    File,
}

/// Active swap area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwapArea {
    /// Path of the device or file, in the mount namespace of the reader.
    pub path: PathBuf,
    /// Type of the area.
    pub kind: SwapKind,
    /// Capacity for pages.
    pub size: ByteCount,
    /// Used capacity.
    pub used: ByteCount,
    /// Priority; the kernel fills areas of higher priority first.
    pub priority: i32,
    /// Number of the zram device that holds the area; `None` if it is not in memory.
    pub zram: Option<u32>,
}

impl SwapArea {
    /// Returns true if swapped pages stay in memory.
    #[must_use]
    pub const fn lies_in_memory(&self) -> bool {
        self.zram.is_some()
    }

    /// Returns the free capacity.
    #[must_use]
    pub const fn free(&self) -> ByteCount {
        ByteCount(self.size.0.saturating_sub(self.used.0))
    }
}

/// Reads the active swap areas, in the kernel's order, and finds those that lie in memory.
///
/// # Errors
/// [`ReadError::Missing`] on a kernel without swap; otherwise when the file may not be read or is malformed.
pub fn read_swaps(roots: &Roots) -> Result<Vec<SwapArea>, ReadError> {
    let path = roots.proc.join("swaps");
    let meaning = "a kernel without CONFIG_SWAP";
    let text = fs::read(&path).map_err(|error| ReadError::of_system(&path, error, meaning))?;
    let mut areas = parse_swaps(&text).map_err(|error| ReadError::Malformed {
        path,
        what: error.to_string(),
    })?;
    for area in &mut areas {
        if area.kind == SwapKind::Device {
            area.zram = zram_of(roots, &area.path);
        }
    }
    Ok(areas)
}

/// Parses `/proc/swaps`. The text does not show which areas lie in memory: `zram` is `None` in all of them.
///
/// # Errors
/// If a line after the first does not have its five fields.
pub fn parse_swaps(text: &[u8]) -> Result<Vec<SwapArea>, ParseError> {
    // The first line is a title.
    let lines = text.split(|&b| b == b'\n').enumerate().skip(1);
    lines
        .filter(|(_, line)| !line.is_empty())
        .map(|(index, line)| {
            let line_is = || quote(&String::from_utf8_lossy(line));
            let fail = || ParseError::in_line(index, format!("{} is no swap area", line_is()));
            parse_line(line).ok_or_else(fail)
        })
        .collect()
}

fn parse_line(line: &[u8]) -> Option<SwapArea> {
    // Blanks, tabs, newlines and backslashes of a path are octal numbers; other bytes are unchanged.
    let mut fields = line
        .split(|&b| b == b' ' || b == b'\t')
        .filter(|field| !field.is_empty());
    let path = PathBuf::from(OsString::from_vec(mounts::unescape(fields.next()?)));
    let kind = match fields.next()? {
        b"partition" => SwapKind::Device,
        b"file" => SwapKind::File,
        _ => return None,
    };
    let mut number = || str::from_utf8(fields.next()?).ok();
    let mut amount = || {
        let kib: u64 = number()?.parse().ok()?;
        kib.checked_mul(1024).map(ByteCount)
    };
    let (size, used) = (amount()?, amount()?);
    let priority = number()?.parse().ok()?;
    let area = SwapArea {
        path,
        kind,
        size,
        used,
        priority,
        zram: None,
    };
    fields.next().is_none().then_some(area)
}

/// Returns the number of the zram device at `path`: by its name, or, under another name, by its device number.
fn zram_of(roots: &Roots, path: &Path) -> Option<u32> {
    // The kernel appends this to the path of a deleted file.
    let name = path.as_os_str().as_bytes();
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    let number = str::from_utf8(name).ok().and_then(|name| {
        let digits = name.strip_prefix("/dev/zram")?;
        let is_plain = digits.bytes().all(|digit| digit.is_ascii_digit());
        digits.parse().ok().filter(|_| is_plain)
    });
    if let Some(number) = number {
        return Zram::read(roots, number).map(|zram| zram.number);
    }
    let about = fs::metadata(path).ok()?;
    if !about.file_type().is_block_device() {
        return None;
    }
    let device = (
        rustix::fs::major(about.rdev()),
        rustix::fs::minor(about.rdev()),
    );
    let zrams = read_zrams(roots).ok()?;
    let found = zrams.into_iter().find(|zram| zram.device == Some(device));
    found.map(|zram| zram.number)
}

/// Returns the free capacity in memory that the kernel uses before it uses a disk: in areas in memory whose priority is above that of
/// every disk area with free capacity.
#[must_use]
pub fn room_in_memory(areas: &[SwapArea]) -> ByteCount {
    let outside = areas
        .iter()
        .filter(|area| !area.lies_in_memory() && area.free().0 > 0);
    let highest = outside.map(|area| area.priority).max();
    let before = areas.iter().filter(|area| {
        area.lies_in_memory() && highest.is_none_or(|highest| area.priority > highest)
    });
    ByteCount(before.fold(0, |sum, area| sum.saturating_add(area.free().0)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TITLE: &str = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";

    fn parse(lines: &str) -> Result<Vec<SwapArea>, ParseError> {
        parse_swaps(format!("{TITLE}{lines}").as_bytes())
    }

    fn area(path: &str, free: u64, priority: i32, zram: Option<u32>) -> SwapArea {
        SwapArea {
            path: path.into(),
            kind: SwapKind::Device,
            size: ByteCount(free + 4096),
            used: ByteCount(4096),
            priority,
            zram,
        }
    }

    #[test]
    fn areas_are_read_in_order() {
        let areas = parse(
            "/dev/zram0                              partition\t65532\t\t2448\t\t100\n\
             /swap\\040file\\134x                    file\t\t1048572\t\t0\t\t-2\n",
        )
        .unwrap();
        assert_eq!(areas[0].path, PathBuf::from("/dev/zram0"));
        assert_eq!(
            (areas[0].kind, areas[0].priority, areas[0].zram),
            (SwapKind::Device, 100, None)
        );
        assert_eq!(areas[0].size, ByteCount(65_532 * 1024));
        assert_eq!(areas[0].free(), ByteCount((65_532 - 2448) * 1024));
        assert_eq!(areas[1].path, PathBuf::from("/swap file\\x"));
        assert_eq!((areas[1].kind, areas[1].priority), (SwapKind::File, -2));
        assert_eq!(areas.len(), 2);
        assert_eq!(parse("").unwrap(), []);
        assert_eq!(parse_swaps(b"").unwrap(), []);
    }

    #[test]
    fn paths_are_bytes() {
        let areas = parse_swaps(b"title\n/a\xff\rb file 8 8 -1\n").unwrap();
        assert_eq!(areas[0].path.as_os_str().as_bytes(), b"/a\xff\rb");
        assert_eq!(areas[0].free(), ByteCount(0));
    }

    #[test]
    fn malformed_lines_are_named() {
        let error = parse("/a file 1 0 -2\n/b file 1 0\n").unwrap_err();
        assert_eq!(error.to_string(), "line 3: \"/b file 1 0\" is no swap area");
        for line in [
            "/a disk 1 0 -2",
            "/a file -1 0 -2",
            "/a file 1 0 -2 x",
            "/a file 18446744073709551615 0 -2",
            "/a",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn zrams_are_told_from_disks() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let write = |path: &Path, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let lines = "/dev/zram1 partition 8 0 5\n/dev/zram2 partition 8 0 5\n/dev/zram1 file 8 0 5\n\
                     /dev/zram1\\040(deleted) partition 8 0 5\n/dev/no-such-disk partition 8 0 5\n\
                     /dev/zram+1 partition 8 0 5\n/x/zram1 partition 8 0 5\n/dev/null partition 8 0 5\n";
        write(&roots.proc.join("swaps"), &format!("{TITLE}{lines}"));
        write(&roots.sys.join("block/zram1/disksize"), "8192\n");
        // The number of a device that no test machine has as a block device.
        write(&roots.sys.join("block/zram1/dev"), "1:3\n");
        let found = read_swaps(&roots).unwrap();
        let zrams: Vec<_> = found.iter().map(|area| area.zram).collect();
        let one = Some(1);
        assert_eq!(zrams, [one, None, None, one, None, None, None, None]);
        fs::remove_file(roots.proc.join("swaps")).unwrap();
        let error = read_swaps(&roots).unwrap_err();
        assert!(matches!(error, ReadError::Missing { .. }));
    }

    #[test]
    fn room_counts_as_long_as_nothing_slower_comes_before() {
        let zram = |priority, free| area("/dev/zram0", free, priority, Some(0));
        let disk = |priority, free| area("/dev/vda2", free, priority, None);
        for (areas, room) in [
            (vec![], 0),
            (vec![zram(-2, 10)], 10),
            (vec![disk(-2, 10)], 0),
            (vec![zram(100, 10), disk(-2, 10)], 10),
            (vec![disk(100, 10), zram(-2, 10)], 0),
            // A full area is skipped.
            (vec![disk(100, 0), zram(-2, 10)], 10),
            // Areas of equal priority take turns.
            (vec![disk(5, 10), zram(5, 10)], 0),
            (vec![zram(7, 10), disk(5, 10), zram(6, 10), zram(5, 10)], 20),
        ] {
            assert_eq!(room_in_memory(&areas), ByteCount(room), "{areas:?}");
        }
    }

    #[test]
    fn the_running_machine_is_read() {
        match read_swaps(&Roots::default()) {
            Ok(areas) => assert!(areas.iter().all(|area| area.used <= area.size)),
            Err(error) => superhue_testing::skip("swap", &error.to_string()),
        }
    }

    proptest! {
        #[test]
        fn nonsense_never_panics(text: Vec<u8>, line in "[a-z/]{1,4} (file|partition) [0-9]{1,20} [0-9]{1,3} -?[0-9]{1,11}") {
            let _ = parse_swaps(&text);
            let _ = parse(&line);
        }
    }
}

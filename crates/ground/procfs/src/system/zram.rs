//! `/sys/block/zramN`: block devices that keep their contents in memory, compressed.
//!
//! See `Documentation/admin-guide/blockdev/zram.rst` and `drivers/block/zram/zram_drv.c`.

use std::fs;

use superhue_model::ByteCount;

use super::file::{self, Attributes};
use super::parse::quote;
use super::{Gaps, ParseError, number, switch};
use crate::{ReadError, Roots};

/// Meaning of the absence of block devices.
const MEANING: &str = "a container that hides block devices";

/// Zram device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zram {
    /// Number in its name: 2 for `zram2`.
    pub number: u32,
    /// Major and minor number (`dev`).
    pub device: Option<(u32, u32)>,
    /// Sequence number, which no other disk gets until the next boot, even under the same name (`diskseq`, Linux 5.15).
    pub disk_sequence: Option<u64>,
    /// Size; 0 until it is set (`disksize`).
    pub size: Option<ByteCount>,
    /// True if the size was set since the device was made or reset (`initstate`).
    pub initialised: Option<bool>,
    /// Contents (`mm_stat`).
    pub used: Option<ZramUse>,
    /// Reasons for the `None` fields above.
    pub gaps: Gaps,
}

/// Contents of a zram device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZramUse {
    /// Size of the data before compression.
    pub stored: ByteCount,
    /// Memory in use.
    pub memory: ByteCount,
    /// Maximum memory; 0 means no limit.
    pub limit: ByteCount,
}

impl Zram {
    /// Reads the device with this number; `None` if there is none.
    #[must_use]
    pub fn read(roots: &Roots, number_of_it: u32) -> Option<Self> {
        let folder = roots.sys.join(format!("block/zram{number_of_it}"));
        if !folder.is_dir() {
            return None;
        }
        let mut attributes = Attributes::of(folder);
        Some(Self {
            number: number_of_it,
            device: attributes.get("dev", parse_device),
            disk_sequence: attributes.get("diskseq", number),
            size: attributes.get("disksize", number).map(ByteCount),
            initialised: attributes.get("initstate", switch),
            used: attributes.get("mm_stat", parse_mm_stat),
            gaps: attributes.into_gaps(),
        })
    }
}

/// Reads all zram devices, by ascending number.
///
/// # Errors
/// [`ReadError::Missing`] if no block device is visible; otherwise when they may not be listed.
pub fn read_zrams(roots: &Roots) -> Result<Vec<Zram>, ReadError> {
    let folder = roots.sys.join("block");
    let found = file::numbered(&folder, "zram", "")
        .map_err(|error| ReadError::of_system(&folder, error, MEANING))?;
    let numbers = found
        .into_iter()
        .filter_map(|(number, _)| number.try_into().ok());
    // A device removed meanwhile is left out.
    Ok(numbers
        .filter_map(|number| Zram::read(roots, number))
        .collect())
}

/// Returns the highest sequence number of a disk of any kind (`diskseq`, Linux 5.15); 0 if there is no disk, `None` if disks have no such
/// number.
///
/// # Errors
/// As for [`read_zrams`].
pub fn newest_disk(roots: &Roots) -> Result<Option<u64>, ReadError> {
    let folder = roots.sys.join("block");
    let of_system = |error| ReadError::of_system(&folder, error, MEANING);
    let disks = fs::read_dir(&folder).map_err(of_system)?;
    let disks: Vec<_> = disks.collect::<Result<_, _>>().map_err(of_system)?;
    if disks.is_empty() {
        return Ok(Some(0));
    }
    let numbers = disks.iter().filter_map(|disk| {
        let mut attributes = Attributes::of(folder.join(disk.file_name()));
        attributes.get("diskseq", number)
    });
    Ok(numbers.max())
}

/// Parses `mm_stat`: numbers of bytes and pages, of which newer kernels have more.
///
/// # Errors
/// If one of the first four is missing or no number.
pub fn parse_mm_stat(text: &str) -> Result<ZramUse, ParseError> {
    let mut words = text.split_ascii_whitespace();
    let mut next = || -> Option<u64> { words.next()?.parse().ok() };
    let mut used = || {
        let (stored, _compressed) = (next()?, next()?);
        Some(ZramUse {
            stored: ByteCount(stored),
            memory: ByteCount(next()?),
            limit: ByteCount(next()?),
        })
    };
    used().ok_or_else(|| ParseError::new(format!("no four numbers: {}", quote(text.trim()))))
}

/// Parses `major:minor`, in decimal.
fn parse_device(text: &str) -> Result<(u32, u32), ParseError> {
    let both = text.trim().split_once(':');
    let both = both.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    both.ok_or_else(|| ParseError::no(text, "number of a device"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn devices_are_read_with_what_the_kernel_offers() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let write = |name: &str, text: &str| {
            let path = roots.sys.join("block").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert!(matches!(read_zrams(&roots), Err(ReadError::Missing { .. })));
        write("zram10/dev", "253:10\n");
        write("zram10/diskseq", "17\n");
        write("zram10/disksize", "67108864\n");
        write("zram10/initstate", "1\n");
        let stat =
            "    4096       82    12288 67108864    12288        0        0        0        0\n";
        write("zram10/mm_stat", stat);
        write("zram2/disksize", "0\n");
        write("zram2/initstate", "perhaps\n");
        write("zramx/disksize", "0\n");
        write("vda/size", "8\n");
        let [two, ten] = &read_zrams(&roots).unwrap()[..] else {
            panic!("two devices")
        };
        assert_eq!((two.number, ten.number), (2, 10));
        assert_eq!(ten.device, Some((253, 10)));
        assert_eq!(ten.disk_sequence, Some(17));
        assert_eq!(
            (ten.size, ten.initialised),
            (Some(ByteCount(64 << 20)), Some(true))
        );
        let used = ten.used.unwrap();
        assert_eq!(
            (used.stored, used.memory, used.limit),
            (ByteCount(4096), ByteCount(12288), ByteCount(64 << 20))
        );
        assert!(ten.gaps.is_empty());
        assert_eq!(two.size, Some(ByteCount(0)));
        assert_eq!(
            (two.initialised, two.disk_sequence, two.used),
            (None, None, None)
        );
        assert!(
            two.gaps
                .reason("initstate")
                .unwrap()
                .contains("not understood")
        );
        assert_eq!(Zram::read(&roots, 3), None);
        assert_eq!(newest_disk(&roots).unwrap(), Some(17));
        fs::remove_file(roots.sys.join("block/zram10/diskseq")).unwrap();
        assert_eq!(newest_disk(&roots).unwrap(), None);
        fs::remove_dir_all(roots.sys.join("block")).unwrap();
        fs::create_dir(roots.sys.join("block")).unwrap();
        assert_eq!(newest_disk(&roots).unwrap(), Some(0));
    }

    #[test]
    fn malformed_attributes_are_refused() {
        for text in ["", "1 2 3", "1 2 x 4", "-1 2 3 4"] {
            assert!(parse_mm_stat(text).is_err(), "{text:?}");
        }
        for text in ["", "253", "253:", ":0", "-1:0", "1:2:3"] {
            assert!(parse_device(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn nonsense_never_panics(text in ".*") {
            let _ = (parse_mm_stat(&text), parse_device(&text));
        }
    }
}

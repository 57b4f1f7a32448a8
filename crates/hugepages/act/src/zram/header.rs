//! The first page of a swap area: `union swap_header` of `include/linux/swap.h`, version 1, as `mkswap(8)` writes it.
//!
//! ```text
//!   0      1024       1028         1032           1036     1052      1068          4086
//!   | free | version  | last page  | bad pages    | UUID   | label   | zeroes ...  | SWAPSPACE2 |
//! ```
//!
//! Numbers are in the byte order of the machine; no page is bad. The UUID identifies an area of ours.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use superhue_model::{BASE_PAGE_SIZE, ByteCount};

/// Bytes of the first page.
pub(crate) const PAGE: usize = BASE_PAGE_SIZE as usize;

const VERSION: Range<usize> = 1024..1028;
const LAST_PAGE: Range<usize> = 1028..1032;
const UUID: Range<usize> = 1036..1052;
const LABEL: Range<usize> = 1052..1068;
const MAGIC: Range<usize> = PAGE - 10..PAGE;

/// Label of areas that superhue made; `blkid(8)` and `swapon --show` print it.
const OUR_LABEL: &[u8; 16] = b"superhue\0\0\0\0\0\0\0\0";

/// The number that identifies a swap area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Uuid([u8; 16]);

impl Uuid {
    /// Returns a new random number.
    pub(crate) fn random() -> Result<Self, Errno> {
        let mut bytes = [0; 16];
        let length = getrandom(&mut bytes, GetRandomFlags::empty())?;
        if length < bytes.len() {
            return Err(Errno::IO);
        }
        // Version 4, variant 1 (RFC 9562).
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Ok(Self(bytes))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if [4, 6, 8, 10].contains(&index) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl FromStr for Uuid {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fail = || format!("`{text}` is no UUID");
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        if digits.len() != 32 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(fail());
        }
        let number = u128::from_str_radix(&digits, 16).map_err(|_| fail())?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl TryFrom<String> for Uuid {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Uuid> for String {
    fn from(uuid: Uuid) -> Self {
        uuid.to_string()
    }
}

/// Returns the first page of an area of this size; `None` for a size below two pages, or with more pages than the header can number.
pub(crate) fn first_page(size: ByteCount, uuid: Uuid) -> Option<Vec<u8>> {
    let last = u32::try_from(size.0 / BASE_PAGE_SIZE)
        .ok()?
        .checked_sub(1)?;
    if last == 0 {
        return None;
    }
    let mut page = vec![0; PAGE];
    page[VERSION].copy_from_slice(&1_u32.to_ne_bytes());
    page[LAST_PAGE].copy_from_slice(&last.to_ne_bytes());
    page[UUID].copy_from_slice(&uuid.0);
    page[LABEL].copy_from_slice(OUR_LABEL);
    page[MAGIC].copy_from_slice(b"SWAPSPACE2");
    Some(page)
}

/// Returns true if `page` is the first page of our area with this number.
pub(crate) fn is_first_page_of(page: &[u8], uuid: Uuid) -> bool {
    let is = |range: Range<usize>, bytes: &[u8]| page.get(range) == Some(bytes);
    is(MAGIC, b"SWAPSPACE2") && is(LABEL, OUR_LABEL) && is(UUID, &uuid.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBER: &str = "4336b786-8047-48a9-8ab3-7caaaf9dd0e4";

    /// The page that util-linux 2.38 writes: `mkswap -L superhue -U 4336b786-...` of 64 MiB.
    #[test]
    fn it_is_what_mkswap_writes() {
        let page = first_page(ByteCount(64 << 20), NUMBER.parse().unwrap()).unwrap();
        let hex = |range: Range<usize>| -> String {
            page[range]
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect()
        };
        let numbers = "01000000ff3f000000000000";
        let uuid = "4336b786804748a98ab37caaaf9dd0e4";
        let label = "73757065726875650000000000000000";
        assert_eq!(hex(1024..1068), [numbers, uuid, label].concat());
        assert_eq!(hex(4086..4096), "53574150535041434532");
        assert!(
            page[..1024]
                .iter()
                .chain(&page[1068..4086])
                .all(|byte| *byte == 0)
        );
    }

    #[test]
    fn an_area_is_known_by_its_number() {
        let uuid = Uuid::random().unwrap();
        assert_eq!(uuid.to_string().parse(), Ok(uuid));
        assert_ne!(uuid, Uuid::random().unwrap());
        let mut page = first_page(ByteCount(8192), uuid).unwrap();
        assert!(is_first_page_of(&page, uuid));
        assert!(!is_first_page_of(&page, NUMBER.parse().unwrap()));
        assert!(!is_first_page_of(&page[..2000], uuid) && !is_first_page_of(&[], uuid));
        page[1052] = b'S';
        assert!(!is_first_page_of(&page, uuid), "of somebody else");
        assert!(!is_first_page_of(&[0; PAGE], uuid));
    }

    #[test]
    fn sizes_that_make_no_area_are_refused() {
        let uuid = NUMBER.parse().unwrap();
        for size in [0, 4096, 8191, 1 << 45] {
            assert!(first_page(ByteCount(size), uuid).is_none(), "{size}");
        }
    }

    #[test]
    fn numbers_are_read_as_written_and_nothing_else_is() {
        let json = format!("\"{NUMBER}\"");
        let read: Uuid = serde_json::from_str(&json).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), json);
        for text in ["", "4336b786", "+336b786-8047-48a9-8ab3-7caaaf9dd0e4", "x"] {
            assert!(text.parse::<Uuid>().is_err(), "{text}");
        }
    }
}

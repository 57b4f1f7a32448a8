//! Header of a palette file.
//!
//! ```text
//!   0    magic, 16 bytes
//!   16   u32, little endian: version, page size, colors, ways (0: not known), strength, kept, evicted, 0
//!   48   u32 per color: pages of its set
//!        u32 per page: its number in the file
//!   end  u64: FNV-1a of everything before
//! ```

use superhue_model::BASE_PAGE_SIZE;

use super::Contrast;

/// Bytes at the start of the file that the header may take: the pages of the sets follow.
pub(super) const HEADER_SIZE: usize = 64 * 1024;

/// The first page of the file that may belong to a set.
pub(super) const FIRST_PAGE: u32 = (HEADER_SIZE as u64 / BASE_PAGE_SIZE) as u32;

const MAGIC: &[u8; 16] = b"superhue-palette";
const VERSION: u32 = 1;

/// More colors than any cache divides base pages into.
const MOST_COLORS: u32 = 4_096;

/// More pages than any set needs.
const LARGEST_SET: u32 = 1_024;

/// The header of a palette file: pages by their number in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Ways of the cache as measured, if they were.
    pub ways: Option<u32>,
    /// Number of passes over a set that evict.
    pub strength: u32,
    /// Times of kept and evicted pages when the file was made.
    pub contrast: Contrast,
    /// The pages of every color's set.
    pub sets: Vec<Vec<u32>>,
}

/// Reason why a file is no palette.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The file ends too soon.
    #[error("it is cut off")]
    Short,
    /// The magic is another.
    #[error("it is no palette")]
    Magic,
    /// Written by another release, or on a machine with another page size.
    #[error("it was written by another version of superhue, or for another page size")]
    Version,
    /// The checksum is another.
    #[error("its checksum is wrong")]
    Checksum,
    /// Impossible numbers.
    #[error("it holds nonsense: {0}")]
    Nonsense(&'static str),
}

impl Header {
    /// Returns the bytes of the header; `None` if they do not fit into `HEADER_SIZE`.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut bytes = MAGIC.to_vec();
        let mut put = |word: u32| bytes.extend_from_slice(&word.to_le_bytes());
        for word in [
            VERSION,
            u32::try_from(BASE_PAGE_SIZE).ok()?,
            u32::try_from(self.sets.len()).ok()?,
            self.ways.unwrap_or(0),
            self.strength,
            self.contrast.kept,
            self.contrast.evicted,
            0,
        ] {
            put(word);
        }
        for set in &self.sets {
            put(u32::try_from(set.len()).ok()?);
        }
        for &page in self.sets.iter().flatten() {
            put(page);
        }
        let sum = checksum(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        (bytes.len() <= HEADER_SIZE).then_some(bytes)
    }

    /// Returns a number that differs between palettes that give the colors other numbers.
    #[must_use]
    pub fn numbering(&self) -> u64 {
        checksum(&self.encode().unwrap_or_default())
    }

    /// Reads the header of a file of `pages` pages; ignores the bytes after it.
    ///
    /// # Errors
    /// See [`HeaderError`]. A header that is read is sound: every set has pages, which lie in the file and in no
    /// other set.
    pub fn decode(bytes: &[u8], pages: u32) -> Result<Self, HeaderError> {
        use HeaderError::Nonsense;
        let mut reader = Reader { bytes, at: 0 };
        if reader.take(MAGIC.len())? != MAGIC {
            return Err(HeaderError::Magic);
        }
        if reader.word()? != VERSION || u64::from(reader.word()?) != BASE_PAGE_SIZE {
            return Err(HeaderError::Version);
        }
        let (colors, ways, strength) = (reader.word()?, reader.word()?, reader.word()?);
        let contrast = Contrast {
            kept: reader.word()?,
            evicted: reader.word()?,
        };
        reader.word()?;
        if !(1..=MOST_COLORS).contains(&colors) || ways > LARGEST_SET {
            return Err(Nonsense("no cache has that many colors or ways"));
        }
        if !(1..=64).contains(&strength) || contrast.kept >= contrast.evicted {
            return Err(Nonsense("its times or its strength"));
        }
        let lengths: Vec<u32> = (0..colors)
            .map(|_| reader.word())
            .collect::<Result<_, _>>()?;
        let mut sets = Vec::with_capacity(lengths.len());
        for length in lengths {
            if !(2..=LARGEST_SET).contains(&length) {
                return Err(Nonsense("the size of a set"));
            }
            sets.push(
                (0..length)
                    .map(|_| reader.word())
                    .collect::<Result<Vec<_>, _>>()?,
            );
        }
        let body = bytes.get(..reader.at).ok_or(HeaderError::Short)?;
        let sum = reader.take(8)?.try_into().map_err(|_| HeaderError::Short)?;
        if checksum(body) != u64::from_le_bytes(sum) {
            return Err(HeaderError::Checksum);
        }
        let mut all: Vec<u32> = sets.iter().flatten().copied().collect();
        all.sort_unstable();
        if all.iter().any(|page| !(FIRST_PAGE..pages).contains(page)) {
            return Err(Nonsense("pages that the file does not have"));
        }
        if all.is_sorted_by(|before, after| before < after) {
            let ways = Some(ways).filter(|ways| *ways > 0);
            Ok(Self {
                ways,
                strength,
                contrast,
                sets,
            })
        } else {
            Err(Nonsense("a page of two sets"))
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], HeaderError> {
        let end = self.at.checked_add(length).ok_or(HeaderError::Short)?;
        let taken = self.bytes.get(self.at..end).ok_or(HeaderError::Short)?;
        self.at = end;
        Ok(taken)
    }

    fn word(&mut self) -> Result<u32, HeaderError> {
        let word = self.take(4)?.try_into().map_err(|_| HeaderError::Short)?;
        Ok(u32::from_le_bytes(word))
    }
}

/// FNV-1a: against accidents, not against malice; the check of the file's owner covers that.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            ways: Some(8),
            strength: 1,
            contrast: Contrast {
                kept: 156,
                evicted: 312,
            },
            sets: vec![vec![16, 20, 18], vec![17, 4_000]],
        }
    }

    #[test]
    fn what_was_written_is_read_again() {
        let unknown = Header {
            ways: None,
            ..header()
        };
        for header in [header(), unknown] {
            let mut bytes = header.encode().unwrap();
            bytes.resize(HEADER_SIZE, 0);
            assert_eq!(Header::decode(&bytes, 4_001), Ok(header));
        }
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_noticed() {
        let bytes = header().encode().unwrap();
        for length in 0..bytes.len() {
            assert_eq!(
                Header::decode(&bytes[..length], 4_001),
                Err(HeaderError::Short)
            );
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x41;
            assert!(Header::decode(&changed, 4_001).is_err(), "{at}");
        }
    }

    #[test]
    fn nonsense_is_refused_though_its_checksum_is_right() {
        let refused = |change: fn(&mut Header)| {
            let mut header = header();
            change(&mut header);
            let error = Header::decode(&header.encode().unwrap(), 4_001).unwrap_err();
            assert!(matches!(error, HeaderError::Nonsense(_)), "{error}");
        };
        refused(|header| header.sets.clear());
        refused(|header| header.sets.push(vec![30]));
        refused(|header| header.sets.push(vec![16, 31]));
        refused(|header| header.sets.push(vec![15, 31]));
        refused(|header| header.sets.push(vec![4_001, 31]));
        refused(|header| header.strength = 0);
        refused(|header| header.contrast.evicted = 156);
        refused(|header| header.ways = Some(2_000));
        refused(|header| header.sets = vec![(16..2_000).collect()]);
    }

    #[test]
    fn more_than_there_is_room_for_is_not_written() {
        let header = Header {
            sets: vec![vec![16; 1_000]; 20],
            ..header()
        };
        assert_eq!(header.encode(), None);
    }
}

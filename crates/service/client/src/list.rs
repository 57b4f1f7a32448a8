//! The file that holds the newest list of active pages.
//!
//! The service writes it, one client reads it; both by `pwrite(2)` and `pread(2)`, so that neither maps
//! memory which the other could take away. Little-endian words:
//!
//! ```text
//!   word  0 sequence     odd while the service writes
//!         1 serial       lists written so far
//!         2 superseded   of these, replaced before they were fetched
//!         3 active       pages in this list, a huge page counting 512
//!         4 entries      words that follow
//!         5 cut          pages that this list lacks, counted likewise: the coldest
//!         6 7            zero
//!         8 ...          one word per page, hottest first:
//!
//!   63                                      12 11 10 9       0
//!   | address, a multiple of 4096             | H| E|  heat  |    H huge, E estimated, heat 1..=1000
//! ```
//!
//! A reader reads the header, the words, and the sequence again. If the sequence has changed or is
//! odd, the words may be of two lists.

use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};

use rustix::io::{Errno, pread, pwrite};
use superhue_model::{BASE_PAGE_SIZE, HUGE_PAGE_SIZE, PAGES_PER_REGION};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;
/// Words read at a time, on the stack of a signal handler.
const CHUNK: usize = 256;
/// Attempts of a reader before it gives up.
const TRIES: usize = 16;

const HUGE_BIT: u64 = 1 << 11;
const ESTIMATED_BIT: u64 = 1 << 10;
const HEAT_MASK: u64 = ESTIMATED_BIT - 1;

/// Properties of a page, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct PageFlags(u32);

impl PageFlags {
    /// A base page whose accesses were seen.
    pub const NONE: Self = Self(0);
    /// One entry maps the whole region: accesses to its single pages are unknown.
    pub const HUGE: Self = Self(1);
    /// The heat is that of a range around the page.
    pub const ESTIMATED: Self = Self(2);

    /// Returns the union of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the flags that both have.
    #[must_use]
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns true if all flags of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the bits of `hps_page.flags`.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

/// An active page. Laid out as `struct hps_page` of the C interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct Page {
    /// First byte.
    pub address: u64,
    /// Recent samples that found the page accessed, per mille, newer ones weighing more: 1 to 1000.
    pub heat: u32,
    /// Properties of the page.
    pub flags: PageFlags,
}

impl Page {
    /// Returns true if the address is aligned as the flags demand.
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        let alignment = if self.is_huge() {
            HUGE_PAGE_SIZE
        } else {
            BASE_PAGE_SIZE
        };
        self.address.is_multiple_of(alignment)
    }

    /// Returns true if one entry maps the whole region.
    #[must_use]
    pub const fn is_huge(&self) -> bool {
        self.flags.contains(PageFlags::HUGE)
    }

    /// Returns the number of base pages that it stands for.
    #[must_use]
    pub const fn weight(&self) -> u64 {
        if self.is_huge() { PAGES_PER_REGION } else { 1 }
    }

    /// Returns its word in the file; bits of the address below 4096 are lost.
    #[must_use]
    pub fn pack(&self) -> u64 {
        let mut word = self.address & !(BASE_PAGE_SIZE - 1) | u64::from(self.heat.min(1000));
        if self.is_huge() {
            word |= HUGE_BIT;
        }
        if self.flags.contains(PageFlags::ESTIMATED) {
            word |= ESTIMATED_BIT;
        }
        word
    }

    /// Returns the page of a word.
    #[must_use]
    pub const fn unpack(word: u64) -> Self {
        let mut flags = PageFlags::NONE;
        if word & HUGE_BIT != 0 {
            flags = flags.and(PageFlags::HUGE);
        }
        if word & ESTIMATED_BIT != 0 {
            flags = flags.and(PageFlags::ESTIMATED);
        }
        Self {
            address: word & !(BASE_PAGE_SIZE - 1),
            #[allow(clippy::cast_possible_truncation, reason = "ten bits")]
            heat: (word & HEAT_MASK) as u32,
            flags,
        }
    }
}

/// The head of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    /// Odd while the list is written.
    pub sequence: u64,
    /// Lists written so far.
    pub serial: u64,
    /// Of these, lists replaced before they were fetched.
    pub superseded: u64,
    /// Active pages, a huge page counting 512, those cut away included.
    pub active: u64,
    /// Words that follow.
    pub entries: u64,
    /// Pages that this list lacks; a huge page counts 512.
    pub cut: u64,
}

impl Header {
    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let words = [
            self.sequence,
            self.serial,
            self.superseded,
            self.active,
            self.entries,
            self.cut,
            0,
            0,
        ];
        let mut bytes = [0; HEADER_BYTES];
        for (room, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *room = word.to_le_bytes();
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Self {
        let mut words = [0; HEADER_BYTES / 8];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [sequence, serial, superseded, active, entries, cut, ..] = words;
        Self {
            sequence,
            serial,
            superseded,
            active,
            entries,
            cut,
        }
    }

    /// Reads the header, whole.
    ///
    /// # Errors
    /// `EAGAIN` if it kept changing; those of `pread(2)`; `EIO` for a file that is too short.
    pub fn read(file: impl AsFd) -> Result<Self, Errno> {
        for _ in 0..TRIES {
            let header = Self::read_once(&file)?;
            if header.sequence % 2 == 0 {
                return Ok(header);
            }
            std::thread::yield_now();
        }
        Err(Errno::AGAIN)
    }

    /// Returns the serial of the list that is being replaced; `None` if the file is whole, or cannot be read.
    pub(crate) fn serial_being_replaced(file: impl AsFd) -> Option<u64> {
        let header = Self::read_once(&file).ok()?;
        // A read may see one word of a header that is being written and not the next; a second one shows that.
        let is_whole = Self::read_once(&file).is_ok_and(|again| again == header);
        (header.sequence % 2 == 1 && is_whole).then_some(header.serial)
    }

    fn read_once(file: impl AsFd) -> Result<Self, Errno> {
        let mut bytes = [0; HEADER_BYTES];
        if read_full(file, &mut bytes, 0)? != HEADER_BYTES {
            return Err(Errno::IO);
        }
        Ok(Self::from_bytes(&bytes))
    }
}

/// Reads until the buffer is full or the file ends.
fn read_full(file: impl AsFd, buffer: &mut [u8], mut offset: u64) -> Result<usize, Errno> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match pread(&file, rest, offset) {
            Ok(0) => break,
            Ok(bytes) => {
                filled += bytes;
                offset += bytes as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(filled)
}

/// Reads the newest list, as many pages as fit. Async-signal-safe: neither allocates nor locks.
///
/// Returns the number of pages read, and the header that they belong to.
///
/// # Errors
/// As for [`Header::read`].
pub fn read(file: impl AsFd, pages: &mut [Page]) -> Result<(usize, Header), Errno> {
    for _ in 0..TRIES {
        let header = Header::read(&file)?;
        fence(Ordering::SeqCst);
        let wanted = usize::try_from(header.entries).unwrap_or(usize::MAX);
        let count = copy_words(&file, pages, wanted)?;
        fence(Ordering::SeqCst);
        let after = Header::read_once(&file)?;
        if after.sequence == header.sequence && count == wanted.min(pages.len()) {
            return Ok((count, header));
        }
    }
    Err(Errno::AGAIN)
}

fn copy_words(file: impl AsFd, pages: &mut [Page], wanted: usize) -> Result<usize, Errno> {
    let mut buffer = [0_u8; CHUNK * 8];
    let mut count = 0;
    let room = pages.len().min(wanted);
    while count < room {
        let words = (room - count).min(CHUNK);
        let offset = (HEADER_BYTES + count * 8) as u64;
        let Some(chunk) = buffer.get_mut(..words * 8) else {
            break;
        };
        let read = read_full(&file, chunk, offset)? / 8;
        let found = chunk.as_chunks::<8>().0.iter().take(read);
        for (page, word) in pages.iter_mut().skip(count).zip(found) {
            *page = Page::unpack(u64::from_le_bytes(*word));
        }
        count += read;
        if read < words {
            break;
        }
    }
    Ok(count)
}

/// Replaces the list. `header` holds all fields but the sequence and the number of entries.
///
/// # Errors
/// Errors of `pwrite(2)`; then the sequence stays odd and no reader takes the list.
pub fn write(file: impl AsFd, header: Header, pages: &[Page]) -> Result<(), Errno> {
    let before = Header::read_once(&file).unwrap_or_default();
    let writing = Header {
        sequence: before.sequence | 1,
        ..before
    };
    write_full(&file, &writing.to_bytes(), 0)?;
    fence(Ordering::SeqCst);
    let mut buffer = Vec::with_capacity(4096 * 8);
    let mut offset = HEADER_BYTES as u64;
    for chunk in pages.chunks(4096) {
        buffer.clear();
        buffer.extend(chunk.iter().flat_map(|page| page.pack().to_le_bytes()));
        write_full(&file, &buffer, offset)?;
        offset += buffer.len() as u64;
    }
    fence(Ordering::SeqCst);
    let done = Header {
        sequence: writing.sequence.wrapping_add(1),
        entries: pages.len() as u64,
        ..header
    };
    write_full(&file, &done.to_bytes(), 0)?;
    // Frees the memory of a longer list before this one.
    rustix::fs::ftruncate(&file, offset)
}

/// Returns the length in bytes of the file of a list with `entries` entries.
#[must_use]
pub const fn length(entries: usize) -> usize {
    HEADER_BYTES + entries * 8
}

fn write_full(file: impl AsFd, mut bytes: &[u8], mut offset: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match pwrite(&file, bytes, offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => {
                bytes = bytes.get(written..).unwrap_or_default();
                offset += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::sync::atomic::AtomicBool;

    fn page() -> impl Strategy<Value = Page> {
        (0..1_u64 << 26, 1..=1000_u32, any::<bool>(), any::<bool>()).prop_map(
            |(number, heat, huge, estimated)| {
                let mut flags = PageFlags::NONE;
                let mut address = number << 12;
                if huge {
                    flags = flags.and(PageFlags::HUGE);
                    address = number << 21;
                }
                if estimated {
                    flags = flags.and(PageFlags::ESTIMATED);
                }
                Page {
                    address,
                    heat,
                    flags,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn a_list_is_read_as_it_was_written(
            lists in proptest::collection::vec(proptest::collection::vec(page(), 0..600), 1..4),
            capacity in 0..700_usize,
        ) {
            let file = memfd_create("list", MemfdFlags::CLOEXEC).unwrap();
            for (serial, pages) in lists.iter().enumerate() {
                let header = Header { serial: serial as u64, active: 7, ..Header::default() };
                write(&file, header, pages).unwrap();
                let mut buffer = vec![Page::default(); capacity];
                let (count, header) = read(&file, &mut buffer).unwrap();
                prop_assert_eq!(count, capacity.min(pages.len()));
                prop_assert_eq!(&buffer[..count], &pages[..count]);
                prop_assert_eq!(header.entries as usize, pages.len());
                prop_assert_eq!(header.serial, serial as u64);
            }
        }
    }

    #[test]
    fn a_reader_never_sees_two_lists_mixed() {
        let file = memfd_create("list", MemfdFlags::CLOEXEC).unwrap();
        let of = |n: u64| {
            vec![
                Page {
                    address: n << 12,
                    heat: 1,
                    flags: PageFlags::NONE,
                };
                600
            ]
        };
        let list = |n: u64| Header {
            serial: n,
            ..Header::default()
        };
        write(&file, list(1), &of(1)).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut n = 1;
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    write(&file, list(n), &of(n)).unwrap();
                }
            });
            let mut seen = 0;
            for _ in 0..2000 {
                let mut pages = vec![Page::default(); 600];
                match read(&file, &mut pages) {
                    Ok((count, header)) => {
                        seen += 1;
                        assert_eq!(count, 600);
                        assert!(pages.iter().all(|page| page.address >> 12 == header.serial));
                    }
                    Err(errno) => assert_eq!(errno, Errno::AGAIN),
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert!(seen > 0, "every read was given up");
        });
    }

    #[test]
    fn a_list_that_is_being_written_is_not_taken() {
        let file = memfd_create("list", MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(read(&file, &mut []).unwrap_err(), Errno::IO);
        let header = Header {
            sequence: 3,
            ..Header::default()
        };
        write_full(&file, &header.to_bytes(), 0).unwrap();
        assert_eq!(read(&file, &mut []).unwrap_err(), Errno::AGAIN);
    }
}

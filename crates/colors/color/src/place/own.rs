//! State of an address of this process: `pagemap`.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use superhue_model::{BASE_PAGE_SIZE, VirtAddr, VirtRange};
use superhue_sys::pagemap::{WORD_PRESENT, is_occupied};

const WORD: usize = size_of::<u64>();
/// Entries read at a time.
const BLOCK: usize = 512;

/// An open `/proc/thread-self/pagemap`. The thread's file, as that of the process is empty once its first thread has ended.
#[derive(Debug)]
pub(super) struct OwnPages(OwnedFd);

impl OwnPages {
    pub(super) fn open() -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::open(c"/proc/thread-self/pagemap", flags, Mode::empty()).map(Self)
    }

    /// Returns true if the page is in memory or in swap; `None` if it cannot be read.
    pub(super) fn is_occupied(&self, page: VirtAddr) -> Option<bool> {
        let mut word = [0_u8; WORD];
        let read = rustix::io::pread(&self.0, &mut word, offset_of(page));
        (read == Ok(WORD)).then(|| is_occupied(u64::from_ne_bytes(word)))
    }

    /// The first run of holes in `range`.
    ///
    /// # Errors
    /// Errors of `pread(2)`.
    pub(super) fn next_holes(&self, range: VirtRange) -> Result<Option<VirtRange>, Errno> {
        let mut words = [0_u8; BLOCK * WORD];
        let mut start = None;
        let mut at = range.start;
        while at < range.end {
            let left = usize::try_from(range.end.0.saturating_sub(at.0) / BASE_PAGE_SIZE);
            let length = left.unwrap_or(BLOCK).clamp(1, BLOCK) * WORD;
            let Some(block) = words.get_mut(..length) else {
                return Ok(None);
            };
            let read = rustix::io::pread(&self.0, &mut *block, offset_of(at))?;
            if read < WORD {
                return Err(Errno::IO);
            }
            for word in block.get(..read).unwrap_or_default().chunks_exact(WORD) {
                let word = word.try_into().map_or(WORD_PRESENT, u64::from_ne_bytes);
                match (start, is_occupied(word)) {
                    (None, false) => start = Some(at),
                    (Some(start), true) => return Ok(Some(VirtRange { start, end: at })),
                    _ => {}
                }
                at = VirtAddr(at.0 + BASE_PAGE_SIZE);
            }
        }
        Ok(start.map(|start| VirtRange {
            start,
            end: range.end,
        }))
    }
}

const fn offset_of(page: VirtAddr) -> u64 {
    page.0 / BASE_PAGE_SIZE * WORD as u64
}

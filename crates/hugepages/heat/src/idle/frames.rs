//! From pages of a process to page frames, and to the frame that carries the idle flag.
//!
//! ```text
//!   /proc/PID/pagemap      page -> frame          (frame numbers need CAP_SYS_ADMIN)
//!   /proc/kpageflags       frame -> flags         (root; one u64 per frame)
//!
//!   frames   ... | head | tail | tail | tail | ...      a folio of four pages
//!                   ^ the idle flag, for all four
//! ```
//!
//! Page frames that the kernel handles together (a folio: a huge page, or a smaller power of two) share one flag, on the first frame. `kpageflags`
//! distinguishes heads from tails.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use superhue_model::{BASE_PAGE_SHIFT, Region, VirtAddr, VirtRange};
use superhue_sys::pagemap::{
    PAGE_IS_HUGE, PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PageCategories, PageRegion, WORD_FILE,
    WORD_PRESENT, for_each_run,
};

/// Bytes in a word of either file.
const WORD: u64 = 8;
/// Runs of pages taken from the kernel at a time.
const RUNS: usize = 4096;
/// Words of pagemap read at a time.
const CHUNK: u64 = 8192;

/// A present page of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Page {
    /// Number of the page: address divided by the page size.
    pub(super) page: u64,
    /// The frame that holds it.
    pub(super) frame: u64,
    /// The frame that carries its idle flag; equal to `frame` until [`Flags::find_heads`].
    pub(super) head: u64,
    /// True if one entry maps the whole region.
    pub(super) huge: bool,
    /// True if it is a page of a file or of shared memory.
    pub(super) file: bool,
    /// True if the idle flag is meaningful for it.
    pub(super) usable: bool,
}

impl Page {
    /// Returns the region it lies in.
    pub(super) const fn region(&self) -> Region {
        Region::containing(VirtAddr(self.page << BASE_PAGE_SHIFT))
    }
}

/// Reason for a failure to list pages.
#[derive(Debug)]
pub(super) enum PageListError {
    /// The kernel shows the pages, but not their frames.
    FramesHidden,
    /// Reading failed.
    Io(io::Error),
}

impl From<io::Error> for PageListError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Returns the present pages in `ranges` (ascending, disjoint), ascending, without the shared zero page.
pub(super) fn present(pagemap: &File, ranges: &[VirtRange]) -> Result<Vec<Page>, PageListError> {
    let mut pages = Vec::new();
    let mut runs = vec![PageRegion::default(); RUNS];
    for &range in ranges {
        let before = pages.len();
        let mut listed = Ok(());
        let wanted = PageCategories::All(PAGE_IS_PRESENT);
        let told = PAGE_IS_HUGE | PAGE_IS_PFNZERO;
        let scanned = for_each_run(pagemap, range, wanted, told, &mut runs, |run| {
            let (start, end) = (run.start.max(range.start.0), run.end.min(range.end.0));
            if run.categories & PAGE_IS_PFNZERO == 0
                && let Some(run_range) = VirtRange::new(VirtAddr(start), VirtAddr(end))
            {
                let huge = run.categories & PAGE_IS_HUGE != 0;
                listed = words_of(pagemap, run_range, huge, &mut pages);
            }
            listed.is_ok()
        });
        match scanned {
            Ok(()) => listed?,
            // The ioctl is missing before Linux 6.7 and on a recorded tree, or does not work for this range.
            Err(Errno::NOTTY | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::FAULT) => {
                pages.truncate(before);
                words_of(pagemap, range, false, &mut pages)?;
            }
            Err(errno) => return Err(PageListError::Io(errno.into())),
        }
    }
    Ok(pages)
}

/// Adds the present pages of `range`, all of which one entry per region maps if `huge`.
fn words_of(
    pagemap: &File,
    range: VirtRange,
    huge: bool,
    pages: &mut Vec<Page>,
) -> Result<(), PageListError> {
    let end = range.end.0 >> BASE_PAGE_SHIFT;
    let mut at = range.start.0 >> BASE_PAGE_SHIFT;
    while at < end {
        let words = read_words(pagemap, at, CHUNK.min(end - at))?;
        if words.is_empty() {
            break;
        }
        for (page, &word) in (at..).zip(&words) {
            if word & WORD_PRESENT == 0 {
                continue;
            }
            let frame = word & ((1 << 55) - 1);
            if frame == 0 {
                return Err(PageListError::FramesHidden);
            }
            pages.push(Page {
                page,
                frame,
                head: frame,
                huge,
                file: word & WORD_FILE != 0,
                usable: true,
            });
        }
        at += words.len() as u64;
    }
    Ok(())
}

/// Reads up to `count` words from word `first` on; fewer at the end of the file.
pub(super) fn read_words(file: &File, first: u64, count: u64) -> io::Result<Vec<u64>> {
    let length = usize::try_from(count * WORD).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while filled < length {
        match file.read_at(&mut bytes[filled..], first * WORD + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            // Past the last frame.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let (words, _) = bytes[..filled].as_chunks();
    Ok(words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}

// Bits of /proc/kpageflags: include/uapi/linux/kernel-page-flags.h.
const LRU: u64 = 1 << 5;
const TAIL: u64 = 1 << 16;
const ZERO_PAGE: u64 = 1 << 24;
const IDLE: u64 = 1 << 25;

/// Flags looked up at a time: consecutive frames often belong to one process.
const WINDOW: u64 = 64;
/// Order of the largest folio that a process can map through the page cache or as a huge page.
const LARGEST_ORDER: u32 = 9;

/// `/proc/kpageflags`.
#[derive(Debug)]
pub(super) struct Flags<'f> {
    file: &'f File,
    first: u64,
    window: Vec<u64>,
}

impl<'f> Flags<'f> {
    /// Makes a reader that caches the last few flags; one per pass over frames.
    pub(super) fn new(file: &'f File) -> Self {
        Self {
            file,
            first: 0,
            window: Vec::new(),
        }
    }

    /// Returns the flags of a frame; `None` where the kernel keeps none (memory of a device).
    fn of(&mut self, frame: u64) -> io::Result<Option<u64>> {
        let first = frame / WINDOW * WINDOW;
        if self.window.is_empty() || self.first != first {
            self.window = read_words(self.file, first, WINDOW)?;
            self.first = first;
        }
        Ok(self.window.get((frame - first) as usize).copied())
    }

    /// Finds the head of every page's frame, and the pages for which the idle flag is meaningless: those not on an LRU list (new ones wait in small
    /// batches), and those that are not ordinary memory. `pages` must be sorted by frame.
    ///
    /// Ignores the flag of KSM: Linux 6.12 shows it on every anonymous page (`stable_page_flags` in `fs/proc/page.c` tests two bits for either).
    pub(super) fn find_heads(&mut self, pages: &mut [Page]) -> io::Result<()> {
        let mut last = None;
        for page in pages {
            (page.head, page.usable) = match last {
                Some((frame, head, usable)) if frame == page.frame => (head, usable),
                _ => self.head_of(page.frame, last)?,
            };
            last = Some((page.frame, page.head, page.usable));
        }
        Ok(())
    }

    fn head_of(&mut self, frame: u64, last: Option<(u64, u64, bool)>) -> io::Result<(u64, bool)> {
        let Some(flags) = self.of(frame)? else {
            return Ok((frame, false));
        };
        if flags & TAIL == 0 {
            return Ok((frame, is_usable(flags)));
        }
        // The head of a tail that follows a page of the same folio is known.
        if let Some((before, head, usable)) = last
            && before + 1 == frame
        {
            return Ok((head, usable));
        }
        // A folio of 2^n pages starts at a multiple of 2^n, and the frames in between are tails.
        for order in 1..=LARGEST_ORDER {
            let candidate = frame >> order << order;
            match self.of(candidate)? {
                Some(flags) if candidate < frame && flags & TAIL == 0 => {
                    return Ok((candidate, is_usable(flags)));
                }
                _ => {}
            }
        }
        Ok((frame, false))
    }

    /// Returns true if the frame carries the idle flag. Unlike a read of the bitmap, this does not check the page tables.
    pub(super) fn is_marked(&mut self, frame: u64) -> io::Result<bool> {
        Ok(self.of(frame)?.is_some_and(|flags| flags & IDLE != 0))
    }
}

const fn is_usable(flags: u64) -> bool {
    flags & LRU != 0 && flags & ZERO_PAGE == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_of(words: &[(u64, u64)], length: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(length * WORD).unwrap();
        for &(index, word) in words {
            file.write_all_at(&word.to_ne_bytes(), index * WORD)
                .unwrap();
        }
        file
    }

    fn page(frame: u64) -> Page {
        Page {
            page: frame + 1000,
            frame,
            head: frame,
            huge: false,
            file: false,
            usable: true,
        }
    }

    #[test]
    fn present_pages_come_with_their_frames() {
        const PRESENT: u64 = 1 << 63;
        let words = [
            (2, PRESENT | 77),
            (3, 1 << 62 | 5),
            (5, PRESENT | 1 << 61 | 78),
        ];
        let range = VirtRange::new(VirtAddr(1 << 12), VirtAddr(6 << 12)).unwrap();
        let pages = present(&file_of(&words, 9), &[range]).unwrap();
        let found: Vec<_> = pages.iter().map(|p| (p.page, p.frame, p.file)).collect();
        assert_eq!(found, [(2, 77, false), (5, 78, true)]);
        // A range that ends before the file does not include the pages behind it.
        let range = VirtRange::new(VirtAddr(1 << 12), VirtAddr(5 << 12)).unwrap();
        assert_eq!(present(&file_of(&words, 9), &[range]).unwrap().len(), 1);
        let hidden = file_of(&[(2, PRESENT)], 9);
        assert!(matches!(
            present(&hidden, &[range]),
            Err(PageListError::FramesHidden)
        ));
    }

    #[test]
    fn tails_are_led_to_their_head() {
        let mut flags = vec![(7, LRU), (8, LRU), (16, LRU)];
        flags.extend((9..16).map(|frame| (frame, LRU | TAIL)));
        flags.extend((17..24).map(|frame| (frame, LRU | TAIL)));
        flags.push((24, 0));
        flags.push((25, LRU | ZERO_PAGE));
        let file = file_of(&flags, 26);
        let mut pages = [7, 8, 9, 10, 15, 17, 18, 24, 25, 26].map(page);
        Flags::new(&file).find_heads(&mut pages).unwrap();
        let found = pages.map(|page| (page.frame, page.head, page.usable));
        assert_eq!(
            found,
            [
                (7, 7, true),
                (8, 8, true),
                (9, 8, true),
                (10, 8, true),
                (15, 8, true),
                // The head of the next folio is not among the pages.
                (17, 16, true),
                (18, 16, true),
                (24, 24, false),
                (25, 25, false),
                // Behind the last frame.
                (26, 26, false),
            ]
        );
    }

    #[test]
    fn a_huge_page_is_led_home_from_its_last_page() {
        let mut flags = vec![(512, LRU | IDLE)];
        flags.extend((513..1024).map(|frame| (frame, LRU | TAIL)));
        let file = file_of(&flags, 1024);
        let mut pages = [page(1023)];
        Flags::new(&file).find_heads(&mut pages).unwrap();
        assert_eq!((pages[0].head, pages[0].usable), (512, true));
        assert!(Flags::new(&file).is_marked(512).unwrap());
        assert!(!Flags::new(&file).is_marked(513).unwrap());
    }
}

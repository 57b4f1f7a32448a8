//! `/proc/self/pagemap`: the frames, and the huge pages, that back our pages.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, pread};
use superhue_model::{
    BASE_PAGE_SHIFT, BASE_PAGE_SIZE, HUGE_PAGE_SIZE, PageCount, Pfn, VirtAddr, VirtRange,
};
use superhue_sys::pagemap::{PAGE_IS_HUGE, PageRegion, pagemap_scan};

use super::OracleError;
use crate::Page;

/// Bytes in a word of the file.
const WORD: usize = 8;
/// Words read at a time.
const WORDS: usize = 512;
/// The page is in memory (bit 63).
const PRESENT: u64 = 1 << 63;
/// The frame number (bits 0 to 54). Reads as 0 for callers without `CAP_SYS_ADMIN`.
const FRAME: u64 = (1 << 55) - 1;

/// Finds the frame that backs a page.
pub trait Frames {
    /// The frame of each page; `None` where the page is not in memory. `frames` has the length of `pages`.
    ///
    /// # Errors
    /// [`OracleError::NotAllowed`] where frame numbers are hidden; [`OracleError::Unavailable`] where there is
    /// no pagemap.
    fn frames(&mut self, pages: &[Page], frames: &mut [Option<Pfn>]) -> Result<(), OracleError>;
}

/// Finds out whether a page lies in a huge page.
pub trait HugePages {
    /// Returns true if one huge page maps the whole aligned 2 MiB around `page`.
    ///
    /// # Errors
    /// [`OracleError::Unavailable`] if the kernel does not report it.
    fn is_in_huge_page(&mut self, page: Page) -> Result<bool, OracleError>;
}

/// The open file. It belongs to the memory it was opened for: after a fork the child opens its own.
#[derive(Debug)]
pub struct Pagemap {
    file: OwnedFd,
    /// The last region looked up, and the answer.
    region: Option<(u64, bool)>,
}

impl Pagemap {
    /// Opens the file.
    ///
    /// # Errors
    /// [`OracleError::Unavailable`] where `/proc` is not mounted or hides it.
    pub fn open() -> Result<Self, OracleError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = open(c"/proc/self/pagemap", flags, Mode::empty());
        let file = file.map_err(unreadable)?;
        Ok(Self { file, region: None })
    }

    /// Fills `words` with those of the pages from `first` on; returns how many it read.
    fn words(&self, first: Page, words: &mut [u8]) -> Result<usize, OracleError> {
        let at = (first.address() >> BASE_PAGE_SHIFT) * WORD;
        let read = pread(&self.file, words, at as u64).map_err(unreadable)?;
        Ok(read / WORD)
    }
}

fn unreadable(error: Errno) -> OracleError {
    OracleError::Unavailable(format!("/proc/self/pagemap cannot be read: {error}"))
}

impl Frames for Pagemap {
    fn frames(&mut self, pages: &[Page], frames: &mut [Option<Pfn>]) -> Result<(), OracleError> {
        frames.fill(None);
        let mut buffer = [0_u8; WORDS * WORD];
        let mut done = 0;
        while let Some(rest) = pages.get(done..)
            && let Some(&first) = rest.first()
        {
            // Pages that follow each other are read in one call.
            let follows = |(index, page): &(usize, &Page)| {
                page.address() == first.address() + index * BASE_PAGE_SIZE as usize
            };
            let run = rest.iter().enumerate().take(WORDS).take_while(follows);
            let run = run.count();
            let Some(bytes) = buffer.get_mut(..run * WORD) else {
                break;
            };
            let read = self.words(first, bytes)?;
            let (words, _) = bytes.as_chunks::<WORD>();
            let found = frames.iter_mut().skip(done).zip(words.iter().take(read));
            for (frame, word) in found {
                let word = u64::from_ne_bytes(*word);
                if word & PRESENT == 0 {
                    continue;
                }
                if word & FRAME == 0 {
                    return Err(OracleError::NotAllowed(
                        "pagemap hides frame numbers: they take CAP_SYS_ADMIN outside any user \
                         namespace (run as root)"
                            .to_owned(),
                    ));
                }
                *frame = Some(Pfn(word & FRAME));
            }
            done += run;
        }
        Ok(())
    }
}

impl HugePages for Pagemap {
    fn is_in_huge_page(&mut self, page: Page) -> Result<bool, OracleError> {
        let start = page.address() as u64 & !(HUGE_PAGE_SIZE - 1);
        if let Some((known, answer)) = self.region
            && known == start
        {
            return Ok(answer);
        }
        let range = VirtRange {
            start: VirtAddr(start),
            end: VirtAddr(start.saturating_add(HUGE_PAGE_SIZE)),
        };
        let mut found = [PageRegion::default(); 1];
        let scan = pagemap_scan(&self.file, range, PAGE_IS_HUGE, PAGE_IS_HUGE, &mut found);
        let answer = match scan {
            Ok((0, _)) => false,
            Ok(_) => found
                .first()
                .is_some_and(|huge| huge.start <= range.start.0 && huge.end >= range.end.0),
            // The region extends beyond the addresses that the process may map.
            Err(Errno::FAULT | Errno::INVAL) => false,
            Err(Errno::NOTTY) => {
                return Err(OracleError::Unavailable(
                    "this kernel does not tell which pages lie in huge pages (PAGEMAP_SCAN, Linux \
                     6.7)"
                        .to_owned(),
                ));
            }
            Err(error) => return Err(unreadable(error)),
        };
        self.region = Some((start, answer));
        Ok(answer)
    }
}

/// Number of base pages in a huge page.
pub(super) const PAGES_IN_HUGE_PAGE: PageCount = PageCount(HUGE_PAGE_SIZE / BASE_PAGE_SIZE);

#[cfg(test)]
mod tests {
    use superhue_sys::anonymous::AnonymousMemory;
    use superhue_testing::{is_root, skip};

    use super::*;

    fn pages(memory: &AnonymousMemory, count: usize) -> Vec<Page> {
        let start = memory.range().start.0 as usize;
        let at = |index| start + index * BASE_PAGE_SIZE as usize;
        // SAFETY: the mapping is readable and outlives the pages.
        (0..count)
            .filter_map(|index| unsafe { Page::at(at(index)) })
            .collect()
    }

    #[test]
    fn frames_are_told_apart_or_hidden() {
        let memory = AnonymousMemory::aligned(4 << 20).unwrap();
        memory.populate().unwrap();
        let mut pages = pages(&memory, 1024);
        // In an order that a single read cannot serve.
        pages.swap(3, 700);
        let mut frames = vec![None; pages.len()];
        match Pagemap::open().unwrap().frames(&pages, &mut frames) {
            Ok(()) => {
                let mut found: Vec<u64> = frames.iter().map(|frame| frame.unwrap().0).collect();
                found.sort_unstable();
                found.dedup();
                assert_eq!(found.len(), pages.len(), "each page has a frame of its own");
            }
            Err(error) => {
                assert!(matches!(error, OracleError::NotAllowed(_)), "{error}");
                assert!(!is_root() || error.to_string().contains("CAP_SYS_ADMIN"));
                skip("pfn", "frame numbers are hidden");
            }
        }
    }

    #[test]
    fn pages_in_huge_pages_are_told_from_others() {
        let memory = AnonymousMemory::aligned(2 << 20).unwrap();
        let page = pages(&memory, 1)[0];
        let mut pagemap = Pagemap::open().unwrap();
        match pagemap.is_in_huge_page(page) {
            Ok(huge) => assert!(!huge, "nothing is there yet"),
            Err(error) => return skip("pagemap-scan", &error.to_string()),
        }
        assert_eq!(pagemap.is_in_huge_page(page), Ok(false), "from memory");
        memory.populate().unwrap();
        match Pagemap::open().unwrap().is_in_huge_page(page) {
            Ok(true) => {}
            other => skip("thp", &format!("no huge page was given: {other:?}")),
        }
    }
}

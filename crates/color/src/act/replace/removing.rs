//! Ranges that the program is giving up (`MADV_DONTNEED`), which must not be moved.
//!
//! The event of it comes before the deed: the thread waits until it is read, and drops the pages at some moment after. A page
//! taken out before that moment and brought back after it would have its old bytes, where the program counts on zeroes.
//! That the deed is done shows in the page being gone: missing in pagemap, or faulted in anew.

use superhue_model::{BASE_PAGE_SIZE, VirtAddr, VirtRange};

use super::super::own::OwnPages;

/// More ranges than this are taken for one: whoever gives up so much at once has other worries than colors.
const MOST: usize = 1024;

#[derive(Debug, Default)]
pub(in super::super) struct Removing(Vec<VirtRange>);

impl Removing {
    pub(super) fn add(&mut self, range: VirtRange) {
        if self.0.len() >= MOST {
            let start = self.0.iter().map(|range| range.start).min();
            let end = self.0.iter().map(|range| range.end).max();
            self.0.clear();
            if let (Some(start), Some(end)) = (start, end) {
                self.0.push(VirtRange { start, end });
            }
        }
        self.0.push(range);
    }

    pub(super) fn contains(&self, page: VirtAddr) -> bool {
        (self.0.iter()).any(|range| range.start <= page && page < range.end)
    }

    /// The page was faulted in anew.
    pub(super) fn forget(&mut self, page: VirtAddr) {
        let after = VirtAddr(page.0.saturating_add(BASE_PAGE_SIZE));
        for index in 0..self.0.len() {
            let Some(range) = self.0.get_mut(index) else {
                return;
            };
            if range.start <= page && page < range.end {
                let rest = VirtRange {
                    start: after,
                    end: range.end,
                };
                range.end = page;
                self.0.push(rest);
            }
        }
        self.0.retain(|range| !range.is_empty());
    }

    /// Forgets pages that are gone.
    pub(super) fn look(&mut self, own: &OwnPages) {
        let ranges = std::mem::take(&mut self.0);
        for mut rest in ranges {
            loop {
                let holes = own.next_holes(rest);
                let occupied = VirtRange {
                    start: rest.start,
                    end: match &holes {
                        Ok(Some(holes)) => holes.start,
                        _ => rest.end,
                    },
                };
                if !occupied.is_empty() {
                    self.0.push(occupied);
                }
                match holes {
                    Ok(Some(holes)) if holes.end < rest.end => rest.start = holes.end,
                    _ => break,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_faulted_in_anew_may_be_moved_and_its_neighbours_may_not() {
        let mut removing = Removing::default();
        removing.add(VirtRange {
            start: VirtAddr(0x1000),
            end: VirtAddr(0x4000),
        });
        removing.forget(VirtAddr(0x2000));
        let moved: Vec<u64> = (0..6)
            .map(|page| page * 0x1000)
            .filter(|page| !removing.contains(VirtAddr(*page)))
            .collect();
        assert_eq!(moved, [0, 0x2000, 0x4000, 0x5000]);
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let own = OwnPages::open().unwrap();
        let mut removing = Removing::default();
        let here = 0_u64;
        let page = VirtAddr(std::ptr::from_ref(&here) as u64 & !0xfff);
        removing.add(VirtRange {
            start: page,
            end: VirtAddr(page.0 + 0x1000),
        });
        // Nothing is mapped below the lowest address that may be.
        removing.add(VirtRange {
            start: VirtAddr(0),
            end: VirtAddr(0x1000),
        });
        removing.look(&own);
        assert!(removing.contains(page) && !removing.contains(VirtAddr(0)));
    }
}

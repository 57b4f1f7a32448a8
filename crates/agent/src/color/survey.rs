//! The program's memory: what there is of it, what became of it, and what is to be done next.
//!
//! ```text
//!                    told of faults                          not told of them
//!   new memory       armed: holes are filled when touched    filled at once, up to a bound
//!   there before     moved, piece by piece                   left, and counted
//! ```

use std::sync::atomic::Ordering::Relaxed;

use superhue_color::act::{PoolError, ReplaceError};
use superhue_mailbox::{Aside, ColorSlot, Left};
use superhue_model::{BASE_PAGE_SIZE, HUGE_PAGE_SIZE, VirtAddr, VirtRange};
use superhue_sys::pagemap::{
    PAGE_IS_HUGE, PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PageRegion, pagemap_scan,
};

use super::count::{note, set};
use super::known::KnownPages;
use super::maps::{self, Mapping};
use super::run::Descriptor;
use super::tools::{Tools, open_own};

/// Room for some lines of the list of mappings.
const BUFFER: usize = 16 << 10;

/// Memory that may be filled ahead of a program whose faults nobody tells of, as many times the pool: it becomes
/// resident whether the program touches it or not.
const AHEAD: u64 = 4;

/// Pages moved between two looks at faults that wait.
const PIECE: u64 = 32;

/// See the module.
pub(super) struct Survey {
    maps: Descriptor,
    pub(super) pagemap: Descriptor,
    buffer: Vec<u8>,
    /// Private anonymous memory that can be written, by the last look.
    pub(super) plain: Vec<VirtRange>,
    /// On a wanted color.
    pub(super) known: KnownPages,
    /// Could not be moved when it was last tried.
    refused: KnownPages,
    /// Where the search for memory that was there before goes on.
    cursor: VirtAddr,
    /// Pages filled ahead.
    ahead: u64,
    /// Whether whole aligned 2 MiB are left to superpages.
    spares_superpages: bool,
}

impl Survey {
    pub(super) fn new(spares_superpages: bool) -> Result<Self, Aside> {
        Ok(Self {
            maps: open_own(c"/proc/thread-self/maps")?,
            pagemap: open_own(c"/proc/thread-self/pagemap")?,
            buffer: vec![0; BUFFER],
            plain: Vec::new(),
            known: KnownPages::default(),
            refused: KnownPages::default(),
            cursor: VirtAddr(0),
            ahead: 0,
            spares_superpages,
        })
    }

    /// Looks at all mappings and sees to what is new; whether anything was.
    ///
    /// # Errors
    /// When the agent's tools are broken.
    pub(super) fn look(&mut self, tools: &mut Tools, slot: &ColorSlot) -> Result<bool, Aside> {
        let own = tools.own_ranges();
        let mut plain: Vec<VirtRange> = Vec::with_capacity(self.plain.len() + 8);
        maps::read(&self.maps, &mut self.buffer, |mapping| {
            if mapping.is_plain && !is_own(&own, &mapping) {
                plain.push(mapping.range);
            }
        })
        .ok_or(Aside::Broken)?;
        self.forget_gaps(&plain);
        let before = std::mem::replace(&mut self.plain, plain);
        let news = new_parts(&self.plain, &before);
        for range in &news {
            self.see_to(*range, tools, slot)?;
        }
        Ok(!news.is_empty())
    }

    /// What is no longer mapped is no longer known.
    fn forget_gaps(&mut self, plain: &[VirtRange]) {
        let mut start = VirtAddr(0);
        let end = VirtAddr(!(HUGE_PAGE_SIZE - 1));
        let ends = VirtRange { start: end, end };
        for range in plain.iter().chain([&ends]) {
            if let Some(gap) = VirtRange::new(start, range.start) {
                self.known.remove(gap);
                self.refused.remove(gap);
            }
            start = range.end;
        }
    }

    /// Sees to memory that was just mapped, before the program has it.
    pub(super) fn mapped(&mut self, range: VirtRange, tools: &mut Tools, slot: &ColorSlot) {
        self.known.remove(range);
        self.refused.remove(range);
        // What stops the agent shows at the next look, too.
        let _ = self.see_to(range, tools, slot);
    }

    fn see_to(
        &mut self,
        range: VirtRange,
        tools: &mut Tools,
        slot: &ColorSlot,
    ) -> Result<(), Aside> {
        for part in self.parts(range).into_iter().flatten() {
            if !tools.sees_faults() {
                self.fill(part, tools, slot)?;
            } else if tools.arm(part).is_ok() {
                slot.armed.store(1, Relaxed);
            }
        }
        Ok(())
    }

    /// The parts of a range that are not left to superpages: all of it, or what is before and after them.
    fn parts(&self, range: VirtRange) -> [Option<VirtRange>; 2] {
        let first = VirtAddr(range.start.0.div_ceil(HUGE_PAGE_SIZE) * HUGE_PAGE_SIZE);
        let last = VirtAddr(range.end.0 / HUGE_PAGE_SIZE * HUGE_PAGE_SIZE);
        if !self.spares_superpages || first >= last {
            return [Some(range), None];
        }
        let part = |start, end| VirtRange::new(start, end).filter(|part| !part.is_empty());
        [part(range.start, first), part(last, range.end)]
    }

    fn fill(
        &mut self,
        mut range: VirtRange,
        tools: &mut Tools,
        slot: &ColorSlot,
    ) -> Result<(), Aside> {
        let room = (tools.pool_pages() * AHEAD).saturating_sub(self.ahead);
        let pages = range.len().whole_pages().0.min(room);
        range.end = VirtAddr(range.start.0 + pages * BASE_PAGE_SIZE);
        if pages == 0 {
            return Ok(());
        }
        match tools.fill(range) {
            Ok(placed) => {
                self.ahead += placed.placed.0;
                slot.placed.fetch_add(placed.placed.0, Relaxed);
                note(&placed, slot);
                if placed.placed.0 == pages {
                    self.known.insert(range);
                }
                Ok(())
            }
            Err(PoolError::Limit(_)) => Ok(()),
            Err(PoolError::Memory(_)) => Err(Aside::Memory),
            Err(PoolError::Oracle(_)) => Err(Aside::Refuted),
        }
    }

    /// Moves a piece of what was there before; false when there is nothing left to move, for now.
    ///
    /// # Errors
    /// When nothing can be moved at all.
    pub(super) fn move_some(&mut self, tools: &mut Tools, slot: &ColorSlot) -> Result<bool, Aside> {
        let Some(piece) = self.next_piece() else {
            return Ok(false);
        };
        let wanted = piece.len().whole_pages().0;
        match tools.replace(piece) {
            Ok(replaced) => {
                let done = replaced.pages.placed.0 + replaced.pages.already.0;
                slot.replaced.fetch_add(replaced.pages.placed.0, Relaxed);
                slot.placed.fetch_add(replaced.faults.0, Relaxed);
                if done == wanted {
                    self.known.insert(piece);
                } else if wanted == 1 {
                    self.refused.insert(piece);
                    note(&replaced.pages, slot);
                } else {
                    self.one_by_one(piece, tools, slot);
                }
            }
            Err(ReplaceError::Pool(PoolError::Oracle(_))) => return Err(Aside::Refuted),
            Err(ReplaceError::Pool(PoolError::Memory(_)) | ReplaceError::Staging(_)) => {
                return Err(Aside::Memory);
            }
            Err(ReplaceError::Pool(PoolError::Limit(_))) => {
                self.refused.insert(piece);
                count(slot, Left::NoPage, wanted);
            }
            Err(_) => {
                self.refused.insert(piece);
                count(slot, Left::NotPermitted, wanted);
            }
        }
        Ok(true)
    }

    /// Some page of the piece stays: finds out which.
    fn one_by_one(&mut self, piece: VirtRange, tools: &mut Tools, slot: &ColorSlot) {
        for start in (piece.start.0..piece.end.0).step_by(BASE_PAGE_SIZE as usize) {
            let (start, end) = (VirtAddr(start), VirtAddr(start + BASE_PAGE_SIZE));
            let page = VirtRange { start, end };
            match tools.replace(page) {
                Ok(replaced) if replaced.pages.refused.is_empty() => {
                    slot.replaced.fetch_add(replaced.pages.placed.0, Relaxed);
                    if replaced.pages.placed.0 + replaced.pages.already.0 == 1 {
                        self.known.insert(page);
                    }
                }
                Ok(replaced) => {
                    self.refused.insert(page);
                    note(&replaced.pages, slot);
                }
                Err(_) => self.refused.insert(page),
            }
        }
    }

    /// The next resident base pages of which nothing is known: from the cursor on, once around.
    fn next_piece(&mut self) -> Option<VirtRange> {
        let mut found = [PageRegion::default(); 16];
        for range in &self.plain {
            let start = range.start.max(self.cursor);
            let mut rest = VirtRange {
                start,
                end: range.end,
            };
            while rest.start < rest.end {
                let reported = PAGE_IS_HUGE | PAGE_IS_PFNZERO;
                let scanned =
                    pagemap_scan(&self.pagemap, rest, PAGE_IS_PRESENT, reported, &mut found);
                let Ok((runs, end)) = scanned else { break };
                for run in found.iter().take(runs).filter(|run| run.categories == 0) {
                    if let Some(piece) = self.unknown_part(run.start, run.end) {
                        self.cursor = piece.end;
                        return Some(piece);
                    }
                }
                if end <= rest.start {
                    break;
                }
                rest.start = end;
            }
        }
        self.cursor = VirtAddr(0);
        None
    }

    /// The first pages of a run of which nothing is known.
    fn unknown_part(&self, start: u64, end: u64) -> Option<VirtRange> {
        let is_unknown = |page: &u64| {
            let page = VirtAddr(*page);
            !self.known.has(page) && !self.refused.has(page)
        };
        let first = (start..end)
            .step_by(BASE_PAGE_SIZE as usize)
            .find(is_unknown)?;
        let most = end.min(first + PIECE * BASE_PAGE_SIZE);
        let pages = (first..most).step_by(BASE_PAGE_SIZE as usize);
        let last = pages.take_while(is_unknown).last()?;
        VirtRange::new(VirtAddr(first), VirtAddr(last + BASE_PAGE_SIZE))
    }

    /// Gives pages that could not be moved another chance.
    pub(super) fn forgive(&mut self, slot: &ColorSlot) {
        self.refused = KnownPages::default();
        for left in Left::ALL {
            set(slot, left, 0);
        }
    }
}

fn is_own(own: &[VirtRange], mapping: &Mapping) -> bool {
    let overlaps = |own: &VirtRange| own.start < mapping.range.end && mapping.range.start < own.end;
    own.iter().any(overlaps)
}

fn count(slot: &ColorSlot, left: Left, pages: u64) {
    if let Some(count) = slot.left.get(left as usize) {
        count.fetch_add(pages, Relaxed);
    }
}

/// What of `now` was not in `before`; both ascend.
fn new_parts(now: &[VirtRange], before: &[VirtRange]) -> Vec<VirtRange> {
    let mut parts = Vec::new();
    let mut old = before.iter().peekable();
    for range in now {
        while old.next_if(|old| old.end <= range.start).is_some() {}
        let mut start = range.start;
        let mut ahead = old.clone();
        while let Some(old) = ahead.next_if(|old| old.start < range.end) {
            if start < old.start {
                parts.push(VirtRange {
                    start,
                    end: old.start,
                });
            }
            start = start.max(old.end);
        }
        if start < range.end {
            parts.push(VirtRange {
                start,
                end: range.end,
            });
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_parts_are_those_that_were_not_there() {
        let range = |start, end| VirtRange {
            start: VirtAddr(start),
            end: VirtAddr(end),
        };
        let before = [range(10, 20), range(30, 40), range(50, 60)];
        assert_eq!(new_parts(&before, &[]), before);
        assert_eq!(new_parts(&before, &before), []);
        let now = [range(5, 12), range(18, 55), range(70, 80)];
        let parts = [range(5, 10), range(20, 30), range(40, 50), range(70, 80)];
        assert_eq!(new_parts(&now, &before), parts);
        assert_eq!(new_parts(&[range(0, 100)], &before).len(), 4);
        assert_eq!(new_parts(&[range(12, 13), range(14, 19)], &before), []);
    }
}

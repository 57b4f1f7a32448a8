//! The program's memory: what there is of it, what became of it, and what is to be done next.

use std::sync::atomic::Ordering::Relaxed;

use superhue_color::act::{Placed, PoolError, Refusal};
use superhue_mailbox::{Aside, ColorSlot, Left};
use superhue_model::{VirtAddr, VirtRange};
use superhue_sys::pagemap::{
    PAGE_IS_HUGE, PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PageRegion, pagemap_scan,
};

use super::known::KnownPages;
use super::maps::{self, Mapping};
use super::run::{Maps, now_ns};
use super::tools::{Tools, open_own};

/// Room for some lines of the list of mappings.
const BUFFER: usize = 16 << 10;

/// Counting walks the page tables: 1 ms per GiB.
const COUNT_EVERY_NS: u64 = 200_000_000;

/// Memory that may be filled ahead of a program whose faults nobody tells of, as many times the pool: it becomes
/// resident whether the program touches it or not.
const AHEAD: u64 = 4;

/// See the module.
pub(super) struct Survey {
    maps: Maps,
    pagemap: Maps,
    buffer: Vec<u8>,
    /// Private anonymous memory that can be written, by the last look, neighbours joined.
    plain: Vec<VirtRange>,
    /// On a wanted color.
    known: KnownPages,
    next_count: u64,
    /// Pages filled ahead.
    ahead: u64,
    /// Pages of files that were written, by the last look at all.
    files: u64,
}

impl Survey {
    pub(super) fn new(maps: Maps) -> Result<Self, Aside> {
        Ok(Self {
            maps,
            pagemap: open_own(c"/proc/thread-self/pagemap")?,
            buffer: vec![0; BUFFER],
            plain: Vec::new(),
            known: KnownPages::default(),
            next_count: 0,
            ahead: 0,
            files: 0,
        })
    }

    /// Looks at all mappings and sees to what is new; whether anything was.
    ///
    /// # Errors
    /// When the agent's tools are broken.
    pub(super) fn look(&mut self, tools: &mut Tools, slot: &ColorSlot) -> Result<bool, Aside> {
        let own = tools.own_ranges();
        let mut plain: Vec<VirtRange> = Vec::with_capacity(self.plain.len() + 8);
        let mut files = 0;
        maps::read(&self.maps, &mut self.buffer, |mapping| {
            files += u64::from(mapping.is_written_file) * mapping.range.len().whole_pages().0;
            if mapping.is_plain && !is_own(&own, &mapping) {
                plain.push(mapping.range);
            }
        })
        .ok_or(Aside::Broken)?;
        self.files = files;
        // What is gone, or was mapped anew with other bounds, is no longer known.
        let mut gaps = VirtAddr(0);
        for range in &plain {
            if let Some(gap) = VirtRange::new(gaps, range.start) {
                self.known.remove(gap);
            }
            gaps = range.end;
        }
        let news: Vec<VirtRange> = plain
            .iter()
            .filter(|range| {
                self.plain
                    .binary_search_by_key(&range.start, |old| old.start)
                    .ok()
                    .and_then(|at| self.plain.get(at))
                    != Some(range)
            })
            .copied()
            .collect();
        let before = std::mem::replace(&mut self.plain, plain);
        let mut happened = false;
        for range in news {
            happened = true;
            self.fill(range, &before, tools, slot)?;
        }
        let now = now_ns();
        if now >= self.next_count || happened && slot.resident.load(Relaxed) == 0 {
            self.count(slot);
            self.next_count = now_ns() + COUNT_EVERY_NS.max((now_ns() - now) * 20);
        }
        Ok(happened)
    }

    /// Sees to memory that was just mapped, before the program has it.
    pub(super) fn mapped(&mut self, range: VirtRange, tools: &mut Tools, slot: &ColorSlot) {
        self.known.remove(range);
        let _ = self.fill(range, &[], tools, slot);
    }

    /// Fills what of a range was not there before.
    fn fill(
        &mut self,
        range: VirtRange,
        before: &[VirtRange],
        tools: &mut Tools,
        slot: &ColorSlot,
    ) -> Result<(), Aside> {
        let mut start = range.start;
        for old in before {
            if old.end <= start || range.end <= old.start {
                continue;
            }
            self.fill_new(
                VirtRange {
                    start,
                    end: old.start,
                },
                tools,
                slot,
            )?;
            start = old.end;
        }
        self.fill_new(
            VirtRange {
                start,
                end: range.end,
            },
            tools,
            slot,
        )
    }

    fn fill_new(
        &mut self,
        mut range: VirtRange,
        tools: &mut Tools,
        slot: &ColorSlot,
    ) -> Result<(), Aside> {
        if range.start >= range.end {
            return Ok(());
        }
        let room = (tools.pool_pages() * AHEAD).saturating_sub(self.ahead);
        let pages = range.len().whole_pages().0.min(room);
        range.end = VirtAddr(range.start.0 + pages * superhue_model::BASE_PAGE_SIZE);
        if pages == 0 {
            return Ok(());
        }
        match tools.fill(range) {
            Ok(placed) => {
                self.ahead += placed.placed.0;
                slot.placed.fetch_add(placed.placed.0, Relaxed);
                note(&placed, slot);
                // What was there already is not; the next count finds it out, and it is small.
                self.mark_filled(range, &placed);
                Ok(())
            }
            Err(PoolError::Limit(_)) => Ok(()),
            Err(PoolError::Memory(_)) => Err(Aside::Memory),
            Err(PoolError::Oracle(_)) => Err(Aside::Refuted),
        }
    }

    fn mark_filled(&mut self, range: VirtRange, placed: &Placed) {
        if placed.refused.is_empty() && placed.placed.0 == range.len().whole_pages().0 {
            self.known.insert(range);
        }
    }

    /// Counts what is resident, and how much of it is on a wanted color.
    pub(super) fn count(&self, slot: &ColorSlot) {
        let mut found = [PageRegion::default(); 64];
        let (mut resident, mut right, mut superpages) = (0, 0, 0);
        for range in &self.plain {
            let mut rest = *range;
            while rest.start < rest.end {
                let scanned = pagemap_scan(
                    &self.pagemap,
                    rest,
                    PAGE_IS_PRESENT,
                    PAGE_IS_HUGE | PAGE_IS_PFNZERO,
                    &mut found,
                );
                let Ok((count, end)) = scanned else { break };
                for run in found.iter().take(count) {
                    if run.categories & PAGE_IS_PFNZERO != 0 {
                        continue;
                    }
                    let pages = (run.end - run.start) / superhue_model::BASE_PAGE_SIZE;
                    resident += pages;
                    if run.categories & PAGE_IS_HUGE != 0 {
                        superpages += pages;
                        continue;
                    }
                    let start = VirtAddr(run.start);
                    right += self.known.count(VirtRange {
                        start,
                        end: VirtAddr(run.end),
                    });
                }
                if end <= rest.start {
                    break;
                }
                rest.start = end;
            }
        }
        slot.resident.store(resident, Relaxed);
        slot.superpages.store(superpages, Relaxed);
        slot.right.store(right, Relaxed);
        let rest = resident.saturating_sub(right + superpages);
        set(slot, Left::NotPermitted, rest);
    }
}

fn is_own(own: &[VirtRange], mapping: &Mapping) -> bool {
    own.iter()
        .any(|own| own.start < mapping.range.end && mapping.range.start < own.end)
}

fn set(slot: &ColorSlot, left: Left, pages: u64) {
    if let Some(count) = slot.left.get(left as usize) {
        count.store(pages, Relaxed);
    }
}

/// Adds what was refused to the counts.
fn note(placed: &Placed, slot: &ColorSlot) {
    for (refusal, pages) in &placed.refused {
        if let Some(count) = slot.left.get(left_of(*refusal) as usize) {
            count.fetch_add(pages.0, Relaxed);
        }
    }
}

const fn left_of(refusal: Refusal) -> Left {
    match refusal {
        Refusal::NoPage => Left::NoPage,
        Refusal::SharedOrPinned => Left::SharedOrPinned,
        Refusal::Locked => Left::Locked,
        Refusal::NotAnonymous => Left::NotAnonymous,
        Refusal::Superpage => Left::Superpage,
        Refusal::Changed => Left::Changed,
        Refusal::Unsure => Left::Unsure,
        Refusal::Protected => Left::Protected,
        Refusal::ThreadControl => Left::ThreadControl,
        Refusal::Watched => Left::Watched,
        Refusal::Other => Left::Other,
    }
}

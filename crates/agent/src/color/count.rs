//! Counting what there is, and making sure of it: what stands in the slot.

use std::sync::atomic::Ordering::Relaxed;

use superhue_color::act::{Placed, PoolError, Refusal, ReplaceError};
use superhue_mailbox::{Aside, ColorSlot, Left};
use superhue_model::{BASE_PAGE_SIZE, VirtAddr, VirtRange};
use superhue_sys::pagemap::{
    PAGE_IS_HUGE, PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PageRegion, pagemap_scan,
};

use super::survey::Survey;
use super::tools::Tools;

/// Pages tested at a time.
const SAMPLE: u64 = 8;

/// Tests after which a palette of which less than [`LEAST`] percent holds is given up.
const WINDOW: u64 = 64;
const LEAST: u64 = 60;

/// Makes sure of pages that are said to be on a wanted color.
pub(super) struct Doubt {
    number: u64,
    tested: u64,
    confirmed: u64,
}

impl Doubt {
    pub(super) const fn new(seed: u64) -> Self {
        Self {
            number: seed | 1,
            tested: 0,
            confirmed: 0,
        }
    }

    /// Takes some known pages at random, moves each out, has its color told again, and moves it back, to a wanted color if it was
    /// on none.
    ///
    /// # Errors
    /// When too many were not where they should be.
    pub(super) fn test(
        &mut self,
        survey: &mut Survey,
        tools: &mut Tools,
        slot: &ColorSlot,
    ) -> Result<(), Aside> {
        let known = survey.known.len();
        if known == 0 || !tools.sees_faults() {
            return Ok(());
        }
        for _ in 0..SAMPLE {
            self.number = self.number.wrapping_mul(6_364_136_223_846_793_005);
            self.number = self.number.wrapping_add(1_442_695_040_888_963_407);
            let Some(start) = survey.known.nth((self.number >> 33) % known) else {
                break;
            };
            let end = VirtAddr(start.0 + BASE_PAGE_SIZE);
            let page = VirtRange { start, end };
            if survey.is_superpage(page) {
                survey.known.remove(page);
                continue;
            }
            let replaced = match tools.replace(page) {
                Ok(replaced) => replaced,
                Err(ReplaceError::Pool(PoolError::Oracle(_))) => return Err(Aside::Refuted),
                Err(_) => continue,
            };
            let (moved, right) = (replaced.pages.placed.0, replaced.pages.already.0);
            self.tested += moved + right;
            self.confirmed += right;
            slot.tested.fetch_add(moved + right, Relaxed);
            slot.confirmed.fetch_add(right, Relaxed);
            slot.replaced.fetch_add(moved, Relaxed);
            if moved + right == 0 {
                survey.known.remove(page);
            }
        }
        if self.tested < WINDOW {
            return Ok(());
        }
        let is_refuted = tools.can_check && self.confirmed * 100 < self.tested * LEAST;
        (self.tested, self.confirmed) = (0, 0);
        if is_refuted {
            Err(Aside::Refuted)
        } else {
            Ok(())
        }
    }
}

impl Survey {
    /// Whether a page has become part of a superpage. To be asked before its range is registered: the mapping is divided
    /// there, and the superpage with it.
    fn is_superpage(&self, page: VirtRange) -> bool {
        let mut found = [PageRegion::default(); 1];
        let scanned = pagemap_scan(
            &self.pagemap,
            page,
            PAGE_IS_PRESENT,
            PAGE_IS_HUGE,
            &mut found,
        );
        let [run] = found;
        matches!(scanned, Ok((1, _))) && run.categories & PAGE_IS_HUGE != 0
    }

    /// Counts what is resident, and how much of it is on a wanted color.
    pub(super) fn count(&self, tools: &mut Tools, slot: &ColorSlot) {
        let mut found = [PageRegion::default(); 64];
        let (mut resident, mut right, mut superpages) = (0, 0, 0);
        for range in &self.plain {
            let mut rest = *range;
            while rest.start < rest.end {
                let reported = PAGE_IS_HUGE | PAGE_IS_PFNZERO;
                let scanned =
                    pagemap_scan(&self.pagemap, rest, PAGE_IS_PRESENT, reported, &mut found);
                let Ok((count, end)) = scanned else { break };
                for run in found.iter().take(count) {
                    if run.categories & PAGE_IS_PFNZERO != 0 {
                        continue;
                    }
                    let (start, end) = (VirtAddr(run.start), VirtAddr(run.end));
                    let range = VirtRange { start, end };
                    let pages = range.len().whole_pages().0;
                    resident += pages;
                    if run.categories & PAGE_IS_HUGE != 0 {
                        superpages += pages;
                    } else {
                        right += self.known.count(range);
                    }
                }
                if end <= rest.start {
                    break;
                }
                rest.start = end;
            }
        }
        slot.pool.store(tools.pool_held(), Relaxed);
        // A program that is ending has given most back already: what counts is the look at (nearly) most of it.
        if resident < slot.resident.load(Relaxed) / 10 * 9 {
            return;
        }
        slot.resident.store(resident, Relaxed);
        slot.superpages.store(superpages, Relaxed);
        slot.right.store(right, Relaxed);
        let left = |left: Left| slot.left.get(left as usize);
        let told: u64 = Left::ALL
            .into_iter()
            .filter(|reason| !matches!(reason, Left::NotPermitted | Left::NotYet | Left::Superpage))
            .filter_map(left)
            .map(|count| count.load(Relaxed))
            .sum();
        let rest = resident.saturating_sub(right + superpages + told);
        if tools.sees_faults() {
            set(slot, Left::NotYet, rest);
        } else {
            set(slot, Left::NotPermitted, rest);
        }
        set(slot, Left::Superpage, superpages);
    }
}

pub(super) fn set(slot: &ColorSlot, left: Left, pages: u64) {
    if let Some(count) = slot.left.get(left as usize) {
        count.store(pages, Relaxed);
    }
}

/// Adds what was refused to the counts.
pub(super) fn note(placed: &Placed, slot: &ColorSlot) {
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
        Refusal::NotHeld | Refusal::Other => Left::Other,
    }
}

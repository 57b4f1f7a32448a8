//! One region in a heat map.

use std::time::Duration;

use superhue_model::{PAGES_PER_REGION, PageCount, PageSet, Region, RegionHeat};

use super::super::RegionBits;
use super::planes::{PageHistory, Planes, RECENT, decayed, decayed_bits, slot_of};

/// Shortest interval that counts, in seconds.
pub(super) const MIN_INTERVAL_SECONDS: f32 = 1e-3;

/// A region with present pages.
///
/// The history of the region as a whole (touched at all or not) continues when one entry begins or ceases to map it. The history of its single
/// pages then starts over: a huge page does not show which of its pages were touched, and if all counted as active, a region just split would look
/// fit for promotion again.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    pub(super) region: Region,
    pub(super) huge: bool,
    pub(super) present: PageSet,
    /// Time watched until it was last found touched, or before it first appeared.
    touched_at: Duration,
    /// Number of samples that found any of it touched; halved with the counts of pages.
    pub(super) count: u16,
    /// Bits of the recent samples, the newest in bit 0: 1 if the sample found any of it touched.
    recent: u8,
    /// Number of recent samples that saw it.
    known: u8,
    /// Number of recent samples that saw its pages.
    pages_known: u8,
    /// Pages touched at the last sample; all of a huge page.
    pub(super) touched: u16,
    /// Pages touched per second, at least; of a huge page, samples per second that found it touched.
    per_second: f32,
    /// `None` while no page of it was touched.
    planes: Option<Box<Planes>>,
}

impl Cell {
    /// Makes the cell of a region that appears; `before` is the time watched before this sample.
    pub(super) fn new(bits: &RegionBits, before: Duration) -> Self {
        Self {
            region: bits.region,
            huge: bits.huge,
            present: PageSet::EMPTY,
            touched_at: before,
            count: 0,
            recent: 0,
            known: 0,
            pages_known: 0,
            touched: 0,
            per_second: 0.0,
            planes: None,
        }
    }

    /// Adds no idle time for a sample of this length that could not see accesses through a translation in the TLB. One translation covers a whole
    /// huge page, which a program may use all the time.
    pub(super) fn note_unflushed(&mut self, interval: Duration) {
        if self.huge && self.touched == 0 {
            self.touched_at = self.touched_at.saturating_add(interval);
        }
    }

    /// Takes in a sample, whose number in the ring is `slot`.
    ///
    /// A page that became present after arming was touched by the fault that made it present. That says nothing about its later use: memory that a
    /// program fills once and forgets would look hot. In a `steady` sample all present pages had been there before; otherwise only those that the
    /// sample before found.
    pub(super) fn add(
        &mut self,
        bits: &RegionBits,
        slot: usize,
        watched: Duration,
        interval: Duration,
        steady: bool,
    ) {
        let was_there = if steady { bits.present } else { self.present };
        if self.huge != bits.huge {
            self.huge = bits.huge;
            self.planes = None;
            self.pages_known = 0;
            self.per_second = 0.0;
        } else if self.present.and(&bits.present) != self.present
            && let Some(planes) = &mut self.planes
        {
            planes.keep(&bits.present);
        }
        self.present = bits.present;
        let accessed = bits.accessed.and(&bits.present).and(&was_there);
        let any = !accessed.is_empty();
        if any {
            self.touched_at = watched;
            self.count = self.count.saturating_add(1);
        }
        self.recent = (self.recent << 1 | u8::from(any)) & ((1 << RECENT) - 1);
        self.known = next(self.known);
        if bits.huge {
            self.touched = if any { PAGES_PER_REGION as u16 } else { 0 };
            self.pace(u16::from(any), 1, interval);
            return;
        }
        self.pages_known = next(self.pages_known);
        if any {
            let planes = self.planes.get_or_insert_with(|| Box::new(Planes::EMPTY));
            planes.add(slot, &accessed);
            self.touched = u16::try_from(planes.touched(slot)).unwrap_or(u16::MAX);
        } else {
            self.touched = 0;
            if let Some(planes) = &mut self.planes {
                planes.add(slot, &PageSet::EMPTY);
            }
        }
        self.pace(self.touched, self.present.len().0, interval);
    }

    /// Records that a sample found `touched` of `all` pages. If nearly all were touched, they may have been touched any number of times, so a
    /// longer sample shows less: the rate that a shorter one proved stands.
    fn pace(&mut self, touched: u16, all: u64, interval: Duration) {
        let new = f32::from(touched) / interval.as_secs_f32().max(MIN_INTERVAL_SECONDS);
        let is_all = u64::from(touched) >= all - all / 8;
        self.per_second = match (self.known, is_all) {
            (..=1, _) => new,
            (_, true) => self.per_second.max(new),
            (_, false) => self.per_second.midpoint(new),
        };
    }

    /// Halves all counts.
    pub(super) fn halve(&mut self) {
        self.count /= 2;
        if let Some(planes) = &mut self.planes {
            planes.halve();
            if planes.is_empty() {
                self.planes = None;
            }
        }
    }

    /// Returns the heat for the policy; `newest` is the ring number of the last sample.
    pub(super) fn heat(&self, newest: usize, watched: Duration) -> RegionHeat {
        let (active, rate) = match (&self.planes, self.huge) {
            (_, true) => (None, decayed_bits(self.recent, self.known)),
            (None, _) => (Some(PageCount(0)), 0.0),
            (Some(planes), _) => {
                let touched = |age| {
                    let pages = planes.touched(slot_of(newest, age));
                    f32::from(u16::try_from(pages).unwrap_or(u16::MAX))
                };
                (Some(planes.active()), decayed(self.pages_known, touched))
            }
        };
        RegionHeat {
            region: self.region,
            active,
            is_range: false,
            rate,
            per_second: self.per_second,
            idle: watched.saturating_sub(self.touched_at),
        }
    }

    /// Returns the history of a page, or of all pages in a huge page.
    fn history(&self, page: usize, newest: usize) -> PageHistory {
        if self.huge {
            return PageHistory {
                count: self.count,
                recent: self.recent,
            };
        }
        let planes = self.planes.as_ref();
        planes.map_or_else(PageHistory::default, |planes| planes.page(page, newest))
    }

    /// Returns the count and the decayed rate of a page.
    pub(super) fn page(&self, page: usize, newest: usize) -> (u32, f32) {
        let known = if self.huge {
            self.known
        } else {
            self.pages_known
        };
        let history = self.history(page, newest);
        (
            u32::from(history.count),
            decayed_bits(history.recent, known),
        )
    }

    /// Adds to `pages[c]` the number of present pages with count `c`.
    pub(super) fn tally(&self, pages: &mut [u64]) {
        if let (Some(planes), false) = (&self.planes, self.huge) {
            planes.tally(&self.present, pages);
            return;
        }
        let count = if self.huge { self.count } else { 0 };
        if let Some(pages) = pages.get_mut(usize::from(count)) {
            *pages += if self.huge {
                PAGES_PER_REGION
            } else {
                self.present.len().0
            };
        }
    }

    /// Returns the bytes held on the heap.
    pub(super) fn heap(&self) -> usize {
        self.planes.as_ref().map_or(0, |_| size_of::<Planes>())
    }
}

fn next(known: u8) -> u8 {
    known.saturating_add(1).min(RECENT as u8)
}

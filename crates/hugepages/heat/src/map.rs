//! Heat of each page of one process.
//!
//! The map keeps two things for each page:
//!
//! * its **count**: the number of samples that found it touched. After 511 samples all counts of the process are halved, and again each time that
//!   511 are reached. So counts of one process can always be compared with each other, and with [`HeatMap::weight`], which is the count of a page
//!   that every sample found touched;
//! * its **recent** samples, the last 6. A page is *active* if one of them found it touched. Its *rate* is the share of them that did, weighted so
//!   that a sample counts half as much as the one 2 samples after it ([`HALF_LIFE`]). Every sample weighs the same, however long its interval was:
//!   recency is counted in samples, and the pace of sampling follows the program.
//!
//! A page that became present since the sample before does not count as touched: its fault touched it.
//!
//! The map forgets a page that is absent at a sample (unmapped, discarded, swapped out), and a region without present pages: the next page at that
//! address may be other memory. While a huge page maps a region, the whole region has one count and one rate; the counts and rates of its pages
//! start over when it is split.
//!
//! # Memory
//!
//! ```text
//!   region of base pages     104 bytes and, once a page of it was touched, 960     <= 2.1 bytes/page
//!   huge page                104 bytes
//!   range of DAMON            48 bytes
//! ```
//!
//! So 16 GiB of base pages take 8.3 MiB, and of huge pages 0.8 MiB.

mod pages;
mod planes;
mod ranges;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use superhue_model::{ByteCount, PAGES_PER_REGION, PageCount, PageSet, ProcessHeat, VirtRange};

use self::pages::Cell;
use self::planes::{LARGEST_COUNT, RECENT};
use self::ranges::Span;
use super::{HotSet, RangeRate, Reading, RegionBits};

/// Number of samples after which a sample weighs half.
pub const HALF_LIFE: u32 = 2;

/// Kind of page that maps memory in a heat map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PageSize {
    /// A base page: 4 KiB.
    Base,
    /// A huge page: 2 MiB, for which there is one accessed bit.
    Huge,
    /// Not known: a range that DAMON treats as equally hot.
    Range,
}

/// Heat of a page, a huge page or a range of DAMON.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RangeHeat {
    /// Address range.
    pub range: VirtRange,
    /// Kind of its pages.
    pub pages: PageSize,
    /// Number of samples that found it touched, at most [`HeatMap::weight`]. Of a range, the sum of its rates, rounded.
    pub count: u32,
    /// Share of recent samples that found it touched, newer ones weighing more: 0 to 1.
    pub rate: f32,
}

/// Difference between a sample and the one before.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Share of accesses that moved to other memory, 0 (none) to 1 (all).
    ///
    /// With `n` the share of all touched pages that lie in a region, and `m` the same at the sample before, it is half the sum of `|n - m|` over
    /// all regions: the share of the touched pages that would have to be elsewhere for both samples to look alike. It uses regions, since random
    /// accesses touch other pages each time while nothing changes, and shares, since a longer interval sees more pages. But if a sample finds over
    /// twice as many pages touched (or under half as many) as the lengths of the two intervals explain, that counts as movement too. 1 for the
    /// first sample that finds a touched page.
    pub moved: f32,
    /// Movement that chance alone would explain, 0 to 1, if pages were touched at random.
    ///
    /// A sample that finds few pages of each region touched finds other ones each time. With `a` pages of a region at the sample
    /// before and `b` at this one, of `A` and `B` in all, it is half the sum of `sqrt(a / A^2 + b / B^2)` over all regions: counts
    /// of rare events spread by their root (Poisson). 8 pages of each region make it 0.25.
    pub by_chance: f32,
    /// True if memory became resident in regions that had none, or in addresses outside of all ranges.
    pub grew: bool,
    /// Pages touched; a touched huge page counts as 512, a range as the part that its rate gives.
    pub touched: PageCount,
    /// Entries of page tables with the accessed bit set: the processor had to walk and set one that many times. A huge page is one entry. DAMON
    /// checks one page of each touched range.
    pub entries: u64,
}

/// Heat of each page of one process; the text of this module's file defines the terms.
#[derive(Debug, Clone, Default)]
pub struct HeatMap {
    cells: Vec<Cell>,
    spans: Vec<Span>,
    samples: u64,
    watched: Duration,
    interval: Duration,
    /// Samples since the start, halved with the counts.
    weight: u16,
    /// Number of the last sample in the ring of recent ones.
    newest: usize,
}

impl HeatMap {
    /// Makes an empty map.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in a sample; `interval` is the time between arming and reading. The sample was `steady` if no memory became resident in that time.
    /// Otherwise, or if that is not known, only pages that the sample before found present count as touched.
    ///
    /// Takes about 0.03 ms for 1 GiB of base pages. It corrects a reading that is not as [`Reading`] requires: it sorts regions, joins regions
    /// named twice, leaves out pages touched but not present, gives the first of overlapping ranges precedence, and limits rates to 0 to 1. When a
    /// reading is of another kind than the one before, the map starts over.
    pub fn absorb(&mut self, reading: &Reading, interval: Duration, steady: bool) -> Change {
        let fits = match reading {
            Reading::Pages(_) => self.spans.is_empty(),
            Reading::Ranges(_) => self.cells.is_empty(),
        };
        if !fits {
            *self = Self::new();
        }
        if self.weight >= LARGEST_COUNT {
            self.halve();
        }
        let before = self.watched;
        let previous = (self.samples > 0).then_some(self.interval);
        self.watched = before.saturating_add(interval);
        self.interval = interval;
        self.newest = (self.newest + 1) % RECENT;
        self.samples = self.samples.saturating_add(1);
        self.weight += 1;
        let (profile, grew, entries) = match reading {
            Reading::Pages(regions) => self.absorb_pages(regions, before, steady),
            Reading::Ranges(ranges) => self.absorb_ranges(ranges, before),
        };
        Change {
            moved: profile.moved(previous, interval),
            by_chance: profile.by_chance(),
            grew,
            touched: PageCount(profile.now() as u64),
            entries,
        }
    }

    /// Records that the last sample was taken without a flush of the TLB: huge pages that it found untouched may have been in use.
    pub fn note_unflushed(&mut self) {
        let interval = self.interval;
        self.cells
            .iter_mut()
            .for_each(|cell| cell.note_unflushed(interval));
    }

    fn absorb_pages(
        &mut self,
        regions: &[RegionBits],
        before: Duration,
        steady: bool,
    ) -> (Profile, bool, u64) {
        let put_right;
        let regions = if regions.is_sorted_by(|a, b| a.region < b.region) {
            regions
        } else {
            put_right = joined(regions);
            &put_right
        };
        let present = regions.iter().filter(|bits| !bits.present.is_empty());
        let same = self
            .cells
            .iter()
            .map(|cell| cell.region)
            .eq(present.clone().map(|bits| bits.region));
        let mut profile = Profile(Vec::with_capacity(regions.len()));
        let mut grew = false;
        if !same {
            grew = self.follow(present.clone(), before, &mut profile);
        }
        let mut entries = 0;
        for (cell, bits) in self.cells.iter_mut().zip(present) {
            // A region just promoted or split counts as touched as before, if it is touched.
            let converted = cell.huge != bits.huge && cell.touched > 0;
            let then = cell.touched;
            cell.add(bits, self.newest, self.watched, self.interval, steady);
            let then = match (converted, cell.touched) {
                (true, now @ 1..) => now,
                _ => then,
            };
            profile.add(f64::from(then), f64::from(cell.touched));
            entries += match (cell.huge, cell.touched) {
                (true, touched) => u64::from(touched > 0),
                (false, touched) => u64::from(touched),
            };
        }
        (profile, grew, entries)
    }

    /// Makes the cells match the regions that are present now. Returns true if there are new ones.
    fn follow<'a>(
        &mut self,
        present: impl Iterator<Item = &'a RegionBits>,
        before: Duration,
        profile: &mut Profile,
    ) -> bool {
        let mut grew = false;
        let mut old = std::mem::take(&mut self.cells).into_iter().peekable();
        let mut gone = |cell: Cell| profile.add(f64::from(cell.touched), 0.0);
        for bits in present {
            while let Some(cell) = old.next_if(|cell| cell.region < bits.region) {
                gone(cell);
            }
            let kept = old.next_if(|cell| cell.region == bits.region);
            grew |= kept.is_none();
            self.cells
                .push(kept.unwrap_or_else(|| Cell::new(bits, before)));
        }
        old.for_each(gone);
        // Spare capacity is not worth its memory in a map that changes a few times a minute.
        self.cells.shrink_to_fit();
        grew
    }

    fn absorb_ranges(&mut self, ranges: &[RangeRate], before: Duration) -> (Profile, bool, u64) {
        let (spans, grew) = ranges::absorb(&self.spans, ranges, before, self.watched);
        let mut profile = Profile(ranges::weights(&self.spans, &spans));
        for (then, now) in &mut profile.0 {
            *then /= BYTES_PER_PAGE;
            *now /= BYTES_PER_PAGE;
        }
        let entries = spans.iter().filter(|span| span.last > 0.0).count() as u64;
        self.spans = spans;
        (profile, grew, entries)
    }

    fn halve(&mut self) {
        self.weight /= 2;
        for cell in &mut self.cells {
            cell.halve();
        }
        for span in &mut self.spans {
            span.total /= 2.0;
        }
    }

    /// Returns the number of samples so far.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the sum of all intervals.
    #[must_use]
    pub fn watched(&self) -> Duration {
        self.watched
    }

    /// Returns the count of a page that every sample found touched: the number of samples, up to the 511th.
    #[must_use]
    pub fn weight(&self) -> u32 {
        u32::from(self.weight)
    }

    /// Returns the bytes held on the heap, about.
    #[must_use]
    pub fn held(&self) -> ByteCount {
        let boxes: usize = self.cells.iter().map(Cell::heap).sum();
        let bytes = boxes
            + self.cells.capacity() * size_of::<Cell>()
            + self.spans.capacity() * size_of::<Span>();
        ByteCount(bytes as u64)
    }

    /// Returns the heat by region, for a policy.
    ///
    /// Ranges appear in every region that they overlap. If those are more than 2^20, only ranges ever touched appear, in at most 2^20 regions.
    #[must_use]
    pub fn heat(&self) -> ProcessHeat {
        let regions = if self.spans.is_empty() {
            let heat = |cell: &Cell| cell.heat(self.newest, self.watched);
            self.cells.iter().map(heat).collect()
        } else {
            ranges::regions(&self.spans, self.watched, self.interval)
        };
        ProcessHeat {
            samples: self.samples,
            watched: self.watched,
            regions,
        }
    }

    /// Returns every page, huge page or range present at the last sample, ascending.
    pub fn ranges(&self) -> impl Iterator<Item = RangeHeat> + '_ {
        let pages = self.cells.iter().flat_map(|cell| {
            let whole = cell.huge.then_some(0).into_iter();
            let single = (if cell.huge {
                &PageSet::EMPTY
            } else {
                &cell.present
            })
            .iter();
            whole.chain(single).map(|page| {
                let (count, rate) = cell.page(page, self.newest);
                let (range, pages) = extent(cell, page);
                RangeHeat {
                    range,
                    pages,
                    count,
                    rate,
                }
            })
        });
        pages.chain(ranges::ranges(&self.spans))
    }

    /// Returns the hot-set curve of the accesses seen so far.
    #[must_use]
    pub fn hot_set(&self) -> HotSet {
        HotSet::of(self.tally(1.0))
    }

    /// Returns the accesses to a page, each counting for `worth`, and the bytes of such pages.
    fn tally(&self, worth: f64) -> impl Iterator<Item = (f64, ByteCount)> {
        let mut pages = vec![0_u64; usize::from(LARGEST_COUNT) + 1];
        for cell in &self.cells {
            cell.tally(&mut pages);
        }
        let pages = pages
            .into_iter()
            .enumerate()
            .map(|(count, pages)| (count as f64, PageCount(pages).bytes()));
        pages
            .chain(ranges::tally(&self.spans))
            .map(move |(count, bytes)| (count * worth, bytes))
    }
}

impl HotSet {
    /// Returns the curve of several processes together. It compares processes by accesses per sample, since their numbers of samples may differ.
    #[must_use]
    pub fn of_all<'a>(maps: impl IntoIterator<Item = &'a HeatMap>) -> Self {
        let per_sample = |map: &HeatMap| 1.0 / f64::from(map.weight().max(1));
        let maps = maps.into_iter();
        Self::of(maps.flat_map(|map| map.tally(per_sample(map))))
    }
}

const BYTES_PER_PAGE: f64 = superhue_model::BASE_PAGE_SIZE as f64;

fn extent(cell: &Cell, page: usize) -> (VirtRange, PageSize) {
    let whole = cell.region.range();
    if cell.huge {
        return (whole, PageSize::Huge);
    }
    let offset = |page: usize| PageCount(page as u64).bytes();
    let at = |page| whole.start.checked_add(offset(page)).unwrap_or(whole.end);
    let (start, end) = (at(page), at(page + 1));
    (VirtRange { start, end }, PageSize::Base)
}

/// Returns the regions ascending, each once.
fn joined(regions: &[RegionBits]) -> Vec<RegionBits> {
    let mut sorted = regions.to_vec();
    sorted.sort_by_key(|bits| bits.region);
    sorted.dedup_by(|extra, kept| {
        let same = extra.region == kept.region;
        if same {
            kept.huge &= extra.huge;
            kept.present = kept.present.or(&extra.present);
            kept.accessed = kept.accessed.or(&extra.accessed);
        }
        same
    });
    sorted
}

/// Pages touched in each region (or stretch) at the last sample and at this one.
struct Profile(Vec<(f64, f64)>);

impl Profile {
    fn add(&mut self, then: f64, now: f64) {
        if then > 0.0 || now > 0.0 {
            self.0.push((then, now));
        }
    }

    fn then(&self) -> f64 {
        self.0.iter().map(|(then, _)| then).sum()
    }

    fn now(&self) -> f64 {
        self.0.iter().map(|(_, now)| now).sum()
    }

    /// See [`Change::moved`].
    fn moved(&self, previous: Option<Duration>, interval: Duration) -> f32 {
        let (then, now) = (self.then(), self.now());
        if then <= 0.0 || now <= 0.0 {
            return if then > 0.0 || now > 0.0 { 1.0 } else { 0.0 };
        }
        let elsewhere: f64 = self
            .0
            .iter()
            .map(|(m, n)| (m / then - n / now).abs())
            .sum::<f64>()
            / 2.0;
        let seconds = |time: Duration| time.as_secs_f64().max(1e-6);
        let longer = previous.map_or(1.0, |previous| {
            let ratio = seconds(interval) / seconds(previous);
            ratio.max(1.0 / ratio)
        });
        let explained = 2.0 * longer * then.min(now) / then.max(now);
        let more = (1.0 - explained).max(0.0);
        elsewhere.max(more).clamp(0.0, 1.0) as f32
    }

    /// See [`Change::by_chance`].
    fn by_chance(&self) -> f32 {
        let (then, now) = (self.then().max(1.0), self.now().max(1.0));
        let spread = |&(a, b): &(f64, f64)| (a / (then * then) + b / (now * now)).sqrt();
        let sum: f64 = self.0.iter().map(spread).sum();
        (sum / 2.0).min(1.0) as f32
    }
}

const _: () = assert!(PAGES_PER_REGION == 512);

#[cfg(test)]
mod tests;

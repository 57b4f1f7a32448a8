//! How hot each page of one process is.
//!
//! Of each page two things are kept:
//!
//! * its **count**: how many samples found it touched. When 511 samples have been taken, all counts
//!   of the process are halved, and so each time that 511 are reached again. Counts of one process
//!   can thus always be compared with each other, and with [`HeatMap::weight`], which is what the
//!   count of a page is that every sample found touched;
//! * its **recent** samples, the last 6. A page is *active* if one of them found it touched. Its
//!   *rate* is the share of them that did, weighed so that a sample counts half as much as the one
//!   2 samples after it ([`HALF_LIFE`]). Every sample weighs alike, however long its interval was:
//!   what is recent is counted in samples, and the pace of sampling follows the program.
//!
//! A page that became present since the sample before does not count as touched: its fault touched it.
//!
//! A page that is absent at a sample (unmapped, discarded, swapped out) is forgotten, and so is a
//! region without present pages: what comes back at that address may be other memory. While a
//! superpage maps a region there is one count and one rate for all of it; those of its pages begin
//! anew when it is split.
//!
//! # Memory
//!
//! ```text
//!   region of base pages     104 bytes and, once a page of it was touched, 960     <= 2.1 bytes/page
//!   superpage                104 bytes
//!   range of DAMON            48 bytes
//! ```
//!
//! So 16 GiB of base pages take 8.3 MiB, and of superpages 0.8 MiB.

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

/// After how many samples one weighs half.
pub const HALF_LIFE: u32 = 2;

/// What maps memory in a heat map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PageSize {
    /// A base page: 4 KiB.
    Base,
    /// A superpage: 2 MiB, for which there is one accessed bit.
    Huge,
    /// Not known: a range that DAMON takes for equally hot.
    Range,
}

/// How hot a page, a superpage or a range of DAMON is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RangeHeat {
    /// Which addresses.
    pub range: VirtRange,
    /// What they are.
    pub pages: PageSize,
    /// Samples that found it touched, at most [`HeatMap::weight`]. Of a range, the sum of its
    /// rates, rounded.
    pub count: u32,
    /// The same of recent samples as a share, newer ones weighing more: 0 to 1.
    pub rate: f32,
}

/// How a sample differs from the one before.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// How far accesses have moved to other memory, 0 (not) to 1 (altogether).
    ///
    /// With `n` the share of all touched pages that lie in a region, and `m` the same at the sample
    /// before, it is half the sum of `|n - m|` over all regions: the share of the touched pages that
    /// would have to be elsewhere for both samples to look alike. It is taken by region since
    /// accesses at random touch other pages each time while nothing changes, and of shares since a
    /// longer interval sees more pages. But if a sample finds over twice as many pages touched (or
    /// under half as many) as the lengths of the two intervals explain, that counts as movement
    /// too. 1 for the first sample that finds anything touched.
    pub moved: f32,
    /// How much would seem to have moved by chance alone, 0 to 1, if pages were touched at random.
    ///
    /// A sample that finds few pages of each region touched finds other ones each time. With `a` pages of a region at the sample
    /// before and `b` at this one, of `A` and `B` in all, it is half the sum of `sqrt(a / A^2 + b / B^2)` over all regions: counts
    /// of rare events spread by their root (Poisson). 8 pages of each region make it 0.25.
    pub by_chance: f32,
    /// Whether memory became resident in regions that had none, or in addresses outside of all
    /// ranges.
    pub grew: bool,
    /// Pages touched; a touched superpage counts as 512, a range as the part its rate says.
    pub touched: PageCount,
    /// Entries of page tables with the accessed bit set: as many times the processor had to walk
    /// and set one. A superpage is one. DAMON looks at one page of each touched range.
    pub entries: u64,
}

/// How hot each page of one process is; see the text of this module's file for the terms.
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
    /// A map of nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in a sample; `interval` is the time between arming and reading. It was `steady` if no
    /// memory became resident in that time. If some did, or if nobody knows, only pages that the
    /// sample before found present count as touched.
    ///
    /// Takes about 0.03 ms for 1 GiB of base pages. A reading that is not as [`Reading`] says is put
    /// right: regions are sorted, those named twice are joined, pages touched but not present are
    /// left out, of overlapping ranges the first has its way, and a rate is taken to be within
    /// 0 to 1. When a reading is of another kind than the one before, the map begins anew.
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
            // A region just promoted or split is as touched as before, if it is touched.
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

    /// Makes the cells those of the regions that are present now. Returns whether there are new
    /// ones.
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
        // Room for growth is not worth much to a map that changes a few times a minute.
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

    /// Samples so far.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The sum of all intervals.
    #[must_use]
    pub fn watched(&self) -> Duration {
        self.watched
    }

    /// The count of a page that every sample found touched: the number of samples, up to the 511th.
    #[must_use]
    pub fn weight(&self) -> u32 {
        u32::from(self.weight)
    }

    /// Heap memory held, about.
    #[must_use]
    pub fn held(&self) -> ByteCount {
        let boxes: usize = self.cells.iter().map(Cell::heap).sum();
        let bytes = boxes
            + self.cells.capacity() * size_of::<Cell>()
            + self.spans.capacity() * size_of::<Span>();
        ByteCount(bytes as u64)
    }

    /// What a policy wants to know: by region.
    ///
    /// Ranges are told for every region that they overlap; if those are more than 2^20, only for
    /// those ever touched, and the first 2^20 of them.
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

    /// Every page, superpage or range present at the last sample, ascending.
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

    /// How many bytes receive which share of the accesses seen so far.
    #[must_use]
    pub fn hot_set(&self) -> HotSet {
        HotSet::of(self.tally(1.0))
    }

    /// Accesses to a page, each counting for `worth`, and the bytes of such pages.
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
    /// The curve of several processes taken together. Processes are compared by accesses per sample,
    /// since they may have been sampled differently often.
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

/// Ascending, each region once.
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

//! Data of each sample that `superhue heat` keeps.

use std::time::Duration;

use superhue::heat::Sample;
use superhue::model::{BASE_PAGE_SHIFT, HUGE_PAGE_SHIFT, PAGES_PER_REGION, PageSet};
use superhue::model::{Region, VirtAddr};
use superhue::trackers::{RangeRate, Reading};
use superhue_plot::{Recorder, SampleReading};

/// Recorded samples.
#[derive(Debug)]
pub(super) struct Record {
    /// One for the result; one for the terminal, with only the recent past.
    pub(super) recorders: Vec<Recorder>,
    /// Shortest and longest interval so far.
    pub(super) intervals: Option<(Duration, Duration)>,
    /// Start of the first interval.
    pub(super) first: Option<Duration>,
}

impl Record {
    /// An empty record.
    pub(super) const fn new(recorders: Vec<Recorder>) -> Self {
        Self {
            recorders,
            intervals: None,
            first: None,
        }
    }

    /// Adds a sample.
    pub(super) fn add(&mut self, sample: &Sample<'_>) {
        let (from, to) = (sample.interval.start, sample.interval.end);
        self.first.get_or_insert(from);
        let interval = to.saturating_sub(from);
        let (least, most) = self.intervals.unwrap_or((interval, interval));
        self.intervals = Some((least.min(interval), most.max(interval)));
        for recorder in &mut self.recorders {
            match sample.reading {
                Reading::Pages(regions) => recorder.add(
                    from,
                    to,
                    regions.iter().map(|bits| SampleReading::Pages {
                        region: bits.region,
                        huge: bits.huge,
                        present: bits.present,
                        touched: bits.accessed,
                    }),
                ),
                Reading::Ranges(ranges) => {
                    recorder.add(from, to, ranges.iter().flat_map(seen_of_range));
                }
            }
        }
    }
}

/// Returns the regions of a range, with the pages of it that lie in each.
fn seen_of_range(range: &RangeRate) -> impl Iterator<Item = SampleReading> + use<> {
    let rate = range.rate;
    let (start, end) = (range.range.start.0, range.range.end.0);
    let last = end.div_ceil(1 << HUGE_PAGE_SHIFT);
    (start >> HUGE_PAGE_SHIFT..last).map(move |number| {
        let first = number << HUGE_PAGE_SHIFT;
        let page = |address: u64| address.saturating_sub(first) >> BASE_PAGE_SHIFT;
        let mut pages = PageSet::EMPTY;
        for page in page(start)..page(end).min(PAGES_PER_REGION) {
            pages.insert(page as usize);
        }
        SampleReading::Rate {
            region: Region::containing(VirtAddr(first)),
            pages,
            rate,
        }
    })
}

#[cfg(test)]
mod tests {
    use superhue::model::VirtRange;

    use super::*;

    #[test]
    fn a_range_is_told_region_by_region() {
        let range = VirtRange::new(VirtAddr(0x3f_e000), VirtAddr(0x60_1000)).unwrap();
        let seen: Vec<SampleReading> = seen_of_range(&RangeRate { range, rate: 0.25 }).collect();
        let told: Vec<(u64, Vec<usize>)> = (seen.iter())
            .map(|seen| match seen {
                SampleReading::Rate {
                    region,
                    pages,
                    rate,
                } => {
                    assert_eq!(*rate, 0.25);
                    (region.start().0, pages.iter().collect())
                }
                SampleReading::Pages { .. } => panic!("a range has no pages"),
            })
            .collect();
        assert_eq!(told[0], (0x20_0000, vec![510, 511]));
        assert_eq!((told[1].0, told[1].1.len()), (0x40_0000, 512));
        assert_eq!(told[2], (0x60_0000, vec![0]));
        assert_eq!(told.len(), 3);
    }
}

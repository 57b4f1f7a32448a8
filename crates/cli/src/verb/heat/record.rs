//! A tracker that lets a recorder listen.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use superhue_heat::{Armed, RangeRate, Reading, TrackError, Tracker, TrackerKind};
use superhue_model::{BASE_PAGE_SHIFT, HUGE_PAGE_SHIFT, PAGES_PER_REGION, PageSet, ProcessId};
use superhue_model::{Region, VirtAddr, VirtRange};
use superhue_plot::{Recorder, Seen};

/// What was recorded.
#[derive(Debug)]
pub(super) struct Recorded {
    /// One for the result; one for the terminal, with the recent past alone.
    pub(super) recorders: Vec<Recorder>,
    /// Shortest and longest interval so far.
    pub(super) intervals: Option<(Duration, Duration)>,
    /// When the first one began.
    first: Option<Instant>,
}

impl Recorded {
    /// Since the first sample began.
    pub(super) fn elapsed(&self) -> Duration {
        self.first.map_or(Duration::ZERO, |first| first.elapsed())
    }
}

/// A record that the tracker writes and its owner reads.
#[derive(Debug, Clone)]
pub(super) struct Record(Arc<Mutex<Recorded>>);

impl Record {
    pub(super) fn new(recorders: Vec<Recorder>) -> Self {
        Self(Arc::new(Mutex::new(Recorded {
            recorders,
            intervals: None,
            first: None,
        })))
    }

    /// Does something with what was recorded so far.
    pub(super) fn with<T>(&self, look: impl FnOnce(&mut Recorded) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Passes everything on to a tracker, and what it reads to a record, too: there is no other place
/// where every sample comes by with the exact times it began and ended.
pub(super) struct Listening {
    tracker: Box<dyn Tracker>,
    record: Record,
    begun: Instant,
    armed: HashMap<ProcessId, Instant>,
}

impl Listening {
    pub(super) fn new(tracker: Box<dyn Tracker>, record: Record) -> Self {
        Self {
            tracker,
            record,
            begun: Instant::now(),
            armed: HashMap::new(),
        }
    }
}

impl Tracker for Listening {
    fn kind(&self) -> TrackerKind {
        self.tracker.kind()
    }

    fn arm(&mut self, process: ProcessId) -> Result<Armed, TrackError> {
        let armed = self.tracker.arm(process)?;
        self.armed.insert(process, Instant::now());
        Ok(armed)
    }

    fn read(&mut self, process: ProcessId, ranges: &[VirtRange]) -> Result<Reading, TrackError> {
        let until = Instant::now();
        let reading = self.tracker.read(process, ranges)?;
        if let Some(since) = self.armed.remove(&process) {
            let from = since.saturating_duration_since(self.begun);
            let to = until.saturating_duration_since(self.begun);
            self.record.with(|recorded| {
                recorded.first.get_or_insert(since);
                recorded.add(from, to, &reading);
            });
        }
        Ok(reading)
    }

    fn release(&mut self, process: ProcessId) {
        self.armed.remove(&process);
        self.tracker.release(process);
    }
}

impl Recorded {
    fn add(&mut self, from: Duration, to: Duration, reading: &Reading) {
        let interval = to.saturating_sub(from);
        let (least, most) = self.intervals.unwrap_or((interval, interval));
        self.intervals = Some((least.min(interval), most.max(interval)));
        for recorder in &mut self.recorders {
            match reading {
                Reading::Pages(regions) => recorder.add(
                    from,
                    to,
                    regions.iter().map(|bits| Seen::Pages {
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

/// The regions of a range, with the pages of it that lie in each.
fn seen_of_range(range: &RangeRate) -> impl Iterator<Item = Seen> + use<> {
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
        Seen::Rate {
            region: Region::containing(VirtAddr(first)),
            pages,
            rate,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_told_region_by_region() {
        let range = VirtRange::new(VirtAddr(0x3f_e000), VirtAddr(0x60_1000)).unwrap();
        let seen: Vec<Seen> = seen_of_range(&RangeRate { range, rate: 0.25 }).collect();
        let told: Vec<(u64, Vec<usize>)> = (seen.iter())
            .map(|seen| match seen {
                Seen::Rate {
                    region,
                    pages,
                    rate,
                } => {
                    assert_eq!(*rate, 0.25);
                    (region.start().0, pages.iter().collect())
                }
                Seen::Pages { .. } => panic!("a range has no pages"),
            })
            .collect();
        assert_eq!(told[0], (0x20_0000, vec![510, 511]));
        assert_eq!((told[1].0, told[1].1.len()), (0x40_0000, 512));
        assert_eq!(told[2], (0x60_0000, vec![0]));
        assert_eq!(told.len(), 3);
    }
}

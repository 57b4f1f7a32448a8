//! Readings of trackers, however wrong: a heat map stays in order and within bounds.
//!
//! The first byte of each chunk of the input selects its kind: the end of a sample, a region with
//! its sets, or a range of DAMON.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use superhue_model::{PageSet, Region, VirtAddr, VirtRange};
use superhue_heat::{HeatMap, RangeRate, Reading, RegionBits};

/// Reader of numbers from the input; returns zeros at its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (&first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        first
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    fn set(&mut self) -> PageSet {
        match self.byte() {
            0..32 => PageSet::EMPTY,
            32..96 => PageSet::FULL,
            96..160 => PageSet::from_words([self.word(); 8]),
            _ => PageSet::from_words(std::array::from_fn(|_| self.word())),
        }
    }
}

fn check(map: &HeatMap) {
    let mut end = VirtAddr(0);
    for heat in map.ranges() {
        assert!(heat.range.start >= end && heat.range.end > heat.range.start);
        end = heat.range.end;
        assert!((0.0..=1.0).contains(&heat.rate) && heat.count <= map.weight());
    }
    let mut last = None;
    for heat in map.heat().regions {
        assert!(last < Some(heat.region));
        last = Some(heat.region);
        let most = if heat.active.is_some() { 512.0 } else { 1.0 };
        assert!((0.0..=most).contains(&heat.rate) && heat.idle <= map.watched());
    }
    let set = map.hot_set();
    assert!(
        set.points
            .is_sorted_by(|a, b| a.bytes < b.bytes && a.share < b.share)
    );
    assert_eq!(
        set.bytes_for(1.0),
        set.points.last().map(|point| point.bytes)
    );
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let mut map = HeatMap::new();
    let (mut regions, mut ranges) = (Vec::new(), Vec::new());
    while !input.0.is_empty() {
        let kind = input.byte();
        match kind {
            0..96 => regions.push(RegionBits {
                region: Region::containing(VirtAddr(u64::from(input.byte()) << 21)),
                huge: kind % 4 == 0,
                present: input.set(),
                accessed: input.set(),
            }),
            96..160 => {
                let (start, length) = (input.word(), u64::from(input.byte()) << 16);
                ranges.push(RangeRate {
                    range: VirtRange {
                        start: VirtAddr(start % (1 << 48)),
                        end: VirtAddr((start % (1 << 48)).saturating_add(length)),
                    },
                    rate: f32::from_bits(input.word() as u32),
                });
            }
            _ => {
                let interval = Duration::from_micros(input.word());
                let reading = if kind % 2 == 0 {
                    Reading::Pages(std::mem::take(&mut regions))
                } else {
                    Reading::Ranges(std::mem::take(&mut ranges))
                };
                let change = map.absorb(&reading, interval, interval.as_millis() % 2 == 0);
                assert!((0.0..=1.0).contains(&change.moved), "{change:?}");
            }
        }
    }
    check(&map);
});

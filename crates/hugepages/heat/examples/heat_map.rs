//! Measures the time in which a heat map takes in a sample, and answers queries.
//!
//! ```text
//! cargo run --release -p superhue-heat --example heat_map -- [GIB]
//! ```
//!
//! Prints medians for GIB (default 1) of base pages in several states, and the memory held.
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use superhue_heat::{HeatMap, Reading, RegionBits};
use superhue_model::{PageSet, Region, VirtAddr};

const ROUNDS: usize = 41;

fn median(mut action: impl FnMut()) -> Duration {
    let mut times: Vec<_> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            action();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[ROUNDS / 2]
}

/// Makes a reading of `gib` GiB, in which sample `number` finds the pages `accessed(number, region)` touched.
fn reading(gib: u64, number: u64, accessed: impl Fn(u64, u64) -> PageSet) -> Reading {
    let regions = (0..gib * 512).map(|index| RegionBits {
        region: Region::containing(VirtAddr((index + 1000) << 21)),
        huge: false,
        present: PageSet::FULL,
        accessed: accessed(number, index),
    });
    Reading::Pages(regions.collect())
}

/// Returns the same pseudo-random word for the same number.
fn scramble(number: u64) -> u64 {
    let mut word = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

type Accessed = fn(u64, u64) -> PageSet;

const CASES: [(&str, Accessed); 4] = [
    ("untouched", |_, _| PageSet::EMPTY),
    ("a third touched", |_, index| {
        [PageSet::FULL, PageSet::EMPTY, PageSet::EMPTY][index as usize % 3]
    }),
    ("all touched", |_, _| PageSet::FULL),
    ("half touched, at random", |number, index| {
        let word = |i| scramble(number << 40 | index << 4 | i as u64);
        PageSet::from_words(std::array::from_fn(word))
    }),
];

fn main() {
    let gib = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let gib: u64 = gib.unwrap_or(1);
    let interval = Duration::from_millis(50);
    for (name, accessed) in CASES {
        let readings: Vec<_> = (0..4)
            .map(|number| reading(gib, number, accessed))
            .collect();
        let mut map = HeatMap::new();
        let mut number = 0;
        let absorb = median(|| {
            number += 1;
            black_box(map.absorb(&readings[number % readings.len()], interval, true));
        });
        let heat = median(|| drop(black_box(map.heat())));
        let curve = median(|| drop(black_box(map.hot_set())));
        let ranges = median(|| {
            black_box(map.ranges().fold(0.0, |sum, heat| sum + heat.rate));
        });
        println!(
            "{gib} GiB {name}: absorb {absorb:?}, heat {heat:?}, hot_set {curve:?}, ranges \
             {ranges:?}, held {}",
            map.held()
        );
    }
}

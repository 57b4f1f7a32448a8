use std::collections::BTreeMap;

use proptest::prelude::*;
use superhue_model::{Region, VirtAddr};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn region(number: u64) -> Region {
    Region::containing(VirtAddr(number << 21))
}

fn pages(pages: impl IntoIterator<Item = usize>) -> PageSet {
    let mut set = PageSet::EMPTY;
    pages.into_iter().for_each(|page| set.insert(page));
    set
}

fn base(number: u64, present: PageSet, accessed: PageSet) -> RegionBits {
    RegionBits {
        region: region(number),
        huge: false,
        present,
        accessed,
    }
}

fn huge(number: u64, touched: bool) -> RegionBits {
    RegionBits {
        region: region(number),
        huge: true,
        present: PageSet::FULL,
        accessed: if touched {
            PageSet::FULL
        } else {
            PageSet::EMPTY
        },
    }
}

fn absorb(map: &mut HeatMap, regions: Vec<RegionBits>) -> Change {
    let is_first = map.samples() == 0;
    map.absorb(&Reading::Pages(regions), SECOND, is_first)
}

fn range(start: u64, end: u64, rate: f32) -> RangeRate {
    RangeRate {
        range: VirtRange {
            start: VirtAddr(start),
            end: VirtAddr(end),
        },
        rate,
    }
}

#[test]
fn pages_are_counted_and_forgotten_slowly() {
    let mut map = HeatMap::new();
    let present = pages(0..100);
    for sample in 0..10 {
        let touched = if sample < 4 {
            pages(0..20)
        } else {
            pages(0..10)
        };
        absorb(&mut map, vec![base(5, present, touched)]);
    }
    let heats: Vec<_> = map.ranges().collect();
    assert_eq!(heats.len(), 100);
    assert_eq!(heats[0].count, 10);
    assert!((heats[0].rate - 1.0).abs() < 1e-6);
    assert_eq!(heats[15].count, 4);
    assert!(heats[15].rate.abs() < 1e-6, "not in the last six");
    assert_eq!(heats[50].count, 0);
    assert_eq!(heats[50].range.start, VirtAddr((5 << 21) + 50 * 4096));
    assert_eq!(heats[50].pages, PageSize::Base);
    let heat = map.heat();
    let of = heat.of(region(5)).unwrap();
    assert_eq!(of.active, Some(PageCount(10)));
    assert!((of.rate - 10.0).abs() < 1e-4);
    assert_eq!(of.idle, Duration::ZERO);
    assert_eq!((map.samples(), map.watched()), (10, 10 * SECOND));
}

#[test]
fn what_came_while_accesses_were_noted_does_not_count() {
    let whole = || Reading::Pages(vec![base(1, PageSet::FULL, PageSet::FULL)]);
    let active = |map: &HeatMap| map.heat().of(region(1)).unwrap().active;
    let mut map = HeatMap::new();
    assert_eq!(map.absorb(&whole(), SECOND, false).entries, 0);
    assert_eq!(active(&map), Some(PageCount(0)));
    assert_eq!(map.absorb(&whole(), SECOND, false).entries, 512);
    let mut map = HeatMap::new();
    assert_eq!(map.absorb(&whole(), SECOND, true).entries, 512);
    assert_eq!(active(&map), Some(PageCount(512)));
}

#[test]
fn a_long_sample_does_not_hide_how_often_pages_are_touched() {
    let mut map = HeatMap::new();
    let mut take = |touched, interval| {
        let reading = Reading::Pages(vec![base(1, PageSet::FULL, touched)]);
        map.absorb(&reading, interval, true);
        map.heat().of(region(1)).unwrap().per_second
    };
    assert!((take(PageSet::FULL, SECOND / 20) - 10_240.0).abs() < 1.0);
    assert!((take(PageSet::FULL, 10 * SECOND) - 10_240.0).abs() < 1.0);
    assert!((take(pages(0..256), SECOND / 4) - 5_632.0).abs() < 1.0);
    for _ in 0..20 {
        take(pages(0..256), SECOND / 4);
    }
    assert!((take(pages(0..256), SECOND / 4) - 1_024.0).abs() < 1.0);
}

#[test]
fn few_pages_of_each_region_differ_by_chance() {
    // A fixed walk chooses the regions that are touched: 200 of 400 in each sample.
    let scattered = |map: &mut HeatMap, salt: usize| {
        let touched = |number: usize| (number * 7919 + salt * 104_729) % 400 < 200;
        let one = |number: usize| match touched(number) {
            true => base(number as u64, PageSet::FULL, pages(salt..salt + 1)),
            false => base(number as u64, PageSet::FULL, PageSet::EMPTY),
        };
        absorb(map, (0..400).map(one).collect())
    };
    let mut map = HeatMap::new();
    let first = scattered(&mut map, 1);
    assert!(first.moved > first.by_chance, "they are new: {first:?}");
    for salt in 2..6 {
        let next = scattered(&mut map, salt);
        assert!(next.moved > 0.2, "{next:?}");
        assert!(next.moved <= next.by_chance, "{next:?}");
    }
    // The same number of pages, but all of one region, and then of another.
    let dense = |map: &mut HeatMap, hot: u64| {
        let one = |number: u64| match number == hot {
            true => base(number, PageSet::FULL, pages(0..200)),
            false => base(number, PageSet::FULL, PageSet::EMPTY),
        };
        absorb(map, (0..400).map(one).collect())
    };
    dense(&mut map, 7);
    let moved = dense(&mut map, 8);
    assert!(moved.moved > 0.9 && moved.by_chance < 0.1, "{moved:?}");
    let still = dense(&mut map, 8);
    assert!(still.moved < 0.1, "{still:?}");
}

#[test]
fn a_sample_without_a_flush_does_not_show_that_a_huge_page_is_idle() {
    let mut map = HeatMap::new();
    let bits = || vec![huge(1, false), base(2, pages(0..100), PageSet::EMPTY)];
    absorb(&mut map, bits());
    absorb(&mut map, bits());
    let idle = map.heat().of(region(1)).unwrap().idle;
    for _ in 0..10 {
        absorb(&mut map, bits());
        map.note_unflushed();
    }
    let heat = map.heat();
    assert_eq!(heat.of(region(1)).unwrap().idle, idle);
    assert_eq!(heat.of(region(2)).unwrap().idle, idle + 10 * SECOND);
    absorb(&mut map, bits());
    assert_eq!(map.heat().of(region(1)).unwrap().idle, idle + SECOND);
}

#[test]
fn idle_time_is_that_since_the_last_touch() {
    let mut map = HeatMap::new();
    absorb(&mut map, vec![huge(1, true)]);
    absorb(&mut map, vec![huge(1, false), huge(2, false)]);
    absorb(&mut map, vec![huge(1, false), huge(2, false)]);
    let heat = map.heat();
    assert_eq!(heat.of(region(1)).unwrap().idle, 2 * SECOND);
    // It appeared in the second sample and was never touched.
    assert_eq!(heat.of(region(2)).unwrap().idle, 2 * SECOND);
    assert_eq!(heat.of(region(1)).unwrap().active, None);
    let rate = heat.of(region(1)).unwrap().rate;
    assert!(rate > 0.2 && rate < 0.3, "{rate}");
}

#[test]
fn a_split_huge_page_does_not_look_active_all_over() {
    let mut map = HeatMap::new();
    for _ in 0..6 {
        absorb(&mut map, vec![huge(1, true)]);
    }
    assert_eq!(map.ranges().count(), 1);
    absorb(&mut map, vec![base(1, PageSet::FULL, pages(0..3))]);
    let heat = map.heat();
    assert_eq!(heat.of(region(1)).unwrap().active, Some(PageCount(3)));
    assert!((heat.of(region(1)).unwrap().rate - 3.0).abs() < 1e-4);
    // Promoted again: the history of the region as a whole has continued.
    let change = absorb(&mut map, vec![huge(1, true)]);
    assert_eq!(change.touched, PageCount(512));
    assert_eq!(change.entries, 1);
    let all: Vec<_> = map.ranges().collect();
    assert_eq!((all[0].count, all[0].pages), (8, PageSize::Huge));
    assert!((all[0].rate - 1.0).abs() < 1e-6);
}

#[test]
fn promotion_is_no_movement() {
    let mut map = HeatMap::new();
    let quarter = || pages(0..128);
    let regions = |first: RegionBits| {
        let others = (2..6).map(|n| base(n, PageSet::FULL, quarter()));
        std::iter::once(first).chain(others).collect()
    };
    absorb(&mut map, regions(base(1, PageSet::FULL, quarter())));
    let change = absorb(&mut map, regions(huge(1, true)));
    assert!(change.moved < 1e-6, "{change:?}");
    assert!(!change.grew);
}

#[test]
fn absent_pages_and_regions_are_forgotten() {
    let mut map = HeatMap::new();
    let all = pages(0..10);
    absorb(&mut map, vec![base(1, all, all), base(2, all, all)]);
    absorb(&mut map, vec![base(1, pages(5..10), PageSet::EMPTY)]);
    assert_eq!(map.ranges().count(), 5);
    assert!(map.heat().of(region(2)).is_none());
    let change = absorb(
        &mut map,
        vec![base(1, all, PageSet::EMPTY), base(2, all, PageSet::EMPTY)],
    );
    assert!(change.grew);
    let counts: Vec<_> = map.ranges().map(|heat| heat.count).collect();
    assert_eq!(counts[..10], [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
    assert_eq!(counts[10..], [0; 10]);
}

#[test]
fn movement_is_the_share_of_accesses_that_went_elsewhere() {
    let mut map = HeatMap::new();
    let full = PageSet::FULL;
    let sample = |a: usize, b: usize| {
        vec![
            base(1, full, pages(0..a)),
            base(2, full, pages((0..b).map(|page| 511 - page))),
        ]
    };
    let change = absorb(&mut map, sample(100, 100));
    assert!(
        (change.moved - 1.0).abs() < 1e-6 && change.grew,
        "the first"
    );
    // Other pages of the same regions: nothing moved.
    let others = vec![base(1, full, pages(300..400)), base(2, full, pages(0..100))];
    let change = absorb(&mut map, others);
    assert!(change.moved < 1e-6 && !change.grew);
    // A quarter of all accesses moved from the one to the other.
    let change = absorb(&mut map, sample(50, 150));
    assert!((change.moved - 0.25).abs() < 1e-6, "{change:?}");
    assert_eq!((change.touched, change.entries), (PageCount(200), 200));
    // A tenth of the pages in the same time is movement; ten times as many in ten times the time are not.
    let change = absorb(&mut map, sample(5, 15));
    assert!(change.moved > 0.7, "{change:?}");
    let change = map.absorb(&Reading::Pages(sample(50, 150)), 10 * SECOND, false);
    assert!(change.moved < 1e-6, "{change:?}");
    assert!((absorb(&mut map, sample(0, 0)).moved - 1.0).abs() < 1e-6);
    assert!(absorb(&mut map, sample(0, 0)).moved < 1e-6);
    assert!((absorb(&mut map, vec![]).moved) < 1e-6);
}

#[test]
fn counts_are_halved_together() {
    let mut map = HeatMap::new();
    for sample in 0..1200 {
        let touched = if sample % 2 == 0 {
            pages(0..2)
        } else {
            pages(0..1)
        };
        absorb(
            &mut map,
            vec![base(1, pages(0..3), touched), huge(2, sample % 2 == 0)],
        );
        let counts: Vec<_> = map.ranges().map(|heat| heat.count).collect();
        // Every one, every second one, none, every second one.
        let weight = map.weight();
        assert!(weight <= 511);
        assert_eq!(counts[0], weight);
        assert!(
            counts[1].abs_diff(weight.div_ceil(2)) <= 1,
            "{counts:?} of {weight}"
        );
        assert_eq!(counts[2], 0);
        assert_eq!(counts[3], counts[1]);
    }
    assert_eq!(map.samples(), 1200);
}

#[test]
fn the_curve_follows_the_counts() {
    let mut map = HeatMap::new();
    assert_eq!(map.hot_set(), HotSet::default());
    for sample in 0..9 {
        let few = if sample == 0 {
            pages(0..100)
        } else {
            pages(0..10)
        };
        absorb(&mut map, vec![base(1, PageSet::FULL, few), huge(2, false)]);
    }
    // 10 pages with 9 accesses each, 90 with one each.
    let set = map.hot_set();
    assert_eq!(set.bytes_for(0.5), Some(PageCount(10).bytes()));
    assert_eq!(set.bytes_for(1.0), Some(PageCount(100).bytes()));
    absorb(&mut map, vec![huge(2, true)]);
    assert_eq!(map.hot_set().bytes_for(1.0), Some(PageCount(512).bytes()));
}

#[test]
fn damon_splits_and_joins_ranges() {
    let mut map = HeatMap::new();
    let mib = |n: u64| n << 20;
    let take = |map: &mut HeatMap, ranges| map.absorb(&Reading::Ranges(ranges), SECOND, false);
    let change = take(&mut map, vec![range(mib(0), mib(8), 0.5)]);
    assert!(change.grew && (change.moved - 1.0).abs() < 1e-6);
    assert_eq!((change.touched, change.entries), (PageCount(1024), 1));
    let change = take(
        &mut map,
        vec![range(mib(0), mib(4), 1.0), range(mib(4), mib(8), 0.0)],
    );
    assert!(!change.grew);
    assert!((change.moved - 0.5).abs() < 1e-6, "{change:?}");
    let heats: Vec<_> = map.ranges().collect();
    assert!(heats[0].rate > 0.6 && heats[1].rate < 0.4 && heats[1].rate > 0.3);
    assert_eq!((heats[0].count, heats[0].pages), (2, PageSize::Range));
    let heat = map.heat();
    assert_eq!(heat.regions.len(), 4);
    assert!(heat.regions.iter().all(|region| region.active.is_none()));
    assert_eq!(heat.regions[0].idle, Duration::ZERO);
    assert_eq!(heat.regions[3].idle, SECOND);
    let change = take(&mut map, vec![range(mib(0), mib(9), 0.0)]);
    assert!(change.grew);
    assert_eq!(map.hot_set().points.len(), 1);
    // Another kind of reading: the map starts over.
    absorb(&mut map, vec![huge(1, true)]);
    assert_eq!((map.samples(), map.ranges().count()), (1, 1));
}

#[test]
fn terabytes_of_reserved_addresses_do_no_harm() {
    let mut map = HeatMap::new();
    let hot = range(1 << 50, (1 << 50) + (4 << 20), 1.0);
    map.absorb(
        &Reading::Ranges(vec![range(0, 1 << 45, 0.0), hot]),
        SECOND,
        true,
    );
    assert_eq!(map.heat().regions.len(), 2);
    map.absorb(
        &Reading::Ranges(vec![range(0, u64::MAX, 1.0)]),
        SECOND,
        true,
    );
    assert_eq!(map.heat().regions.len(), 1 << 20);
}

#[test]
fn memory_stays_lean() {
    let mut map = HeatMap::new();
    let full = PageSet::FULL;
    // 64 MiB, all touched; 16 GiB take 256 times as much.
    for _ in 0..20 {
        absorb(&mut map, (0..32).map(|n| base(n, full, full)).collect());
    }
    assert!(map.held().0 * 256 < 9 << 20, "{}", map.held());
    let mut map = HeatMap::new();
    absorb(&mut map, (0..32).map(|n| huge(n, true)).collect());
    assert!(map.held().0 * 256 < 1 << 20, "{}", map.held());
}

/// Reference map, kept in the plain way.
#[derive(Default)]
struct Plain {
    samples: u64,
    /// By page: for each sample since it appeared, true if the sample found it touched.
    pages: BTreeMap<(u64, usize), Vec<bool>>,
}

fn any_set() -> impl Strategy<Value = PageSet> {
    prop_oneof![
        Just(PageSet::EMPTY),
        Just(PageSet::FULL),
        any::<[u64; 8]>().prop_map(PageSet::from_words),
        proptest::collection::vec(0_usize..512, 0..6).prop_map(pages),
    ]
}

fn any_bits() -> impl Strategy<Value = RegionBits> {
    let number = prop_oneof![9 => 0_u64..6, 1 => Just(u64::MAX >> 21)];
    (number, prop::bool::weighted(0.2), any_set(), any_set()).prop_map(
        |(number, huge, present, accessed)| RegionBits {
            region: region(number),
            huge,
            present,
            accessed,
        },
    )
}

fn any_range() -> impl Strategy<Value = RangeRate> {
    let address = || prop_oneof![40 => 0_u64..64 << 20, 1 => any::<u64>()];
    let rate = prop_oneof![
        0.0_f32..1.0,
        any::<f32>(),
        Just(f32::NAN),
        Just(f32::INFINITY),
        Just(-1.0)
    ];
    (address(), address(), rate).prop_map(|(start, end, rate)| range(start, end, rate))
}

#[test]
fn the_fault_that_made_a_page_present_is_no_access() {
    let filled = |pages: usize| {
        let mut set = PageSet::EMPTY;
        (0..pages).for_each(|page| set.insert(page));
        set
    };
    let mut map = HeatMap::new();
    absorb(&mut map, vec![base(1, filled(100), PageSet::EMPTY)]);
    // The region is being filled, and so is one that was not there before.
    absorb(
        &mut map,
        vec![
            base(1, filled(300), filled(300)),
            base(2, PageSet::FULL, PageSet::FULL),
        ],
    );
    let active =
        |map: &HeatMap| -> Vec<_> { map.heat().regions.iter().map(|heat| heat.active).collect() };
    assert_eq!(active(&map), [Some(PageCount(100)), Some(PageCount(0))]);
    absorb(
        &mut map,
        vec![
            base(1, filled(300), PageSet::EMPTY),
            base(2, PageSet::FULL, filled(200)),
        ],
    );
    assert_eq!(active(&map), [Some(PageCount(100)), Some(PageCount(200))]);
}

fn any_reading() -> impl Strategy<Value = Reading> {
    prop_oneof![
        3 => proptest::collection::vec(any_bits(), 0..8).prop_map(Reading::Pages),
        1 => proptest::collection::vec(any_range(), 0..8).prop_map(Reading::Ranges),
    ]
}

/// Checks the invariants of every map.
fn check(map: &HeatMap, change: &Change) -> Result<(), TestCaseError> {
    prop_assert!((0.0..=1.0).contains(&change.moved), "{change:?}");
    let heats: Vec<_> = map.ranges().collect();
    for heat in &heats {
        prop_assert!(!heat.range.is_empty());
        prop_assert!((0.0..=1.0).contains(&heat.rate), "{heat:?}");
        prop_assert!(heat.count <= map.weight(), "{heat:?}");
    }
    prop_assert!(heats.is_sorted_by(|a, b| a.range.end <= b.range.start));
    let heat = map.heat();
    prop_assert!(heat.regions.is_sorted_by(|a, b| a.region < b.region));
    for of in &heat.regions {
        let most = if of.active.is_some() { 512.0 } else { 1.0 };
        prop_assert!((0.0..=most).contains(&of.rate), "{of:?}");
        prop_assert!(of.idle <= map.watched());
        prop_assert!(of.active.is_none_or(|pages| pages.0 <= 512));
    }
    let set = map.hot_set();
    prop_assert!(
        set.points
            .is_sorted_by(|a, b| a.bytes < b.bytes && a.share < b.share)
    );
    if !set.points.is_empty() {
        prop_assert!(set.bytes_for(0.5) <= set.bytes_for(1.0));
    }
    Ok(())
}

proptest! {
    #[test]
    fn hostile_readings_never_harm(
        readings in proptest::collection::vec((any_reading(), any::<Duration>(), any::<bool>()), 1..12)
    ) {
        let mut map = HeatMap::new();
        for (reading, interval, steady) in &readings {
            let change = map.absorb(reading, *interval, *steady);
            check(&map, &change)?;
        }
    }

    #[test]
    fn it_agrees_with_plain_counting(
        samples in proptest::collection::vec(
            proptest::collection::btree_map(0_u64..4, (any_set(), any_set()), 0..4), 1..14)
    ) {
        let mut map = HeatMap::new();
        let mut plain = Plain::default();
        for sample in &samples {
            let regions = sample.iter().map(|(&n, &(present, accessed))| base(n, present, accessed));
            absorb(&mut map, regions.collect());
            plain.samples += 1;
            plain.pages.retain(|(number, page), _| {
                sample.get(number).is_some_and(|(present, _)| present.contains(*page))
            });
            for (&number, (present, accessed)) in sample {
                for page in present.iter() {
                    let is_new = plain.samples > 1 && !plain.pages.contains_key(&(number, page));
                    let history = plain.pages.entry((number, page)).or_default();
                    history.push(accessed.contains(page) && !is_new);
                }
            }
        }
        prop_assert_eq!(map.samples(), plain.samples);
        let found: Vec<_> = map.ranges().map(|heat| (heat.range.start.0, heat.count)).collect();
        let expected: Vec<_> = plain.pages.iter().map(|(&(number, page), history)| {
            let count = history.iter().filter(|&&touched| touched).count() as u32;
            ((number << 21) + page as u64 * 4096, count)
        }).collect();
        prop_assert_eq!(found, expected);
        for of in &map.heat().regions {
            let number = of.region.start().0 >> 21;
            let recent = |(&(of, _), history): (&(u64, usize), &Vec<bool>)| {
                of == number && history.iter().rev().take(6).any(|&touched| touched)
            };
            let active = plain.pages.iter().filter(|&page| recent(page)).count();
            prop_assert_eq!(of.active, Some(PageCount(active as u64)));
        }
    }
}

use proptest::prelude::*;

use super::*;

fn costs() -> WalkCosts {
    let costs: Vec<WalkCost> = (0..8)
        .map(|step| WalkCost {
            footprint: ByteCount(16 << 20 << step),
            apart_ns: 2.0 * f64::from(step + 1),
            chained_ns: 20.0 * f64::from(step + 1),
            in_order_ns: 30.0,
            apart_gain: 0.04 * f64::from(step + 1),
            chained_gain: 0.05 * f64::from(step + 1),
            in_order_gain: 0.2,
        })
        .collect();
    WalkCosts {
        together: costs.clone(),
        scattered: costs,
    }
}

/// A program that touches each of its pages `rate` times a second.
fn uniform(pages: f64, rate: f64, possible: f64) -> AccessObservations {
    let windows = (0..80)
        .map(|step| {
            let seconds = 30e-6 * 1.1_f64.powi(step);
            Window {
                seconds,
                pages: 190.0,
                touched: 190.0 * -(-rate * seconds).exp_m1(),
                pairs: 0.0,
                both: 0.0,
            }
        })
        .collect();
    AccessObservations {
        windows,
        counted_misses: None,
        pages,
        possible,
        together: 0.5,
    }
}

/// The gain alone, without its interval.
fn likely(seen: &AccessObservations, costs: &WalkCosts) -> f64 {
    let found = redrawn_estimate(seen, 3072.0, costs, 0);
    found.unwrap().gain.likely
}

#[test]
fn misses_of_pages_side_by_side_cost_what_those_do() {
    let mut costs = costs();
    for cost in &mut costs.together {
        (cost.apart_ns, cost.chained_ns, cost.in_order_ns) = (0.0, 0.0, 0.0);
    }
    let gain = |together| {
        let seen = AccessObservations {
            together,
            ..uniform(65_536.0, 1e6 / 65_536.0, 1.0)
        };
        likely(&seen, &costs)
    };
    assert!(gain(1.0).abs() < 1e-9);
    assert!((gain(0.5) - gain(0.0) / 2.0).abs() < 1e-3);
}

#[test]
fn a_gain_is_misses_times_their_cost() {
    // 65,536 pages are 256 MiB, where a miss costs 10 to 100 ns; 10^6 touches a second of which 95 % miss.
    let estimate = estimate(&uniform(65_536.0, 1e6 / 65_536.0, 1.0), 3072.0, &costs()).unwrap();
    assert!(
        (0.8e6..1.2e6).contains(&estimate.misses_per_second.likely),
        "{estimate:?}"
    );
    assert!(
        (estimate.miss_seconds.apart * 1e9 - 10.0).abs() < 2.0,
        "{estimate:?}"
    );
    let Interval { low, likely, high } = estimate.gain;
    assert!(
        low > 0.0 && low < likely && likely < high && high < 0.25,
        "{estimate:?}"
    );
}

#[test]
fn counted_misses_take_the_place_of_modelled_ones() {
    let seen = uniform(65_536.0, 1e6 / 65_536.0, 1.0);
    let counted = AccessObservations {
        counted_misses: Some(2e5),
        ..seen.clone()
    };
    let (one, other) = (
        estimate(&seen, 3072.0, &costs()).unwrap(),
        estimate(&counted, 3072.0, &costs()).unwrap(),
    );
    assert!(!one.misses_counted && other.misses_counted);
    assert!((other.misses_per_second.likely - 2e5).abs() < 1.0);
    // So few misses that a chain of loads would wait for each.
    let waited = 2e5 * other.miss_seconds.chained * AMONG_WORK;
    assert!((other.gain.likely - waited).abs() < 1e-6, "{other:?}");
    assert!(other.gain.likely < one.gain.likely / 3.0);
}

#[test]
fn loads_that_come_faster_than_any_chain_gain_less() {
    let gain = |misses| {
        let counted = AccessObservations {
            counted_misses: Some(misses),
            ..uniform(65_536.0, 1e6 / 65_536.0, 1.0)
        };
        likely(&counted, &costs())
    };
    let chain = gain(2e6);
    assert!(gain(1e6) < chain);
    assert!(gain(1e7) < chain);
    assert!(gain(1e9) > 0.0);
}

#[test]
fn nothing_is_gained_where_nothing_can_be_huge_or_all_fits() {
    let estimate_of = |seen: &AccessObservations| estimate(seen, 3072.0, &costs()).unwrap().gain;
    let none = Interval {
        low: 0.0,
        likely: 0.0,
        high: 0.0,
    };
    assert_eq!(estimate_of(&uniform(65_536.0, 100.0, 0.0)), none);
    assert_eq!(estimate_of(&uniform(2000.0, 1e4, 1.0)), none);
    let unknown = WalkCosts {
        together: Vec::new(),
        scattered: Vec::new(),
    };
    assert_eq!(
        estimate(&uniform(65_536.0, 100.0, 1.0), 3072.0, &unknown),
        None
    );
    let unseen = AccessObservations {
        windows: Vec::new(),
        counted_misses: None,
        pages: 1e5,
        possible: 1.0,
        together: 0.0,
    };
    assert_eq!(estimate(&unseen, 3072.0, &costs()), None);
}

#[test]
fn a_quantile_is_one_of_the_figures() {
    assert_eq!(quantile(&[], 0.5), None);
    assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.5), Some(2.0));
    assert_eq!(quantile(&[1.0, 2.0, 3.0], 1.0), Some(3.0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn a_gain_is_a_share_and_lies_in_its_interval(
        pages in 1.0..1e7_f64, rate in 0.0..1e5_f64, possible in 0.0..=1.0_f64, entries in 1.0..1e4_f64,
    ) {
        let found = estimate(&uniform(pages, rate, possible), entries, &costs()).unwrap();
        let Interval { low, likely, high } = found.gain;
        prop_assert!((0.0..=MAX_WALK_SHARE).contains(&low) && low <= likely && likely <= high && high <= MAX_WALK_SHARE);
    }

    /// Holds as long as the program's loads may wait for each other; loads of a program that touches more can only overlap.
    #[test]
    fn a_larger_program_of_the_same_kind_gains_no_less(pages in 1.0..1e6_f64, touches in 1e2..1e6_f64, more in 1.0..8.0_f64) {
        let rate = touches / (pages * more);
        let gain = |pages| likely(&uniform(pages, rate, 1.0), &costs());
        prop_assert!(gain(pages * more) >= gain(pages) * 0.999);
    }
}

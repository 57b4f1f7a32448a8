use proptest::prelude::*;

use super::*;

/// Windows that a program with these rates would show, without chance.
fn windows_of(rates: &Rates, lengths: impl Iterator<Item = f64>) -> Vec<Window> {
    lengths
        .map(|seconds| Window {
            seconds,
            pages: 1000.0,
            touched: 1000.0 * rates.touched_within(seconds),
            pairs: 0.0,
            both: 0.0,
        })
        .collect()
}

fn lengths() -> impl Iterator<Item = f64> {
    (0..60).map(|step| 20e-6 * 1.18_f64.powi(step))
}

#[test]
fn random_loads_over_all_pages_miss_as_often_as_they_find_no_entry() {
    // 10 million loads a second over 100,000 pages; a TLB of 3,000 entries holds 3 % of them.
    let rates = Rates::of(&[(100.0, 1.0)]);
    let misses = rates.misses(1e5, 3000.0);
    assert!(
        (misses.per_second / (1e7 * 0.97) - 1.0).abs() < 1e-3,
        "{misses:?}"
    );
    assert!((misses.pages / 1e5 - 1.0).abs() < 1e-6);
}

#[test]
fn what_is_hot_and_fits_does_not_miss() {
    // 1,000 hot pages and 100,000 with a hundredth of the touches.
    let rates = Rates::of(&[(1e5, 1e3), (10.0, 1e5)]);
    let misses = rates.misses(1.01e5, 3000.0);
    // Nearly all of 10^6 touches of cold pages miss, and nearly none of 10^8 touches of hot ones.
    assert!((0.9e6..1.2e6).contains(&misses.per_second), "{misses:?}");
    assert!(misses.pages > 0.8e5, "{misses:?}");
    let fits = Rates::of(&[(1e5, 1e3), (0.0, 1e5)]).misses(1.01e5, 3000.0);
    assert_eq!((fits.per_second, fits.memory_seconds), (0.0, None));
}

#[test]
fn the_fit_finds_what_made_the_windows() {
    for parts in [
        vec![(50.0, 1.0)],
        vec![(1e4, 0.1), (20.0, 0.9)],
        vec![(300.0, 0.5), (0.0, 0.5)],
    ] {
        let true_rates = Rates::of(&parts);
        let fitted = Rates::fit(&windows_of(&true_rates, lengths())).unwrap();
        // What a TLB forgets within less than the shortest window cannot be known.
        for pages in [5e3, 1e5] {
            let touches = pages * true_rates.fresh_touches(0.0);
            let (found, truth) = (
                fitted.misses(pages, 3000.0).per_second,
                true_rates.misses(pages, 3000.0).per_second,
            );
            assert!(
                (found - truth).abs() <= truth * 0.15 + touches * 1e-3,
                "{parts:?} {pages}: {found} for {truth}"
            );
        }
    }
}

#[test]
fn without_windows_nothing_is_known() {
    assert_eq!(Rates::fit(&[]), None);
    let empty = Window {
        seconds: 0.0,
        pages: 10.0,
        touched: 0.0,
        pairs: 0.0,
        both: 0.0,
    };
    assert_eq!(
        Rates::fit(&[
            empty,
            Window {
                seconds: 1.0,
                pages: 0.0,
                touched: 0.0,
                pairs: 0.0,
                both: 0.0,
            }
        ]),
        None
    );
    let untouched = Rates::fit(&[Window {
        seconds: 1e-3,
        pages: 100.0,
        touched: 0.0,
        pairs: 0.0,
        both: 0.0,
    }])
    .unwrap();
    assert!(untouched.touched_within(1e-3) < 0.01);
}

prop_compose! {
    fn any_rates()(parts in prop::collection::vec((0.0..1e6_f64, 0.001..1.0_f64), 1..6)) -> Rates {
        Rates::of(&parts)
    }
}

/// A window in which `touched` of 1,000 pages were touched, and both pages of `both` of 950 pairs of neighbours.
fn touched_pairs(seconds: f64, touched: f64, both: f64) -> Window {
    Window {
        seconds,
        pages: 1000.0,
        touched,
        pairs: 950.0,
        both,
    }
}

#[test]
fn touches_are_in_order_where_the_neighbour_of_a_touched_page_is_touched() {
    let many = |window: Window| vec![window; 100];
    let near = |found: f64, wanted: f64| (found - wanted).abs() < 0.05;
    // 1 % touched: by chance 0.1 of 950 pairs, in a scan nearly 9.5.
    assert!(near(
        in_order(&many(touched_pairs(1e-4, 10.0, 0.095)), 1e-2),
        0.0
    ));
    assert!(near(
        in_order(&many(touched_pairs(1e-4, 10.0, 9.4)), 1e-2),
        1.0
    ));
    assert!(near(
        in_order(&many(touched_pairs(1e-4, 10.0, 4.8)), 1e-2),
        0.5
    ));
    // In windows longer than the memory of the TLB hot pages are touched with their neighbours in any order.
    assert_eq!(in_order(&many(touched_pairs(2e-2, 10.0, 9.4)), 1e-2), 0.0);
    // A window with too few touches shows no order.
    assert!(in_order(&[touched_pairs(1e-4, 1.0, 0.9)], 1e-2) < 0.1);
    for nothing in [
        vec![],
        many(touched_pairs(1e-4, 0.0, 0.0)),
        many(touched_pairs(1e-4, 1000.0, 950.0)),
    ] {
        assert_eq!(in_order(&nothing, 1e-2), 0.0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn more_pages_of_the_same_kind_miss_more(rates in any_rates(), pages in 1.0..1e7_f64, more in 1.0..10.0_f64) {
        let entries = 3000.0;
        let (few, many) = (rates.misses(pages, entries), rates.misses(pages * more, entries));
        prop_assert!(many.per_second >= few.per_second * (1.0 - 1e-6), "{few:?} {many:?}");
    }

    #[test]
    fn a_larger_tlb_misses_less(rates in any_rates(), pages in 1.0..1e7_f64, more in 1.0..10.0_f64) {
        let (small, large) = (rates.misses(pages, 1000.0), rates.misses(pages, 1000.0 * more));
        prop_assert!(large.per_second <= small.per_second * (1.0 + 1e-6), "{small:?} {large:?}");
    }

    #[test]
    fn misses_are_touches(rates in any_rates(), pages in 1.0..1e7_f64, entries in 1.0..1e5_f64) {
        let misses = rates.misses(pages, entries);
        prop_assert!(misses.per_second >= 0.0 && misses.per_second <= pages * rates.fresh_touches(0.0) * (1.0 + 1e-9));
        prop_assert!(misses.pages >= 0.0 && misses.pages <= pages * (1.0 + 1e-6));
    }

    #[test]
    fn any_windows_give_shares(
        windows in prop::collection::vec((1e-6..1.0_f64, 0.0..200.0_f64, 0.0..=1.0_f64), 0..40)
    ) {
        let windows: Vec<Window> = windows
            .into_iter()
            .map(|(seconds, pages, share)| Window { seconds, pages, touched: pages * share, pairs: 0.0, both: 0.0 })
            .collect();
        if let Some(rates) = Rates::fit(&windows) {
            let shares: f64 = rates.parts.iter().map(|(_, share)| share).sum();
            prop_assert!((shares - 1.0).abs() < 1e-6);
            prop_assert!(rates.touched_within(1.0) >= rates.touched_within(1e-4));
        }
    }
}

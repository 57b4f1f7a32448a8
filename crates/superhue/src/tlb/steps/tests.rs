use proptest::prelude::*;

use super::*;

/// Way in which a modelled TLB makes room.
#[derive(Debug, Clone, Copy)]
enum Eviction {
    /// The oldest entry of a set; the value is the number of ways.
    Oldest(u32),
    /// Any entry.
    Random,
}

/// Share of loads that miss a TLB of `entries` in a chase through `pages`.
fn misses(eviction: Eviction, entries: f64, pages: f64) -> f64 {
    match eviction {
        // Pages side by side fill all sets alike; a set with one page too many misses always.
        Eviction::Oldest(ways) => {
            let sets = entries / f64::from(ways);
            let full = (pages / sets).floor();
            let fuller = pages / sets - full;
            let missing = |in_set: f64| {
                if in_set > f64::from(ways) {
                    in_set
                } else {
                    0.0
                }
            };
            (missing(full + 1.0) * fuller + missing(full) * (1.0 - fuller)) * sets / pages
        }
        // An entry survives the misses of a turn with (1 - 1 / entries) each: m = 1 - exp(-m * pages / entries).
        Eviction::Random => {
            let (mut low, mut high) = (0.0, 1.0);
            for _ in 0..40 {
                let share = f64::midpoint(low, high);
                if 1.0 - (-share * pages / entries).exp() > share {
                    low = share;
                } else {
                    high = share;
                }
            }
            low
        }
    }
}

/// A modelled processor: entries, time in units of a load that hits.
#[derive(Debug, Clone, Copy)]
struct Model {
    eviction: Eviction,
    first: f64,
    last: f64,
    second_hit: f64,
    walk: f64,
    /// Growth of a walk while the pages double behind the last TLB.
    growth: f64,
}

const HIT: f64 = 2.0;

impl Model {
    fn ns(&self, pages: f64) -> f64 {
        let of = |entries| misses(self.eviction, entries, pages);
        let walk = self.walk * (1.0 + self.growth * (pages / self.last).max(1.0).log2());
        HIT * (of(self.first) * self.second_hit + of(self.last) * (walk - self.second_hit).max(0.0))
    }

    /// Returns the processor's curve with `noise(place)` nanoseconds added.
    fn curve(&self, noise: impl Fn(usize) -> f64) -> Vec<Point> {
        sizes()
            .enumerate()
            .map(|(place, pages)| Point {
                pages,
                ns: self.ns(f64::from(pages)) + noise(place),
            })
            .collect()
    }

    fn found(&self, noise: impl Fn(usize) -> f64) -> Levels {
        Levels::of(&self.curve(noise), HIT)
    }
}

fn sizes() -> impl Iterator<Item = u32> {
    let sizes = (0..77).map(|step| 16.0 * (f64::from(step) / 8.0).exp2());
    sizes.map(|size| size.round() as u32)
}

fn is_near(found: Option<f64>, wanted: f64) -> bool {
    found.is_some_and(|found| (found / wanted).ln().abs() <= 1.25_f64.ln())
}

prop_compose! {
    fn any_model()(
        ways in prop::option::of(prop::sample::select(vec![4_u32, 6, 8, 12, 16])),
        first in 20.0..170.0_f64, last in 640.0..4_200.0_f64,
        second_hit in 0.8..2.5_f64, walk in 3.0..40.0_f64, growth in 0.0..0.1_f64,
    ) -> Model {
        Model {
            eviction: ways.map_or(Eviction::Random, Eviction::Oldest),
            first, last, second_hit, walk: second_hit + walk, growth,
        }
    }
}

/// Noise of both signs, as that of a difference: `size` nanoseconds at most.
fn noise(seeds: &[f64], size: f64) -> impl Fn(usize) -> f64 {
    move |place| seeds.get(place % seeds.len()).map_or(0.0, |one| one * size)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn both_levels_are_found_where_noise_is_small(
        model in any_model(), seeds in prop::collection::vec(-1.0..1.0_f64, 77),
    ) {
        let found = model.found(noise(&seeds, HIT * 0.05));
        prop_assert!(is_near(found.first, model.first), "{found:?}");
        prop_assert!(is_near(found.last, model.last), "{found:?}");
    }

    /// A few times are wrong by any amount.
    #[test]
    fn single_points_move_no_level(
        model in any_model(), places in prop::collection::vec(0..25_usize, 3), wrong in 0.0..200.0_f64,
    ) {
        let spoiled: Vec<usize> = places.iter().enumerate().map(|(one, place)| one * 25 + place).collect();
        prop_assume!(spoiled.windows(2).all(|two| two[1] > two[0] + 2));
        let found = model.found(|place| if spoiled.contains(&place) { wrong } else { 0.0 });
        prop_assert!(is_near(found.first, model.first), "{found:?}");
        prop_assert!(is_near(found.last, model.last), "{found:?}");
    }

    /// However large the noise is, a level that two more measurements confirm is right.
    #[test]
    fn a_confirmed_level_is_right(
        model in any_model(), size in prop_oneof![0.0..0.3_f64, 0.3..3.0_f64], seeds in prop::collection::vec(-1.0..1.0_f64, 3 * 77),
    ) {
        let of = |part: usize| model.found(noise(&seeds[part * 77..(part + 1) * 77], size * HIT));
        let found = of(0).confirmed([of(1), of(2)], 0.25);
        prop_assert!(found.first.is_none() || is_near(found.first, model.first), "{found:?}");
        prop_assert!(found.last.is_none() || is_near(found.last, model.last), "{found:?}");
    }

    #[test]
    fn a_curve_without_steps_shows_none(
        slope in 0.0..0.15_f64, seeds in prop::collection::vec(-1.0..1.0_f64, 77),
    ) {
        let points = sizes().enumerate().map(|(place, pages)| Point {
            pages,
            ns: HIT * (slope * (f64::from(pages) / 16.0).log2() + 0.1 * seeds[place]),
        });
        prop_assert_eq!(steps(&points.collect::<Vec<_>>(), HIT), vec![]);
    }

    #[test]
    fn any_curve_is_survived(
        points in prop::collection::vec((any::<u32>(), any::<f64>()), 0..90), hit in any::<f64>(),
    ) {
        let mut points: Vec<Point> = points.into_iter().map(|(pages, ns)| Point { pages, ns }).collect();
        points.sort_by_key(|point| point.pages);
        let found = steps(&points, hit);
        prop_assert!(found.iter().all(|step| step.entries.is_finite()));
        prop_assert!(found.windows(2).all(|two| two[0].to <= two[1].from));
        let _ = level(&points, 10.0, 100.0);
    }
}

#[test]
fn levels_are_told_apart_by_their_size() {
    let model = Model {
        eviction: Eviction::Oldest(4),
        first: 64.0,
        last: 1536.0,
        second_hit: 1.4,
        walk: 6.0,
        growth: 0.05,
    };
    let quiet = |model: Model| model.found(|_| 0.0);
    let both = quiet(model);
    assert!(
        is_near(both.first, 64.0) && is_near(both.last, 1536.0),
        "{both:?}"
    );
    let beyond = quiet(Model { last: 1e6, ..model });
    assert!(is_near(beyond.first, 64.0), "{beyond:?}");
    assert_eq!(beyond.last, None, "the last level reaches beyond the curve");
    let below = quiet(Model {
        first: 1.0,
        ..model
    });
    assert_eq!(below.first, None);
    assert!(is_near(below.last, 1536.0), "{below:?}");
}

#[test]
fn a_level_counts_only_if_others_have_found_it() {
    let levels = |first, last| Levels { first, last };
    let found = levels(Some(64.0), Some(1536.0));
    let near = levels(Some(70.0), Some(1300.0));
    assert_eq!(found.confirmed([found, near], 0.25), found);
    let far = levels(Some(64.0), Some(2500.0));
    assert_eq!(found.confirmed([far, near], 0.25), levels(Some(64.0), None));
    let none = Levels::default();
    assert_eq!(found.confirmed([found, none], 0.25), none);
    assert_eq!(none.confirmed([found, found], 0.25), none);
    // The one that noise has moved does not count.
    let moved = levels(Some(78.0), Some(1536.0));
    assert_eq!(moved.confirmed([found, near], 0.25).first, Some(70.0));
}

#[test]
fn a_level_is_the_median_between_two_numbers_of_pages() {
    let curve: Vec<Point> = (1..=8_u32)
        .map(|step| Point {
            pages: 16 << step,
            ns: f64::from(step),
        })
        .collect();
    assert_eq!(level(&curve, 64.0, 256.0), Some(3.0));
    assert_eq!(
        level(&curve, 130.0, 135.0),
        Some(3.0),
        "none between: the nearest"
    );
    assert_eq!(level(&[], 1.0, 2.0), None);
}

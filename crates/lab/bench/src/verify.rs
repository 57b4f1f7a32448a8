//! Proof of the colors: latency against the number of pages, by the colors of the pages.
//!
//! Pages of one color fit as long as their number is at most the number of ways, however much room the rest of the
//! cache has. So the latency of one color must leave that of the cache at ways + 1 pages, that of a quarter of the
//! colors at a quarter of the cache, and so on. The verdict is about the first, against as many pages of all colors;
//! the plot shows the others beside it.

use std::time::Instant;

use superhue_color::Page;
use superhue_color::oracles::{Curve, CurvePoint, Probe};
use superhue_model::Color;
use superhue_plot::{Arm, Cliff, Latency, Point};

/// Lower limit of loads timed for each point, and of passes over its pages.
const LOADS: u64 = 20_000;
const PASSES: u64 = 2;
const LINES: u64 = superhue_color::oracles::LINES_OF_PAGE as u64;

/// Times that a disturbed measurement is repeated.
const RETRIES: usize = 20;

/// Sizes of working sets, in percent of the part of the cache that belongs to their colors.
const PERCENT: [u64; 14] = [12, 25, 37, 50, 62, 75, 87, 94, 100, 106, 112, 125, 150, 200];

/// Subject of the verification.
#[derive(Debug)]
pub struct Subject<'a> {
    /// The cache's name, as `L2`.
    pub cache: String,
    /// Name of the oracle that determined the colors.
    pub oracle: &'static str,
    /// The processor's model, if known.
    pub processor: Option<String>,
    /// Ways of the cache.
    pub ways: usize,
    /// Pages of the pool.
    pub pages: &'a [Page],
    /// Color of each page of the pool, as far as it is known.
    pub colors: &'a [Option<Color>],
    /// Pages that were not chosen by color.
    pub plain: &'a [Page],
    /// Number of colors.
    pub number_of_colors: usize,
    /// Repetitions of each point, each with pages of its own.
    pub repetitions: usize,
}

/// One placement: the pages of each of its colors, or those of the kernel.
struct PlacedPages {
    name: &'static str,
    colors: Option<usize>,
    /// Pages of each color; `take` takes one of the first color, one of the second, and so on.
    members: Vec<Vec<Page>>,
}

impl PlacedPages {
    /// Takes `count` pages, as evenly distributed over its colors as possible, different ones for each `repetition`.
    /// `None` if it has too few.
    fn take(&self, count: usize, repetition: usize) -> Option<Vec<Page>> {
        let colors = self.members.len();
        let rows = count.div_ceil(colors.max(1));
        let taken = (0..count).map(|index| {
            let (color, row) = (index % colors, index / colors);
            let members = self.members.get(color)?;
            (members.len() >= rows)
                .then(|| {
                    members
                        .get((repetition * rows + row) % members.len())
                        .copied()
                })
                .flatten()
        });
        taken.collect()
    }
}

/// Measures everything. Calls `progress` with the share that is done, 0 to 1.
///
/// # Errors
/// Too few pages of some color, a clock that cannot be read, or no undisturbed measurement: the text names the cause.
/// An unexpected position of the cliff is no error: it is in the result.
pub fn verify<P: Probe>(
    probe: &mut P,
    subject: &Subject<'_>,
    progress: &dyn Fn(f64),
) -> Result<Latency, String> {
    let placements = placements(subject)?;
    let sizes: Vec<Vec<usize>> = placements.iter().map(|arm| sizes(subject, arm)).collect();
    let all = sizes.iter().map(Vec::len).sum::<usize>() * subject.repetitions;
    let empty = |arm: &PlacedPages, sizes: &Vec<usize>| Arm {
        name: arm.name.to_owned(),
        colors: arm.colors.map(|colors| colors as u64),
        points: (sizes.iter())
            .map(|&pages| Point {
                pages: pages as u64,
                ticks: Vec::new(),
            })
            .collect(),
    };
    let mut arms: Vec<Arm> = placements
        .iter()
        .zip(&sizes)
        .map(|(a, s)| empty(a, s))
        .collect();
    let mut done = 0;
    // Rounds over everything, so that other activity of the machine affects all points alike.
    for repetition in 0..subject.repetitions {
        for ((placement, arm), sizes) in placements.iter().zip(&mut arms).zip(&sizes) {
            for (point, &size) in arm.points.iter_mut().zip(sizes) {
                if let Some(pages) = placement.take(size, repetition) {
                    point.ticks.push(time(probe, &pages)?);
                }
                done += 1;
                progress(fraction(done, all));
            }
        }
    }
    for arm in &mut arms {
        arm.points.retain(|point| !point.ticks.is_empty());
    }
    let nanoseconds_per_tick = length_of_tick(probe, subject)?;
    let cliff = cliff(&arms, subject.ways)?;
    Ok(Latency {
        cache: subject.cache.clone(),
        ways: subject.ways as u64,
        colors: subject.number_of_colors as u64,
        oracle: subject.oracle.to_owned(),
        processor: subject.processor.clone(),
        nanoseconds_per_tick,
        arms,
        cliff,
    })
}

#[allow(clippy::cast_precision_loss, reason = "for a progress bar")]
fn fraction(done: usize, all: usize) -> f64 {
    done as f64 / all.max(1) as f64
}

fn placements(subject: &Subject<'_>) -> Result<Vec<PlacedPages>, String> {
    let mut members = vec![Vec::new(); subject.number_of_colors];
    for (&page, color) in subject.pages.iter().zip(subject.colors) {
        if let Some(color) = color
            && let Some(members) = members.get_mut(usize::from(color.0))
        {
            members.push(page);
        }
    }
    let fewest = members.iter().map(Vec::len).min().unwrap_or(0);
    if fewest < 2 * subject.ways {
        return Err(format!(
            "of some color there are {fewest} pages in the pool, and {} are needed: ask for a larger one \
             (--pool)",
            2 * subject.ways
        ));
    }
    let colors = members.len();
    let part = |name, share: usize| PlacedPages {
        name,
        colors: Some(share),
        members: members.iter().take(share).cloned().collect(),
    };
    let mut arms = vec![part("one color", 1)];
    for (name, divisor) in [("a quarter", 4), ("half", 2)] {
        if colors / divisor > 1 {
            arms.push(part(name, colors / divisor));
        }
    }
    arms.push(part("all colors", colors));
    arms.push(PlacedPages {
        name: "kernel's placement",
        colors: None,
        members: vec![subject.plain.to_vec()],
    });
    Ok(arms)
}

/// Numbers of pages in the working sets of a placement, ascending.
fn sizes(subject: &Subject<'_>, placement: &PlacedPages) -> Vec<usize> {
    let ways = subject.ways;
    let near_the_cliff = || (2..=2 * ways).chain([3 * ways]);
    if placement.colors == Some(1) {
        return near_the_cliff().collect();
    }
    let full = placement.colors.unwrap_or(subject.number_of_colors) * ways;
    let mut sizes: Vec<usize> = (PERCENT.iter())
        .filter_map(|percent| usize::try_from(percent * full as u64 / 100).ok())
        .filter(|size| *size >= 2)
        .collect();
    if placement.colors == Some(subject.number_of_colors) {
        // The sizes of one color, for the comparison with it.
        sizes.extend(near_the_cliff());
    }
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn time<P: Probe>(probe: &mut P, pages: &[Page]) -> Result<f64, String> {
    let loads = LOADS.max(pages.len() as u64 * LINES * PASSES);
    let mut tries = (0..RETRIES).filter_map(|_| probe.chase(pages, loads));
    tries.next().ok_or_else(|| {
        "the thread lost its CPU in every measurement: the machine is too busy".to_owned()
    })
}

/// Nanoseconds in a tick, from a chase over a few pages that is long enough for the system's clock.
#[allow(clippy::cast_precision_loss, reason = "a ratio of times")]
fn length_of_tick<P: Probe>(probe: &mut P, subject: &Subject<'_>) -> Result<f64, String> {
    const LOADS: u64 = 2_000_000;
    let few: Vec<Page> = subject.pages.iter().take(4).copied().collect();
    let mut ratios = Vec::new();
    for _ in 0..RETRIES {
        let begun = Instant::now();
        let found = probe.chase(&few, LOADS);
        let passed = begun.elapsed().as_nanos() as f64;
        if let Some(ticks) = found.filter(|ticks| *ticks > 0.0) {
            ratios.push(passed / (ticks * LOADS as f64));
        }
        if ratios.len() >= 3 {
            break;
        }
    }
    // An interruption only adds to the elapsed time, so the least ratio is the best.
    let least = ratios.into_iter().min_by(f64::total_cmp);
    least.ok_or_else(|| "the clock's ticks could not be compared with time".to_owned())
}

/// Finds the number of pages at which one color leaves the cache, by comparison with as many pages of all colors.
fn cliff(arms: &[Arm], ways: usize) -> Result<Cliff, String> {
    let too_little = || "too little could be measured to find a cliff".to_owned();
    let one = arms
        .iter()
        .find(|arm| arm.colors == Some(1))
        .ok_or_else(too_little)?;
    let all = (arms.iter())
        .filter(|arm| arm.colors.is_some())
        .max_by_key(|arm| arm.colors)
        .ok_or_else(too_little)?;
    let found = superhue_color::oracles::cliff(&curve(one), &curve(all));
    Ok(Cliff {
        expected_pages: ways as u64 + 1,
        found_pages: found.map(|pages| pages as u64),
    })
}

fn curve(arm: &Arm) -> Curve {
    let point = |point: &Point| {
        let fold =
            |first: f64, of: fn(f64, f64) -> f64| point.ticks.iter().copied().fold(first, of);
        Some(CurvePoint {
            pages: usize::try_from(point.pages).ok()?,
            ticks_per_load: point.median_ticks()?,
            low: fold(f64::INFINITY, f64::min),
            high: fold(0.0, f64::max),
        })
    };
    Curve {
        label: arm.name.clone(),
        points: arm.points.iter().filter_map(point).collect(),
    }
}

#[cfg(test)]
mod tests {
    use superhue_color::oracles::Lines;

    use super::*;

    /// Model of an LRU cache with 8 ways and 8 colors; the number of a page determines its color.
    struct Model;

    const WAYS: usize = 8;
    const COLORS: usize = 8;

    fn color(page: Page) -> usize {
        (page.address() >> 12) % COLORS
    }

    impl Probe for Model {
        fn trial(&mut self, _: &Lines, _: &[Page], _: &[Page], _: &mut [u32]) -> bool {
            false
        }

        #[allow(clippy::cast_precision_loss, reason = "small counts")]
        fn chase(&mut self, pages: &[Page], _: u64) -> Option<f64> {
            let mut load = [0; COLORS];
            for &page in pages {
                load[color(page)] += 1;
            }
            // A cycle through more pages than ways misses all of them.
            let missed: usize = load.iter().filter(|pages| **pages > WAYS).sum();
            Some(14.0 + 40.0 * missed as f64 / pages.len() as f64)
        }
    }

    fn pages() -> Vec<Page> {
        // SAFETY: the model reads none of them.
        let page = |number: usize| unsafe { Page::at(number << 12) };
        (1..=512).filter_map(page).collect()
    }

    /// Verifies pages with the colors that `told` returns.
    fn outcome(pages: &[Page], told: impl Fn(Page) -> usize) -> Result<Latency, String> {
        let colors: Vec<Option<Color>> = pages
            .iter()
            .map(|&page| u16::try_from(told(page)).ok().map(Color))
            .collect();
        let subject = Subject {
            cache: "L2".to_owned(),
            oracle: "pfn",
            processor: None,
            ways: WAYS,
            pages,
            colors: &colors,
            plain: pages,
            number_of_colors: COLORS,
            repetitions: 3,
        };
        verify(&mut Model, &subject, &|_| {})
    }

    fn verified(told: impl Fn(Page) -> usize) -> Latency {
        outcome(&pages(), told).unwrap()
    }

    #[test]
    fn true_colors_have_their_cliff_at_ways_and_one() {
        let latency = verified(color);
        assert!(latency.cliff.holds(), "{:?}", latency.cliff);
        assert_eq!(latency.arms.len(), 5);
        let last_inside = |arm: &Arm| {
            let inside = |point: &&Point| point.median_ticks().unwrap() < 20.0;
            arm.points.iter().take_while(inside).last().unwrap().pages
        };
        assert_eq!(last_inside(&latency.arms[0]), 8);
        assert_eq!(last_inside(&latency.arms[3]), 64);
    }

    #[test]
    fn wrong_colors_have_none() {
        let latency = verified(|page| (page.address() >> 15) % COLORS);
        assert!(!latency.cliff.holds(), "{:?}", latency.cliff);
    }

    #[test]
    fn half_of_the_colors_put_the_cliff_elsewhere() {
        let latency = verified(|page| color(page) / 2 * 2 + (page.address() >> 15) % 2);
        assert!(!latency.cliff.holds(), "{:?}", latency.cliff);
        assert!(latency.cliff.found_pages.unwrap() > 9);
    }

    #[test]
    fn too_small_a_pool_is_told() {
        let error = outcome(&pages()[..100], color).unwrap_err();
        assert!(error.contains("--pool"), "{error}");
    }
}

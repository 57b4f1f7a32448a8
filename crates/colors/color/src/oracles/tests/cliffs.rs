//! Position of the cliff of one color, by replacement policy.

use crate::Page;
use crate::oracles::curve::in_turn;
use crate::oracles::simulate::{Machine, Replacement, SimulatedProbe, model_page};
use crate::oracles::{Curve, Probe, cliff};

/// The curves of one color and of all, on a machine whose pages have colors in turn.
fn curves(machine: Machine, most: usize) -> (Curve, Curve) {
    let Machine { colors, .. } = machine;
    let mut probe = SimulatedProbe::new(machine, 3, move |page| page.address() / 4096 % colors);
    let by_color: Vec<Vec<Page>> = (0..colors)
        .map(|color| {
            (1..=most)
                .filter_map(|row| model_page(row * colors + color))
                .collect()
        })
        .collect();
    let all: Vec<&[Page]> = by_color.iter().map(Vec::as_slice).collect();
    let sizes: Vec<usize> = (2..=most).collect();
    let spread = Curve::measure(&mut probe, "all", &in_turn(&all), &sizes, 3);
    let one = Curve::measure(&mut probe, "one", &by_color[1], &sizes, 3);
    (one, spread)
}

#[test]
fn the_cliff_of_one_color_stands_at_ways_plus_one_whatever_is_replaced() {
    for replacement in [Replacement::Lru, Replacement::TreePlru, Replacement::Random] {
        for (ways, colors) in [(8_usize, 32), (16, 32), (10, 20)] {
            if replacement == Replacement::TreePlru && !ways.is_power_of_two() {
                continue;
            }
            let machine = Machine {
                ways,
                colors,
                replacement,
                ..Machine::USUAL
            };
            let (one, spread) = curves(machine, 3 * ways);
            assert_eq!(cliff(&one, &spread), Some(ways + 1), "{machine:?}");
        }
    }
}

#[test]
fn pages_of_no_color_have_no_cliff() {
    let (_, spread) = curves(Machine::USUAL, 24);
    assert_eq!(cliff(&spread, &spread), None);
}

#[test]
fn the_cliff_of_sixteen_ways_is_seen_behind_a_nearer_cache_of_eight() {
    let (one, spread) = curves(
        Machine {
            colors: 16,
            ways: 16,
            ..Machine::QUIET
        },
        40,
    );
    assert_eq!(cliff(&one, &spread), Some(17));
    let empty = Curve {
        label: String::new(),
        points: Vec::new(),
    };
    assert_eq!(cliff(&empty, &spread), None);
    assert_eq!(cliff(&one, &empty), None);
}

#[test]
fn sizes_beyond_the_pages_are_left_out() {
    let (mut probe, pages) = SimulatedProbe::with_pages(Machine::QUIET, 1, 10);
    let curve = Curve::measure(&mut probe, "few", &pages, &[0, 2, 20, 10], 1);
    let sizes: Vec<usize> = curve.points.iter().map(|point| point.pages).collect();
    assert_eq!(sizes, [2, 10]);
    assert_eq!(probe.chase(&[], 100), None);
}

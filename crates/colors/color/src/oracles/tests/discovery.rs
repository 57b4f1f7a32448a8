//! Discovery and classification on modelled caches.

use superhue_model::Color;

use crate::Page;
use crate::oracles::discover::{Choice, is_plausible};
use crate::oracles::simulate::{Machine, Replacement, SimulatedProbe};
use crate::oracles::{DiscoverError, Palette, Search};

/// Runs a discovery on the model; returns the probe, its pages and the palette.
fn discover(machine: Machine, pages: usize, seed: u64) -> (SimulatedProbe, Vec<Page>, Palette) {
    let (mut probe, pages) = SimulatedProbe::with_pages(machine, seed, pages);
    let found = Palette::discover(&mut probe, &pages, &Search::default());
    let palette = found.unwrap_or_else(|error| panic!("{machine:?}, seed {seed}: {error}"));
    (probe, pages, palette)
}

/// Checks that every set is of one color, and every color has one set.
fn check_sets(probe: &mut SimulatedProbe, palette: &Palette, colors: usize) {
    let mut seen = vec![0; colors];
    for set in palette.sets() {
        let color = probe.color_of(set[0]);
        assert!(set.iter().all(|page| probe.color_of(*page) == color));
        seen[color] += 1;
    }
    assert_eq!(seen, vec![1; colors]);
}

#[test]
fn all_colors_are_found_once_whatever_is_replaced() {
    for replacement in [Replacement::Lru, Replacement::TreePlru, Replacement::Random] {
        for seed in 0..2 {
            let machine = Machine {
                colors: 16,
                replacement,
                ..Machine::USUAL
            };
            let (mut probe, _, palette) = discover(machine, 2_048, seed);
            check_sets(&mut probe, &palette, 16);
        }
    }
}

#[test]
fn numbers_of_colors_need_not_be_powers_of_two() {
    for (colors, ways) in [(3, 16), (4, 8), (12, 12), (20, 10), (48, 8)] {
        let machine = Machine {
            colors,
            ways,
            replacement: Replacement::Lru,
            ..Machine::USUAL
        };
        let (mut probe, _, palette) = discover(machine, 4_096, 5);
        check_sets(&mut probe, &palette, colors);
    }
}

#[test]
fn pages_get_the_color_they_have_or_none() {
    let (mut probe, pages, palette) = discover(Machine::USUAL, 4_096, 7);
    let names: Vec<usize> = palette
        .sets()
        .iter()
        .map(|set| probe.color_of(set[0]))
        .collect();
    let others: Vec<Page> = (pages.iter().copied())
        .filter(|page| !palette.sets().iter().flatten().any(|member| member == page))
        .collect();
    let mut colors = vec![None; others.len()];
    palette.classify(&mut probe, &others, &mut colors);
    let sure: Vec<(Page, Color)> = others
        .iter()
        .zip(&colors)
        .filter_map(|(page, color)| Some((*page, (*color)?)))
        .collect();
    assert!(
        sure.len() * 100 >= others.len() * 99,
        "{} of {}",
        sure.len(),
        others.len()
    );
    let right = sure
        .iter()
        .filter(|(page, color)| names[usize::from(color.0)] == probe.color_of(*page));
    assert_eq!(right.count(), sure.len());
    let agreement = palette.agreement(&mut probe, &sure[..500]);
    assert!(
        agreement.own >= 498 && agreement.foreign <= 2,
        "{agreement:?}"
    );
}

#[test]
fn pages_of_one_color_do_not_hide_each_other() {
    let (mut probe, pages, palette) = discover(Machine::USUAL, 8_192, 8);
    let same: Vec<Page> = (pages.iter().copied())
        .filter(|page| probe.color_of(*page) == 5)
        .filter(|page| !palette.sets().iter().flatten().any(|member| member == page))
        .collect();
    let mut colors = vec![None; same.len()];
    palette.classify(&mut probe, &same, &mut colors);
    let name = colors.iter().flatten().next().copied().unwrap();
    let named = colors.iter().filter(|color| **color == Some(name)).count();
    assert!(
        same.len() > 100 && named * 100 >= same.len() * 98,
        "{named} of {}",
        same.len()
    );
}

#[test]
fn sets_that_no_longer_hold_fail_their_test() {
    let (mut probe, _, palette) = discover(Machine::USUAL, 4_096, 9);
    assert!(palette.self_test(&mut probe, 3).passed());
    let mut moved = SimulatedProbe::new(Machine::USUAL, 1, |page| page.address() / 4096 % 32);
    let test = palette.self_test(&mut moved, 3);
    assert!(!test.passed() && test.broken.len() > 16, "{test:?}");
}

#[test]
fn a_cache_that_does_not_show_is_refused() {
    let same = Machine {
        ticks: [20, 20, 20],
        ..Machine::USUAL
    };
    let (mut probe, pages) = SimulatedProbe::with_pages(same, 1, 2_048);
    let refused = Palette::discover(&mut probe, &pages, &Search::default());
    assert!(
        matches!(refused, Err(DiscoverError::NoContrast(_))),
        "{refused:?}"
    );
    let large = Machine {
        colors: 4_096,
        ..Machine::USUAL
    };
    let (mut probe, pages) = SimulatedProbe::with_pages(large, 1, 2_048);
    let refused = Palette::discover(&mut probe, &pages, &Search::default());
    assert!(refused.is_err());
    for few in 0..4 {
        let refused = Palette::discover(&mut probe, &pages[..few], &Search::default());
        assert!(refused.is_err());
    }
}

#[test]
fn a_thread_that_never_keeps_its_cpu_gets_an_error() {
    let busy = Machine {
        disturbed: 1,
        ..Machine::USUAL
    };
    let (mut probe, pages) = SimulatedProbe::with_pages(busy, 1, 1_024);
    let refused = Palette::discover(&mut probe, &pages, &Search::default()).unwrap_err();
    assert!(refused.to_string().contains("lost its CPU"), "{refused}");
}

#[test]
fn two_colors_in_one_set_are_not_taken_for_one() {
    let (mut probe, pages, palette) = discover(Machine::USUAL, 4_096, 3);
    assert!(is_plausible(&mut probe, &palette, &pages));
    let mut sets = palette.sets().to_vec();
    let last = sets.pop().unwrap();
    sets[0].extend(last);
    let mixed = Palette::new(sets, palette.ways(), palette.strength(), palette.contrast());
    assert!(!is_plausible(&mut probe, &mixed, &pages));
}

#[test]
fn a_palette_that_is_not_plausible_counts_only_if_another_search_agrees() {
    let (_, _, palette) = discover(Machine::USUAL, 4_096, 3);
    let with = |colors: usize| {
        let sets = palette.sets()[..colors].to_vec();
        Ok(Palette::new(
            sets,
            palette.ways(),
            palette.strength(),
            palette.contrast(),
        ))
    };
    let all = palette.colors();
    let mut choice = Choice::new(Some(all as u32), 4_096);
    assert!(!choice.add(with(all), false));
    assert!(!choice.add(with(all - 1), false));
    let said = choice.best.as_ref().unwrap_err().to_string();
    assert!(said.contains("many times its share"), "{said}");
    assert!(!choice.add(with(all - 1), false));
    assert_eq!(
        choice.best.as_ref().map(Palette::colors).ok(),
        Some(all - 1)
    );
    assert!(choice.add(with(all), true));
    assert_eq!(choice.best.map(|best| best.colors()).ok(), Some(all));
}

use std::path::Path;

use superhue_procfs::hardware::{Cpuid, Virtualization};

use super::*;
use crate::tlb::kept;

/// Reads what `Rounds` prints.
fn parse(text: &str) -> Rounds {
    let mut rounds = Rounds::default();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        let (kind, pages) = (words.next().unwrap(), words.next().unwrap());
        let times: Vec<[f64; 2]> = words
            .map(|word| {
                let (chase, control) = word.split_once(',').unwrap();
                [chase, control].map(|ns| ns.parse().unwrap())
            })
            .collect();
        let of = match kind {
            "base" => &mut rounds.base,
            "huge" => &mut rounds.huge,
            _ => {
                rounds.spread = times;
                continue;
            }
        };
        of.pages.push(pages.parse().unwrap());
        of.times.push(times);
    }
    rounds
}

fn fixture(name: &str) -> Rounds {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tlb/fixtures");
    parse(&std::fs::read_to_string(folder.join(name)).unwrap())
}

fn is_near(found: Option<u32>, wanted: f64) -> bool {
    found.is_some_and(|found| (f64::from(found) / wanted).ln().abs() <= 1.25_f64.ln())
}

/// CPUID says: 64 and 1536 entries.
#[test]
fn a_kept_curve_shows_what_the_processor_reports() {
    for name in ["cascade-lake-quiet.txt", "cascade-lake-busy.txt"] {
        let found = conclude(&fixture(name)).unwrap();
        assert!(is_near(found.base.first, 64.0), "{name}: {found:?}");
        assert!(is_near(found.base.last, 1536.0), "{name}: {found:?}");
        // The host of that virtual machine maps all memory by base pages.
        assert_eq!(found.huge_pages_whole, Some(false), "{name}");
        assert_eq!(found.huge, TlbEntries::default(), "{name}");
        let ns = |seconds: Option<f64>| seconds.unwrap() * 1e9;
        let (hit, walk) = (
            ns(found.costs.second_hit_seconds),
            ns(found.costs.walk_seconds),
        );
        assert!((2.0..4.0).contains(&hit), "{name}: {hit}");
        assert!((8.0..20.0).contains(&walk), "{name}: {walk}");
    }
}

#[test]
fn printed_rounds_are_read_back() {
    let rounds = fixture("cascade-lake-quiet.txt");
    assert!(rounds.base.rounds() >= LEAST_ROUNDS);
    assert_eq!(parse(&rounds.to_string()), rounds);
}

/// Rounds of a machine with these entries: 2 ns for a load, 3 more for a hit in the second level, 12 for a walk.
fn modelled(first: f64, last: f64, rounds: usize, noise: impl Fn(usize) -> f64) -> ChaseTimes {
    let pages = (0..77).map(|step| 16.0 * (f64::from(step) / 8.0).exp2());
    let pages: Vec<u32> = pages.map(|pages| pages.round() as u32).collect();
    let of = |pages: u32| {
        let pages = f64::from(pages);
        2.0 + if pages > last {
            12.0
        } else if pages > first {
            3.0
        } else {
            0.0
        }
    };
    ChaseTimes {
        times: pages
            .iter()
            .map(|&pages| {
                (0..rounds)
                    .map(|round| [of(pages) + noise(round), 2.0])
                    .collect()
            })
            .collect(),
        pages,
    }
}

fn whole(base: ChaseTimes, huge: ChaseTimes) -> Rounds {
    let rounds = base.rounds();
    Rounds {
        base,
        huge,
        spread: vec![[2.0, 2.0]; rounds],
    }
}

#[test]
fn huge_pages_have_entries_of_their_own_where_they_are_whole() {
    let of = |first, last| modelled(first, last, 20, |_| 0.0);
    let mut rounds = whole(of(64.0, 1536.0), of(32.0, 1024.0));
    let found = conclude(&rounds).unwrap();
    assert_eq!(found.huge_pages_whole, Some(true));
    assert!(
        is_near(found.huge.first, 32.0) && is_near(found.huge.last, 1024.0),
        "{found:?}"
    );
    rounds.huge = of(32.0, 1e6);
    let found = conclude(&rounds).unwrap();
    assert!(is_near(found.huge.first, 32.0), "{found:?}");
    assert_eq!(found.huge.last, None, "more than the chase has pages");
    rounds.spread = vec![[5.0, 2.0]; 20];
    let found = conclude(&rounds).unwrap();
    assert_eq!(
        (found.huge_pages_whole, found.huge),
        (Some(false), TlbEntries::default())
    );
    rounds.spread.clear();
    assert_eq!(conclude(&rounds).unwrap().huge_pages_whole, None);
}

#[test]
fn disturbed_rounds_do_not_count() {
    // Three of four rounds are disturbed, by as much as a walk takes.
    let noise = |round: usize| if round.is_multiple_of(4) { 0.0 } else { 12.0 };
    let found = conclude(&whole(
        modelled(64.0, 1536.0, 20, noise),
        ChaseTimes::default(),
    ))
    .unwrap();
    // All odd rounds are disturbed: their half does not have the first step.
    assert_eq!(found.base.first, None, "{found:?}");
    assert!(is_near(found.base.last, 1536.0), "{found:?}");
    let noise = |round: usize| if round.is_multiple_of(5) { 0.0 } else { 12.0 };
    let found = conclude(&whole(
        modelled(64.0, 1536.0, 20, noise),
        ChaseTimes::default(),
    ))
    .unwrap();
    assert!(
        is_near(found.base.first, 64.0) && is_near(found.base.last, 1536.0),
        "{found:?}"
    );
}

#[test]
fn what_does_not_show_has_its_reason() {
    let reason = |base: ChaseTimes| conclude(&whole(base, ChaseTimes::default())).unwrap_err();
    let flat = reason(modelled(1e6, 1e6, 20, |_| 0.0));
    assert!(flat.starts_with("timing shows no step"), "{flat}");
    let beyond = reason(modelled(64.0, 1e6, 20, |_| 0.0));
    assert!(beyond.contains("but no step behind it"), "{beyond}");
    let few = reason(modelled(64.0, 1536.0, LEAST_ROUNDS - 1, |_| 0.0));
    assert!(few.contains("too busy"), "{few}");
    assert!(reason(ChaseTimes::default()).contains("too busy"));
    // Odd rounds saw another machine.
    let mut two = modelled(64.0, 1536.0, 20, |_| 0.0);
    let other = modelled(64.0, 4096.0, 20, |_| 0.0);
    for (times, others) in two.times.iter_mut().zip(other.times) {
        for (round, time) in others
            .into_iter()
            .enumerate()
            .filter(|(round, _)| round % 2 == 1)
        {
            times[round] = time;
        }
    }
    let told = reason(two);
    assert!(told.starts_with("timing shows"), "{told}");
}

/// Tries this machine. Checks that the outcome is one that would be kept; timing decides no test.
#[test]
fn a_measurement_is_sane_or_has_its_reason() {
    let roots = Roots::default();
    let found = match measure(&roots) {
        Ok(found) => found,
        Err(why) => {
            assert!(!why.is_empty());
            superhue_testing::skip("tlb-timing", &why);
            return;
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let machine = kept::machine(&roots, &Virtualization::read(&roots, &Cpuid::native())).unwrap();
    kept::write(folder.path(), &machine, &found).unwrap();
    assert_eq!(kept::read(folder.path(), &machine), Some(found));
}

//! A pool gives each page once, with its true color, and knows how many pages it has.

use std::collections::BTreeMap;

use superhue_color::Page;
use superhue_color::choice::Walk;
use superhue_color::place::{Pool, PoolError};
use superhue_model::{Color, PageCount};

use crate::support::{FakeOracle, pool, walk};

const COLORS: usize = 8;

fn sum(pool: &Pool) -> u64 {
    (0..8).map(|color| pool.count(Color(color)) as u64).sum()
}

/// One page, of the next color.
fn take_next(pool: &mut Pool, walk: &mut Walk) -> Option<(Page, Color)> {
    let run = pool.take_run(walk, 1)?;
    Some((run.start, run.color))
}

#[test]
fn what_is_counted_can_be_taken_and_what_is_taken_is_not_there() {
    let mut pool = pool(64, 512, COLORS);
    let mut oracle = FakeOracle::new(COLORS);
    let mut walk = walk("spread", COLORS);
    let mut taken: BTreeMap<Page, Color> = BTreeMap::new();
    let mut state = 7_u64;
    for step in 0..20_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let held = pool.held();
        match (state >> 33) % 6 {
            0 => drop(pool.provide(&walk, 1, &mut oracle)),
            1 => {
                if let Some((page, color)) = take_next(&mut pool, &mut walk) {
                    assert!(taken.insert(page, color).is_none(), "step {step}");
                } else {
                    assert_eq!(held, PageCount(0), "step {step}");
                }
            }
            2 => {
                let run = pool.take_run(&mut walk, 5);
                let Some(run) = run else {
                    assert_eq!(held, PageCount(0), "step {step}");
                    continue;
                };
                assert_eq!(held.0 - pool.held().0, run.pages as u64, "step {step}");
                pool.put_back_rest(&run, 0, &walk);
                assert_eq!(held, pool.held(), "step {step}");
            }
            3 => {
                if let Some((page, color)) = taken.pop_first() {
                    pool.put_back(page, color);
                    assert_eq!(held.0 + 1, pool.held().0, "step {step}");
                }
                // Pages that have been moved: their places are filled again.
                if let Some((page, _)) = taken.pop_first() {
                    pool.moved(page, 1);
                }
            }
            4 => {
                if let Some((page, _)) = taken.pop_last() {
                    pool.scrap(page);
                }
            }
            _ => {
                let color = Color(((state >> 40) % 8) as u16);
                let count = pool.count(color);
                let page = pool.take(color);
                assert_eq!(page.is_some(), count > 0, "step {step}");
                taken.extend(page.map(|page| (page, color)));
            }
        }
        assert_eq!(sum(&pool), pool.held().0);
        assert!(pool.held() <= PageCount(512));
    }
}

#[test]
fn the_limit_holds_when_what_was_taken_comes_back() {
    let mut pool = pool(64, 128, COLORS);
    let mut oracle = FakeOracle::new(COLORS);
    let mut walk = walk("spread", COLORS);
    while pool.refill(&mut oracle).is_ok() {}
    assert_eq!(pool.held(), PageCount(128));
    let taken: Vec<_> = (0..100)
        .map_while(|_| take_next(&mut pool, &mut walk))
        .collect();
    assert_eq!(taken.len(), 100);
    assert!(matches!(pool.refill(&mut oracle), Err(PoolError::Limit(_))));
    for (page, color) in taken {
        pool.put_back(page, color);
    }
    assert_eq!(pool.held(), PageCount(128));
}

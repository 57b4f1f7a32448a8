//! Plain reads and writes.

use std::sync::atomic::Ordering::Relaxed;

use super::{Random, Shared, line};
use crate::support::Memory;

pub fn write(shared: &Shared, memory: &Memory, worker: usize) {
    let mut expected = vec![0; memory.pages];
    let mut random = Random::new(worker);
    while shared.goes_on() {
        for _ in 0..256 {
            let page = random.below(memory.pages);
            let word = memory.word(page, line(worker));
            let old = word.load(Relaxed);
            shared.expect_word(old, expected[page]);
            let new = random.next();
            // A read-modify-write by one instruction, every other time.
            if new.is_multiple_of(2) {
                word.store(new, Relaxed);
            } else {
                let _ = word.fetch_add(new.wrapping_sub(old), Relaxed);
            }
            expected[page] = new;
        }
        shared.tally.writes.fetch_add(256, Relaxed);
    }
    for (page, expected) in expected.iter().enumerate() {
        shared.expect_word(memory.word(page, line(worker)).load(Relaxed), *expected);
    }
}

/// Nobody writes the rest of the pages: still zeroes.
pub fn check(shared: &Shared, memory: &Memory) {
    for page in 0..memory.pages {
        for word in line(7)..line(64) {
            shared.expect_word(memory.word(page, word).load(Relaxed), 0);
        }
    }
}

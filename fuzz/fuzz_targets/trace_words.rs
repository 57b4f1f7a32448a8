//! Words from a program under the emulator, or from its plugin: reading them at once or in pieces gives the same, and addresses stay within
//! the allocated memory.
//!
//! The first two bytes of the input give the number of skipped references and the length of a piece.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use superhue_papers::cachesim::{Machine, machines};
use superhue_papers::program::trace::Reader;

static MACHINE: LazyLock<Machine> = LazyLock::new(|| {
    let mut machine = Machine::parse("zen.toml", machines::ZEN).expect("a machine of ours");
    // Small, so that an input can fill some huge pages.
    machine.superpage = 64 << 10;
    machine
});

fn check(reader: &Reader, skip: u64) {
    let kept = reader.seen.references.saturating_sub(skip);
    let pages = [&reader.base, &reader.large].map(|space| space.dealt().iter().sum::<u64>());
    for (words, pages) in [&reader.block.base, &reader.block.large].into_iter().zip(pages) {
        assert_eq!(words.len() as u64, kept);
        assert!(words.iter().all(|word| (word >> 1) < pages * MACHINE.page));
    }
    for (base, large) in reader.block.base.iter().zip(&reader.block.large) {
        // Both have the same byte of a page, and the same kind.
        assert_eq!(base % (MACHINE.page << 1), large % (MACHINE.page << 1));
    }
}

fuzz_target!(|bytes: &[u8]| {
    let [skip, piece, rest @ ..] = bytes else {
        return;
    };
    let (skip, piece) = (u64::from(*skip), usize::from(*piece) + 1);
    let words: Vec<u64> = rest
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
        .collect();
    let mut whole = Reader::new(&MACHINE, skip, 1 << 20);
    let result = whole.read(&words);
    check(&whole, skip);
    let mut pieces = Reader::new(&MACHINE, skip, 1 << 20);
    let ended = words.chunks(piece).try_for_each(|piece| pieces.read(piece));
    assert_eq!(result, ended);
    assert_eq!(whole.seen, pieces.seen);
    assert_eq!(whole.block.base, pieces.block.base);
    assert_eq!(whole.block.large, pieces.block.large);
    check(&pieces, skip);
});

//! The header of a palette file: a parsed header is sound, and survives writing and reading.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_color::oracles::Header;

const PAGES: u32 = 8_208;

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = Header::decode(bytes, PAGES) else {
        return;
    };
    let mut pages: Vec<u32> = header.sets.iter().flatten().copied().collect();
    let all = pages.len();
    pages.sort_unstable();
    pages.dedup();
    assert_eq!(pages.len(), all, "no page is in two sets");
    assert!(pages.iter().all(|&page| (16..PAGES).contains(&page)));
    assert!(header.contrast.kept < header.contrast.evicted);
    let again = header.encode().map(|bytes| Header::decode(&bytes, PAGES));
    assert_eq!(again, Some(Ok(header)));
});

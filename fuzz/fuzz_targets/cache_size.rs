//! `2048K`: never 0, and a parsed size survives printing and parsing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::hardware::parse_cache_size;

fuzz_target!(|text: &str| {
    if let Ok(size) = parse_cache_size(text) {
        assert!(size.0 > 0);
        assert_eq!(parse_cache_size(&format!("{}K\n", size.0 / 1024)), Ok(size));
    }
});

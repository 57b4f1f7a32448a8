//! `/proc/PID/page_color`: a row for each color, and a set of colors that exist.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::process::ProcessColors;

fuzz_target!(|text: &str| {
    let Ok(read) = ProcessColors::parse(text) else {
        return;
    };
    assert!(!read.colors.is_empty());
    if let Some(set) = &read.set {
        assert_eq!(set.colors(), read.colors.len());
    }
    let _ = (read.resident(), read.large());
});

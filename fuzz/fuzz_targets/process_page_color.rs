//! `/proc/PID/page_color`: a row for each color or none, and a set of colors that exist.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::process::ProcessColors;

fuzz_target!(|text: &str| {
    let Ok(read) = ProcessColors::parse(text) else {
        return;
    };
    // The kernel shows the table to some readers only.
    assert!(read.colors.is_empty() || read.colors.len() == read.count);
    if let Some(set) = &read.set {
        assert_eq!(set.colors(), read.count);
        let _ = read.pages_of(set);
    }
    let _ = (read.resident(), read.large());
});

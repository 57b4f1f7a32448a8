//! `/proc/PID/task/TID/children`: a parsed list survives printing and parsing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::process::parse_children;

fuzz_target!(|text: &[u8]| {
    if let Ok(children) = parse_children(text) {
        let printed: String = children.iter().map(|pid| format!("{pid} ")).collect();
        assert_eq!(parse_children(printed.as_bytes()), Ok(children));
    }
});

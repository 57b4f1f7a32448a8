//! `/proc/PID/statm`: parsed values survive printing and parsing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::process::parse_statm;

fuzz_target!(|text: &[u8]| {
    if let Ok(resident) = parse_statm(text) {
        assert!(resident.anonymous() <= resident.total);
        let printed = format!("0 {} {} 0 0 0 0\n", resident.total.0, resident.shared.0);
        assert_eq!(parse_statm(printed.as_bytes()), Ok(resident));
    }
});

//! `/proc/PID/smaps_rollup`: only a text of empty lines gives `None`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::process::parse_smaps_rollup;

fuzz_target!(|text: &[u8]| {
    if let Ok(memory) = parse_smaps_rollup(text) {
        assert_eq!(memory.is_none(), text.iter().all(|&byte| byte == b'\n'));
    }
});

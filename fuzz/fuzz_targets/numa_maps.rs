//! `/proc/PID/numa_maps`: only a line that names a policy of taking turns is interleaved.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::process::parse_interleaved;

fuzz_target!(|line: &[u8]| {
    if let Some(Some(_)) = parse_interleaved(line) {
        assert!(line.windows(10).any(|word| word == b"interleave"));
    }
});

//! `/proc/PID/mountinfo`: devices come out ascending, each once.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::process::parse_tmpfs_devices;

fuzz_target!(|text: &[u8]| {
    let devices = parse_tmpfs_devices(text);
    assert!(devices.windows(2).all(|pair| pair[0] < pair[1]));
});

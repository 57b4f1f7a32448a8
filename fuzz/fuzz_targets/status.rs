//! `/proc/PID/status`: lines that newer kernels add change nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::process::parse_status;

fuzz_target!(|text: &[u8]| {
    if let Ok(status) = parse_status(text) {
        assert!(!status.name.contains(char::is_control));
        let more = [text, b"\nNew_line:\tof a newer kernel\n"].concat();
        assert_eq!(parse_status(&more), Ok(status));
    }
});

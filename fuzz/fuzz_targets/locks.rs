//! `/proc/locks`: the returned process holds a `flock` on that inode, by a line of the text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_heat::lock_holder;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    for inode in [0, 1, 966_340, u64::MAX] {
        if let Some(pid) = lock_holder(bytes, inode) {
            assert!(pid > 0);
            assert!(text.lines().any(|line| {
                let fields: Vec<_> = line.split_ascii_whitespace().collect();
                fields.get(1) == Some(&"FLOCK")
                    && fields.get(4).and_then(|field| field.parse().ok()) == Some(pid)
            }));
        }
    }
});

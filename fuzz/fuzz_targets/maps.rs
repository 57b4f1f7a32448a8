//! `/proc/PID/maps`: VMAs come out ascending, disjoint and the same with and without names.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::process::{parse_maps, parse_named_maps};

fuzz_target!(|text: &[u8]| {
    let plain = parse_maps(text);
    let named = parse_named_maps(text);
    match (plain, named) {
        (Ok(plain), Ok(named)) => {
            assert!(plain.iter().all(|vma| !vma.range.is_empty()));
            assert!(
                plain
                    .windows(2)
                    .all(|pair| pair[0].range.end <= pair[1].range.start)
            );
            assert!(named.iter().map(|named| &named.vma).eq(&plain));
            for named in &named {
                assert!(!named.label().contains(char::is_control));
            }
        }
        (plain, named) => assert_eq!(plain.err(), named.err()),
    }
});

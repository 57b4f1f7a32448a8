//! `0-3,8`: ascending, and a parsed list survives printing and parsing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::hardware::CpuList;

fuzz_target!(|text: &str| {
    if let Ok(list) = CpuList::parse(text) {
        assert!(list.numbers().windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(CpuList::parse(&list.to_string()), Ok(list));
    }
});

//! `mm_stat` of a zram device: parsed values survive printing and parsing, whatever a newer kernel adds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::system::parse_mm_stat;

fuzz_target!(|text: &str| {
    if let Ok(used) = parse_mm_stat(text) {
        let printed = format!("{} 7 {} {} more\n", used.stored.0, used.memory.0, used.limit.0);
        assert_eq!(parse_mm_stat(&printed), Ok(used));
    }
});

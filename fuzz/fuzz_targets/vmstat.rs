//! `/proc/vmstat`: lines about anything but huge pages change nothing, and names are plain.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::system::ThpCounters;

fuzz_target!(|text: &str| {
    let Ok(counters) = ThpCounters::parse(text) else {
        return;
    };
    let is_plain = |name: &String| name.starts_with("thp_") && name.is_ascii();
    assert!(counters.0.keys().all(is_plain));
    let unfinished = !text.is_empty() && !text.ends_with('\n');
    let more = format!(
        "{text}{}nr_new_pages 7\n",
        if unfinished { "\n" } else { "" }
    );
    assert_eq!(ThpCounters::parse(&more), Ok(counters));
});

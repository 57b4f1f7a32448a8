//! `/proc/meminfo`: lines of newer kernels change nothing, and amounts are whole KiB.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::system::MemInfo;

fuzz_target!(|text: &str| {
    let Ok(info) = MemInfo::parse(text) else {
        return;
    };
    let amounts = [
        info.total,
        info.free,
        info.available,
        info.anon_huge,
        info.hugetlb,
    ];
    assert!(
        amounts
            .into_iter()
            .flatten()
            .all(|amount| amount.0 % 1024 == 0)
    );
    let unfinished = !text.is_empty() && !text.ends_with('\n');
    let more = format!(
        "{text}{}NewMemory: 7 kB\n",
        if unfinished { "\n" } else { "" }
    );
    assert_eq!(MemInfo::parse(&more), Ok(info));
});

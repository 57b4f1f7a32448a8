//! `/proc/cpuinfo`: every parsed value is in the text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::hardware::CpuInfo;

fuzz_target!(|text: &str| {
    let info = CpuInfo::parse(text);
    assert!(info.listed.len() <= text.matches("processor").count());
    assert!(
        info.model
            .is_none_or(|model| text.contains(model.trim_start_matches("part ")))
    );
});

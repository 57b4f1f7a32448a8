//! `/proc/PID/smaps`: VMAs come out ascending and disjoint.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::process::parse_smaps;

fuzz_target!(|text: &[u8]| {
    if let Ok(vmas) = parse_smaps(text) {
        assert!(
            vmas.windows(2)
                .all(|pair| pair[0].vma.range.end <= pair[1].vma.range.start)
        );
        for name in vmas.iter().filter_map(|vma| vma.name.as_ref()) {
            assert!(!name.contains(char::is_control));
        }
    }
});

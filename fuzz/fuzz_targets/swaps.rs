//! `/proc/swaps`: the free memory before a disk is never more than all free capacity.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::system::{parse_swaps, room_in_memory};

fuzz_target!(|text: &[u8]| {
    let Ok(mut areas) = parse_swaps(text) else {
        return;
    };
    assert!(areas.len() <= text.split(|&byte| byte == b'\n').count());
    assert_eq!(room_in_memory(&areas).0, 0, "none is known to lie in memory");
    for (number, area) in (0..).zip(&mut areas).step_by(2) {
        area.zram = Some(number);
    }
    let free = areas.iter().filter(|area| area.lies_in_memory());
    let free = free.fold(0_u64, |sum, area| sum.saturating_add(area.free().0));
    assert!(room_in_memory(&areas).0 <= free);
});

//! `/proc/buddyinfo`: larger requests can use less, never more, and shares stay shares.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::system::BuddyInfo;
use superhue_procfs::system::buddyinfo::SUPERPAGE_ORDER;

fuzz_target!(|text: &str| {
    let Ok(info) = BuddyInfo::parse(text) else {
        return;
    };
    let mut before = 0.0;
    for order in 0..=2 * SUPERPAGE_ORDER {
        let index = info.unusable_free_index(order);
        assert!((0.0..=1.0).contains(&index) && index >= before);
        before = index;
    }
    assert!(info.free_superpages() <= info.free_bytes().whole_pages().0);
    let by_node = info.free_superpages_by_node();
    assert!(by_node.values().all(|&free| free <= info.free_superpages()));
});

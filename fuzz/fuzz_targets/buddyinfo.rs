//! `/proc/buddyinfo`: larger requests can use less, never more.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::system::BuddyInfo;
use superhue_procfs::system::buddyinfo::HUGE_PAGE_ORDER;

fuzz_target!(|text: &str| {
    let Ok(info) = BuddyInfo::parse(text) else {
        return;
    };
    for zone in &info.zones {
        let free = |order| zone.free_pages_from(order);
        assert!((0..2 * HUGE_PAGE_ORDER).all(|order| free(order + 1) <= free(order)));
    }
    let free: u64 = info.zones.iter().map(|zone| zone.free_pages_from(0).0).sum();
    assert!(info.free_huge_pages() <= free);
});

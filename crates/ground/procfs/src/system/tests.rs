//! Tests on the recorded machines of `fixtures/machines`, read whole, and on the running machine.

use std::path::Path;

use serde::Serialize;
use superhue_model::{BASE_PAGE_SHIFT, ByteCount, PageCount};
use superhue_testing::unpack_tree;
use tempfile::TempDir;

use super::buddyinfo::HUGE_PAGE_ORDER;
use super::thp::{MthpMode, ThpDefrag, ThpMode, folio_bytes};
use super::*;

/// Names of the recorded machines.
pub(crate) const MACHINES: [&str; 6] = [
    "arm64",
    "bare-metal-amd",
    "bare-metal-intel",
    "container-readonly-sysfs",
    "no-thp",
    "vm-impossible-l3",
];

/// Unpacks a recorded machine into a temporary folder.
pub(crate) fn machine(name: &str) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    unpack_tree(&format!("machines/{name}"), root.path());
    root
}

/// Formats the readings of a recorded machine as JSON, without its location.
pub(crate) fn json(root: &Path, read: &impl Serialize) -> String {
    serde_json::to_string_pretty(read)
        .unwrap()
        .replace(&root.display().to_string(), "")
}

fn read(name: &str) -> System {
    read_under(machine(name).path())
}

fn read_under(root: &Path) -> System {
    let mut system = System::read(&Roots::under(root));
    // The page size is always that of the running machine.
    if let Ok(kernel) = &mut system.kernel {
        kernel.page_size = ByteCount(4096);
    }
    system
}

fn buddyinfo(name: &str) -> BuddyInfo {
    BuddyInfo::read(&Roots::under(machine(name).path())).unwrap()
}

#[test]
fn every_machine_reads_as_recorded() {
    for name in MACHINES {
        let root = machine(name);
        insta::assert_snapshot!(name, json(root.path(), &read_under(root.path())));
    }
}

#[test]
fn recent_kernels_have_folio_sizes() {
    let thp = read("bare-metal-intel").thp.unwrap();
    assert_eq!(thp.enabled, Some(ThpMode::Always));
    assert_eq!(thp.defrag, Some(ThpDefrag::Madvise));
    assert_eq!(thp.huge_page_mode(), Some(ThpMode::Always));
    assert_eq!(thp.khugepaged.max_ptes_none, Some(511));
    assert_eq!(thp.shrink_underused, Some(true));
    assert_eq!(thp.pmd_size, Some(ByteCount(2 << 20)));
    let sizes: Vec<u64> = thp.sizes.iter().map(|size| size.size.0 >> 10).collect();
    assert_eq!(
        sizes,
        [16, 64, 2048],
        "in ascending order, not that of the names"
    );
    let huge_page = thp.of_size(ByteCount(2 << 20)).unwrap();
    assert_eq!(huge_page.enabled, Some(MthpMode::Inherit));
    assert_eq!(huge_page.stats["anon_fault_alloc"], 48_213);
    assert!(thp.gaps.is_empty(), "{:?}", thp.gaps);
    let kib = ByteCount::from_kib;
    let by_size: Vec<_> = (thp.sizes.iter())
        .map(|it| (it.size, it.held().unwrap()))
        .collect();
    let held = folio_bytes(&Roots::under(machine("bare-metal-intel").path()));
    assert_eq!(by_size, held);
    assert_eq!(
        held,
        [
            (kib(16), ByteCount(0)),
            (kib(64), kib(310 * 64)),
            (kib(2048), kib(612 * 2048))
        ]
    );
    let held = folio_bytes(&Roots::under(machine("bare-metal-amd").path()));
    assert_eq!(held, [], "its kernel does not count them");
}

#[test]
fn older_kernels_have_gaps_with_reasons() {
    let thp = read("bare-metal-amd").thp.unwrap();
    assert!(thp.sizes.is_empty());
    assert_eq!(thp.huge_page_mode(), Some(ThpMode::Always));
    assert_eq!(thp.shrink_underused, None);
    assert!(
        thp.gaps
            .reason("shrink_underused")
            .unwrap()
            .contains("not offered")
    );
    assert_eq!(thp.gaps.iter().count(), 1);
}

#[test]
fn a_kernel_without_huge_pages_says_what_that_means() {
    let system = read("no-thp");
    let error = system.thp.unwrap_err();
    assert!(matches!(error, ReadError::Missing { .. }));
    assert!(
        error
            .to_string()
            .contains("a kernel without CONFIG_TRANSPARENT_HUGEPAGE"),
        "{error}"
    );
    assert!(matches!(system.hugetlb, Err(ReadError::Missing { .. })));
    let memory = system.meminfo.unwrap();
    assert_eq!(memory.anon_huge, None);
    assert!(memory.total.is_some());
}

#[test]
fn memory_can_be_free_and_yet_no_use_for_huge_pages() {
    let fragmented = buddyinfo("container-readonly-sysfs");
    let free = |info: &BuddyInfo| -> u64 {
        let pages = info.zones.iter().map(|zone| zone.free_pages_from(0).0);
        pages.sum()
    };
    assert_eq!(fragmented.free_huge_pages(), 1);
    assert!(free(&fragmented) > (14 << 30) >> BASE_PAGE_SHIFT);
    let fresh = buddyinfo("arm64");
    assert!(fresh.free_huge_pages() << HUGE_PAGE_ORDER > free(&fresh) / 100 * 99);
}

#[test]
fn a_container_may_hide_a_directory_and_no_more() {
    let system = read("container-readonly-sysfs");
    assert!(matches!(system.hugetlb, Err(ReadError::Missing { .. })));
    assert_eq!(system.thp.unwrap().huge_page_mode(), Some(ThpMode::Madvise));
}

#[test]
fn hugetlb_pools_are_sorted_by_size() {
    let pools = read("bare-metal-intel").hugetlb.unwrap();
    let sizes: Vec<ByteCount> = pools.iter().map(|pool| pool.page_size).collect();
    assert_eq!(sizes, [ByteCount(2 << 20), ByteCount(1 << 30)]);
    assert_eq!((pools[1].pages, pools[1].free), (Some(2), Some(1)));
}

#[test]
fn the_running_machine_can_be_read() {
    let system = System::read(&Roots::default());
    let kernel = system.kernel.unwrap();
    assert!(!kernel.release.is_empty());
    assert!(kernel.page_size.0.is_power_of_two());
    assert!(system.meminfo.unwrap().total.unwrap() > PageCount(1).bytes());
    assert!(!BuddyInfo::read(&Roots::default()).unwrap().zones.is_empty());
    match system.thp {
        Ok(thp) => assert!(thp.huge_page_mode().is_some(), "{:?}", thp.gaps),
        Err(error) => assert!(matches!(error, ReadError::Missing { .. }), "{error}"),
    }
}

//! Tests on the recorded machines of `fixtures/machines`, whole and mutilated, and on the running machine.

use std::fs;
use std::path::{Path, PathBuf};

use superhue_model::HUGE_PAGE_SIZE;

use super::*;
use crate::system::System;
use crate::system::tests::{MACHINES, json, machine};

const SMALL: ByteCount = ByteCount(BASE_PAGE_SIZE);
const HUGE: ByteCount = ByteCount(HUGE_PAGE_SIZE);

fn read_under(root: &Path) -> Hardware {
    let text = fs::read_to_string(root.join("cpuid.txt")).unwrap_or_default();
    let cpuid = match CpuidTable::parse(&text) {
        Ok(table) if !text.is_empty() => Cpuid::recorded(table),
        _ => Cpuid::none(),
    };
    Hardware::read(&Roots::under(root), &cpuid)
}

fn read(name: &str) -> Hardware {
    read_under(machine(name).path())
}

/// Returns the caches of one name, e.g. `L2`.
fn named<'a>(hardware: &'a Hardware, name: &str) -> Vec<&'a AssessedCache> {
    let caches = hardware.caches.as_ref().unwrap();
    caches
        .iter()
        .filter(|assessed| assessed.cache.name() == name)
        .collect()
}

/// Returns the colors of, and the verdict on, the first cache of a name.
fn opinion(hardware: &Hardware, name: &str) -> (Option<u64>, Usability) {
    let first = named(hardware, name)[0];
    (first.colors, first.verdict.clone())
}

#[test]
fn every_machine_is_assessed_as_recorded() {
    for name in MACHINES {
        let root = machine(name);
        insta::assert_snapshot!(name, json(root.path(), &read_under(root.path())));
    }
}

#[test]
fn a_cache_appears_once_however_many_cpus_share_it() {
    let hardware = read("bare-metal-intel");
    for (name, shared_by) in [
        ("L1d", vec!["0-1", "2-3"]),
        ("L2", vec!["0-1", "2-3"]),
        ("L3", vec!["0-3"]),
    ] {
        let found: Vec<String> = named(&hardware, name)
            .iter()
            .map(|assessed| assessed.cache.shared_by.as_ref().unwrap().to_string())
            .collect();
        assert_eq!(found, shared_by, "{name}");
    }
}

#[test]
fn intel_on_bare_metal_has_a_usable_l2_and_a_hashed_l3() {
    let hardware = read("bare-metal-intel");
    assert_eq!(hardware.virtualization.machine, Machine::Bare);
    assert_eq!(opinion(&hardware, "L1d"), (Some(1), Usability::Usable));
    assert_eq!(opinion(&hardware, "L2"), (Some(32), Usability::Usable));
    let (colors, verdict) = opinion(&hardware, "L3");
    assert_eq!(colors, None);
    assert!(matches!(verdict, Usability::Doubtful(_)), "{verdict:?}");
    assert!(
        verdict
            .reason()
            .unwrap()
            .starts_with("its 40,960 sets are not a power of two")
    );
    let tlb = hardware.tlb.unwrap();
    assert_eq!(tlb.reach(1, SMALL), Some(ByteCount(64 * 4096)));
    assert_eq!(tlb.reach(1, HUGE), Some(ByteCount(32 * HUGE_PAGE_SIZE)));
    assert_eq!(
        tlb.reach(2, SMALL),
        Some(ByteCount(8 << 20)),
        "both arrays hold 4 KiB"
    );
    assert_eq!(
        tlb.reach(2, HUGE),
        Some(ByteCount(2 << 30)),
        "only one holds 2 MiB"
    );
    assert!(tlb.notes.is_empty());
}

#[test]
fn amd_on_bare_metal_has_a_usable_l2_and_an_l3_in_doubt() {
    let hardware = read("bare-metal-amd");
    assert_eq!(opinion(&hardware, "L2"), (Some(32), Usability::Usable));
    let (colors, verdict) = opinion(&hardware, "L3");
    assert_eq!(colors, Some(512));
    assert!(
        verdict
            .reason()
            .unwrap()
            .starts_with("a cache of this level is usually made of slices")
    );
    let tlb = hardware.tlb.unwrap();
    assert_eq!(tlb.reach(1, HUGE), Some(ByteCount(72 * HUGE_PAGE_SIZE)));
    assert_eq!(tlb.reach(2, SMALL), Some(ByteCount(12 << 20)));
}

#[test]
fn arm_without_ways_is_inferred_and_has_no_tlbs() {
    let hardware = read("arm64");
    assert_eq!(
        hardware.virtualization.machine,
        Machine::Bare,
        "DMI names no hypervisor"
    );
    let l2 = named(&hardware, "L2")[0];
    assert_eq!(
        l2.cache.ways, None,
        "what is inferred is not what was reported"
    );
    assert!(
        l2.cache
            .gaps
            .reason("ways_of_associativity")
            .unwrap()
            .contains("not offered")
    );
    assert_eq!(l2.colors, Some(32));
    assert_eq!(
        l2.verdict.reason(),
        Some("its ways must be inferred, so nothing confirms that the rest is right")
    );
    let (colors, verdict) = opinion(&hardware, "L3");
    assert_eq!(colors, Some(1024));
    let reason = verdict.reason().unwrap();
    assert!(
        reason.contains("inferred") && reason.contains("slices"),
        "{reason}"
    );
    assert_eq!(hardware.tlb.unwrap_err(), TlbError::NoCpuid);
    let cpu = hardware.cpu.unwrap();
    assert_eq!(cpu.vendor.as_deref(), Some("Arm"));
    assert_eq!(
        cpu.nodes[1].cpus,
        Some(CpuList::default()),
        "memory without CPUs"
    );
}

#[test]
fn a_guest_with_an_impossible_l3_is_told_so() {
    let hardware = read("vm-impossible-l3");
    assert_eq!(hardware.virtualization.machine, Machine::Virtual);
    assert_eq!(hardware.virtualization.hypervisor.as_deref(), Some("KVM"));
    let (colors, verdict) = opinion(&hardware, "L3");
    assert_eq!(colors, None);
    let Usability::Unusable(reason) = verdict else {
        panic!("{verdict:?}")
    };
    for part in [
        "491,520 sets are not a power of two",
        "virtual machine (KVM)",
        "other guests",
        "CPUs 0-1",
    ] {
        assert!(reason.contains(part), "{reason}");
    }
    let (colors, verdict) = opinion(&hardware, "L2");
    assert_eq!(colors, Some(32));
    assert!(matches!(verdict, Usability::Doubtful(_)), "{verdict:?}");
    assert_eq!(
        hardware.tlb.unwrap_err(),
        TlbError::NotReported { guest: true }
    );
}

#[test]
fn a_container_is_recognised_and_sees_the_hosts_caches() {
    let hardware = read("container-readonly-sysfs");
    assert_eq!(hardware.virtualization.machine, Machine::Bare);
    assert_eq!(hardware.virtualization.container.as_deref(), Some("Docker"));
    assert_eq!(opinion(&hardware, "L2"), (Some(16), Usability::Usable));
    assert!(hardware.cpu.as_ref().unwrap().nodes.is_empty());
    let tlb = hardware.tlb.unwrap();
    assert_eq!(tlb.reach(2, HUGE), Some(ByteCount(3 << 30)));
}

fn divided(hardware: &Hardware, name: &str) -> (Option<u64>, Option<u64>, Sharing, usize) {
    let mut found = hardware.partitions.iter();
    let found = found.find(|part| part.cache == name).unwrap();
    (
        found.colors,
        found.usable_colors,
        found.sharing,
        found.domains.len(),
    )
}

/// Machines that have only their caches recorded.
const CACHES_ONLY: [&str; 3] = ["core2-duo", "l2-only", "two-l3-domains"];

#[test]
fn every_recorded_cache_is_divided_as_recorded() {
    for name in MACHINES.iter().chain(&CACHES_ONLY) {
        let found = read(name).partitions;
        let mut said: Vec<String> = (found.iter())
            .map(|part| {
                let doubt = part.doubt.as_ref().map_or("", |_| " (doubtful)");
                format!("{}: {}{doubt}", part.cache, part.explanation)
            })
            .collect();
        said.push(between_cpus(&found));
        insta::assert_snapshot!(format!("divided-{name}"), said.join("\n"));
    }
}

#[test]
fn the_machine_of_the_paper_has_its_64_colors() {
    let hardware = read("core2-duo");
    assert_eq!(opinion(&hardware, "L2"), (Some(64), Usability::Usable));
    assert_eq!(
        divided(&hardware, "L2"),
        (Some(64), Some(64), Sharing::Cores, 1)
    );
}

#[test]
fn an_l1_with_large_ways_takes_colors_from_the_l2() {
    let hardware = read("l2-only");
    assert_eq!(opinion(&hardware, "L1d"), (Some(4), Usability::Usable));
    assert_eq!(
        divided(&hardware, "L2"),
        (Some(16), Some(4), Sharing::Cores, 1)
    );
}

#[test]
fn several_l3s_are_divided_each_by_itself() {
    let hardware = read("two-l3-domains");
    assert_eq!(
        divided(&hardware, "L2"),
        (Some(16), Some(16), Sharing::Core, 4)
    );
    assert_eq!(
        divided(&hardware, "L3"),
        (Some(256), Some(16), Sharing::Cores, 2)
    );
    let l3 = hardware.partitions.last().unwrap();
    assert!(
        l3.explanation.contains("(CPUs 0-1; 2-3)"),
        "{}",
        l3.explanation
    );
}

#[test]
fn an_impossible_l3_divides_nothing() {
    let hardware = read("vm-impossible-l3");
    let (_, usable, sharing, _) = divided(&hardware, "L3");
    assert_eq!((usable, sharing), (None, Sharing::Cores));
    assert!(between_cpus(&hardware.partitions).contains("cannot be kept apart in the L3"));
}

#[test]
fn nothing_described_is_said_in_words() {
    let hardware = read("no-thp");
    assert_eq!(hardware.virtualization.hypervisor.as_deref(), Some("QEMU"));
    let error = hardware.caches.unwrap_err().to_string();
    assert!(error.contains("does not describe the caches"), "{error}");
    assert_eq!(hardware.cpu.unwrap().online.numbers(), [0]);
}

#[test]
fn the_running_machine_can_be_read() {
    let hardware = Hardware::read(&Roots::default(), &Cpuid::native());
    assert!(!hardware.cpu.unwrap().online.is_empty());
    assert!(!hardware.virtualization.how.is_empty() || cfg!(not(target_arch = "x86_64")));
    match hardware.tlb {
        Ok(tlb) => assert!(
            tlb.arrays
                .iter()
                .all(|array| array.entries > 0 && array.level > 0)
        ),
        Err(error) => superhue_testing::skip("tlb", &error.to_string()),
    }
}

/// Collects every file of a tree, without links.
fn files_under(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => files_under(&entry.path(), found),
            kind if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
}

#[test]
fn no_file_however_mutilated_makes_a_reader_panic() {
    let root = machine("vm-impossible-l3");
    let mut files = Vec::new();
    files_under(root.path(), &mut files);
    let whole = serde_json::to_string(&read_under(root.path()).caches.unwrap()).unwrap();
    for file in &files {
        let recorded = fs::read(file).unwrap();
        for nonsense in ["", "-1", "[[]]", "99999999999999999999", "\u{0}K"] {
            fs::write(file, nonsense).unwrap();
            let _ = serde_json::to_string(&read_under(root.path())).unwrap();
            let _ = serde_json::to_string(&System::read(&Roots::under(root.path()))).unwrap();
        }
        fs::write(file, recorded).unwrap();
    }
    let restored = serde_json::to_string(&read_under(root.path()).caches.unwrap()).unwrap();
    assert_eq!(whole, restored);
}

//! Recorded CPUID answers: any processor is decoded or refused, and its TLBs have entries.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::hardware::{Cpuid, CpuidTable, Machine, Tlb, Virtualization};

fuzz_target!(|text: &str| {
    let Ok(table) = CpuidTable::parse(text) else {
        return;
    };
    let cpuid = Cpuid::recorded(table);
    let bare = Virtualization {
        machine: Machine::Bare,
        hypervisor: None,
        container: None,
        how: vec![],
    };
    if let Ok(tlb) = Tlb::read(&cpuid, &bare) {
        assert!(!tlb.arrays.is_empty());
        assert!(
            tlb.reach
                .iter()
                .all(|row| row.entries > 0 && row.reach >= row.page)
        );
    }
    for level in 0..5 {
        let _ = cpuid.hashed_index(level);
    }
});

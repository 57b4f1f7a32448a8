//! The machine and the software, for the record of a result.

use serde_json::{Value, json};
use superhue_procfs::Roots;
use superhue_procfs::hardware::{Cpuid, Hardware};
use superhue_procfs::system::System;

/// Returns everything about this machine that a reader of a result may want to know.
#[must_use]
pub fn machine_facts(roots: &Roots) -> Value {
    let hardware = Hardware::read(roots, &Cpuid::native());
    let system = System::read(roots);
    let thp = system.thp.as_ref().ok();
    let of = |name: &str| {
        std::fs::read_to_string(roots.sys.join("kernel/mm/transparent_hugepage").join(name))
    };
    json!({
        "superhue": env!("CARGO_PKG_VERSION"),
        "commit": crate::report::COMMIT,
        "cpu": hardware.cpu.as_ref().ok().and_then(|cpu| cpu.model.clone()),
        "cpus": hardware.cpu.as_ref().ok().map(|cpu| cpu.online.to_string()),
        "virtualization": hardware.virtualization,
        "kernel": system.kernel.as_ref().ok().map(|kernel| kernel.release.clone()),
        "memory_bytes": system.meminfo.as_ref().ok().and_then(|memory| memory.total),
        "thp_enabled": of("enabled").ok().map(|text| text.trim().to_owned()),
        "thp_defrag": of("defrag").ok().map(|text| text.trim().to_owned()),
        "khugepaged": thp.map(|thp| thp.khugepaged),
    })
}

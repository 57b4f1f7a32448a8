//! Detection of a hypervisor between this system and the hardware, and of a container.
//!
//! Both change which values can be trusted. In a virtual machine page frame numbers are the guest's: they reveal
//! nothing about the cache sets of the memory behind them. In a container parts of `/proc` and `/sys`
//! are hidden or read-only. The kernel has no direct interface for either, so the result keeps every hint that led to it,
//! for display.

use serde::Serialize;

use super::container;
use super::{Cpuid, cpuid::Registers};
use crate::Roots;
use crate::system::file;

/// Platform of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Machine {
    /// The hardware, as far as any hint shows.
    Bare,
    /// A hypervisor.
    Virtual,
    /// No hint either way.
    Unknown,
}

/// Platform of the system, and the hints for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Virtualization {
    /// Platform of the system.
    pub machine: Machine,
    /// Name of the hypervisor, if it gives one.
    pub hypervisor: Option<String>,
    /// Kind of container, if there are signs of one.
    pub container: Option<String>,
    /// Hints found, each a sentence without its full stop.
    pub how: Vec<String>,
}

impl Virtualization {
    /// Examines CPUID, DMI, the device tree, Xen's directory, cgroups and namespaces.
    ///
    /// Never fails: an unreadable hint is no hint.
    #[must_use]
    pub fn read(roots: &Roots, cpuid: &Cpuid) -> Self {
        let mut how = Vec::new();
        let (machine, hypervisor) = read_machine(roots, cpuid, &mut how);
        let container = container::detect(roots, &mut how);
        Self {
            machine,
            hypervisor,
            container,
            how,
        }
    }

    /// Formats the name for a sentence, as ` (KVM)`; empty if no name is known.
    #[must_use]
    pub(super) fn in_brackets(&self) -> String {
        self.hypervisor
            .as_ref()
            .map(|name| format!(" ({name})"))
            .unwrap_or_default()
    }
}

fn read_machine(roots: &Roots, cpuid: &Cpuid, how: &mut Vec<String>) -> (Machine, Option<String>) {
    let processor = by_cpuid(cpuid);
    match &processor {
        Some((true, Some(name))) => how.push(format!("CPUID names the hypervisor {name}")),
        Some((true, None)) => how.push("CPUID says that there is a hypervisor".to_owned()),
        Some((false, _)) => how.push("CPUID says that there is no hypervisor".to_owned()),
        None => {}
    }
    let firmware = by_xen(roots, how).or_else(|| by_firmware(roots, how));
    match (processor, firmware) {
        // Firmware names the product; the processor names only the technology, or nothing.
        (Some((true, name)), firmware) => (Machine::Virtual, name.or(firmware.flatten())),
        (_, Some(Some(name))) => (Machine::Virtual, Some(name)),
        (Some((false, _)), _) | (None, Some(None)) => (Machine::Bare, None),
        (None, None) => (Machine::Unknown, None),
    }
}

/// Returns whether the processor reports a hypervisor (leaf 1, ECX bit 31), and its name.
///
/// `None` without CPUID.
fn by_cpuid(cpuid: &Cpuid) -> Option<(bool, Option<String>)> {
    const HYPERVISOR: u32 = 1 << 31;
    if cpuid.ask(1, 0)?.ecx & HYPERVISOR == 0 {
        return Some((false, None));
    }
    let Registers { ebx, ecx, edx, .. } = cpuid.ask(0x4000_0000, 0)?;
    let bytes: Vec<u8> = [ebx, ecx, edx]
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect();
    Some((true, signature_name(&String::from_utf8_lossy(&bytes))))
}

/// Returns the hypervisor's name for the twelve letters of leaf 0x40000000.
fn signature_name(signature: &str) -> Option<String> {
    let signature = signature.trim_matches(|c: char| c == '\0' || c.is_whitespace());
    let name = match signature {
        "KVMKVMKVM" | "Linux KVM Hv" => "KVM",
        "Microsoft Hv" => "Hyper-V",
        "VMwareVMware" => "VMware",
        "XenVMMXenVMM" => "Xen",
        "TCGTCGTCGTCG" => "QEMU",
        "VBoxVBoxVBox" => "VirtualBox",
        "bhyve bhyve" | "BHyVE BHyVE" => "bhyve",
        "ACRNACRNACRN" => "ACRN",
        "prl hyperv" | "lrpepyh vr" => "Parallels",
        "QNXQVMBSQG" => "QNX",
        "EVMMEVMMEVMM" => "Intel KGT",
        other if other.chars().all(|c| c.is_ascii_graphic() || c == ' ') => other,
        _ => return None,
    };
    (!name.is_empty()).then(|| name.to_owned())
}

/// Looks for Xen's own directory. The outer option is `None` without it; the inner one is the name.
fn by_xen(roots: &Roots, how: &mut Vec<String>) -> Option<Option<String>> {
    let kind = file::hint(&roots.sys.join("hypervisor/type"))?;
    how.push(format!("/sys/hypervisor/type is {kind:?}"));
    Some(Some(if kind == "xen" {
        "Xen".to_owned()
    } else {
        kind
    }))
}

/// Looks for DMI or a device tree. The outer option is `None` without either; the inner one is the hypervisor's name.
fn by_firmware(roots: &Roots, how: &mut Vec<String>) -> Option<Option<String>> {
    let dmi = roots.sys.join("class/dmi/id");
    let strings: Vec<String> = ["sys_vendor", "product_name"]
        .iter()
        .filter_map(|name| file::hint(&dmi.join(name)))
        .collect();
    if !strings.is_empty() {
        how.push(format!("DMI names the machine {:?}", strings.join(" ")));
        return Some(product_name(&strings.join(" ")).map(ToOwned::to_owned));
    }
    let tree = roots.sys.join("firmware/devicetree/base");
    if let Some(compatible) = file::hint(&tree.join("hypervisor/compatible")) {
        let name = if compatible.contains("kvm") {
            "KVM".to_owned()
        } else if compatible.contains("xen") {
            "Xen".to_owned()
        } else {
            compatible.replace('\0', " ")
        };
        how.push(format!("the device tree names the hypervisor {name}"));
        return Some(Some(name));
    }
    let model = file::hint(&tree.join("model"))?;
    how.push(format!("the device tree names the machine {model:?}"));
    Some(product_name(&model).map(ToOwned::to_owned))
}

/// Returns the hypervisor whose virtual machines carry a product name like this.
fn product_name(product: &str) -> Option<&'static str> {
    const KNOWN: [(&str, &str); 13] = [
        ("QEMU", "QEMU"),
        ("KVM", "KVM"),
        ("VMware", "VMware"),
        ("VirtualBox", "VirtualBox"),
        ("innotek GmbH", "VirtualBox"),
        ("Xen", "Xen"),
        ("Microsoft Corporation Virtual Machine", "Hyper-V"),
        ("Google Compute Engine", "KVM"),
        ("OpenStack", "KVM"),
        ("DigitalOcean", "KVM"),
        ("Parallels", "Parallels"),
        ("BHYVE", "bhyve"),
        ("Apple Virtualization", "Apple Virtualization"),
    ];
    // Amazon also rents machines without a hypervisor; their product name contains "metal".
    if product.contains("Amazon EC2") {
        return (!product.contains("metal")).then_some("Amazon EC2");
    }
    KNOWN
        .iter()
        .find(|(part, _)| product.contains(part))
        .map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::CpuidTable;
    use std::fs;
    use std::path::Path;

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join("sys").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(root: &Path, cpuid: &str) -> Virtualization {
        let cpuid = if cpuid.is_empty() {
            Cpuid::none()
        } else {
            Cpuid::recorded(CpuidTable::parse(cpuid).unwrap())
        };
        Virtualization::read(&Roots::under(root), &cpuid)
    }

    const GUEST: &str = "1 0 0 0 80000000 0\n";
    const HOST: &str = "1 0 0 0 0 0\n";

    #[test]
    fn the_processor_decides_where_it_answers() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(read(root.path(), HOST).machine, Machine::Bare);
        let nameless = read(root.path(), GUEST);
        assert_eq!(
            (nameless.machine, nameless.hypervisor),
            (Machine::Virtual, None)
        );
        let kvm = format!("{GUEST}40000000 0 40000001 4b4d564b 564b4d56 4d\n");
        let kvm = read(root.path(), &kvm);
        assert_eq!(kvm.hypervisor.as_deref(), Some("KVM"));
        assert_eq!(kvm.how, ["CPUID names the hypervisor KVM"]);
        assert_eq!(kvm.in_brackets(), " (KVM)");
    }

    #[test]
    fn firmware_names_what_the_processor_does_not() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "class/dmi/id/sys_vendor", "QEMU\n");
        write(
            root.path(),
            "class/dmi/id/product_name",
            "Standard PC (Q35 + ICH9, 2009)\n",
        );
        for cpuid in ["", GUEST, HOST] {
            let found = read(root.path(), cpuid);
            assert_eq!(found.machine, Machine::Virtual, "{cpuid:?}");
            assert_eq!(found.hypervisor.as_deref(), Some("QEMU"));
        }
    }

    #[test]
    fn without_cpuid_firmware_decides_and_without_either_nothing_does() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(read(root.path(), "").machine, Machine::Unknown);
        write(
            root.path(),
            "firmware/devicetree/base/model",
            "Raspberry Pi 5 Model B\0",
        );
        assert_eq!(read(root.path(), "").machine, Machine::Bare);
        write(
            root.path(),
            "firmware/devicetree/base/hypervisor/compatible",
            "xen,xen-4.17\0xen,xen\0",
        );
        assert_eq!(read(root.path(), "").hypervisor.as_deref(), Some("Xen"));
    }

    #[test]
    fn xen_says_so_itself() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "hypervisor/type", "xen\n");
        let found = read(root.path(), HOST);
        assert_eq!(
            (found.machine, found.hypervisor.as_deref()),
            (Machine::Virtual, Some("Xen"))
        );
    }

    #[test]
    fn rented_machines_without_hypervisor_are_told_apart() {
        assert_eq!(product_name("Amazon EC2 m7g.large"), Some("Amazon EC2"));
        assert_eq!(product_name("Amazon EC2 m7g.metal"), None);
        assert_eq!(
            product_name("Microsoft Corporation Virtual Machine"),
            Some("Hyper-V")
        );
        assert_eq!(product_name("Microsoft Corporation Surface Laptop 5"), None);
        assert_eq!(product_name("LENOVO 21CB"), None);
    }

    #[test]
    fn unknown_signatures_are_shown_only_if_readable() {
        assert_eq!(
            signature_name("MyHypervisor").as_deref(),
            Some("MyHypervisor")
        );
        assert_eq!(signature_name("\0\0\0\0\0\0\0\0\0\0\0\0"), None);
        assert_eq!(signature_name("\u{1}\u{2}abc"), None);
    }
}

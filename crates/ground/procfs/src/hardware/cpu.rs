//! The processor: its maker, its online CPUs and its NUMA nodes.

use serde::Serialize;
use superhue_model::ByteCount;

use super::CpuList;
use crate::system::file::{self, Attributes};
use crate::system::meminfo::kibibytes;
use crate::system::{Gaps, ParseError};
use crate::{ReadError, Roots};

/// Contents of `/proc/cpuinfo` about the first CPU.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuInfo {
    /// Maker, e.g. `GenuineIntel`, `Arm`.
    pub vendor: Option<String>,
    /// Model as its maker calls it; on arm64 the part number, since there is no name.
    pub model: Option<String>,
    /// Numbers of the listed CPUs.
    pub listed: CpuList,
}

impl CpuInfo {
    /// Reads `/proc/cpuinfo`: paragraphs of `name : value`, one per CPU.
    ///
    /// x86 has `vendor_id` and `model name`; arm64 has numbers only (`CPU implementer`, `CPU part`,
    /// see `arch/arm64/kernel/cpuinfo.c`). Never fails: every architecture has its own form, and unrecognised
    /// lines leave the fields unknown.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut info = Self::default();
        let mut listed = Vec::new();
        for line in text.lines() {
            let Some((name, value)) = line.split_once(':') else {
                continue;
            };
            let value = value.trim();
            match name.trim() {
                "processor" => listed.extend(value.parse::<u32>().ok()),
                "vendor_id" => keep_first(&mut info.vendor, value),
                "model name" => keep_first(&mut info.model, value),
                "CPU implementer" => keep_first(&mut info.vendor, implementer(value)),
                "CPU part" => keep_first(&mut info.model, &format!("part {value}")),
                _ => {}
            }
        }
        info.listed = listed.into_iter().collect();
        info
    }
}

fn keep_first(field: &mut Option<String>, value: &str) {
    if field.is_none() && !value.is_empty() {
        *field = Some(value.to_owned());
    }
}

/// Returns the maker of a number (`arch/arm64/include/asm/cputype.h`); the number itself if unknown.
fn implementer(number: &str) -> &str {
    match number {
        "0x41" => "Arm",
        "0x42" => "Broadcom",
        "0x43" => "Cavium",
        "0x46" => "Fujitsu",
        "0x48" => "HiSilicon",
        "0x4e" => "NVIDIA",
        "0x51" => "Qualcomm",
        "0x61" => "Apple",
        "0x6d" => "Microsoft",
        "0xc0" => "Ampere",
        other => other,
    }
}

/// One NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Number of the node.
    pub id: u64,
    /// Online CPUs; empty for a node that only has memory.
    pub cpus: Option<CpuList>,
    /// Memory of the node.
    pub memory: Option<ByteCount>,
}

/// The processor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// Maker.
    pub vendor: Option<String>,
    /// Model.
    pub model: Option<String>,
    /// Online CPUs.
    pub online: CpuList,
    /// NUMA nodes, ascending; empty on a kernel without NUMA, and where a container hides them.
    pub nodes: Vec<Node>,
    /// Reasons for `None` fields above, or for other sources of their values.
    pub gaps: Gaps,
}

impl Cpu {
    /// Reads `/proc/cpuinfo` and `/sys/devices/system/{cpu,node}`.
    ///
    /// # Errors
    /// If `/proc/cpuinfo` cannot be read.
    pub fn read(roots: &Roots) -> Result<Self, ReadError> {
        let path = roots.proc.join("cpuinfo");
        let info = file::read(&path, "procfs is not mounted here", |text| {
            Ok(CpuInfo::parse(text))
        })?;
        let mut devices = Attributes::of(roots.sys.join("devices/system"));
        let online = devices.get("cpu/online", CpuList::parse);
        let nodes = read_nodes(roots, &mut devices);
        let mut gaps = devices.into_gaps();
        for (name, value) in [("vendor", &info.vendor), ("model", &info.model)] {
            if value.is_none() {
                gaps.note(name, "not in /proc/cpuinfo");
            }
        }
        let CpuInfo {
            vendor,
            model,
            listed,
        } = info;
        Ok(Self {
            vendor,
            model,
            online: online.unwrap_or(listed),
            nodes,
            gaps,
        })
    }
}

fn read_nodes(roots: &Roots, devices: &mut Attributes) -> Vec<Node> {
    let directory = roots.sys.join("devices/system/node");
    let node = |(id, _)| Node {
        id,
        cpus: devices.get(&format!("node/node{id}/cpulist"), CpuList::parse),
        memory: devices.get(&format!("node/node{id}/meminfo"), node_memory),
    };
    file::numbered(&directory, "node", "")
        .unwrap_or_default()
        .into_iter()
        .map(node)
        .collect()
}

/// Reads `MemTotal` of a node's `meminfo`: `Node 0 MemTotal:       24684096 kB`.
fn node_memory(text: &str) -> Result<ByteCount, ParseError> {
    text.lines()
        .find_map(|line| line.split_once("MemTotal:"))
        .and_then(|(_, amount)| kibibytes(amount))
        .ok_or_else(|| ParseError::new("no MemTotal in kB"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_cpu_names_the_model() {
        let info = CpuInfo::parse(
            "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Some CPU @ 2.00GHz\n\n\
             processor\t: 1\nvendor_id\t: Other\nmodel name\t:\n",
        );
        assert_eq!(info.vendor.as_deref(), Some("GenuineIntel"));
        assert_eq!(info.model.as_deref(), Some("Some CPU @ 2.00GHz"));
        assert_eq!(info.listed.numbers(), [0, 1]);
    }

    #[test]
    fn arm_has_numbers_only() {
        let info = CpuInfo::parse("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n");
        assert_eq!(info.vendor.as_deref(), Some("Arm"));
        assert_eq!(info.model.as_deref(), Some("part 0xd0c"));
        assert_eq!(
            CpuInfo::parse("CPU implementer : 0x99").vendor.as_deref(),
            Some("0x99")
        );
    }

    #[test]
    fn a_nodes_memory_is_found_or_missed() {
        let text = "Node 1 MemTotal:       2048 kB\nNode 1 MemFree:  1 kB\n";
        assert_eq!(node_memory(text), Ok(ByteCount(2 << 20)));
        assert!(node_memory("Node 1 MemFree: 1 kB\n").is_err());
    }

    proptest! {
        #[test]
        fn never_panics(text in ".*") {
            let _ = (CpuInfo::parse(&text), node_memory(&text));
        }
    }
}

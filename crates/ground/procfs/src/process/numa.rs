//! `/proc/PID/numa_maps`: the memory policies of mappings (`numa(7)`).
//!
//! Memory that is interleaved between NUMA nodes takes turns by base pages. A collapse puts all 2 MiB on the node that holds most of the pages
//! (`hpage_collapse_find_target_node` in mm/khugepaged.c), and of equal ones always on the same, so it would undo the interleaving.

use std::collections::BTreeSet;
use std::fs;

use superhue_model::VirtAddr;

use crate::hardware::CpuList;
use crate::{ReadError, Roots};

use super::file::for_each_line;
use super::text::{ParseError, hex, next_field};

/// Returns the first addresses of the mappings of `pid` whose pages are interleaved between nodes, by a policy of their own or that of the process.
///
/// On a machine where one node has all memory this reads nothing. Elsewhere the kernel walks all page tables, as for `smaps`.
///
/// # Errors
/// See [`ReadError`].
pub fn interleaved(roots: &Roots, pid: u32) -> Result<BTreeSet<VirtAddr>, ReadError> {
    let mut found = BTreeSet::new();
    if !has_nodes(roots) {
        return Ok(found);
    }
    for_each_line(pid, &roots.of_process(pid, "numa_maps"), |number, line| {
        found.extend(parse_interleaved(line).ok_or_else(|| ParseError::new(number, "no address"))?);
        Ok(())
    })?;
    Ok(found)
}

/// Returns true if more than one node has memory.
#[must_use]
pub fn has_nodes(roots: &Roots) -> bool {
    let path = roots.sys.join("devices/system/node/has_memory");
    fs::read(path).is_ok_and(|nodes| counts_several(&nodes))
}

/// Returns true for a list of two nodes at least.
fn counts_several(list: &[u8]) -> bool {
    let text = str::from_utf8(list).unwrap_or_default();
    CpuList::parse(text).is_ok_and(|nodes| nodes.len() > 1)
}

/// Parses a line: `Some(None)` for a mapping that is not interleaved, and `None` for no line of this file.
#[must_use]
pub fn parse_interleaved(line: &[u8]) -> Option<Option<VirtAddr>> {
    let mut rest = line;
    let start = VirtAddr(hex(next_field(&mut rest)?)?);
    let policy = rest.trim_ascii_start();
    let policy = policy.strip_prefix(b"weighted ").unwrap_or(policy);
    // `interleave:0-1`, or with flags: `interleave=static:0-1`.
    let mut nodes = policy.strip_prefix(b"interleave").unwrap_or_default();
    let nodes = match nodes.first() {
        Some(b':' | b'=') => next_field(&mut nodes).unwrap_or_default(),
        _ => &[],
    };
    let colon = nodes.iter().position(|&byte| byte == b':');
    let list = colon.and_then(|colon| nodes.get(colon + 1..));
    let is_interleaved = counts_several(list.unwrap_or_default());
    Some(is_interleaved.then_some(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Option<Option<u64>> {
        let found = parse_interleaved(line.as_bytes())?;
        Some(found.map(|start| start.0))
    }

    #[test]
    fn policies_that_take_turns_between_nodes_are_recognised() {
        let turns = Some(Some(0x7f12_3400_0000));
        for policy in [
            "interleave:0-1",
            "interleave:0,2",
            "interleave=static:0-3",
            "interleave=relative|balancing:0-1",
            "weighted interleave:0-1",
        ] {
            let line = format!("7f1234000000 {policy} anon=512 dirty=512 N0=256 N1=256");
            assert_eq!(parsed(&line), turns, "{line}");
            assert_eq!(parsed(&format!("7f1234000000 {policy}")), turns);
        }
        for policy in [
            "default",
            "local",
            "bind:0-1",
            "prefer:1",
            "prefer (many):0-1",
            "interleave:1",
            "interleave",
            "interleave:",
            "interleave 0-1",
            "interleaved:0-1",
        ] {
            let line = format!("7f1234000000 {policy} anon=512");
            assert_eq!(parsed(&line), Some(None), "{line}");
        }
        for wrong in ["", "heap", "7F12 default"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_a_machine_with_two_nodes_is_asked() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let node = roots.sys.join("devices/system/node");
        let process = roots.proc.join("7");
        for folder in [&node, &process] {
            fs::create_dir_all(folder).unwrap();
        }
        assert_eq!(interleaved(&roots, 7).unwrap(), BTreeSet::new());
        fs::write(node.join("has_memory"), "0\n").unwrap();
        assert_eq!(interleaved(&roots, 7).unwrap(), BTreeSet::new());
        fs::write(node.join("has_memory"), "0-1\n").unwrap();
        let error = interleaved(&roots, 7).unwrap_err();
        assert!(error.is_vanished(), "{error}");
        let text =
            "1000 default file=/bin/true mapped=1 N0=1\n20000 interleave:0-1 anon=2 N0=1 N1=1\n";
        fs::write(process.join("numa_maps"), text).unwrap();
        let found = interleaved(&roots, 7).unwrap();
        assert_eq!(found, BTreeSet::from([VirtAddr(0x20000)]));
        fs::write(process.join("numa_maps"), "nonsense\n").unwrap();
        assert!(interleaved(&roots, 7).is_err());
    }
}

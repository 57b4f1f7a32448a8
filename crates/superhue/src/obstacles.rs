//! Obstacles to huge pages, checked right before each collapse with the reasons of [`crate::why`], so that Superhue tries none that must fail.
//!
//! The flags of mappings are in `smaps` alone, which walks all page tables: 60 ms for 8 GiB. So they are read at the first question about a process,
//! and again after two seconds, or after two thousand times the duration of the read. After two hundred times it is read again before an obstacle is
//! named, because the program may have removed it; before memory of shared objects is collapsed, because older kernels do not ask all mappers; and on a
//! machine with several NUMA nodes, because the kernel does not refuse to collapse interleaved memory. A refusal by the kernel in between is explained
//! by a new read, if the last one is older than fifty times its duration.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use superhue_act::Target;
use superhue_model::{ByteCount, Errno, PageCount, ProcessId, Region, SkipReason, VirtRange};
use superhue_procfs::Roots;
use superhue_procfs::process::{has_nodes, resident_now, status, vma_uses};
use superhue_sys::urgency;

use crate::cpu::whole_read;
use crate::why::{Mapping, Reason};

/// Shortest time for which flags of mappings are reused, and the same as a multiple of the time that it took to read them.
const BELIEVED: Duration = Duration::from_secs(2);
const PACE: u32 = 2000;
const PACE_OF_DOUBT: u32 = 200;

/// The same after a refusal by the kernel, or where a mapping is new.
const BRIEFLY: Duration = Duration::from_millis(100);
const PACE_OF_TROUBLE: u32 = 50;

/// Largest number of processes that are remembered as read before.
const MOST_READ: usize = 4096;

/// Obstacles to huge pages in the memory of processes.
#[derive(Debug)]
pub(crate) struct Obstacles {
    roots: Roots,
    /// True if more than one NUMA node has memory.
    has_nodes: bool,
    known: HashMap<ProcessId, CachedMappings>,
    /// Processes whose flags were read before, and their resident pages at the last read that was part of an action.
    read: HashMap<ProcessId, PageCount>,
}

/// The mappings of a process, ascending.
#[derive(Debug)]
struct CachedMappings {
    mappings: Vec<(VirtRange, Mapping)>,
    read: Instant,
    took: Duration,
}

impl CachedMappings {
    /// Returns true if they count at `now`, for as long as reading them took, times `pace`.
    fn is_recent(&self, now: Instant, least: Duration, pace: u32) -> bool {
        now < self.read + least.max(self.took * pace)
    }
}

impl CachedMappings {
    /// Returns the mapping that contains the whole region.
    fn mapping_of(&self, region: Region) -> Option<&Mapping> {
        let range = region.range();
        let at = self
            .mappings
            .partition_point(|(mapped, _)| mapped.end <= range.start);
        let (mapped, mapping) = self.mappings.get(at)?;
        mapped.contains(&range).then_some(mapping)
    }
}

impl Obstacles {
    pub(crate) fn new(roots: &Roots) -> Self {
        Self {
            roots: roots.clone(),
            has_nodes: has_nodes(roots),
            known: HashMap::new(),
            read: HashMap::new(),
        }
    }

    /// Returns the reason against the collapse of `target`; `None` without one.
    pub(crate) fn object(&mut self, target: &Target) -> Option<SkipReason> {
        let now = Instant::now();
        let in_doubt = self.has_nodes || target.object.is_some();
        let pace = if in_doubt { PACE_OF_DOUBT } else { PACE };
        self.read_after(BELIEVED, pace, target.process, now);
        // The kernel refuses a collapse for each reason but one: memory that was mapped meanwhile may be interleaved.
        let is_unknown = |known: &CachedMappings| known.mapping_of(target.region).is_none();
        if self.has_nodes
            && self.known.get(&target.process).is_some_and(is_unknown)
            && !self.relearn(target.process, now)
        {
            return Some(SkipReason::Unmapped);
        }
        let obstacle = self.of_region(target.process, target.region)?;
        match self.read_after(BELIEVED, PACE_OF_DOUBT, target.process, now) {
            true => self.of_region(target.process, target.region),
            false => Some(obstacle),
        }
    }

    /// Reads the flags of a process again, unless that was done a moment ago; returns true if it was not.
    fn relearn(&mut self, id: ProcessId, now: Instant) -> bool {
        self.read_after(BRIEFLY, PACE_OF_TROUBLE, id, now)
    }

    /// Reads the flags of a process again if the last time is longer ago than `least`, and than it took, times `pace`; returns true if it was.
    fn read_after(&mut self, least: Duration, pace: u32, id: ProcessId, now: Instant) -> bool {
        let is_recent = |known: &CachedMappings| known.is_recent(now, least, pace);
        if self.known.get(&id).is_some_and(is_recent) {
            return false;
        }
        (self.known).retain(|_, known| known.is_recent(now, BELIEVED, PACE));
        self.learn(id);
        true
    }

    /// Returns the reason why the kernel refused a collapse, if one can be found.
    pub(crate) fn explain(
        &mut self,
        process: ProcessId,
        region: Region,
        errno: Errno,
    ) -> Option<SkipReason> {
        if matches!(errno, Errno::EAGAIN | Errno::EBUSY) {
            let pinned = status(&self.roots, process.pid).ok()?.pinned?;
            return (pinned > ByteCount(0)).then_some(SkipReason::Pinned);
        }
        if errno != Errno::EINVAL {
            return None;
        }
        self.relearn(process, Instant::now());
        let known = self.known.get(&process)?;
        match known.mapping_of(region) {
            Some(_) => self.of_region(process, region),
            None => Some(SkipReason::Unmapped),
        }
    }

    fn learn(&mut self, id: ProcessId) {
        if self.read.len() >= MOST_READ {
            let known = &self.known;
            self.read.retain(|id, _| known.contains_key(id));
        }
        let resident = resident_now(&self.roots, id.pid).map_or(PageCount(0), |now| now.total);
        let before = self.read.get(&id);
        if before.is_none_or(|before| resident.0 > before.0 * 2) {
            self.read.insert(id, resident);
            self.read_flags(id);
        } else {
            whole_read(|| self.read_flags(id));
        }
    }

    fn read_flags(&mut self, id: ProcessId) {
        let begun = Instant::now();
        // This walks all page tables of the process.
        let Ok(vmas) = urgency::suspended(|| vma_uses(&self.roots, id.pid)) else {
            // Without flags nothing objects; the kernel itself then accepts or refuses the collapse.
            return;
        };
        let allowed = status(&self.roots, id.pid)
            .ok()
            .and_then(|status| status.thp_enabled);
        let disabled = allowed == Some(false);
        let mappings = urgency::suspended(|| Mapping::all(&self.roots, id, &vmas, disabled));
        let ranges = vmas.iter().map(|vma| vma.vma.range);
        let mappings = ranges.zip(mappings).collect();
        let read = Instant::now();
        let took = read - begun;
        let mappings = CachedMappings {
            mappings,
            read,
            took,
        };
        self.known.insert(id, mappings);
    }

    fn of_region(&self, id: ProcessId, region: Region) -> Option<SkipReason> {
        let mapping = self.known.get(&id)?.mapping_of(region)?;
        if mapping.is_guarded(&self.roots, id, region) {
            return Some(SkipReason::Guarded);
        }
        match mapping.obstacle()? {
            Reason::Forbidden => Some(SkipReason::Forbidden),
            Reason::Disabled => Some(SkipReason::Disabled),
            Reason::Userfaultfd => Some(SkipReason::Userfaultfd),
            Reason::Interleaved => Some(SkipReason::Interleaved),
            _ => Some(SkipReason::OtherKind),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use superhue_model::VirtAddr;

    use super::*;
    use crate::cpu::take_reads;

    const SMAPS: &str = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 
Size:               4096 kB
Rss:                4096 kB
VmFlags: rd wr mr mw me ac
";

    #[test]
    fn what_takes_turns_between_nodes_stays_there() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let node = roots.sys.join("devices/system/node");
        let process = roots.proc.join("7");
        for folder in [&node, &process] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(process.join("smaps"), SMAPS).unwrap();
        let policies = "7f0000000000 interleave:0-1 anon=1024 dirty=1024 N0=512 N1=512\n";
        fs::write(process.join("numa_maps"), policies).unwrap();
        let id = ProcessId {
            pid: 7,
            start_ticks: 1,
        };
        let target = Target::at(id, Region::containing(VirtAddr(0x7f00_0020_0000)));
        let object = |nodes: &str| {
            fs::write(node.join("has_memory"), nodes).unwrap();
            Obstacles::new(&roots).object(&target)
        };
        assert_eq!(object("0-1\n"), Some(SkipReason::Interleaved));
        // Memory that was mapped since the mappings were read.
        let later = Target::at(id, Region::containing(VirtAddr(0x7f00_0060_0000)));
        let mut obstacles = Obstacles::new(&roots);
        assert_eq!(obstacles.object(&target), Some(SkipReason::Interleaved));
        assert_eq!(obstacles.object(&later), Some(SkipReason::Unmapped));
        assert_eq!(object("0\n"), None);
        fs::write(
            process.join("numa_maps"),
            "7f0000000000 bind:0-1 anon=1024\n",
        )
        .unwrap();
        assert_eq!(object("0-1\n"), None);
    }

    #[test]
    fn only_later_reads_of_a_process_are_watching() {
        let roots = Roots::default();
        let mut obstacles = Obstacles::new(&roots);
        let id = superhue_procfs::process::identify(&roots, std::process::id()).unwrap();
        let _ = take_reads();
        obstacles.learn(id);
        assert_eq!(take_reads(), Duration::ZERO);
        obstacles.learn(id);
        assert!(take_reads() > Duration::ZERO);
        assert_eq!(take_reads(), Duration::ZERO);
    }
}

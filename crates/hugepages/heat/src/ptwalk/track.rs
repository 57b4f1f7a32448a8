//! The tracker itself.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::time::{Duration, Instant};

use superhue_model::{ProcessId, VirtRange, Vma, VmaKind};
use superhue_procfs::process::{self, NamedVma, VmFlags};
use superhue_procfs::{ReadError, Roots};

use super::decode;
use super::load::may_load;
use super::walker::{WalkError, Walker};
use crate::clear_refs::{ClearRefs, may_flush};
use crate::{ArmingResult, Reading, RegionBits, Scope, TrackError, Tracker, TrackerKind};

/// Number of attempts to arm a process that replaces its memory meanwhile.
const ATTEMPTS: usize = 3;

/// The tracker `ptwalk`: accessed bits of every page, read from the page tables by a BPF program.
///
/// Holds one descriptor per process that was armed, until [`release`](Tracker::release).
pub struct PtwalkTracker {
    roots: Roots,
    scope: Scope,
    may_flush: bool,
    walker: Walker,
    watched: HashMap<ProcessId, Target>,
}

/// One process.
#[derive(Debug)]
struct Target {
    clear_refs: ClearRefs,
    /// Number of the memory that it had when it was armed; `None` if it was not armed yet.
    memory: Option<u64>,
    /// True if it maps shared objects in scope; `None` before the first read.
    maps_objects: Option<bool>,
    /// True if arming cleared the bits of files and shared objects as well.
    all_cleared: bool,
    hugetlb: Hugetlb,
}

/// Mappings of files with huge entries, and those that are hugetlb memory, as of the last change.
#[derive(Debug, Default)]
struct Hugetlb {
    looked_at: Vec<VirtRange>,
    found: Vec<VirtRange>,
}

impl PtwalkTracker {
    /// Loads the BPF program, and finds out where the kernel maps memory, and whether the TLB can be flushed. Takes some tens of milliseconds.
    ///
    /// # Errors
    /// [`TrackError::Unusable`] with the reason: capabilities, BTF, age or lockdown of the kernel, a
    /// PID namespace, or a build without it.
    pub fn new(roots: &Roots, scope: Scope) -> Result<Self, TrackError> {
        let walker = Walker::new(roots).map_err(unusable)?;
        Ok(Self {
            roots: roots.clone(),
            scope,
            may_flush: may_flush(roots),
            walker,
            watched: HashMap::new(),
        })
    }

    /// Returns true if it probably works here: what it needs and what is cheap to see is there. Only [`new`](Self::new) tells.
    #[must_use]
    pub fn may_work(roots: &Roots) -> bool {
        may_load(roots)
    }

    pub(super) const fn roots(&self) -> &Roots {
        &self.roots
    }

    pub(super) const fn user_end(&self) -> u64 {
        self.walker.user_end()
    }

    /// Returns the number of the memory that `process` has now.
    pub(super) fn memory_now(&mut self, process: ProcessId) -> Result<u64, TrackError> {
        match self.walker.memory_of(process) {
            Ok(memory) => Ok(memory),
            Err(why) => Err(self.explain(process, why)),
        }
    }

    /// Returns the bits that the page tables have now for `spans` (ascending, whole regions).
    pub(super) fn walk_now(
        &mut self,
        process: ProcessId,
        memory: u64,
        spans: &[VirtRange],
    ) -> Result<Vec<RegionBits>, TrackError> {
        let walked = match self.walker.walk(process, memory, spans) {
            Ok(walked) => walked,
            Err(why) => return Err(self.explain(process, why)),
        };
        if walked.beyond {
            self.walker.refresh(&self.roots).map_err(unusable)?;
        }
        Ok(walked.regions)
    }

    /// Turns a missing answer about `process` into an error.
    fn explain(&self, process: ProcessId, why: WalkError) -> TrackError {
        let pid = process.pid;
        let vanished = TrackError::Read(ReadError::Vanished { pid });
        match why {
            WalkError::Replaced => TrackError::Replaced(process),
            WalkError::Broken(why) => unusable(why),
            WalkError::Gone | WalkError::Other if !process::still_is(&self.roots, process) => {
                vanished
            }
            WalkError::Gone => match process::stat(&self.roots, pid) {
                Ok(stat) if stat.is_kernel_thread() => ReadError::KernelThread { pid }.into(),
                Err(error) => error.into(),
                Ok(_) => vanished,
            },
            WalkError::Other => unusable(format!(
                "number {pid} is another process to the kernel than in {}: it shows another PID \
                 namespace",
                self.roots.proc.display()
            )),
        }
    }

    /// Returns the process's mappings whose accessed bits arming clears, ascending.
    fn mappings(&self, process: ProcessId) -> Result<Vec<Vma>, ReadError> {
        process::maps_where(&self.roots, process.pid, |mapping| {
            is_cleared(mapping, self.scope)
        })
    }
}

/// Returns true if `clear_refs` clears the bits of a mapping. Memory that it skips would always look hot.
fn is_cleared(mapping: &NamedVma, scope: Scope) -> bool {
    match mapping.vma.kind {
        // `clear_refs` skips such a mapping because of its file, although its memory is anonymous.
        VmaKind::Anonymous if scope != Scope::All => {
            let name = mapping.name.as_deref();
            name.is_none_or(|name| !name.starts_with("/dev/zero"))
        }
        VmaKind::Anonymous | VmaKind::Heap | VmaKind::Stack => true,
        VmaKind::PrivateFile | VmaKind::Shared => scope == Scope::All,
        VmaKind::Shmem(_) | VmaKind::File(_) => scope.includes(&mapping.vma),
        VmaKind::Special => false,
    }
}

/// Returns the ranges of mappings of files that hold a huge entry: pages of a file system, or hugetlb.
fn with_huge_entries(mappings: &[Vma], found: &[RegionBits]) -> Vec<VirtRange> {
    let files = mappings.iter().filter(|vma| {
        matches!(
            vma.kind,
            VmaKind::PrivateFile | VmaKind::Shared | VmaKind::File(_)
        )
    });
    let is_huge = |range: &VirtRange| {
        let first = found.partition_point(|bits| bits.region.start() < range.start);
        let inside = found.iter().skip(first);
        inside
            .take_while(|bits| bits.region.start() < range.end)
            .any(|bits| bits.huge)
    };
    files.map(|vma| vma.range).filter(is_huge).collect()
}

impl Hugetlb {
    /// Removes from `mappings` those that are hugetlb memory.
    fn leave_out(
        &mut self,
        roots: &Roots,
        process: ProcessId,
        mappings: &mut Vec<Vma>,
        found: &[RegionBits],
    ) -> Result<(), ReadError> {
        let candidates = with_huge_entries(mappings, found);
        if candidates != self.looked_at {
            self.found.clear();
            // Slow: the kernel walks all the memory. So it is read only after a change, and not at all where no huge entry maps a file.
            if !candidates.is_empty() {
                let uses = process::vma_uses(roots, process.pid)?;
                let hugetlb = uses.iter().filter(|one| {
                    one.flags
                        .is_none_or(|flags| flags.contains(VmFlags::HUGETLB))
                });
                self.found.extend(hugetlb.map(|one| one.vma.range));
            }
            self.looked_at = candidates;
        }
        if !self.found.is_empty() {
            mappings.retain(|mapping| {
                let range = mapping.range;
                !self
                    .found
                    .iter()
                    .any(|one| one.start < range.end && range.start < one.end)
            });
        }
        Ok(())
    }
}

impl Tracker for PtwalkTracker {
    fn kind(&self) -> TrackerKind {
        TrackerKind::Ptwalk
    }

    fn arm(&mut self, process: ProcessId) -> Result<ArmingResult, TrackError> {
        let started = Instant::now();
        let watched = match self.watched.entry(process) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(Target {
                clear_refs: ClearRefs::open(&self.roots, process)?,
                memory: None,
                maps_objects: None,
                all_cleared: false,
                hugetlb: Hugetlb::default(),
            }),
        };
        watched.memory = None;
        // Bits of shared memory are cleared with those of all files, or not at all.
        let all = match (self.scope, watched.maps_objects) {
            (Scope::Anonymous, _) => false,
            // The next read sees objects that come later.
            (Scope::Promotable | Scope::SwapBacked, Some(known)) => known,
            (Scope::Promotable | Scope::SwapBacked, None) => self
                .scope
                .has_objects(&process::maps(&self.roots, process.pid)?),
            (Scope::All, _) => true,
        };
        watched.all_cleared = all;
        let mut locked = std::time::Duration::ZERO;
        for _ in 0..ATTEMPTS {
            // The cleared memory is known only if it was the process's memory before and after.
            let before = self.walker.memory_of(process);
            let before = match before {
                Ok(before) => before,
                Err(why) => return Err(self.explain(process, why)),
            };
            locked += watched.clear_refs.clear(all)?;
            if self.may_flush {
                locked += watched.clear_refs.flush()?;
            }
            match self.walker.memory_of(process) {
                Ok(after) if after == before => {
                    watched.memory = Some(after);
                    return Ok(ArmingResult {
                        took: started.elapsed(),
                        elsewhere: Duration::ZERO,
                        locked,
                        flushed: self.may_flush,
                    });
                }
                Ok(_) => {}
                Err(why) => return Err(self.explain(process, why)),
            }
        }
        Err(TrackError::Replaced(process))
    }

    fn read(&mut self, process: ProcessId, ranges: &[VirtRange]) -> Result<Reading, TrackError> {
        let memory = self.watched.get(&process).and_then(|one| one.memory);
        let memory = memory.ok_or(TrackError::Replaced(process))?;
        let spans = decode::spans(ranges, self.walker.user_end());
        let mut walked = match self.walker.walk(process, memory, &spans) {
            Ok(walked) => walked,
            Err(why) => return Err(self.explain(process, why)),
        };
        if walked.beyond {
            self.walker.refresh(&self.roots).map_err(unusable)?;
        }
        // The mappings are read after the walk, so that memory that went is left out, whatever its page tables still held or became.
        let mut mappings = self.mappings(process)?;
        if let Some(watched) = self.watched.get_mut(&process) {
            watched.maps_objects = Some(self.scope.has_objects(&mappings));
            if !watched.all_cleared {
                mappings.retain(|mapping| mapping.kind.part().is_none());
            }
            if self.scope == Scope::All {
                let found = &walked.regions;
                let hugetlb = &mut watched.hugetlb;
                hugetlb.leave_out(&self.roots, process, &mut mappings, found)?;
            }
        }
        // After all that, the process must still have the same memory.
        match self.walker.memory_of(process) {
            Ok(now) if now == memory => {}
            Ok(_) => return Err(TrackError::Replaced(process)),
            Err(why) => return Err(self.explain(process, why)),
        }
        let mapped: Vec<VirtRange> = mappings.iter().map(|mapping| mapping.range).collect();
        decode::confine(&mut walked.regions, &decode::intersect(ranges, &mapped));
        Ok(Reading::Pages(walked.regions))
    }

    fn release(&mut self, process: ProcessId) {
        self.watched.remove(&process);
    }
}

impl fmt::Debug for PtwalkTracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PtwalkTracker")
            .field("scope", &self.scope)
            .field("flushes", &self.may_flush)
            .field("levels", &self.walker.levels())
            .field("watched", &self.watched.len())
            .finish_non_exhaustive()
    }
}

pub(super) fn unusable(why: String) -> TrackError {
    TrackError::Unusable {
        kind: TrackerKind::Ptwalk,
        why,
    }
}

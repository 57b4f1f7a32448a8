//! `/proc/PID/smaps` and `smaps_rollup`: resident memory by kind, by VMA and in total.
//!
//! Format: `proc_pid_smaps(5)`, `fs/proc/task_mmu.c`. The kernel walks every page table of the process
//! under its memory-map lock for either, so they are for reports, not for every tick. Kernels have added lines
//! over the years; each is an [`Option`], and unknown lines are skipped.

use std::fs;

use superhue_model::{ByteCount, ObjectPart, Vma};

use crate::{ReadError, Roots};

use super::absent::{across_exec, refine, without_memory};
use super::file::for_each_line;
use super::maps::{MapsLine, NamedVma, Order};
use super::shmem::FileDevices;
use super::text::{self, ParseError};
use super::vm_flags::VmFlags;

/// Meaning of the absence of `smaps`.
const NO_SMAPS: &str = "this kernel was built without CONFIG_PROC_PAGE_MONITOR";

/// Resident memory of a VMA or a process, by kind, in bytes.
///
/// Unlike for the counters in `status`, the kernel counts page by page. The shared zero page is not
/// part of any field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryUse {
    /// Resident (`Rss`).
    pub rss: Option<ByteCount>,
    /// Resident, each page divided by the number of processes that map it (`Pss`).
    pub pss: Option<ByteCount>,
    /// The anonymous part of `pss` (`Pss_Anon`, Linux 5.4); of a whole process only.
    pub pss_anon: Option<ByteCount>,
    /// Mapped by other processes too, and not written (`Shared_Clean`).
    pub shared_clean: Option<ByteCount>,
    /// Mapped by other processes too, and written (`Shared_Dirty`).
    pub shared_dirty: Option<ByteCount>,
    /// Mapped by this process alone, and not written (`Private_Clean`).
    pub private_clean: Option<ByteCount>,
    /// Mapped by this process alone, and written (`Private_Dirty`).
    pub private_dirty: Option<ByteCount>,
    /// Marked as accessed since the mark was last cleared (`Referenced`).
    pub referenced: Option<ByteCount>,
    /// Memory that belongs to no file (`Anonymous`).
    pub anonymous: Option<ByteCount>,
    /// Merged with equal pages (`KSM`, Linux 6.6).
    pub ksm: Option<ByteCount>,
    /// Freed lazily by the program and not yet reclaimed (`LazyFree`, Linux 4.12).
    pub lazy_free: Option<ByteCount>,
    /// Anonymous, mapped by huge pages (`AnonHugePages`). A huge page that is mapped page by page
    /// does not count.
    pub anon_huge: Option<ByteCount>,
    /// Shared memory mapped by huge pages (`ShmemPmdMapped`, Linux 4.8).
    pub shmem_huge: Option<ByteCount>,
    /// File pages mapped by huge pages (`FilePmdMapped`, Linux 5.4).
    pub file_huge: Option<ByteCount>,
    /// Swapped out (`Swap`).
    pub swap: Option<ByteCount>,
    /// Locked (`Locked`).
    pub locked: Option<ByteCount>,
}

impl MemoryUse {
    /// Returns the field that a line of the file fills.
    fn field(&mut self, key: &[u8]) -> Option<&mut Option<ByteCount>> {
        Some(match key {
            b"Rss" => &mut self.rss,
            b"Pss" => &mut self.pss,
            b"Pss_Anon" => &mut self.pss_anon,
            b"Shared_Clean" => &mut self.shared_clean,
            b"Shared_Dirty" => &mut self.shared_dirty,
            b"Private_Clean" => &mut self.private_clean,
            b"Private_Dirty" => &mut self.private_dirty,
            b"Referenced" => &mut self.referenced,
            b"Anonymous" => &mut self.anonymous,
            b"KSM" => &mut self.ksm,
            b"LazyFree" => &mut self.lazy_free,
            b"AnonHugePages" => &mut self.anon_huge,
            b"ShmemPmdMapped" => &mut self.shmem_huge,
            b"FilePmdMapped" => &mut self.file_huge,
            b"Swap" => &mut self.swap,
            b"Locked" => &mut self.locked,
            _ => return None,
        })
    }

    /// Adds two uses; a field that either lacks stays unknown.
    fn plus(self, other: Self) -> Self {
        let add = |a: Option<ByteCount>, b: Option<ByteCount>| Some(a? + b?);
        Self {
            rss: add(self.rss, other.rss),
            pss: add(self.pss, other.pss),
            pss_anon: add(self.pss_anon, other.pss_anon),
            shared_clean: add(self.shared_clean, other.shared_clean),
            shared_dirty: add(self.shared_dirty, other.shared_dirty),
            private_clean: add(self.private_clean, other.private_clean),
            private_dirty: add(self.private_dirty, other.private_dirty),
            referenced: add(self.referenced, other.referenced),
            anonymous: add(self.anonymous, other.anonymous),
            ksm: add(self.ksm, other.ksm),
            lazy_free: add(self.lazy_free, other.lazy_free),
            anon_huge: add(self.anon_huge, other.anon_huge),
            shmem_huge: add(self.shmem_huge, other.shmem_huge),
            file_huge: add(self.file_huge, other.file_huge),
            swap: add(self.swap, other.swap),
            locked: add(self.locked, other.locked),
        }
    }
}

/// VMA with its memory use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmaUse {
    /// The VMA.
    pub vma: Vma,
    /// The kernel's name for it, safe to print.
    pub name: Option<String>,
    /// Mapped part of a file or of shared memory; all zero for memory without an object.
    pub part: ObjectPart,
    /// Resident memory.
    pub memory: MemoryUse,
    /// Page size of the mapping (`KernelPageSize`): 2 MiB or 1 GiB for hugetlbfs.
    pub kernel_page_size: Option<ByteCount>,
    /// Page size that the MMU uses for it (`MMUPageSize`). Transparent huge pages do not show
    /// here.
    pub mmu_page_size: Option<ByteCount>,
    /// True if the kernel would place huge pages here by itself (`THPeligible`, Linux 5.0).
    /// `MADV_COLLAPSE` has fewer conditions and may work even if this is `false`.
    pub thp_eligible: Option<bool>,
    /// Flags of interest (`VmFlags`, Linux 3.8).
    pub flags: Option<VmFlags>,
}

/// Reads the exact resident memory of the whole process. Needs ptrace read access.
///
/// Reads `smaps_rollup` (Linux 4.14), or adds up `smaps` without it.
///
/// # Errors
/// [`ReadError::Vanished`] for a process that is gone or a zombie, [`ReadError::KernelThread`],
/// [`ReadError::Missing`], [`ReadError::Denied`], [`ReadError::Malformed`].
pub fn memory_use(roots: &Roots, pid: u32) -> Result<MemoryUse, ReadError> {
    let path = roots.of_process(pid, "smaps_rollup");
    if !fs::exists(&path).unwrap_or(true) {
        let sum = vma_uses(roots, pid)?
            .into_iter()
            .map(|vma| vma.memory)
            .reduce(MemoryUse::plus);
        return sum.ok_or_else(|| without_memory(roots, pid));
    }
    across_exec(roots, pid, || {
        let mut memory = None;
        for_each_line(pid, &path, |number, line| {
            rollup_line(&mut memory, number, line)
        })
        .map_err(|error| refine(roots, pid, &path, NO_SMAPS, error))?;
        memory.ok_or_else(|| without_memory(roots, pid))
    })
}

/// Reads every VMA with its use, ascending and disjoint. Needs ptrace read access.
///
/// # Errors
/// As for [`memory_use`].
pub fn vma_uses(roots: &Roots, pid: u32) -> Result<Vec<VmaUse>, ReadError> {
    across_exec(roots, pid, || {
        let mut found = Vec::new();
        for_each_use(roots, pid, |vma| found.push(vma))?;
        Ok(found)
    })
}

/// Calls `each` with every VMA and its use, so that the caller keeps only the VMAs it needs.
pub(super) fn for_each_use(
    roots: &Roots,
    pid: u32,
    mut each: impl FnMut(VmaUse),
) -> Result<(), ReadError> {
    let path = roots.of_process(pid, "smaps");
    let mut devices = FileDevices::of(roots, pid);
    let mut parser = Parser::new(|mut one: VmaUse| {
        devices.refine(&mut one.vma, one.part);
        each(one);
    });
    for_each_line(pid, &path, |number, line| parser.line(number, line))
        .map_err(|error| refine(roots, pid, &path, NO_SMAPS, error))?;
    if parser.finish() == 0 {
        return Err(without_memory(roots, pid));
    }
    Ok(())
}

/// Parses the text of `/proc/PID/smaps`.
///
/// # Errors
/// Names the line that is not as documented.
pub fn parse_smaps(text: &[u8]) -> Result<Vec<VmaUse>, ParseError> {
    let mut found = Vec::new();
    let mut parser = Parser::new(|vma| found.push(vma));
    for (number, line) in text::lines(text) {
        parser.line(number, line)?;
    }
    parser.finish();
    Ok(found)
}

/// Parses the text of `/proc/PID/smaps_rollup`; `None` for an empty one (a process that has
/// given up its memory).
///
/// # Errors
/// Names the line that is not as documented.
pub fn parse_smaps_rollup(text: &[u8]) -> Result<Option<MemoryUse>, ParseError> {
    let mut memory = None;
    for (number, line) in text::lines(text) {
        rollup_line(&mut memory, number, line)?;
    }
    Ok(memory)
}

fn rollup_line(
    memory: &mut Option<MemoryUse>,
    number: usize,
    line: &[u8],
) -> Result<(), ParseError> {
    let fail = |what| ParseError::new(number, what);
    if !is_attribute(line) {
        if memory.replace(MemoryUse::default()).is_some() {
            return Err(fail("there is more than one `[rollup]`"));
        }
        return MapsLine::parse(line).map(drop).map_err(fail);
    }
    let memory = memory.as_mut().ok_or(fail("a size comes before any VMA"))?;
    let (key, value) = text::key_value(line).ok_or(fail("it is not `Key: value`"))?;
    if let Some(size) = memory.field(key) {
        *size = Some(text::kib(value).ok_or(fail("a size is not a number of kB"))?);
    }
    Ok(())
}

/// Returns true for an attribute of a VMA, which starts with a capital; the VMA's own line starts with an address.
fn is_attribute(line: &[u8]) -> bool {
    line.first().is_some_and(u8::is_ascii_uppercase)
}

/// Parser that combines the lines of `smaps`, VMA by VMA.
struct Parser<F> {
    each: F,
    order: Order,
    current: Option<VmaUse>,
    count: usize,
}

impl<F: FnMut(VmaUse)> Parser<F> {
    fn new(each: F) -> Self {
        Self {
            each,
            order: Order::default(),
            current: None,
            count: 0,
        }
    }

    fn line(&mut self, number: usize, line: &[u8]) -> Result<(), ParseError> {
        let fail = |what| ParseError::new(number, what);
        if !is_attribute(line) {
            let head = MapsLine::parse(line)
                .and_then(|line| self.order.check(line))
                .map_err(fail)?;
            self.flush();
            let NamedVma {
                vma, name, part, ..
            } = head.named();
            self.current = Some(VmaUse {
                vma,
                name,
                part,
                memory: MemoryUse::default(),
                kernel_page_size: None,
                mmu_page_size: None,
                thp_eligible: None,
                flags: None,
            });
            return Ok(());
        }
        let vma = self
            .current
            .as_mut()
            .ok_or(fail("a size comes before any VMA"))?;
        let (key, value) = text::key_value(line).ok_or(fail("it is not `Key: value`"))?;
        let size = match key {
            b"VmFlags" => {
                vma.flags = Some(VmFlags::parse(value));
                return Ok(());
            }
            b"THPeligible" => {
                vma.thp_eligible = match value {
                    b"0" => Some(false),
                    b"1" => Some(true),
                    _ => return Err(fail("THPeligible is neither 0 nor 1")),
                };
                return Ok(());
            }
            b"KernelPageSize" => &mut vma.kernel_page_size,
            b"MMUPageSize" => &mut vma.mmu_page_size,
            key => match vma.memory.field(key) {
                Some(size) => size,
                None => return Ok(()),
            },
        };
        *size = Some(text::kib(value).ok_or(fail("a size is not a number of kB"))?);
        Ok(())
    }

    fn flush(&mut self) {
        if let Some(vma) = self.current.take() {
            self.count += 1;
            (self.each)(vma);
        }
    }

    /// Passes the last VMA to `each`. Returns the number of VMAs.
    fn finish(mut self) -> usize {
        self.flush();
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEAD: &str = "200000-600000 rw-p 00000000 00:00 0 ";

    #[test]
    fn an_entry_is_put_together() {
        let text = format!(
            "{HEAD}\nSize:  4096 kB\nKernelPageSize: 4 kB\nMMUPageSize: 4 kB\nRss: 2048 kB\n\
             Anonymous: 2048 kB\nAnonHugePages: 2048 kB\nTHPeligible:    1\nNewThing: 7 apples\n\
             VmFlags: rd wr mr mw me ac hg\n"
        );
        let found = parse_smaps(text.as_bytes()).unwrap();
        assert_eq!(found.len(), 1);
        let vma = &found[0];
        let two_mib = Some(ByteCount(2 << 20));
        assert_eq!(
            vma.memory,
            MemoryUse {
                rss: two_mib,
                anonymous: two_mib,
                anon_huge: two_mib,
                ..MemoryUse::default()
            }
        );
        assert_eq!(vma.kernel_page_size, Some(ByteCount(4096)));
        assert_eq!(vma.mmu_page_size, Some(ByteCount(4096)));
        assert_eq!(vma.thp_eligible, Some(true));
        assert!(vma.flags.unwrap().contains(VmFlags::HUGEPAGE));
        assert!(vma.vma.is_promotable());
    }

    #[test]
    fn a_sum_knows_only_what_every_part_knows() {
        let part = |rss, swap| MemoryUse {
            rss: Some(ByteCount(rss)),
            swap,
            ..MemoryUse::default()
        };
        let sum = part(1, Some(ByteCount(5))).plus(part(2, None));
        assert_eq!(sum, part(3, None));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, line, what) in [
            ("Rss: x kB", 2, "a size is not a number of kB"),
            ("THPeligible: maybe", 2, "THPeligible is neither 0 nor 1"),
            ("Rss", 2, "it is not `Key: value`"),
            (
                "100000-200000 rw-p 0 00:00 0",
                2,
                "the addresses go backwards",
            ),
        ] {
            let text = format!("{HEAD}\n{body}\n");
            assert_eq!(
                parse_smaps(text.as_bytes()),
                Err(ParseError::new(line, what))
            );
        }
        let orphan = ParseError::new(1, "a size comes before any VMA");
        assert_eq!(parse_smaps(b"Rss: 4 kB\n"), Err(orphan));
        assert_eq!(parse_smaps_rollup(b"Rss: 4 kB\n"), Err(orphan));
        assert_eq!(parse_smaps_rollup(b""), Ok(None));
        assert_eq!(
            parse_smaps_rollup(format!("{HEAD}\n{HEAD}\n").as_bytes()),
            Err(ParseError::new(2, "there is more than one `[rollup]`"))
        );
    }

    proptest! {
        #[test]
        fn sizes_are_read_back(sizes in proptest::collection::vec((0..1_u64 << 40, 0..1_u64 << 40), 1..20)) {
            let mut text = String::new();
            for (index, (rss, swap)) in sizes.iter().enumerate() {
                let start = (index as u64 + 1) << 21;
                text += &format!("{start:x}-{:x} rw-p 00000000 00:00 0 \n", start + (1 << 20));
                text += &format!("Rss: {rss:>12} kB\nSwap: {swap:>12} kB\n");
            }
            let found: Vec<_> = parse_smaps(text.as_bytes())
                .unwrap()
                .into_iter()
                .map(|vma| (vma.memory.rss.unwrap().0 >> 10, vma.memory.swap.unwrap().0 >> 10))
                .collect();
            prop_assert_eq!(found, sizes);
        }

        #[test]
        fn nonsense_never_panics(text: Vec<u8>) {
            let _ = parse_smaps(&text);
            let _ = parse_smaps_rollup(&text);
        }
    }
}

//! One process: its identity, the layout of its memory, and its resident and huge-mapped pages.
//!
//! Everything comes from `/proc/PID` (`proc_pid(5)`, `Documentation/filesystems/proc.rst`). Each
//! file of the kernel has a module of its own with two halves:
//!
//! * a **parser** over bytes (`parse_…`), pure, which meets nonsense with a [`ParseError`] and is
//!   fuzzed;
//! * a **reader** over [`Roots`](crate::Roots) and a PID, which reports for every failure whether the
//!   process is gone, the caller has no permission, or the file is not what the kernel documents
//!   ([`ReadError`](crate::ReadError)).
//!
//! The parsers are written here instead of using `procfs-core`, because the loop has other
//! needs. Command names and paths are arbitrary bytes (that crate refuses a whole file over one
//! name that is not UTF-8). The loop reads a memory map of 50,000 lines many times a second (that crate keeps
//! a hash map of strings for every line). A recorded or hostile tree must never cause a panic
//! (that crate multiplies sizes without a check).
//!
//! ```text
//!   stat ──── identity ──────────────┐
//!   maps ──── Vma list ─── pages ────┼── view ──> ProcessView
//!   status ── resident sizes ────────┘
//!   smaps, smaps_rollup   sizes by VMA and in total, for reports and as a fallback of `pages`
//!   numa_maps             policies that take turns between NUMA nodes
//!   mounts                file systems that are shared memory
//!   fast, tree            changes, and the list of processes
//! ```

mod absent;
mod color_group;
mod fast;
mod file;
mod identity;
mod maps;
mod numa;
mod page_color;
mod pages;
mod shmem;
mod smaps;
mod stat;
mod status;
mod text;
mod threads;
mod tree;
mod view;
mod vm_flags;
mod zeroes;

pub use color_group::GroupColors;
pub use fast::{
    Activity, CpuTicks, StatmPages, activity, cpu_now, parse_statm, resident_now, time_of_ticks,
    waited_for_cpu,
};
pub use identity::{identify, numbers_are_ours, still_is, still_runs};
pub use maps::{NamedVma, maps, maps_where, named_maps, parse_maps, parse_named_maps};
pub use numa::{has_nodes, interleaved, parse_interleaved};
pub use page_color::{ProcessColors, ResidentColor};
pub use pages::{
    LazyMapping, LazyPages, MAPPERS_READ, Mapper, ObjectLook, PageScanner, PageWord, PresentPage,
    ScanMethod, TornPages, WindowUse, cached_region, has_guard_pages, is_huge, is_huge_mapped,
    most_lazy, object_view, page_words, present_pages, resident_pages, sample_words, shared_pages,
    shared_pages_of, swapped_pages,
};
pub use shmem::{own_tmpfs, parse_tmpfs_devices, tmpfs_has_quota};
pub use smaps::{MemoryUse, VmaUse, memory_use, parse_smaps, parse_smaps_rollup, vma_uses};
pub use stat::{ProcStat, parse_stat, stat};
pub use status::{ProcStatus, parse_status, status};
pub use text::ParseError;
pub use threads::{ThreadCpu, thread_cpus};
pub use tree::{
    all, descendants, effective_user, identities, numbers, parse_children, session_members,
};
pub use view::{check_view, view};
pub use vm_flags::VmFlags;
pub use zeroes::{UnreadZeroes, ZeroPages, Zeroes, zero_pages};

//! One process: who it is, how its memory is laid out, which of it is resident and huge-mapped.
//!
//! Everything comes from `/proc/PID` (`proc_pid(5)`, `Documentation/filesystems/proc.rst`). Each
//! file of the kernel has a module of its own with two halves:
//!
//! * a **parser** over bytes (`parse_…`), pure, which meets nonsense with a [`ParseError`] and is
//!   fuzzed;
//! * a **reader** over [`Roots`](crate::Roots) and a PID, which says of every failure whether the
//!   process is gone, the caller may not look, or the file is not what the kernel documents
//!   ([`ReadError`](crate::ReadError)).
//!
//! The parsers are written here rather than taken from `procfs-core` because of what the loop asks
//! of them: command names and paths are arbitrary bytes (that crate refuses a whole file over one
//! name that is not UTF-8), a memory map of 50,000 lines is read many times a second (it keeps
//! a hash map of strings for every line), and a recorded or hostile tree must never panic
//! (it multiplies sizes without a check).
//!
//! ```text
//!   stat ──── identity ──────────────┐
//!   maps ──── Vma list ─── pages ────┼── view ──> ProcessView
//!   status ── resident sizes ────────┘
//!   smaps, smaps_rollup   sizes by VMA and in total, for reports and as a fallback of `pages`
//!   mounts                which file systems are shared memory
//!   fast, tree            what changed, and which processes there are
//! ```

mod absent;
mod color_group;
mod fast;
mod file;
mod identity;
mod maps;
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
pub use fast::{Activity, CpuNow, Resident, activity, cpu_now, parse_statm, resident_now};
pub use identity::{identify, numbers_are_ours, still_is, still_runs};
pub use maps::{NamedVma, maps, named_maps, parse_maps, parse_named_maps};
pub use page_color::{ProcessColors, ResidentColor};
pub use pages::{
    LazyMapping, LazyPages, MAPPERS_READ, Mapper, ObjectLook, PageScanner, PageWord, PresentPage,
    ScanMethod, TornPages, WindowUse, cached_region, has_guard_pages, is_huge, is_huge_mapped,
    most_lazy, object_view, page_words, present_pages, resident_pages, sample_words, shared_pages,
    shared_pages_of,
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
pub use view::view;
pub use vm_flags::VmFlags;
pub use zeroes::{UnreadZeroes, ZeroPages, Zeroes, zero_pages};

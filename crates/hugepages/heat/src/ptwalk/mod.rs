//! The tracker `ptwalk`: a BPF program reads the accessed bits of every page, exactly.
//!
//! ```text
//!   arm    clear_refs        clears the bits, then flushes the TLB where possible
//!   read   BPF program ───>  copies of page tables ───> bits per page ───> those still mapped
//! ```
//!
//! `bpf/ptwalk.bpf.c` explains how to read page tables on a stock kernel while they change, and how to find where the kernel maps memory. Needs
//! Linux 6.10 (kernel functions callable from BPF `syscall` programs) with BTF, `CAP_BPF` and `CAP_PERFMON`; for processes of other users also
//! `CAP_SYS_PTRACE` (to read their memory map) and `CAP_DAC_OVERRIDE` (to write their `clear_refs`).
//!
//! The tracker does not see:
//! * hugetlb memory: the kernel never clears its accessed bits, so it is left out;
//! * the shared page of zeroes, see [`decode`];
//! * accesses by a guest to memory of a virtual machine, and by devices: they do not pass through
//!   these page tables. A flush (see `clear_refs.rs`) makes KVM fault a guest's memory in again, so
//!   its accesses show, at that price.

#[cfg(any(not(feature = "ptwalk"), not(target_arch = "x86_64")))]
mod absent;
#[cfg(all(feature = "ptwalk", target_arch = "x86_64"))]
mod decode;
#[cfg(all(feature = "ptwalk", target_arch = "x86_64"))]
mod few;
#[cfg(all(feature = "ptwalk", target_arch = "x86_64"))]
mod load;
#[cfg(all(feature = "ptwalk", target_arch = "x86_64"))]
mod memory;
#[cfg(all(feature = "ptwalk", target_arch = "x86_64"))]
mod track;
#[cfg(all(feature = "ptwalk", target_arch = "x86_64"))]
mod walker;

#[cfg(any(not(feature = "ptwalk"), not(target_arch = "x86_64")))]
pub use absent::{FewPages, PtwalkTracker};
#[cfg(all(feature = "ptwalk", target_arch = "x86_64"))]
pub use few::FewPages;
#[cfg(all(feature = "ptwalk", target_arch = "x86_64"))]
pub use track::PtwalkTracker;

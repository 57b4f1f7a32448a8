//! Having the target's TLB entries flushed, where that can be done without side effects.
//!
//! On x86 the kernel clears an accessed bit without flushing the TLB entry, and as long as the
//! processor holds that entry it does not set the bit again: a page in constant use then looks
//! idle. `clear_refs` with 4 ends in a flush of the whole process. What it is meant for is to
//! clear soft-dirty bits; a kernel built without them touches no page-table entry before the
//! flush (`clear_refs_write` in `fs/proc/task_mmu.c`). On a kernel with them it would take those
//! bits from whoever relies on them (CRIU), so there no flush is made.

use std::fs;
use std::time::{Duration, Instant};

use superhue_model::ProcessId;

use crate::Roots;

/// Bit 55 of a pagemap word: written to since the bits were cleared.
const SOFT_DIRTY: u64 = 1 << 55;

/// Whether TLB entries can be flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flush {
    /// By `clear_refs`.
    ClearRefs,
    /// Not without side effects.
    No,
}

impl Flush {
    /// Judges by the pagemap word of a page of our own that was just written to: kernels with
    /// soft-dirty bits show the bit.
    pub(super) const fn judge(own: u64) -> Self {
        if own & SOFT_DIRTY == 0 {
            Self::ClearRefs
        } else {
            Self::No
        }
    }

    /// Flushes. How long it took, for which the target could not map memory; `None` if it was not
    /// done.
    pub(super) fn run(self, roots: &Roots, process: ProcessId) -> Option<Duration> {
        if self == Self::No {
            return None;
        }
        let start = Instant::now();
        fs::write(roots.of_process(process.pid, "clear_refs"), "4").ok()?;
        Some(start.elapsed())
    }
}

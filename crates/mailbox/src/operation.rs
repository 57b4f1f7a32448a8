//! What can be done to one region, and the `madvise` call that does it.
//!
//! One definition for both ends: Superhue makes the call from outside (`process_madvise`), the agent
//! from inside (`madvise`).

/// What can be done to one region of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Operation {
    /// Promote: one superpage of its base pages.
    Collapse = 1,
    /// Demote: base pages of its superpage.
    Split = 2,
}

/// A `madvise(2)` call about a part of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advice {
    /// Where the part starts, in bytes from the region's start.
    pub offset: usize,
    /// Its length in bytes.
    pub length: usize,
    /// `MADV_*`.
    pub advice: i32,
}

const REGION: usize = 2 << 20;
const BASE_PAGE: usize = 4 << 10;

/// `MADV_COLD` of `asm-generic/mman-common.h` (Linux 5.4; of another process 5.10).
const MADV_COLD: i32 = 20;

/// `MADV_COLLAPSE` of `asm-generic/mman-common.h` (Linux 6.1).
const MADV_COLLAPSE: i32 = 25;

impl Operation {
    /// The operation with this number.
    #[must_use]
    pub const fn of_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Collapse),
            2 => Some(Self::Split),
            _ => None,
        }
    }

    /// Its number, as it stands in a slot.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The call that does it.
    ///
    /// A superpage is split by calling *one* of its base pages cold: to treat the part differently
    /// from the rest, the kernel first makes base pages of the whole
    /// (`madvise_cold_or_pageout_pte_range` in `mm/madvise.c`). Calling all of it cold would only
    /// deactivate the superpage and leave it whole.
    ///
    /// ```text
    ///   region  |..............................................|cold|
    ///            stays as active as it was                       the last base page
    /// ```
    ///
    /// The page named pays for it: its accessed bit is cleared and it goes to the inactive list. It
    /// stays mapped, so the next access costs no fault, and that access is all it takes to be found
    /// active again when the kernel comes to reclaim. It is the *last* page, because memory is filled
    /// upwards: allocators keep their own words at the start of a chunk, and what a superpage
    /// holds without use is most often its end. A page of zeroes has even nothing to lose: since
    /// Linux 6.12 the split gives it back, and the advice then finds the shared zero page, which
    /// is on no list.
    #[must_use]
    pub const fn advice(self) -> Advice {
        match self {
            Self::Collapse => Advice {
                offset: 0,
                length: REGION,
                advice: MADV_COLLAPSE,
            },
            Self::Split => Advice {
                offset: REGION - BASE_PAGE,
                length: BASE_PAGE,
                advice: MADV_COLD,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_back_and_zero_is_none() {
        for operation in [Operation::Collapse, Operation::Split] {
            assert_eq!(Operation::of_number(operation.number()), Some(operation));
            let Advice { offset, length, .. } = operation.advice();
            assert!(offset + length <= REGION && length > 0);
        }
        for number in [0, 3, u32::MAX] {
            assert_eq!(Operation::of_number(number), None);
        }
    }
}

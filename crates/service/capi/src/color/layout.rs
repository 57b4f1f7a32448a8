//! The structures of `include/superhue.h`. The tests compile that header and compare.

use superhue_arena::{Placement, Refusal, Verdict};

use crate::layout::VersionedLayout;

/// `struct superhue_color_placement`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CPlacement {
    pub size: usize,
    pub placed: u64,
    pub already: u64,
    pub shared: u64,
    pub locked: u64,
    pub foreign: u64,
    pub other: u64,
    pub edges: u64,
}

/// `struct superhue_color_verdict`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CVerdict {
    pub size: usize,
    pub resident: u64,
    pub absent: u64,
    pub shared: u64,
    pub tested: u64,
    pub right: u64,
    pub wrong: u64,
    pub unsure: u64,
    pub commonest: u64,
}

const _: () = assert!(size_of::<CPlacement>() == 64);
const _: () = assert!(size_of::<CVerdict>() == 72);

impl VersionedLayout for CPlacement {
    const OLDEST: usize = 64;
}
impl VersionedLayout for CVerdict {
    const OLDEST: usize = 72;
}

impl From<&Placement> for CPlacement {
    fn from(placement: &Placement) -> Self {
        let mut told = Self {
            size: size_of::<Self>(),
            placed: placement.placed.0,
            already: placement.already.0,
            shared: 0,
            locked: 0,
            foreign: 0,
            other: 0,
            edges: placement.edges.0,
        };
        for (reason, pages) in &placement.refused {
            let count = match reason {
                Refusal::SharedOrPinned => &mut told.shared,
                Refusal::Locked => &mut told.locked,
                Refusal::NotAnonymous | Refusal::HugePage => &mut told.foreign,
                _ => &mut told.other,
            };
            *count += pages.0;
        }
        told
    }
}

impl From<&Verdict> for CVerdict {
    fn from(verdict: &Verdict) -> Self {
        Self {
            size: size_of::<Self>(),
            resident: verdict.resident.0,
            absent: verdict.absent.0,
            shared: verdict.shared.0,
            tested: verdict.tested.0,
            right: verdict.right.0,
            wrong: verdict.wrong.0,
            unsure: verdict.unsure.0,
            commonest: verdict.commonest.0,
        }
    }
}

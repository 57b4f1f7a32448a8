//! Memory for which `auto` needs evidence of accesses.
//!
//! Evidence has a price. A tracker takes tens of milliseconds to load, and each sample makes the program fill its TLB again. Most programs have
//! nothing to decide by it: their regions are full or nearly so, and such a region becomes huge without evidence.
//!
//! ```text
//!   ################  ################  ################  full             no evidence
//!   ###############   ### ############                    few holes        no evidence, as far as half of the budget goes
//!   ##########        ###########       #########         holes            evidence, if the budget pays for enough of them
//!   ##                 #                   #              nearly empty     no evidence: too few pages, however hot they are
//!   HHHHHHHHHHHHHHHH  HHHHHHHHHHHHHHHH                    huge, for long   evidence: cold ones may be split
//!   HHHHHHHHHHHHHHHH  at most few holes when we made it   huge             no evidence: a split would give back little
//! ```
//!
//! A program that ends within seconds gets no tracker, which would cost it more than it could gain.

use std::time::Duration;

use superhue_model::{Memory, Owner, Region};

use crate::FULL;
use crate::memory::LONGEST_FILLING;
use crate::record::{RegionState, eligible};

/// Time for which memory must be known: 1 % of it, the default ceiling of the cost, is what it takes to load a tracker (40 ms of CPU time) and to
/// take the first sample.
const LEAST_WATCHED: Duration = Duration::from_secs(5);

/// Time for which memory must not have been filled to be worth samples: many programs pause and then continue to fill it.
const LEAST_SETTLED: Duration = Duration::from_millis(500);

/// Regions with holes must make up one part in this many of the memory to be worth samples of all of it. A guess: 3 % of the memory gain little.
const NOTABLE_SHARE: u64 = 32;

/// A program must have run for one part in this many of `cold_after` before its huge pages are sampled: as long as a huge page is kept in any
/// case. Programs that end before have nothing to win by a split.
const UNWATCHED_SHARE: u32 = 3;

/// Times since events in the life of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryAge {
    /// Since it was first seen.
    pub watched: Duration,
    /// Since then, or since its program last filled memory fast (see [`Quota::spares_filling`](crate::Quota::spares_filling)).
    pub settled: Duration,
}

impl MemoryAge {
    /// The age of memory that has always been there.
    pub const MAX: Self = Self {
        watched: Duration::MAX,
        settled: Duration::MAX,
    };
}

/// Returns true if the program still fills `memory`: samples would show the filling, and use up what later ones need.
pub(crate) fn is_too_early(memory: &Memory<'_>, age: MemoryAge) -> bool {
    (memory.fills || age.settled < LEAST_SETTLED) && age.watched < LONGEST_FILLING
}

/// Returns true if regions with holes that evidence could make huge, within `room` pages of growth, make up a notable part of `memory`. Such a
/// region has at least `min_active` resident pages.
pub(crate) fn of_holes(memory: &Memory<'_>, min_active: u16, room: u64, age: MemoryAge) -> bool {
    if age.watched < LEAST_WATCHED || is_too_early(memory, age) {
        return false;
    }
    // What a program has given back of a huge page is no hole: `eligible` takes such a page for whole.
    let is_open = |region: &RegionState| {
        region.huge != Some(true) && (min_active..FULL).contains(&region.resident)
    };
    // Most memory has none, and a watch asks at each pass.
    if !eligible(memory).any(|region| is_open(&region)) {
        return false;
    }
    // Numbers of regions by resident pages.
    let mut open = [0_u64; FULL as usize];
    let mut resident = 0;
    for region in eligible(memory) {
        resident += u64::from(region.resident);
        if is_open(&region) {
            open[usize::from(region.resident)] += 1;
        }
    }
    let (mut left, mut won) = (room, 0);
    // The fullest first: they cost least.
    for (pages, &count) in open.iter().enumerate().rev() {
        let pages = pages as u64;
        let growth = u64::from(FULL) - pages;
        let paid = count.min(left / growth);
        won += paid * pages;
        if paid < count {
            break;
        }
        left -= paid * growth;
    }
    won > 0 && won >= resident / NOTABLE_SHARE
}

/// Returns true if cold ones among the huge pages of `memory` may be split once they have been watched for `cold_after`. In shared memory none is:
/// its pages of zeroes do not come back. Huge pages for which `costs_little` returns true do not count; it is called in the order of addresses.
pub(crate) fn of_huge_pages(
    memory: &Memory<'_>,
    cold_after: Duration,
    age: MemoryAge,
    mut costs_little: impl FnMut(Region) -> bool,
) -> bool {
    matches!(memory.owner, Owner::Process(_))
        && age.watched >= LEAST_WATCHED.max(cold_after / UNWATCHED_SHARE)
        && (memory.regions.iter()).any(|view| view.huge == Some(true) && !costs_little(view.region))
}

#[cfg(test)]
mod tests {
    use superhue_model::{
        HUGE_PAGE_SIZE, PageCount, ProcessId, ProcessView, RegionView, TornPage, VirtAddr,
        VirtRange, Vma, VmaKind,
    };

    use super::*;

    const LONG: MemoryAge = age(5_000, 5_000);

    const fn age(watched: u64, settled: u64) -> MemoryAge {
        MemoryAge {
            watched: Duration::from_millis(watched),
            settled: Duration::from_millis(settled),
        }
    }

    /// Returns a process with these numbers of resident pages in its regions; 512 with `true` is a huge page.
    fn process(resident: &[(u64, bool)]) -> ProcessView {
        let region = |(number, &(resident, huge)): (u64, &(u64, bool))| RegionView {
            region: Region::containing(VirtAddr(number * HUGE_PAGE_SIZE)),
            resident: PageCount(resident),
            huge: Some(huge),
        };
        ProcessView {
            vmas: vec![Vma {
                range: VirtRange::new(VirtAddr(0), VirtAddr(HUGE_PAGE_SIZE << 16)).unwrap(),
                kind: VmaKind::Anonymous,
                writable: true,
            }],
            regions: (0..).zip(resident).map(region).collect(),
            ..ProcessView::unread(ProcessId {
                pid: 1,
                start_ticks: 1,
            })
        }
    }

    fn holes(resident: &[(u64, bool)], room: u64) -> bool {
        of_holes(&Memory::of_process(&process(resident)), 128, room, LONG)
    }

    #[test]
    fn full_and_nearly_empty_memory_needs_no_evidence() {
        assert!(!holes(&[], u64::MAX));
        assert!(!holes(&[(512, false); 8], u64::MAX));
        assert!(!holes(&[(512, true); 8], u64::MAX));
        assert!(!holes(&[(127, false); 8], u64::MAX));
        assert!(holes(&[(128, false); 8], u64::MAX));
        assert!(holes(&[(511, false); 8], u64::MAX));
    }

    #[test]
    fn holes_count_as_far_as_the_budget_pays_for_them() {
        let half = [(256, false); 8];
        assert!(!holes(&half, 255));
        assert!(holes(&half, 256));
        // The cheapest go first: the budget of 32 pages makes one region huge, of 32.
        let mut mixed = vec![(480, false); 32];
        assert!(holes(&mixed, 32));
        mixed.extend([(512, true); 32]);
        assert!(!holes(&mixed, 32));
        assert!(holes(&mixed, 3 * 32));
    }

    #[test]
    fn memory_that_is_being_filled_is_left_alone() {
        let mut filled = process(&[(400, false); 4]);
        let memory = Memory::of_process(&filled);
        assert!(of_holes(&memory, 128, u64::MAX, age(5_000, 500)));
        assert!(!of_holes(&memory, 128, u64::MAX, age(4_999, 4_999)));
        assert!(!of_holes(&memory, 128, u64::MAX, age(5_000, 499)));
        filled.fills = true;
        assert!(!of_holes(&Memory::of_process(&filled), 128, u64::MAX, LONG));
        // Some never stop.
        let memory = Memory::of_process(&filled);
        assert!(of_holes(&memory, 128, u64::MAX, age(30_000, 0)));
    }

    #[test]
    fn parts_that_were_given_back_are_no_holes() {
        let mut given_back = process(&[(400, false); 4]);
        given_back.torn = (given_back.regions.iter())
            .map(|view| TornPage {
                region: view.region,
                held: PageCount(112),
            })
            .collect();
        assert!(!of_holes(
            &Memory::of_process(&given_back),
            128,
            u64::MAX,
            LONG
        ));
        given_back.torn.pop();
        assert!(of_holes(
            &Memory::of_process(&given_back),
            128,
            u64::MAX,
            LONG
        ));
    }

    #[test]
    fn huge_pages_need_evidence_once_they_may_be_split() {
        let cold_after = Duration::from_secs(30);
        let view = process(&[(512, true), (3, false)]);
        let memory = Memory::of_process(&view);
        let needs = |memory: &Memory<'_>, cold_after, age| {
            of_huge_pages(memory, cold_after, age, |_| false)
        };
        assert!(needs(&memory, cold_after, age(10_000, 0)));
        assert!(!needs(&memory, cold_after, age(9_999, 0)));
        let at_once = Duration::ZERO;
        assert!(needs(&memory, at_once, age(5_000, 0)));
        assert!(!needs(&memory, at_once, age(4_999, 0)));
        let base = process(&[(512, false)]);
        assert!(!needs(&Memory::of_process(&base), cold_after, LONG));
    }

    #[test]
    fn huge_pages_that_cost_no_memory_need_no_evidence() {
        let view = process(&[(512, true), (512, false), (512, true)]);
        let needs = |costs_little: fn(Region) -> bool| {
            of_huge_pages(
                &Memory::of_process(&view),
                Duration::ZERO,
                LONG,
                costs_little,
            )
        };
        assert!(!needs(|_| true));
        assert!(needs(|region| region.start() == VirtAddr(0)));
        assert!(needs(|region| region.start() > VirtAddr(0)));
    }
}

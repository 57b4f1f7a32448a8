//! Turns a list into actions, region by region.
//!
//! ```text
//!   pages (any order) --sort--> [ region ][ region ] ...   ascending
//!                                   |         |
//!                                 decide    decide          the caller's, or the suggestion
//!                                   |         |
//!             Collapse: MADV_COLLAPSE now     +-- Compact: gathered; handed over once, hottest first
//! ```

use std::cmp::Reverse;

use superhue_model::{HUGE_PAGE_SIZE, PAGES_PER_REGION, Region, VirtAddr};
use superhue_sys::collapse::own_collapse;

use crate::ClientError;
use crate::list::{Page, PageFlags};

/// Least share of active pages in a region to collapse: one in this many (P4, section 5.2.2: a
/// quarter).
const ACTIVE_DIVISOR: u64 = 4;

/// Decision about a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decision {
    /// Leave the region as it is.
    Leave,
    /// Make one huge page of its base pages.
    Collapse,
    /// Hand its active pages to the application.
    Compact,
}

/// A region that has active pages.
#[derive(Debug, Clone, Copy)]
pub struct RegionPages<'a> {
    /// Address of the region's first byte.
    pub address: u64,
    /// Active pages of the region, ascending, 1 to 512; for a huge page its one entry.
    pub pages: &'a [Page],
    /// Sum of their heat; for a huge page 512 times that of its entry.
    pub heat: u32,
    /// Flags that all of them have.
    pub flags: PageFlags,
    /// Suggestion of the library: [`Decision::Leave`] for a huge page, else [`Decision::Collapse`]
    /// if at least a quarter of the pages are active, else [`Decision::Compact`].
    pub suggestion: Decision,
}

/// Result of [`act_on`], counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Regions that had active pages.
    pub regions: usize,
    /// Regions that became huge pages.
    pub collapsed: usize,
    /// Regions that the kernel did not collapse.
    pub failed: usize,
    /// Pages handed over to be compacted.
    pub compacted: usize,
    /// Regions left as they are.
    pub left: usize,
}

/// Decides about every region of a list and acts, in the calling process.
///
/// Calls `decide` for each region, ascending. Calls `compact` at most once, at the end, with the
/// pages of all regions to compact, hottest first (ties: ascending), if there are any.
///
/// # Errors
/// [`ClientError::Invalid`] if a page is not aligned; then nothing was done.
/// [`ClientError::System`] when memory is short; what was done before stays.
pub fn act_on(
    pages: &[Page],
    mut decide: impl FnMut(&RegionPages<'_>) -> Decision,
    compact: impl FnOnce(&[Page]),
) -> Result<Outcome, ClientError> {
    if !pages.iter().all(Page::is_sound) {
        return Err(ClientError::Invalid("a page of the list is not aligned"));
    }
    let mut sorted = Vec::new();
    reserve(&mut sorted, pages.len())?;
    sorted.extend_from_slice(pages);
    sorted.sort_unstable_by_key(|page| (page.address, Reverse(page.flags.bits())));
    sorted.dedup_by_key(|page| page.address);
    let mut outcome = Outcome::default();
    let mut sparse = Vec::new();
    for group in sorted.chunk_by(|a, b| region_of(a) == region_of(b)) {
        let Some(first) = group.first() else { continue };
        let region = region_of(first);
        let view = describe(region, group);
        outcome.regions += 1;
        match decide(&view) {
            Decision::Leave => outcome.left += 1,
            Decision::Collapse if view.flags.contains(PageFlags::HUGE) => outcome.left += 1,
            Decision::Collapse => match own_collapse(region) {
                Ok(()) => outcome.collapsed += 1,
                Err(_) => outcome.failed += 1,
            },
            Decision::Compact => {
                reserve(&mut sparse, group.len())?;
                sparse.extend_from_slice(group);
            }
        }
    }
    outcome.compacted = sparse.len();
    if !sparse.is_empty() {
        sparse.sort_unstable_by_key(|page: &Page| (Reverse(page.heat), page.address));
        compact(&sparse);
    }
    Ok(outcome)
}

fn reserve(pages: &mut Vec<Page>, more: usize) -> Result<(), ClientError> {
    pages.try_reserve(more).map_err(|_| ClientError::System {
        what: "memory for the list",
        errno: rustix::io::Errno::NOMEM,
    })
}

const fn region_of(page: &Page) -> Region {
    Region::containing(VirtAddr(page.address))
}

fn describe(region: Region, group: &[Page]) -> RegionPages<'_> {
    // A huge entry together with base pages of the same region: the kernel split the huge page
    // between two samples.
    let all = PageFlags::HUGE.and(PageFlags::ESTIMATED);
    let flags = group
        .iter()
        .fold(all, |flags, page| flags.common(page.flags));
    let active: u64 = group.len() as u64;
    let suggestion = if flags.contains(PageFlags::HUGE) {
        Decision::Leave
    } else if active * ACTIVE_DIVISOR >= PAGES_PER_REGION {
        Decision::Collapse
    } else {
        Decision::Compact
    };
    let heat = |page: &Page| {
        page.heat
            .saturating_mul(u32::try_from(page.weight()).unwrap_or(1))
    };
    RegionPages {
        address: region.start().0,
        pages: group,
        heat: group.iter().map(heat).fold(0, u32::saturating_add),
        flags,
        suggestion,
    }
}

const _: () = assert!(HUGE_PAGE_SIZE == 2 << 20, "the C header says 2 MiB");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn base(address: u64, heat: u32) -> Page {
        Page {
            address,
            heat,
            flags: PageFlags::NONE,
        }
    }

    proptest! {
        #[test]
        fn every_page_is_decided_about_once_and_in_order(
            numbers in proptest::collection::hash_set(0..4096_u64, 0..400),
        ) {
            let pages: Vec<Page> = numbers.iter()
                .map(|&n| base(n << 12, 1 + u32::try_from(n % 7).unwrap())).collect();
            let mut seen = Vec::new();
            let mut handed = Vec::new();
            let outcome = act_on(&pages, |region| {
                assert!(region.pages.iter().all(|page| page.address >> 21 == region.address >> 21));
                let quarter = region.pages.len() >= 128;
                assert_eq!(region.suggestion == Decision::Collapse, quarter);
                seen.extend_from_slice(region.pages);
                if region.address >> 21 & 1 == 0 { Decision::Leave } else { Decision::Compact }
            }, |sparse| handed.extend_from_slice(sparse)).unwrap();
            let mut sorted = pages.clone();
            sorted.sort_by_key(|page| page.address);
            prop_assert_eq!(seen, sorted);
            prop_assert!(handed.is_sorted_by_key(|page| (Reverse(page.heat), page.address)));
            let odd = pages.iter().filter(|page| page.address >> 21 & 1 == 1).count();
            prop_assert_eq!((handed.len(), outcome.compacted), (odd, odd));
        }
    }

    #[test]
    fn huge_pages_are_left_and_nonsense_is_refused_before_anything_happens() {
        let huge = Page {
            address: 4 << 21,
            heat: 10,
            flags: PageFlags::HUGE,
        };
        let mut suggested = Vec::new();
        let decide = |region: &RegionPages<'_>| {
            suggested.push((region.suggestion, region.heat));
            Decision::Collapse
        };
        let outcome = act_on(&[huge], decide, |_| panic!("nothing to compact")).unwrap();
        assert_eq!(suggested, [(Decision::Leave, 5120)]);
        assert_eq!((outcome.left, outcome.failed), (1, 0));
        let crooked = base(4097, 1);
        let never = |_: &RegionPages<'_>| panic!("decided about nonsense");
        assert!(act_on(&[base(4096, 1), crooked], never, |_| {}).is_err());
    }

    #[test]
    fn a_region_that_is_not_mapped_fails_and_is_counted() {
        // The first 2 MiB of the address space are never mapped.
        let outcome = act_on(&[base(4096, 1)], |_| Decision::Collapse, |_| {}).unwrap();
        assert_eq!((outcome.failed, outcome.collapsed), (1, 0));
    }
}

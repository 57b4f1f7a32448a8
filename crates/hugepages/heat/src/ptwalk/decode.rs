//! Decoding of page-table entries, and the extent of the process's memory. Pure functions.
//!
//! Bits of an entry: Intel SDM volume 3, 4.5; `arch/x86/include/asm/pgtable_types.h`.
//!
//! ```text
//!    63      62..59    58..52   51............12  11 10  9   8  7  6  5  ...  0
//!   no-exec  pkey     (unused)       frame              SP   G PS    A        P
//! ```
//!
//! * Without P, G means that the page is present but that any access faults (`_PAGE_PROTNONE`): `PROT_NONE` memory, or a page whose accesses NUMA
//!   balancing wants to see. Swapped and migrating pages have neither bit.
//! * SP (`_PAGE_SPECIAL`) marks entries that map no page of the process: the shared page of zeroes, device memory. Such a page holds no memory, and
//!   `clear_refs` never clears its accessed bit, so it counts as absent. The shared *huge page* of zeroes is marked since Linux 6.17; before, it
//!   counts as a huge page (its bit is cleared like any other's).

use superhue_model::{
    BASE_PAGE_SHIFT, HUGE_PAGE_SIZE, PAGES_PER_REGION, PageSet, Region, VirtAddr, VirtRange,
};

use crate::RegionBits;

const PRESENT: u64 = 1 << 0;
const ACCESSED_SHIFT: u32 = 5;
const PROTNONE_SHIFT: u32 = 8;
const SPECIAL_SHIFT: u32 = 9;

/// Entries of one table.
pub(super) const ENTRIES: usize = PAGES_PER_REGION as usize;

/// Returns the bits of a region from its table of the last level.
pub(super) fn of_table(region: Region, entries: &[u64; ENTRIES]) -> RegionBits {
    let mut present = [0; ENTRIES / 64];
    let mut accessed = [0; ENTRIES / 64];
    let (chunks, _) = entries.as_chunks::<64>();
    for ((chunk, present), accessed) in chunks.iter().zip(&mut present).zip(&mut accessed) {
        for (bit, &entry) in chunk.iter().enumerate() {
            let is_present =
                (entry | entry >> PROTNONE_SHIFT) & !(entry >> SPECIAL_SHIFT) & PRESENT;
            *present |= is_present << bit;
            *accessed |= ((entry >> ACCESSED_SHIFT) & is_present) << bit;
        }
    }
    RegionBits {
        region,
        huge: false,
        present: PageSet::from_words(present),
        accessed: PageSet::from_words(accessed),
    }
}

/// Returns the bits of a region from the entry that maps it whole; `None` if that maps no memory of the process.
pub(super) fn of_huge(region: Region, entry: u64) -> Option<RegionBits> {
    if entry >> SPECIAL_SHIFT & 1 == 1 {
        return None;
    }
    let is_accessed = entry >> ACCESSED_SHIFT & 1 == 1;
    Some(RegionBits {
        region,
        huge: true,
        present: PageSet::FULL,
        accessed: if is_accessed {
            PageSet::FULL
        } else {
            PageSet::EMPTY
        },
    })
}

/// Returns the spans to walk: the ranges widened to whole regions and joined, below `limit`.
pub(super) fn spans(ranges: &[VirtRange], limit: u64) -> Vec<VirtRange> {
    let mut spans: Vec<VirtRange> = Vec::new();
    for range in ranges {
        let start = range.start.0 & !(HUGE_PAGE_SIZE - 1);
        // The kernel's half lies above; the mapping `[vsyscall]` is there.
        let end = range.end.0.min(limit).next_multiple_of(HUGE_PAGE_SIZE);
        if start >= end || range.is_empty() {
            continue;
        }
        match spans.last_mut() {
            Some(last) if start <= last.end.0 => last.end.0 = last.end.0.max(end),
            _ => spans.push(VirtRange {
                start: VirtAddr(start),
                end: VirtAddr(end),
            }),
        }
    }
    spans
}

/// Returns the intersection of two ascending lists; ranges that touch are joined.
pub(super) fn intersect(ones: &[VirtRange], others: &[VirtRange]) -> Vec<VirtRange> {
    let mut both: Vec<VirtRange> = Vec::new();
    let (mut i, mut j) = (0, 0);
    while let (Some(one), Some(other)) = (ones.get(i), others.get(j)) {
        let start = one.start.max(other.start);
        let end = one.end.min(other.end);
        if start < end {
            match both.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => both.push(VirtRange { start, end }),
            }
        }
        if one.end <= other.end {
            i += 1;
        } else {
            j += 1;
        }
    }
    both
}

/// Keeps of `found` (ascending) the pages in `cover` (ascending, touching ranges joined). Keeps a region that one entry maps only if it lies there
/// whole: otherwise its mapping changed meanwhile.
pub(super) fn confine(found: &mut Vec<RegionBits>, cover: &[VirtRange]) {
    let mut next = 0;
    found.retain_mut(|bits| {
        let range = bits.region.range();
        while cover.get(next).is_some_and(|one| one.end <= range.start) {
            next += 1;
        }
        let mut inside = PageSet::EMPTY;
        for one in cover.get(next..).unwrap_or_default() {
            if one.contains(&range) {
                return true;
            }
            if one.start >= range.end {
                break;
            }
            if !bits.huge {
                inside = inside.or(&pages_of(bits.region, *one));
            }
        }
        bits.present = bits.present.and(&inside);
        bits.accessed = bits.accessed.and(&inside);
        !bits.present.is_empty()
    });
}

/// Returns the pages of `region` in `range`.
fn pages_of(region: Region, range: VirtRange) -> PageSet {
    let whole = region.range();
    let page = |addr: VirtAddr| {
        let inside = addr.clamp(whole.start, whole.end);
        (inside.0 - whole.start.0) >> BASE_PAGE_SHIFT
    };
    let below = |count: u64, word: u64| match count.saturating_sub(word * 64) {
        0 => 0,
        bits @ 1..64 => (1 << bits) - 1,
        _ => u64::MAX,
    };
    let (first, end) = (page(range.start), page(range.end));
    PageSet::from_words(std::array::from_fn(|word| {
        let word = word as u64;
        below(end, word) & !below(first, word)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const P: u64 = 1;
    const A: u64 = 1 << 5;
    const G: u64 = 1 << 8;
    const SPECIAL: u64 = 1 << 9;
    /// A frame number, protection key, no-execute and software bits that must not matter.
    const NOISE: u64 = 0xf80f_ffff_ffff_fc16;

    fn region(n: u64) -> Region {
        Region::containing(VirtAddr(n << 21))
    }

    fn range(start: u64, end: u64) -> VirtRange {
        VirtRange::new(VirtAddr(start << 12), VirtAddr(end << 12)).unwrap()
    }

    #[test]
    fn an_entry_says_what_the_kernel_means_by_it() {
        // entry, present, accessed
        let cases = [
            (0, false, false),
            (P, true, false),
            (P | A, true, true),
            (P | A | G, true, true),
            (G, true, false),
            (G | A, true, true),
            // Swapped, migrating, or a marker: any bits except those two.
            (A, false, false),
            (!(P | G | SPECIAL), false, false),
            // The page of zeroes; device memory.
            (P | A | SPECIAL, false, false),
            (P | A | NOISE, true, true),
            (P | NOISE & !A, true, false),
            (A | NOISE & !(P | G), false, false),
        ];
        for (index, (entry, present, accessed)) in cases.into_iter().enumerate() {
            let mut table = [0; ENTRIES];
            let page = index * 37 % ENTRIES;
            table[page] = entry;
            let bits = of_table(region(5), &table);
            assert_eq!(bits.present.contains(page), present, "{entry:#x}");
            assert_eq!(bits.accessed.contains(page), accessed, "{entry:#x}");
            assert_eq!(bits.present.len().0, u64::from(present), "{entry:#x}");
            assert_eq!(bits.accessed.len().0, u64::from(accessed), "{entry:#x}");
        }
    }

    #[test]
    fn a_huge_page_is_touched_whole_or_not() {
        let bits = |entry| of_huge(region(1), entry).unwrap();
        assert_eq!(bits(P | 1 << 7 | A).accessed, PageSet::FULL);
        assert_eq!(bits(P | 1 << 7).accessed, PageSet::EMPTY);
        assert_eq!(bits(P | 1 << 7).present, PageSet::FULL);
        assert_eq!(bits(1 << 7 | G | A).accessed, PageSet::FULL);
        assert_eq!(of_huge(region(1), P | 1 << 7 | A | SPECIAL), None);
    }

    #[test]
    fn spans_are_whole_regions_of_user_space() {
        let limit = 1 << 47;
        let found = spans(
            &[
                range(1, 2),
                range(3, 511),
                range(600, 601),
                range(2048, 2049),
                range(0xf_ffff_ffff_f600, 0xf_ffff_ffff_f601),
            ],
            limit,
        );
        assert_eq!(found, [range(0, 1024), range(2048, 2560)]);
        assert_eq!(spans(&[range(5, 5)], limit), []);
    }

    #[test]
    fn half_a_huge_page_is_none() {
        let huge = of_huge(region(1), P | A | 1 << 7).unwrap();
        let confined = |cover: &[VirtRange]| {
            let mut found = vec![huge];
            confine(&mut found, cover);
            found.len()
        };
        assert_eq!(confined(&[range(512, 1024)]), 1);
        assert_eq!(confined(&[range(0, 5000)]), 1);
        assert_eq!(confined(&[range(512, 1023)]), 0);
        assert_eq!(confined(&[range(0, 600), range(700, 5000)]), 0);
        assert_eq!(confined(&[]), 0);
    }

    fn ranges() -> impl Strategy<Value = Vec<VirtRange>> {
        proptest::collection::vec((0_u64..600, 1_u64..600), 0..12).prop_map(|steps| {
            let mut at = 0;
            let step = |(gap, length): (u64, u64)| {
                let start = at + gap;
                at = start + length;
                range(start, at)
            };
            steps.into_iter().map(step).collect()
        })
    }

    fn has(ranges: &[VirtRange], page: u64) -> bool {
        ranges
            .iter()
            .any(|one| one.contains(&range(page, page + 1)))
    }

    proptest! {
        #[test]
        fn nothing_outside_is_left_and_nothing_inside_lost(
            ones in ranges(),
            others in ranges(),
            seed in any::<u64>(),
        ) {
            let cover = intersect(&ones, &others);
            let last = ones.iter().chain(&others).map(|r| r.end.0 >> 12).max().unwrap_or(0) + 2;
            let mut found: Vec<RegionBits> = (0..=last >> 9)
                .map(|n| of_table(region(n), &std::array::from_fn(|i| {
                    let noise = (seed ^ (n << 9 | i as u64)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    P | ((noise >> 40 & 1) * A)
                })))
                .collect();
            let before = found.clone();
            confine(&mut found, &cover);
            prop_assert!(found.is_sorted_by_key(|bits| bits.region));
            for page in 0..last {
                let inside = has(&ones, page) && has(&others, page);
                prop_assert_eq!(has(&cover, page), inside);
                let at = |list: &[RegionBits]| {
                    let bits = list.iter().find(|bits| bits.region == region(page >> 9)).copied();
                    let page = (page & 511) as usize;
                    bits.map_or((false, false), |bits| {
                        (bits.present.contains(page), bits.accessed.contains(page))
                    })
                };
                let expected = if inside { at(&before) } else { (false, false) };
                prop_assert_eq!(at(&found), expected);
            }
            let widened = spans(&cover, 1 << 47);
            prop_assert!(cover.iter().all(|one| widened.iter().any(|span| span.contains(one))));
            prop_assert!(widened.windows(2).all(|two| two[0].end < two[1].start));
        }
    }
}

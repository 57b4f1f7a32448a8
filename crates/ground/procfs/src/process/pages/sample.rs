//! Random sample of the pages of a process, over all its mappings.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use superhue_model::{BASE_PAGE_SHIFT, PAGES_PER_REGION, Random, Vma};

use super::super::maps::maps;
use super::words::{PageWord, page_words};
use crate::{ReadError, Roots};

/// Words read at a time.
const WINDOW: u64 = PAGES_PER_REGION;
/// Bytes in a word.
const WORD: u64 = 8;

/// Returns the words of `/proc/PID/pagemap` of present pages: all, if the mappings have at most `limit` pages; else those of
/// 2 MiB windows at random places, about `limit` in all. `seed` determines the places.
///
/// # Errors
/// If the process is gone, or the caller has no permission.
pub fn sample_words(
    roots: &Roots,
    pid: u32,
    limit: u64,
    seed: u64,
) -> Result<Vec<PageWord>, ReadError> {
    let vmas = maps(roots, pid)?;
    let path = roots.of_process(pid, "pagemap");
    let failed = |error| ReadError::of_process(pid, &path, error);
    let file = File::open(&path).map_err(failed)?;
    let mut found = Vec::new();
    for (first, count) in windows(&vmas, limit, seed) {
        read(&file, first, count, &mut found).map_err(failed)?;
    }
    Ok(found)
}

/// Appends the present ones of `count` pages from number `first` on.
fn read(file: &File, first: u64, count: u64, found: &mut Vec<PageWord>) -> io::Result<()> {
    let mut bytes = [0_u8; (WINDOW * WORD) as usize];
    let length = usize::try_from(count.min(WINDOW) * WORD).unwrap_or(bytes.len());
    let read = file.read_at(&mut bytes[..length], first.saturating_mul(WORD))?;
    found.extend(page_words(&bytes[..read]).filter(|word| word.is_present()));
    Ok(())
}

/// Returns the numbers of first pages, each with the number of pages from there on, [`WINDOW`] at most.
fn windows(vmas: &[Vma], limit: u64, seed: u64) -> Vec<(u64, u64)> {
    let ranges = vmas.iter().map(|vma| {
        let (start, end) = (
            vma.range.start.0 >> BASE_PAGE_SHIFT,
            vma.range.end.0 >> BASE_PAGE_SHIFT,
        );
        (start, end.saturating_sub(start))
    });
    let ranges: Vec<(u64, u64)> = ranges.collect();
    let pages = ranges
        .iter()
        .fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
    let mut whole = Vec::new();
    if pages <= limit {
        for (start, count) in ranges {
            let firsts = (0..count).step_by(WINDOW as usize);
            whole.extend(firsts.map(|first| (start + first, WINDOW.min(count - first))));
        }
        return whole;
    }
    let mut random = Random::new(seed);
    for _ in 0..limit / WINDOW {
        let mut place = random.next_bits() % pages;
        let within = ranges.iter().find(|(_, count)| {
            let inside = place < *count;
            if !inside {
                place -= count;
            }
            inside
        });
        if let Some((start, count)) = within {
            let first = place / WINDOW * WINDOW;
            whole.push((start + first, WINDOW.min(count - first)));
        }
    }
    whole.sort_unstable();
    whole.dedup();
    whole
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use superhue_model::{VirtAddr, VirtRange};

    use super::super::super::maps::parse_maps;
    use super::*;

    fn vma(first: u64, pages: u64) -> Vma {
        let text = format!(
            "{:x}-{:x} rw-p 00000000 00:00 0\n",
            first << 12,
            (first + pages) << 12
        );
        let vma = parse_maps(text.as_bytes()).unwrap().remove(0);
        let range = VirtRange {
            start: VirtAddr(first << 12),
            end: VirtAddr((first + pages) << 12),
        };
        assert_eq!(vma.range, range);
        vma
    }

    #[test]
    fn own_pages_are_found() {
        let some = sample_words(&Roots::default(), std::process::id(), 1 << 20, 1).unwrap();
        assert!(some.iter().all(|word| word.is_present()));
        let gone = sample_words(&Roots::default(), u32::MAX, 1, 1).unwrap_err();
        assert!(gone.is_vanished());
    }

    proptest! {
        #[test]
        fn windows_lie_in_mappings_and_do_not_overlap(
            sizes in proptest::collection::vec(1..5000_u64, 1..8),
            limit in 0..6000_u64,
            seed: u64,
        ) {
            let vmas: Vec<Vma> = sizes.iter().zip(0..).map(|(&size, index)| vma(0x1000 + index * 0x10000, size)).collect();
            let found = windows(&vmas, limit, seed);
            let inside = |&(first, count): &(u64, u64)| vmas.iter().any(|vma| {
                first << 12 >= vma.range.start.0 && (first + count) << 12 <= vma.range.end.0
            });
            prop_assert!(found.iter().all(inside));
            prop_assert!(found.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            let taken: u64 = found.iter().map(|window| window.1).sum();
            let all: u64 = sizes.iter().sum();
            prop_assert!(taken <= limit && (all > limit || taken == all));
        }
    }
}

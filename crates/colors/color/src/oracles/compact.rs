//! A copy of a palette in huge pages.
//!
//! ```text
//!   shared    | . . 3 . . . 7 . . . 3 . . 1 ...      a page of a set here and there in 32 MiB
//!   compact   |3173 0251 7263 ...|                   two huge pages: every color comes up often enough
//! ```

use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};
use superhue_model::{HUGE_PAGE_SIZE, PAGES_PER_REGION, Region, VirtAddr};
use superhue_sys::collapse::own_collapse;

use super::mapping::Mapping;
use super::{Palette, Probe};
use crate::Page;

/// Huge pages that are looked through, at most.
const LARGEST: u64 = 8;

/// Sets of pages in huge pages of a file of our own that evict what those of `palette` do.
pub(super) fn compact(
    palette: &Palette,
    probe: &mut impl Probe,
) -> Option<(Palette, Mapping, OwnedFd)> {
    let wanted: usize = palette.sets().iter().map(Vec::len).sum();
    // Twice as many as are wanted, so that few colors come up too seldom; then more.
    let mut huge_pages = (2 * wanted as u64).div_ceil(PAGES_PER_REGION);
    while huge_pages <= LARGEST {
        let (file, mapping) = huge(huge_pages)?;
        if let Some(sets) = choose(palette, probe, &mapping) {
            let mut compact = palette.with_sets(sets);
            compact.calibrate(probe);
            return (compact.self_test(probe, 2).passed()).then_some((compact, mapping, file));
        }
        huge_pages += huge_pages.max(2) / 2;
    }
    None
}

/// A file of so many huge pages, mapped.
fn huge(count: u64) -> Option<(OwnedFd, Mapping)> {
    let length = count * HUGE_PAGE_SIZE;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("superhue-palette", flags).ok()?;
    // Where nothing is, nothing is collapsed.
    fallocate(&file, FallocateFlags::empty(), 0, length).ok()?;
    let length = usize::try_from(length).ok()?;
    let open = Mapping::aligned(&file, length).ok()?;
    let start = open.start() as u64;
    for at in 0..count {
        own_collapse(Region::containing(VirtAddr(start + at * HUGE_PAGE_SIZE))).ok()?;
    }
    // A mapping that was made before could be made writable: it would keep the file from being sealed.
    drop(open);
    // Programs are handed it that need not be trusted: it stays as it is.
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    fcntl_add_seals(&file, seals).ok()?;
    let mapping = Mapping::aligned(&file, length).ok()?;
    Some((file, mapping))
}

/// As many pages of each color as its set has now.
fn choose(palette: &Palette, probe: &mut impl Probe, mapping: &Mapping) -> Option<Vec<Vec<Page>>> {
    let numbers =
        0..u32::try_from(mapping.length() as u64 / superhue_model::BASE_PAGE_SIZE).ok()?;
    let pages: Vec<Page> = numbers.filter_map(|number| mapping.page(number)).collect();
    let mut colors = vec![None; pages.len()];
    palette.classify(probe, &pages, &mut colors);
    let mut sets: Vec<Vec<Page>> = vec![Vec::new(); palette.colors()];
    for (page, color) in pages.iter().zip(colors) {
        let Some(color) = color.map(|color| usize::from(color.0)) else {
            continue;
        };
        let most = palette.sets().get(color).map_or(0, Vec::len);
        if let Some(set) = sets.get_mut(color).filter(|set| set.len() < most) {
            set.push(*page);
        }
    }
    let enough = sets.iter().zip(palette.sets());
    enough
        .into_iter()
        .all(|(set, before)| set.len() == before.len())
        .then_some(sets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_are_handed_cannot_be_written_or_cut_off() {
        let Some((file, mapping)) = huge(1) else {
            superhue_testing::skip("collapse", "no huge page of a file could be had");
            return;
        };
        assert_eq!(mapping.length(), HUGE_PAGE_SIZE as usize);
        assert!(rustix::io::pwrite(&file, b"x", 0).is_err());
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
    }
}

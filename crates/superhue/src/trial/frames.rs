//! Frames of neighboring pages: side by side after a split, scattered where the kernel had handed them out one by one.
//!
//! A TLB miss costs less where frames are neighbors: some processors map several such pages by one TLB entry, and in a virtual machine the second
//! level of the page walk finds its entries cached. So a program in *off* is faster than it was before the policy if its frames had been scattered
//! then (`scripts/trial off` measures by how much).

use superhue_model::{BASE_PAGE_SIZE, PAGES_PER_REGION, Pfn, ProcessId, Region, VirtAddr};
use superhue_procfs::Roots;
use superhue_procfs::process::PageWord;
use superhue_recolor::Target;

/// Fewest pairs of pages that give a share.
const LEAST_PAIRS: u64 = 64;

/// Counts of neighboring pages, and of those whose frames are neighbors.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Neighbors {
    pairs: u64,
    near: u64,
}

impl Neighbors {
    /// Counts in the frames of successive pages; `None` is a page without a known frame.
    pub(super) fn of(frames: &[Option<Pfn>]) -> Self {
        let mut counted = Self::default();
        for pair in frames.windows(2) {
            if let [Some(first), Some(second)] = pair {
                counted.pairs += 1;
                counted.near += u64::from(first.0.abs_diff(second.0) == 1);
            }
        }
        counted
    }

    /// Adds the counts of other pages.
    pub(super) const fn add(&mut self, other: Self) {
        self.pairs += other.pairs;
        self.near += other.near;
    }

    /// Returns the share of neighboring pages whose frames are neighbors; `None` from too few pages.
    pub(super) fn share(self) -> Option<f64> {
        #[allow(clippy::cast_precision_loss, reason = "counts of pages")]
        (self.pairs >= LEAST_PAIRS).then(|| self.near as f64 / self.pairs as f64)
    }
}

/// Returns the addresses of the pages of a region.
pub(super) fn base_pages(region: Region) -> impl Iterator<Item = VirtAddr> {
    (0..PAGES_PER_REGION).map(move |page| VirtAddr(region.start().0 + page * BASE_PAGE_SIZE))
}

/// Returns the words of the pages of a region; `None` if the process has ended or may not be inspected.
fn words_of(roots: &Roots, process: ProcessId, region: Region) -> Option<Vec<PageWord>> {
    let target = Target::open(roots, process).ok()?;
    let pages: Vec<VirtAddr> = base_pages(region).collect();
    target.words(&pages).ok()
}

/// Counts neighbors in a region; nothing where frames are hidden.
pub(super) fn neighbors_in(roots: &Roots, process: ProcessId, region: Region) -> Neighbors {
    let words = words_of(roots, process, region).unwrap_or_default();
    let frames: Vec<Option<Pfn>> = words.into_iter().map(PageWord::frame).collect();
    Neighbors::of(&frames)
}

#[cfg(test)]
mod tests {
    use superhue_procfs::process::identify;
    use superhue_sys::scratch::Scratch;

    use super::*;

    fn frames(numbers: impl IntoIterator<Item = u64>) -> Vec<Option<Pfn>> {
        numbers
            .into_iter()
            .map(|number| (number > 0).then_some(Pfn(number)))
            .collect()
    }

    #[test]
    fn frames_in_either_direction_are_neighbors() {
        assert_eq!(Neighbors::of(&frames(1..=100)).share(), Some(1.0));
        assert_eq!(Neighbors::of(&frames((1..=100).rev())).share(), Some(1.0));
        assert_eq!(
            Neighbors::of(&frames((1..=100).map(|it| it * 2))).share(),
            Some(0.0)
        );
        let mut both = Neighbors::of(&frames(1..=51));
        both.add(Neighbors::of(&frames((1..=51).map(|it| it * 3))));
        assert_eq!(both.share(), Some(0.5));
    }

    #[test]
    fn pages_without_a_frame_count_for_nothing() {
        let holes = frames((1..=200).map(|number| if number % 2 == 0 { 0 } else { number }));
        assert_eq!(Neighbors::of(&holes), Neighbors::default());
        assert_eq!(Neighbors::of(&holes).share(), None);
    }

    #[test]
    fn the_words_of_a_region_are_those_of_the_process_meant() {
        let roots = Roots::default();
        let id = identify(&roots, std::process::id()).unwrap();
        let mut scratch = Scratch::in_base_pages(4 << 20).unwrap();
        for page in 0..100 {
            scratch.touch_page(page);
        }
        let words = words_of(&roots, id, scratch.region()).unwrap();
        assert_eq!(words.len() as u64, PAGES_PER_REGION);
        let present = words.iter().filter(|word| word.is_present()).count();
        assert_eq!(present, 100);
        let other = ProcessId {
            start_ticks: id.start_ticks + 1,
            ..id
        };
        assert!(words_of(&roots, other, scratch.region()).is_none());
        assert_eq!(
            neighbors_in(&roots, other, scratch.region()),
            Neighbors::default()
        );
    }
}

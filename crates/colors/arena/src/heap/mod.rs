//! Used and free parts of an arena's pages. Pure: this code knows addresses and never touches the memory.
//!
//! ```text
//!   chunk  [ page | page | page | page | page | page | ... ]
//!            slab   slab   `----- run -----'  `- free run -'
//!            16 B   768 B     larger than half a page
//! ```

mod classes;
mod runs;
mod slab;

use std::alloc::Layout;
use std::collections::{BTreeMap, BTreeSet};

use classes::{SIZES, class_of, size_of};
pub use runs::PAGE;
use runs::Runs;
use slab::Slab;

/// Chunks of pages and what is allocated in them.
#[derive(Debug)]
pub struct Heap {
    /// Chunks, by their first byte.
    chunks: BTreeMap<usize, Runs>,
    /// Pages of small objects, by address.
    slabs: BTreeMap<usize, Slab>,
    /// For each class, the slabs that have room.
    partial: Vec<BTreeSet<usize>>,
    /// Larger objects: address and number of pages.
    large: BTreeMap<usize, usize>,
}

/// Result of giving an object back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreedObject {
    /// Bytes that were reserved for the object.
    pub size: usize,
    /// First byte of the chunk, if it holds no more objects.
    pub emptied: Option<usize>,
}

impl Heap {
    /// Makes a heap without memory.
    pub fn new() -> Self {
        Self {
            chunks: BTreeMap::new(),
            slabs: BTreeMap::new(),
            partial: vec![BTreeSet::new(); SIZES.len()],
            large: BTreeMap::new(),
        }
    }

    /// Gives it `pages` free pages at `start`.
    pub fn add(&mut self, start: usize, pages: usize) {
        self.chunks.insert(start, Runs::new(start, pages));
    }

    /// Removes a chunk without objects. Returns false if it holds an object, or is unknown.
    pub fn remove(&mut self, start: usize) -> bool {
        let free = self.chunks.get(&start).is_some_and(Runs::is_free);
        free && self.chunks.remove(&start).is_some()
    }

    /// Returns the number of pages with which this layout surely fits into a chunk; `None` if there is no such number.
    pub fn pages_for(layout: Layout) -> Option<usize> {
        let lost_to_alignment = layout.align().saturating_sub(PAGE);
        let bytes = layout.size().checked_add(lost_to_alignment)?;
        Some(bytes.checked_next_multiple_of(PAGE)?.max(PAGE) / PAGE)
    }

    /// Returns an address for an object of this layout (its size not 0), and the number of usable bytes there; `None` if the heap
    /// has no room.
    pub fn allocate(&mut self, layout: Layout) -> Option<(usize, usize)> {
        let Some(class) = class_of(layout) else {
            let pages = layout.size().checked_next_multiple_of(PAGE)?.max(PAGE) / PAGE;
            let at = self.take_pages(pages, layout.align())?;
            self.large.insert(at, pages);
            return Some((at, pages * PAGE));
        };
        let page = match self.partial.get(class)?.first() {
            Some(page) => *page,
            None => {
                let page = self.take_pages(1, PAGE)?;
                self.slabs.insert(page, Slab::new(class));
                self.partial.get_mut(class)?.insert(page);
                page
            }
        };
        let slab = self.slabs.get_mut(&page)?;
        let offset = slab.take()?;
        if slab.is_full() {
            self.partial.get_mut(class)?.remove(&page);
        }
        Some((page + offset, size_of(class)))
    }

    /// Gives back the object that begins at `address`; `None` if none does.
    pub fn free(&mut self, address: usize) -> Option<FreedObject> {
        let page = address - address % PAGE;
        let (size, pages) = if let Some(slab) = self.slabs.get_mut(&page) {
            if !slab.give(address - page) {
                return None;
            }
            let (class, empty) = (slab.class(), slab.is_empty());
            let size = size_of(class);
            let partial = self.partial.get_mut(class)?;
            if !empty {
                partial.insert(page);
                return Some(FreedObject {
                    size,
                    emptied: None,
                });
            }
            partial.remove(&page);
            self.slabs.remove(&page);
            (size, 1)
        } else {
            let pages = self.large.remove(&address)?;
            (pages * PAGE, pages)
        };
        let (&start, chunk) = self.chunks.range_mut(..=page).next_back()?;
        chunk.give(page, pages);
        let emptied = chunk.is_free().then_some(start);
        Some(FreedObject { size, emptied })
    }

    /// Returns the usable bytes of the object that begins at `address`; `None` if no object in use begins there.
    pub fn size_at(&self, address: usize) -> Option<usize> {
        let page = address - address % PAGE;
        match self.slabs.get(&page) {
            Some(slab) => slab.has(address - page).then(|| size_of(slab.class())),
            None => self.large.get(&address).map(|pages| pages * PAGE),
        }
    }

    /// Returns true if an address lies in one of the heap's chunks.
    pub fn contains(&self, address: usize) -> bool {
        let chunk = self.chunks.range(..=address).next_back();
        chunk.is_some_and(|(_, chunk)| chunk.contains(address))
    }

    /// Returns the first byte of each chunk.
    #[cfg(test)]
    pub fn chunks(&self) -> impl Iterator<Item = usize> + '_ {
        self.chunks.keys().copied()
    }

    /// Returns true if no object is in use.
    #[cfg(test)]
    pub fn is_unused(&self) -> bool {
        self.slabs.is_empty() && self.large.is_empty()
    }

    fn take_pages(&mut self, pages: usize, align: usize) -> Option<usize> {
        let mut chunks = self.chunks.values_mut();
        chunks.find_map(|chunk| chunk.take(pages, align))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn strangers_and_second_frees_are_told() {
        let mut heap = Heap::new();
        assert_eq!(heap.allocate(Layout::new::<u64>()), None);
        heap.add(0x10000, 4);
        let (small, usable) = heap.allocate(Layout::new::<[u8; 40]>()).unwrap();
        assert_eq!(usable, 48);
        let (large, usable) = heap.allocate(Layout::new::<[u8; 5000]>()).unwrap();
        assert_eq!(usable, 8192);
        assert_eq!(heap.size_at(large), Some(8192));
        assert_eq!(heap.size_at(large + PAGE), None);
        assert_eq!(heap.free(small + 16), None);
        assert_eq!(heap.free(0x9000), None);
        assert!(!heap.remove(0x10000));
        let given = heap.free(small).unwrap();
        assert_eq!((given.size, given.emptied), (48, None));
        assert_eq!(heap.free(small), None);
        assert_eq!(heap.free(large).unwrap().emptied, Some(0x10000));
        assert!(heap.is_unused() && heap.remove(0x10000) && !heap.remove(0x10000));
    }

    #[test]
    fn sizes_that_no_chunk_holds_have_no_number_of_pages() {
        let pages = |size, align| Heap::pages_for(Layout::from_size_align(size, align).unwrap());
        assert_eq!(pages(1, 1), Some(1));
        assert_eq!(pages(4097, 8), Some(2));
        assert_eq!(pages(4096, 1 << 21), Some(512));
        assert_eq!(
            pages(isize::MAX as usize, 1),
            Some(isize::MAX as usize / PAGE + 1)
        );
    }

    proptest! {
        /// After any sequence of requests, objects are aligned, inside a chunk and apart, and at the end all pages are free.
        #[test]
        fn objects_never_overlap(
            steps in prop::collection::vec((0_usize..9000, 0_u32..14, any::<bool>(), any::<prop::sample::Index>()), 1..200),
        ) {
            let mut heap = Heap::new();
            let (mut live, mut next) = (BTreeMap::new(), 0x10_0000);
            for (size, shift, free, which) in steps {
                if free && !live.is_empty() {
                    let at = *live.keys().nth(which.index(live.len())).unwrap();
                    let size: usize = live.remove(&at).unwrap();
                    prop_assert_eq!(heap.free(at).unwrap().size, size);
                    continue;
                }
                let layout = Layout::from_size_align(size.max(1), 1 << shift).unwrap();
                let (at, usable) = heap.allocate(layout).unwrap_or_else(|| {
                    let pages = Heap::pages_for(layout).unwrap();
                    heap.add(next, pages);
                    next += pages * PAGE;
                    heap.allocate(layout).unwrap()
                });
                prop_assert_eq!(at % layout.align(), 0);
                prop_assert!(usable >= layout.size());
                prop_assert!(heap.contains(at) && heap.contains(at + usable - 1));
                let before = live.range(..=at).next_back();
                prop_assert!(before.is_none_or(|(start, size)| start + size <= at));
                let after = live.range(at..).next();
                prop_assert!(after.is_none_or(|(start, _)| at + usable <= *start));
                prop_assert_eq!(heap.size_at(at), Some(usable));
                live.insert(at, usable);
            }
            for at in live.keys() {
                heap.free(*at).unwrap();
            }
            prop_assert!(heap.is_unused());
            let chunks: Vec<usize> = heap.chunks().collect();
            prop_assert!(chunks.into_iter().all(|start| heap.remove(start)));
        }
    }
}

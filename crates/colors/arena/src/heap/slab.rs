//! A page of small objects of one size.

use super::classes::size_of;
use super::runs::PAGE;

/// Maximum number of objects in a page: those of 16 bytes.
const MAX_OBJECTS_PER_PAGE: usize = PAGE / 16;

/// Bitmap of the objects in use in a page. It lies apart from the page, which is the program's alone, so a program that
/// writes past its object does not corrupt the heap.
#[derive(Debug)]
pub struct Slab {
    class: usize,
    used: [u64; MAX_OBJECTS_PER_PAGE / 64],
    count: usize,
}

impl Slab {
    /// Makes a page without objects.
    pub const fn new(class: usize) -> Self {
        Self {
            class,
            used: [0; MAX_OBJECTS_PER_PAGE / 64],
            count: 0,
        }
    }

    /// Returns the size class of the objects.
    pub const fn class(&self) -> usize {
        self.class
    }

    /// Returns true if no object is in use.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns true if all objects are in use.
    pub fn is_full(&self) -> bool {
        self.count == self.capacity()
    }

    fn capacity(&self) -> usize {
        PAGE / size_of(self.class).max(16)
    }

    /// Takes the first free object and returns its offset into the page in bytes.
    pub fn take(&mut self) -> Option<usize> {
        let capacity = self.capacity();
        let words = self.used.iter_mut().enumerate();
        for (place, word) in words {
            let bit = word.trailing_ones() as usize;
            let index = place * 64 + bit;
            if bit < 64 && index < capacity {
                *word |= 1 << bit;
                self.count += 1;
                return Some(index * size_of(self.class));
            }
        }
        None
    }

    /// Returns true if an object in use begins at this offset.
    pub fn has(&self, offset: usize) -> bool {
        let index = offset / size_of(self.class).max(16);
        let word = self.used.get(index / 64).copied().unwrap_or_default();
        offset.is_multiple_of(size_of(self.class).max(16)) && word >> (index % 64) & 1 == 1
    }

    /// Gives an object back. Returns false if it was not in use.
    pub fn give(&mut self, offset: usize) -> bool {
        if !self.has(offset) {
            return false;
        }
        let index = offset / size_of(self.class).max(16);
        if let Some(word) = self.used.get_mut(index / 64) {
            *word &= !(1 << (index % 64));
            self.count -= 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::classes::SIZES;

    #[test]
    fn every_object_is_handed_out_once() {
        for (class, &size) in SIZES.iter().enumerate() {
            let mut slab = Slab::new(class);
            let taken: Vec<usize> = std::iter::from_fn(|| slab.take()).collect();
            assert_eq!(taken.len(), PAGE / size);
            assert!(taken.iter().all(|at| at + size <= PAGE));
            assert!(slab.is_full());
            assert!(!slab.give(8) && !slab.give(PAGE));
            for at in &taken {
                assert!(slab.give(*at) && !slab.give(*at));
            }
            assert!(slab.is_empty());
        }
    }
}

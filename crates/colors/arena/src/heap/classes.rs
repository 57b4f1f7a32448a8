//! Sizes of small objects.

use std::alloc::Layout;

/// Sizes in bytes to which small allocations are rounded up: powers of two and the sizes halfway between, so that at
/// most a third is lost. They end at half a page: larger objects get whole pages.
pub const SIZES: [usize; 14] = [
    16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1360, 2048,
];

/// Returns the index in [`SIZES`] for an allocation of this layout; `None` if it gets whole pages.
///
/// Objects lie at multiples of their size from the start of a page, so a size that is a multiple of the alignment
/// aligns them all.
pub fn class_of(layout: Layout) -> Option<usize> {
    let fits = |size: &usize| *size >= layout.size() && size.is_multiple_of(layout.align());
    SIZES.iter().position(fits)
}

/// Returns the size of a class in bytes.
pub fn size_of(class: usize) -> usize {
    SIZES.get(class).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_small_has_a_class_that_fits(size in 0_usize..5000, shift in 0_u32..13) {
            let layout = Layout::from_size_align(size, 1 << shift).unwrap();
            match class_of(layout) {
                Some(class) => {
                    prop_assert!(size_of(class) >= size);
                    prop_assert_eq!(size_of(class) % layout.align(), 0);
                }
                None => prop_assert!(size > 2048 || layout.align() > 2048),
            }
        }
    }
}

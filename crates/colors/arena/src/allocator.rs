//! The ecosystem's allocator interface.

use std::alloc::Layout;
use std::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};

use crate::ColoredArena;

// SAFETY: memory stays where it is until it is deallocated or the last clone is dropped, which unmaps it; clones share it.
unsafe impl Allocator for ColoredArena {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            return Ok(NonNull::slice_from_raw_parts(nowhere(layout), 0));
        }
        ColoredArena::allocate(self, layout).map_err(|_| AllocError)
    }

    unsafe fn deallocate(&self, memory: NonNull<u8>, layout: Layout) {
        if layout.size() > 0 {
            // SAFETY: the caller's promise.
            let known = unsafe { ColoredArena::deallocate(self, memory) };
            debug_assert!(known, "what is given back was handed out here");
        }
    }

    unsafe fn grow(
        &self,
        memory: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's promise.
        unsafe { resize(self, memory, old, new) }
    }

    unsafe fn grow_zeroed(
        &self,
        memory: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's promise; what is behind the old end is the caller's as well.
        unsafe {
            let grown = resize(self, memory, old, new)?;
            let behind = grown.cast::<u8>().as_ptr().add(old.size());
            behind.write_bytes(0, grown.len() - old.size());
            Ok(grown)
        }
    }

    unsafe fn shrink(
        &self,
        memory: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's promise.
        unsafe { resize(self, memory, old, new) }
    }
}

/// The same object with another size: in its place if it fits there and at most half of that would be lost.
///
/// # Safety
/// `memory` was allocated with `old`.
unsafe fn resize(
    arena: &ColoredArena,
    memory: NonNull<u8>,
    old: Layout,
    new: Layout,
) -> Result<NonNull<[u8]>, AllocError> {
    let aligned = (memory.as_ptr() as usize).is_multiple_of(new.align());
    if old.size() > 0
        && aligned
        && let Some(usable) = arena.size_at(memory)
        && new.size() <= usable
        && new.size() >= usable / 2
    {
        return Ok(NonNull::slice_from_raw_parts(memory, usable));
    }
    let moved = Allocator::allocate(arena, new)?;
    // SAFETY: both are as large as the smaller of the two, and different objects.
    unsafe {
        let to = moved.cast::<u8>();
        memory.copy_to_nonoverlapping(to, old.size().min(new.size()));
        Allocator::deallocate(arena, memory, old);
    }
    Ok(moved)
}

/// An address for nothing.
fn nowhere(layout: Layout) -> NonNull<u8> {
    NonNull::new(std::ptr::without_provenance_mut(layout.align())).unwrap_or(NonNull::dangling())
}

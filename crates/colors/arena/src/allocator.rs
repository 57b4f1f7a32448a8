//! The ecosystem's allocator interface.

use std::alloc::Layout;
use std::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};

use crate::ColoredArena;

// SAFETY: memory stays where it is until it is deallocated or the last clone is dropped, which unmaps it. Clones share it.
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
        // SAFETY: the caller's promise; the bytes behind the old end belong to the caller as well.
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

/// Resizes an object: in place if the new size fits and wastes at most half of the usable bytes, else by a copy to new memory.
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
    // SAFETY: both objects are at least as large as the smaller size, and they do not overlap.
    unsafe {
        let to = moved.cast::<u8>();
        memory.copy_to_nonoverlapping(to, old.size().min(new.size()));
        Allocator::deallocate(arena, memory, old);
    }
    Ok(moved)
}

/// Returns a dangling, aligned address for an allocation of size 0.
fn nowhere(layout: Layout) -> NonNull<u8> {
    NonNull::new(std::ptr::without_provenance_mut(layout.align())).unwrap_or(NonNull::dangling())
}

//! The agent's own memory, apart from the program's heap.
//!
//! What places pages by color needs lists. The program's `malloc` must not serve them: it may be replaced, it
//! may be locked by the very thread whose fault the agent is to answer, and its state must not show that the agent
//! exists. So this library allocates from chunks it maps itself, by direct system calls:
//!
//! ```text
//!   up to 64 KiB    the next power of two, from a free list of that size, cut from 1 MiB chunks
//!   above           a mapping each
//! ```
//!
//! The memory is not handed to forks (`MADV_DONTFORK`): the child of a fork begins anew, with
//! [`Heap::forget`]. It is *shared* anonymous memory, shared with nobody, for then it stands in the list of mappings
//! as what it is: not the program's private memory, which is what gets placed.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::raw;

/// Smallest block: room for the link of a free list.
const SMALLEST_SHIFT: u32 = 4;
/// Largest block that is cut from a chunk.
const LARGEST_SHIFT: u32 = 16;
const CLASSES: usize = (LARGEST_SHIFT - SMALLEST_SHIFT + 1) as usize;
const CHUNK: usize = 1 << 20;
const PAGE: usize = 4096;

#[cfg_attr(not(test), global_allocator)]
pub(crate) static HEAP: Heap = Heap::new();

/// See the module.
pub(crate) struct Heap {
    locked: AtomicBool,
    state: UnsafeCell<State>,
}

struct State {
    /// The first free block of each size; it holds the address of the next.
    free: [usize; CLASSES],
    /// What is left of the newest chunk.
    next: usize,
    end: usize,
}

// SAFETY: `state` is reached only while `locked` is held.
unsafe impl Sync for Heap {}

impl Heap {
    const fn new() -> Self {
        Self {
            locked: AtomicBool::new(false),
            state: UnsafeCell::new(State::EMPTY),
        }
    }

    /// In the child of a fork: the chunks are not there, and whoever held the lock is not either.
    pub(crate) fn forget(&self) {
        // SAFETY: the child of a fork has one thread, this one.
        unsafe { *self.state.get() = State::EMPTY };
        self.locked.store(false, Release);
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        // Only threads of this library come here, and there is hardly ever more than one.
        while self
            .locked
            .compare_exchange_weak(false, true, Acquire, Relaxed)
            .is_err()
        {
            raw::give_way();
        }
        // SAFETY: the lock is held.
        let result = act(unsafe { &mut *self.state.get() });
        self.locked.store(false, Release);
        result
    }
}

/// The number of the block size that holds the layout; `None` for those that get a mapping.
fn class_of(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(1 << SMALLEST_SHIFT);
    let shift = size.checked_next_power_of_two()?.trailing_zeros();
    (shift <= LARGEST_SHIFT).then(|| (shift - SMALLEST_SHIFT) as usize)
}

const fn block_size(class: usize) -> usize {
    1 << (class + SMALLEST_SHIFT as usize)
}

/// Bytes of the mapping for a large layout.
fn mapping_size(layout: Layout) -> Option<usize> {
    // Mappings begin at pages: nobody asks for more.
    (layout.align() <= PAGE)
        .then(|| layout.size().checked_next_multiple_of(PAGE))
        .flatten()
}

/// Zeroed memory that no fork gets; 0 on failure.
pub(crate) fn map(length: usize) -> usize {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new memory at an address of the kernel's choice.
    let mapped = unsafe {
        raw::map(
            length,
            protection,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
        )
    };
    let Ok(address) = usize::try_from(mapped) else {
        return 0;
    };
    raw::keep_from_forks(address, length);
    address
}

impl State {
    const EMPTY: Self = Self {
        free: [0; CLASSES],
        next: 0,
        end: 0,
    };

    fn take(&mut self, class: usize) -> Option<usize> {
        let first = self.free.get_mut(class)?;
        if *first != 0 {
            let block = *first;
            // SAFETY: a free block of ours, in which `give` left the next one's address.
            *first = unsafe { *(block as *const usize) };
            return Some(block);
        }
        let size = block_size(class);
        let mut start = self.next.checked_next_multiple_of(size)?;
        if self.next == 0 || start + size > self.end {
            let chunk = map(CHUNK);
            if chunk == 0 {
                return None;
            }
            self.end = chunk + CHUNK;
            // Of a page-aligned chunk the first block of up to a page is aligned; larger ones need not be
            // aligned to their size, only to what is asked for, which is at most a page here.
            start = chunk;
        }
        self.next = start + size;
        Some(start)
    }

    fn give(&mut self, class: usize, block: usize) {
        if let Some(first) = self.free.get_mut(class) {
            // SAFETY: the block is ours again, and at least as large as an address.
            unsafe { *(block as *mut usize) = *first };
            *first = block;
        }
    }
}

// SAFETY: blocks are disjoint, as large and as aligned as asked for, and stay until given back.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > PAGE {
            return null_mut();
        }
        let address = match class_of(layout) {
            Some(class) => self.with(|state| state.take(class)).unwrap_or(0),
            None => mapping_size(layout).map_or(0, map),
        };
        address as *mut u8
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match (class_of(layout), mapping_size(layout)) {
            (Some(class), _) => self.with(|state| state.give(class, block as usize)),
            // SAFETY: the mapping that `alloc` made for this layout.
            (None, Some(length)) => unsafe { raw::unmap(block as usize, length) },
            (None, None) => {}
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Ok(wanted) = Layout::from_size_align(size, layout.align()) else {
            return null_mut();
        };
        // Mappings are not made longer in place: shared memory has the length it was made with (`SIGBUS` beyond).
        let is_large = class_of(layout).is_none();
        let fits = if is_large {
            mapping_size(layout) == mapping_size(wanted)
        } else {
            class_of(layout) == class_of(wanted)
        };
        if fits && is_large == class_of(wanted).is_none() {
            return block;
        }
        // SAFETY: the caller's promise; both blocks hold at least the smaller size.
        unsafe {
            let moved = self.alloc(wanted);
            if !moved.is_null() {
                std::ptr::copy_nonoverlapping(block, moved, layout.size().min(size));
                self.dealloc(block, layout);
            }
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[test]
    fn blocks_are_disjoint_aligned_and_used_again() {
        let heap = Heap::new();
        let mut held: Vec<(usize, Layout)> = Vec::new();
        let mut number = 12345_usize;
        for round in 0..20_000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005) + 1;
            let layout = layout(1 + (number >> 33) % 200_000, 1 << ((number >> 20) % 13));
            // SAFETY: a size above 0.
            let block = unsafe { heap.alloc(layout) };
            assert!(!block.is_null() && (block as usize).is_multiple_of(layout.align()));
            // SAFETY: within the block.
            unsafe {
                block.write(1);
                block.add(layout.size() - 1).write(2);
            }
            held.push((block as usize, layout));
            if round % 3 != 0 {
                let (block, layout) = held.swap_remove((number >> 40) % held.len());
                // SAFETY: allocated above, and given back once.
                unsafe { heap.dealloc(block as *mut u8, layout) };
            }
            if held.len() > 200 {
                for (block, layout) in held.drain(..) {
                    // SAFETY: as above.
                    unsafe { heap.dealloc(block as *mut u8, layout) };
                }
            }
        }
        held.sort_unstable_by_key(|(block, _)| *block);
        for pair in held.windows(2) {
            assert!(pair[0].0 + pair[0].1.size() <= pair[1].0);
        }
    }

    #[test]
    fn contents_survive_growth_across_all_kinds_of_block() {
        let heap = Heap::new();
        // SAFETY: a size above 0, and the layouts of the blocks throughout.
        unsafe {
            let mut size = 24;
            let mut block = heap.alloc(layout(size, 8));
            block.cast::<u64>().write(0x0102_0304_0506_0708);
            while size < 1 << 20 {
                block = heap.realloc(block, layout(size, 8), size * 3);
                size *= 3;
                assert_eq!(block.cast::<u64>().read(), 0x0102_0304_0506_0708);
            }
            block = heap.realloc(block, layout(size, 8), 100);
            assert_eq!(block.cast::<u64>().read(), 0x0102_0304_0506_0708);
            heap.dealloc(block, layout(100, 8));
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let heap = Heap::new();
        // SAFETY: sizes above 0.
        unsafe {
            assert!(heap.alloc(layout(1 << 62, 8)).is_null());
            assert!(heap.alloc(layout(8192, 8192)).is_null());
        }
    }
}

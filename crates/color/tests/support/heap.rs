//! An allocator that `fork` does not lock.
//!
//! glibc's `fork` holds all locks of `malloc` until the child is made, which is not before whoever exchanges pages has read
//! the event of it. If that thread waits for `malloc` meanwhile, both wait for ever. The agent has a heap of its own for that
//! reason, among others; so has every test that exchanges pages under a running program.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

const SPACE: usize = 4 << 30;
const CLASSES: usize = 40;

/// Powers of two, cut from one mapping and never given back.
pub struct Heap {
    locked: AtomicBool,
    start: AtomicUsize,
    used: AtomicUsize,
    free: [AtomicPtr<u8>; CLASSES],
}

impl Heap {
    pub const fn new() -> Self {
        Self {
            locked: AtomicBool::new(false),
            start: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            free: [const { AtomicPtr::new(null_mut()) }; CLASSES],
        }
    }

    fn with_lock<T>(&self, work: impl FnOnce() -> T) -> T {
        while self.locked.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        let result = work();
        self.locked.store(false, Ordering::Release);
        result
    }

    fn cut(&self, size: usize) -> *mut u8 {
        if self.start.load(Ordering::Relaxed) == 0 {
            // SAFETY: a new mapping, wherever the kernel likes.
            let start = unsafe {
                libc::mmap(
                    null_mut(),
                    SPACE,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            if start == libc::MAP_FAILED {
                return null_mut();
            }
            self.start.store(start as usize, Ordering::Relaxed);
        }
        let used = self
            .used
            .load(Ordering::Relaxed)
            .next_multiple_of(size.min(4096));
        if used + size > SPACE {
            return null_mut();
        }
        self.used.store(used + size, Ordering::Relaxed);
        (self.start.load(Ordering::Relaxed) + used) as *mut u8
    }
}

fn size_of(layout: Layout) -> usize {
    layout
        .size()
        .max(layout.align())
        .max(16)
        .next_power_of_two()
}

// SAFETY: each block is handed out once until it is freed, is as large and as aligned (up to a page) as asked for, and the
// lists are changed under the lock alone.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = size_of(layout);
        let Some(list) = self.free.get(size.trailing_zeros() as usize) else {
            return null_mut();
        };
        self.with_lock(|| {
            let first = list.load(Ordering::Relaxed);
            if first.is_null() {
                return self.cut(size);
            }
            // SAFETY: the first word of a free block is the next one of its size.
            list.store(unsafe { first.cast::<*mut u8>().read() }, Ordering::Relaxed);
            first
        })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(list) = self.free.get(size_of(layout).trailing_zeros() as usize) else {
            return;
        };
        self.with_lock(|| {
            // SAFETY: nobody has the block any more, and it has room for a word.
            unsafe { block.cast::<*mut u8>().write(list.load(Ordering::Relaxed)) };
            list.store(block, Ordering::Relaxed);
        });
    }
}

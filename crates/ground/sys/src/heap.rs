//! The heap of this process: `malloc_trim(3)`.

/// Gives free pages of the allocator back to the kernel; does nothing where the allocator is not glibc's.
///
/// glibc returns free memory at the heap's end by itself, but not between blocks in use. The next allocations
/// fault pages in again, so this is for processes that sleep most of the time.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it changes only memory that is not allocated, under the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    /// Returns true if this page is in memory.
    fn is_resident(page: usize) -> bool {
        let mut state = 0_u8;
        // SAFETY: asks about one page; nothing is read or written there.
        let asked = unsafe { libc::mincore(page as *mut libc::c_void, PAGE, &raw mut state) };
        asked == 0 && state & 1 == 1
    }

    #[test]
    fn free_pages_between_blocks_in_use_go_back() {
        // Below the size from which blocks are mappings of their own; each second one stays.
        let mut blocks: Vec<Option<Vec<u8>>> = (0..2000).map(|_| Some(vec![1; 8 * PAGE])).collect();
        let middle = |block: &Option<Vec<u8>>| {
            let start = block.as_ref().unwrap().as_ptr() as usize;
            (start + 4 * PAGE) & !(PAGE - 1)
        };
        let pages: Vec<usize> = blocks.iter().step_by(2).map(middle).collect();
        blocks.iter_mut().step_by(2).for_each(|block| *block = None);
        let resident = || pages.iter().filter(|page| is_resident(**page)).count();
        assert!(resident() >= 900, "{}", resident());
        trim();
        assert!(resident() <= 100, "{}", resident());
        assert!(blocks.iter().flatten().all(|block| block[7] == 1));
    }
}

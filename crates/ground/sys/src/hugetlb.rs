//! `mmap(MAP_HUGETLB)`: allocates one page of a hugetlb pool and frees it.
//!
//! See `mmap(2)` and `Documentation/admin-guide/mm/hugetlbpage.rst`.

use std::ptr;

use rustix::io::Errno;
use superhue_model::ByteCount;

use crate::pagemap::last_errno;

/// Maps one page of the pool with this page size, populates it, and unmaps it.
///
/// # Errors
/// `ENOMEM` no free page in the pool, or a limit on address space; `EFAULT` forbidden by the
/// hugetlb cgroup; `EINVAL` no pool of this size, or no `MADV_POPULATE_WRITE` (before Linux 5.14).
pub fn borrow_page(page_size: ByteCount) -> Result<(), Errno> {
    if !page_size.0.is_power_of_two() {
        return Err(Errno::INVAL);
    }
    let length = usize::try_from(page_size.0).map_err(|_| Errno::INVAL)?;
    let shift = page_size.0.trailing_zeros().cast_signed();
    let flags = libc::MAP_PRIVATE
        | libc::MAP_ANONYMOUS
        | libc::MAP_HUGETLB
        | (shift << libc::MAP_HUGE_SHIFT);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping where the kernel chooses disturbs no other.
    let start = unsafe { libc::mmap(ptr::null_mut(), length, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(last_errno());
    }
    // Does not touch the page: if the cgroup forbids it, a touch raises SIGBUS.
    // SAFETY: the mapping is the one just made, to which no other code has a pointer.
    let filled = match unsafe { libc::madvise(start, length, libc::MADV_POPULATE_WRITE) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    };
    // SAFETY: see above.
    unsafe { libc::munmap(start, length) };
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_without_a_pool_is_refused() {
        assert_eq!(borrow_page(ByteCount(0)), Err(Errno::INVAL));
        assert_eq!(borrow_page(ByteCount(12 << 20)), Err(Errno::INVAL));
        assert_eq!(borrow_page(ByteCount(8192)), Err(Errno::INVAL));
    }
}

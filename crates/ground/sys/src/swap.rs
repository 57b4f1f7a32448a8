//! `swapon(2)`, `swapoff(2)`: switch a swap area on and off.

use std::path::Path;

use rustix::io::Errno;
use rustix::path::Arg as _;

use crate::pagemap::last_errno;

/// `SWAP_FLAG_PREFER` and `SWAP_FLAG_PRIO_MASK` of `include/linux/swap.h`.
const SWAP_FLAG_PREFER: libc::c_int = 0x8000;
const SWAP_FLAG_PRIO_MASK: u16 = 0x7fff;

/// Highest priority of an area.
pub const HIGHEST_PRIORITY: u16 = SWAP_FLAG_PRIO_MASK;

/// Switches on the swap area at `path`: `int swapon(const char *path, int swapflags)`.
///
/// The kernel uses the area with room that has the highest priority. Without a priority, an area gets a negative one, below those of
/// all active areas.
///
/// Needs `CAP_SYS_ADMIN`.
///
/// # Errors
/// `EPERM` not allowed; `EBUSY` the area is on already, or in other use; `EINVAL` no swap header, or `priority` above
/// [`HIGHEST_PRIORITY`]; `ENOENT` no such file; `ENOMEM`.
pub fn swap_on(path: &Path, priority: Option<u16>) -> Result<(), Errno> {
    let flags = match priority {
        None => 0,
        Some(priority @ ..=HIGHEST_PRIORITY) => SWAP_FLAG_PREFER | libc::c_int::from(priority),
        Some(_) => return Err(Errno::INVAL),
    };
    path.into_with_c_str(|path| {
        // SAFETY: the kernel reads the path, a C string that lives across the call.
        let done = unsafe { libc::swapon(path.as_ptr(), flags) };
        if done < 0 { Err(last_errno()) } else { Ok(()) }
    })
}

/// Switches off the swap area at `path`: `int swapoff(const char *path)`. The kernel first brings all pages in the area back
/// into memory, which can take seconds, and ends programs whose control group has no room for them.
///
/// Needs `CAP_SYS_ADMIN`.
///
/// # Errors
/// `EPERM` not allowed; `EINVAL` the area is not on; `ENOENT` no such file; `ENOMEM` memory is short; `EINTR` a signal arrived. After an
/// error the area stays on.
pub fn swap_off(path: &Path) -> Result<(), Errno> {
    path.into_with_c_str(|path| {
        // SAFETY: the kernel reads the path, a C string that lives across the call.
        let done = unsafe { libc::swapoff(path.as_ptr()) };
        if done < 0 { Err(last_errno()) } else { Ok(()) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Success needs a device, so the callers' tests cover it.
    #[test]
    fn what_is_no_swap_area_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (on, off) = (swap_on(file.path(), None), swap_off(file.path()));
        if superhue_testing::is_root() {
            let refused = [Err(Errno::INVAL), Err(Errno::PERM)];
            assert!(refused.contains(&on), "{on:?}");
            assert!(refused.contains(&off), "{off:?}");
        } else {
            assert_eq!((on, off), (Err(Errno::PERM), Err(Errno::PERM)));
        }
        let too_high = swap_on(file.path(), Some(HIGHEST_PRIORITY + 1));
        assert_eq!(too_high, Err(Errno::INVAL));
    }
}

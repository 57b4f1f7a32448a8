//! `prctl(PR_PAGE_COLOR)`: page colors of a task's allocations.
//!
//! Exists in kernels with the project's patch series (`kernel/`, `include/uapi/linux/prctl.h` there); any other
//! returns `EINVAL`. The policy belongs to the calling thread; its threads and children inherit it, and `execve` keeps it.

use rustix::io::Errno;

use crate::pagemap::last_errno;

/// `PR_PAGE_COLOR`: "PCOL".
const PR_PAGE_COLOR: libc::c_int = 0x5043_4f4c;
const PR_PAGE_COLOR_SET: libc::c_ulong = 1;
const PR_PAGE_COLOR_SPREAD: libc::c_ulong = 2;
const PR_PAGE_COLOR_OFF: libc::c_ulong = 3;
const PR_PAGE_COLOR_STRICT: libc::c_ulong = 1;

/// Colors that a task takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskColors<'a> {
    /// All of them, in turn.
    Spread,
    /// A set of them only.
    Set {
        /// Bitmap, lowest color first.
        colors: &'a [u64],
        /// True if allocations fail rather than leave the set.
        strict: bool,
    },
    /// Colors of its group or of the system.
    Inherited,
}

/// Sets the calling thread's colors. Safe between `fork` and `exec`: allocates nothing.
///
/// # Errors
/// `EINVAL` without the patches, or for colors that do not exist; `EOPNOTSUPP` while coloring is disabled;
/// `EPERM` for colors that the task's group does not have or that are reserved, and without `CAP_SYS_RESOURCE` for a strict set or one that
/// no group of the task has; `ENOMEM`.
pub fn set_task_colors(wanted: TaskColors<'_>) -> Result<(), Errno> {
    let (operation, address, size, flags) = match wanted {
        TaskColors::Spread => (PR_PAGE_COLOR_SPREAD, 0, 0, 0),
        TaskColors::Inherited => (PR_PAGE_COLOR_OFF, 0, 0, 0),
        TaskColors::Set { colors, strict } => (
            PR_PAGE_COLOR_SET,
            colors.as_ptr() as libc::c_ulong,
            size_of_val(colors) as libc::c_ulong,
            if strict { PR_PAGE_COLOR_STRICT } else { 0 },
        ),
    };
    // SAFETY: the kernel reads `size` bytes at `address`, which are those of `colors`; otherwise both are 0.
    let done = unsafe { libc::prctl(PR_PAGE_COLOR, operation, address, size, flags) };
    if done < 0 { Err(last_errno()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PR_PAGE_COLOR_GET: libc::c_ulong = 0;

    /// Reads the colors in effect into a bitmap. Returns the number of words filled, and true for a strict set.
    fn task_colors(colors: &mut [u64]) -> Result<(usize, bool), Errno> {
        let address = colors.as_mut_ptr() as libc::c_ulong;
        let size = size_of_val(colors) as libc::c_ulong;
        let none: libc::c_ulong = 0;
        // SAFETY: the kernel writes at most `size` bytes at `address`, all of `colors`.
        let done = unsafe { libc::prctl(PR_PAGE_COLOR, PR_PAGE_COLOR_GET, address, size, none) };
        let told = usize::try_from(done).map_err(|_| last_errno())?;
        // The size is a multiple of a word, so the lowest bits are free.
        Ok((told / size_of::<u64>(), told & 1 == 1))
    }

    /// On kernels without the patches nothing changes; on others a separate thread takes colors and ends.
    #[test]
    fn a_thread_is_given_colors_or_told_why_not() {
        let told = std::thread::spawn(|| {
            let set = set_task_colors(TaskColors::Spread);
            let mut colors = [0; 16];
            (set, task_colors(&mut colors), colors)
        });
        match told.join().unwrap() {
            (Ok(()), Ok((words, strict)), colors) => {
                assert!(words >= 1 && !strict);
                assert!(colors[..words].iter().all(|word| *word != 0));
            }
            (Err(refused), Err(too), _) => {
                assert_eq!(refused, too);
                assert!(
                    [Errno::INVAL, Errno::OPNOTSUPP].contains(&refused),
                    "{refused}"
                );
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_empty_bitmap_is_refused() {
        let none = TaskColors::Set {
            colors: &[],
            strict: false,
        };
        let refused = std::thread::spawn(move || set_task_colors(none).unwrap_err());
        let refused = refused.join().unwrap();
        assert!(
            [Errno::INVAL, Errno::OPNOTSUPP].contains(&refused),
            "{refused}"
        );
    }
}

//! `sched_getattr(2)`, `sched_setattr(2)`: scheduling of threads.

use std::mem::size_of;

use rustix::io::Errno;

use crate::pagemap::last_errno;

const SCHED_OTHER: u32 = 0;
const SCHED_FIFO: u32 = 1;
const SCHED_BATCH: u32 = 3;

/// First version of `struct sched_attr` of `linux/sched/types.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Scheduling {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const _: () = assert!(size_of::<Scheduling>() == 48);

impl Scheduling {
    /// Returns `SCHED_FIFO` at priority 1: first come, first served, before all threads that are not real-time. Use it for some
    /// milliseconds only.
    #[must_use]
    pub fn first() -> Self {
        Self {
            size: size_of::<Self>() as u32,
            policy: SCHED_FIFO,
            priority: 1,
            ..Self::default()
        }
    }

    /// Returns true for the classes that share the CPU by nice values: `SCHED_OTHER` and `SCHED_BATCH`.
    #[must_use]
    pub const fn is_ordinary(&self) -> bool {
        matches!(self.policy, SCHED_OTHER | SCHED_BATCH)
    }

    /// Reads the scheduling of a thread; of the caller for 0.
    ///
    /// # Errors
    /// `ESRCH` gone; `EPERM` not allowed.
    pub fn of(tid: u32) -> Result<Self, Errno> {
        let mut scheduling = Self::default();
        // SAFETY: the kernel writes at most `size` bytes, the size of the structure.
        let done = unsafe {
            let size = size_of::<Self>();
            libc::syscall(libc::SYS_sched_getattr, tid, &raw mut scheduling, size, 0)
        };
        if done < 0 {
            return Err(last_errno());
        }
        // A newer kernel returns its own size.
        scheduling.size = size_of::<Self>() as u32;
        if scheduling.is_ordinary() {
            // Its time slice since Linux 6.12: set again, it would be one of its own.
            scheduling.runtime = 0;
        }
        Ok(scheduling)
    }

    /// Sets the scheduling of a thread; of the caller for 0.
    ///
    /// # Errors
    /// `ESRCH` gone; `EPERM` not allowed (`CAP_SYS_NICE`, `RLIMIT_RTPRIO`, a control group without real time).
    pub fn set(&self, tid: u32) -> Result<(), Errno> {
        // SAFETY: the kernel reads the structure, whose length its first field gives.
        let done =
            unsafe { libc::syscall(libc::SYS_sched_setattr, tid, std::ptr::from_ref(self), 0) };
        if done < 0 { Err(last_errno()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_is_read_and_can_be_set_as_it_is() {
        let ours = Scheduling::of(0).unwrap();
        assert_eq!((ours.size, ours.policy == SCHED_FIFO), (48, false));
        assert_eq!(ours.set(0), Ok(()));
        assert_eq!(Scheduling::of(0), Ok(ours));
        assert_eq!(Scheduling::first().policy, SCHED_FIFO);
        assert_eq!(Scheduling::of(u32::MAX >> 1), Err(Errno::SRCH));
    }
}

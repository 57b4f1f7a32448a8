//! `sched_getattr(2)`, `sched_setattr(2)`: which threads go before others.

use std::mem::size_of;

use rustix::io::Errno;

use crate::pagemap::last_errno;

const SCHED_FIFO: u32 = 1;

/// `struct sched_attr` of `linux/sched/types.h`, as the first kernels had it.
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
    /// First come, first served, before all that is not real-time: for some milliseconds only.
    #[must_use]
    pub fn first() -> Self {
        Self {
            size: size_of::<Self>() as u32,
            policy: SCHED_FIFO,
            priority: 1,
            ..Self::default()
        }
    }

    /// That of a thread; of the caller for 0.
    ///
    /// # Errors
    /// `ESRCH` gone; `EPERM` not allowed.
    pub fn of(tid: u32) -> Result<Self, Errno> {
        let mut scheduling = Self::default();
        // SAFETY: the kernel writes as many bytes as it is told there are.
        let done = unsafe {
            let size = size_of::<Self>();
            libc::syscall(libc::SYS_sched_getattr, tid, &raw mut scheduling, size, 0)
        };
        if done < 0 {
            return Err(last_errno());
        }
        // A newer kernel says how much it knows.
        scheduling.size = size_of::<Self>() as u32;
        Ok(scheduling)
    }

    /// Gives it to a thread; to the caller for 0.
    ///
    /// # Errors
    /// `ESRCH` gone; `EPERM` not allowed (`CAP_SYS_NICE`, `RLIMIT_RTPRIO`, a control group without real time).
    pub fn set(&self, tid: u32) -> Result<(), Errno> {
        // SAFETY: the kernel reads the structure, as long as its first field says.
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

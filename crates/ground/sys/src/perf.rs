//! `perf_event_open(2)`: one counter of the calling thread, or of another thread.

use std::os::fd::{FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::pagemap::last_errno;

const PERF_TYPE_HARDWARE: u32 = 0;
const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_TYPE_HW_CACHE: u32 = 3;
const PERF_COUNT_HW_CPU_CYCLES: u64 = 0;
const PERF_COUNT_SW_TASK_CLOCK: u64 = 1;
/// `PERF_COUNT_HW_CACHE_DTLB | (OP_READ << 8) | (RESULT_MISS << 16)`.
const DTLB_READ_MISS: u64 = 3 | (1 << 16);
/// `PERF_COUNT_HW_CACHE_DTLB | (OP_WRITE << 8) | (RESULT_MISS << 16)`.
const DTLB_WRITE_MISS: u64 = 3 | (1 << 8) | (1 << 16);

const FORMAT_TIME_ENABLED: u64 = 1 << 0;
const FORMAT_TIME_RUNNING: u64 = 1 << 1;

/// `exclude_kernel` and `exclude_hv` in the flags of `struct perf_event_attr`: events that an ordinary
/// user may count under the default `kernel.perf_event_paranoid`.
const USER_MODE_ONLY: u64 = (1 << 5) | (1 << 6);
/// `PERF_FLAG_FD_CLOEXEC`.
const FD_CLOEXEC: libc::c_ulong = 1 << 3;

/// First version of `struct perf_event_attr` (`PERF_ATTR_SIZE_VER0`).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64);

/// Event to count, in user mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Core clock cycles.
    Cycles,
    /// Loads whose translation was not in the data TLB.
    DtlbLoadMisses,
    /// Stores whose translation was not in the data TLB. AMD's processors count them as loads, and have no such event.
    DtlbStoreMisses,
    /// Nanoseconds on a CPU: the kernel's own count, which needs no hardware. Unlike the values of `/proc` it is exact while the
    /// thread runs.
    TaskClock,
}

/// Values of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Number of events.
    pub count: u64,
    /// Nanoseconds for which the counter was enabled.
    pub enabled_ns: u64,
    /// Nanoseconds for which it had a hardware counter to itself; less than `enabled_ns` if there are too few hardware counters.
    pub running_ns: u64,
}

/// Running counter of one thread; stopped when dropped.
#[derive(Debug)]
pub struct Counter(OwnedFd);

impl Counter {
    /// Starts counting.
    ///
    /// # Errors
    /// `ENOENT`/`EOPNOTSUPP` no such counter in this (virtual) CPU; `EACCES`/`EPERM` forbidden by
    /// `kernel.perf_event_paranoid` or a seccomp filter; `ENOSYS`.
    pub fn start(event: Event) -> Result<Self, Errno> {
        Self::open(event, 0)
    }

    /// Starts counting for thread `tid` of any process. Needs ptrace read access to it, or `CAP_PERFMON`.
    ///
    /// # Errors
    /// As for [`start`](Self::start); `ESRCH` gone; `EMFILE`.
    pub fn of_thread(tid: u32, event: Event) -> Result<Self, Errno> {
        let tid = libc::pid_t::try_from(tid).map_err(|_| Errno::SRCH)?;
        if tid == 0 {
            return Err(Errno::SRCH);
        }
        Self::open(event, tid)
    }

    fn open(event: Event, thread: libc::pid_t) -> Result<Self, Errno> {
        let (kind, config) = match event {
            Event::Cycles => (PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES),
            Event::DtlbLoadMisses => (PERF_TYPE_HW_CACHE, DTLB_READ_MISS),
            Event::DtlbStoreMisses => (PERF_TYPE_HW_CACHE, DTLB_WRITE_MISS),
            Event::TaskClock => (PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK),
        };
        let attributes = Attributes {
            kind,
            size: size_of::<Attributes>() as u32,
            config,
            read_format: FORMAT_TIME_ENABLED | FORMAT_TIME_RUNNING,
            flags: USER_MODE_ONLY,
            ..Attributes::default()
        };
        let (any_cpu, no_group) = (-1, -1);
        // SAFETY: the kernel reads one `perf_event_attr` of the size that it states.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                thread,
                any_cpu,
                no_group,
                FD_CLOEXEC,
            )
        };
        if fd < 0 {
            return Err(last_errno());
        }
        let fd = i32::try_from(fd).map_err(|_| Errno::BADF)?;
        // SAFETY: the kernel just gave us this descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Reads the values so far.
    ///
    /// # Errors
    /// `EIO` for a short read; those of `read(2)`.
    pub fn read(&self) -> Result<Reading, Errno> {
        let mut bytes = [0_u8; 24];
        if rustix::io::read(&self.0, &mut bytes)? != bytes.len() {
            return Err(Errno::IO);
        }
        // SAFETY: same size, and any bytes are valid words.
        let [count, enabled_ns, running_ns] =
            unsafe { std::mem::transmute::<[u8; 24], [u64; 3]>(bytes) };
        Ok(Reading {
            count,
            enabled_ns,
            running_ns,
        })
    }
}

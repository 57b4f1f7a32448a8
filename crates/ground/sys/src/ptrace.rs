//! `ptrace(2)`: stopping threads of other processes, their registers, their memory.
//!
//! Threads are seized (`PTRACE_SEIZE`), never attached: no signal is sent, and a process that ends meanwhile ends. All
//! calls about a thread must come from the thread that seized it. Written for x86-64; elsewhere [`seize`] says `ENOSYS`.

use std::mem::{MaybeUninit, size_of};

use rustix::io::Errno;

use crate::pagemap::last_errno;

/// `PTRACE_O_TRACESYSGOOD`: stops at system calls are told from signals.
const OPTIONS: libc::c_ulong = libc::PTRACE_O_TRACESYSGOOD as libc::c_ulong;
/// `linux/ptrace.h` (Linux 6.4).
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;
/// `linux/ptrace.h` (Linux 5.13).
const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
/// `linux/ptrace.h`.
const PTRACE_EVENT_STOP: libc::c_int = 128;

/// General registers of a thread: `struct user_regs_struct` of `asm/user_64.h`.
#[cfg(target_arch = "x86_64")]
pub type Registers = libc::user_regs_struct;

/// Why a thread stands still, or that it does no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// As asked by [`interrupt`].
    Interrupted,
    /// Before or after a system call, as asked by [`go_to_call`].
    Call,
    /// Its process is stopped by this signal.
    Group(i32),
    /// It is about to be given this signal.
    Signal(i32),
    /// It ended.
    Ended,
}

/// A thread's restartable sequence: where `struct rseq` lies (`rseq(2)`), 0 if it has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct RseqConfig {
    /// Address of the thread's `struct rseq`.
    pub area: u64,
    /// Its length in bytes.
    pub size: u32,
    /// What stands before a place to abort to.
    pub signature: u32,
    flags: u32,
    pad: u32,
}

const _: () = assert!(size_of::<RseqConfig>() == 24);

/// `struct ptrace_sud_config`.
#[repr(C)]
#[derive(Default)]
struct DispatchConfig {
    mode: u64,
    selector: u64,
    offset: u64,
    length: u64,
}

/// `ptrace(request, tid, address, data)`.
///
/// # Safety
/// `address` and `data` are what the request asks for.
unsafe fn ptrace(
    request: libc::c_uint,
    tid: u32,
    address: usize,
    data: usize,
) -> Result<i64, Errno> {
    let tid = libc::pid_t::try_from(tid).map_err(|_| Errno::SRCH)?;
    // SAFETY: the caller's. Not through libc's wrapper, which treats the PEEK requests specially.
    let done = unsafe { libc::syscall(libc::SYS_ptrace, request, tid, address, data) };
    if done < 0 {
        Err(last_errno())
    } else {
        Ok(done)
    }
}

/// Traces a thread without stopping it (`PTRACE_SEIZE`).
///
/// # Errors
/// `EPERM` not allowed, traced already, or a worker of io_uring; `ESRCH` gone; `ENOSYS` on other processors.
pub fn seize(tid: u32) -> Result<(), Errno> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(Errno::NOSYS);
    }
    // SAFETY: takes options only.
    unsafe { ptrace(libc::PTRACE_SEIZE, tid, 0, OPTIONS as usize) }.map(drop)
}

/// Has a seized thread stop; [`wait_for`] tells when it has (`PTRACE_INTERRUPT`).
///
/// # Errors
/// `ESRCH` gone.
pub fn interrupt(tid: u32) -> Result<(), Errno> {
    // SAFETY: takes nothing.
    unsafe { ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0) }.map(drop)
}

/// Lets a stopped thread go on, given `signal` if that is not 0 (`PTRACE_CONT`).
///
/// # Errors
/// `ESRCH` gone, or not stopped.
pub fn go(tid: u32, signal: i32) -> Result<(), Errno> {
    // SAFETY: takes a number.
    unsafe { ptrace(libc::PTRACE_CONT, tid, 0, signal as usize) }.map(drop)
}

/// Lets a stopped thread go on to where its next system call begins or ends (`PTRACE_SYSCALL`).
///
/// # Errors
/// As [`go`].
pub fn go_to_call(tid: u32) -> Result<(), Errno> {
    // SAFETY: takes a number.
    unsafe { ptrace(libc::PTRACE_SYSCALL, tid, 0, 0) }.map(drop)
}

/// Lets go of a stopped thread, given `signal` if that is not 0 (`PTRACE_DETACH`).
///
/// # Errors
/// As [`go`].
pub fn detach(tid: u32, signal: i32) -> Result<(), Errno> {
    // SAFETY: takes a number.
    unsafe { ptrace(libc::PTRACE_DETACH, tid, 0, signal as usize) }.map(drop)
}

/// Registers of a stopped thread (`PTRACE_GETREGS`).
///
/// # Errors
/// As [`go`].
#[cfg(target_arch = "x86_64")]
pub fn registers(tid: u32) -> Result<Registers, Errno> {
    let mut registers = MaybeUninit::<Registers>::zeroed();
    // SAFETY: the kernel fills the structure, which lives across the call; all-zero is a valid one.
    unsafe {
        ptrace(
            libc::PTRACE_GETREGS,
            tid,
            0,
            registers.as_mut_ptr() as usize,
        )?;
        Ok(registers.assume_init())
    }
}

/// Sets the registers of a stopped thread (`PTRACE_SETREGS`).
///
/// # Safety
/// The thread can go on with them.
///
/// # Errors
/// As [`go`].
#[cfg(target_arch = "x86_64")]
pub unsafe fn set_registers(tid: u32, registers: &Registers) -> Result<(), Errno> {
    let registers = std::ptr::from_ref(registers) as usize;
    // SAFETY: the kernel reads the structure; the rest is the caller's.
    unsafe { ptrace(libc::PTRACE_SETREGS, tid, 0, registers) }.map(drop)
}

/// The signals a stopped thread holds back, as it set them itself (`PTRACE_GETSIGMASK`).
///
/// # Errors
/// As [`go`].
pub fn signal_mask(tid: u32) -> Result<u64, Errno> {
    let mut mask = 0_u64;
    // SAFETY: the kernel writes as many bytes as are said to be there.
    unsafe {
        ptrace(
            libc::PTRACE_GETSIGMASK,
            tid,
            size_of::<u64>(),
            &raw mut mask as usize,
        )?;
    }
    Ok(mask)
}

/// Sets the signals that a stopped thread holds back (`PTRACE_SETSIGMASK`).
///
/// # Safety
/// They are set back before the thread goes on with its own work.
///
/// # Errors
/// As [`go`].
pub unsafe fn set_signal_mask(tid: u32, mask: u64) -> Result<(), Errno> {
    // SAFETY: the kernel reads as many bytes as are said to be there; the rest is the caller's.
    unsafe {
        ptrace(
            libc::PTRACE_SETSIGMASK,
            tid,
            size_of::<u64>(),
            &raw const mask as usize,
        )
    }
    .map(drop)
}

/// A stopped thread's restartable sequence.
///
/// # Errors
/// `EIO` before Linux 5.13; as [`go`].
pub fn rseq_config(tid: u32) -> Result<RseqConfig, Errno> {
    let mut config = RseqConfig::default();
    let size = size_of::<RseqConfig>();
    // SAFETY: the kernel writes as many bytes as are said to be there.
    unsafe {
        ptrace(
            PTRACE_GET_RSEQ_CONFIGURATION,
            tid,
            size,
            &raw mut config as usize,
        )?
    };
    Ok(config)
}

/// Whether a stopped thread has its system calls turned into signals (`PR_SET_SYSCALL_USER_DISPATCH`).
///
/// # Errors
/// `EIO` before Linux 6.4; as [`go`].
pub fn dispatches_calls(tid: u32) -> Result<bool, Errno> {
    let mut config = DispatchConfig::default();
    let size = size_of::<DispatchConfig>();
    // SAFETY: the kernel writes as many bytes as are said to be there.
    unsafe {
        let config = &raw mut config as usize;
        ptrace(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tid, size, config)?;
    }
    Ok(config.mode != 0)
}

/// How the thread `tid` stopped, if it has (`waitpid(2)` with `__WALL`); without waiting. A thread that ended is reaped.
///
/// # Errors
/// `ECHILD` when the caller does not trace it (any more).
pub fn wait_for(tid: u32) -> Result<Option<Stop>, Errno> {
    let tid = libc::pid_t::try_from(tid).map_err(|_| Errno::SRCH)?;
    Ok(wait(tid, libc::__WALL)?.map(|(_, stop)| stop))
}

/// As [`wait_for`], whichever thread that the calling thread traces, or child that it started, has stopped or ended.
///
/// # Errors
/// `ECHILD` when there are none (any more).
pub fn wait_for_any() -> Result<Option<(u32, Stop)>, Errno> {
    wait(-1, libc::__WALL | libc::__WNOTHREAD)
}

fn wait(tid: libc::pid_t, options: libc::c_int) -> Result<Option<(u32, Stop)>, Errno> {
    let mut status: libc::c_int = 0;
    // SAFETY: the kernel writes the status, which lives across the call.
    let changed = unsafe { libc::waitpid(tid, &raw mut status, options | libc::WNOHANG) };
    if changed < 0 {
        return Err(last_errno());
    }
    if changed == 0 {
        return Ok(None);
    }
    let signal = libc::WSTOPSIG(status);
    let stop = match (signal, status >> 16) {
        _ if !libc::WIFSTOPPED(status) => Stop::Ended,
        (libc::SIGTRAP, PTRACE_EVENT_STOP) => Stop::Interrupted,
        (signal, PTRACE_EVENT_STOP) => Stop::Group(signal),
        (signal, _) if signal == libc::SIGTRAP | 0x80 => Stop::Call,
        (signal, _) => Stop::Signal(signal),
    };
    Ok(Some((changed.cast_unsigned(), stop)))
}

/// Reads another process's memory at `address` (`process_vm_readv(2)`), all of `bytes` or nothing.
///
/// # Errors
/// `EFAULT` not mapped; `EPERM` not allowed; `ESRCH` gone.
pub fn read_memory(pid: u32, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
    let local = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: bytes.len(),
    };
    let pid = libc::pid_t::try_from(pid).map_err(|_| Errno::SRCH)?;
    // SAFETY: the kernel fills `bytes`, at most as long as it is.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    whole(read, bytes.len())
}

/// Writes words into another process's memory (`process_vm_writev(2)`), which it may write itself, each part at its address,
/// in the order given.
///
/// # Safety
/// The process does not count on what is there.
///
/// # Errors
/// As [`read_memory`]; `EINVAL` for more than four parts.
pub unsafe fn write_words(pid: u32, parts: &[(u64, &[u64])]) -> Result<(), Errno> {
    const MOST: usize = 4;
    if parts.len() > MOST {
        return Err(Errno::INVAL);
    }
    let none = libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    };
    let (mut local, mut remote) = ([none; MOST], [none; MOST]);
    let mut wanted = 0;
    for (at, (address, words)) in parts.iter().enumerate() {
        let length = size_of_val(*words);
        local[at] = libc::iovec {
            iov_base: words.as_ptr() as *mut libc::c_void,
            iov_len: length,
        };
        remote[at] = libc::iovec {
            iov_base: *address as *mut libc::c_void,
            iov_len: length,
        };
        wanted += length;
    }
    let pid = libc::pid_t::try_from(pid).map_err(|_| Errno::SRCH)?;
    let count = parts.len() as libc::c_ulong;
    // SAFETY: the kernel only reads the words; the rest is the caller's.
    let written =
        unsafe { libc::process_vm_writev(pid, local.as_ptr(), count, remote.as_ptr(), count, 0) };
    whole(written, wanted)
}

fn whole(done: isize, wanted: usize) -> Result<(), Errno> {
    match usize::try_from(done) {
        Err(_) => Err(last_errno()),
        Ok(done) if done < wanted => Err(Errno::FAULT),
        Ok(_) => Ok(()),
    }
}

/// Whether two processes have the same memory (`kcmp(2)`, `KCMP_VM`).
///
/// # Errors
/// `EPERM` not allowed; `ESRCH` gone; `ENOSYS` a kernel without it.
pub fn same_memory(one: u32, other: u32) -> Result<bool, Errno> {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: takes numbers only.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0_usize, 0_usize) };
    if order < 0 {
        Err(last_errno())
    } else {
        Ok(order == 0)
    }
}

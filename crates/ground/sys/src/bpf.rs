//! `bpf(2)`: trials whether the caller may run programs in the kernel, and whether they may read its memory.
//!
//! There are two fixed programs of type `BPF_PROG_TYPE_SYSCALL`, which run once on request and are attached
//! to nothing. Superhue's page-table walk is such a program. See `bpf(2)`,
//! `Documentation/bpf/standardization/instruction-set.rst` and `linux/bpf.h`.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::pagemap::last_errno;

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_TEST_RUN: libc::c_int = 10;
const BPF_PROG_TYPE_SYSCALL: u32 = 31;
/// Flag of programs that may sleep, which this type requires.
const BPF_F_SLEEPABLE: u32 = 1 << 4;

/// `struct bpf_insn`: operation, registers (source in the high four bits), offset, immediate.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// The members of `union bpf_attr` for `BPF_PROG_LOAD`, up to `prog_flags`.
#[repr(C)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
}

/// The members of `union bpf_attr` for `BPF_PROG_TEST_RUN`, up to `batch_size` and its padding.
#[repr(C)]
#[derive(Default)]
struct TestRun {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    padding: u32,
}

const _: () = assert!(size_of::<Instruction>() == 8);
const _: () = assert!(size_of::<Load>() == 48);
const _: () = assert!(size_of::<TestRun>() == 80);

const fn instruction(code: u8, registers: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction {
        code,
        registers,
        offset,
        immediate,
    }
}

const MOVE_IMMEDIATE: u8 = 0xb7;
const MOVE_REGISTER: u8 = 0xbf;
const ADD_IMMEDIATE: u8 = 0x07;
const STORE_IMMEDIATE: u8 = 0x7a;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

const HELPER_GET_CURRENT_TASK: i32 = 35;
const HELPER_PROBE_READ_KERNEL: i32 = 113;

const RETURN_ZERO: [Instruction; 2] = [
    instruction(MOVE_IMMEDIATE, 0x00, 0, 0),
    instruction(EXIT, 0x00, 0, 0),
];

/// Program that reads eight bytes of the caller's own `task_struct`, discards them, and returns the result of the read.
const READ_KERNEL: [Instruction; 8] = [
    instruction(CALL, 0x00, 0, HELPER_GET_CURRENT_TASK), // r0 = current
    instruction(MOVE_REGISTER, 0x03, 0, 0),              // r3 = r0: from where
    instruction(STORE_IMMEDIATE, 0x0a, -8, 0),           // *(u64 *)(r10 - 8) = 0
    instruction(MOVE_REGISTER, 0xa1, 0, 0),              // r1 = r10
    instruction(ADD_IMMEDIATE, 0x01, 0, -8),             // r1 -= 8: to where
    instruction(MOVE_IMMEDIATE, 0x02, 0, 8),             // r2 = 8: how many bytes
    instruction(CALL, 0x00, 0, HELPER_PROBE_READ_KERNEL), // r0 = 0 or -errno
    instruction(EXIT, 0x00, 0, 0),
];

/// Trial program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trial {
    /// Does nothing and returns 0.
    ReturnZero,
    /// Reads kernel memory with `bpf_probe_read_kernel`, discards what it read, and returns 0 or a
    /// negative error number.
    ReadKernel,
}

/// A loaded program; unloaded when dropped.
#[derive(Debug)]
pub struct Program(OwnedFd);

impl Program {
    /// Loads a program (`BPF_PROG_LOAD`).
    ///
    /// # Errors
    /// `EPERM` without `CAP_BPF` (for [`Trial::ReadKernel`] also `CAP_PERFMON`) in the initial user
    /// namespace, or from a seccomp filter; `EINVAL` where the kernel lacks the program type
    /// (before 5.14) or withholds the helper (lockdown); `ENOSYS`.
    pub fn load(trial: Trial) -> Result<Self, Errno> {
        let instructions: &[Instruction] = match trial {
            Trial::ReturnZero => &RETURN_ZERO,
            Trial::ReadKernel => &READ_KERNEL,
        };
        let mut load = Load {
            prog_type: BPF_PROG_TYPE_SYSCALL,
            insn_cnt: u32::try_from(instructions.len()).map_err(|_| Errno::TOOBIG)?,
            insns: instructions.as_ptr() as u64,
            // The kernel lets only programs under its own licence read its memory.
            license: c"GPL".as_ptr() as u64,
            log_level: 0,
            log_size: 0,
            log_buf: 0,
            kern_version: 0,
            prog_flags: BPF_F_SLEEPABLE,
        };
        // SAFETY: the layout is asserted above; the instructions and the licence outlive the call.
        let fd = unsafe { bpf(BPF_PROG_LOAD, &raw mut load) }?;
        // SAFETY: the kernel just gave us this descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Runs the program once, for real (`BPF_PROG_TEST_RUN`), and returns its return value.
    ///
    /// # Errors
    /// `EPERM` without `CAP_BPF`; `EINVAL`/`ENOTSUPP` if the kernel cannot run it.
    pub fn run(&self) -> Result<i32, Errno> {
        let prog_fd = u32::try_from(self.0.as_raw_fd()).map_err(|_| Errno::BADF)?;
        let mut run = TestRun {
            prog_fd,
            ..TestRun::default()
        };
        // SAFETY: the layout is asserted above; the program is given no memory of ours.
        unsafe { bpf(BPF_PROG_TEST_RUN, &raw mut run) }?;
        Ok(run.retval.cast_signed())
    }
}

/// # Safety
/// `attributes` must be what `command` takes.
unsafe fn bpf<T>(command: libc::c_int, attributes: *mut T) -> Result<i32, Errno> {
    // SAFETY: the caller vouches for the attributes; their size is passed along.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) };
    if done < 0 {
        Err(last_errno())
    } else {
        i32::try_from(done).map_err(|_| Errno::BADF)
    }
}

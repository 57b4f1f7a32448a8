//! `seccomp(2)`: the calls that Superhue forbids to itself, so that the kernel enforces its limits.
//!
//! A watched program may be in any state, so Superhue executes nothing inside it and stops none of its threads. The kernel enforces
//! this: a long-running process calls [`forbid`] before it makes its first thread, and the kernel then refuses it these calls, whatever
//! bug it has. They stay forbidden to the process and all its descendants.
//!
//! ```text
//!   entry      64 bits, native ──number──> in the list? ──> EPERM
//!              32 bits, x32    ─────────────────────────> EPERM
//! ```
//!
//! The 32-bit and the x32 entry have other numbers for the same calls, so the filter refuses every call through them. It returns `EPERM` and
//! does not kill: a library that tries such a call continues without it.

use std::collections::BTreeMap;
use std::env::consts::ARCH;

use rustix::io::Errno;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen as ArgLen, SeccompCmpOp,
    SeccompCondition, SeccompFilter, SeccompRule, TargetArch, apply_filter_all_threads,
    sock_filter,
};

/// A forbidden call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForbiddenCall {
    /// Name in man pages and filter settings.
    pub name: &'static str,
    /// Number on this architecture.
    pub number: libc::c_long,
}

/// Calls that are always forbidden.
///
/// * `ptrace` stops threads, and writes their registers and memory.
/// * `process_vm_writev` writes their memory. `process_vm_readv` pins the pages that it reads, which splits and copies pages shared by a fork.
/// * `pidfd_getfd` takes a descriptor out of a program, and keeps open what the program closes.
/// * The others load code into the kernel, or another kernel, which could remove all these limits.
///
/// `bpf(2)` is not forbidden: the tracker `ptwalk` is a BPF program, which reads.
pub const FORBIDDEN: [ForbiddenCall; 9] = [
    call("ptrace", libc::SYS_ptrace),
    call("process_vm_readv", libc::SYS_process_vm_readv),
    call("process_vm_writev", libc::SYS_process_vm_writev),
    call("pidfd_getfd", libc::SYS_pidfd_getfd),
    call("init_module", libc::SYS_init_module),
    call("finit_module", libc::SYS_finit_module),
    call("delete_module", libc::SYS_delete_module),
    call("kexec_load", libc::SYS_kexec_load),
    call("kexec_file_load", libc::SYS_kexec_file_load),
];

/// Calls that are also forbidden to a process with a capability that its user lacks. It holds `CAP_SYS_NICE` for `process_madvise` alone.
///
/// * With the capability, the first ten change priorities, CPUs, I/O classes and memory nodes, of other users' processes as well. A thread may still
///   set its own priority.
/// * The last two execute another program.
pub const FORBIDDEN_TO_LENT: [ForbiddenCall; 12] = [
    call("setpriority", libc::SYS_setpriority),
    call("sched_setscheduler", libc::SYS_sched_setscheduler),
    call("sched_setparam", libc::SYS_sched_setparam),
    call("sched_setattr", libc::SYS_sched_setattr),
    call("sched_setaffinity", libc::SYS_sched_setaffinity),
    call("ioprio_set", libc::SYS_ioprio_set),
    call("migrate_pages", libc::SYS_migrate_pages),
    call("move_pages", libc::SYS_move_pages),
    call("mbind", libc::SYS_mbind),
    call("set_mempolicy", libc::SYS_set_mempolicy),
    call("execve", libc::SYS_execve),
    call("execveat", libc::SYS_execveat),
];

const fn call(name: &'static str, number: libc::c_long) -> ForbiddenCall {
    ForbiddenCall { name, number }
}

/// Reason why the calls are not forbidden.
#[derive(Debug, thiserror::Error)]
pub enum SelfFilterError {
    /// No filter exists for this architecture.
    #[error("no filter of system calls can be made for this architecture: {0}")]
    Architecture(String),
    /// The kernel refuses the filter.
    #[error(
        "the kernel takes no filter of system calls ({0}): it needs CONFIG_SECCOMP_FILTER, and a container that permits seccomp(2)"
    )]
    Refused(String),
}

/// Forbids the calls to all threads of this process and to all its descendants. There is no way back.
///
/// Programs that it executes get no more privileges than it has (`PR_SET_NO_NEW_PRIVS`, which the kernel requires): a setuid program runs as
/// its caller. So this process must not start programs of users. `superhue` itself, with a capability of its file, keeps the part that its
/// caller has.
///
/// # Errors
/// Reason for the kernel's refusal; no call is forbidden then.
pub fn forbid() -> Result<(), SelfFilterError> {
    apply(&FORBIDDEN)
}

/// Forbids the calls of [`FORBIDDEN`] and of [`FORBIDDEN_TO_LENT`].
///
/// # Errors
/// As for [`forbid`].
pub fn forbid_to_lent() -> Result<(), SelfFilterError> {
    apply(&[&FORBIDDEN[..], &FORBIDDEN_TO_LENT].concat())
}

fn apply(calls: &[ForbiddenCall]) -> Result<(), SelfFilterError> {
    let program = program(calls)?;
    apply_filter_all_threads(&program).map_err(|error| SelfFilterError::Refused(error.to_string()))
}

/// Returns the filter: a prefix, then the list of seccompiler, which would kill the process for a foreign entry and does not know x32.
fn program(calls: &[ForbiddenCall]) -> Result<BpfProgram, SelfFilterError> {
    let refused = Errno::PERM.raw_os_error().cast_unsigned();
    let of = |error: BackendError| SelfFilterError::Architecture(error.to_string());
    let architecture = TargetArch::try_from(ARCH).map_err(of)?;
    let mut rules = BTreeMap::new();
    for call in calls {
        rules.insert(call.number, forbidden_arguments(*call).map_err(of)?);
    }
    let action = SeccompAction::Errno(refused);
    let list = SeccompFilter::new(rules, SeccompAction::Allow, action, architecture).map_err(of)?;
    let mut program = foreign_entries(refused);
    program.extend(BpfProgram::try_from(list).map_err(of)?);
    Ok(program)
}

/// Returns the arguments with which a call is forbidden; none stands for any. A thread may set its own priority (`setpriority(PRIO_PROCESS, 0, ...)`),
/// as it does while it holds a lock of another process ([`Urgent`](crate::urgency::Urgent)).
fn forbidden_arguments(call: ForbiddenCall) -> Result<Vec<SeccompRule>, BackendError> {
    if call.number != libc::SYS_setpriority {
        return Ok(Vec::new());
    }
    let is_not_0 = |argument| {
        let argument = SeccompCondition::new(argument, ArgLen::Dword, SeccompCmpOp::Ne, 0)?;
        SeccompRule::new(vec![argument])
    };
    Ok(vec![is_not_0(0)?, is_not_0(1)?])
}

/// `AUDIT_ARCH_*` of `linux/audit.h`.
const NATIVE: u32 = if cfg!(target_arch = "x86_64") {
    0xc000_003e
} else {
    0xc000_00b7
};
/// `__X32_SYSCALL_BIT` of `asm/unistd.h`.
const X32: u32 = 0x4000_0000;

/// Offsets of `nr` and `arch` in `struct seccomp_data` (`linux/seccomp.h`).
const NUMBER_AT: u32 = 0;
const ENTRY_AT: u32 = 4;

/// Returns instructions that refuse calls through any entry but the native one, and let the others pass on.
fn foreign_entries(refused: u32) -> BpfProgram {
    // `linux/bpf_common.h`: BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ, BPF_JMP | BPF_JGE, BPF_RET.
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let load = |at| step(0x20, 0, 0, at);
    let refuse = step(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | refused);
    let mut program = vec![load(ENTRY_AT), step(0x15, 1, 0, NATIVE), refuse.clone()];
    if cfg!(target_arch = "x86_64") {
        program.extend([load(NUMBER_AT), step(0x35, 0, 1, X32), refuse]);
    }
    program
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::os::fd::AsRawFd;
    use std::process::{Command, Output};
    use std::sync::mpsc::channel;
    use std::thread;

    use rustix::process::{getpriority_process, setpriority_process};
    use superhue_testing::skip;

    use super::*;
    use crate::pagemap::last_errno;

    /// Environment variable of a test that has its process for itself.
    const ALONE: &str = "SUPERHUE_TEST_ALONE";

    /// Returns true in such a process; other processes skip steps that cannot be undone.
    fn is_alone() -> bool {
        env::var_os(ALONE).is_some()
    }

    /// Runs one of the ignored tests, in a process of its own.
    fn alone(name: &str) -> Output {
        let mut command = Command::new(env::current_exe().unwrap());
        let name = format!("self_filter::tests::{name}");
        command.args(["--exact", &name, "--ignored", "--nocapture"]);
        command.env(ALONE, "1").output().unwrap()
    }

    fn text(output: &Output) -> String {
        let [out, err] =
            [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        format!("{out}{err}")
    }

    /// Makes a call and returns its error; a call that takes effect by itself gets arguments that the kernel refuses.
    fn tried(call: ForbiddenCall) -> Result<i64, Errno> {
        let (nonsense, byte) = (-1_i64, 7_u8);
        let mut own = 0_u8;
        let from = libc::iovec {
            iov_base: (&raw const byte).cast_mut().cast(),
            iov_len: 1,
        };
        let to = libc::iovec {
            iov_base: (&raw mut own).cast(),
            iov_len: 1,
        };
        let pid = i64::from(std::process::id());
        let process = rustix::process::getpid();
        let pidfd = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty());
        let pidfd = pidfd
            .as_ref()
            .map_or(-1, |pidfd| i64::from(pidfd.as_raw_fd()));
        let (from, to) = (&raw const from as i64, &raw const to as i64);
        let [a, b, c, d, e, f] = match call.name {
            // PTRACE_DETACH of a process that is not traced: ESRCH. (PTRACE_TRACEME would make it wait for its parent forever.)
            "ptrace" => [17, pid, 0, 0, 0, 0],
            // The process's own memory.
            "process_vm_readv" => [pid, to, 1, from, 1, 0],
            "process_vm_writev" => [pid, from, 1, to, 1, 0],
            "pidfd_getfd" => [pidfd, 0, 0, 0, 0, 0],
            _ => [nonsense; 6],
        };
        // SAFETY: the vectors name two bytes of this frame; the calls that load code get no address and no descriptor.
        let done = unsafe { libc::syscall(call.number, a, b, c, d, e, f) };
        if done < 0 {
            Err(last_errno())
        } else {
            Ok(done)
        }
    }

    #[test]
    #[ignore = "forbids its process for good; run by another test"]
    fn everything_is_refused() {
        if !is_alone() {
            return;
        }
        let (go, gone) = channel::<()>();
        // A thread that exists before the filter.
        let earlier = thread::spawn(move || {
            gone.recv().unwrap();
            FORBIDDEN.map(tried)
        });
        if let Err(error) = forbid() {
            println!("NOT FORBIDDEN: {error}");
            return;
        }
        go.send(()).unwrap();
        let refused = FORBIDDEN.map(|_| Err(Errno::PERM));
        assert_eq!(FORBIDDEN.map(tried), refused);
        assert_eq!(earlier.join().unwrap(), refused, "an earlier thread");
        let later = thread::spawn(|| FORBIDDEN.map(tried));
        assert_eq!(later.join().unwrap(), refused, "a later thread");
        // Calls outside the list still work.
        assert!(rustix::process::getpid().as_raw_nonzero().get() > 0);
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        assert!(status.contains("\nSeccomp:\t2\n"), "{status}");
        println!("REFUSED");
    }

    #[test]
    #[ignore = "forbids its process for good; run by another test"]
    fn what_is_lent_does_nothing_else() {
        if !is_alone() {
            return;
        }
        if let Err(error) = forbid_to_lent() {
            return println!("NOT FORBIDDEN: {error}");
        }
        assert_eq!(FORBIDDEN.map(tried), FORBIDDEN.map(|_| Err(Errno::PERM)));
        let refused = FORBIDDEN_TO_LENT.map(|_| Err(Errno::PERM));
        assert_eq!(FORBIDDEN_TO_LENT.map(tried), refused);
        // A thread may change its own priority, and no other one.
        let now = getpriority_process(None).unwrap();
        assert_eq!(setpriority_process(None, now), Ok(()));
        let parent = rustix::process::getppid();
        assert_eq!(setpriority_process(parent, now), Err(Errno::PERM));
        println!("REFUSED");
    }

    #[test]
    fn calls_are_forbidden_to_what_is_lent() {
        // Without the filter the kernel refuses the nonsense, with other errors.
        let found = FORBIDDEN_TO_LENT.map(tried);
        if found.contains(&Err(Errno::PERM)) {
            let reason = format!("something else forbids them already: {found:?}");
            skip("calls", &reason);
        }
        let said = text(&alone("what_is_lent_does_nothing_else"));
        if said.contains("NOT FORBIDDEN") {
            return skip("seccomp", &said);
        }
        assert!(said.contains("REFUSED"), "{said}");
    }

    /// Without a filter the kernel does not refuse the first four in one's own process: above, the filter refuses them.
    #[test]
    #[ignore = "shows what the next one is worth; run by another test"]
    fn nothing_is_refused_without() {
        if !is_alone() {
            return;
        }
        for call in FORBIDDEN.into_iter().take(4) {
            println!("{}: {:?}", call.name, tried(call));
        }
        println!("TRIED");
    }

    #[test]
    fn forbidden_calls_are_refused_to_every_thread() {
        let said = text(&alone("nothing_is_refused_without"));
        let is_refused = ["code: 1,", "code: 38,"]
            .iter()
            .any(|code| said.contains(code));
        if !said.contains("TRIED") || is_refused {
            skip(
                "calls",
                &format!("something else forbids them already: {said}"),
            );
        }
        let said = text(&alone("everything_is_refused"));
        if said.contains("NOT FORBIDDEN") {
            return skip("seccomp", &said);
        }
        assert!(said.contains("REFUSED"), "{said}");
    }

    /// Makes any call through the 32-bit entry: `getpid`, 20.
    #[cfg(target_arch = "x86_64")]
    fn through_32_bits() -> i32 {
        let mut number: i32 = 20;
        // SAFETY: the call has no arguments and touches no memory. If the entry does not exist, this ends the process by SIGSEGV.
        unsafe {
            std::arch::asm!("int 0x80", inlateout("eax") number, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
        }
        number
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    #[ignore = "may end by a signal; run by another test"]
    fn the_32_bit_entry_is_there() {
        if !is_alone() {
            return;
        }
        println!("PID {}", through_32_bits());
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    #[ignore = "forbids its process for good; run by another test"]
    fn the_32_bit_entry_is_refused() {
        if !is_alone() {
            return;
        }
        match forbid() {
            Ok(()) => println!("ANSWER {}", through_32_bits()),
            Err(error) => println!("NOT FORBIDDEN: {error}"),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn nothing_comes_through_the_32_bit_entry() {
        let said = text(&alone("the_32_bit_entry_is_there"));
        if !said.contains("PID ") {
            return skip("ia32", "this kernel has no 32-bit entry");
        }
        let said = text(&alone("the_32_bit_entry_is_refused"));
        if said.contains("NOT FORBIDDEN") {
            return skip("seccomp", &said);
        }
        assert!(said.contains("ANSWER -1\n"), "EPERM is wanted: {said}");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    #[ignore = "forbids its process for good; run by another test"]
    fn the_x32_entry_is_refused() {
        if !is_alone() {
            return;
        }
        if let Err(error) = forbid() {
            return println!("NOT FORBIDDEN: {error}");
        }
        // `getpid`; `ptrace` and `process_vm_writev` have numbers of their own there.
        for number in [libc::SYS_getpid, 521, 540] {
            let number = number | i64::from(X32);
            // SAFETY: the arguments name no memory.
            let done =
                unsafe { libc::syscall(number, -1_i64, -1_i64, -1_i64, -1_i64, -1_i64, -1_i64) };
            assert_eq!((done, last_errno()), (-1, Errno::PERM), "{number:#x}");
        }
        println!("REFUSED");
    }

    /// A kernel without that entry would answer `ENOSYS`, but the filter runs first.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn nothing_comes_through_the_x32_entry() {
        let said = text(&alone("the_x32_entry_is_refused"));
        if said.contains("NOT FORBIDDEN") {
            return skip("seccomp", &said);
        }
        assert!(said.contains("REFUSED"), "{said}");
    }

    #[test]
    fn the_filter_is_for_this_architecture() {
        let program = program(&FORBIDDEN);
        assert_eq!(TargetArch::try_from(ARCH).is_ok(), program.is_ok());
        let program = program.unwrap();
        let numbers: Vec<u32> = program.iter().map(|step| step.k).collect();
        for call in FORBIDDEN {
            let number = u32::try_from(call.number).unwrap();
            assert!(numbers.contains(&number), "{}: {program:?}", call.name);
        }
        assert!(numbers.contains(&NATIVE));
    }
}

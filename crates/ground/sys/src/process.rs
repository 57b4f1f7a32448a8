//! Waiting for children and signals, with details that the standard library leaves out.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::pagemap::last_errno;

/// Resources that a child used, including the descendants for which it waited (`getrusage(2)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// CPU time in user space.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
    /// Largest resident set of any one of these processes, in KiB.
    pub max_rss_kib: u64,
    /// Page faults served without I/O.
    pub minor_faults: u64,
    /// Page faults that needed I/O.
    pub major_faults: u64,
}

impl Usage {
    /// Returns the CPU time in user space and in the kernel.
    #[must_use]
    pub fn cpu(&self) -> Duration {
        self.user + self.system
    }
}

/// Change of a child's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildEvent {
    /// The child ended with this status.
    Exited(i32),
    /// This signal ended the child.
    Killed(i32),
    /// This signal stopped the child, which can continue.
    Stopped(i32),
    /// The child continues.
    Continued,
}

/// Polls once, without blocking, for a change of child `pid` (`wait4(2)`).
///
/// # Errors
/// `ECHILD` when it is no child of the caller, or the caller has waited for it already.
pub fn child_event(pid: u32) -> Result<Option<(ChildEvent, Usage)>, Errno> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| Errno::SRCH)?;
    let mut status: libc::c_int = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills both, which live across the call; all-zero is a valid `rusage`.
    let (changed, usage) = unsafe {
        let options = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED;
        let changed = libc::wait4(pid, &raw mut status, options, usage.as_mut_ptr());
        (changed, usage.assume_init())
    };
    if changed < 0 {
        return Err(last_errno());
    }
    if changed == 0 {
        return Ok(None);
    }
    let event = if libc::WIFEXITED(status) {
        ChildEvent::Exited(libc::WEXITSTATUS(status))
    } else if libc::WIFSTOPPED(status) {
        ChildEvent::Stopped(libc::WSTOPSIG(status))
    } else if libc::WIFCONTINUED(status) {
        ChildEvent::Continued
    } else {
        ChildEvent::Killed(libc::WTERMSIG(status))
    };
    Ok(Some((event, usage.into())))
}

/// Raises the limit on open files to `wanted`, or as far as the hard limit allows, and never lowers it. Returns the resulting limit; `None`
/// for no limit (`setrlimit(2)`). A `wanted` of `None` raises it to the hard limit.
pub fn raise_descriptor_limit(wanted: Option<u64>) -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = match (wanted, limit.maximum) {
        (Some(wanted), Some(maximum)) => Some(wanted.min(maximum)),
        (wanted, maximum) => wanted.or(maximum),
    };
    let is_more = match (limit.current, raised) {
        (Some(current), Some(raised)) => raised > current,
        (current, raised) => current.is_some() && raised.is_none(),
    };
    if is_more {
        let new = Rlimit {
            current: raised,
            maximum: limit.maximum,
        };
        let _ = setrlimit(Resource::Nofile, new);
    }
    getrlimit(Resource::Nofile).current
}

/// Forks if the caller is the only thread of its process. Returns `None` in the child, the child's number in the parent (`fork(2)`).
///
/// # Errors
/// `EBUSY` with other threads, whose locks would stay locked in the child; `EAGAIN` past a limit on processes; `ENOMEM`.
pub fn fork_alone() -> Result<Option<u32>, Errno> {
    let tasks = std::fs::read_dir("/proc/self/task").map_err(|_| Errno::BUSY)?;
    if tasks.count() != 1 {
        return Err(Errno::BUSY);
    }
    // SAFETY: there is no other thread, so the child may do whatever the parent may.
    match unsafe { libc::fork() } {
        0 => Ok(None),
        pid if pid < 0 => Err(last_errno()),
        pid => Ok(u32::try_from(pid).ok()),
    }
}

/// Returns the CPU time of a process so far: of all its threads, including ended ones, without its children
/// (`clock_getcpuclockid(3)`, `clock_gettime(2)`). `None` if there is no such process. Every user may read it. It counts in nanoseconds,
/// `/proc/PID/stat` in ticks.
#[must_use]
pub fn cpu_time_of(pid: u32) -> Option<Duration> {
    /// `CPUCLOCK_SCHED` of `include/linux/posix-timers_types.h`.
    const SCHEDULED: libc::clockid_t = 2;
    let pid = libc::pid_t::try_from(pid).ok().filter(|&pid| pid > 0)?;
    // `make_process_cpuclock` of the same file. The library's function first asks the kernel whether the process exists; so does the next call.
    let clock: libc::clockid_t = (!pid << 3) | SCHEDULED;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` lives across the call, which writes it.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return None;
    }
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let nanos = u32::try_from(time.tv_nsec).ok()?;
    Some(Duration::new(seconds, nanos))
}

/// Returns the CPU time of the calling thread (`clock_gettime(2)`, `CLOCK_THREAD_CPUTIME_ID`). Wall time would count the work of other threads.
#[must_use]
pub fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::from_secs(seconds)
        + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or_default())
}

/// Returns the resources that the calling process used so far, without its children (`getrusage(2)`).
#[must_use]
pub fn own_usage() -> Usage {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills `usage`; if it does not, all-zero is a valid `rusage`.
    unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    }
    .into()
}

impl From<libc::rusage> for Usage {
    fn from(usage: libc::rusage) -> Self {
        let time = |t: libc::timeval| {
            let seconds = u64::try_from(t.tv_sec).unwrap_or(0);
            Duration::from_secs(seconds)
                + Duration::from_micros(u64::try_from(t.tv_usec).unwrap_or(0))
        };
        let count = |n: libc::c_long| u64::try_from(n).unwrap_or(0);
        Self {
            user: time(usage.ru_utime),
            system: time(usage.ru_stime),
            max_rss_kib: count(usage.ru_maxrss),
            minor_faults: count(usage.ru_minflt),
            major_faults: count(usage.ru_majflt),
        }
    }
}

/// Set of signals, in a form that can be copied into a child.
#[derive(Clone, Copy)]
pub struct SignalSet(libc::sigset_t);

impl std::fmt::Debug for SignalSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SignalSet")
    }
}

impl SignalSet {
    /// Makes the set of the given signals; skips numbers that are no signal.
    #[must_use]
    pub fn of(signals: &[i32]) -> Self {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: `sigemptyset` initialises the set before it is used.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for &signal in signals {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            Self(set.assume_init())
        }
    }

    /// Makes the set of all signals.
    #[must_use]
    pub fn all() -> Self {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: `sigfillset` initialises the set.
        unsafe {
            libc::sigfillset(set.as_mut_ptr());
            Self(set.assume_init())
        }
    }

    /// Returns this set without the given signals.
    #[must_use]
    pub fn without(mut self, signals: &[i32]) -> Self {
        for &signal in signals {
            // SAFETY: the set is initialised.
            unsafe { libc::sigdelset(&raw mut self.0, signal) };
        }
        self
    }

    /// Returns the C library's form of the set.
    pub(crate) const fn raw(&self) -> *const libc::sigset_t {
        &raw const self.0
    }

    /// Returns the signals blocked in the calling thread.
    #[must_use]
    pub fn blocked_now() -> Self {
        Self::of(&[]).block()
    }

    /// Blocks these signals in the calling thread and returns the set blocked before.
    #[must_use]
    pub fn block(&self) -> Self {
        let mut before = Self::of(&[]);
        // SAFETY: both sets are initialised and live across the call.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const self.0, &raw mut before.0) };
        before
    }

    /// Makes these exactly the blocked signals of the calling thread. Safe between fork and exec.
    pub fn apply(&self) {
        // SAFETY: the set is initialised and lives across the call.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut());
        }
    }

    /// Takes the repeats of a signal that has arrived: one for the whole process group comes twice if a supervisor passes it on, the second time after
    /// some milliseconds.
    pub fn take_repeats(&self) {
        while self.wait(Duration::from_millis(20)).is_some() {}
    }

    /// Waits up to `timeout` for one of these (blocked) signals; `None` if none arrived.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> Option<Signal> {
        let timeout = libc::timespec {
            tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
        };
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the kernel fills `info`; all arguments live across the call.
        let (number, info) = unsafe {
            let number =
                libc::sigtimedwait(&raw const self.0, info.as_mut_ptr(), &raw const timeout);
            (number, info.assume_init())
        };
        (number > 0).then_some(Signal {
            number,
            // SI_USER, SI_QUEUE and SI_TKILL are 0 and below; the kernel's own signals
            // (terminal keys, SIGCHLD) are above.
            sent_by_process: info.si_code <= 0,
            // SAFETY: any of these signals carries the sender's number if a process sent it.
            sender: (info.si_code <= 0)
                .then(|| unsafe { info.si_pid() })
                .and_then(|pid| u32::try_from(pid).ok()),
            // SAFETY: a queued signal carries a value.
            value: (info.si_code == libc::SI_QUEUE)
                .then(|| unsafe { info.si_value().sival_ptr } as usize),
        })
    }
}

/// Signal that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal {
    /// Signal number.
    pub number: i32,
    /// True if a process sent it (`kill`), rather than the terminal or the kernel.
    pub sent_by_process: bool,
    /// Process that sent it; 0 for one outside this process's PID namespace.
    pub sender: Option<u32>,
    /// Value that came with it (`sigqueue(3)`): a pointer, or an integer in its lower half.
    pub value: Option<usize>,
}

/// Makes the kernel kill this process when `parent`, its parent, ends; returns false if that has ended already. A change of user undoes it
/// (`PR_SET_PDEATHSIG`).
///
/// # Errors
/// Errors of `prctl(2)`.
pub fn die_with_parent(parent: u32) -> Result<bool, Errno> {
    let death = Some(rustix::process::Signal::KILL);
    rustix::process::set_parent_process_death_signal(death)?;
    // A parent that has ended before sends no signal.
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    Ok(now.and_then(|pid| u32::try_from(pid).ok()) == Some(parent))
}

/// Returns true if this process leads its session (`getsid(2)`).
#[must_use]
pub fn is_session_leader() -> bool {
    // In a PID namespace, a session that began outside it has number 0, which rustix takes for impossible.
    // SAFETY: both calls only read.
    unsafe { libc::getsid(0) == libc::getpid() }
}

/// Sends a signal, real-time signals included, to a process whose number is still valid: a child that was not waited for yet, or a process that
/// existed just now (`kill(2)`, and `sigqueue(3)` for one with a value). A signal that may not be sent is dropped.
pub fn send_signal(pid: u32, signal: i32, value: Option<usize>) {
    let Some(pid) = libc::pid_t::try_from(pid).ok().filter(|&pid| pid > 0) else {
        return;
    };
    // SAFETY: both calls only send.
    unsafe {
        match value {
            Some(value) => {
                let sival_ptr = value as *mut libc::c_void;
                libc::sigqueue(pid, signal, libc::sigval { sival_ptr });
            }
            None => {
                libc::kill(pid, signal);
            }
        }
    }
}

/// Sets the disposition of `signal` to the default (`false`) or to ignored (`true`).
/// Safe between fork and exec.
pub fn set_ignored(signal: i32, ignored: bool) {
    let action = if ignored {
        libc::SIG_IGN
    } else {
        libc::SIG_DFL
    };
    // SAFETY: neither disposition runs code of ours.
    unsafe { libc::signal(signal, action) };
}

/// Installs an empty handler, so that `signal` interrupts nothing and ends nothing in this process, unless it is ignored already.
/// Programs that this process executes have the default disposition again.
pub fn shrug_off(signal: i32) {
    extern "C" fn nothing(_: libc::c_int) {}
    if is_ignored(signal) {
        return;
    }
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all-zero is a valid `sigaction`; the handler does nothing at all.
    unsafe {
        let action = action.assume_init_mut();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(signal, action, std::ptr::null_mut());
    }
}

/// Returns true if the calling process ignores `signal`.
#[must_use]
pub fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the kernel fills `action`; if it does not, all-zero is a valid `sigaction`.
    let action = unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}

/// Ends the calling process by `signal`, without a core dump of its own, not even one into a program (`core(5)`).
///
/// Returns only if the signal does not end processes.
pub fn die_by(signal: i32) {
    let no_core = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let this = SignalSet::of(&[signal]);
    // SAFETY: plain calls on initialised values; the default disposition runs no code of ours.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core);
        // The limit does not count where the kernel passes dumps to a program.
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::signal(signal, libc::SIG_DFL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const this.0, std::ptr::null_mut());
        libc::raise(signal);
    }
}

/// Stops the calling process until another process continues it.
pub fn stop_here() {
    // SAFETY: SIGSTOP runs no code of ours.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Stops the calling process until another process continues it, or until process `other` is not stopped any more. Returns true in the second case.
///
/// A child process waits for that. Without one (`EAGAIN`) this is [`stop_here`].
#[must_use]
pub fn stop_with(other: u32) -> bool {
    let paths = [std::process::id(), other].map(|pid| CString::new(format!("/proc/{pid}/stat")));
    let [Ok(ours), Ok(theirs)] = paths else {
        return false;
    };
    // The child must end by nothing that ends or stops the group.
    let before = SignalSet::all().block();
    // SAFETY: the child makes system calls only, on memory that was allocated before, and ends with `_exit`.
    let child = unsafe {
        let parent = libc::getpid();
        match libc::fork() {
            0 => continue_when(parent, &ours, &theirs),
            child => child,
        }
    };
    stop_here();
    // A stop takes earlier ones away, so this is the signal that has continued this process.
    let continued = SignalSet::of(&[libc::SIGCONT]).wait(Duration::ZERO);
    before.apply();
    let Ok(number) = u32::try_from(child) else {
        return false;
    };
    // SAFETY: the child is ours and not waited for yet; the pointer to its status may be null.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        while libc::waitpid(child, std::ptr::null_mut(), 0) < 0 && last_errno() == Errno::INTR {}
    }
    continued.is_some_and(|signal| signal.sender == Some(number))
}

/// Continues `parent`, which stops soon, once the other process is not stopped any more; ends at the latest when the parent continues or ends.
/// `ours` and `theirs` are the `stat` files of both.
///
/// # Safety
/// For a child of `fork` only: it never returns. It is safe there, since it makes system calls only.
unsafe fn continue_when(parent: libc::pid_t, ours: &CStr, theirs: &CStr) -> ! {
    /// Rounds for which the parent may take to stop.
    const PATIENCE: u32 = 100;
    // SAFETY: plain system calls; nothing of the parent's process is touched but its copy of our stack.
    unsafe {
        // A reader that waits for the end of a pipe must not wait for this process.
        libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0);
        let mut round = 0_u32;
        let mut was_stopped = false;
        while libc::getppid() == parent {
            match state_in(ours) {
                Some(b'T') => {
                    was_stopped = true;
                    if state_in(theirs).is_some_and(|it| !matches!(it, b'T' | b't')) {
                        libc::kill(parent, libc::SIGCONT);
                        libc::_exit(0);
                    }
                }
                _ if was_stopped || round > PATIENCE => break,
                _ => {}
            }
            round = round.saturating_add(1);
            let pause = libc::timespec {
                tv_sec: 0,
                tv_nsec: if round < PATIENCE {
                    10_000_000
                } else {
                    200_000_000
                },
            };
            libc::nanosleep(&raw const pause, std::ptr::null_mut());
        }
        libc::_exit(0)
    }
}

/// Returns the state letter in a `stat` file; `None` if the process is gone. Makes system calls only.
fn state_in(stat: &CStr) -> Option<u8> {
    let mut text = [0_u8; 256];
    // SAFETY: the path ends with a zero byte, and the kernel writes at most the length of the buffer.
    let length = unsafe {
        let file = libc::open(stat.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return None;
        }
        let length = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        usize::try_from(length).ok()?
    };
    // The name before it may have any bytes: the last parenthesis ends it.
    let text = text.get(..length)?;
    let end = text.iter().rposition(|&byte| byte == b')')?;
    text.get(end + 2).copied()
}

/// Returns true if descriptor `fd` is open.
#[must_use]
pub fn is_open(fd: i32) -> bool {
    // SAFETY: F_GETFD only reads.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

/// Marks every descriptor from `first` on close-on-exec (`close_range(2)`), including inherited ones and those that a
/// library opened without the flag.
///
/// # Errors
/// `ENOSYS`, `EINVAL` before Linux 5.11; `EPERM` from a seccomp filter.
pub fn close_on_exec_from(first: u32) -> Result<(), Errno> {
    // SAFETY: the call sets flags of descriptors; no memory is involved, and none is closed.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if done < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Returns true if this program was started with more rights than its caller has (set-ID bits, file capabilities), so that the C library dropped some
/// variables of its environment (`AT_SECURE`, `getauxval(3)`).
#[must_use]
pub fn is_secure() -> bool {
    // SAFETY: it only reads the auxiliary vector.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Closes descriptor `fd` by number. Safe between fork and exec.
///
/// # Safety
/// Nothing in the process may use the descriptor afterwards.
pub unsafe fn close_raw(fd: i32) {
    // SAFETY: the caller's promise.
    unsafe { libc::close(fd) };
}

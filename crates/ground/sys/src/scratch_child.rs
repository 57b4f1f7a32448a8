//! A scratch child: a process of our own, for trials that need another process.
//!
//! The child is forked, never executed, so it needs no program file. It owns one [`Scratch`] that it
//! maps itself. It only performs a fixed set of orders:
//!
//! ```text
//!   parent                                child
//!     ask(order, argument)  ──socket──►   do it on the scratch
//!     (errno, value)        ◄──socket──   answer, wait for the next
//! ```
//!
//! A fork of a threaded program may only make system calls (`signal-safety(7)`): locks of the
//! other threads stay locked for ever in the child. So the child never allocates, locks,
//! panics or returns; all its code is in this file and in [`scratch`](crate::scratch).
//!
//! The child disturbs nothing around it:
//! * it has no exit signal, so a `SIGCHLD` handler or a `wait` for any child never sees it;
//! * it closes every inherited descriptor, so that it keeps no pipe or lock open;
//! * it blocks all signals, so that no handler of the program runs in it, and it ends with the
//!   parent: by `PR_SET_PDEATHSIG`, and by the end of file on the socket.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use superhue_model::{HUGE_PAGE_SIZE, Region, VirtAddr, VirtRange};

use crate::collapse::own_collapse;
use crate::pagemap::last_errno;
use crate::scratch::Scratch;
use crate::seccomp::RiskyCall;
use crate::thp::{ThpSwitch, set_thp_switch};

/// Maximum time for the answer to an order; all take milliseconds.
const ANSWER_TIMEOUT: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// Order, argument.
type Request = [u64; 2];
/// Errno (0 for none), value.
type Answer = [u64; 2];

const MAP_BASE_PAGES: u64 = 1;
const MAP_UNTOUCHED: u64 = 2;
const FILL: u64 = 3;
const CHECK: u64 = 4;
const TOUCH: u64 = 5;
const ADVISE_HUGE: u64 = 6;
const THP_SWITCH: u64 = 7;
const COLLAPSE: u64 = 8;
const RISKY_CALL: u64 = 9;

/// Initial mapping of the child's region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// No page: faults decide.
    Untouched,
    /// Base pages, whatever the huge page mode; see [`Scratch::in_base_pages`].
    BasePages,
}

/// Running scratch child; killed and reaped when dropped.
#[derive(Debug)]
pub struct ScratchChild {
    pid: u32,
    pidfd: OwnedFd,
    socket: OwnedFd,
}

impl ScratchChild {
    /// Starts a child, without a mapping yet.
    ///
    /// The child ends at the latest when the calling *thread* ends.
    ///
    /// # Errors
    /// `EAGAIN` past a limit on processes; `EMFILE`, `ENOMEM`; `EPERM` from a seccomp filter; `ENOSYS` before Linux 5.2.
    pub fn start() -> Result<Self, Errno> {
        let (socket, childs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let (pid, pidfd) = fork_to_serve(&childs)?;
        Ok(Self { pid, pidfd, socket })
    }

    /// Returns the child's process number in the caller's PID namespace.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Maps one new region, and discards an earlier one.
    ///
    /// # Errors
    /// As for [`Scratch::untouched`]; `ESRCH` when the child was killed, `ETIMEDOUT` when it does
    /// not answer, for this and every other order.
    pub fn map(&self, backing: Backing) -> Result<Region, Errno> {
        let order = match backing {
            Backing::Untouched => MAP_UNTOUCHED,
            Backing::BasePages => MAP_BASE_PAGES,
        };
        Ok(Region::containing(VirtAddr(self.ask(order, 0)?)))
    }

    /// Makes the child write a pattern to its region.
    ///
    /// # Errors
    /// `EINVAL` without a mapping.
    pub fn fill(&self, seed: u64) -> Result<(), Errno> {
        self.ask(FILL, seed).map(drop)
    }

    /// Returns true if the child finds every byte of its region as [`fill`](Self::fill) left it.
    ///
    /// # Errors
    /// `EINVAL` without a mapping.
    pub fn is_intact(&self, seed: u64) -> Result<bool, Errno> {
        Ok(self.ask(CHECK, seed)? == 1)
    }

    /// Makes the child write to the first page of its region.
    ///
    /// # Errors
    /// `EINVAL` without a mapping.
    pub fn touch(&self) -> Result<(), Errno> {
        self.ask(TOUCH, 0).map(drop)
    }

    /// Makes the child request huge pages at faults in its region (`MADV_HUGEPAGE`).
    ///
    /// # Errors
    /// `EINVAL` without a mapping or without transparent huge pages.
    pub fn advise_huge(&self) -> Result<(), Errno> {
        self.ask(ADVISE_HUGE, 0).map(drop)
    }

    /// Makes the child set its huge page switch.
    ///
    /// # Errors
    /// As for [`set_thp_switch`].
    pub fn set_thp_switch(&self, switch: ThpSwitch) -> Result<(), Errno> {
        let argument = match switch {
            ThpSwitch::System => 0,
            ThpSwitch::Never => 1,
            ThpSwitch::OnlyAdvised => 2,
        };
        self.ask(THP_SWITCH, argument).map(drop)
    }

    /// Makes the child collapse its own region.
    ///
    /// # Errors
    /// As for [`own_collapse`]; `EINVAL` without a mapping.
    pub fn collapse(&self) -> Result<(), Errno> {
        self.ask(COLLAPSE, 0).map(drop)
    }

    /// Makes the child make a call that may end it, with arguments that the kernel refuses.
    ///
    /// # Errors
    /// `ESRCH` if the call ended the child.
    pub(crate) fn risk(&self, call: RiskyCall) -> Result<(), Errno> {
        self.ask(RISKY_CALL, call.number().cast_unsigned())
            .map(drop)
    }

    fn ask(&self, order: u64, argument: u64) -> Result<u64, Errno> {
        // Any error of the socket means that the child no longer holds its end.
        let request = to_bytes([order, argument]);
        rustix::net::send(&self.socket, &request, SendFlags::NOSIGNAL).map_err(|_| Errno::SRCH)?;
        let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
        while match poll(&mut ready, Some(&ANSWER_TIMEOUT)) {
            Ok(0) => return Err(Errno::TIMEDOUT),
            Err(Errno::INTR) => true,
            other => other.map(|_| false)?,
        } {}
        let mut bytes = [0_u8; size_of::<Answer>()];
        if rustix::io::read(&self.socket, &mut bytes) != Ok(bytes.len()) {
            return Err(Errno::SRCH);
        }
        match from_bytes(bytes) {
            [0, value] => Ok(value),
            [errno, _] => Err(i32::try_from(errno).map_or(Errno::IO, Errno::from_raw_os_error)),
        }
    }
}

impl AsFd for ScratchChild {
    /// Returns the child's pidfd.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for ScratchChild {
    fn drop(&mut self) {
        let pidfd = self.pidfd.as_raw_fd();
        // SAFETY: the pidfd names our own child, for which no other code waits; no `siginfo_t` given.
        unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                pidfd,
                libc::SIGKILL,
                ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        let id = pidfd.cast_unsigned();
        // Without `__WALL` the call does not wait for a child without an exit signal.
        let options = libc::WEXITED | libc::__WALL;
        loop {
            // SAFETY: the kernel fills a `siginfo_t`, for which there is room, or leaves it alone.
            let done = unsafe {
                let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
                libc::waitid(libc::P_PIDFD, id, info.as_mut_ptr(), options)
            };
            if done == 0 {
                return;
            }
            match last_errno() {
                Errno::INTR => {}
                // Linux before 5.4 cannot wait for a pidfd. The number is the child's until its parent has waited for it.
                Errno::INVAL => break,
                _ => return,
            }
        }
        if let Ok(pid) = libc::pid_t::try_from(self.pid) {
            // SAFETY: the child is ours, and no other code waits for it; the pointer to the status may be null.
            while unsafe { libc::waitpid(pid, ptr::null_mut(), libc::__WALL) } < 0
                && last_errno() == Errno::INTR
            {}
        }
    }
}

const fn to_bytes([first, second]: [u64; 2]) -> [u8; 16] {
    ((first as u128) | ((second as u128) << 64)).to_le_bytes()
}

const fn from_bytes(bytes: [u8; 16]) -> [u64; 2] {
    let both = u128::from_le_bytes(bytes);
    [both as u64, (both >> 64) as u64]
}

/// Forks; the child serves at `socket` and never returns.
///
/// Calls `clone(2)` directly: `CLONE_PIDFD` identifies the child beyond the reuse of its number, and the
/// child needs no exit signal. (`clone3(2)` could do the same, but container filters answer it with
/// `ENOSYS`.)
fn fork_to_serve(socket: &OwnedFd) -> Result<(u32, OwnedFd), Errno> {
    let socket = socket.as_raw_fd();
    let mut pidfd: libc::c_int = -1;
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the signal sets are written by `sigfillset` and `pthread_sigmask` before their use.
    // Without `CLONE_VM` this is a fork: the child runs on a copy of everything, and all that it
    // runs is `serve`, which keeps to system calls. The kernel writes the pidfd before it returns.
    let pid = unsafe {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let no_stack = ptr::null_mut::<libc::c_void>();
        let unused: libc::c_long = 0;
        let flags = libc::c_long::from(libc::CLONE_PIDFD);
        let pid = libc::syscall(
            libc::SYS_clone,
            flags,
            no_stack,
            &raw mut pidfd,
            unused,
            unused,
        );
        if pid == 0 {
            serve(socket);
        }
        pid
    };
    let error = last_errno();
    // SAFETY: `before` was written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    let Ok(number) = u32::try_from(pid) else {
        return Err(error);
    };
    // Linux before 5.2 ignores the flag and gives no descriptor.
    if pidfd < 0 {
        if let Ok(pid) = libc::pid_t::try_from(pid) {
            // SAFETY: the child is ours, and no other code waits for it.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, ptr::null_mut(), libc::__WALL);
            }
        }
        return Err(Errno::NOSYS);
    }
    // SAFETY: the kernel just gave us this descriptor.
    Ok((number, unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

/// Main loop of the child.
fn serve(socket: libc::c_int) -> ! {
    // A process with capabilities from its program file is not dumpable, and neither is its child: root then owns the child's files in `/proc`,
    // which the parent could not open. The child has nothing to hide, and a process with fewer capabilities may not ptrace it all the same.
    //
    // SAFETY: closes descriptors that no code in this process uses any more, all but the socket.
    // If the kernel lacks the call (before 5.9) they stay open until the child ends.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let number = socket.cast_unsigned();
        if number > 0 {
            libc::syscall(libc::SYS_close_range, 0_u32, number - 1, 0_u32);
        }
        libc::syscall(
            libc::SYS_close_range,
            number.wrapping_add(1),
            u32::MAX,
            0_u32,
        );
    }
    let mut scratch: Option<Scratch> = None;
    let mut bytes = [0_u8; size_of::<Request>()];
    loop {
        // SAFETY: the kernel writes at most the buffer's length.
        let count = unsafe { libc::read(socket, bytes.as_mut_ptr().cast(), bytes.len()) };
        if count != 16 {
            // SAFETY: ends this process without running exit handlers of its parent.
            unsafe { libc::_exit(0) };
        }
        let answer = match obey(from_bytes(bytes), &mut scratch) {
            Ok(value) => [0, value],
            Err(errno) => [u64::from(errno.raw_os_error().unsigned_abs()), 0],
        };
        let answer = to_bytes(answer);
        // SAFETY: the kernel reads the buffer, and raises no signal if the parent is gone.
        unsafe {
            libc::send(
                socket,
                answer.as_ptr().cast(),
                answer.len(),
                libc::MSG_NOSIGNAL,
            )
        };
    }
}

fn obey([order, argument]: Request, slot: &mut Option<Scratch>) -> Result<u64, Errno> {
    match order {
        MAP_BASE_PAGES | MAP_UNTOUCHED => {
            *slot = None;
            let length = HUGE_PAGE_SIZE as usize;
            let scratch = match order {
                MAP_BASE_PAGES => Scratch::in_base_pages(length)?,
                _ => Scratch::untouched(length)?,
            };
            let VirtRange { start, .. } = scratch.range();
            *slot = Some(scratch);
            return Ok(start.0);
        }
        THP_SWITCH => {
            set_thp_switch(match argument {
                0 => ThpSwitch::System,
                1 => ThpSwitch::Never,
                _ => ThpSwitch::OnlyAdvised,
            })?;
            return Ok(0);
        }
        RISKY_CALL => return risky_call(argument),
        _ => {}
    }
    let scratch = slot.as_mut().ok_or(Errno::INVAL)?;
    match order {
        FILL => scratch.fill(argument),
        CHECK => return Ok(u64::from(scratch.is_intact(argument))),
        TOUCH => scratch.touch(),
        ADVISE_HUGE => scratch.advise_huge()?,
        COLLAPSE => own_collapse(scratch.region())?,
        _ => return Err(Errno::INVAL),
    }
    Ok(0)
}

/// Makes the process not dumpable: if a system call ends it, it must leave no core file behind.
fn leave_no_core() {
    // SAFETY: takes plain integers.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
}

impl RiskyCall {
    /// Returns true if the calling thread's filter lets it live after such a call. A scratch child tries the call
    /// with invalid arguments.
    ///
    /// # Errors
    /// As for [`ScratchChild::start`].
    pub fn is_survived(self) -> Result<bool, Errno> {
        match ScratchChild::start()?.risk(self) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

fn risky_call(number: u64) -> Result<u64, Errno> {
    leave_no_core();
    let nonsense = -1_isize;
    // SAFETY: with these arguments the kernel refuses each `RiskyCall` before it does anything: bad
    // command (bpf), bad address (`perf_event_open`), bad descriptor (`process_madvise`), bad path
    // (swapoff), bad flags (swapon, userfaultfd).
    let done = unsafe {
        libc::syscall(
            number as libc::c_long,
            nonsense,
            nonsense,
            nonsense,
            nonsense,
            nonsense,
            0,
        )
    };
    // The kernel always refuses the call; the test is whether the child is alive to answer.
    Ok(u64::from(done < 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_obeys_and_ends_with_its_handle() {
        let child = ScratchChild::start().unwrap();
        assert_eq!(child.fill(1), Err(Errno::INVAL), "nothing is mapped yet");
        let region = child.map(Backing::BasePages).unwrap();
        child.fill(1).unwrap();
        assert_eq!(child.is_intact(1), Ok(true));
        child.touch().unwrap();
        assert_eq!(child.is_intact(1), Ok(false));

        let directory = format!("/proc/{}", child.pid());
        let maps = std::fs::read_to_string(format!("{directory}/maps")).unwrap();
        let range = region.range();
        let line = format!("{:x}-{:x} rw-p", range.start.0, range.end.0);
        assert!(maps.contains(&line), "{line} is not in\n{maps}");
        let open = std::fs::read_dir(format!("{directory}/fd"))
            .unwrap()
            .count();
        assert_eq!(open, 1, "only the socket");

        drop(child);
        assert!(
            !std::path::Path::new(&directory).exists(),
            "killed and reaped"
        );
    }

    #[test]
    fn a_new_mapping_replaces_the_old() {
        let child = ScratchChild::start().unwrap();
        child.map(Backing::BasePages).unwrap();
        child.fill(3).unwrap();
        child.map(Backing::Untouched).unwrap();
        assert_eq!(child.is_intact(3), Ok(false));
    }

    #[test]
    fn a_killed_child_is_an_error_and_not_a_hang() {
        let child = ScratchChild::start().unwrap();
        let pid = rustix::process::Pid::from_raw(child.pid().cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        assert_eq!(child.map(Backing::Untouched), Err(Errno::SRCH));
    }

    #[test]
    fn children_of_many_threads_do_not_hold_each_other() {
        std::thread::scope(|scope| {
            for seed in 0..4 {
                scope.spawn(move || {
                    let child = ScratchChild::start().unwrap();
                    child.map(Backing::BasePages).unwrap();
                    child.fill(seed).unwrap();
                    assert_eq!(child.is_intact(seed), Ok(true));
                });
            }
        });
    }
}

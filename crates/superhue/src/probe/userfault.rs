//! userfaultfd: receiving faults in user mode and in kernel mode, and moving pages.
//!
//! The trial of a fault: a thread touches a hole and waits; this thread fills the hole, and the
//! other must return with the bytes of the fill. Closing the descriptor wakes all threads that
//! still wait, so a trial that goes wrong ends with an answer too.

use std::fs::OpenOptions;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::thread::CapabilitySet;
use superhue_model::BASE_PAGE_SIZE;
use superhue_sys::scratch::Scratch;
use superhue_sys::seccomp::RiskyCall;
use superhue_sys::userfaultfd::{FEATURE_MOVE, FEATURES, Faults, Userfault};

use super::Probe;
use super::finding::{Finding, Trial, errno_of, symbol};
use super::surroundings::ProbeEnvironment;

pub(super) const USER: Probe = Probe {
    id: "uffd-user",
    name: "User-mode faults (userfaultfd)",
    how: "userfaultfd(UFFD_USER_MODE_ONLY); a thread touched a hole and waited, UFFDIO_COPY \
          filled it, the thread went on",
    used_for: "`uffd-move`: an access to a page on its way waits until it is back",
    run: user,
};

pub(super) const FULL: Probe = Probe {
    id: "uffd-full",
    name: "Kernel-mode faults (userfaultfd)",
    how: "/dev/userfaultfd, else userfaultfd(2); a system call touched a hole and waited, \
          UFFDIO_COPY filled it, the call succeeded",
    used_for: "placing memory by page color where the kernel itself works on it: programs with io_uring or vhost \
               (takes /dev/userfaultfd)",
    run: full,
};

pub(super) const MOVE: Probe = Probe {
    id: "uffd-move",
    name: "Move pages (UFFDIO_MOVE)",
    how: "moved one page of own memory into a hole, looked at the bytes at both ends",
    used_for: "giving pages of one's own memory frames of other colors (superhue::color)",
    run: move_page,
};

const SEED: u64 = 0x0fa1;
/// Attempts at a move before a busy page counts as a failure.
const ATTEMPTS: u32 = 5;
const DEVICE: &str = "/dev/userfaultfd";
const THE_DEVICE: &str =
    "read and write access to /dev/userfaultfd (root has it; Linux 6.1 or later)";

/// Longest time to wait for a fault that must come; spent only when it does not come.
const FAULT_TIMEOUT: Duration = Duration::from_secs(5);

fn user(around: &ProbeEnvironment) -> Trial {
    let (userfault, features) = open_user(around)?;
    let touch = |hole: &Scratch| {
        hole.peek();
        Ok(())
    };
    resolve(userfault, touch)?;
    let features = names(features);
    Ok(Finding::yes(format!(
        "a thread's fault was answered; features: {features}"
    )))
}

fn full(around: &ProbeEnvironment) -> Trial {
    let (userfault, refused) = match open_device() {
        Ok(userfault) => (userfault, None),
        Err(device) => {
            let device = format!("{DEVICE}: {device}");
            match open_by_call(around) {
                Ok(userfault) => (userfault, Some(device)),
                Err(call) => {
                    let rights = around.permit(CapabilitySet::SYS_PTRACE, RiskyCall::Userfaultfd);
                    return Ok(Finding::no(format!("{call}; {device}")).remedy(format!(
                        "{THE_DEVICE}; for userfaultfd(2) alone: sysctl \
                         vm.unprivileged_userfaultfd=1 as root, or {rights}"
                    )));
                }
            }
        }
    };
    handshake(&userfault)?;
    let (_reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
        .map_err(|errno| Finding::not_tried("no pipe", errno))?;
    resolve(userfault, |hole| hole.peek_by_kernel(&writer))?;
    let answered = "a fault inside a system call was answered";
    Ok(match refused {
        None => Finding::yes(format!("by {DEVICE}: {answered}")),
        Some(device) => {
            Finding::partial(format!("by userfaultfd(2): {answered}; {device}")).remedy(THE_DEVICE)
        }
    })
}

/// Opens a userfaultfd by the system call; the error is the reason, as a clause.
fn open_by_call(around: &ProbeEnvironment) -> Result<Userfault, String> {
    around
        .survive(RiskyCall::Userfaultfd)
        .map_err(|finding| finding.found)?;
    Userfault::open(Faults::All).map_err(|errno| format!("userfaultfd(2): {}", symbol(errno)))
}

/// Opens a userfaultfd for user-mode faults, which needs no privilege, and returns the features that it lists.
fn open_user(around: &ProbeEnvironment) -> Result<(Userfault, u64), Finding> {
    around.survive(RiskyCall::Userfaultfd)?;
    let userfault = Userfault::open(Faults::User).map_err(|errno| {
        let finding = failed("userfaultfd(2)", errno);
        match errno {
            // The call needs no capability, so only a filter can refuse it.
            Errno::PERM | Errno::ACCESS => {
                finding.remedy(around.permit(CapabilitySet::empty(), RiskyCall::Userfaultfd))
            }
            Errno::INVAL => finding.remedy("Linux 5.11 or later"),
            Errno::NOSYS => finding.remedy("a kernel with CONFIG_USERFAULTFD=y"),
            _ => finding,
        }
    })?;
    let features = handshake(&userfault)?;
    Ok((userfault, features))
}

fn handshake(userfault: &Userfault) -> Result<u64, Finding> {
    userfault
        .handshake()
        .map_err(|errno| failed("UFFDIO_API", errno))
}

fn open_device() -> Result<Userfault, String> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open(DEVICE)
        .map_err(|error| symbol(errno_of(&error)))?;
    Userfault::open_by_device(device, Faults::All).map_err(symbol)
}

fn move_page(around: &ProbeEnvironment) -> Trial {
    let (userfault, features) = open_user(around)?;
    if features & FEATURE_MOVE == 0 {
        return Ok(
            Finding::no("the kernel does not list UFFD_FEATURE_MOVE").remedy("Linux 6.8 or later")
        );
    }
    let hole = page().map_err(Finding::no_scratch)?;
    let mut source = page().map_err(Finding::no_scratch)?;
    source.fill(SEED);
    userfault
        .register_missing(&hole)
        .map_err(|errno| failed("UFFDIO_REGISTER", errno))?;
    let mut moved = userfault.move_pages(&hole, &mut source);
    for _ in 1..ATTEMPTS {
        match moved {
            // The page is locked or being migrated at the moment.
            Err(Errno::AGAIN | Errno::BUSY) => moved = userfault.move_pages(&hole, &mut source),
            _ => break,
        }
    }
    // Unregisters: the kernel must fill holes again, or a look at one would wait for ever.
    drop(userfault);
    Ok(match moved {
        Err(errno) => failed("listed, but refused", errno),
        Ok(()) if hole.is_intact(SEED) && source.is_zero() => {
            Finding::yes("a page was moved, bytes intact, a hole left behind")
        }
        Ok(()) => Finding::no("the move lost bytes: do not use this kernel"),
    })
}

fn page() -> Result<Scratch, Errno> {
    Scratch::untouched(BASE_PAGE_SIZE as usize)
}

/// Makes a thread `touch` a hole, and fills it when the fault is reported.
fn resolve(
    userfault: Userfault,
    touch: impl Fn(&Scratch) -> Result<(), Errno> + Sync,
) -> Result<(), Finding> {
    let hole = page().map_err(Finding::no_scratch)?;
    let mut source = page().map_err(Finding::no_scratch)?;
    source.fill(SEED);
    userfault
        .register_missing(&hole)
        .map_err(|errno| failed("UFFDIO_REGISTER", errno))?;
    let touched = thread::scope(|scope| {
        let toucher = thread::Builder::new()
            .spawn_scoped(scope, || touch(&hole))
            .map_err(|error| Finding::not_tried("no thread", errno_of(&error)))?;
        let answered = answer(&userfault, &hole, &source, || toucher.is_finished());
        // Wakes the thread if the fault was not answered; it then sees a page of zeros.
        drop(userfault);
        let touched = toucher.join();
        answered.map(|()| touched)
    })?;
    match touched {
        Ok(Ok(())) if hole.is_intact(SEED) => Ok(()),
        Ok(Ok(())) => Err(Finding::no("the hole was filled with something else")),
        Ok(Err(errno)) => Err(failed("the touch", errno)),
        Err(_) => Err(Finding::unknown(
            "the thread that touched the hole panicked",
        )),
    }
}

/// Waits for the fault on `hole` and fills it.
fn answer(
    userfault: &Userfault,
    hole: &Scratch,
    source: &Scratch,
    finished: impl Fn() -> bool,
) -> Result<(), Finding> {
    let deadline = Instant::now() + FAULT_TIMEOUT;
    let pause = Timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    while Instant::now() < deadline {
        // Read before polling: the event that a finished thread has caused is there by now.
        let over = finished();
        match poll(&mut [PollFd::new(userfault, PollFlags::IN)], Some(&pause)) {
            Ok(0) if over => return Err(Finding::no("the hole was touched without a fault")),
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(failed("poll", errno)),
        }
        match userfault
            .next_fault()
            .map_err(|errno| failed("read", errno))?
        {
            Some(at) if at == hole.range().start => {
                return userfault
                    .copy(hole, source)
                    .map_err(|errno| failed("UFFDIO_COPY", errno));
            }
            Some(_) => return Err(Finding::no("a fault was reported for another page")),
            None => {}
        }
    }
    Err(Finding::no("no fault was reported"))
}

fn failed(step: &str, errno: Errno) -> Finding {
    Finding::no(format!("{step}: {}", symbol(errno)))
}

/// Returns the names of the features; a feature without a name is given by its bit.
fn names(features: u64) -> String {
    let named = |bit: usize| {
        FEATURES
            .get(bit)
            .map_or_else(|| format!("bit {bit}"), |name| (*name).to_owned())
    };
    let set: Vec<String> = (0..64)
        .filter(|bit| features >> bit & 1 == 1)
        .map(|bit| named(bit as usize))
        .collect();
    if set.is_empty() {
        "none".to_owned()
    } else {
        set.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a userfaultfd for [`resolve`]; `None`, and reports a skipped test, where the machine has none.
    fn opened() -> Option<Userfault> {
        match Userfault::open(Faults::User) {
            Ok(userfault) => {
                userfault.handshake().unwrap();
                Some(userfault)
            }
            Err(errno) => {
                superhue_testing::skip("uffd-user", &errno.to_string());
                None
            }
        }
    }

    #[test]
    fn a_fault_that_does_not_come_ends_the_trial() {
        let Some(userfault) = opened() else { return };
        let untouched = resolve(userfault, |_| Ok(()));
        assert_eq!(
            untouched.unwrap_err().found,
            "the hole was touched without a fault"
        );
    }

    #[test]
    fn a_kernel_fault_is_not_reported_to_one_for_user_mode() {
        let Some(userfault) = opened() else { return };
        let (_reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        let refused = std::sync::Mutex::new(None);
        let answered = resolve(userfault, |hole| {
            *refused.lock().unwrap() = Some(hole.peek_by_kernel(&writer));
            Ok(())
        });
        assert!(answered.is_err());
        assert_eq!(*refused.lock().unwrap(), Some(Err(Errno::FAULT)));
    }

    #[test]
    fn features_are_named_and_future_ones_numbered() {
        assert_eq!(names(0), "none");
        assert_eq!(names((1 << 15) | (1 << 16)), "WP_ASYNC MOVE");
        assert_eq!(names(1 << 40), "bit 40");
    }
}

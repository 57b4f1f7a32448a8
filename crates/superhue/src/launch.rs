//! Start of a command in the state in which its caller would have started it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use superhue_sys::process::{SignalSet, close_raw, is_ignored, is_open, is_secure, set_ignored};
use superhue_sys::thp::{ThpSwitch, set_thp_switch, thp_switch};

use crate::colors::KernelPolicy;
use crate::dropped::dropped_variables;

/// `SIGPIPE`, the one disposition that Rust's runtime changes at start.
const SIGPIPE: i32 = 13;

/// `SIGCHLD`, which Superhue must not ignore: the kernel would keep the ends of children from it.
const SIGCHLD: i32 = 17;

/// State that the caller gave this process and that a command must get too, noted before Rust's runtime changed it (see the command's `main`).
#[derive(Debug, Clone, Copy, Default)]
pub struct InheritedState {
    /// `SIGPIPE` was ignored.
    pub sigpipe_ignored: bool,
    /// `SIGCHLD` was ignored.
    pub sigchld_ignored: bool,
    /// True for each of the descriptors 0, 1 and 2 that was closed.
    pub closed: [bool; 3],
    /// The signals that were blocked; `None` if not noted.
    pub blocked: Option<SignalSet>,
}

impl InheritedState {
    /// Notes the present state. Meaningful only before Rust's runtime has started.
    #[must_use]
    pub fn now() -> Self {
        Self {
            sigpipe_ignored: is_ignored(SIGPIPE),
            sigchld_ignored: is_ignored(SIGCHLD),
            closed: [0, 1, 2].map(|fd| !is_open(fd)),
            blocked: Some(SignalSet::blocked_now()),
        }
    }

    /// Lets this process wait for children although its caller ignored `SIGCHLD`.
    pub fn expect_children(&self) {
        if self.sigchld_ignored {
            set_ignored(SIGCHLD, false);
        }
    }
}

/// Reason why a command was not started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// There is no such program.
    #[error("cannot run `{name}`: {source}; check the name and PATH")]
    NotFound {
        /// Requested name.
        name: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The program exists, but cannot be executed.
    #[error("cannot run `{name}`: {source}; is it a program, and may you execute it?")]
    NotExecutable {
        /// Requested name.
        name: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// No process could be made for it.
    #[error(
        "cannot start a process for `{name}`: {source}; see `ulimit -u` and the cgroup's pids.max"
    )]
    Fork {
        /// Requested name.
        name: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel took back the page colors that it had just allowed.
    #[error(
        "cannot give the command its page colors (PR_PAGE_COLOR): {0}; they or their control group have just been \
         changed: superhue status shows them"
    )]
    Colors(Errno),
    /// The huge page switch could not be set.
    #[error(
        "cannot set the huge page switch of the process (PR_SET_THP_DISABLE): {0}; --pages auto works without it"
    )]
    Switch(Errno),
}

/// Parameters of the start of a command.
#[derive(Debug)]
pub(crate) struct Launch<'a> {
    pub(crate) command: &'a [OsString],
    /// Variables that are added to its environment.
    pub(crate) environment: &'a [(OsString, OsString)],
    pub(crate) switch: ThpSwitch,
    /// Page colors that the kernel should give it.
    pub(crate) colors: Option<&'a KernelPolicy>,
    pub(crate) preserved: InheritedState,
    /// The signals that were blocked before Superhue blocked its own; used if `preserved` has none.
    pub(crate) signals: SignalSet,
    /// File that receives standard output and error in place of Superhue's own.
    pub(crate) output: Option<&'a File>,
    /// The `cgroup.procs` of the control group that it starts in, open for writing.
    pub(crate) group: Option<&'a File>,
}

impl Launch<'_> {
    pub(crate) fn start(&self) -> Result<Child, LaunchError> {
        let (name, arguments) =
            self.command
                .split_first()
                .ok_or_else(|| LaunchError::NotFound {
                    name: String::new(),
                    source: io::ErrorKind::NotFound.into(),
                })?;
        let mut command = Command::new(name);
        command.args(arguments);
        command.envs(dropped_variables());
        let own = self.environment.iter();
        command.envs(own.map(|(name, value)| (name, value)));
        if let Some(output) = self.output {
            for set in [Command::stdout, Command::stderr] {
                let copy = output
                    .try_clone()
                    .map_err(|source| fork_error(name, source))?;
                set(&mut command, Stdio::from(copy));
            }
        }
        let preserved = self.preserved;
        let signals = preserved.blocked.unwrap_or(self.signals);
        let redirected = self.output.is_some();
        let colors = self.colors.cloned();
        let group = self.group.map(File::as_raw_fd);
        let stack = cut_stack();
        let restore = move || {
            if let Some(group) = group {
                enter(group)?;
            }
            if let Some(stack) = stack {
                // A program with less stack than wanted still runs.
                let _ = setrlimit(Resource::Stack, stack);
            }
            set_ignored(SIGPIPE, preserved.sigpipe_ignored);
            if preserved.sigchld_ignored {
                set_ignored(SIGCHLD, true);
            }
            for (fd, closed) in (0..).zip(preserved.closed) {
                if closed && !(redirected && fd > 0) {
                    // SAFETY: the process is about to execute another program.
                    unsafe { close_raw(fd) };
                }
            }
            signals.apply();
            // Last: from here on the child's allocations are the command's.
            match &colors {
                Some(colors) => colors.apply().map_err(io::Error::from),
                None => Ok(()),
            }
        };
        // SAFETY: `restore` makes async-signal-safe system calls only and allocates nothing.
        unsafe { command.pre_exec(restore) };

        // The switch is inherited across fork and exec, so it is set here for a moment.
        let before = thp_switch();
        if self.switch != ThpSwitch::System {
            set_thp_switch(self.switch).map_err(LaunchError::Switch)?;
        }
        let started = command.spawn();
        if self.switch != ThpSwitch::System {
            let _ = set_thp_switch(before.unwrap_or(ThpSwitch::System));
        }
        started.map_err(|source| {
            // The child reports no more than an error number.
            let refused = self.colors.and_then(|colors| colors.allowed().err());
            match refused {
                Some(errno) if Errno::from_io_error(&source) == Some(errno) => {
                    LaunchError::Colors(errno)
                }
                _ => launch_error(name, source),
            }
        })
    }
}

/// Returns the limits on the stack that the command should have, if the kernel cut that of Superhue because of capabilities of its file. The caller's limit is
/// taken for that of its parent.
fn cut_stack() -> Option<Rlimit> {
    if !is_secure() {
        return None;
    }
    let own = getrlimit(Resource::Stack);
    // It cuts larger limits to this one, `_STK_LIM`, and leaves smaller ones alone.
    if own.current != Some(8 << 20) {
        return None;
    }
    let parent = rustix::process::getppid()?.as_raw_nonzero();
    let text = fs::read_to_string(format!("/proc/{parent}/limits")).ok()?;
    let wanted = stack_in(&text)?;
    let is_more = match (wanted, own.current) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(wanted), Some(current)) => wanted > current,
    };
    let current = match (wanted, own.maximum) {
        (Some(wanted), Some(maximum)) => Some(wanted.min(maximum)),
        (wanted, maximum) => wanted.or(maximum),
    };
    is_more.then_some(Rlimit {
        current,
        maximum: own.maximum,
    })
}

/// Returns the soft limit on the stack in a `/proc/PID/limits`: `Some(None)` for none.
fn stack_in(text: &str) -> Option<Option<u64>> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Max stack size"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    }
}

/// Descriptors that the caller of Superhue passed on. The command has them; while Superhue holds them too, a reader gets no end of file and a lock is not
/// released when the command closes its own.
#[derive(Debug)]
pub struct PassedDescriptors(Vec<RawFd>);

impl PassedDescriptors {
    /// Notes the descriptors that are open now, from number 3 on. Meaningful only before Superhue has opened any.
    #[must_use]
    pub fn now() -> Self {
        let open = fs::read_dir("/proc/self/fd")
            .into_iter()
            .flatten()
            .flatten();
        let numbers = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut passed: Vec<RawFd> = numbers.filter(|fd| *fd > 2).collect();
        // The descriptor of the folder itself is closed by now.
        passed.retain(|fd| is_open(*fd));
        Self(passed)
    }

    /// Closes them, and replaces standard input, and standard output unless Superhue itself writes to it, by `/dev/null`. Standard error stays, for
    /// Superhue's own report.
    pub fn release(self, writes_to_stdout: bool) {
        for fd in self.0 {
            // SAFETY: they were open before Superhue opened anything, so no part of it uses them.
            unsafe { close_raw(fd) };
        }
        let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") else {
            return;
        };
        let _ = rustix::stdio::dup2_stdin(&nothing);
        if !writes_to_stdout {
            let _ = rustix::stdio::dup2_stdout(&nothing);
        }
    }
}

/// Moves this process into the control group whose `cgroup.procs` is `group`: 0 stands for the writing process ("cgroup-v2.rst").
fn enter(group: RawFd) -> io::Result<()> {
    // SAFETY: the launching process keeps the descriptor open until the child has executed.
    let group = unsafe { BorrowedFd::borrow_raw(group) };
    rustix::io::write(group, b"0")?;
    Ok(())
}

/// Returns a command for `sh -c` with the blocked signals of Superhue's caller: otherwise the child would never get the signals that Superhue blocks
/// for itself.
pub(crate) fn shell(command: &str, signals: SignalSet) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]);
    let restore = move || {
        signals.apply();
        Ok(())
    };
    // SAFETY: `apply` is one async-signal-safe call and allocates nothing.
    unsafe { shell.pre_exec(restore) };
    shell
}

fn fork_error(name: &OsStr, source: io::Error) -> LaunchError {
    LaunchError::Fork {
        name: name.to_string_lossy().into_owned(),
        source,
    }
}

fn launch_error(name: &OsStr, source: io::Error) -> LaunchError {
    let text = name.to_string_lossy().into_owned();
    match Errno::from_io_error(&source) {
        Some(Errno::NOENT | Errno::NOTDIR) => LaunchError::NotFound { name: text, source },
        Some(Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE) => fork_error(name, source),
        _ => LaunchError::NotExecutable { name: text, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_on_the_stack_is_read() {
        let line =
            "Max stack size            67108864             unlimited            bytes     \n";
        assert_eq!(stack_in(line), Some(Some(64 << 20)));
        let line = "Max cpu time  1 2 s\nMax stack size  unlimited  unlimited  bytes\n";
        assert_eq!(stack_in(line), Some(None));
        assert_eq!(stack_in("Max cpu time  1 2 s\n"), None);
        assert_eq!(stack_in("Max stack size  much"), None);
    }
}

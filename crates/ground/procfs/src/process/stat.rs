//! `/proc/PID/stat`: one line about a process, which every user may read.
//!
//! Format: `proc_pid_stat(5)`, `do_task_stat` in `fs/proc/array.c`. The second field is the command
//! name in parentheses, unescaped: it may hold spaces, parentheses and newlines. Only numbers follow
//! it, so it ends at the *last* closing parenthesis.

use std::path::Path;

use crate::{ReadError, Roots};

use super::fast::CpuTicks;
use super::file::{malformed, read_small};
use super::text::{self, ParseError};

/// `PF_KTHREAD` of `include/linux/sched.h`.
const PF_KTHREAD: u64 = 0x0020_0000;

/// Size above the longest `stat`: a name of 64 bytes and 51 numbers of at most 20 digits.
const STAT_BUFFER: usize = 2048;

/// Contents of `/proc/PID/stat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcStat {
    /// Process id.
    pub pid: u32,
    /// Command name, safe to print; longer than 15 characters for some kernel threads only.
    pub comm: String,
    /// State of the main thread: `R`, `S`, `D`, `T`, `t`, `Z`, `X`, `I`.
    pub state: char,
    /// Process id of the parent; 0 for none, or one outside of the PID namespace.
    pub parent: u32,
    /// Process group; `None` while the process exits.
    pub process_group: Option<u32>,
    /// Session; `None` while the process exits.
    pub session: Option<u32>,
    /// Device number of the controlling terminal, if there is one.
    pub tty: Option<u32>,
    /// `PF_*` flags of `include/linux/sched.h`.
    pub flags: u64,
    /// Page faults served without I/O, since the start.
    pub min_faults: u64,
    /// Page faults that waited for I/O, since the start.
    pub maj_faults: u64,
    /// Time in user mode in clock ticks (`sysconf(_SC_CLK_TCK)` a second).
    pub user_ticks: u64,
    /// Time in the kernel in clock ticks.
    pub system_ticks: u64,
    /// Time of children that have ended and were waited for, and of theirs.
    pub ended_children: CpuTicks,
    /// Number of threads; 0 while the process exits.
    pub threads: u32,
    /// Start time in clock ticks after boot.
    pub start_ticks: u64,
    /// CPU on which the first thread ran last; `None` if the line ends before this field.
    pub processor: Option<u32>,
    /// Scheduling policy, `SCHED_*` of `include/uapi/linux/sched.h`; `None` if the line ends before this field.
    pub policy: Option<u32>,
}

impl ProcStat {
    /// Returns true for a kernel thread, which has no memory of its own.
    #[must_use]
    pub const fn is_kernel_thread(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }

    /// Returns true if the main thread has exited and its parent has not waited for it.
    #[must_use]
    pub const fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }

    /// Returns true if no thread of the process runs any more: a main thread may exit before the other threads.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.is_zombie() && self.threads <= 1
    }
}

/// Reads `/proc/PID/stat`.
///
/// # Errors
/// [`ReadError::Vanished`] when there is no such process; [`ReadError::Malformed`] when the line is
/// not as documented.
pub fn stat(roots: &Roots, pid: u32) -> Result<ProcStat, ReadError> {
    read_stat(pid, &roots.of_process(pid, "stat"))
}

/// Reads `/proc/PID/task/TID/stat`: the same fields for one thread.
///
/// # Errors
/// As for [`stat`].
pub(super) fn stat_of_thread(roots: &Roots, pid: u32, tid: u32) -> Result<ProcStat, ReadError> {
    read_stat(pid, &roots.of_process(pid, &format!("task/{tid}/stat")))
}

fn read_stat(pid: u32, path: &Path) -> Result<ProcStat, ReadError> {
    let mut buffer = [0; STAT_BUFFER];
    let text = read_small(pid, path, &mut buffer)?;
    parse_stat(text).map_err(|error| malformed(path, error))
}

/// Parses the text of `/proc/PID/stat`.
///
/// # Errors
/// Names the first field that is missing or not a number in range.
pub fn parse_stat(text: &[u8]) -> Result<ProcStat, ParseError> {
    let fail = |what| ParseError::new(1, what);
    let open = text
        .iter()
        .position(|&byte| byte == b'(')
        .ok_or(fail("no `(` before the command name"))?;
    let close = text
        .iter()
        .rposition(|&byte| byte == b')')
        .filter(|&close| close > open)
        .ok_or(fail("no `)` after the command name"))?;
    let pid = narrow(text[..open].trim_ascii()).ok_or(fail("the PID is not a number"))?;
    let comm = text::shown(&text[open + 1..close]);
    let mut fields = Fields {
        rest: text[close + 1..].trim_ascii(),
    };

    let state = match fields.next("state is missing")? {
        &[letter] if letter.is_ascii_alphabetic() => char::from(letter),
        _ => return Err(fail("state is not a letter")),
    };
    let parent = narrow(fields.next("ppid is missing")?).ok_or(fail("ppid is not a number"))?;
    let process_group = fields.signed("pgrp is not a number")?;
    let session = fields.signed("session is not a number")?;
    let tty = fields
        .signed("tty_nr is not a number")?
        .filter(|&tty| tty != 0);
    fields.next("tpgid is missing")?;
    let flags = fields.number("flags is not a number")?;
    let min_faults = fields.number("minflt is not a number")?;
    fields.next("cminflt is missing")?;
    let maj_faults = fields.number("majflt is not a number")?;
    fields.next("cmajflt is missing")?;
    let user_ticks = fields.number("utime is not a number")?;
    let system_ticks = fields.number("stime is not a number")?;
    let ended_children = CpuTicks {
        user_ticks: fields.number("cutime is not a number")?,
        system_ticks: fields.number("cstime is not a number")?,
    };
    for what in ["priority is missing", "nice is missing"] {
        fields.next(what)?;
    }
    let threads = narrow(fields.next("num_threads is missing")?)
        .ok_or(fail("num_threads is not a number"))?;
    fields.next("itrealvalue is missing")?;
    let start_ticks = fields.number("starttime is not a number")?;
    // Fields from vsize to `exit_signal`.
    const BETWEEN: usize = 16;
    let processor = (0..BETWEEN)
        .try_for_each(|_| fields.next("").map(drop))
        .and_then(|()| fields.next(""));
    let processor = processor.ok().and_then(narrow);
    // Field after `rt_priority`.
    let policy = fields.next("").and_then(|_| fields.next(""));
    let policy = policy.ok().and_then(narrow);

    Ok(ProcStat {
        pid,
        comm,
        state,
        parent,
        process_group,
        session,
        tty,
        flags,
        min_faults,
        maj_faults,
        user_ticks,
        system_ticks,
        ended_children,
        threads,
        start_ticks,
        processor,
        policy,
    })
}

/// Reader of the numbers behind the command name.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn next(&mut self, what: &'static str) -> Result<&'a [u8], ParseError> {
        text::next_field(&mut self.rest).ok_or(ParseError::new(1, what))
    }

    fn number(&mut self, what: &'static str) -> Result<u64, ParseError> {
        text::decimal(self.next(what)?).ok_or(ParseError::new(1, what))
    }

    /// Reads a field that the kernel prints with a sign; `None` for -1, its value while the process exits.
    fn signed(&mut self, what: &'static str) -> Result<Option<u32>, ParseError> {
        let field = self.next(what)?;
        if let Some(digits) = field.strip_prefix(b"-") {
            return text::decimal(digits)
                .map(|_| None)
                .ok_or(ParseError::new(1, what));
        }
        narrow(field).map(Some).ok_or(ParseError::new(1, what))
    }
}

fn narrow(text: &[u8]) -> Option<u32> {
    text::decimal(text)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BEHIND: &str = " S 1 200 100 34816 200 4194560 10 20 3 4 50 60 7 8 20 0 9 0 123456 1 2\n";

    fn with_comm(comm: &[u8]) -> Vec<u8> {
        [b"42 (", comm, b")", BEHIND.as_bytes()].concat()
    }

    #[test]
    fn fields_are_where_the_manual_says() {
        let stat = parse_stat(&with_comm(b"init")).unwrap();
        assert_eq!(
            stat,
            ProcStat {
                pid: 42,
                comm: "init".into(),
                state: 'S',
                parent: 1,
                process_group: Some(200),
                session: Some(100),
                tty: Some(34816),
                flags: 4_194_560,
                min_faults: 10,
                maj_faults: 3,
                user_ticks: 50,
                system_ticks: 60,
                ended_children: CpuTicks {
                    user_ticks: 7,
                    system_ticks: 8,
                },
                threads: 9,
                start_ticks: 123_456,
                processor: None,
                policy: None,
            }
        );
        assert!(!stat.is_kernel_thread());
        assert!(!stat.is_zombie());
    }

    #[test]
    fn a_name_cannot_pass_itself_off_as_fields() {
        for comm in [
            &b"a) R 1 (b"[..],
            b"))))",
            b"((((",
            b"",
            b" ",
            b"a\nb",
            b"1 (2) Z 3",
        ] {
            let stat = parse_stat(&with_comm(comm)).unwrap();
            assert_eq!(stat.comm, text::shown(comm));
            assert_eq!((stat.parent, stat.state), (1, 'S'));
        }
    }

    #[test]
    fn a_process_being_taken_apart_has_no_group() {
        let stat = parse_stat(
            b"7 (x) X 0 -1 -1 0 -1 4228108 0 0 0 0 0 0 0 0 0 0 0 0 99 0 0 18446744073709551615\n",
        )
        .unwrap();
        assert_eq!(
            (stat.process_group, stat.session, stat.tty),
            (None, None, None)
        );
        assert!(stat.is_zombie());
    }

    #[test]
    fn what_is_cut_short_is_named() {
        let what = |text: &[u8]| parse_stat(text).unwrap_err().what;
        assert_eq!(what(b""), "no `(` before the command name");
        assert_eq!(what(b"1 (a"), "no `)` after the command name");
        assert_eq!(what(b"1 )a("), "no `)` after the command name");
        assert_eq!(what(b"x (a) S"), "the PID is not a number");
        assert_eq!(what(b"1 (a) S"), "ppid is missing");
        assert_eq!(what(b"1 (a) SS 1"), "state is not a letter");
        assert_eq!(
            what(b"1 (a) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0"),
            "starttime is not a number"
        );
    }

    proptest! {
        #[test]
        fn any_name_leaves_the_fields_alone(comm: Vec<u8>) {
            let stat = parse_stat(&with_comm(&comm)).unwrap();
            prop_assert_eq!(stat.start_ticks, 123_456);
            prop_assert_eq!(stat.comm, text::shown(&comm));
        }

        #[test]
        fn nonsense_never_panics(text: Vec<u8>) {
            let _ = parse_stat(&text);
        }
    }
}

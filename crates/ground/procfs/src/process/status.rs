//! `/proc/PID/status`: sizes and credentials of a process in readable form, one `Key: value` per line.
//!
//! Format: `proc_pid_status(5)`, `fs/proc/array.c` and `task_mem` in `fs/proc/task_mmu.c`. The
//! lines depend on the kernel's version and configuration and on the process (kernel
//! threads and zombies have none about memory), so nearly every field is an [`Option`].

use superhue_model::ByteCount;

use crate::hardware::CpuList;
use crate::{ReadError, Roots};

use super::file::{for_each_line, malformed};
use super::text::{self, ParseError};

/// Contents of `/proc/PID/status`. Sizes are in bytes.
///
/// Resident sizes come from counters that each CPU keeps for itself and adds up now and then, so
/// they lag behind the page tables by up to a few hundred KiB (`proc_pid_status(5)`).
/// [`memory_use`](super::memory_use) is exact, and expensive.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProcStatus {
    /// Command name as the kernel shows it (newline and backslash escaped), safe to print.
    pub name: String,
    /// Real user.
    pub uid: u32,
    /// Effective user.
    pub euid: u32,
    /// Virtual memory of every kind (`VmSize`).
    pub virtual_size: Option<ByteCount>,
    /// Resident memory of every kind (`VmRSS`).
    pub rss: Option<ByteCount>,
    /// Maximum of `rss` so far (`VmHWM`).
    pub peak_rss: Option<ByteCount>,
    /// Resident anonymous memory (`RssAnon`, Linux 4.5).
    pub rss_anon: Option<ByteCount>,
    /// Resident file pages (`RssFile`, Linux 4.5).
    pub rss_file: Option<ByteCount>,
    /// Resident shared memory (`RssShmem`, Linux 4.5).
    pub rss_shmem: Option<ByteCount>,
    /// Page tables (`VmPTE`).
    pub page_tables: Option<ByteCount>,
    /// Swapped out anonymous memory (`VmSwap`).
    pub swap: Option<ByteCount>,
    /// Pages of hugetlbfs, which are not part of `rss` (`HugetlbPages`, Linux 4.4).
    pub hugetlb: Option<ByteCount>,
    /// Pinned memory (`VmPin`): buffers of I/O.
    pub pinned: Option<ByteCount>,
    /// Number of threads.
    pub threads: Option<u32>,
    /// Number of PID namespaces in which it has a number, from that of `/proc` inwards (`NSpid`, Linux 4.1).
    pub pid_namespaces: Option<usize>,
    /// True if the process may have huge pages at all (`THP_enabled`, Linux 5.0): `PR_SET_THP_DISABLE` has not
    /// switched them off.
    pub thp_enabled: Option<bool>,
    /// Seccomp mode: 0 off, 1 strict, 2 filter (`Seccomp`).
    pub seccomp: Option<u8>,
    /// NUMA nodes from which the first thread may allocate memory (`Mems_allowed_list`, with `CONFIG_CPUSETS`).
    pub nodes_allowed: Option<CpuList>,
}

/// Reads `/proc/PID/status`.
///
/// # Errors
/// [`ReadError::Vanished`] when there is no such process; [`ReadError::Malformed`] when a known line
/// holds something else than documented.
pub fn status(roots: &Roots, pid: u32) -> Result<ProcStatus, ReadError> {
    let path = roots.of_process(pid, "status");
    let mut parser = Parser::default();
    for_each_line(pid, &path, |number, line| parser.line(number, line))?;
    parser.finish().map_err(|error| malformed(&path, error))
}

/// Parses the text of `/proc/PID/status`.
///
/// # Errors
/// Names a line whose value is not as documented, or reports that `Name` or `Uid` is missing.
pub fn parse_status(text: &[u8]) -> Result<ProcStatus, ParseError> {
    let mut parser = Parser::default();
    for (number, line) in text::lines(text) {
        parser.line(number, line)?;
    }
    parser.finish()
}

#[derive(Default)]
struct Parser {
    status: ProcStatus,
    has_name: bool,
    has_uid: bool,
    lines: usize,
}

impl Parser {
    fn line(&mut self, number: usize, line: &[u8]) -> Result<(), ParseError> {
        self.lines = number;
        let fail = |what| ParseError::new(number, what);
        // Skip lines that are not `Key: value`, and unknown keys: newer kernels add some.
        let Some((key, value)) = text::key_value(line) else {
            return Ok(());
        };
        let status = &mut self.status;
        let size = match key {
            b"VmSize" => &mut status.virtual_size,
            b"VmRSS" => &mut status.rss,
            b"VmHWM" => &mut status.peak_rss,
            b"RssAnon" => &mut status.rss_anon,
            b"RssFile" => &mut status.rss_file,
            b"RssShmem" => &mut status.rss_shmem,
            b"VmPTE" => &mut status.page_tables,
            b"VmSwap" => &mut status.swap,
            b"VmPin" => &mut status.pinned,
            b"HugetlbPages" => &mut status.hugetlb,
            b"Name" => {
                status.name = text::shown(value);
                self.has_name = true;
                return Ok(());
            }
            b"Uid" => {
                (status.uid, status.euid) =
                    uids(value).ok_or(fail("Uid is not a list of numbers"))?;
                self.has_uid = true;
                return Ok(());
            }
            b"Threads" => {
                status.threads = Some(narrow(value).ok_or(fail("Threads is not a number"))?);
                return Ok(());
            }
            b"NSpid" => {
                let numbers = value.split(u8::is_ascii_whitespace);
                status.pid_namespaces = Some(numbers.filter(|it| !it.is_empty()).count());
                return Ok(());
            }
            b"THP_enabled" => {
                status.thp_enabled = match value {
                    b"0" => Some(false),
                    b"1" => Some(true),
                    _ => return Err(fail("THP_enabled is neither 0 nor 1")),
                };
                return Ok(());
            }
            b"Seccomp" => {
                status.seccomp = Some(narrow(value).ok_or(fail("Seccomp is not a number"))?);
                return Ok(());
            }
            b"Mems_allowed_list" => {
                let nodes = str::from_utf8(value).ok().map(CpuList::parse);
                let nodes = nodes.and_then(Result::ok);
                status.nodes_allowed =
                    Some(nodes.ok_or(fail("Mems_allowed_list is not a list of numbers"))?);
                return Ok(());
            }
            _ => return Ok(()),
        };
        *size = Some(text::kib(value).ok_or(fail("a size is not a number of kB"))?);
        Ok(())
    }

    fn finish(self) -> Result<ProcStatus, ParseError> {
        let end = self.lines + 1;
        if !self.has_name {
            return Err(ParseError::new(end, "it ended without `Name`"));
        }
        if !self.has_uid {
            return Err(ParseError::new(end, "it ended without `Uid`"));
        }
        Ok(self.status)
    }
}

/// Parses real and effective user from `real effective saved filesystem`.
fn uids(value: &[u8]) -> Option<(u32, u32)> {
    let mut fields = value
        .split(u8::is_ascii_whitespace)
        .filter(|field| !field.is_empty());
    Some((narrow(fields.next()?)?, narrow(fields.next()?)?))
}

fn narrow<T: TryFrom<u64>>(text: &[u8]) -> Option<T> {
    text::decimal(text)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_kernel_without_a_line_says_nothing_about_it() {
        let status = parse_status(b"Name:\tkthreadd\nUid:\t0\t1\t2\t3\nThreads:\t1\n").unwrap();
        assert_eq!(
            status,
            ProcStatus {
                name: "kthreadd".into(),
                euid: 1,
                threads: Some(1),
                ..ProcStatus::default()
            }
        );
    }

    #[test]
    fn nodes_are_a_list() {
        let text = b"Name:\tx\nUid:\t5\t5\t5\t5\nMems_allowed:\t5\nMems_allowed_list:\t0,2\n";
        let nodes = parse_status(text).unwrap().nodes_allowed;
        assert_eq!(nodes, Some([0, 2].into_iter().collect()));
    }

    #[test]
    fn a_name_may_hold_colons() {
        let status = parse_status(b"Name:\tVmRSS:\t9 kB\nUid:\t5\t5\t5\t5\n").unwrap();
        assert_eq!((status.name.as_str(), status.rss), ("VmRSS:\\t9 kB", None));
    }

    #[test]
    fn wrong_values_are_named() {
        let head = "Name:\tx\nUid:\t0\t0\t0\t0\n";
        for (line, what) in [
            ("VmRSS:\t12", "a size is not a number of kB"),
            ("THP_enabled:\t2", "THP_enabled is neither 0 nor 1"),
            ("Seccomp:\t256", "Seccomp is not a number"),
            ("Threads:\t-1", "Threads is not a number"),
            (
                "Mems_allowed_list:\t1-0",
                "Mems_allowed_list is not a list of numbers",
            ),
        ] {
            let error = parse_status(format!("{head}{line}\n").as_bytes()).unwrap_err();
            assert_eq!(error, ParseError::new(3, what));
        }
        assert_eq!(
            parse_status(b"Uid:\t0\t0\t0\t0\n").unwrap_err().what,
            "it ended without `Name`"
        );
    }

    proptest! {
        #[test]
        fn nonsense_never_panics(text: Vec<u8>) {
            let _ = parse_status(&text);
        }
    }
}

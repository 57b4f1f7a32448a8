//! Setting a program free whose agent stands still.
//!
//! While memory is armed, threads that touch a hole wait for the agent's thread. If somebody stops that thread alone
//! (a debugger does), they would wait for ever. So Superhue looks at it now and then; when it does not move although it
//! should, the descriptor of its userfaultfd is fetched (`pidfd_getfd(2)`, of a thread since Linux 6.9) and every mapping taken out
//! of its hands, which wakes who waits.

use std::fs;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use superhue_model::{VirtAddr, VirtRange};
use superhue_sys::userfaultfd::Userfault;

/// `PIDFD_THREAD` of `linux/pidfd.h`: the number is a thread's, with its own descriptors.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(0o200);

/// Whether thread `thread` of process `pid` was stopped while the process as a whole was not: stopped by signal, all of
/// its threads stand still together, and go on together.
pub(crate) fn is_held(pid: u32, thread: u32) -> bool {
    let state = |thread: u32| -> Option<char> {
        let stat = fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")).ok()?;
        // The name before it may hold anything.
        stat.rsplit_once(") ")?.1.chars().next()
    };
    state(thread) == Some('t')
}

/// Takes all memory of `pid` out of the hands of its thread `thread`; how many mappings.
pub(crate) fn set_free(pid: u32, thread: u32) -> Result<usize, Errno> {
    let mappings = mappings_of(pid);
    let mut freed = 0;
    for fault in userfaults_of(pid, thread)? {
        let ranges = mappings.iter();
        freed += ranges
            .filter(|range| fault.unregister(**range).is_ok())
            .count();
    }
    Ok(freed)
}

/// Copies of the userfaultfds that the thread has open.
fn userfaults_of(pid: u32, thread: u32) -> Result<Vec<Userfault>, Errno> {
    let number = i32::try_from(thread).ok().and_then(Pid::from_raw);
    let handle = pidfd_open(number.ok_or(Errno::SRCH)?, PIDFD_THREAD)?;
    let folder = format!("/proc/{pid}/task/{thread}/fd");
    let entries = fs::read_dir(folder).map_err(|error| errno(&error))?;
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        let number = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        if let Some(number) = number
            && target.to_string_lossy().contains("[userfaultfd]")
        {
            let copy: OwnedFd = pidfd_getfd(&handle, number, PidfdGetfdFlags::empty())?;
            found.push(Userfault::from(copy));
        }
    }
    Ok(found)
}

fn mappings_of(pid: u32) -> Vec<VirtRange> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let range = |line: &str| {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok().map(VirtAddr);
        VirtRange::new(address(start)?, address(end)?)
    };
    maps.lines().filter_map(range).collect()
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

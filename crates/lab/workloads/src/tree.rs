//! `tree`: a tree of processes made by `fork` alone, each with memory of its own and its parent's.
//!
//! ```text
//!   --children 2 --depth 2:        root
//!                                 /    \
//!                               .        .        7 processes
//!                              / \      / \
//! ```
//!
//! A watcher must find all of them. At its end, every process checks that its own memory and the memory that it shares
//! copy-on-write with its parent still hold the values written: a `fork` in the middle of a move could lose a page.

use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitOptions};
use superhue_model::ByteCount;

use crate::memory::{Mapping, ensure_available};
use crate::random::mix;
use crate::{Report, UsageError, args};

/// Upper limit of processes in one tree.
const MOST_PROCESSES: u64 = 1000;

/// Options of `tree`.
#[derive(Debug, Clone, clap::Args)]
pub struct TreeOptions {
    /// Children of each process
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub children: u32,
    /// Generations below the first process
    #[arg(long, value_name = "D", default_value_t = 2)]
    pub depth: u32,
    /// Time for which the tree stands
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = args::seconds)]
    pub seconds: Duration,
    /// Memory of each process
    #[arg(long, value_name = "SIZE", default_value = "8M", value_parser = args::size)]
    pub size: ByteCount,
}

/// Grows the tree and waits for all its processes.
///
/// Prints `processes` (including the first) and `failed` (subtrees of the first process in which memory was wrong or a
/// process failed).
///
/// # Errors
/// If the tree would have more than 1000 processes, the kernel refuses memory or a process, a process found wrong memory, or
/// the output is closed.
///
/// Must be called while the process has one thread.
pub fn run(options: &TreeOptions, report: &mut Report<impl Write>) -> Result<()> {
    let processes = count(options.children, options.depth).ok_or_else(|| {
        UsageError(format!(
            "--children {} --depth {}: more than {MOST_PROCESSES} processes",
            options.children, options.depth
        ))
    })?;
    ensure_available(ByteCount(options.size.0.saturating_mul(processes)))?;
    let deadline = Instant::now() + options.seconds;
    let failed = grow(options, options.depth, 1, None, deadline)?;
    report.line("processes", processes)?;
    report.line("failed", failed)?;
    if failed > 0 {
        bail!("{failed} subtrees failed");
    }
    Ok(())
}

/// Number of processes in the tree, or `None` if it is above the limit.
fn count(children: u32, depth: u32) -> Option<u64> {
    let (mut generation, mut sum) = (1_u64, 1_u64);
    for _ in 0..depth {
        generation *= u64::from(children);
        sum += generation;
        if sum > MOST_PROCESSES {
            return None;
        }
        if generation == 0 {
            break;
        }
    }
    Some(sum)
}

/// Runs one process: fills its memory, forks its children, waits, checks, collects.
///
/// `id` names it within the tree, `parent` is its parent's memory and id. Returns the number of its children that
/// failed.
fn grow(
    options: &TreeOptions,
    depth: u32,
    id: u64,
    parent: Option<(&Mapping, u64)>,
    deadline: Instant,
) -> Result<u64> {
    let mapping = Mapping::new(options.size)?;
    stamp(&mapping, id);
    let mut children = Vec::new();
    if depth > 0 {
        for nth in 0..options.children {
            let child_id = mix(id) ^ u64::from(nth + 1);
            match fork().context("cannot fork")? {
                Some(child) => children.push(child),
                None => {
                    let result = grow(options, depth - 1, child_id, Some((&mapping, id)), deadline);
                    std::process::exit(i32::from(!matches!(result, Ok(0))));
                }
            }
        }
    }
    thread::sleep(deadline.saturating_duration_since(Instant::now()));
    let intact = is_intact(&mapping, id) && parent.is_none_or(|(m, id)| is_intact(m, id));
    let mut failed = 0;
    for child in children {
        let status = rustix::io::retry_on_intr(|| {
            rustix::process::waitpid(Some(child), WaitOptions::empty())
        })
        .context("cannot wait for a child")?;
        let well = status.is_some_and(|(_, status)| status.exit_status() == Some(0));
        failed += u64::from(!well);
    }
    if !intact {
        bail!("memory of a process in the tree was not what it had written");
    }
    Ok(failed)
}

/// Marks every page of the mapping with the number of process `id`.
pub(crate) fn stamp(mapping: &Mapping, id: u64) {
    for (number, page) in (0..).zip(mapping.pages()) {
        for word in page.iter().step_by(64) {
            word.store(mix(id ^ number), Relaxed);
        }
    }
}

fn is_intact(mapping: &Mapping, id: u64) -> bool {
    (0..).zip(mapping.pages()).all(|(number, page)| {
        page.iter()
            .step_by(64)
            .all(|word| word.load(Relaxed) == mix(id ^ number))
    })
}

/// Forks; `None` in the child, which dies with its parent.
pub(crate) fn fork() -> Result<Option<Pid>> {
    // SAFETY: the process has a single thread (`run` requires it), so the child's copy of every lock and of the
    // allocator is in the state in which this thread left it.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    let child = Pid::from_raw(pid);
    if child.is_none() {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    }
    Ok(child)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_counted_and_bounded() {
        assert_eq!(count(2, 2), Some(7));
        assert_eq!(count(0, 5), Some(1));
        assert_eq!(count(9, 0), Some(1));
        assert_eq!(count(1, 999), Some(1000));
        assert_eq!(count(1, 1000), None);
        assert_eq!(count(u32::MAX, 1), None);
        assert_eq!(count(u32::MAX, u32::MAX), None);
        assert_eq!(count(0, u32::MAX), Some(1));
    }

    #[test]
    fn a_lost_page_is_noticed() {
        let mapping = Mapping::new(ByteCount(2 << 20)).unwrap();
        stamp(&mapping, 1);
        assert!(is_intact(&mapping, 1));
        assert!(!is_intact(&mapping, 2));
        let words = mapping.words();
        words[300 * 512 + 64].store(0, Relaxed);
        assert!(!is_intact(&mapping, 1));
    }
}

//! `prefork`: one process fills memory, and processes forked from it read it, as in servers with workers.
//!
//! After the fork only the requested writers write, so the memory exists once, with any number of processes that map
//! it. A policy that copies it to make huge pages shows in `pss_bytes`, the sum of the family's memory (`Pss`: each
//! page's share).

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitOptions};
use superhue_model::ByteCount;

use crate::memory::{Mapping, ensure_available};
use crate::random::mix;
use crate::tree::{fork, stamp};
use crate::{Report, args, procfs};

/// Time between two sums over the family.
const EVERY: Duration = Duration::from_millis(250);

/// Options of `prefork`.
#[derive(Debug, Clone, clap::Args)]
pub struct PreforkOptions {
    /// Memory filled before the forks
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = args::size)]
    pub size: ByteCount,
    /// Processes that only read it
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub readers: u16,
    /// Processes that write a page of it now and then (100 a second)
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=256))]
    pub writers: u16,
    /// Processes that execute another program, which fills 16 MiB of its own
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=256))]
    pub executors: u16,
    /// Time for which they do so
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = args::seconds)]
    pub seconds: Duration,
}

/// Fills the memory, forks, and sums up the family's memory until all processes have ended.
///
/// Prints `processes`, `filled_bytes` (the sum right after the forks), `pss_bytes` (the largest sum at any time later)
/// and `failed` (children that read a wrong value, or ended before the parent ended them).
///
/// # Errors
/// If the kernel refuses memory or a process, a child failed, or the output is closed.
///
/// Must be called while the process has one thread.
pub fn run(options: &PreforkOptions, report: &mut Report<impl Write>) -> Result<()> {
    ensure_available(options.size)?;
    let mapping = Mapping::new(options.size)?;
    stamp(&mapping, 0);
    let deadline = Instant::now() + options.seconds;
    let mut children = Vec::new();
    for number in 0..options.readers + options.writers + options.executors {
        match fork().context("cannot fork")? {
            Some(child) => children.push(child),
            None => {
                if number < options.readers {
                    read(&mapping);
                } else if number < options.readers + options.writers {
                    write(&mapping, u64::from(number));
                } else {
                    execute();
                }
                std::process::exit(1);
            }
        }
    }
    let filled = family(&children)?;
    let mut most = filled;
    // All children live until the parent ends them: the sharers of a page must not change during a sum over the family.
    while Instant::now() < deadline {
        thread::sleep(EVERY);
        most = most.max(family(&children)?);
    }
    let failed = children.iter().filter(|child| !lived(**child)).count();
    report.line("processes", 1 + children.len())?;
    report.line("filled_bytes", filled.0)?;
    report.line("pss_bytes", most.0)?;
    report.line("failed", failed)?;
    if failed > 0 {
        bail!("{failed} children failed");
    }
    Ok(())
}

/// Memory of this process and its children.
fn family(children: &[Pid]) -> Result<ByteCount> {
    let mut sum = procfs::pss("self")?;
    for child in children {
        sum += procfs::pss(&child.as_raw_nonzero().to_string())?;
    }
    Ok(sum)
}

/// Ends a child. Returns true if it was alive until then.
fn lived(child: Pid) -> bool {
    let _ = rustix::process::kill_process(child, Signal::TERM);
    let status =
        rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(child), WaitOptions::empty()));
    let term = Signal::TERM.as_raw();
    matches!(status, Ok(Some((_, status))) if status.terminating_signal() == Some(term))
}

/// Reads all of the memory over and over, as long as every page has its value.
fn read(mapping: &Mapping) {
    let is_right = |(number, page): (u64, &[AtomicU64])| page[0].load(Relaxed) == mix(number);
    while (0..).zip(mapping.pages()).all(is_right) {
        // Sleeps, so that many readers do not each keep a CPU busy.
        thread::sleep(Duration::from_millis(5));
    }
}

/// Executes another program, which has memory of its own.
fn execute() {
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    let mut command = Command::new(program);
    command.args(["hold", "--size", "16M", "--seconds", "3600"]);
    // `exec` only returns if it fails.
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).exec();
}

/// Writes a random page every 10 ms.
fn write(mapping: &Mapping, seed: u64) -> ! {
    let pages = mapping.size().whole_pages().0.max(1);
    let mut at = seed;
    loop {
        at = mix(at);
        let page = usize::try_from(at % pages).unwrap_or(0) * 512;
        mapping.words()[page + 1].store(at, Relaxed);
        thread::sleep(Duration::from_millis(10));
    }
}

//! `prefork`: memory filled by one process and read by others that are forked from it, as servers with workers do.
//!
//! Nothing is written after the fork but by the writers asked for, so the memory is there once, however many processes map it. Who
//! copies it for the sake of superpages shows in `pss_bytes`, the sum of what the family uses (`Pss`: each page's share).

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

/// How often the family is summed up.
const EVERY: Duration = Duration::from_millis(250);

/// Options of `prefork`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
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
    /// How long they do so
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = args::seconds)]
    pub seconds: Duration,
}

/// Fills, forks, and sums up what the family uses until all have ended.
///
/// Prints `processes`, `filled_bytes` (the sum right after the forks), `pss_bytes` (the most at any time later) and `failed`
/// (children that read what was not written, or ended before they were told to).
///
/// # Errors
/// When memory or a process cannot be had, a child failed, or the output is closed.
///
/// Must be called while the process has one thread.
pub fn run(options: &Options, report: &mut Report<impl Write>) -> Result<()> {
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
    // All are there until they are told to end: what a page is shared by must not change while the family is summed up.
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

/// What this process and its children use.
fn family(children: &[Pid]) -> Result<ByteCount> {
    let mut sum = procfs::pss("self")?;
    for child in children {
        sum += procfs::pss(&child.as_raw_nonzero().to_string())?;
    }
    Ok(sum)
}

/// Ends a child; whether it was there until then.
fn lived(child: Pid) -> bool {
    let _ = rustix::process::kill_process(child, Signal::TERM);
    let status =
        rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(child), WaitOptions::empty()));
    let term = Signal::TERM.as_raw();
    matches!(status, Ok(Some((_, status))) if status.terminating_signal() == Some(term))
}

/// Reads all of it over and over, for as long as it is what was written.
fn read(mapping: &Mapping) {
    let is_right = |(number, page): (u64, &[AtomicU64])| page[0].load(Relaxed) == mix(number);
    while (0..).zip(mapping.pages()).all(is_right) {
        // Not to keep a CPU busy for each of many.
        thread::sleep(Duration::from_millis(5));
    }
}

/// Becomes another program, which has memory of its own.
fn execute() {
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    let mut command = Command::new(program);
    command.args(["hold", "--size", "16M", "--seconds", "3600"]);
    // Only returns if that fails.
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).exec();
}

/// Writes a page at random every 10 ms.
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

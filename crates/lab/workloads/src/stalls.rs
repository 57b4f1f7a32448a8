//! `stalls`: memory that is renewed part by part, and the time for which page faults meanwhile are held up.
//!
//! ```text
//!   memory   |part|part|part|part|part|part|     the oldest part is unmapped, and a new one is filled
//!             ^ next
//!   probe    map, touch, unmap;  100 us;  map, touch, unmap;  100 us; ...
//! ```
//!
//! A huge page that is made of base pages while the program runs holds `mmap_lock`. Then the program can neither map memory nor fault it in. The
//! probe does both, in a thread of its own, and measures for how long it was *held up*: the time on the clock, without that on a CPU (thread CPU
//! time) and without that spent waiting for one (`run_delay`, the second field of `/proc/thread-self/schedstat`; `Documentation/scheduler/
//! sched-stats.rst` in the kernel). So a busy machine adds only to the time for which others hold the lock. A probe that lost the CPU while it read
//! the clocks does not count.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use superhue_model::{ByteCount, HUGE_PAGE_SIZE};
use superhue_sys::process::thread_cpu_time;

use crate::memory::{Mapping, ensure_available, touch};
use crate::{Report, args};

/// Time between two probes.
const PAUSE: Duration = Duration::from_micros(100);

/// Length of time over which delays are added up: that of `superhue run --max-stall`.
const WINDOW: Duration = Duration::from_millis(100);

/// Delays below this are of the clocks, which are read one after the other.
const LEAST: Duration = Duration::from_micros(20);

/// Options of `stalls`.
#[derive(Debug, Clone, clap::Args)]
pub struct StallOptions {
    /// Memory in use at a time
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = args::size)]
    pub size: ByteCount,
    /// Part of it that is renewed at a time
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = args::size)]
    pub part: ByteCount,
    /// Time between two renewals
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = args::time)]
    pub every: Duration,
    /// Time to run after the memory was filled for the first time
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = args::seconds)]
    pub seconds: Duration,
}

/// Renews the memory, and probes, for the given time.
///
/// Prints `parts`; `probes`; `longest_ms`, of one probe; `largest_window_ms`, the largest sum of delays in any 100 ms; `windows`, of 100 ms one
/// after the other, and of those `window_ms_p99`, `window_ms_p999` and `windows_over_10ms`; and `held_up_share`, of all the time. The first fill
/// is left out.
///
/// # Errors
/// If there is not enough memory, a part is larger than all, the kernel keeps no scheduler statistics, or the output is closed.
pub fn run(options: &StallOptions, report: &mut Report<impl Write>) -> Result<()> {
    if options.part > options.size {
        bail!(
            "a part of {} is more than all {}",
            options.part,
            options.size
        );
    }
    ensure_available(options.size)?;
    let count = options.size.0 / options.part.0;
    let filled = || -> Result<Mapping> {
        let part = Mapping::new(options.part)?;
        part.fill();
        Ok(part)
    };
    let mut parts = (0..count)
        .map(|_| filled())
        .collect::<Result<VecDeque<Mapping>>>()?;

    let stop = AtomicBool::new(false);
    let start = Instant::now();
    let (renewed, delays) = thread::scope(|scope| -> Result<(u64, Delays)> {
        let prober = scope.spawn(|| probe(start, &stop));
        let mut renewed = 0_u64;
        let renewal = loop {
            let left = options.seconds.saturating_sub(start.elapsed());
            if left.is_zero() || prober.is_finished() {
                break Ok(());
            }
            thread::sleep(left.min(options.every));
            drop(parts.pop_front());
            match filled() {
                Ok(part) => parts.push_back(part),
                Err(error) => break Err(error),
            }
            renewed += 1;
        };
        stop.store(true, Relaxed);
        let delays = prober.join().map_err(|_| anyhow!("the probe panicked"))??;
        renewal.map(|()| (renewed, delays))
    })?;

    let mut windows = delays.windows;
    windows.sort_unstable();
    let millis = |time: Duration| time.as_secs_f64() * 1000.0;
    let at = |share: f64| {
        let last = windows.len().saturating_sub(1);
        let index = (last as f64 * share).round() as usize;
        windows.get(index).copied().map_or(f64::NAN, millis)
    };
    let total: Duration = windows.iter().sum();
    let bound = Duration::from_millis(10);
    report.line("parts", renewed)?;
    report.line("probes", delays.probes)?;
    report.number("longest_ms", millis(delays.longest))?;
    report.number("largest_window_ms", millis(delays.largest))?;
    report.line("windows", windows.len())?;
    report.number("window_ms_p99", at(0.99))?;
    report.number("window_ms_p999", at(0.999))?;
    let over = windows.iter().filter(|&&window| window > bound).count();
    report.line("windows_over_10ms", over)?;
    let all = delays.time.as_secs_f64();
    report.number("held_up_share", total.as_secs_f64() / all)?;
    Ok(())
}

/// Delays that the probe found.
#[derive(Debug, Default)]
struct Delays {
    probes: u64,
    longest: Duration,
    /// The largest sum in any [`WINDOW`].
    largest: Duration,
    /// Sums of the windows that follow each other from the start.
    windows: Vec<Duration>,
    time: Duration,
    /// Delays that ended in the last [`WINDOW`], each with its end, and their sum.
    recent: VecDeque<(Duration, Duration)>,
    sum: Duration,
}

impl Delays {
    /// Takes in a delay that ended at `end`.
    fn add(&mut self, end: Duration, delay: Duration) {
        self.probes += 1;
        self.longest = self.longest.max(delay);
        // A window cannot hold more than itself.
        let delay = delay.min(WINDOW);
        self.recent.push_back((end, delay));
        self.sum += delay;
        while let Some(&(ended, old)) = self.recent.front()
            && ended + WINDOW <= end
        {
            self.recent.pop_front();
            self.sum -= old;
        }
        self.largest = self.largest.max(self.sum);
        let number = (end.as_nanos() / WINDOW.as_nanos()) as usize;
        if self.windows.len() <= number {
            self.windows.resize(number + 1, Duration::ZERO);
        }
        if let Some(window) = self.windows.get_mut(number) {
            *window += delay;
        }
        self.time = end;
    }
}

/// Maps, touches and unmaps memory until `stop`.
fn probe(start: Instant, stop: &AtomicBool) -> Result<Delays> {
    let path = "/proc/thread-self/schedstat";
    let statistics = File::open(path)
        .with_context(|| format!("cannot read {path}: this kernel has no scheduler statistics"))?;
    let mut delays = Delays::default();
    while !stop.load(Relaxed) {
        thread::sleep(PAUSE);
        // A clock is valid if the thread did not wait for a CPU around its reading.
        let awaited = awaited_cpu(&statistics)?;
        let (begun, cpu) = (Instant::now(), thread_cpu_time());
        let waits = awaited_cpu(&statistics)?;
        let mapping = Mapping::new(ByteCount(HUGE_PAGE_SIZE))?;
        if let Some(page) = mapping.pages().next() {
            touch(page, 1);
        }
        drop(mapping);
        let waited = awaited_cpu(&statistics)?;
        let (took, used) = (begun.elapsed(), thread_cpu_time().saturating_sub(cpu));
        if awaited != waits || waited != awaited_cpu(&statistics)? {
            continue;
        }
        let delay = took.saturating_sub(used + waited.saturating_sub(waits));
        let delay = if delay < LEAST { Duration::ZERO } else { delay };
        delays.add(start.elapsed(), delay);
    }
    Ok(delays)
}

/// Returns the time for which this thread has waited for a CPU.
fn awaited_cpu(statistics: &File) -> Result<Duration> {
    let mut text = [0_u8; 96];
    let length = statistics.read_at(&mut text, 0)?;
    let text = String::from_utf8_lossy(&text[..length]);
    let waited = text
        .split_whitespace()
        .nth(1)
        .and_then(|word| word.parse().ok());
    Ok(Duration::from_nanos(
        waited.context("schedstat is not understood")?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_add_up_within_a_window() {
        let ms = Duration::from_millis;
        let mut delays = Delays::default();
        delays.add(ms(10), ms(4));
        delays.add(ms(90), ms(5));
        assert_eq!(delays.largest, ms(9));
        // 100 ms after the first one it counts no more; the second one does.
        delays.add(ms(110), ms(2));
        assert_eq!((delays.sum, delays.largest), (ms(7), ms(9)));
        delays.add(ms(150), ms(3));
        assert_eq!(delays.largest, ms(10));
        assert_eq!(delays.longest, ms(5));
        assert_eq!(delays.windows, [ms(9), ms(5)]);
    }
}

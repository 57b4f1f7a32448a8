//! The CPU time of a process, exactly, while it runs.
//!
//! `/proc` tells it to the last tick of the scheduler, some milliseconds, which is longer than most windows. The kernel's software
//! counter of each thread is exact at any moment. Where counters may not be used, or there are more threads than that
//! pays for, `/proc` has to do: windows of a process that does not run all the time are then blurred.

use std::fs;
use std::time::{Duration, Instant};

use superhue_procfs::Roots;
use superhue_procfs::process::cpu_now;
use superhue_sys::perf::{Counter, Event};

/// The most threads that are counted one by one; reading each interrupts it.
const THREADS: usize = 16;

/// A clock that goes while the process has a CPU.
#[derive(Debug)]
pub(super) enum Clock {
    /// One counter for each thread.
    Exact(Vec<Counter>),
    /// As many CPUs all the time as it had lately.
    Steady { begun: Instant, cpus: f64 },
}

impl Clock {
    /// Of the threads that `pid` has now.
    pub(super) fn of(roots: &Roots, pid: u32) -> Self {
        Self::exact(roots, pid).unwrap_or_else(|| Self::steady(roots, pid))
    }

    fn exact(roots: &Roots, pid: u32) -> Option<Self> {
        let threads = fs::read_dir(roots.of_process(pid, "task")).ok()?;
        let threads: Vec<u32> = threads
            .flatten()
            .filter_map(|thread| thread.file_name().to_str()?.parse().ok())
            .take(THREADS + 1)
            .collect();
        if threads.is_empty() || threads.len() > THREADS {
            return None;
        }
        let counters = threads
            .into_iter()
            .map(|thread| Counter::of_thread(thread, Event::TaskClock));
        // One that has ended meanwhile takes no more time.
        let counters: Vec<Counter> = counters
            .filter(|counter| !matches!(counter, Err(rustix::io::Errno::SRCH)))
            .collect::<Result<_, _>>()
            .ok()?;
        (!counters.is_empty()).then_some(Self::Exact(counters))
    }

    fn steady(roots: &Roots, pid: u32) -> Self {
        let cpu = || cpu_now(roots, pid).map_or(Duration::ZERO, |cpu| cpu.total());
        let (begun, before) = (Instant::now(), cpu());
        std::thread::sleep(Duration::from_millis(100));
        let used = cpu().saturating_sub(before).as_secs_f64();
        let cpus = used / begun.elapsed().as_secs_f64().max(1e-3);
        Self::Steady {
            begun: Instant::now(),
            cpus,
        }
    }

    /// CPU time since it was made; the zero point does not matter.
    pub(super) fn now(&self) -> Duration {
        match self {
            Self::Exact(counters) => {
                let counts = counters.iter().filter_map(|counter| counter.read().ok());
                Duration::from_nanos(counts.map(|reading| reading.count).sum())
            }
            Self::Steady { begun, cpus } => begun.elapsed().mul_f64(*cpus),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_while_this_process_works() {
        let clock = Clock::of(&Roots::default(), std::process::id());
        let (begun, before) = (Instant::now(), clock.now());
        while begun.elapsed() < Duration::from_millis(50) {
            std::hint::spin_loop();
        }
        match clock {
            Clock::Exact(_) => assert!(clock.now() > before),
            Clock::Steady { .. } => superhue_testing::skip("perf", "counters may not be used"),
        }
    }
}

//! The exact CPU time of a process while it runs, and its TLB misses, where the processor counts them.
//!
//! `/proc` gives the time in ticks of the scheduler, some milliseconds, which is longer than most windows. The kernel's software counter of each
//! thread is exact at any moment. Where the caller may not use counters, or the process has more than `THREADS` threads, this module uses `/proc`:
//! windows of a process that does not run all the time are then blurred.

use std::fs;
use std::time::{Duration, Instant};

use superhue_procfs::Roots;
use superhue_procfs::process::cpu_now;
use superhue_sys::perf::{Counter, Event, Reading};

/// The most threads that get a counter each; reading a counter interrupts its thread.
const THREADS: usize = 16;

/// A clock that runs while the process has a CPU.
#[derive(Debug)]
pub(super) enum Clock {
    /// One counter for each thread.
    Exact(Vec<Counter>),
    /// Assumes that the process continues to use the number of CPUs that it used in the last 100 ms.
    Steady { begun: Instant, cpus: f64 },
}

impl Clock {
    /// Returns a clock of the threads that `pid` has now.
    pub(super) fn of(roots: &Roots, pid: u32) -> Self {
        Self::exact(roots, pid).unwrap_or_else(|| Self::steady(roots, pid))
    }

    fn exact(roots: &Roots, pid: u32) -> Option<Self> {
        let counters = of_threads(roots, pid, Event::TaskClock)?;
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

/// Returns one counter of `event` for each thread that `pid` has now; `None` if there are too many threads, or the caller may not count them.
fn of_threads(roots: &Roots, pid: u32, event: Event) -> Option<Vec<Counter>> {
    let threads = fs::read_dir(roots.of_process(pid, "task")).ok()?;
    let threads: Vec<u32> = threads
        .flatten()
        .filter_map(|thread| thread.file_name().to_str()?.parse().ok())
        .take(THREADS + 1)
        .collect();
    if threads.len() > THREADS {
        return None;
    }
    let counters = threads
        .into_iter()
        .map(|thread| Counter::of_thread(thread, event));
    // A thread that has ended meanwhile is left out.
    counters
        .filter(|counter| !matches!(counter, Err(rustix::io::Errno::SRCH)))
        .collect::<Result<_, _>>()
        .ok()
}

/// Misses of the data TLB that the processor counts by itself.
///
/// Counts misses that cost a walk of the page tables: x86 defines `dTLB-load-misses` and `dTLB-store-misses` so (`arch/x86/events/intel/core.c`,
/// `arch/x86/events/amd/core.c`). On other architectures they may be misses of the first TLB alone, and are not used.
#[derive(Debug)]
pub(super) struct MissCounter {
    counters: Vec<Counter>,
    time: Clock,
    begun: Duration,
}

impl MissCounter {
    /// Returns counters of the threads that `pid` has now; `None` where nothing counts.
    pub(super) fn of(roots: &Roots, pid: u32) -> Option<Self> {
        if !cfg!(target_arch = "x86_64") {
            return None;
        }
        let mut counters = of_threads(roots, pid, Event::DtlbLoadMisses)?;
        counters.extend(of_threads(roots, pid, Event::DtlbStoreMisses).unwrap_or_default());
        let time = Clock::of(roots, pid);
        let begun = time.now();
        (!counters.is_empty()).then_some(Self {
            counters,
            time,
            begun,
        })
    }

    /// Returns misses per CPU second since the counters were made; `None` if they counted none, for there are counters that stay at 0.
    pub(super) fn per_second(&self) -> Option<f64> {
        let readings = self.counters.iter().filter_map(|one| one.read().ok());
        let cpu = self.time.now().saturating_sub(self.begun);
        per_second(readings, cpu)
    }
}

/// Returns events per second of `cpu` from the readings. A counter that shared its hardware is scaled up to the whole time.
fn per_second(readings: impl Iterator<Item = Reading>, cpu: Duration) -> Option<f64> {
    let whole = |one: Reading| {
        if one.running_ns == 0 {
            0.0
        } else {
            one.count as f64 * (one.enabled_ns as f64 / one.running_ns as f64).max(1.0)
        }
    };
    let per_second = readings.map(whole).sum::<f64>() / cpu.as_secs_f64();
    (per_second.is_finite() && per_second > 0.0).then_some(per_second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use superhue_testing::ChildGuard;

    /// Uses a program of one thread: threads of this process come and go with other tests.
    #[test]
    fn it_goes_while_the_process_works() {
        let mut spin = std::process::Command::new("sh");
        let working = ChildGuard::spawn(spin.args(["-c", "while :; do :; done"]));
        let clock = Clock::of(&Roots::default(), working.pid());
        if matches!(clock, Clock::Steady { .. }) {
            superhue_testing::skip("perf", "counters may not be used");
            return;
        }
        let (begun, before) = (Instant::now(), clock.now());
        while clock.now() <= before {
            let waited = begun.elapsed();
            assert!(waited < Duration::from_secs(30), "{before:?}: {clock:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn counters_that_shared_their_hardware_count_for_the_whole_time() {
        let reading = |count, enabled_ns, running_ns| Reading {
            count,
            enabled_ns,
            running_ns,
        };
        let second = Duration::from_secs(1);
        let of = |readings: &[Reading], cpu| per_second(readings.iter().copied(), cpu);
        assert_eq!(of(&[reading(50, 100, 100)], second), Some(50.0));
        assert_eq!(of(&[reading(50, 100, 25)], second * 2), Some(100.0));
        let two = [reading(50, 100, 100), reading(7, 100, 100)];
        assert_eq!(of(&two, second), Some(57.0));
        assert_eq!(of(&[reading(0, 100, 100)], second), None);
        assert_eq!(of(&[reading(50, 100, 0)], second), None);
        assert_eq!(of(&[reading(50, 100, 100)], Duration::ZERO), None);
        assert_eq!(of(&[], second), None);
    }

    #[test]
    fn misses_are_counted_or_not_told() {
        let Some(counter) = MissCounter::of(&Roots::default(), std::process::id()) else {
            superhue_testing::skip("pmu", "this (virtual) CPU has no counters of TLB misses");
            return;
        };
        let memory = vec![1_u8; 64 << 20];
        let sum: u64 = (0..200_000_usize)
            .map(|at| u64::from(memory[at * 40_009 % memory.len()]))
            .sum();
        assert_eq!(sum, 200_000);
        // Some counters open and stay at 0.
        assert!(counter.per_second().is_none_or(|misses| misses > 0.0));
    }
}

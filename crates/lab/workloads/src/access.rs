//! Random loads that mostly cost address translation.
//!
//! Both loops load 8-byte words at uniformly random places of a memory much larger than the last level cache and than
//! the second-level TLB can map with base pages (a few thousand entries, so 12 MiB or less). Nearly every load then
//! misses both, in these loops as in real programs. Page sizes differ in the walk: with base pages the page-table entry
//! itself comes from a table of 8 bytes per 4 KiB (4 MiB for 2 GiB, rarely in the near caches, and in a virtual machine
//! each level is translated again by the host's tables), with huge pages from a table of 4 KiB.
//!
//! - [`independent`]: the next address never depends on a loaded value, so the processor has some ten loads under way
//!   at once, as in a hash join or a gather. Throughput is limited by the number of walks and misses that can overlap.
//! - [`dependent`]: each address depends on the value loaded before, so there is one load at a time, as in a list or a
//!   tree. It shows the whole latency of walk plus miss.
//!
//! No line is loaded twice on purpose, no address is chosen to conflict, and the generator costs about 1 ns: the loops
//! are a typical case, not the worst one for base pages.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::random::{XorShift, scale};

/// Loads between two looks at the clock: tens of microseconds at least.
pub(crate) const BATCH: u64 = 16 * 1024;

/// Time of one slice of the measurement; the median slice is robust against a burst of other load.
pub const SLICE: Duration = Duration::from_millis(100);

/// Sums `count` words at independent random indexes.
pub fn independent(words: &[AtomicU64], rng: &mut XorShift, count: u64) -> u64 {
    let mut sum = 0_u64;
    for _ in 0..count {
        let index = scale(rng.next_u64(), words.len());
        if let Some(word) = words.get(index) {
            sum = sum.wrapping_add(word.load(Relaxed));
        }
    }
    sum
}

/// Loads `count` words one after the other, each at an index that depends on the word before.
pub fn dependent(words: &[AtomicU64], rng: &mut XorShift, count: u64) -> u64 {
    let mut previous = 0_u64;
    for _ in 0..count {
        let index = scale(rng.next_u64() ^ previous, words.len());
        previous = words.get(index).map_or(0, |word| word.load(Relaxed));
    }
    previous
}

/// Result of the loads of all threads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Throughput {
    /// Million loads per second, all threads together: the median over slices of [`SLICE`].
    pub mops: f64,
    /// Nanoseconds per load in one thread: the latency of dependent loads, the time between two independent ones.
    pub latency_ns: f64,
}

/// Runs `load(rng, count)` on each of `threads` threads for `time` and takes the median slice.
///
/// `load` performs `count` loads; its result only keeps the compiler from removing them.
///
/// # Errors
/// If `threads` is 0 or a thread panicked.
pub fn measure(
    threads: usize,
    time: Duration,
    load: impl Fn(&mut XorShift, u64) -> u64 + Sync,
) -> Result<Throughput> {
    let slices = (time.as_nanos() / SLICE.as_nanos()).max(1);
    let barrier = Barrier::new(threads);
    // Rates in loads per second: one vector per thread, one entry per slice.
    let rates: Vec<Vec<f64>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads as u64)
            .map(|seed| {
                let (load, barrier) = (&load, &barrier);
                scope.spawn(move || {
                    let mut rng = XorShift::new(seed);
                    barrier.wait();
                    (0..slices).map(|_| slice(&mut rng, load)).collect()
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().map_err(|_| anyhow!("a load thread panicked")))
            .collect::<Result<_>>()
    })?;
    let mut sums: Vec<f64> = (0..)
        .map_while(|slice| rates.iter().map(|thread| thread.get(slice)).sum())
        .take(rates.first().map_or(0, Vec::len))
        .collect();
    let rate = median(&mut sums).ok_or_else(|| anyhow!("no thread to measure with"))?;
    #[allow(clippy::cast_precision_loss, reason = "a handful of threads")]
    let latency_ns = threads as f64 * 1e9 / rate;
    Ok(Throughput {
        mops: rate / 1e6,
        latency_ns,
    })
}

/// Loads for one [`SLICE`]; returns loads per second.
fn slice(rng: &mut XorShift, load: impl Fn(&mut XorShift, u64) -> u64) -> f64 {
    let start = Instant::now();
    let mut batches = 0_u32;
    loop {
        std::hint::black_box(load(rng, BATCH));
        batches += 1;
        let elapsed = start.elapsed();
        if elapsed >= SLICE {
            #[allow(clippy::cast_precision_loss, reason = "BATCH is a small power of two")]
            return f64::from(batches) * BATCH as f64 / elapsed.as_secs_f64();
        }
    }
}

/// The middle value (mean of the two middle ones of an even number), `None` for an empty slice.
#[must_use]
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = *values.get((values.len() - 1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [3.0]), Some(3.0));
        assert_eq!(median(&mut [9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn loads_reach_all_of_the_memory() {
        let words: Vec<AtomicU64> = (0..64).map(|bit| AtomicU64::new(1 << bit)).collect();
        // Each word is a different bit: loading one at a time shows which words were reached.
        let reached = |load: fn(&[AtomicU64], &mut XorShift, u64) -> u64| {
            let mut rng = XorShift::new(7);
            (0..2000).fold(0, |seen, _| seen | load(&words, &mut rng, 1))
        };
        assert_eq!(reached(independent), u64::MAX);
        assert_eq!(reached(dependent), u64::MAX);
        let mut rng = XorShift::new(7);
        assert_eq!(independent(&[], &mut rng, 5), 0);
    }

    #[test]
    fn dependent_loads_follow_the_data() {
        // With other contents the same seed takes another path.
        let path = |salt: u64| {
            let words: Vec<_> = (0..1024_u64)
                .map(|i| AtomicU64::new(crate::random::mix(i ^ salt)))
                .collect();
            dependent(&words, &mut XorShift::new(1), 100) ^ salt
        };
        assert_ne!(path(0), path(1 << 40));
    }

    #[test]
    fn every_thread_takes_part() {
        let calls = AtomicUsize::new(0);
        let result = measure(3, Duration::ZERO, |rng, count| {
            calls.fetch_add(1, Relaxed);
            assert_eq!(count, BATCH);
            thread::sleep(Duration::from_millis(1));
            rng.next_u64()
        })
        .unwrap();
        assert!(calls.load(Relaxed) >= 3);
        assert!(result.mops > 0.0 && result.latency_ns > 0.0);
        assert!(measure(0, Duration::ZERO, |_, _| 0).is_err());
    }
}

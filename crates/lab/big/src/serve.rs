//! The measured processes: commands on standard input make them fill and touch memory.
//!
//! | line | answer |
//! |---|---|
//! | `fill BYTES THREADS SECONDS base\|huge` | `filled` bytes so far, `seconds` |
//! | `touch THREADS` | each page once: `seconds` |
//! | `stir THREADS plain\|timed free\|pinned` | begins to touch pages at random |
//! | `count` | `touches` since it began |
//! | `still` | ends it: `touches`, and where timed `pauses` |
//! | `collapse THREADS` | its own memory: `done`, `failed`, `seconds` |

use std::fs;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use hdrhistogram::Histogram;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use superhue::model::{BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE, Region};
use superhue::sys::collapse::own_collapse;
use superhue::sys::thp::{ThpSwitch, set_thp_switch, thp_switch};
use superhue_workloads::memory::{Mapping, WORDS_PER_PAGE, touch};
use superhue_workloads::random::{XorShift, scale};

/// Memory that a thread fills at a time.
const CHUNK: usize = 32 << 20;

/// Touches between two counts.
const BATCH: u64 = 256;

/// Quantiles of times, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Times {
    /// Number of times.
    pub count: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99 % of the times are at most this.
    pub p99_ns: u64,
    /// 99.9 % of the times are at most this.
    pub p999_ns: u64,
    /// Longest time.
    pub max_ns: u64,
    /// Number of times of at least a millisecond.
    pub over_1ms: u64,
}

/// Makes a histogram for times from 1 ns to 100 s, with a precision of 1 %.
pub fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 100_000_000_000, 2).map_err(|error| anyhow!("{error:?}"))
}

impl From<&Histogram<u64>> for Times {
    fn from(times: &Histogram<u64>) -> Self {
        if times.is_empty() {
            return Self::default();
        }
        Self {
            count: times.len(),
            p50_ns: times.value_at_quantile(0.5),
            p99_ns: times.value_at_quantile(0.99),
            p999_ns: times.value_at_quantile(0.999),
            max_ns: times.max(),
            over_1ms: times.count_between(1_000_000, u64::MAX),
        }
    }
}

/// Makes this process end with its parent, and makes it the OOM killer's first choice.
fn depend_on_parent() -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid().is_none_or(|parent| parent.as_raw_nonzero().get() == 1) {
        bail!("who started this is gone");
    }
    // A process may lack the permission for this, and the measurement does not need it.
    let _ = fs::write("/proc/self/oom_score_adj", "900");
    Ok(())
}

/// Fills memory and holds it for a time.
pub fn hold(size: ByteCount, time: Duration) -> Result<()> {
    depend_on_parent()?;
    let mapping = Mapping::new(size)?;
    let pages = usize::try_from(size.0 / BASE_PAGE_SIZE)?;
    (0..)
        .zip(mapping.pages().take(pages))
        .for_each(|(number, page)| touch(page, number));
    thread::sleep(time);
    Ok(())
}

/// Executes the commands on standard input, until its end.
pub fn serve(size: ByteCount) -> Result<()> {
    depend_on_parent()?;
    let mapping = Mapping::new(size)?;
    let range = mapping.range();
    answer(&json!({"start": range.start.0, "end": range.end.0}))?;
    thread::scope(|scope| {
        let mut memory = Memory {
            mapping: &mapping,
            filled: 0,
            step: BASE_PAGE_SIZE,
            stirring: None,
        };
        let served = memory.serve(scope);
        if let Some(stirring) = &memory.stirring {
            stirring.stop.store(true, Relaxed);
        }
        served
    })
}

fn answer(value: &Value) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{value}")?;
    Ok(out.flush()?)
}

struct Memory<'scope> {
    mapping: &'scope Mapping,
    filled: usize,
    /// Bytes that one page-table entry maps.
    step: u64,
    stirring: Option<ToucherThreads<'scope>>,
}

struct ToucherThreads<'scope> {
    stop: &'static AtomicBool,
    counts: &'static [PaddedCounter],
    threads: Vec<ScopedJoinHandle<'scope, Result<Option<Histogram<u64>>>>>,
}

/// Counter on its own cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct PaddedCounter(AtomicU64);

impl<'scope> Memory<'scope> {
    fn serve(&mut self, scope: &'scope Scope<'scope, '_>) -> Result<()> {
        for line in io::stdin().lines() {
            let line = line?;
            let words: Vec<&str> = line.split(' ').collect();
            let said = match *words.as_slice() {
                ["fill", bytes, threads, seconds, kind] => self.fill(
                    bytes.parse()?,
                    threads.parse()?,
                    Duration::from_secs_f64(seconds.parse()?),
                    kind == "huge",
                )?,
                ["touch", threads] => self.touch(threads.parse()?),
                ["stir", threads, how, place] => {
                    self.stir(scope, threads.parse()?, how == "timed", place == "pinned")
                }
                ["count"] => json!({"touches": self.touches()}),
                ["still"] => self.still()?,
                ["collapse", threads] => self.collapse(threads.parse()?),
                _ => bail!("there is no `{line}`"),
            };
            answer(&said)?;
        }
        Ok(())
    }

    /// Fills memory from the first unfilled byte upwards, with several threads, until `time` expires.
    fn fill(&mut self, bytes: usize, threads: usize, time: Duration, huge: bool) -> Result<Value> {
        let all = self.mapping.words();
        let end = bytes.min(all.len() * 8);
        let begun = Instant::now();
        let before = thp_switch().ok();
        if huge {
            self.step = HUGE_PAGE_SIZE;
            // Without any huge pages this measures base pages: the rows report how much memory is huge.
            let _ = self.mapping.advise_huge();
        } else {
            // A kernel may lack this switch: the rows report how much memory is huge.
            let _ = set_thp_switch(ThpSwitch::Never);
        }
        let next = AtomicUsize::new(self.filled);
        thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| {
                    while begun.elapsed() < time {
                        let start = next.fetch_add(CHUNK, Relaxed);
                        if start >= end {
                            break;
                        }
                        let words = all
                            .get(start / 8..(start + CHUNK).min(end) / 8)
                            .unwrap_or_default();
                        for (number, page) in (0..).zip(words.chunks_exact(WORDS_PER_PAGE)) {
                            touch(page, number);
                        }
                    }
                });
            }
        });
        self.filled = self.filled.max(next.into_inner().min(end));
        if let (false, Some(before)) = (huge, before) {
            let _ = set_thp_switch(before);
        }
        Ok(json!({"filled": self.filled, "seconds": begun.elapsed().as_secs_f64()}))
    }

    fn words(&self) -> &'scope [AtomicU64] {
        self.mapping
            .words()
            .get(..self.filled / 8)
            .unwrap_or_default()
    }

    /// Touches once the memory of each page-table entry.
    fn touch(&self, threads: usize) -> Value {
        let (words, step) = (
            self.words(),
            usize::try_from(self.step / 8).unwrap_or(WORDS_PER_PAGE),
        );
        let begun = Instant::now();
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| {
                    loop {
                        let start = next.fetch_add(CHUNK / 8, Relaxed);
                        let Some(part) = words
                            .get(start..(start + CHUNK / 8).min(words.len()))
                            .filter(|part| !part.is_empty())
                        else {
                            break;
                        };
                        for word in part.iter().step_by(step) {
                            word.store(word.load(Relaxed) | 1, Relaxed);
                        }
                    }
                });
            }
        });
        json!({"seconds": begun.elapsed().as_secs_f64()})
    }

    fn stir(
        &mut self,
        scope: &'scope Scope<'scope, '_>,
        threads: usize,
        timed: bool,
        pinned: bool,
    ) -> Value {
        // Leaks some bytes on each call; the process lives for some minutes.
        let stop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let counts: &'static [PaddedCounter] =
            Vec::leak((0..threads).map(|_| PaddedCounter::default()).collect());
        let (words, cpus) = (self.words(), allowed_cpus());
        let spawned = counts.iter().enumerate().map(|(number, count)| {
            let cpu = cpus
                .get(number % cpus.len().max(1))
                .copied()
                .filter(|_| pinned);
            scope.spawn(move || {
                if let Some(cpu) = cpu {
                    let _ = stay_on(cpu);
                }
                let mut random = XorShift::new(number as u64 + 1);
                if timed {
                    return timed_touches(words, &mut random, stop, &count.0).map(Some);
                }
                touches(words, &mut random, stop, &count.0);
                Ok(None)
            })
        });
        self.stirring = Some(ToucherThreads {
            stop,
            counts,
            threads: spawned.collect(),
        });
        json!({"threads": threads})
    }

    fn touches(&self) -> u64 {
        let counts = self.stirring.iter().flat_map(|stirring| stirring.counts);
        counts.map(|count| count.0.load(Relaxed)).sum()
    }

    fn still(&mut self) -> Result<Value> {
        let touches = self.touches();
        let Some(stirring) = self.stirring.take() else {
            bail!("nothing is touched")
        };
        stirring.stop.store(true, Relaxed);
        let mut pauses = histogram()?;
        for thread in stirring.threads {
            if let Some(own) = thread.join().map_err(|_| anyhow!("a thread panicked"))?? {
                pauses.add(&own).map_err(|error| anyhow!("{error:?}"))?;
            }
        }
        Ok(json!({"touches": touches, "pauses": Times::from(&pauses)}))
    }

    /// Collapses its own memory with several threads.
    fn collapse(&self, threads: usize) -> Value {
        let mut range = self.mapping.range();
        range.end.0 = range.start.0 + self.filled as u64;
        let regions: Vec<Region> = range.regions().collect();
        let (done, failed) = (AtomicU64::new(0), AtomicU64::new(0));
        let begun = Instant::now();
        thread::scope(|scope| {
            for part in regions.chunks(regions.len().div_ceil(threads.max(1)).max(1)) {
                let (done, failed) = (&done, &failed);
                scope.spawn(move || {
                    for region in part {
                        let counted = if own_collapse(*region).is_ok() {
                            done
                        } else {
                            failed
                        };
                        counted.fetch_add(1, Relaxed);
                    }
                });
            }
        });
        json!({"done": done.into_inner(), "failed": failed.into_inner(), "seconds": begun.elapsed().as_secs_f64()})
    }
}

/// Returns the processors that this thread may run on.
pub fn allowed_cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None);
    set.map_or_else(
        |_| vec![0],
        |set| {
            (0..rustix::thread::CpuSet::MAX_CPU)
                .filter(|cpu| set.is_set(*cpu))
                .collect()
        },
    )
}

/// Pins the calling thread to one processor. Processes and threads that it starts later inherit this.
pub fn stay_on(cpu: usize) -> Result<()> {
    stay_on_any(&[cpu])
}

/// Restricts the calling thread to these processors.
pub fn stay_on_any(cpus: &[usize]) -> Result<()> {
    let mut only = rustix::thread::CpuSet::new();
    cpus.iter().for_each(|cpu| only.set(*cpu));
    rustix::thread::sched_setaffinity(None, &only)
        .with_context(|| format!("cannot stay on CPUs {cpus:?}"))
}

fn one_touch(words: &[AtomicU64], random: &mut XorShift) {
    let page = scale(random.next_u64(), words.len() / WORDS_PER_PAGE);
    if let Some(word) = words.get(page * WORDS_PER_PAGE) {
        word.store(word.load(Relaxed) | 1, Relaxed);
    }
}

fn touches(words: &[AtomicU64], random: &mut XorShift, stop: &AtomicBool, count: &AtomicU64) {
    while !stop.load(Relaxed) {
        for _ in 0..BATCH {
            one_touch(words, random);
        }
        count.fetch_add(BATCH, Relaxed);
    }
}

/// Touches pages and records the time from one touch to the next.
fn timed_touches(
    words: &[AtomicU64],
    random: &mut XorShift,
    stop: &AtomicBool,
    count: &AtomicU64,
) -> Result<Histogram<u64>> {
    let mut pauses = histogram()?;
    let mut before = Instant::now();
    while !stop.load(Relaxed) {
        one_touch(words, random);
        let now = Instant::now();
        let pause = u64::try_from((now - before).as_nanos()).unwrap_or(u64::MAX);
        pauses.saturating_record(pause.max(1));
        before = now;
        count.fetch_add(1, Relaxed);
    }
    Ok(pauses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_by_quantiles() {
        assert_eq!(Times::from(&histogram().unwrap()).count, 0);
        let mut times = histogram().unwrap();
        for _ in 0..998 {
            times.record(100).unwrap();
        }
        times.record(2_000_000).unwrap();
        times.record(9_000_000).unwrap();
        let told = Times::from(&times);
        assert_eq!(
            (told.count, told.p50_ns, told.p99_ns, told.over_1ms),
            (1000, 100, 100, 2)
        );
        assert!((8_900_000..9_100_000).contains(&told.max_ns));
    }

    #[test]
    fn memory_is_filled_by_several_and_touched() {
        let mapping = Mapping::new(ByteCount(96 << 20)).unwrap();
        thread::scope(|scope| {
            let mut memory = Memory {
                mapping: &mapping,
                filled: 0,
                step: BASE_PAGE_SIZE,
                stirring: None,
            };
            let filled = memory
                .fill(40 << 20, 3, Duration::from_secs(60), false)
                .unwrap();
            assert_eq!(filled["filled"], 40 << 20);
            assert!(
                memory
                    .words()
                    .chunks_exact(WORDS_PER_PAGE)
                    .all(|page| page[0].load(Relaxed) != 0)
            );
            assert_eq!(
                memory
                    .fill(90 << 20, 2, Duration::from_secs(60), true)
                    .unwrap()["filled"],
                90 << 20
            );
            // The process does not fill more than its mapping.
            assert_eq!(
                memory
                    .fill(200 << 20, 2, Duration::from_secs(60), false)
                    .unwrap()["filled"],
                96 << 20
            );
            assert!(memory.touch(2)["seconds"].as_f64().unwrap() > 0.0);
            memory.stir(scope, 2, true, false);
            while memory.touches() < 100 {
                thread::yield_now();
            }
            let still = memory.still().unwrap();
            assert!(still["pauses"]["count"].as_u64().unwrap() >= 100, "{still}");
            assert!(memory.still().is_err());
        });
    }
}

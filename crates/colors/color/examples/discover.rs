//! Finds the colors of fresh pages again and again, and reports how well: one JSON object on standard output.
//!
//! ```text
//! discover [--runs N] [--pool MIB] [--busy CPU] [--cpu CPU]
//! ```
//!
//! With `--busy`, every other run has a thread on that CPU that only burns time. Each run is printed; there is no
//! median.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, Timespec, clock_gettime};
use serde_json::{Value, json};
use superhue_color::Page;
use superhue_color::oracles::{HardwareProbe, Palette, Search};
use superhue_model::Color;

const PAGE: usize = 4096;

/// Pages of the held-out test.
const SAMPLE: usize = 2_000;

struct DiscoverOptions {
    runs: usize,
    pool: usize,
    busy: Option<usize>,
    cpu: usize,
}

fn options() -> Result<DiscoverOptions, Box<dyn Error>> {
    let mut options = DiscoverOptions {
        runs: 20,
        pool: 32,
        busy: None,
        cpu: 1,
    };
    let mut words = std::env::args().skip(1);
    while let Some(name) = words.next() {
        let value = words.next().ok_or("every option takes a number")?.parse()?;
        match name.as_str() {
            "--runs" => options.runs = value,
            "--pool" => options.pool = value,
            "--busy" => options.busy = Some(value),
            "--cpu" => options.cpu = value,
            _ => return Err(format!("there is no option {name}").into()),
        }
    }
    Ok(options)
}

fn stay_on(cpu: usize) -> rustix::io::Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only)
}

/// Pages of our own, touched; given back on drop.
struct Pool {
    start: usize,
    pages: Vec<Page>,
}

impl Pool {
    fn new(pages: usize) -> Result<Self, Box<dyn Error>> {
        let length = pages * PAGE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, whose pages are used no longer than it lives.
        let pages = unsafe {
            let base = mmap_anonymous(std::ptr::null_mut(), length, protection, MapFlags::PRIVATE)?;
            madvise(base, length, Advice::LinuxNoHugepage)?;
            let starts = (0..pages).map(|page| base.wrapping_byte_add(page * PAGE));
            starts
                .filter_map(|start| {
                    start.cast::<u8>().write_volatile(1);
                    Page::at(start as usize)
                })
                .collect::<Vec<_>>()
        };
        let start = pages.first().ok_or("a pool needs pages")?.address();
        Ok(Self { start, pages })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: made by `new`.
        let _ = unsafe { munmap(self.start as *mut _, self.pages.len() * PAGE) };
    }
}

/// Burns a CPU until the flag is set.
fn busy_loop(cpu: usize) -> (Arc<AtomicBool>, thread::JoinHandle<u64>) {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    let work = move || {
        let _ = stay_on(cpu);
        let mut words = vec![1_u64; 1 << 20];
        let mut sum = 0;
        while !seen.load(Ordering::Relaxed) {
            for word in &mut words {
                sum ^= *word;
                *word = word.wrapping_add(sum);
            }
        }
        sum
    };
    (stop, thread::spawn(work))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Milliseconds of CPU time that this thread has used since `since`.
fn cpu_ms(since: Timespec) -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    (now.tv_sec - since.tv_sec) as f64 * 1e3 + (now.tv_nsec - since.tv_nsec) as f64 / 1e6
}

fn run(pool: &Pool, busy: bool) -> Result<Value, Box<dyn Error>> {
    let mut probe = HardwareProbe::new()?;
    let begin = Instant::now();
    let used = clock_gettime(ClockId::ThreadCPUTime);
    let found = Palette::discover(&mut probe, &pool.pages, &Search::default());
    let took = begin.elapsed();
    let used = cpu_ms(used);
    let palette = match found {
        Ok(palette) => palette,
        Err(error) => {
            return Ok(
                json!({"busy": busy, "ms": ms(took), "cpu_ms": used, "error": error.to_string()}),
            );
        }
    };
    let members: Vec<Page> = palette.sets().iter().flatten().copied().collect();
    let mut others = pool.pages.clone();
    others.retain(|page| !members.contains(page));
    let mut colors = vec![None; others.len()];
    let begin = Instant::now();
    let used_before = clock_gettime(ClockId::ThreadCPUTime);
    palette.classify(&mut probe, &others, &mut colors);
    let classify = begin.elapsed();
    let classify_cpu = cpu_ms(used_before);
    let paired = others.iter().zip(&colors);
    let known: Vec<(Page, Color)> = paired
        .filter_map(|(page, color)| color.map(|color| (*page, color)))
        .collect();
    let step = (known.len() / SAMPLE).max(1);
    let sample: Vec<(Page, Color)> = known.iter().copied().step_by(step).take(SAMPLE).collect();
    let agreement = palette.agreement(&mut probe, &sample);
    // Two sets of one color would evict each other's pages.
    let duplicates = palette.self_test(&mut probe, 3).foreign_evicted;
    let mut sizes = vec![0_usize; palette.colors()];
    for (_, color) in &known {
        if let Some(size) = sizes.get_mut(usize::from(color.0)) {
            *size += 1;
        }
    }
    let contrast = palette.contrast();
    Ok(json!({
        "busy": busy,
        "ms": ms(took),
        "cpu_ms": used,
        "colors": palette.colors(),
        "ways": palette.ways(),
        "set_size": palette.sets().first().map(Vec::len),
        "strength": palette.strength(),
        "ticks_kept": contrast.kept,
        "ticks_evicted": contrast.evicted,
        "foreign_evictions_of_sets": duplicates,
        "pages": others.len(),
        "classified": known.len(),
        "pages_per_second": others.len() as f64 / classify.as_secs_f64(),
        "pages_per_cpu_second": others.len() as f64 * 1e3 / classify_cpu,
        "smallest_color": sizes.iter().min(),
        "largest_color": sizes.iter().max(),
        "held_out_tested": agreement.tested,
        "held_out_own": agreement.own,
        "held_out_foreign": agreement.foreign,
    }))
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = options()?;
    stay_on(options.cpu)?;
    let mut runs = Vec::new();
    for round in 0..options.runs {
        // The kernel deals freed frames again in the same order: another mapping takes some first.
        let between = Pool::new(1 + round * 97 % 1_024)?;
        let pool = Pool::new(options.pool << 20 >> 12)?;
        let loops = options.busy.map_or(1, |_| 2);
        for busy in 0..loops {
            let work = options.busy.filter(|_| busy == 1).map(busy_loop);
            runs.push(run(&pool, work.is_some())?);
            if let Some((stop, thread)) = work {
                stop.store(true, Ordering::Relaxed);
                let _ = thread.join();
            }
        }
        drop(between);
    }
    let text = json!({"pool_mib": options.pool, "cpu": options.cpu, "runs": runs});
    #[expect(clippy::print_stdout, reason = "this is what it is for")]
    {
        println!("{text:#}");
    }
    Ok(())
}

//! Watching of a process for a moment: finds which of its pages are touched within windows of many lengths.

use std::time::{Duration, Instant};

use superhue_heat::{FewPages, PAGES_PER_RUN, PtwalkTracker, Run, RunTouches, Scope, TrackError};
use superhue_model::{
    HUGE_PAGE_SIZE, PAGES_PER_REGION, ProcessId, Random, VirtAddr, VirtRange, Vma,
};
use superhue_procfs::process::{cpu_now, maps};
use superhue_procfs::{ReadError, Roots};

use super::clock::{Clock, MissCounter};
use super::estimate::AccessObservations;
use super::rates::Window;

/// Runs of pages watched in one window.
const RUNS_AT_A_TIME: usize = 12;

/// Seconds of the shortest and the longest window, except for one window in twelve that is longer.
const WINDOWS: (f64, f64) = (20e-6, 20e-3);
/// Seconds of the longest of these.
const LONG_WINDOW_SECONDS: f64 = 0.2;

/// Interval after which the memory map is read again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Runs of base pages in a process, and the number of pages that could be huge.
#[derive(Debug, Default)]
pub(super) struct Pool {
    runs: Vec<Run>,
    pages: u64,
    possible: u64,
}

/// Observations of a process.
#[derive(Debug)]
pub(super) struct ProcessObservations {
    pub(super) observed: AccessObservations,
    /// CPUs it used.
    pub(super) cpus: f64,
    /// Seconds for which it was watched.
    pub(super) seconds: f64,
    /// Windows with pages in them.
    pub(super) windows: usize,
    /// The share of the pages that were not touched in any of the longest windows.
    pub(super) untouched: Option<f64>,
}

/// Watches `process` for `time`, or until `interrupted`.
pub(super) fn watch(
    roots: &Roots,
    tracker: &mut PtwalkTracker,
    process: ProcessId,
    time: Duration,
    interrupted: &mut dyn FnMut() -> bool,
) -> Result<Option<ProcessObservations>, TrackError> {
    let few = tracker.watch_few(process)?;
    let mut pool = pool(roots, tracker, &few, process)?;
    let mut random = Random::new(u64::from(process.pid));
    let cpu = || cpu_now(roots, process.pid).map(|cpu| cpu.total());
    let (begun, cpu_before) = (Instant::now(), cpu()?);
    let mut clock = Clock::of(roots, process.pid);
    let misses = MissCounter::of(roots, process.pid);
    let (mut looked, mut turn) = (Instant::now(), 0_u32);
    let mut seen: Vec<RunTouches> = Vec::new();
    let mut batches: Vec<usize> = Vec::new();
    while begun.elapsed() < time && !interrupted() {
        if looked.elapsed() >= LOOK_AGAIN {
            pool = self::pool(roots, tracker, &few, process)?;
            clock = Clock::of(roots, process.pid);
            looked = Instant::now();
        }
        if pool.runs.is_empty() {
            return Ok(None);
        }
        let runs = pool.draw(&mut random);
        turn += 1;
        let (low, high) = if turn.is_multiple_of(12) {
            (WINDOWS.1, LONG_WINDOW_SECONDS)
        } else {
            WINDOWS
        };
        let window = low * (high / low).powf(random.share());
        let left = time.saturating_sub(begun.elapsed());
        let window = Duration::from_secs_f64(window).min(left);
        seen.extend(tracker.sample_few(&few, &runs, window, &mut || clock.now())?);
        batches.push(seen.len());
    }
    let (wall, cpu) = (begun.elapsed(), cpu()?.saturating_sub(cpu_before));
    let cpus = cpu.as_secs_f64() / wall.as_secs_f64().max(1e-9);
    let together = together(&seen);
    let mut from = 0;
    let windows: Vec<Window> = batches
        .into_iter()
        .filter_map(|to| {
            let batch = seen.get(from..to)?;
            from = to;
            window_of(batch)
        })
        .collect();
    Ok(Some(ProcessObservations {
        untouched: untouched(&windows),
        windows: windows.len(),
        observed: AccessObservations {
            windows,
            counted_misses: misses.and_then(|misses| misses.per_second()),
            pages: pool.pages as f64,
            possible: if pool.pages > 0 {
                pool.possible as f64 / pool.pages as f64
            } else {
                0.0
            },
            together,
        },
        cpus,
        seconds: wall.as_secs_f64(),
    }))
}

/// Makes one window of runs that were watched together.
fn window_of(batch: &[RunTouches]) -> Option<Window> {
    let pages: u32 = batch.iter().map(|run| run.present.count_ones()).sum();
    let touched: u32 = batch.iter().map(|run| run.touched.count_ones()).sum();
    let weighted: f64 = batch
        .iter()
        .map(|run| run.cpu.as_secs_f64() * f64::from(run.present.count_ones()))
        .sum();
    let neighbours = |bits: fn(&RunTouches) -> u16| -> u32 {
        let both = batch.iter().map(|run| bits(run) & (bits(run) >> 1));
        both.map(u16::count_ones).sum()
    };
    (pages > 0).then(|| Window {
        seconds: weighted / f64::from(pages),
        pages: pages.into(),
        touched: touched.into(),
        pairs: neighbours(|run| run.present).into(),
        both: neighbours(|run| run.touched).into(),
    })
}

/// Returns the share of the touched pages that lie side by side with their neighbours; 0 if none was touched.
fn together(seen: &[RunTouches]) -> f64 {
    let count = |bits: fn(&RunTouches) -> u16| -> f64 {
        let counts = seen.iter().map(|run| bits(run).count_ones());
        counts.map(f64::from).sum()
    };
    let touched = count(|run| run.touched);
    if touched > 0.0 {
        count(|run| run.touched & run.together) / touched
    } else {
        0.0
    }
}

/// Returns the share of pages not touched in the longest windows: those of more than half the longest length.
fn untouched(windows: &[Window]) -> Option<f64> {
    let longest = windows
        .iter()
        .map(|window| window.seconds)
        .fold(0.0, f64::max);
    let long = windows
        .iter()
        .filter(|window| window.seconds > longest / 2.0);
    let (pages, touched) = long.fold((0.0, 0.0), |(p, t), window| {
        (p + window.pages, t + window.touched)
    });
    (pages > 0.0).then(|| 1.0 - touched / pages)
}

/// Finds the base pages of the process in memory that is watched.
fn pool(
    roots: &Roots,
    tracker: &mut PtwalkTracker,
    few: &FewPages,
    process: ProcessId,
) -> Result<Pool, TrackError> {
    let vmas: Vec<Vma> =
        maps(roots, process.pid).map_err(|error: ReadError| TrackError::from(error))?;
    let wanted: Vec<VirtRange> = vmas
        .iter()
        .filter(|vma| Scope::Promotable.includes(vma))
        .map(|vma| vma.range)
        .collect();
    let mut pool = Pool::default();
    for bits in tracker.look(few, &wanted)? {
        if bits.huge {
            continue;
        }
        let start = bits.region.start().0;
        let inside = |at: u64| {
            let place = wanted.partition_point(|range| range.end.0 <= at);
            wanted
                .get(place)
                .is_some_and(|range| range.start.0 <= at && at + RUN <= range.end.0)
        };
        let place = wanted.partition_point(|range| range.end.0 <= start);
        let is_whole = wanted
            .get(place)
            .is_some_and(|range| range.start.0 <= start && start + HUGE_PAGE_SIZE <= range.end.0);
        for index in 0..PAGES_PER_REGION as usize / PAGES_PER_RUN {
            let at = start + index as u64 * RUN;
            let first = index * PAGES_PER_RUN;
            let present = (first..first + PAGES_PER_RUN)
                .filter(|&page| bits.present.contains(page))
                .count() as u64;
            if present == 0 || !inside(at) {
                continue;
            }
            pool.pages += present;
            pool.possible += if is_whole { present } else { 0 };
            pool.runs.push(Run {
                start: VirtAddr(at),
            });
        }
    }
    Ok(pool)
}

const RUN: u64 = PAGES_PER_RUN as u64 * superhue_model::BASE_PAGE_SIZE;

impl Pool {
    /// Draws some of its runs, each once.
    fn draw(&self, random: &mut Random) -> Vec<Run> {
        let mut drawn: Vec<Run> = (0..RUNS_AT_A_TIME)
            .filter_map(|_| self.runs.get(random.below(self.runs.len())).copied())
            .collect();
        drawn.sort_unstable();
        drawn.dedup();
        // In random order: otherwise low addresses would get the longer windows.
        random.shuffle(&mut drawn);
        drawn
    }
}

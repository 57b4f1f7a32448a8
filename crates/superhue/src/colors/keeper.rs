//! Keeps hot pages of processes on the colors wanted.
//!
//! ```text
//!   accesses (tracker) ──> hot pages ──> too many of one color, or unknown? ──> frames of colors with too few
//!        or what is there, up to a bound └──> not of the set, or unknown?     ──> frames of the set
//! ```
//!
//! To give a page a frame of a known color costs less than to measure the color of the frame it has. So the color of a page is known once it was
//! recolored; from then on it is looked up by frame number. Some pages are measured again now and then.
//!
//! A cache of 1 MiB cares about the 256 pages that are hot, and not about a gigabyte that is not. So `spread` looks at the
//! hottest pages only, as many as the cache holds, and exchanges those that make them uneven over the colors. A set of
//! colors is for all memory that is accessed, hottest first.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use superhue_act::ZswapInUse;
use superhue_color::choice::{HotPage, balance, counts};
use superhue_color::oracles::OracleError;
use superhue_heat::PageSize;
use superhue_model::{
    BASE_PAGE_SIZE, ByteCount, Color, ColorSet, PAGES_PER_REGION, PageCount, ProcessId, VirtAddr,
};
use superhue_procfs::Roots;
use superhue_procfs::cgroup::swap_room;
use superhue_procfs::process::{cpu_now, present_pages, stat, status};
use superhue_procfs::system::{read_swaps, room_in_memory};
use superhue_recolor::{KeptReason, Price, RecolorError, RecolorResult, Recolorer, TargetColors};

use super::headroom;
use super::readiness::Readiness;
use crate::cpu::cpu_time;
use crate::heat::Sampler;

/// Rate from which on a page is hot: the last three samples found it touched.
const HOT: f32 = 0.7;

/// Samples of a process that are needed before its pages are placed.
const SAMPLES: u64 = 3;

/// Pages recolored in one step, at most: some 10 ms.
const MAX_RECOLORED_PAGES: usize = 512;

/// Room in swap that a step takes at most.
const STEP_TAKES: ByteCount = ByteCount(MAX_RECOLORED_PAGES as u64 * BASE_PAGE_SIZE);

/// Pages whose frames are looked up in one step, at most: some 2 ms. If there are more, each step takes the next part of them.
const MAX_LOOKUP_PAGES: usize = 4096;

/// Pages placed without knowledge of their accesses, at most: 64 MiB.
const MAX_UNTRACKED_PAGES: usize = 1 << 14;

/// Pages held to choose from, where the amount of free memory is not known: 256 MiB.
const USUAL_HOLD: PageCount = PageCount(1 << 16);

/// Interval between looks at resident pages, where accesses cannot be tracked.
const LOOK: Duration = Duration::from_millis(500);

/// Interval between measurements that check known colors, the time until the first one, and the number of pages in each.
const CHECK: Duration = Duration::from_secs(10);
const FIRST_CHECK: Duration = Duration::from_secs(1);
const CHECKED: usize = 32;

/// Interval between checks whether recoloring is ready.
const GETTING_READY: Duration = Duration::from_millis(10);

/// Youngest age, and least CPU time, of a process that is recolored: many processes end soon, others only wait, and both cost more than they gain.
const YOUNG: Duration = Duration::from_millis(500);
const IDLE: Duration = Duration::from_millis(50);

/// After a step, no process is recolored for this many times as long as the step took.
const PACE: u32 = 3;

/// A process that rests for longer than this needs no frames to choose from meanwhile.
const LONG_REST: Duration = Duration::from_secs(1);

/// Time for which a process is left alone after a first failure, and the longest such time.
const REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(30);

/// A page that the kernel kept this many times is left alone for a while: another process that maps it may end. The while doubles each time.
const ATTEMPTS: u8 = 3;
const REFUSED: Duration = Duration::from_secs(30);
const LONGEST_REFUSED: Duration = Duration::from_secs(600);

/// A page that got another frame than the wanted one weighs less: the next attempt may succeed.
const KEPT_WEIGHS: u8 = 4;
const MISSED_WEIGHS: u8 = 1;

/// Reason for leaving pages out where all pages are taken, because accesses cannot be tracked.
const TOO_MUCH: &str = "accesses cannot be tracked, and it is too much to place all of it";

/// Returns the pages of anonymous memory that a process has.
fn resident_pages(roots: &Roots, id: ProcessId) -> Option<u64> {
    let status = status(roots, id.pid).ok()?;
    Some(status.rss_anon?.0 / BASE_PAGE_SIZE)
}

/// Returns whether pages of a process can be moved out to swap in memory now; the error is the reason why not.
fn room_in_swap(roots: &Roots, id: ProcessId) -> Result<(), &'static str> {
    let room = read_swaps(roots).map_or(ByteCount(0), |areas| room_in_memory(&areas));
    if room < STEP_TAKES {
        return Err("no swap in memory has room (any more): see superhue check, --swap");
    }
    if let Some(why) = ZswapInUse::refusal(roots, id.pid) {
        return Err(why);
    }
    if swap_room(roots, id.pid).is_some_and(|room| room < STEP_TAKES) {
        return Err("its control group may not swap (memory.swap.max)");
    }
    Ok(())
}

/// Goal of the placement.
#[derive(Debug, Clone)]
pub(crate) enum PlacementGoal {
    /// Spreads hot pages evenly over all colors.
    Spread,
    /// Places all accessed pages on these colors.
    Within(ColorSet),
}

/// Next step for a process.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// Give pages frames of wanted colors.
    Place {
        pages: Vec<VirtAddr>,
        want: TargetColors,
    },
    /// Measure frames of pages whose colors are known.
    Check { pages: Vec<VirtAddr> },
}

/// Places pages of processes by color.
#[derive(Debug)]
pub(crate) struct Keeper {
    /// CPU time of placing and checking pages since the owner of the keeper took it.
    pub(crate) placing: Duration,
    /// CPU time of another thread, which prepares that, likewise.
    pub(crate) prepared: Duration,
    aim: PlacementGoal,
    colors: usize,
    /// Pages that the cache holds.
    capacity: usize,
    ready: Readiness,
    roots: Roots,
    processes: BTreeMap<ProcessId, Program>,
    /// Time until which all of them rest after the last step.
    rests_until: Duration,
    past: Program,
    pub(crate) seen: u64,
    blind: bool,
    left_alone: BTreeMap<String, HashSet<ProcessId>>,
}

/// A page that is considered for placement.
#[derive(Debug, Clone, Copy)]
struct Page {
    at: u64,
    /// Part of a huge page: it counts, but is not moved.
    huge: bool,
    rate: f32,
}

/// State of the colors of one process.
#[derive(Debug, Default)]
pub(super) struct Program {
    name: String,
    colors: HashMap<u64, Color>,
    /// Pages that were brought in again and not used since: their frames are not known yet.
    pending: HashSet<u64>,
    /// Pages that did not get the wanted frame.
    refused: HashMap<u64, Refusal>,
    pages: Vec<Page>,
    /// Index of the first page of the next look, where there are too many pages for one.
    next_look: usize,
    /// Number of samples behind `pages`; or, without tracking, the time of the last look at resident pages.
    samples: u64,
    looked: Option<Duration>,
    check_due: Option<Duration>,
    rest: Duration,
    rests_until: Duration,
    /// True once it has used some CPU time.
    has_run: bool,
    settled: bool,
    pub(super) figures: Figures,
}

/// Failures of a page to get the wanted frame.
#[derive(Debug, Clone, Copy, Default)]
struct Refusal {
    /// Weight of all failures.
    weight: u8,
    /// Last reason of the kernel; `None` if the page got another frame.
    kept: Option<KeptReason>,
    /// Time until which the page is left alone, once there were enough, and for how long.
    until: Duration,
    rest: Duration,
}

impl Refusal {
    /// Returns true while the page is left alone.
    fn holds(&self, now: Duration) -> bool {
        self.weight >= ATTEMPTS * KEPT_WEIGHS && now < self.until
    }
}

/// Counts for the report.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures {
    pub(crate) recolored: u64,
    pub(crate) confirmed: u64,
    pub(crate) checked: u64,
    pub(crate) left: BTreeMap<KeptReason, u64>,
    /// Pages that were tried several times, and got frames of unknown colors each time.
    pub(crate) missed: u64,
    /// Pages that could not be chosen from, by reason.
    pub(crate) unchosen: BTreeMap<&'static str, u64>,
    /// Pages that were considered, and the part of them on wanted colors.
    pub(crate) pages: u64,
    pub(crate) right: u64,
    /// The same, weighted by the rates of accesses.
    pub(crate) accesses: f64,
    pub(crate) right_accesses: f64,
    /// Smallest and largest number of hot pages of a color.
    pub(crate) now: Option<(usize, usize)>,
}

impl Keeper {
    pub(super) fn new(
        aim: PlacementGoal,
        (colors, ways): (usize, Option<u32>),
        ready: Readiness,
        roots: &Roots,
    ) -> Self {
        let ways = ways.map_or(8, |ways| ways as usize);
        Self {
            aim,
            colors,
            capacity: colors * ways,
            ready,
            roots: roots.clone(),
            processes: BTreeMap::new(),
            rests_until: Duration::ZERO,
            past: Program::default(),
            seen: 0,
            blind: false,
            placing: Duration::ZERO,
            prepared: Duration::ZERO,
            left_alone: BTreeMap::new(),
        }
    }

    /// Takes over the list of processes; returns true if one has lived and run long enough for its colors to matter.
    pub(crate) fn has_work(&mut self, now: Duration, members: &[ProcessId]) -> bool {
        let gone: Vec<ProcessId> = (self.processes.keys())
            .filter(|id| !members.contains(id))
            .copied()
            .collect();
        for id in gone {
            if let Some(program) = self.processes.remove(&id) {
                self.past.figures.add(&program.figures);
            }
            for processes in self.left_alone.values_mut() {
                processes.remove(&id);
            }
        }
        for &id in members {
            self.processes.entry(id).or_insert_with(|| {
                self.seen += 1;
                Program {
                    rests_until: now + YOUNG,
                    ..Program::default()
                }
            });
        }
        let mut processes = self.processes.iter_mut();
        let has_work = now >= self.rests_until
            && processes.any(|(&id, program)| {
                now >= program.rests_until && program.has_run(id, &self.roots)
            });
        if !has_work {
            self.give_back_if_idle(now);
        }
        has_work
    }

    /// Gives back the frames that are held to choose from, if no process needs any soon.
    fn give_back_if_idle(&mut self, now: Duration) {
        if self.processes.values().all(|program| program.is_idle(now)) {
            self.give_back();
        }
    }

    /// Gives back the frames that are held to choose from.
    pub(crate) fn give_back(&mut self) {
        if let Some(recolorer) = self.ready.recolorer() {
            recolorer.give_back();
        }
    }

    /// Does the work that is due for the processes; returns true if anything was placed.
    pub(crate) fn step(
        &mut self,
        now: Duration,
        members: &[ProcessId],
        sampler: Option<&Sampler>,
    ) -> bool {
        self.blind |= sampler.is_none();
        let (begun, placed) = (Instant::now(), self.placing);
        let mut happened = false;
        for id in members {
            let Some((id, mut program)) = self.processes.remove_entry(id) else {
                continue;
            };
            if now >= program.rests_until && program.has_run(id, &self.roots) {
                self.refresh(id, &mut program, now, sampler);
                happened |= self.work(id, &mut program, now);
            }
            self.processes.insert(id, program);
        }
        // All at once: several processes must not take turns that add up to a whole CPU.
        let took = begun.elapsed();
        if happened || self.placing > placed {
            self.rests_until = now + took * (PACE + 1);
        }
        self.prepared += self.ready.take_cpu();
        if let Some(recolorer) = self.ready.recolorer() {
            recolorer.retain(|id| self.processes.contains_key(&id));
        }
        self.give_back_if_idle(now);
        happened
    }

    /// Takes over the cost of a preparation that has ended since the last step.
    pub(crate) fn conclude(&mut self) {
        if self.ready.is_under_way() {
            self.ready.is_given();
        }
        self.prepared += self.ready.take_cpu();
    }

    /// Returns the time until the next work is due; `None` if no work is known.
    pub(crate) fn due(&self, now: Duration) -> Option<Duration> {
        let busy = self.processes.values().filter(|program| !program.settled);
        let waits = busy.filter_map(|program| {
            if self.ready.is_under_way() {
                return Some(GETTING_READY);
            }
            let rest = program
                .rests_until
                .max(self.rests_until)
                .saturating_sub(now);
            if !program.has_run {
                // A process that only waits is checked at the next look, and causes no wakeup.
                return (!rest.is_zero()).then_some(rest);
            }
            (self.ready.trouble().is_none()).then_some(rest)
        });
        let look = self.blind.then_some(LOOK);
        waits.min().into_iter().chain(look).min()
    }

    /// Takes over the accesses from new samples; without tracking, the resident pages.
    fn refresh(
        &mut self,
        id: ProcessId,
        program: &mut Program,
        now: Duration,
        sampler: Option<&Sampler>,
    ) {
        let (pages, beyond, why) = match sampler {
            Some(sampler) => {
                let Some(map) = sampler.map(id) else { return };
                if map.samples() == program.samples || map.samples() < SAMPLES {
                    return;
                }
                if map.samples() < program.samples {
                    // The process has executed another program: its memory is new.
                    program.colors.clear();
                    program.refused.clear();
                    program.pending.clear();
                }
                program.samples = map.samples();
                let mut pages = Vec::new();
                let mut unknown = 0;
                for range in map.ranges().filter(|range| range.count > 0) {
                    let is_hot = range.rate >= HOT;
                    if matches!(self.aim, PlacementGoal::Spread) && !is_hot {
                        continue;
                    }
                    let huge = match range.pages {
                        PageSize::Base => false,
                        PageSize::Huge => true,
                        PageSize::Range => {
                            unknown += range.range.len().0 / BASE_PAGE_SIZE;
                            continue;
                        }
                    };
                    let count = if huge { PAGES_PER_REGION } else { 1 };
                    pages.extend((0..count).map(|page| Page {
                        at: range.range.start.0 + page * BASE_PAGE_SIZE,
                        huge,
                        rate: range.rate,
                    }));
                }
                let why = "accesses of its single pages are not known";
                (pages, unknown, why)
            }
            None => {
                if program.looked.is_some_and(|looked| now < looked + LOOK) {
                    return;
                }
                program.looked = Some(now);
                let Ok(found) = present_pages(&self.roots, id, MAX_UNTRACKED_PAGES) else {
                    return;
                };
                // There may be more: all that is known of it is its size.
                let all = match found.len() < MAX_UNTRACKED_PAGES {
                    true => found.len() as u64,
                    false => resident_pages(&self.roots, id).unwrap_or_default(),
                };
                let beyond = all.saturating_sub(found.len() as u64);
                let pages = found.into_iter().map(|found| Page {
                    at: found.page.0,
                    huge: found.huge,
                    rate: 1.0,
                });
                (pages.collect(), beyond, TOO_MUCH)
            }
        };
        let how = (self.capacity, sampler.is_none());
        program.take(pages, &self.aim, how, now);
        if beyond > 0 {
            *program.figures.unchosen.entry(why).or_default() += beyond;
        }
        if program.name.is_empty() {
            let stat = stat(&self.roots, id.pid);
            program.name = stat.map_or_else(|_| String::new(), |stat| stat.comm);
        }
    }

    /// Makes one step, if one is due and there is something to do.
    fn work(&mut self, id: ProcessId, program: &mut Program, now: Duration) -> bool {
        if let Some(recolorer) = self.ready.recolorer()
            && program.look(id, recolorer).is_err()
        {
            // The process has ended, or executes another program: the next sample shows which.
            program.rests_until = now + REST;
            return false;
        }
        let step = match &self.aim {
            PlacementGoal::Spread => program.step_to_spread(self.colors, self.capacity, now),
            PlacementGoal::Within(set) => program.step_within(set, now),
        };
        program.settled = step.is_none();
        program.count(&self.aim, self.colors, now);
        let Some(step) = step else {
            return false;
        };
        if !self.ready.is_given() {
            return false;
        }
        let Some(recolorer) = self.ready.recolorer() else {
            return false;
        };
        if let Err(why) = room_in_swap(&self.roots, id) {
            program.rest = (program.rest * 2).clamp(REST, LONGEST_REST);
            program.rests_until = now + program.rest;
            self.left_alone
                .entry(why.to_owned())
                .or_default()
                .insert(id);
            return false;
        }
        let hold = headroom::for_ourselves(&self.roots);
        let hold = hold.map_or(USUAL_HOLD, |hold| hold.whole_pages().min(USUAL_HOLD));
        let begun = Instant::now();
        let before = cpu_time();
        let done = program.take_step(id, &step, recolorer, hold, now);
        self.placing += cpu_time().saturating_sub(before);
        let took = begun.elapsed();
        tracing::debug!(process = %id, pages = program.pages.len(), known = program.colors.len(), ?took, ok = done.is_ok(), "colors");
        for processes in self.left_alone.values_mut() {
            processes.remove(&id);
        }
        match done {
            Ok(had_frames) => {
                // Frames of a wanted color that were not found now are not found at once the next time either.
                program.rest = match had_frames {
                    true => Duration::ZERO,
                    false => (program.rest * 2).clamp(REST, LONGEST_REST),
                };
                program.rests_until = now + program.rest;
                program.count(&self.aim, self.colors, now);
                true
            }
            Err(error) => {
                program.rest = (program.rest * 2).clamp(REST, LONGEST_REST);
                match error {
                    RecolorError::Gone => {}
                    RecolorError::NotPermitted(why) => {
                        program.rest = LONGEST_REST;
                        self.left_alone.entry(why).or_default().insert(id);
                    }
                    error @ (RecolorError::Userfaultfd | RecolorError::Nodes) => {
                        program.rest = LONGEST_REST;
                        let alone = self.left_alone.entry(error.to_string());
                        alone.or_default().insert(id);
                    }
                    RecolorError::Oracle(error @ OracleError::Drifted(_)) => {
                        // The palette has changed: the same numbers mean other colors now.
                        program.colors.clear();
                        self.ready.begin_again(&error.to_string());
                    }
                    // Memory was short for a moment, for example.
                    RecolorError::Oracle(error) => {
                        let alone = self.left_alone.entry(error.to_string());
                        alone.or_default().insert(id);
                    }
                }
                program.rests_until = now + program.rest;
                false
            }
        }
    }

    /// Returns the counts over all processes.
    pub(crate) fn figures(&self) -> Figures {
        let mut all = self.past.figures.clone();
        for program in self.processes.values() {
            all.add(&program.figures);
        }
        all
    }

    /// Returns number, name and figures of each present process.
    pub(crate) fn each(&self) -> impl Iterator<Item = (u32, &str, &Figures)> {
        let each = self.processes.iter();
        each.map(|(id, program)| (id.pid, program.name.as_str(), &program.figures))
    }

    /// Returns true if pages were placed without knowledge of their accesses.
    pub(crate) const fn is_blind(&self) -> bool {
        self.blind
    }

    /// Returns the reason why nothing can be placed, if that is known.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.ready.trouble()
    }

    /// Returns the number of processes for which the last attempt failed, by reason.
    pub(crate) fn left_alone(&self) -> impl Iterator<Item = (&str, usize)> {
        let counts = self.left_alone.iter();
        counts
            .map(|(why, processes)| (why.as_str(), processes.len()))
            .filter(|(_, count)| *count > 0)
    }

    /// Returns the price of recoloring so far.
    pub(crate) fn price(&self) -> Price {
        self.ready.price()
    }
}

impl Program {
    /// Returns true if the process has used enough CPU time for its colors to matter.
    fn has_run(&mut self, id: ProcessId, roots: &Roots) -> bool {
        let has_run = || cpu_now(roots, id.pid).is_ok_and(|cpu| cpu.total() >= IDLE);
        self.has_run = self.has_run || has_run();
        self.has_run
    }

    /// Returns true if no page of it is placed soon: all are in place, or it only waits, or it is left alone for a while.
    fn is_idle(&self, now: Duration) -> bool {
        self.settled || !self.has_run || self.rests_until > now + LONG_REST
    }

    /// Takes over the pages that may be placed.
    fn take(
        &mut self,
        mut pages: Vec<Page>,
        aim: &PlacementGoal,
        (capacity, blind): (usize, bool),
        now: Duration,
    ) {
        self.figures.unchosen.clear();
        let hotter = |a: &Page, b: &Page| b.rate.total_cmp(&a.rate);
        match aim {
            // Pages that are not accessed do not matter. Without tracking all pages are taken, but only if they fit.
            PlacementGoal::Spread if blind && pages.len() > 4 * capacity => {
                (self.figures.unchosen).insert(TOO_MUCH, pages.len() as u64);
                pages.clear();
            }
            PlacementGoal::Spread => {
                pages.sort_by(hotter);
                if !blind {
                    pages.truncate(capacity);
                }
            }
            PlacementGoal::Within(_) => pages.sort_by(hotter),
        }
        // Forgets what is known of pages that no longer exist.
        let there: HashSet<u64> = pages.iter().map(|page| page.at).collect();
        if matches!(aim, PlacementGoal::Within(_)) || self.colors.len() > 16 * capacity {
            self.colors.retain(|page, _| there.contains(page));
        }
        // A page that is not hot now may be hot again before its rest is over.
        (self.refused).retain(|page, it| there.contains(page) || it.until > now);
        let is_large = self.pending.len() > 16 * capacity;
        (self.pending).retain(|page| !is_large || there.contains(page));
        self.pages = pages;
        self.settled = false;
    }

    /// Looks up the colors of the pages' current frames; of many pages, the next part each time.
    fn look(&mut self, id: ProcessId, recolorer: &mut Recolorer) -> Result<(), RecolorError> {
        let first = if self.next_look < self.pages.len() {
            self.next_look
        } else {
            0
        };
        let rest = self.pages.get(first..).unwrap_or_default();
        let pages: Vec<VirtAddr> = (rest.iter().take(MAX_LOOKUP_PAGES))
            .map(|page| VirtAddr(page.at))
            .collect();
        self.next_look = first + pages.len();
        for (page, color) in pages.iter().zip(recolorer.colors_of(id, &pages)?) {
            match color {
                Some(color) => {
                    self.colors.insert(page.0, color);
                    self.figures.recolored += u64::from(self.pending.remove(&page.0));
                }
                None => drop(self.colors.remove(&page.0)),
            }
        }
        Ok(())
    }

    fn is_refused(&self, page: u64, now: Duration) -> bool {
        let refusal = self.refused.get(&page);
        refusal.is_some_and(|refusal| refusal.holds(now))
    }

    /// Returns some pages to be measured again, if that is due.
    fn check(&mut self, now: Duration) -> Option<Step> {
        if now < *self.check_due.get_or_insert(now + FIRST_CHECK) {
            return None;
        }
        self.check_due = Some(now + CHECK);
        let known = self
            .pages
            .iter()
            .filter(|page| !page.huge)
            .map(|page| page.at);
        let known: Vec<u64> = known
            .filter(|page| self.colors.contains_key(page))
            .collect();
        let step = (known.len() / CHECKED).max(1);
        // Other pages each time.
        let first = usize::try_from(self.figures.checked).unwrap_or(0) % step;
        let pages: Vec<VirtAddr> = (known.iter().skip(first).step_by(step).take(CHECKED))
            .map(|page| VirtAddr(*page))
            .collect();
        (!pages.is_empty()).then_some(Step::Check { pages })
    }

    fn step_to_spread(&mut self, colors: usize, capacity: usize, now: Duration) -> Option<Step> {
        let mut pages = Vec::new();
        let mut wanted = Vec::new();
        for part in self.pages.chunks(capacity.max(1)) {
            let hot: Vec<(u64, HotPage)> = (part.iter())
                .map(|page| {
                    let color = self.colors.get(&page.at).copied();
                    let movable = !page.huge && !self.is_refused(page.at, now);
                    (page.at, HotPage { color, movable })
                })
                .collect();
            let (at, hot): (Vec<u64>, Vec<HotPage>) = hot.into_iter().unzip();
            for (number, color) in balance(&hot, colors) {
                pages.push(VirtAddr(at[number]));
                wanted.push(color);
            }
        }
        if pages.is_empty() {
            return self.check(now);
        }
        pages.truncate(MAX_RECOLORED_PAGES);
        wanted.truncate(MAX_RECOLORED_PAGES);
        let want = TargetColors::Each(wanted);
        Some(Step::Place { pages, want })
    }

    fn step_within(&mut self, set: &ColorSet, now: Duration) -> Option<Step> {
        let wrong = |page: &&Page| {
            let color = self.colors.get(&page.at);
            let is_right = color.is_some_and(|color| set.contains(*color));
            !is_right && !self.is_refused(page.at, now)
        };
        let pages: Vec<VirtAddr> = (self.pages.iter())
            .filter(wrong)
            .take(MAX_RECOLORED_PAGES)
            .map(|page| VirtAddr(page.at))
            .collect();
        if pages.is_empty() {
            return self.check(now);
        }
        let want = TargetColors::Within(set.clone());
        Some(Step::Place { pages, want })
    }

    /// Takes a step and records its result. Returns false if there was no frame of a wanted color for any page.
    fn take_step(
        &mut self,
        id: ProcessId,
        step: &Step,
        recolorer: &mut Recolorer,
        hold: PageCount,
        now: Duration,
    ) -> Result<bool, RecolorError> {
        match step {
            Step::Place { pages, want } => {
                let placed = recolorer.place(id, pages, want, hold)?;
                self.enter(pages, &placed, now);
                let none = RecolorResult::Kept(KeptReason::NoFrame);
                Ok(placed.iter().any(|placed| *placed != none))
            }
            Step::Check { pages } => {
                let (checked, confirmed) = recolorer.check(id, pages, hold)?;
                self.figures.checked += checked;
                self.figures.confirmed += confirmed;
                Ok(true)
            }
        }
    }

    /// Records the results for pages that were to be placed.
    fn enter(&mut self, pages: &[VirtAddr], placed: &[RecolorResult], now: Duration) {
        for (page, placed) in pages.iter().zip(placed) {
            // Counted here, unless its frame is not known yet.
            self.pending.remove(&page.0);
            match *placed {
                RecolorResult::Recolored(color) => {
                    self.figures.recolored += 1;
                    self.colors.insert(page.0, color);
                    self.refused.remove(&page.0);
                }
                RecolorResult::Already(color) => {
                    self.colors.insert(page.0, color);
                }
                RecolorResult::Unmapped => drop(self.pending.insert(page.0)),
                RecolorResult::Missed => {
                    self.colors.remove(&page.0);
                    self.refuse(page.0, None, now);
                }
                // A frame may be found the next time.
                RecolorResult::Kept(KeptReason::NoFrame) => {}
                RecolorResult::Kept(kept) => self.refuse(page.0, Some(kept), now),
            }
        }
    }

    /// Notes that a page did not get the wanted frame: the kernel kept it, or gave it another one.
    fn refuse(&mut self, page: u64, kept: Option<KeptReason>, now: Duration) {
        let refusal = self.refused.entry(page).or_default();
        let weighs = if kept.is_some() {
            KEPT_WEIGHS
        } else {
            MISSED_WEIGHS
        };
        refusal.weight = refusal.weight.saturating_add(weighs);
        refusal.kept = kept;
        if refusal.weight >= ATTEMPTS * KEPT_WEIGHS {
            refusal.rest = (refusal.rest * 2).clamp(REFUSED, LONGEST_REFUSED);
            refusal.until = now + refusal.rest;
        }
    }

    /// Counts the pages by their present colors, and those that are left alone now.
    fn count(&mut self, aim: &PlacementGoal, colors: usize, now: Duration) {
        let figures = &mut self.figures;
        (figures.missed, figures.left) = (0, BTreeMap::new());
        for refusal in self.refused.values().filter(|refusal| refusal.holds(now)) {
            match refusal.kept {
                Some(kept) => *figures.left.entry(kept).or_default() += 1,
                None => figures.missed += 1,
            }
        }
        (figures.pages, figures.right) = (0, 0);
        (figures.accesses, figures.right_accesses) = (0.0, 0.0);
        let mut hot = Vec::new();
        for page in &self.pages {
            let color = self.colors.get(&page.at).copied();
            let right = match aim {
                PlacementGoal::Spread => color.is_some(),
                PlacementGoal::Within(set) => color.is_some_and(|color| set.contains(color)),
            };
            figures.pages += 1;
            figures.accesses += f64::from(page.rate);
            if right {
                figures.right += 1;
                figures.right_accesses += f64::from(page.rate);
            }
            hot.extend(color.map(|color| HotPage {
                color: Some(color),
                movable: true,
            }));
        }
        if matches!(aim, PlacementGoal::Spread) && hot.len() == self.pages.len() && !hot.is_empty()
        {
            let counts = counts(&hot, colors);
            let least = counts.iter().min().copied().unwrap_or(0);
            let most = counts.iter().max().copied().unwrap_or(0);
            figures.now = Some((least, most));
        }
    }
}

impl Figures {
    fn add(&mut self, other: &Self) {
        self.recolored += other.recolored;
        self.missed += other.missed;
        self.confirmed += other.confirmed;
        self.checked += other.checked;
        for (why, pages) in &other.unchosen {
            *self.unchosen.entry(why).or_default() += pages;
        }
        self.pages += other.pages;
        self.right += other.right;
        self.accesses += other.accesses;
        self.right_accesses += other.right_accesses;
        for (left, count) in &other.left {
            *self.left.entry(*left).or_default() += count;
        }
        // The figures of the process with the most pages.
        if other.now.is_some() && (self.now.is_none() || other.pages * 2 > self.pages) {
            self.now = other.now;
        }
    }
}

#[cfg(test)]
mod tests {
    use superhue_model::ColorRequest;

    use super::*;

    const CAPACITY: usize = 64;
    const COLORS: usize = 8;

    fn pages(count: u64, huge: bool) -> Vec<Page> {
        let page = |number| Page {
            at: number * BASE_PAGE_SIZE,
            huge,
            rate: 1.0,
        };
        (1..=count).map(page).collect()
    }

    /// Returns the pages and colors of a step that places.
    fn asked(step: Option<Step>) -> Option<(Vec<VirtAddr>, TargetColors)> {
        match step? {
            Step::Place { pages, want } => Some((pages, want)),
            Step::Check { .. } => None,
        }
    }

    /// Repeats steps of at most `most` pages each until nothing is left to do; returns their number.
    fn settle(program: &mut Program, aim: &PlacementGoal, most: usize) -> usize {
        for steps in 0..1000 {
            let step = match aim {
                PlacementGoal::Spread => program.step_to_spread(COLORS, CAPACITY, Duration::ZERO),
                PlacementGoal::Within(set) => program.step_within(set, Duration::ZERO),
            };
            program.count(aim, COLORS, Duration::ZERO);
            let Some((pages, want)) = asked(step) else {
                return steps;
            };
            assert!(!pages.is_empty());
            let placed: Vec<RecolorResult> = (0..pages.len().min(most))
                .map(|at| match &want {
                    TargetColors::Each(wanted) => RecolorResult::Recolored(wanted[at]),
                    TargetColors::Within(set) => {
                        RecolorResult::Recolored(set.iter().next().unwrap())
                    }
                })
                .collect();
            program.enter(&pages, &placed, Duration::ZERO);
        }
        panic!("never settled");
    }

    #[test]
    fn a_hot_set_ends_even_over_all_colors_and_stays_alone() {
        let mut program = Program::default();
        program.take(
            pages(60, false),
            &PlacementGoal::Spread,
            (CAPACITY, false),
            Duration::ZERO,
        );
        assert!(settle(&mut program, &PlacementGoal::Spread, 7) > 60 / 7);
        assert_eq!(program.figures.now, Some((7, 8)));
        assert_eq!(program.figures.recolored, 60);
        // The same pages are hot at the next sample.
        program.take(
            pages(60, false),
            &PlacementGoal::Spread,
            (CAPACITY, false),
            Duration::ZERO,
        );
        assert_eq!(settle(&mut program, &PlacementGoal::Spread, 7), 0);
    }

    #[test]
    fn pages_of_huge_pages_stay() {
        let mut program = Program::default();
        program.take(
            pages(32, true),
            &PlacementGoal::Spread,
            (CAPACITY, false),
            Duration::ZERO,
        );
        assert_eq!(settle(&mut program, &PlacementGoal::Spread, 100), 0);
        assert_eq!((program.figures.recolored, program.figures.now), (0, None));
    }

    #[test]
    fn only_as_much_as_the_cache_holds_is_looked_at_and_blindly_only_if_all_fits() {
        let mut program = Program::default();
        program.take(
            pages(1000, false),
            &PlacementGoal::Spread,
            (CAPACITY, false),
            Duration::ZERO,
        );
        assert_eq!(program.pages.len(), CAPACITY);
        program.take(
            pages(1000, false),
            &PlacementGoal::Spread,
            (CAPACITY, true),
            Duration::ZERO,
        );
        assert!(program.pages.is_empty());
        assert_eq!(program.figures.unchosen[TOO_MUCH], 1000);
        program.take(
            pages(200, false),
            &PlacementGoal::Spread,
            (CAPACITY, true),
            Duration::ZERO,
        );
        assert_eq!(program.pages.len(), 200);
    }

    #[test]
    fn what_the_kernel_keeps_is_left_alone_after_some_attempts() {
        let request: ColorRequest = "0-3".parse().unwrap();
        let set = request.of(COLORS).unwrap().unwrap();
        let aim = PlacementGoal::Within(set.clone());
        let attempts = |placed: RecolorResult| {
            let mut program = Program::default();
            program.take(pages(3, false), &aim, (CAPACITY, false), Duration::ZERO);
            for attempt in 0..100 {
                let Some((pages, _)) = asked(program.step_within(&set, Duration::ZERO)) else {
                    return (attempt, program);
                };
                let now = Duration::ZERO;
                program.enter(&pages, &vec![placed; pages.len()], now);
                program.count(&aim, COLORS, now);
            }
            (100, program)
        };
        let (tried, program) = attempts(RecolorResult::Kept(KeptReason::InUse));
        assert_eq!((tried, program.figures.left[&KeptReason::InUse]), (3, 3));
        // A page that got another frame than the wanted one is tried for longer.
        let (tried, program) = attempts(RecolorResult::Missed);
        assert_eq!((tried, program.figures.missed), (12, 3));
        // A missing frame of a wanted color is looked for again.
        let (tried, mut program) = attempts(RecolorResult::Kept(KeptReason::NoFrame));
        program.count(&aim, COLORS, Duration::ZERO);
        assert_eq!(
            (tried, program.figures.pages, program.figures.right),
            (100, 3, 0)
        );
    }

    #[test]
    fn what_the_kernel_kept_is_tried_again_after_a_while() {
        let request: ColorRequest = "0-3".parse().unwrap();
        let set = request.of(COLORS).unwrap().unwrap();
        let aim = PlacementGoal::Within(set.clone());
        let mut program = Program::default();
        program.take(pages(1, false), &aim, (CAPACITY, false), Duration::ZERO);
        let shared = [RecolorResult::Kept(KeptReason::Shared)];
        let mut tried = Vec::new();
        for second in 0..200 {
            let now = Duration::from_secs(second);
            while let Some((pages, _)) = asked(program.step_within(&set, now)) {
                tried.push(second);
                program.enter(&pages, &shared, now);
            }
        }
        assert_eq!(tried, [0, 0, 0, 30, 90]);
        program.count(&aim, COLORS, Duration::from_secs(199));
        assert_eq!(program.figures.left[&KeptReason::Shared], 1);
        // The child that shared it has ended.
        let now = Duration::from_secs(300);
        let (pages, _) = asked(program.step_within(&set, now)).unwrap();
        program.enter(&pages, &[RecolorResult::Recolored(Color(0))], now);
        program.count(&aim, COLORS, now);
        assert!(program.figures.left.is_empty());
        assert_eq!(program.figures.recolored, 1);
    }

    #[test]
    fn a_page_whose_frame_is_seen_late_counts_once() {
        let mut program = Program::default();
        let at = [VirtAddr(BASE_PAGE_SIZE)];
        let mut enter = |result| program.enter(&at, &[result], Duration::ZERO);
        enter(RecolorResult::Unmapped);
        enter(RecolorResult::Recolored(Color(1)));
        assert_eq!(program.figures.recolored, 1);
        assert!(program.pending.is_empty());
    }

    #[test]
    fn programs_that_wait_or_rest_hold_no_frames() {
        let mut program = Program::default();
        assert!(program.is_idle(Duration::ZERO), "it has not run");
        program.has_run = true;
        assert!(!program.is_idle(Duration::ZERO));
        program.rests_until = LONGEST_REST;
        assert!(program.is_idle(Duration::ZERO));
        assert!(!program.is_idle(LONGEST_REST));
        program.settled = true;
        assert!(program.is_idle(LONGEST_REST));
    }

    #[test]
    fn pages_are_measured_again_now_and_then() {
        let mut program = Program::default();
        program.take(
            pages(64, false),
            &PlacementGoal::Spread,
            (CAPACITY, false),
            Duration::ZERO,
        );
        settle(&mut program, &PlacementGoal::Spread, 100);
        assert_eq!(program.check(FIRST_CHECK / 2), None);
        let Some(Step::Check { pages }) = program.check(FIRST_CHECK) else {
            panic!("it is due");
        };
        assert_eq!(pages.len(), CHECKED);
        assert_eq!(program.check(FIRST_CHECK), None, "not twice");
    }
}

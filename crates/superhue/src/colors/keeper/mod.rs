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

mod program;

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use program::{HOT, MAX_RECOLORED_PAGES, MAX_UNTRACKED_PAGES, Page, Program, SAMPLES, YOUNG};
use superhue_act::ZswapInUse;
use superhue_color::oracles::OracleError;
use superhue_heat::PageSize;
use superhue_model::{BASE_PAGE_SIZE, ByteCount, ColorSet, PAGES_PER_REGION, PageCount, ProcessId};
use superhue_procfs::Roots;
use superhue_procfs::cgroup::swap_room;
use superhue_procfs::process::{present_pages, stat, status};
use superhue_procfs::system::{read_swaps, room_in_memory};
use superhue_recolor::{KeptReason, Price, RecolorError};

use super::headroom;
use super::readiness::Readiness;
use crate::cpu::cpu_time;
use crate::heat::Sampler;

/// Room in swap that a step takes at most.
const STEP_TAKES: ByteCount = ByteCount(MAX_RECOLORED_PAGES as u64 * BASE_PAGE_SIZE);

/// Pages held to choose from, where the amount of free memory is not known: 256 MiB.
const USUAL_HOLD: PageCount = PageCount(1 << 16);

/// Interval between looks at resident pages, where accesses cannot be tracked.
const LOOK: Duration = Duration::from_millis(500);

/// Interval between checks whether recoloring is ready.
const GETTING_READY: Duration = Duration::from_millis(10);

/// After a step, no process is recolored for this many times as long as the step took.
const PACE: u32 = 3;

/// A process that rests for longer than this needs no frames to choose from meanwhile.
const LONG_REST: Duration = Duration::from_secs(1);

/// Time for which a process is left alone after a first failure, and the longest such time.
const REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(30);

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

/// Counts for the report.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures {
    pub(crate) recolored: u64,
    /// Pages measured again, the part of them whose color was the known one, and those whose color could not be measured.
    pub(crate) checked: u64,
    pub(crate) confirmed: u64,
    pub(crate) unmeasured: u64,
    pub(crate) left: BTreeMap<KeptReason, u64>,
    /// Pages that were tried several times, and got frames of unknown colors each time.
    pub(crate) missed: u64,
    /// Pages that could not be chosen from, by reason.
    pub(crate) unchosen: BTreeMap<&'static str, u64>,
    /// Pages that were considered, the part of them whose colors are known, and the part on wanted colors.
    pub(crate) pages: u64,
    pub(crate) known: u64,
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
            && program.look(id, &self.aim, recolorer).is_err()
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

impl Figures {
    fn add(&mut self, other: &Self) {
        self.recolored += other.recolored;
        self.missed += other.missed;
        self.confirmed += other.confirmed;
        self.checked += other.checked;
        self.unmeasured += other.unmeasured;
        for (why, pages) in &other.unchosen {
            *self.unchosen.entry(why).or_default() += pages;
        }
        self.pages += other.pages;
        self.known += other.known;
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
mod tests;

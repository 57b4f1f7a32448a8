//! Keeps hot pages of processes on the colors wanted, in visits.
//!
//! ```text
//!   accesses (tracker) ──> hot pages ──> too many of one color, or unknown? ──> visit: frames of colors with too few
//!        or what is there, up to a bound └──> not of the set, or unknown?     ──> visit: frames of the set
//!                                        └──> what cannot be moved            ──> visit: its color is measured
//! ```
//!
//! To give a page a frame of a known color takes less time than to find out the color of the one it has; so only what stays
//! is measured, and a sample afterwards.
//!
//! A cache of 1 MiB cares about the 256 pages that are hot, and not about a gigabyte that is not. So `spread` looks at the
//! hottest pages only, as many as the cache holds, and exchanges those that make them uneven over the colors. A set of
//! colors is for all memory that is accessed, hottest first.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use superhue_act::Inside;
use superhue_color::choice::{Hot, balance, counts};
use superhue_heat::PageSize;
use superhue_model::{
    BASE_PAGE_SIZE, Color, ColorSet, Obstacle, PAGES_PER_REGION, PageCount, ProcessId, VirtAddr,
};
use superhue_procfs::Roots;
use superhue_procfs::process::{cpu_now, present_pages};
use superhue_visit::{Done, Left, Placed, Want, Work};

use super::headroom;
use super::readiness::Readiness;
use crate::heat::Sampler;
use crate::visits::Visits;

/// A page is hot if its rate is no less: the last three samples found it touched.
const HOT: f32 = 0.7;

/// Samples before anything is believed of a process.
const SAMPLES: u64 = 3;

/// Pages asked about in one visit, at most.
const ASKED: usize = 512;

/// Pages placed without knowing whether they are accessed, at most: 64 MiB.
const BLIND: usize = 1 << 14;

/// Pages held to choose from, where nobody knows how many are free: 256 MiB.
const USUAL_HOLD: PageCount = PageCount(1 << 16);

/// How often what is there is looked at, where accesses cannot be tracked.
const LOOK: Duration = Duration::from_millis(500);

/// How often some pages are measured, to see whether they have the colors that they are believed to have, and how many;
/// the first time sooner.
const CHECK: Duration = Duration::from_secs(10);
const FIRST_CHECK: Duration = Duration::from_secs(1);
const CHECKED: usize = 32;

/// How often is asked whether colors can be told by now.
const GETTING_READY: Duration = Duration::from_millis(10);

/// Processes that have been seen for less, or have run for less, are let be: many end soon, others only wait, and both cost more
/// than they gain.
const YOUNG: Duration = Duration::from_millis(500);
const IDLE: Duration = Duration::from_millis(50);

/// After an obstacle a process is left alone for so long at first, and at most.
const REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(30);

/// A page that could not be told or moved so often is let be.
const ATTEMPTS: u8 = 3;

/// What is wanted.
#[derive(Debug, Clone)]
pub(crate) enum Aim {
    /// Hot pages even over all colors.
    Spread,
    /// All that is accessed on these colors.
    Within(ColorSet),
}

/// Places pages of processes by color.
#[derive(Debug)]
pub(crate) struct Keeper {
    aim: Aim,
    colors: usize,
    /// Pages that the cache holds.
    capacity: usize,
    visits: Visits,
    ready: Readiness,
    roots: Roots,
    processes: BTreeMap<ProcessId, Kept>,
    past: Kept,
    pub(crate) seen: u64,
    blind: bool,
    left_alone: BTreeMap<Obstacle, HashSet<ProcessId>>,
}

/// A page that may be placed.
#[derive(Debug, Clone, Copy)]
struct Page {
    at: u64,
    /// Part of a huge page: it counts, and stays.
    huge: bool,
    rate: f32,
}

/// What is known of the colors of one process.
#[derive(Debug, Default)]
pub(super) struct Kept {
    name: String,
    colors: HashMap<u64, Color>,
    /// Pages that could not be told or moved, and how often.
    refused: HashMap<u64, u8>,
    pages: Vec<Page>,
    /// Samples that `pages` is from; or when they were looked at.
    samples: u64,
    looked: Option<Duration>,
    check_due: Option<Duration>,
    rest: Duration,
    rests_until: Duration,
    /// It has used some CPU time.
    has_run: bool,
    settled: bool,
    pub(super) figures: Figures,
}

/// Counts for the report.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures {
    pub(crate) measured: u64,
    pub(crate) exchanged: u64,
    pub(crate) confirmed: u64,
    pub(crate) checked: u64,
    pub(crate) left: BTreeMap<Left, u64>,
    /// Pages among which nobody could choose, as accesses are not tracked and they were too many.
    pub(crate) unchosen: u64,
    /// Pages that were considered, and of these those on wanted colors.
    pub(crate) pages: u64,
    pub(crate) right: u64,
    /// Likewise, weighed by how often they are accessed.
    pub(crate) accesses: f64,
    pub(crate) right_accesses: f64,
    /// Fewest and most hot pages of a color.
    pub(crate) now: Option<(usize, usize)>,
}

impl Keeper {
    pub(super) fn new(
        aim: Aim,
        (colors, ways): (usize, Option<u32>),
        (visits, ready): (Visits, Readiness),
        roots: &Roots,
    ) -> Self {
        let ways = ways.map_or(8, |ways| ways as usize);
        Self {
            aim,
            colors,
            capacity: colors * ways,
            visits,
            ready,
            roots: roots.clone(),
            processes: BTreeMap::new(),
            past: Kept::default(),
            seen: 0,
            blind: false,
            left_alone: BTreeMap::new(),
        }
    }

    /// Takes in which processes are there; whether one has lasted and run for so long that its colors matter.
    pub(crate) fn has_work(&mut self, now: Duration, members: &[ProcessId]) -> bool {
        let gone: Vec<ProcessId> = (self.processes.keys())
            .filter(|id| !members.contains(id))
            .copied()
            .collect();
        for id in gone {
            if let Some(kept) = self.processes.remove(&id) {
                self.past.figures.add(&kept.figures);
            }
        }
        for &id in members {
            self.processes.entry(id).or_insert_with(|| {
                self.seen += 1;
                Kept {
                    rests_until: now + YOUNG,
                    ..Kept::default()
                }
            });
        }
        let mut processes = self.processes.iter_mut();
        processes.any(|(&id, kept)| now >= kept.rests_until && kept.has_run(id, &self.roots))
    }

    /// Does what is due for the processes that are there; whether anything was done.
    pub(crate) fn step(
        &mut self,
        now: Duration,
        members: &[ProcessId],
        sampler: Option<&Sampler>,
    ) -> bool {
        self.blind |= sampler.is_none();
        let mut happened = false;
        for id in members {
            let Some((id, mut kept)) = self.processes.remove_entry(id) else {
                continue;
            };
            if now >= kept.rests_until && kept.has_run(id, &self.roots) {
                self.refresh(id, &mut kept, now, sampler);
                happened |= self.work(id, &mut kept, now);
            }
            self.processes.insert(id, kept);
        }
        happened
    }

    /// How long until there is something to do; `None` where nothing is known to be.
    pub(crate) fn due(&self, now: Duration) -> Option<Duration> {
        let busy = self.processes.iter().filter(|(_, kept)| !kept.settled);
        let waits = busy.filter_map(|(&id, kept)| {
            if self.ready.is_under_way() {
                return Some(GETTING_READY);
            }
            let rest = kept.rests_until.saturating_sub(now);
            if !kept.has_run {
                // What only waits is asked about when there is a look, and wakes nobody.
                return (!rest.is_zero()).then_some(rest);
            }
            (self.ready.trouble().is_none()).then(|| rest.max(self.visits.wait_for(id)))
        });
        let look = self.blind.then_some(LOOK);
        waits.min().into_iter().chain(look).min()
    }

    /// Takes in what accesses have shown since, or what is there.
    fn refresh(
        &mut self,
        id: ProcessId,
        kept: &mut Kept,
        now: Duration,
        sampler: Option<&Sampler>,
    ) {
        let pages = match sampler {
            Some(sampler) => {
                let Some(map) = sampler.map(id) else { return };
                if map.samples() == kept.samples || map.samples() < SAMPLES {
                    return;
                }
                if map.samples() < kept.samples {
                    // It has executed another program: other memory.
                    kept.colors.clear();
                    kept.refused.clear();
                }
                kept.samples = map.samples();
                let mut pages = Vec::new();
                for range in map.ranges().filter(|range| range.count > 0) {
                    let is_hot = range.rate >= HOT;
                    if matches!(self.aim, Aim::Spread) && !is_hot {
                        continue;
                    }
                    let huge = match range.pages {
                        PageSize::Base => false,
                        PageSize::Huge => true,
                        // Nobody knows which pages of it are accessed.
                        PageSize::Range => continue,
                    };
                    let count = if huge { PAGES_PER_REGION } else { 1 };
                    pages.extend((0..count).map(|page| Page {
                        at: range.range.start.0 + page * BASE_PAGE_SIZE,
                        huge,
                        rate: range.rate,
                    }));
                }
                pages
            }
            None => {
                if kept.looked.is_some_and(|looked| now < looked + LOOK) {
                    return;
                }
                kept.looked = Some(now);
                let Ok(found) = present_pages(&self.roots, id, BLIND) else {
                    return;
                };
                let pages = found.into_iter().map(|found| Page {
                    at: found.page.0,
                    huge: found.huge,
                    rate: 1.0,
                });
                pages.collect()
            }
        };
        kept.take(pages, &self.aim, self.capacity, sampler.is_none());
        if kept.name.is_empty() {
            let name = std::fs::read_to_string(self.roots.of_process(id.pid, "comm"));
            kept.name = name.unwrap_or_default().trim_end().to_owned();
        }
    }

    /// One visit, if one is due and there is something to do.
    fn work(&mut self, id: ProcessId, kept: &mut Kept, now: Duration) -> bool {
        let work = match &self.aim {
            Aim::Spread => kept.work_to_spread(self.colors, self.capacity, now),
            Aim::Within(set) => kept.work_within(set, now),
        };
        kept.settled = work.is_none();
        kept.count(&self.aim, self.colors);
        let Some((work, checks)) = work else {
            return false;
        };
        if !self.ready.is_given() || !self.visits.wait_for(id).is_zero() {
            return false;
        }
        tracing::debug!(process = %id, pages = kept.pages.len(), known = kept.colors.len(), work = %work, checks, "colors");
        let room = headroom::for_process(&self.roots, id.pid);
        let room = room.map_or(PageCount(u64::MAX), |room| room.whole_pages());
        let hold = headroom::for_ourselves(&self.roots);
        let hold = hold.map_or(USUAL_HOLD, |hold| hold.whole_pages());
        let visited = self.visits.visit_with_room(id, &work, (room, hold));
        if matches!(visited, Err(Obstacle::Paced | Obstacle::Busy)) {
            return false;
        }
        for processes in self.left_alone.values_mut() {
            processes.remove(&id);
        }
        match visited {
            Ok(visited) => {
                kept.rest = Duration::ZERO;
                kept.enter(&work, visited.done, checks);
                kept.count(&self.aim, self.colors);
                true
            }
            Err(obstacle) => {
                kept.rest = (kept.rest * 2).clamp(REST, LONGEST_REST);
                if !obstacle.may_pass() {
                    kept.rest = LONGEST_REST;
                }
                kept.rests_until = now + kept.rest;
                self.left_alone.entry(obstacle).or_default().insert(id);
                false
            }
        }
    }

    /// What came of it, over all processes.
    pub(crate) fn figures(&self) -> Figures {
        let mut all = self.past.figures.clone();
        for kept in self.processes.values() {
            all.add(&kept.figures);
        }
        all
    }

    /// Of each process that is there: number, name, figures.
    pub(crate) fn each(&self) -> impl Iterator<Item = (u32, &str, &Figures)> {
        let each = self.processes.iter();
        each.map(|(id, kept)| (id.pid, kept.name.as_str(), &kept.figures))
    }

    /// Whether pages were placed without knowing which of them are accessed.
    pub(crate) const fn is_blind(&self) -> bool {
        self.blind
    }

    /// Why nothing can be placed, if that has come out.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.ready.trouble()
    }

    /// Processes that could not be visited when last tried.
    pub(crate) fn left_alone(&self) -> impl Iterator<Item = (Obstacle, usize)> {
        let counts = self.left_alone.iter();
        counts
            .map(|(obstacle, processes)| (*obstacle, processes.len()))
            .filter(|(_, count)| *count > 0)
    }
}

impl Kept {
    /// Whether the process has used so much CPU time that its colors matter.
    fn has_run(&mut self, id: ProcessId, roots: &Roots) -> bool {
        let has_run = || cpu_now(roots, id.pid).is_ok_and(|cpu| cpu.total() >= IDLE);
        self.has_run = self.has_run || has_run();
        self.has_run
    }

    /// Takes in pages that may be placed.
    fn take(&mut self, mut pages: Vec<Page>, aim: &Aim, capacity: usize, blind: bool) {
        self.figures.unchosen = 0;
        let hotter = |a: &Page, b: &Page| b.rate.total_cmp(&a.rate);
        match aim {
            // What is not accessed does not matter; where that is not known, all that fits, if all does.
            Aim::Spread if blind && pages.len() > 4 * capacity => {
                self.figures.unchosen = pages.len() as u64;
                pages.clear();
            }
            Aim::Spread => {
                pages.sort_by(hotter);
                if !blind {
                    pages.truncate(capacity);
                }
            }
            Aim::Within(_) => pages.sort_by(hotter),
        }
        // What is known of pages that are no more is known no more.
        if matches!(aim, Aim::Within(_)) || self.colors.len() > 16 * capacity {
            let there: HashSet<u64> = pages.iter().map(|page| page.at).collect();
            self.colors.retain(|page, _| there.contains(page));
            self.refused.retain(|page, _| there.contains(page));
        }
        self.pages = pages;
        self.settled = false;
    }

    fn is_refused(&self, page: u64) -> bool {
        self.refused
            .get(&page)
            .is_some_and(|times| *times >= ATTEMPTS)
    }

    /// Some pages to be measured again, if that is due.
    fn check(&mut self, now: Duration) -> Option<(Work, bool)> {
        if now < *self.check_due.get_or_insert(now + FIRST_CHECK) {
            return None;
        }
        self.check_due = Some(now + CHECK);
        let known = self.pages.iter().map(|page| page.at);
        let known: Vec<u64> = known
            .filter(|page| self.colors.contains_key(page))
            .collect();
        let step = (known.len() / CHECKED).max(1);
        // Others each time.
        let first = usize::try_from(self.figures.checked).unwrap_or(0) % step;
        let pages: Vec<VirtAddr> = (known.iter().skip(first).step_by(step).take(CHECKED))
            .map(|page| VirtAddr(*page))
            .collect();
        (!pages.is_empty()).then_some((Work::Colors(pages), true))
    }

    fn work_to_spread(
        &mut self,
        colors: usize,
        capacity: usize,
        now: Duration,
    ) -> Option<(Work, bool)> {
        // To give a page a frame of a known color costs less than to find out the color of the one it has. What cannot be
        // moved is measured: it counts where it is.
        let unknown = (self.pages.iter()).filter(|page| !self.colors.contains_key(&page.at));
        let unknown: Vec<VirtAddr> = (unknown.filter(|page| !self.is_movable(page)))
            .filter(|page| !self.is_refused(page.at))
            .take(ASKED)
            .map(|page| VirtAddr(page.at))
            .collect();
        if !unknown.is_empty() {
            return Some((Work::Colors(unknown), false));
        }
        let mut pages = Vec::new();
        let mut wanted = Vec::new();
        for part in self.pages.chunks(capacity.max(1)) {
            let hot: Vec<(u64, Hot)> = (part.iter())
                .map(|page| {
                    let color = self.colors.get(&page.at).copied();
                    let movable = self.is_movable(page);
                    (page.at, Hot { color, movable })
                })
                .collect();
            let (at, hot): (Vec<u64>, Vec<Hot>) = hot.into_iter().unzip();
            for (number, color) in balance(&hot, colors) {
                pages.push(VirtAddr(at[number]));
                wanted.push(color);
            }
        }
        if pages.is_empty() {
            return self.check(now);
        }
        pages.truncate(ASKED);
        wanted.truncate(ASKED);
        let want = Want::Each(wanted);
        Some((Work::Place { pages, want }, false))
    }

    /// Whether a page may be given another frame, and was not refused one.
    fn is_movable(&self, page: &Page) -> bool {
        let is_refused = if self.colors.contains_key(&page.at) {
            self.is_refused(page.at)
        } else {
            self.refused.contains_key(&page.at)
        };
        !page.huge && !is_refused
    }

    fn work_within(&mut self, set: &ColorSet, now: Duration) -> Option<(Work, bool)> {
        let wrong = |page: &&Page| {
            let color = self.colors.get(&page.at);
            !color.is_some_and(|color| set.contains(*color)) && !self.is_refused(page.at)
        };
        let pages: Vec<VirtAddr> = (self.pages.iter())
            .filter(wrong)
            .take(ASKED)
            .map(|page| VirtAddr(page.at))
            .collect();
        if pages.is_empty() {
            return self.check(now);
        }
        let want = Want::Within(set.clone());
        Some((Work::Place { pages, want }, false))
    }

    /// Enters what a visit came to.
    fn enter(&mut self, work: &Work, done: Done, checks: bool) {
        match (work, done) {
            (Work::Colors(pages), Done::Colors(told)) if checks => {
                let mut wrong = 0;
                for (page, told) in pages.iter().zip(told) {
                    let Some(told) = told else { continue };
                    self.figures.checked += 1;
                    if self.colors.insert(page.0, told) == Some(told) {
                        self.figures.confirmed += 1;
                    } else {
                        wrong += 1;
                    }
                }
                // Frames have been changed under us: by the kernel, the host, or the program itself.
                if wrong * 5 > pages.len() {
                    self.colors.clear();
                }
            }
            (Work::Colors(pages), Done::Colors(told)) => {
                for (page, told) in pages.iter().zip(told) {
                    match told {
                        Some(color) => {
                            self.figures.measured += 1;
                            self.colors.insert(page.0, color);
                        }
                        None => self.refuse(page.0),
                    }
                }
            }
            (Work::Place { pages, .. }, Done::Placed(placed)) => {
                for (page, placed) in pages.iter().zip(placed) {
                    match placed {
                        Placed::Exchanged(color) => {
                            self.figures.exchanged += 1;
                            self.colors.insert(page.0, color);
                            self.refused.remove(&page.0);
                        }
                        // A larger pool next time.
                        Placed::Left(Left::NoPage) => {}
                        Placed::Left(left) => {
                            self.refuse(page.0);
                            if self.is_refused(page.0) {
                                *self.figures.left.entry(left).or_default() += 1;
                            }
                        }
                    }
                }
            }
            _ => {}
        }
    }

    fn refuse(&mut self, page: u64) {
        let times = self.refused.entry(page).or_default();
        *times = times.saturating_add(1);
    }

    /// Counts where pages are now.
    fn count(&mut self, aim: &Aim, colors: usize) {
        let figures = &mut self.figures;
        (figures.pages, figures.right) = (0, 0);
        (figures.accesses, figures.right_accesses) = (0.0, 0.0);
        let mut hot = Vec::new();
        for page in &self.pages {
            let color = self.colors.get(&page.at).copied();
            let right = match aim {
                Aim::Spread => color.is_some(),
                Aim::Within(set) => color.is_some_and(|color| set.contains(color)),
            };
            figures.pages += 1;
            figures.accesses += f64::from(page.rate);
            if right {
                figures.right += 1;
                figures.right_accesses += f64::from(page.rate);
            }
            hot.extend(color.map(|color| Hot {
                color: Some(color),
                movable: true,
            }));
        }
        if matches!(aim, Aim::Spread) && hot.len() == self.pages.len() && !hot.is_empty() {
            let counts = counts(&hot, colors);
            let least = counts.iter().min().copied().unwrap_or(0);
            let most = counts.iter().max().copied().unwrap_or(0);
            figures.now = Some((least, most));
        }
    }
}

impl Figures {
    fn add(&mut self, other: &Self) {
        self.measured += other.measured;
        self.exchanged += other.exchanged;
        self.confirmed += other.confirmed;
        self.checked += other.checked;
        self.unchosen += other.unchosen;
        self.pages += other.pages;
        self.right += other.right;
        self.accesses += other.accesses;
        self.right_accesses += other.right_accesses;
        for (left, count) in &other.left {
            *self.left.entry(*left).or_default() += count;
        }
        // Of the process with the most to tell.
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

    fn asked(work: &Work) -> &[VirtAddr] {
        match work {
            Work::Colors(pages) | Work::Place { pages, .. } => pages,
            _ => &[],
        }
    }

    /// Works until nothing is left to do, in visits that do at most `most` pages; how many there were.
    fn settle(kept: &mut Kept, aim: &Aim, frames: &mut HashMap<u64, Color>, most: usize) -> usize {
        for visits in 0..1000 {
            let work = match aim {
                Aim::Spread => kept.work_to_spread(COLORS, CAPACITY, Duration::ZERO),
                Aim::Within(set) => kept.work_within(set, Duration::ZERO),
            };
            kept.count(aim, COLORS);
            let Some((work, checks)) = work else {
                return visits;
            };
            let done = match &work {
                Work::Colors(pages) => {
                    let told = pages.iter().take(most);
                    Done::Colors(told.map(|page| frames.get(&page.0).copied()).collect())
                }
                Work::Place { pages, want } => Done::Placed(
                    (pages.iter().take(most).enumerate())
                        .map(|(at, page)| {
                            let color = match want {
                                Want::Each(wanted) => wanted[at],
                                Want::Within(set) => set.iter().next().unwrap(),
                            };
                            frames.insert(page.0, color);
                            Placed::Exchanged(color)
                        })
                        .collect(),
                ),
                _ => panic!("{work}"),
            };
            assert!(!asked(&work).is_empty());
            kept.enter(&work, done, checks);
        }
        panic!("never settled");
    }

    #[test]
    fn a_hot_set_ends_even_over_all_colors_and_stays_alone() {
        let mut frames: HashMap<u64, Color> = (1..=60)
            .map(|page| (page * BASE_PAGE_SIZE, Color(u16::from(page % 3 == 0))))
            .collect();
        let mut kept = Kept::default();
        kept.take(pages(60, false), &Aim::Spread, CAPACITY, false);
        assert!(settle(&mut kept, &Aim::Spread, &mut frames, 7) > 60 / 7);
        assert_eq!(kept.figures.now, Some((7, 8)));
        assert_eq!(kept.figures.exchanged, 60, "cheaper than to measure them");
        // The same pages are hot at the next sample.
        kept.take(pages(60, false), &Aim::Spread, CAPACITY, false);
        assert_eq!(settle(&mut kept, &Aim::Spread, &mut frames, 7), 0);
    }

    #[test]
    fn pages_of_huge_pages_are_counted_and_left() {
        let mut frames: HashMap<u64, Color> = (1..=32)
            .map(|page| (page * BASE_PAGE_SIZE, Color(0)))
            .collect();
        let mut kept = Kept::default();
        kept.take(pages(32, true), &Aim::Spread, CAPACITY, false);
        assert_eq!(settle(&mut kept, &Aim::Spread, &mut frames, 100), 1);
        assert_eq!(
            (kept.figures.exchanged, kept.figures.now),
            (0, Some((0, 32)))
        );
    }

    #[test]
    fn what_cannot_be_moved_is_measured_and_counts() {
        let mut kept = Kept::default();
        kept.take(pages(2, false), &Aim::Spread, CAPACITY, false);
        let next = |kept: &mut Kept| {
            let work = kept.work_to_spread(COLORS, CAPACITY, Duration::ZERO);
            work.map(|(work, _)| work)
        };
        let work = next(&mut kept).unwrap();
        let placed = vec![Placed::Left(Left::Busy), Placed::Exchanged(Color(1))];
        kept.enter(&work, Done::Placed(placed), false);
        let work = next(&mut kept).unwrap();
        assert!(matches!(&work, Work::Colors(pages) if pages.len() == 1));
        kept.enter(&work, Done::Colors(vec![Some(Color(1))]), false);
        // It is tried again now and then: a page that is shared since a fork may be written by and by.
        let work = next(&mut kept).unwrap();
        assert!(matches!(&work, Work::Place { pages, .. } if pages.len() == 1));
        for _ in 1..ATTEMPTS {
            let left = vec![Placed::Left(Left::Busy)];
            kept.enter(&work, Done::Placed(left), false);
        }
        kept.count(&Aim::Spread, COLORS);
        assert_eq!(kept.figures.now, Some((0, 2)));
        assert_eq!(kept.figures.left.get(&Left::Busy), Some(&1));
    }

    #[test]
    fn only_as_much_as_the_cache_holds_is_looked_at_and_blindly_only_if_all_fits() {
        let mut kept = Kept::default();
        kept.take(pages(1000, false), &Aim::Spread, CAPACITY, false);
        assert_eq!(kept.pages.len(), CAPACITY);
        kept.take(pages(1000, false), &Aim::Spread, CAPACITY, true);
        assert!(kept.pages.is_empty());
        assert_eq!(kept.figures.unchosen, 1000);
        kept.take(pages(200, false), &Aim::Spread, CAPACITY, true);
        assert_eq!(kept.pages.len(), 200);
    }

    #[test]
    fn what_cannot_be_moved_is_let_be_after_some_attempts() {
        let request: ColorRequest = "0-3".parse().unwrap();
        let aim = Aim::Within(request.of(COLORS).unwrap().unwrap());
        let Aim::Within(set) = &aim else { return };
        let mut kept = Kept::default();
        kept.take(pages(3, false), &aim, CAPACITY, false);
        for _ in 0..ATTEMPTS {
            let (work, _) = kept.work_within(set, Duration::ZERO).unwrap();
            let left = vec![Placed::Left(Left::Busy); asked(&work).len()];
            kept.enter(&work, Done::Placed(left), false);
        }
        assert!(kept.work_within(set, Duration::ZERO).is_none());
        assert_eq!(kept.figures.left.get(&Left::Busy), Some(&3));
        // A page of a wanted color that was not found is tried for ever.
        let mut kept = Kept::default();
        kept.take(pages(1, false), &aim, CAPACITY, false);
        for _ in 0..100 {
            let (work, _) = kept.work_within(set, Duration::ZERO).unwrap();
            kept.enter(&work, Done::Placed(vec![Placed::Left(Left::NoPage)]), false);
        }
        kept.count(&aim, COLORS);
        assert_eq!((kept.figures.pages, kept.figures.right), (1, 0));
    }

    #[test]
    fn pages_are_measured_again_and_forgotten_if_their_frames_have_changed() {
        let mut frames: HashMap<u64, Color> = (1..=64)
            .map(|page| {
                (
                    page * BASE_PAGE_SIZE,
                    Color(u16::try_from(page % 8).unwrap()),
                )
            })
            .collect();
        let mut kept = Kept::default();
        kept.take(pages(64, false), &Aim::Spread, CAPACITY, false);
        settle(&mut kept, &Aim::Spread, &mut frames, 100);
        assert!(kept.check(FIRST_CHECK / 2).is_none());
        let (work, checks) = kept.check(FIRST_CHECK).unwrap();
        assert!(checks && asked(&work).len() == CHECKED);
        let moved = asked(&work).iter().map(|page| {
            let Color(color) = frames[&page.0];
            Some(Color((color + 1) % 8))
        });
        let moved = moved.collect();
        kept.enter(&work, Done::Colors(moved), true);
        assert_eq!(
            (kept.figures.checked, kept.figures.confirmed),
            (CHECKED as u64, 0)
        );
        assert!(kept.colors.is_empty());
    }
}

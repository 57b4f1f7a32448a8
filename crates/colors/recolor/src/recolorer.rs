//! Places pages of processes by color ([`Recolorer`]).

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use superhue_color::oracles::{HardwareProbe, MeasuredOracle};
use superhue_model::{Color, PageCount, Pfn, ProcessId, VirtAddr};
use superhue_procfs::process::{PageWord, has_nodes, stat};
use superhue_procfs::system::PageFlagsFile;
use superhue_procfs::{ReadError, Roots};
use superhue_sys::busy;
use superhue_sys::process::thread_cpu_time;

use crate::cpus::{FifoScheduling, ProgramCpus};
use crate::error::RecolorError;
use crate::frames::FrameColors;
use crate::nodes;
use crate::price::Price;
use crate::round::{BATCH, Job, OtherCpuFrames, is_out, run};
use crate::stock::Stock;
use crate::target::{MovablePage, Target};
use crate::want::{KeptReason, RecolorResult, TargetColors};

/// Attempts in one call for pages that did not get the dealt frame.
const ROUNDS: usize = 3;

/// Most unmapped pages that are remembered.
const UNMAPPED: usize = 1 << 16;

/// Gives pages of processes frames of chosen colors.
#[derive(Debug)]
pub struct Recolorer {
    stock: Stock,
    known: FrameColors,
    flags: PageFlagsFile,
    roots: Roots,
    /// True if several NUMA nodes have memory.
    has_nodes: bool,
    targets: BTreeMap<ProcessId, TargetState>,
    begun: Instant,
    price: Price,
}

/// A process that is being recolored.
#[derive(Debug)]
struct TargetState {
    target: Target,
    elsewhere: OtherCpuFrames,
    /// Pages that were not mapped again at the last look, and the frames that they had before they went out.
    unmapped: HashMap<VirtAddr, Pfn>,
}

impl Recolorer {
    /// Makes one with an oracle of our own memory.
    ///
    /// # Errors
    /// If frame numbers or flags of frames may not be read (`CAP_SYS_ADMIN`), or without memory.
    pub fn new(oracle: MeasuredOracle<HardwareProbe>, roots: &Roots) -> Result<Self, RecolorError> {
        let denied = |error: ReadError| RecolorError::NotPermitted(error.to_string());
        Ok(Self {
            stock: Stock::new(oracle)?,
            known: FrameColors::default(),
            flags: PageFlagsFile::open(roots).map_err(denied)?,
            roots: roots.clone(),
            has_nodes: has_nodes(roots),
            targets: BTreeMap::new(),
            begun: Instant::now(),
            price: Price::default(),
        })
    }

    /// Returns the number of colors.
    #[must_use]
    pub fn colors(&self) -> usize {
        self.stock.colors()
    }

    /// Returns the total price so far.
    #[must_use]
    pub const fn price(&self) -> Price {
        self.price
    }

    /// Closes the files of processes for which `is_member` is false.
    pub fn retain(&mut self, is_member: impl Fn(ProcessId) -> bool) {
        self.targets.retain(|&id, _| is_member(id));
    }

    /// Returns the current colors of pages of a process, in their order; `None` for a page whose color is unknown.
    ///
    /// # Errors
    /// See [`RecolorError`].
    pub fn colors_of(
        &mut self,
        id: ProcessId,
        pages: &[VirtAddr],
    ) -> Result<Vec<Option<Color>>, RecolorError> {
        let now = self.begun.elapsed();
        let words = self.words(id, pages)?;
        let colors = words.into_iter().map(|word| {
            let frame = word.frame()?;
            self.known.color(frame, now)
        });
        Ok(colors.collect())
    }

    /// Gives `pages` frames of wanted colors; returns one result for each of them, in their order. It may hold `hold`
    /// frames of the machine to find frames of wanted colors among them.
    ///
    /// # Errors
    /// See [`RecolorError`]; pages recolored before the error stay recolored.
    pub fn place(
        &mut self,
        id: ProcessId,
        pages: &[VirtAddr],
        want: &TargetColors,
        hold: PageCount,
    ) -> Result<Vec<RecolorResult>, RecolorError> {
        let (cpu, faults) = (thread_cpu_time(), self.faults_of(id));
        let placed = self.place_in_rounds(id, pages, want, hold);
        self.price.cpu += thread_cpu_time().saturating_sub(cpu);
        self.add_faults(id, faults);
        if placed.is_err() {
            self.targets.remove(&id);
        }
        placed
    }

    fn place_in_rounds(
        &mut self,
        id: ProcessId,
        pages: &[VirtAddr],
        want: &TargetColors,
        hold: PageCount,
    ) -> Result<Vec<RecolorResult>, RecolorError> {
        let mut states = vec![State::default(); pages.len()];
        let mut hungry: Vec<usize> = (0..pages.len()).collect();
        if let TargetColors::Each(wanted) = want {
            hungry.truncate(wanted.len());
        }
        for round in 0..=ROUNDS {
            let movable = self.sort(id, pages, want, &hungry, &mut states)?;
            if movable.is_empty() || round == ROUNDS {
                break;
            }
            self.price.rounds += 1;
            let jobs = self.jobs(pages, want, &movable, hold)?;
            for &(at, _) in &movable {
                states[at].result = Some(RecolorResult::Kept(KeptReason::NoFrame));
            }
            for job in &jobs {
                // Holds unless a later look shows another result.
                states[job.at].result = Some(RecolorResult::Kept(KeptReason::InUse));
            }
            let cpus = ProgramCpus::of(&self.roots, id.pid);
            for batch in jobs.chunks(BATCH) {
                let Some(opened) = self.targets.get_mut(&id) else {
                    return Err(RecolorError::Gone);
                };
                let ours = (&mut self.stock, &mut self.price);
                run(ours, &opened.target, &cpus, &mut opened.elsewhere, batch);
            }
            hungry = jobs.iter().map(|job| job.at).collect();
        }
        if let Some(opened) = self.targets.get_mut(&id) {
            let is_out = |state: &State| state.result == Some(RecolorResult::Unmapped);
            let out = pages.iter().zip(&states).filter(|(_, state)| is_out(state));
            let out = out.filter_map(|(page, state)| Some((*page, state.first?)));
            opened.unmapped.extend(out);
            // Pages that are never used again accumulate; a forgotten page is only tried once more.
            if opened.unmapped.len() > UNMAPPED {
                opened.unmapped.clear();
            }
        }
        let nothing = RecolorResult::Kept(KeptReason::NoFrame);
        Ok(states
            .into_iter()
            .map(|state| state.result.unwrap_or(nothing))
            .collect())
    }

    /// Looks at the `hungry` pages: records the result of each, and returns those that are to be taken out (again).
    fn sort(
        &mut self,
        id: ProcessId,
        pages: &[VirtAddr],
        want: &TargetColors,
        hungry: &[usize],
        states: &mut [State],
    ) -> Result<Vec<(usize, MovablePage)>, RecolorError> {
        let now = self.begun.elapsed();
        let asked: Vec<VirtAddr> = hungry.iter().map(|&at| pages[at]).collect();
        let words = self.words(id, &asked)?;
        self.may_take_out(id)?;
        let mut again = Vec::new();
        for (&at, word) in hungry.iter().zip(words) {
            let state = &mut states[at];
            let frame = word.frame();
            let color = frame.and_then(|frame| self.known.color(frame, now));
            if let (Some(opened), Some(frame)) = (self.targets.get_mut(&id), frame) {
                opened.elsewhere.note(frame);
                // The page was out and came back to the same frame: something holds a reference to it.
                if opened.unmapped.remove(&pages[at]) == Some(frame) {
                    state.result = Some(RecolorResult::Kept(KeptReason::InUse));
                    continue;
                }
            }
            let is_new = state.first.is_some() && frame.is_some() && state.first != frame;
            state.first = state.first.or(frame);
            let may_split = matches!(want, TargetColors::Within(_));
            let movable = Target::movable(word, &self.flags, may_split)?;
            state.result = Some(match (color, movable) {
                (Some(color), _)
                    if is_new
                        && (matches!(want, TargetColors::Each(_)) || want.accepts(at, color)) =>
                {
                    RecolorResult::Recolored(color)
                }
                (Some(color), _) if want.accepts(at, color) => RecolorResult::Already(color),
                (_, Ok(movable)) => {
                    state.shared = !movable.private;
                    again.push((at, movable));
                    if is_new {
                        RecolorResult::Missed
                    } else {
                        RecolorResult::Kept(KeptReason::InUse)
                    }
                }
                // `pagemap` does not mark shared memory that is out.
                (_, Err(KeptReason::Absent))
                    if state.first.is_some() && (word.is_swapped() || state.shared) =>
                {
                    RecolorResult::Unmapped
                }
                (_, Err(kept)) => RecolorResult::Kept(kept),
            });
        }
        Ok(again)
    }

    /// Finds frames for pages: one of a wanted color for each, as far as there are any.
    fn jobs(
        &mut self,
        pages: &[VirtAddr],
        want: &TargetColors,
        movable: &[(usize, MovablePage)],
        hold: PageCount,
    ) -> Result<Vec<Job>, RecolorError> {
        let now = self.begun.elapsed();
        let mut wanted = vec![0_usize; self.stock.colors()];
        match want {
            TargetColors::Each(colors) => {
                let each = movable.iter().filter_map(|(at, _)| colors.get(*at));
                for color in each {
                    // One for home, one for another CPU of the program.
                    if let Some(wanted) = wanted.get_mut(usize::from(color.0)) {
                        *wanted += 2;
                    }
                }
            }
            TargetColors::Within(set) => {
                let each = (2 * movable.len()).div_ceil(set.len().max(1));
                for color in set.iter() {
                    if let Some(wanted) = wanted.get_mut(usize::from(color.0)) {
                        *wanted = each;
                    }
                }
            }
        }
        self.stock.provide(&wanted, hold, &mut self.known, now)?;
        let mut left: Vec<usize> = (0..u16::try_from(wanted.len()).unwrap_or(u16::MAX))
            .map(|color| self.stock.count(Color(color)))
            .collect();
        let mut jobs = Vec::with_capacity(movable.len());
        for &(at, movable) in movable {
            let color = match want {
                TargetColors::Each(colors) => colors.get(at).copied(),
                TargetColors::Within(set) => set
                    .iter()
                    .max_by_key(|color| left.get(usize::from(color.0)).copied()),
            };
            let Some(color) = color else { continue };
            let Some(count) = left
                .get_mut(usize::from(color.0))
                .filter(|count| **count > 0)
            else {
                continue;
            };
            *count -= 1;
            jobs.push(Job {
                at,
                page: pages[at],
                color,
                movable,
            });
        }
        Ok(jobs)
    }

    /// Measures again the frames of pages whose colors are known: each page gets another frame of its color, and its
    /// old frame is measured.
    ///
    /// # Errors
    /// See [`RecolorError`].
    pub fn check(
        &mut self,
        id: ProcessId,
        pages: &[VirtAddr],
        hold: PageCount,
    ) -> Result<ColorCheck, RecolorError> {
        let (cpu, faults) = (thread_cpu_time(), self.faults_of(id));
        let checked = self.check_frames(id, pages, hold);
        self.price.cpu += thread_cpu_time().saturating_sub(cpu);
        self.add_faults(id, faults);
        checked
    }

    /// Adds the page faults of a process since a reading, if both are known.
    fn add_faults(&mut self, id: ProcessId, before: Option<u64>) {
        let faults = self.faults_of(id).zip(before);
        let more = faults.map_or(0, |(after, before)| after.saturating_sub(before));
        self.price.program_faults += more;
    }

    fn check_frames(
        &mut self,
        id: ProcessId,
        pages: &[VirtAddr],
        hold: PageCount,
    ) -> Result<ColorCheck, RecolorError> {
        let now = self.begun.elapsed();
        let words = self.words(id, pages)?;
        self.may_take_out(id)?;
        let mut jobs = Vec::new();
        let mut wanted = vec![0_usize; self.stock.colors()];
        for ((at, &page), word) in pages.iter().enumerate().zip(words) {
            let Ok(movable) = Target::movable(word, &self.flags, false)? else {
                continue;
            };
            let Some(color) = self.known.color(movable.frame, now) else {
                continue;
            };
            if let Some(wanted) = wanted.get_mut(usize::from(color.0)) {
                *wanted += 1;
            }
            jobs.push(Job {
                at,
                page,
                color,
                movable,
            });
        }
        self.stock.provide(&wanted, hold, &mut self.known, now)?;
        let cpus = ProgramCpus::of(&self.roots, id.pid);
        let mut caught = Vec::new();
        // While pages are out, the stock may give nothing back: it would lose frames that wait to be measured.
        if self.stock.make_room(jobs.len()) {
            self.stock.provide(&wanted, hold, &mut self.known, now)?;
        }
        for batch in jobs.chunks(BATCH) {
            let Some(TargetState { target, .. }) = self.targets.get(&id) else {
                return Err(RecolorError::Gone);
            };
            let _served = FifoScheduling::on(cpus.home);
            for job in batch {
                self.price.attempts += 1;
                if target.page_out(job.page).is_err() || !is_out(target, job) {
                    continue;
                }
                self.price.outs += 1;
                let found = self.stock.catch();
                if self.stock.deal(job.color).is_some() {
                    self.price.dealt += 1;
                }
                target.page_in(job.page);
                self.price.ins += 1;
                // Another frame than the page's own says nothing about it.
                let found = found?;
                if found.frame == Some(job.movable.frame) {
                    caught.push((found, *job));
                }
            }
        }
        let frames: Vec<_> = caught.iter().map(|(found, _)| *found).collect();
        let colors = self.stock.measure_caught(&frames)?;
        let mut checked = ColorCheck::default();
        for ((_, job), color) in caught.iter().zip(colors) {
            let frame = job.movable.frame;
            match color {
                // The stock's page may lie in another frame by now.
                Some((measured, _)) if measured != frame => {}
                Some((_, color)) => {
                    checked.measured += 1;
                    checked.confirmed += u64::from(color == job.color);
                    self.known.learn(frame, color, now);
                }
                None => {
                    checked.unmeasured += 1;
                    self.known.forget(frame);
                }
            }
        }
        // The host has moved the frames.
        if checked.measured >= 8 && (checked.measured - checked.confirmed) * 5 > checked.measured {
            self.known.clear();
            self.stock.give_back();
        }
        Ok(checked)
    }

    /// Opens a process if it is not open yet, and reads words of its `pagemap`.
    fn words(&mut self, id: ProcessId, pages: &[VirtAddr]) -> Result<Vec<PageWord>, RecolorError> {
        if !self.targets.contains_key(&id) {
            let target = Target::open(&self.roots, id)?;
            let opened = TargetState {
                target,
                elsewhere: OtherCpuFrames::default(),
                unmapped: HashMap::new(),
            };
            self.targets.insert(id, opened);
        }
        // These files stay open, so that only this names the process that holds a reader up.
        busy::note(id.pid);
        let opened = self.targets.get(&id).ok_or(RecolorError::Gone)?;
        let words = opened.target.words(pages);
        if words.is_err() {
            self.targets.remove(&id);
        }
        words
    }

    /// Ensures that pages of an open process may be taken out: that no userfaultfd watches its memory, and that they come in again on
    /// its NUMA node.
    fn may_take_out(&mut self, id: ProcessId) -> Result<(), RecolorError> {
        if self.has_nodes {
            nodes::check(&self.roots, id.pid)?;
        }
        let opened = self.targets.get_mut(&id).ok_or(RecolorError::Gone)?;
        opened.target.is_unwatched(&self.roots, id)
    }

    /// Major faults of a process: those that waited for I/O.
    fn faults_of(&self, id: ProcessId) -> Option<u64> {
        stat(&self.roots, id.pid).ok().map(|stat| stat.maj_faults)
    }

    /// Gives back the frames that are held.
    pub fn give_back(&mut self) {
        self.stock.give_back();
    }
}

/// Result of measuring pages again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ColorCheck {
    /// Pages whose color could be measured.
    pub measured: u64,
    /// Of these, pages whose color was the known one.
    pub confirmed: u64,
    /// Pages whose color could not be measured: the timing was not clear.
    pub unmeasured: u64,
}

/// State of a page while it is placed.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// The frame it had at the first look.
    first: Option<Pfn>,
    /// True if it belongs to shared memory.
    shared: bool,
    result: Option<RecolorResult>,
}

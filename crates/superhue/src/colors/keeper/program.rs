//! A program whose memory is kept on its colors: its pages, the next step with them, and those that the kernel keeps.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use superhue_color::choice::{HotPage, balance, counts};
use superhue_model::{Color, ColorSet, PageCount, ProcessId, VirtAddr};
use superhue_procfs::Roots;
use superhue_procfs::process::cpu_now;
use superhue_recolor::{KeptReason, RecolorError, RecolorResult, Recolorer, TargetColors};

use super::{Figures, LONG_REST, PlacementGoal, TOO_MUCH};

/// Rate from which on a page is hot: the last three samples found it touched.
pub(super) const HOT: f32 = 0.7;

/// Samples of a process that are needed before its pages are placed.
pub(super) const SAMPLES: u64 = 3;

/// Pages recolored in one step, at most: some 10 ms.
pub(super) const MAX_RECOLORED_PAGES: usize = 512;

/// Pages whose frames are looked up in one step, at most: some 2 ms. If there are more, each step takes the next part of them.
const MAX_LOOKUP_PAGES: usize = 4096;

/// Pages placed without knowledge of their accesses, at most: 64 MiB.
pub(super) const MAX_UNTRACKED_PAGES: usize = 1 << 14;

/// Interval between measurements that check known colors, the time until the first one, and the number of pages in each.
const CHECK: Duration = Duration::from_secs(10);
pub(super) const FIRST_CHECK: Duration = Duration::from_secs(1);
pub(super) const CHECKED: usize = 32;

/// Youngest age, and least CPU time, of a process that is recolored: many processes end soon, others only wait, and both cost more than they gain.
pub(super) const YOUNG: Duration = Duration::from_millis(500);
const IDLE: Duration = Duration::from_millis(50);

/// A page that the kernel kept this many times is left alone for a while: another process that maps it may end. The while doubles each time.
const ATTEMPTS: u8 = 3;
const REFUSED: Duration = Duration::from_secs(30);
const LONGEST_REFUSED: Duration = Duration::from_secs(600);

/// A page that got another frame than the wanted one weighs less: the next attempt may succeed.
const KEPT_WEIGHS: u8 = 4;
const MISSED_WEIGHS: u8 = 1;

/// Next step for a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Give pages frames of wanted colors.
    Place {
        pages: Vec<VirtAddr>,
        want: TargetColors,
    },
    /// Measure frames of pages whose colors are known.
    Check { pages: Vec<VirtAddr> },
}

/// A page that is considered for placement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Page {
    pub(super) at: u64,
    /// Part of a huge page: it counts, but is not moved.
    pub(super) huge: bool,
    pub(super) rate: f32,
}

/// State of the colors of one process.
#[derive(Debug, Default)]
pub(super) struct Program {
    pub(super) name: String,
    pub(super) colors: HashMap<u64, Color>,
    /// Pages that were brought in again and not used since, whose frames are not known yet; the color that each was to get, `None` for one of the set.
    pub(super) pending: HashMap<u64, Option<Color>>,
    /// Pages that did not get the wanted frame.
    pub(super) refused: HashMap<u64, Refusal>,
    pub(super) pages: Vec<Page>,
    /// Index of the first page of the next look, where there are too many pages for one.
    pub(super) next_look: usize,
    /// Number of samples behind `pages`; or, without tracking, the time of the last look at resident pages.
    pub(super) samples: u64,
    pub(super) looked: Option<Duration>,
    pub(super) check_due: Option<Duration>,
    /// Number of checks so far.
    pub(super) checks: usize,
    pub(super) rest: Duration,
    pub(super) rests_until: Duration,
    /// True once it has used some CPU time.
    pub(super) has_run: bool,
    pub(super) settled: bool,
    pub(super) figures: Figures,
}

/// Failures of a page to get the wanted frame.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Refusal {
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

impl Program {
    /// Returns true if the process has used enough CPU time for its colors to matter.
    pub(super) fn has_run(&mut self, id: ProcessId, roots: &Roots) -> bool {
        let has_run = || cpu_now(roots, id.pid).is_ok_and(|cpu| cpu.total() >= IDLE);
        self.has_run = self.has_run || has_run();
        self.has_run
    }

    /// Returns true if no page of it is placed soon: all are in place, or it only waits, or it is left alone for a while.
    pub(super) fn is_idle(&self, now: Duration) -> bool {
        self.settled || !self.has_run || self.rests_until > now + LONG_REST
    }

    /// Takes over the pages that may be placed.
    pub(super) fn take(
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
        // A page that is not hot now may be hot again before its rest ends.
        (self.refused).retain(|page, it| there.contains(page) || it.until > now);
        let is_large = self.pending.len() > 16 * capacity;
        (self.pending).retain(|page, _| !is_large || there.contains(page));
        self.pages = pages;
        self.settled = false;
    }

    /// Looks up the colors of the pages' current frames; of many pages, the next part each time.
    pub(super) fn look(
        &mut self,
        id: ProcessId,
        aim: &PlacementGoal,
        recolorer: &mut Recolorer,
    ) -> Result<(), RecolorError> {
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
                    let is_wanted = match (self.pending.remove(&page.0), aim) {
                        (None, _) => false,
                        (Some(Some(wanted)), _) => wanted == color,
                        (Some(None), PlacementGoal::Within(set)) => set.contains(color),
                        (Some(None), PlacementGoal::Spread) => true,
                    };
                    self.figures.recolored += u64::from(is_wanted);
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
    pub(super) fn check(&mut self, now: Duration) -> Option<Step> {
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
        let first = self.checks % step;
        self.checks += 1;
        let pages: Vec<VirtAddr> = (known.iter().skip(first).step_by(step).take(CHECKED))
            .map(|page| VirtAddr(*page))
            .collect();
        (!pages.is_empty()).then_some(Step::Check { pages })
    }

    pub(super) fn step_to_spread(
        &mut self,
        colors: usize,
        capacity: usize,
        now: Duration,
    ) -> Option<Step> {
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

    pub(super) fn step_within(&mut self, set: &ColorSet, now: Duration) -> Option<Step> {
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
    pub(super) fn take_step(
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
                self.enter(pages, want, &placed, now);
                let none = RecolorResult::Kept(KeptReason::NoFrame);
                Ok(placed.iter().any(|placed| *placed != none))
            }
            Step::Check { pages } => {
                let checked = recolorer.check(id, pages, hold)?;
                self.figures.checked += checked.measured;
                self.figures.confirmed += checked.confirmed;
                self.figures.unmeasured += checked.unmeasured;
                Ok(true)
            }
        }
    }

    /// Records the results for pages that were to be placed.
    pub(super) fn enter(
        &mut self,
        pages: &[VirtAddr],
        want: &TargetColors,
        placed: &[RecolorResult],
        now: Duration,
    ) {
        for (at, (page, placed)) in pages.iter().zip(placed).enumerate() {
            // Counted here, unless its frame is not known yet.
            self.pending.remove(&page.0);
            match *placed {
                RecolorResult::Recolored(color) => {
                    // A new frame of another color is known now, too.
                    self.figures.recolored += u64::from(want.accepts(at, color));
                    self.colors.insert(page.0, color);
                    self.refused.remove(&page.0);
                }
                RecolorResult::Already(color) => {
                    self.colors.insert(page.0, color);
                }
                RecolorResult::Unmapped => {
                    let wanted = match want {
                        TargetColors::Each(colors) => colors.get(at).copied(),
                        TargetColors::Within(_) => None,
                    };
                    self.pending.insert(page.0, wanted);
                }
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
    pub(super) fn count(&mut self, aim: &PlacementGoal, colors: usize, now: Duration) {
        let figures = &mut self.figures;
        (figures.missed, figures.left) = (0, BTreeMap::new());
        for refusal in self.refused.values().filter(|refusal| refusal.holds(now)) {
            match refusal.kept {
                Some(kept) => *figures.left.entry(kept).or_default() += 1,
                None => figures.missed += 1,
            }
        }
        (figures.pages, figures.known, figures.right) = (0, 0, 0);
        (figures.accesses, figures.right_accesses) = (0.0, 0.0);
        let mut hot = Vec::new();
        for page in &self.pages {
            let color = self.colors.get(&page.at).copied();
            let right = match aim {
                PlacementGoal::Spread => color.is_some(),
                PlacementGoal::Within(set) => color.is_some_and(|color| set.contains(color)),
            };
            figures.pages += 1;
            figures.known += u64::from(color.is_some());
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

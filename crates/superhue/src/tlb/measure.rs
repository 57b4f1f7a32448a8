//! Measurement of the TLB: what follows from the times of chases.

use serde::{Deserialize, Serialize};
use superhue_color::chase::{ChaseTimes, LEAST_ROUNDS, MOST_FULL, MOST_PAGES, PageChase, Rounds};
use superhue_procfs::Roots;

use super::steps::{Levels, MOST_NOISE, Point, level, noise};
use super::{TlbCosts, TlbEntries};
use crate::colors::headroom;

/// The quantile that counts. Disturbances only add time; not the very fastest, because clocks err, too.
const QUANTILE: f64 = 0.1;

/// Most by which the levels found in two halves of the rounds may differ from those in all, a share.
const ERROR: f64 = 0.25;

/// Huge pages are whole if such a chase takes no longer than its control by this factor.
const WHOLE: f64 = 1.25;

/// Page tables of the view for full walks, by slot.
const TABLES: u64 = 2 * 4096;

/// Rounds of the chase of full walks.
const FULL_ROUNDS: usize = 8;

/// A TLB as the measurement found it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReachMeasurement {
    pub(super) base: TlbEntries,
    pub(super) huge: TlbEntries,
    pub(super) huge_pages_whole: Option<bool>,
    pub(super) costs: TlbCosts,
}

/// Measures the TLB of the CPUs on which this thread runs. Takes less than a second of CPU time. The error is the reason in words.
pub(super) fn measure(roots: &Roots) -> Result<ReachMeasurement, String> {
    let failed = |errno: rustix::io::Errno| format!("its memory could not be mapped: {errno}");
    let mut chase = PageChase::new().map_err(failed)?;
    let mut measured = conclude(&Rounds::measure(&mut chase))?;
    let entries = measured.base.last.unwrap_or_default() as usize;
    measured.costs.full_walk_seconds = full_walk(roots, &mut chase, entries);
    Ok(measured)
}

/// Returns what the times show, without full walks; the reason in words if they do not show the reach of the last TLB.
pub(super) fn conclude(times: &Rounds) -> Result<ReachMeasurement, String> {
    let rounds = times.base.rounds();
    if rounds < LEAST_ROUNDS {
        return Err(format!(
            "the CPUs were too busy to time it: {rounds} rounds of {LEAST_ROUNDS}; ask again when they are less so"
        ));
    }
    let (curve, hit) = curve(&times.base, |_| true);
    if let Some(noise) = noise(&curve).filter(|ns| *ns > MOST_NOISE * hit) {
        return Err(format!(
            "the times scatter by {noise:.1} ns, and a load takes {hit:.1}: ask again when the machine is less busy"
        ));
    }
    let base = levels(&times.base);
    let Some(last) = base.last else {
        return Err(silent(base.first));
    };
    let whole = huge_pages_whole(&times.spread);
    // Where the host maps a huge page by smaller ones, the entries are those of the smaller ones.
    let huge = match whole {
        Some(true) => levels(&times.huge),
        Some(false) | None => Levels::default(),
    };
    let between = |from: f64, to: f64| level(&curve, from, to).map(seconds);
    Ok(ReachMeasurement {
        base: base.into(),
        huge: huge.into(),
        huge_pages_whole: whole,
        costs: TlbCosts {
            second_hit_seconds: base
                .first
                .and_then(|first| between(first * 2.0, last / 1.2)),
            walk_seconds: between(last * 2.0, last * 4.0),
            full_walk_seconds: None,
        },
    })
}

/// Reason for a curve that shows no last level.
fn silent(first: Option<f64>) -> String {
    match first {
        Some(first) => format!(
            "timing shows a TLB of {first:.0} entries, but no step behind it up to {MOST_PAGES} pages"
        ),
        None => format!(
            "timing shows no step up to {MOST_PAGES} pages, or other steps in each half of the rounds"
        ),
    }
}

fn seconds(ns: f64) -> f64 {
    ns.max(0.0) * 1e-9
}

/// Returns true if one translation serves a whole huge page; `None` without huge pages.
fn huge_pages_whole(spread: &[[f64; 2]]) -> Option<bool> {
    let [spread, control] = quantiles(spread, |_| true)?;
    Some(spread < control * WHOLE)
}

/// Times loads that find no upper level of the page tables in the processor's walk caches; `None` without memory for the tables.
fn full_walk(roots: &Roots, chase: &mut PageChase, entries: usize) -> Option<f64> {
    // Half as many again: every load misses.
    let slots = entries + entries / 2;
    let room = headroom::for_ourselves(roots)?;
    if slots > MOST_FULL || room.0 < slots as u64 * TABLES {
        return None;
    }
    let times = chase.time_full(slots, FULL_ROUNDS).ok()?;
    let [full, control] = quantiles(&times, |_| true)?;
    Some(seconds(full - control))
}

/// Levels of all rounds that those of even and of odd rounds confirm.
fn levels(times: &ChaseTimes) -> Levels {
    let of = |wanted: fn(usize) -> bool| {
        let (curve, hit) = curve(times, wanted);
        Levels::of(&curve, hit)
    };
    let halves = [of(|round| round % 2 == 0), of(|round| round % 2 == 1)];
    of(|_| true).confirmed(halves, ERROR)
}

/// Nanoseconds that translations add, by number of pages, in some of the rounds; and the time of a load that adds nothing.
fn curve(times: &ChaseTimes, wanted: fn(usize) -> bool) -> (Vec<Point>, f64) {
    let chases = times.pages.iter().zip(&times.times);
    let known = chases.filter_map(|(&pages, times)| Some((pages, quantiles(times, wanted)?)));
    let known: Vec<(u32, [f64; 2])> = known.collect();
    let points = known.iter().map(|&(pages, [chase, control])| Point {
        pages,
        ns: chase - control,
    });
    let hit = known.first().map_or(0.0, |&(_, [_, control])| control);
    (points.collect(), hit.max(f64::MIN_POSITIVE))
}

/// Low quantiles of chases and controls in some of the rounds; `None` without any.
fn quantiles(times: &[[f64; 2]], wanted: fn(usize) -> bool) -> Option<[f64; 2]> {
    let of = |place: usize| {
        let rounds = times.iter().enumerate().filter(|(round, _)| wanted(*round));
        let mut ns: Vec<f64> = rounds
            .filter_map(|(_, pair)| pair.get(place).copied())
            .collect();
        ns.sort_by(f64::total_cmp);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an index"
        )]
        let at = (ns.len().checked_sub(1)? as f64 * QUANTILE) as usize;
        ns.get(at).copied()
    };
    Some([of(0)?, of(1)?])
}

impl From<Levels> for TlbEntries {
    fn from(levels: Levels) -> Self {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "some thousands"
        )]
        let entries = |level: Option<f64>| level.map(|entries| entries.round() as u32);
        Self {
            first: entries(levels.first),
            last: entries(levels.last),
        }
    }
}

#[cfg(test)]
mod tests;

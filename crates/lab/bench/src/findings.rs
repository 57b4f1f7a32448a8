//! Answers of the result to the questions of the papers, in sentences, from the document alone.

use crate::arm::Arm;
use crate::document::isolation::{ALONE, Case, Isolation, Partition};
use crate::document::summary::{ArmSummary, Estimate};
use crate::document::{Document, PointResult, SweepResult};

/// Share of the L2 that a working set near its capacity takes.
const NEAR: f64 = 0.94;
/// Largest share of the L2 at which a colored working set should be as fast as a small one.
const FLAT_UP_TO: f64 = 0.905;
/// Share of the best bandwidth that a working set should keep, after Papadopoulos.
const KEPT: f64 = 0.8;

/// All findings, in the order of the document.
#[must_use]
pub fn findings(document: &Document) -> Vec<String> {
    let mut said: Vec<String> = document.sweeps.iter().flat_map(of_sweep).collect();
    said.extend(document.isolation.iter().flat_map(of_isolation));
    said
}

/// Findings of one workload.
#[must_use]
pub fn of_sweep(sweep: &SweepResult) -> Vec<String> {
    let mut said = Vec::new();
    let name = &sweep.workload;
    for (arm, what) in [
        (Arm::Colored, "colored"),
        (Arm::Both, "both"),
        (Arm::Superpage, "superpage"),
    ] {
        let Some(point) = near_capacity(sweep, arm) else {
            continue;
        };
        let Some(summary) = summary(point, arm) else {
            continue;
        };
        if let (Some(gain), Some(unlucky)) = (summary.gain, summary.gain_unlucky) {
            said.push(format!(
                "{name}: {what} is {} as fast as kernel at {} ({:.0} % of the L{}), {} over its unlucky tenth",
                times(gain),
                point.point.label,
                point.point.share * 100.0,
                point.point.level,
                factor(unlucky),
            ));
        }
    }
    said.extend(spread(sweep));
    if sweep.figure.lower_is_better {
        said.extend(
            [Arm::Kernel, Arm::Colored]
                .iter()
                .filter_map(|arm| flat(sweep, *arm)),
        );
    } else {
        said.extend(
            [Arm::Kernel, Arm::Colored]
                .iter()
                .filter_map(|arm| reach(sweep, *arm)),
        );
    }
    said
}

fn summary(point: &PointResult, arm: Arm) -> Option<&ArmSummary> {
    point
        .arms
        .iter()
        .find(|result| result.arm == arm)?
        .summary
        .as_ref()
}

/// Sizes at which this arm was measured, as far as they are shares of the colored cache (L2).
fn measured(sweep: &SweepResult, arm: Arm) -> impl Iterator<Item = (&PointResult, &ArmSummary)> {
    let points = sweep.points.iter().filter(|point| point.point.level == 2);
    points.filter_map(move |point| Some((point, summary(point, arm)?)))
}

fn nearest(sweep: &SweepResult, arm: Arm, share: f64) -> Option<&PointResult> {
    let distance = |point: &PointResult| (point.point.share - share).abs();
    let nearest = measured(sweep, arm).map(|(point, _)| point);
    nearest.min_by(|a, b| distance(a).total_cmp(&distance(b)))
}

fn near_capacity(sweep: &SweepResult, arm: Arm) -> Option<&PointResult> {
    nearest(sweep, arm, NEAR)
}

/// Spread between allocations at 85 % of the cache, in a sentence.
fn spread(sweep: &SweepResult) -> Option<String> {
    let point = nearest(sweep, Arm::Kernel, 0.85)?;
    let of = |arm| summary(point, arm)?.spread;
    let (kernel, colored) = (of(Arm::Kernel)?, of(Arm::Colored)?);
    Some(format!(
        "{}: spread between allocations (p95/p5) at {} ({:.0} % of the L2): kernel {kernel:.2}, colored {colored:.2}",
        sweep.workload,
        point.point.label,
        point.point.share * 100.0,
    ))
}

/// Slowdown up to 90 % of the cache against half the cache, in a sentence.
fn flat(sweep: &SweepResult, arm: Arm) -> Option<String> {
    let half = summary(nearest(sweep, arm, 0.5)?, arm)?.median.value;
    let upper =
        |(point, _): &(&PointResult, &ArmSummary)| (0.5..=FLAT_UP_TO).contains(&point.point.share);
    let slower = |(_, summary): &(&PointResult, &ArmSummary)| summary.median.value / half;
    let worst = measured(sweep, arm)
        .filter(upper)
        .max_by(|a, b| slower(a).total_cmp(&slower(b)))?;
    Some(format!(
        "{}: from 50 to 90 % of the L2 {arm} is at most {} its time at 50 % (at {})",
        sweep.workload,
        factor(slower(&worst)),
        worst.0.point.label,
    ))
}

/// Largest size up to which the arm keeps four fifths of its best rate at any size, in a sentence.
fn reach(sweep: &SweepResult, arm: Arm) -> Option<String> {
    let rates: Vec<(f64, f64)> = measured(sweep, arm)
        .map(|(point, summary)| (point.point.share, summary.median.value))
        .collect();
    let best = rates.iter().map(|(_, rate)| *rate).max_by(f64::total_cmp)?;
    let kept = rates
        .iter()
        .take_while(|(_, rate)| *rate >= KEPT * best)
        .last();
    let reach = kept.map_or("at no size from the first on".to_owned(), |(share, _)| {
        format!("up to {:.0} % of the L2", share * 100.0)
    });
    Some(format!(
        "{}: {arm} keeps 80 % of its best rate {reach}",
        sweep.workload
    ))
}

/// Findings of isolation.
#[must_use]
pub fn of_isolation(isolation: &Isolation) -> Vec<String> {
    let mut said = Vec::new();
    let kernel = |case: &&Case| case.placement == Partition::Kernel && case.partner != ALONE;
    for case in isolation.cases.iter().filter(kernel) {
        let of = |placement: Partition| {
            let same = isolation.cases.iter().find(|other| {
                let beside =
                    (&other.partner, other.partner_cpu) == (&case.partner, case.partner_cpu);
                let victim =
                    (&other.victim, other.victim_bytes) == (&case.victim, case.victim_bytes);
                beside && victim && other.placement == placement
            });
            let summary = same?.summary.as_ref()?;
            let (median, tail) = (summary.median_disturbance?, summary.p999_disturbance?);
            Some((placement, tail.value, median.value))
        };
        let found: Vec<_> = Partition::ALL.into_iter().filter_map(of).collect();
        let tail = found
            .iter()
            .map(|(placement, tail, _)| format!("{} {}", placement.name(), factor(*tail)));
        let medians = found.iter().map(|(_, _, median)| factor(*median));
        if !found.is_empty() {
            let alone = isolation.alone(case, Partition::Kernel);
            said.push(format!(
                "isolation: {} ({} KiB) {}, against {}: p99.9 {}; median {}",
                case.victim,
                case.victim_bytes >> 10,
                case.beside(),
                alone.map_or_else(|| ALONE.to_owned(), Case::beside),
                tail.collect::<Vec<String>>().join(", "),
                medians.collect::<Vec<String>>().join(", "),
            ));
        }
    }
    let failed: usize = isolation.cases.iter().map(|case| case.failed.len()).sum();
    if failed > 0 {
        let rounds: usize = isolation.cases.iter().map(|case| case.rounds.len()).sum();
        let first = isolation.cases.iter().find_map(|case| case.failed.first());
        said.push(format!(
            "isolation: {failed} of {} rounds failed and are left out: {}",
            rounds + failed,
            first.map_or("", String::as_str)
        ));
    }
    if let Some(given_up) = isolation.capacity_given_up {
        said.push(format!(
            "isolation: victims on their own colors give up {:.0} % of the L2",
            given_up * 100.0
        ));
    }
    said
}

/// `1.52x`.
pub(crate) fn factor(value: f64) -> String {
    format!("{value:.2}x")
}

/// `1.52x [1.47, 1.58]`.
pub(crate) fn times(estimate: Estimate) -> String {
    match estimate.interval {
        Some(interval) => {
            format!(
                "{} [{:.2}, {:.2}]",
                factor(estimate.value),
                interval.low,
                interval.high
            )
        }
        None => factor(estimate.value),
    }
}

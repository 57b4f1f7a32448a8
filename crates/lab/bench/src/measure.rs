//! Measurement of one workload: all sizes, all arms in turns, many fresh allocations.

use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use superhue_measure::Schedule;

use crate::BenchError;
use crate::allocate::allocate;
use crate::arm::Arm;
use crate::buffer::Buffer;
use crate::clock::cpu_time;
use crate::document::{ArmResult, PointResult, Settings, SkippedPart, SweepResult};
use crate::frames::FrameShuffler;
use crate::json::rounded;
use crate::machine::Caches;
use crate::painter::{FillCounts, Painter};
use crate::workload::{Point, Workload};

/// Upper limit of repetitions of the work in a pass: [`Workload::work`] allows that many.
const MOST_TIMES: f64 = 100.0;
/// Allocations that may fail before the first success; then the arm is given up at this size.
const FAILURES: usize = 3;

/// Progress reports to the caller, and the caller's requests to stop.
pub trait Watcher {
    /// Begins a part of the work with `steps` steps.
    fn begin(&mut self, what: &str, steps: usize);
    /// Reports that a step of it is done.
    fn step(&mut self);
    /// Returns true to stop now; the results so far are kept.
    fn stop(&mut self) -> bool;
}

/// Measures `workload`. Leaves out arms that lack what they need, and records them in `skipped`.
pub fn sweep(
    workload: &mut dyn Workload,
    settings: &Settings,
    caches: &Caches,
    mut painter: Option<&mut (dyn Painter + '_)>,
    watcher: &mut dyn Watcher,
    skipped: &mut Vec<SkippedPart>,
) -> SweepResult {
    let mut result = SweepResult {
        workload: workload.name().to_owned(),
        about: workload.about().to_owned(),
        figure: workload.figure(),
        points: Vec::new(),
    };
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(settings.seed);
    let mut shuffler = FrameShuffler::default();
    let points = workload.points(caches, settings.sweep);
    watcher.begin(
        workload.name(),
        points.len() * settings.allocations * settings.arms.len(),
    );
    for point in points {
        let Some(times) = calibrate(workload, &point, settings, skipped, &mut rng) else {
            break;
        };
        let mut turns = Turns {
            workload,
            point: &point,
            settings,
            times,
            rng: &mut rng,
        };
        let arms = turns.all(&mut shuffler, painter.as_deref_mut(), watcher);
        for arm in arms.iter().filter(|arm| arm.samples.is_empty()) {
            if let Some(reason) = arm.failed.first() {
                let what = format!(
                    "{} of {} at {}",
                    arm.arm,
                    turns.workload.name(),
                    point.label
                );
                skipped.push(SkippedPart {
                    what,
                    reason: reason.clone(),
                });
            }
        }
        result.points.push(PointResult { point, times, arms });
        if watcher.stop() {
            break;
        }
    }
    result
}

/// Computes the repetitions of the work that make a pass of the intended length, from one run on memory as the kernel
/// deals it. `None` if the work cannot be done at all.
fn calibrate(
    workload: &mut dyn Workload,
    point: &Point,
    settings: &Settings,
    skipped: &mut Vec<SkippedPart>,
    rng: &mut Xoshiro256PlusPlus,
) -> Option<u64> {
    let mut try_once = || -> Result<f64, BenchError> {
        let (mut memory, _) = allocate(Arm::Kernel, point.size(), None, rng)?;
        workload.prepare(point, &mut memory, rng)?;
        workload.work(point, &mut memory, 1);
        let start = cpu_time();
        workload.work(point, &mut memory, 1);
        Ok(seconds_since(start))
    };
    match try_once() {
        Ok(seconds) => {
            Some((settings.pass_seconds / seconds.max(1e-9)).clamp(1.0, MOST_TIMES) as u64)
        }
        Err(trouble) => {
            let what = workload.name().to_owned();
            skipped.push(SkippedPart {
                what,
                reason: trouble.to_string(),
            });
            None
        }
    }
}

fn seconds_since(start: u64) -> f64 {
    cpu_time().saturating_sub(start) as f64 * 1e-9
}

/// The turns of all arms at one size.
struct Turns<'a> {
    workload: &'a mut dyn Workload,
    point: &'a Point,
    settings: &'a Settings,
    times: u64,
    rng: &'a mut Xoshiro256PlusPlus,
}

impl Turns<'_> {
    fn all(
        &mut self,
        shuffler: &mut FrameShuffler,
        mut painter: Option<&mut (dyn Painter + '_)>,
        watcher: &mut dyn Watcher,
    ) -> Vec<ArmResult> {
        let result = |arm: &Arm| ArmResult {
            arm: *arm,
            samples: Vec::new(),
            pages: FillCounts::default(),
            failed: Vec::new(),
            summary: None,
        };
        let mut arms: Vec<ArmResult> = self.settings.arms.iter().map(result).collect();
        let seed = self.settings.seed ^ self.point.bytes;
        let schedule = Schedule::new(arms.len(), self.settings.allocations, 0, seed);
        for turn in schedule.turns() {
            if watcher.stop() {
                break;
            }
            watcher.step();
            let Some(arm) = arms.get_mut(turn.arm) else {
                continue;
            };
            if arm.samples.is_empty() && arm.failed.len() >= FAILURES {
                continue;
            }
            shuffler.shuffle(self.point.size(), self.rng);
            match self.one(arm.arm, painter.as_deref_mut()) {
                Ok((passes, filled)) => {
                    arm.samples.push(passes);
                    arm.pages.add(&filled);
                }
                Err(trouble) => arm.failed.push(trouble.to_string()),
            }
        }
        arms
    }

    /// Measures one fresh allocation. Returns the figure of each pass.
    fn one(
        &mut self,
        arm: Arm,
        painter: Option<&mut (dyn Painter + '_)>,
    ) -> Result<(Vec<f64>, FillCounts), BenchError> {
        let (mut memory, filled) = allocate(arm, self.point.size(), painter, self.rng)?;
        self.workload.prepare(self.point, &mut memory, self.rng)?;
        self.pass(&mut memory);
        let figure = self.workload.figure();
        let work = self.workload.amount(self.point) * self.times as f64;
        let passes = (0..self.settings.passes).map(|_| {
            // Avoids a division by zero if the clock does not advance.
            let seconds = self.pass(&mut memory).max(1e-9);
            rounded(figure.of(work, seconds))
        });
        Ok((passes.collect(), filled))
    }

    /// Runs one pass. Returns seconds of CPU time.
    fn pass(&mut self, memory: &mut Buffer) -> f64 {
        self.workload.refresh(memory);
        let start = cpu_time();
        self.workload.work(self.point, memory, self.times);
        seconds_since(start)
    }
}

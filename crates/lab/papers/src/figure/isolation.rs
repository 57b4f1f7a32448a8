//! Isolation by halves of the colors: P1.

use superhue_cachesim::{Machine, Placement, System};

use super::{Outcome, Replayed, Settings, Size, gain, not_modelled, replay};
use crate::ReplayError;
use crate::arm::Arm;
use crate::document::{Figure, Spread};
use crate::memory::Memory;
use crate::workload::Task;

/// References that a core runs in one turn; after a turn the other core may be behind it.
const REFERENCES_PER_TURN: usize = 32;

/// Task on a core: its references, over and over, and the arithmetic between them.
struct Runner<'a> {
    core: usize,
    references: &'a [u32],
    at: usize,
    arithmetic: u64,
    done: u64,
    pages: &'a Placement,
}

impl Runner<'_> {
    fn turn(&mut self, system: &mut System) {
        for _ in 0..REFERENCES_PER_TURN {
            let Some(&word) = self.references.get(self.at) else {
                return;
            };
            system.reference(self.core, self.pages, u64::from(word >> 1), word & 1 == 1);
            self.at += 1;
            self.done += 1;
        }
    }

    /// Thousandths of a cycle since the start.
    fn now(&self, system: &System) -> u64 {
        system.counts(self.core).millicycles + self.done * self.arithmetic
    }
}

/// Runs mcol beside a partner that begins at a given place in its work, or alone without a partner. Returns mcol's
/// modelled time in thousandths of a cycle, and its counts.
fn run(
    machine: &Machine,
    mcol: (&[u32], &Placement),
    partner: Option<(Task, &[u32], &Placement, usize)>,
) -> (u64, superhue_cachesim::Counts) {
    let mut system = System::new(machine);
    let mut victim = Runner {
        core: 0,
        references: mcol.0,
        at: 0,
        arithmetic: Task::Mcol.arithmetic(),
        done: 0,
        pages: mcol.1,
    };
    let mut other = partner.map(|(task, references, pages, at)| Runner {
        core: 1,
        references,
        at,
        arithmetic: task.arithmetic(),
        done: 0,
        pages,
    });
    while victim.at < victim.references.len() {
        victim.turn(&mut system);
        let Some(other) = &mut other else { continue };
        let now = victim.now(&system);
        while other.now(&system) < now {
            other.turn(&mut system);
            if other.at == other.references.len() {
                other.at = 0;
            }
        }
    }
    (victim.now(&system), system.counts(0))
}

/// Distance to other memory of the same colors: two processes that ran one after the other may have got the same
/// frames.
const ELSEWHERE: u64 = 1 << 22;

pub(super) fn pairs(
    settings: &Settings,
    memory: &Memory,
    machine: &Machine,
) -> Result<Replayed, ReplayError> {
    if machine.cores < 2 {
        let what = format!(
            "p1-pairs needs a machine with two cores; {} has one",
            machine.name
        );
        return Err(ReplayError(what));
    }
    let loops = settings
        .draws
        .unwrap_or(if settings.quick { 60 } else { 300 });
    let references: Vec<Vec<u32>> = Task::ALL.into_iter().map(Task::references).collect();
    let name = |task: Option<Task>| task.map_or("alone", Task::name);
    let partners: Vec<Option<Task>> = std::iter::once(None).chain(Task::ALL.map(Some)).collect();
    let sizes: Vec<Size> = (0u64..)
        .zip(&partners)
        .map(|(number, partner)| Size {
            label: name(*partner).to_owned(),
            bytes: 313 * 313 * 8,
            number,
        })
        .collect();
    let one = |size: &Size, arm: Arm, draw: usize| {
        let [victim, partner] = memory.pair(arm, draw);
        let elsewhere = partner.pages.moved(ELSEWHERE);
        let partner = partners[size.number as usize].map(|task| {
            let index = Task::ALL
                .iter()
                .position(|other| *other == task)
                .unwrap_or(0);
            let of_it = &references[index][..];
            let mut random = memory.random(&format!("phase/{}", task.name()), draw);
            (
                task,
                of_it,
                &elsewhere,
                random.below(of_it.len() as u64) as usize,
            )
        });
        let (time, counts) = run(machine, (&references[0], &victim.pages), partner);
        Outcome::of(victim.real, &counts, time as f64 / 1e9)
    };
    let arms = [Arm::Kernel, Arm::Halves];
    Ok(replay(&sizes, &arms, |_| loops, one))
}

pub(super) fn tell_pairs(machine: &Machine, replayed: Replayed) -> Figure {
    let arms = replayed.points.iter().flat_map(|point| &point.arms);
    let loops = arms.map(|arm| arm.draws).max().unwrap_or(0);
    let mut figure = Figure {
        name: "p1-pairs".to_owned(),
        title: "mcol beside another task, shared cache".to_owned(),
        paper: "P1 figure 5".to_owned(),
        says: vec![
            "Section 4.3: without coloring the time of mcol varies with its partner; with halves of the 64 colors it is relatively stable.".to_owned(),
            "Little difference where a task uses little of the cache, or much more than its share. (The figure's numbers are not in the text.)".to_owned(),
        ],
        machine: machine.name.clone(),
        cache: None,
        workload: format!(
            "mcol (reads and writes a matrix of 766 KiB in order of its columns, twice) on one core, its partner on the other, {loops} loops with new processes; turns of {REFERENCES_PER_TURN} references by modelled cycles"
        ),
        axis: "partner".to_owned(),
        value: "million cycles of mcol, modelled".to_owned(),
        higher_is_better: false,
        points: replayed.points,
        verdict: Vec::new(),
        losing: Vec::new(),
        not_modelled: not_modelled(&[
            "Sizes of mcol and cnt, which the paper does not tell, and the arithmetic of tasks, which is declared for each.",
            "The bus: a partner slows mcol through the cache alone.",
        ]),
    };
    let worst = |arm: &str| {
        let all = figure.points.iter().filter_map(|point| point.arm(arm));
        let all: Vec<f64> = all.map(|arm| arm.value.worst(false)).collect();
        let spread = Spread::of(&all);
        (spread.most / spread.least - 1.0) * 100.0
    };
    let (any, halves) = (worst("kernel"), worst("halves"));
    // Halves have no set of the cache in common.
    let met = if halves <= 5.0 {
        "As it must be in this model"
    } else {
        "MISSED"
    };
    figure.verdict.push(format!(
        "{met}: the worst of {loops} loops varies by {halves:.1} % over partners with halves of the colors (bar: 5 %), by {any:.1} % without."
    ));
    let slow = figure
        .result("alone", "halves")
        .zip(figure.result("alone", "kernel"));
    if let Some((halves, any)) = slow {
        figure.losing.push(format!(
            "Alone, mcol with half of the colors takes {:+.1} % (median) and {:+.1} % (worst) beside all of the cache.",
            (halves.value.median / any.value.median - 1.0) * 100.0,
            (halves.value.most / any.value.most - 1.0) * 100.0,
        ));
    }
    for point in &figure.points {
        if let Some(gain) = gain(&figure, point, "halves", "kernel")
            && gain < 0.99
            && point.label != "alone"
        {
            figure.losing.push(format!(
                "Beside {} the median of mcol is {:.1} % slower with half of the colors.",
                point.label,
                (1.0 / gain - 1.0) * 100.0
            ));
        }
    }
    figure
}

/// Bits of the frame number that choose the color of a cache, beyond the page offset.
fn color_bits(machine: &Machine, level: usize) -> u32 {
    machine.caches[level].colors(machine.page).trailing_zeros()
}

/// Bits of the frame number that choose the color: of the last cache, and the most of those that choose colors of a private one.
fn bits_of_rule(machine: &Machine) -> (u32, u32) {
    let last = machine.caches.len() - 1;
    let inner = (0..last).map(|level| color_bits(machine, level)).max();
    (color_bits(machine, last), inner.unwrap_or(0))
}

pub(super) fn rule(
    settings: &Settings,
    memory: &Memory,
    machine: &Machine,
) -> Result<Replayed, ReplayError> {
    let last = machine.caches.len() - 1;
    let (all, inner) = bits_of_rule(machine);
    if inner == 0 || all <= inner {
        let what =
            "p1-rule needs a machine whose private caches have colors, fewer than the last one";
        return Err(ReplayError(format!("{what}; {} is none", machine.name)));
    }
    let private = &machine.caches[last - 1];
    let page = machine.page;
    let eighths: &[u64] = if settings.quick {
        &[3, 6]
    } else {
        &[2, 3, 4, 5, 6, 7, 8, 10]
    };
    let size = |eighth: &u64| Size {
        label: format!("{}K", (private.size * eighth / 8) >> 10),
        bytes: private.size * eighth / 8,
        number: *eighth,
    };
    let sizes: Vec<Size> = eighths.iter().map(size).collect();
    let one = |size: &Size, arm: Arm, draw: usize| {
        let colors = 1u64 << all;
        // By the rule, the bits that no private cache uses choose the colors; without the rule, any bits may: here the
        // lowest.
        let mine = |color: &u64| match arm {
            Arm::Halves => color >> (all - 1) & 1 == 0,
            Arm::NoRule => color & 1 == 0,
            _ => true,
        };
        let set: Vec<u64> = (0..colors).filter(mine).collect();
        let mut random = memory.random(&format!("rule/{}", arm.name()), draw);
        let pages = size.bytes.div_ceil(page) as usize;
        let pages = Placement::colored_set(pages, page, colors, &set, &mut random);
        let counts = super::counted(machine, &pages, |sink, counting| {
            for _ in 0..if counting { 4 } else { 1 } {
                crate::workload::sweep(sink, size.bytes);
            }
        });
        let mut outcome = Outcome::of(false, &counts, counts.cycles() / counts.references() as f64);
        // References that the private caches did not serve.
        let outside = counts.served[last] + counts.memory;
        outcome.misses = outside as f64 * 1e3 / counts.references() as f64;
        outcome
    };
    let arms = [Arm::Colored, Arm::Halves, Arm::NoRule];
    Ok(replay(
        &sizes,
        &arms,
        |size| settings.draws(size.bytes),
        one,
    ))
}

pub(super) fn tell_rule(machine: &Machine, replayed: Replayed) -> Figure {
    let (all, inner) = bits_of_rule(machine);
    let private = &machine.caches[machine.caches.len() - 2];
    let rule = 1u64 << (all - inner);
    let mut figure = Figure {
        name: "p1-rule".to_owned(),
        title: "What the rule N = 2^n saves: the private caches".to_owned(),
        paper: "P1 section 3.2".to_owned(),
        says: vec![
            "N = 2^n, n = (c_k - a_k) - max(c_i - a_i): coloring must not make the private caches smaller.".to_owned(),
            "On the paper's Core 2 Duo a way of the L1 is a page, so the rule takes nothing away (64 colors); a machine with a private L2 shows what it is for.".to_owned(),
        ],
        machine: machine.name.clone(),
        cache: None,
        workload: "a task alone sweeps over its memory, five times of which four count; it has half of the last cache; drawn placements".to_owned(),
        axis: "size".to_owned(),
        value: "cycles a load, modelled".to_owned(),
        higher_is_better: false,
        points: replayed.points,
        verdict: vec![format!(
            "{} has {} colors in its last cache, of which the rule allows {rule}.", machine.name, 1u64 << all
        )],
        losing: Vec::new(),
        not_modelled: not_modelled(&["Misses here are those of the private caches."]),
    };
    let harm = |arm: &str| {
        let points = figure
            .points
            .iter()
            .filter(|point| point.bytes <= private.size);
        points
            .filter_map(|point| gain(&figure, point, "colored", arm))
            .fold(1.0, f64::max)
    };
    let said = format!(
        "Up to the size of the private {}, half of the colors by the rule take at most {:+.1} % beside all colors, halves without the rule {:+.1} %.",
        private.name,
        (harm("halves") - 1.0) * 100.0,
        (harm("no-rule") - 1.0) * 100.0
    );
    figure.verdict.push(said);
    figure.losing = super::losses(&figure, "halves", "colored");
    figure
}

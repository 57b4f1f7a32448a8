//! What a program would miss, by where its pages lie: the program itself is run, and all that it refers to is replayed at
//! once on a model for each draw of each arm.
//!
//! ```text
//!   program ─ emulator ──> ring ──> words ──> references ──┬──> System on frames drawn at random ──┐
//!             (emulator.rs)         (trace.rs)             ├──> ... by color                       ├──> Point of a Figure
//!                                                          └──> ... in superpages                  ──┘
//! ```
//!
//! Frames are drawn: the kernel that would run it is not asked. The rules are those of `kernel/frames`, and the figures show
//! that what an aged kernel deals is much like any frames.

mod emulator;
pub mod trace;

use std::ffi::OsString;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use superhue_cachesim::space::{Deal, Rule, Space};
use superhue_cachesim::{Machine, Random, System};

use crate::arm::Arm;
use crate::document::{Figure, Point, Traced};
use crate::figure::{Outcome, not_modelled, result};
use crate::parallel;

pub use emulator::{EMULATOR, Emulator, EmulatorError, Ending, PACKAGE};
pub use trace::TraceError;

pub(crate) use trace::{mapped, word};

use trace::{Block, Reader};

/// Its name on the command line, as if it were a figure.
pub const NAME: &str = "program";
/// References that are replayed unless something else is asked for, and with `--quick`.
pub const REFERENCES: u64 = 200_000_000;
/// See [`REFERENCES`].
pub const FEW_REFERENCES: u64 = 20_000_000;
/// Draws of each arm, and with `--quick`.
pub const DRAWS: usize = 5;
/// See [`DRAWS`].
pub const FEW_DRAWS: usize = 3;
/// A prediction of fewer references is of the dynamic loader.
pub const LEAST: u64 = 1000;

/// Arms, in the order of tables.
const ARMS: [Arm; 4] = [Arm::Random, Arm::Colored, Arm::Superpages, Arm::Both];
/// Words read at a time.
const WORDS: u64 = 1 << 20;
/// Colors in turn, as the kernel of `kernel/frames` deals them: bits 12 to 20 of the address.
const COLORED: u64 = 2 << 20;

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The caches and TLBs.
    pub machine: Machine,
    /// References that only touch pages, before those that are replayed.
    pub skip: u64,
    /// References that are replayed at most.
    pub references: u64,
    /// How long at most.
    pub time: Option<Duration>,
    /// Draws of each arm.
    pub draws: usize,
    /// Decides all that is drawn.
    pub seed: u64,
}

/// Who looks on.
pub trait Watcher {
    /// The program was started. What is done to this process before, its signals say, the program has, too.
    fn begun(&mut self) {}
    /// So many references were read. Whether to stop.
    fn read(&mut self, references: u64) -> bool;
}

/// Why there is no prediction.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It could not be run.
    #[error(transparent)]
    Emulator(#[from] EmulatorError),
    /// Its trace makes no sense, or is too much.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// It ended at once.
    #[error(
        "the program ended ({ending}) after {references} references, of which {skipped} were skipped: too few to predict anything from"
    )]
    TooShort {
        /// How.
        ending: Ending,
        /// All of them.
        references: u64,
        /// Those that only touched pages.
        skipped: u64,
    },
}

/// A draw of an arm.
struct Replay {
    deal: Deal,
    large: bool,
    system: System,
}

impl Replay {
    fn new(machine: &Machine, arm: Arm, seed: u64, draw: usize) -> Self {
        let large = matches!(arm, Arm::Superpages | Arm::Both);
        let colored = matches!(arm, Arm::Colored | Arm::Both);
        let widest = machine
            .caches
            .iter()
            .map(|cache| cache.colors(machine.page));
        let colors = widest.fold(COLORED / machine.page, u64::max);
        let rule = if colored {
            Rule::Colors(colors)
        } else {
            Rule::Any
        };
        // The same frames for the base pages of an arm with superpages and of the one without.
        let name = if colored { "colored" } else { "random" };
        Self {
            deal: Deal::new(rule, Random::named(seed, &format!("program/{name}/{draw}"))),
            large,
            system: System::new(machine),
        }
    }

    fn replay(&mut self, spaces: [&Space; 2], block: &Block) {
        let (space, references) = if self.large {
            (spaces[1], &block.large)
        } else {
            (spaces[0], &block.base)
        };
        self.deal.extend(space);
        let pages = self.deal.of(space);
        for word in references {
            self.system.reference(0, &pages, word >> 1, word & 1 == 1);
        }
    }
}

/// References of one program, replayed on all draws of all arms.
pub(crate) struct Replays {
    machine: Machine,
    draws: usize,
    replays: Vec<Mutex<Replay>>,
    reader: Reader,
    skip: u64,
}

impl Replays {
    pub(crate) fn new(plan: &Plan) -> Self {
        let machine = &plan.machine;
        let draws = ARMS
            .iter()
            .flat_map(|arm| (0..plan.draws).map(|draw| (*arm, draw)));
        Self {
            machine: machine.clone(),
            draws: plan.draws,
            replays: draws
                .map(|(arm, draw)| Mutex::new(Replay::new(machine, arm, plan.seed, draw)))
                .collect(),
            reader: Reader::new(machine, plan.skip, plan.references),
            skip: plan.skip,
        }
    }

    /// Replays what words say; whether that was all that was asked for.
    pub(crate) fn replay(&mut self, words: &[u64]) -> Result<bool, TraceError> {
        self.reader.read(words)?;
        let reader = &self.reader;
        if !reader.block.base.is_empty() {
            parallel::map(&self.replays, |replay| {
                let mut replay = replay.lock().unwrap_or_else(PoisonError::into_inner);
                replay.replay([&reader.base, &reader.large], &reader.block);
            });
        }
        self.reader.block.base.clear();
        self.reader.block.large.clear();
        Ok(self.reader.is_done())
    }

    /// References that were replayed.
    fn replayed(&self) -> u64 {
        self.reader.seen.references.saturating_sub(self.skip)
    }

    /// Each arm and what its draws came to.
    pub(crate) fn outcomes(self) -> Vec<(Arm, Vec<Outcome>)> {
        let outcomes: Vec<Outcome> = self
            .replays
            .into_iter()
            .map(|replay| replay.into_inner().unwrap_or_else(PoisonError::into_inner))
            .map(|replay| outcome(&self.machine, &replay.system))
            .collect();
        let draws = outcomes.chunks(self.draws.max(1));
        ARMS.into_iter().zip(draws.map(<[_]>::to_vec)).collect()
    }

    /// Bytes of base pages that were touched, and of superpages that were made.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        let [base, large] = [self.reader.base.dealt()[0], self.reader.large.dealt()[1]];
        [base * self.machine.page, large * self.machine.page]
    }
}

/// A program that was run, and what its references came to.
pub(crate) struct Run {
    pub(crate) outcomes: Vec<(Arm, Vec<Outcome>)>,
    pub(crate) bytes: u64,
    pub(crate) traced: Traced,
}

/// Runs a command, and replays what it refers to; `label` names it. `set` may change its folder, input and output.
///
/// # Errors
/// See [`ProgramError`].
pub fn predict(
    emulator: &Emulator,
    command: &[OsString],
    label: &str,
    plan: &Plan,
    set: impl FnOnce(&mut Command),
    watcher: &mut impl Watcher,
) -> Result<Point, ProgramError> {
    let run = run(emulator, command, plan, set, watcher)?;
    let arms = run.outcomes.iter();
    Ok(Point {
        label: label.to_owned(),
        bytes: run.bytes,
        arms: arms.map(|(arm, mine)| result(*arm, mine, None)).collect(),
        traced: Some(run.traced),
    })
}

pub(crate) fn run(
    emulator: &Emulator,
    command: &[OsString],
    plan: &Plan,
    set: impl FnOnce(&mut Command),
    watcher: &mut impl Watcher,
) -> Result<Run, ProgramError> {
    let mut replays = Replays::new(plan);
    let deadline = plan.time.and_then(|time| Instant::now().checked_add(time));
    let mut running = emulator.start(command, set)?;
    watcher.begun();
    let mut why = None;
    while let Some(words) = running.words(WORDS)? {
        let is_done = replays.replay(&words)?;
        let references = replays.reader.seen.references;
        let stopped = watcher.read(references);
        if is_done {
            why = Some(format!(
                "was ended by superhue after {references} references"
            ));
        } else if stopped {
            why = Some("was ended by superhue, which was interrupted".to_owned());
        } else if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            why = Some("was ended by superhue when the time was over".to_owned());
        }
        if why.is_some() {
            break;
        }
    }
    let (ending, by_us) = running.end()?;
    let seen = replays.reader.seen;
    if replays.replayed() < LEAST {
        return Err(ProgramError::TooShort {
            ending,
            references: seen.references,
            skipped: plan.skip.min(seen.references),
        });
    }
    let [bytes, superpage_bytes] = replays.bytes();
    Ok(Run {
        outcomes: replays.outcomes(),
        bytes,
        traced: Traced {
            command: command
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
            emulator: emulator.version().to_owned(),
            program: None,
            // One that ended while it was asked to may have done either.
            ended: why.unwrap_or_else(|| format!("ended by itself ({ending})")),
            status: match ending {
                Ending::Exited(status) if !by_us => Some(status),
                _ => None,
            },
            references: seen.references,
            skipped: plan.skip,
            superpage_bytes,
            threads: seen.threads,
            processes: seen.processes,
            executed: seen.executed,
        },
    })
}

/// Position of the cache that colors are of: the second level, or the nearest one behind which has any.
#[must_use]
pub fn colored_cache(machine: &Machine) -> usize {
    let last = machine.caches.len() - 1;
    let colored = |level: &usize| machine.caches[*level].colors(machine.page) > 1;
    (1.min(last)..=last).find(colored).unwrap_or(last)
}

fn outcome(machine: &Machine, system: &System) -> Outcome {
    let counts = system.counts(0);
    let references = counts.references().max(1) as f64;
    let mut outcome = Outcome::of(false, &counts, counts.cycles() / references);
    let beyond: u64 = counts.served[colored_cache(machine) + 1..].iter().sum();
    outcome.misses = (beyond + counts.memory) as f64 * 1e3 / references;
    outcome
}

/// The prediction for one program, as a figure.
#[must_use]
pub fn figure(machine: &Machine, point: Point, notes: Vec<String>) -> Figure {
    let cache = machine.caches[colored_cache(machine)].name.clone();
    let command = point
        .traced
        .as_ref()
        .map_or(String::new(), |traced| traced.command.join(" "));
    let mut verdict = verdict(&point, &cache);
    verdict.extend(point.traced.as_ref().map(told));
    let mut not_modelled = not_modelled(&[
        "Frames are drawn, not dealt by a kernel; memory that is given back and taken again gets other frames.",
        "Base pages that become a superpage lie in other frames from then on, and their lines are fetched anew: in a real machine the copy brings them into the caches, and costs time of its own. So superpages look worse here while memory still grows (--skip leaves that out).",
        "Caches and TLB belong to this program's references alone, as if it had a core for itself.",
    ]);
    not_modelled.extend(notes);
    Figure {
        name: NAME.to_owned(),
        title: format!("Misses by placement: {}", point.label),
        paper: String::new(),
        says: Vec::new(),
        machine: machine.name.clone(),
        cache: Some(cache),
        workload: format!(
            "`{}`, run under an emulator, each load and store replayed from the first on",
            command.chars().take(200).collect::<String>()
        ),
        axis: "program".to_owned(),
        value: "cycles a reference, modelled".to_owned(),
        higher_is_better: false,
        points: vec![point],
        verdict,
        losing: Vec::new(),
        not_modelled,
    }
}

/// What became of the program.
fn told(traced: &Traced) -> String {
    let mut text = format!(
        "The program {}: {} references",
        traced.ended, traced.references
    );
    if traced.skipped > 0 {
        text.push_str(&format!(
            ", of which the first {} only touched pages",
            traced.skipped
        ));
    }
    text.push('.');
    if traced.threads > 0 {
        text.push_str(&format!(
            " Its {} threads are replayed on one core, in the order in which the emulator ran them: what they take from each other between cores is not modelled, and a second run differs.",
            traced.threads + 1
        ));
    }
    if traced.processes > 0 {
        text.push_str(&format!(
            " It started {} processes, whose references are not counted.",
            traced.processes
        ));
    }
    if traced.executed > 0 {
        text.push_str(" Another program took its place: what that one did is not counted; give that program itself.");
    }
    text
}

/// In a sentence each: what coloring and superpages would save.
fn verdict(point: &Point, cache: &str) -> Vec<String> {
    let arm = |arm: Arm| point.arm(arm.name());
    let (Some(random), Some(colored), Some(superpages), Some(both)) = (
        arm(Arm::Random),
        arm(Arm::Colored),
        arm(Arm::Superpages),
        arm(Arm::Both),
    ) else {
        return Vec::new();
    };
    let saved = |before: f64, after: f64| {
        let share = if before > 0.0 {
            (1.0 - after / before) * 100.0
        } else {
            0.0
        };
        if share.abs() < 0.5 {
            "save nothing".to_owned()
        } else if share > 0.0 {
            format!("save {share:.0} %")
        } else {
            format!("add {:.0} %", -share)
        }
    };
    let apart = if colored.misses.most < random.misses.least {
        "more than luck moves them"
    } else if colored.misses.least > random.misses.most {
        "which is worse than any draw"
    } else {
        "within what luck moves them"
    };
    let number = crate::table::number;
    let faster = |arm: &crate::document::ArmResult| random.value.median / arm.value.median;
    vec![
        format!(
            "Coloring would {} of the {cache} misses of this program (of 1,000 references {} -> {}, {apart}: {} to {} over draws); superpages would {} of its walks ({} -> {}).",
            saved(random.misses.median, colored.misses.median),
            number(random.misses.median),
            number(colored.misses.median),
            number(random.misses.least),
            number(random.misses.most),
            saved(random.walks.median, superpages.walks.median),
            number(random.walks.median),
            number(superpages.walks.median),
        ),
        format!(
            "In modelled time, an upper end: colored {:.2}x as fast as any frames, superpages {:.2}x, both {:.2}x.",
            faster(colored),
            faster(superpages),
            faster(both)
        ),
    ]
}

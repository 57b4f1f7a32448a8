//! Prediction of a program's misses, by the frames of its pages. The program itself runs, and a model for each draw of
//! each arm replays all its references at once.
//!
//! ```text
//!   program - emulator --> ring --> words --> references --+--> System on frames drawn at random --+
//!             (emulator.rs)         (trace.rs)             +--> ... by color                       +--> Point of a Figure
//!                                                          +--> ... in huge pages                --+
//! ```
//!
//! Frames are drawn, not taken from the kernel that runs the program. The rules are those of `kernel/frames`; the
//! figures show that an aged kernel deals much like any frames.

mod emulator;
pub mod trace;

use std::ffi::OsString;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use superhue_cachesim::space::{Deal, Rule, Space};
use superhue_cachesim::{Machine, Random, System};

use crate::arm::Arm;
use crate::document::{Figure, Point, TraceReport};
use crate::number::number;
use crate::outcome::{Outcome, not_modelled, result};
use crate::parallel;

pub use emulator::{EMULATOR, Emulator, EmulatorError, Ending, PACKAGE};
pub use trace::TraceError;

pub(crate) use trace::{mapped, word};

use trace::{Block, Reader};

/// Name on the command line, in the place of a figure's name.
pub const NAME: &str = "program";
/// Default number of references to replay; see [`FEW_REFERENCES`] for `--quick`.
pub const REFERENCES: u64 = 200_000_000;
/// Default number of references to replay with `--quick`.
pub const FEW_REFERENCES: u64 = 20_000_000;
/// Default number of draws of each arm; see [`FEW_DRAWS`] for `--quick`.
pub const DRAWS: usize = 5;
/// Default number of draws of each arm with `--quick`.
pub const FEW_DRAWS: usize = 3;
/// Least number of references for a prediction: fewer are those of the dynamic loader.
pub const LEAST: u64 = 1000;

/// Arms, in the order of tables.
const ARMS: [Arm; 4] = [Arm::Random, Arm::Colored, Arm::Superpages, Arm::Both];
/// Words read at a time.
const WORDS: u64 = 1 << 20;
/// Bytes that all colors in turn cover, as the kernel of `kernel/frames` deals them: bits 12 to 20 of the address.
const COLORED: u64 = 2 << 20;

/// Request for a prediction.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The caches and TLBs.
    pub machine: Machine,
    /// References that only touch pages, before those that are replayed.
    pub skip: u64,
    /// Upper limit of references that are replayed.
    pub references: u64,
    /// Upper limit of time.
    pub time: Option<Duration>,
    /// Draws of each arm.
    pub draws: usize,
    /// Seed of all that is drawn.
    pub seed: u64,
}

/// Observer of a run, which may stop it.
pub trait Watcher {
    /// Called when the program has started. The program inherits everything set up in this process before, such as
    /// blocked signals.
    fn begun(&mut self) {}
    /// Called when `references` references have been read. Returns true to stop.
    fn read(&mut self, references: u64) -> bool;
}

/// Reason why there is no prediction.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The program could not be run.
    #[error(transparent)]
    Emulator(#[from] EmulatorError),
    /// The program's trace is malformed, or needs more memory than is modelled.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The program ended after too few references.
    #[error(
        "the program ended ({ending}) after {references} references, of which {skipped} were skipped: too few to predict anything from"
    )]
    TooShort {
        /// The program's end.
        ending: Ending,
        /// Number of all references.
        references: u64,
        /// Number of references that only touched pages.
        skipped: u64,
    },
}

/// Replay of one draw of an arm.
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
        // An arm with huge pages and the one without have the same frames for base pages.
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

    /// Replays the references in `words`. Returns true when all requested references have been replayed.
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

    /// Number of replayed references.
    fn replayed(&self) -> u64 {
        self.reader.seen.references.saturating_sub(self.skip)
    }

    /// Each arm with the results of its draws.
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

    /// Bytes of touched base pages, and of huge pages made.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        let [base, large] = [self.reader.base.dealt()[0], self.reader.large.dealt()[1]];
        [base * self.machine.page, large * self.machine.page]
    }
}

/// Result of a program's run and of its replays.
pub(crate) struct Run {
    pub(crate) outcomes: Vec<(Arm, Vec<Outcome>)>,
    pub(crate) bytes: u64,
    pub(crate) traced: TraceReport,
}

/// Runs a command, and replays its references; `label` names it. `set` may change its folder, input and output.
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
        arms: arms.map(|(arm, mine)| result(*arm, mine)).collect(),
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
        traced: TraceReport {
            command: command
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
            emulator: emulator.version().to_owned(),
            program: None,
            // A program that ended right after the request to end may have done so by itself or because of it.
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

/// Position of the cache to which the colors belong: the second level, or the nearest outer one that has colors.
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

/// Makes a figure of the prediction for one program.
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

/// Describes the run of the program, in sentences.
fn told(traced: &TraceReport) -> String {
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

/// Describes the savings by coloring and by huge pages, in two sentences.
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

//! The figures.

mod isolation;
mod patch;
mod programs;
mod transpose;

pub(crate) use transpose::SWEPT;

use std::path::PathBuf;

use superhue_cachesim::{Counts, Machine, Placement, System, machines};

use crate::ReplayError;
use crate::arm::Arm;
use crate::document::{Figure, Point, Spread};
use crate::memory::{Memory, SourcedPlacement};
use crate::outcome::{Outcome, not_modelled, result};
use crate::parallel;
use crate::workload::Sink;

/// Request for figures.
#[derive(Debug)]
pub struct Settings {
    /// Few points and few draws.
    pub quick: bool,
    /// Number of draws of each point, and of loops of pairs, instead of the default.
    pub draws: Option<usize>,
    /// Machine to model instead of the papers' machine.
    pub machine: Option<Machine>,
    /// Path of the emulator's plugin for real programs ([`crate::program`]); the file need not exist.
    pub plugin: PathBuf,
}

impl Settings {
    /// Draws of each point of at most 10 MiB; with `quick`, of at most 1 MiB.
    const DRAWS: usize = 24;
    /// Draws of larger points, with `quick`.
    const FEW: usize = 5;

    /// Draws of a point: draws of much memory differ little, and take long.
    const fn draws(&self, bytes: u64) -> usize {
        if let Some(draws) = self.draws {
            draws
        } else if bytes > HUGE {
            2
        } else if self.quick && bytes > SMALL {
            Self::FEW
        } else if bytes > LARGE {
            8
        } else {
            Self::DRAWS
        }
    }

    /// The machine of a figure, unless the user chose another one.
    fn machine(&self, text: (&str, &str)) -> Result<Machine, ReplayError> {
        match &self.machine {
            Some(machine) => Ok(machine.clone()),
            None => parsed(text),
        }
    }
}

/// Reads one of the machines of this crate.
fn parsed((name, text): (&str, &str)) -> Result<Machine, ReplayError> {
    Machine::parse(name, text).map_err(|error| ReplayError(error.to_string()))
}

/// A figure that can be made.
#[derive(Clone, Copy)]
pub struct Kind {
    /// Name on the command line.
    pub name: &'static str,
    /// The table or figure, and its paper.
    pub paper: &'static str,
    /// File of the paper's machine, and its text.
    machine: (&'static str, &'static str),
    replay: fn(&Settings, &Memory, &Machine) -> Result<Replayed, ReplayError>,
    tell: fn(&Machine, Replayed) -> Figure,
}

/// Results of replays, without words.
struct Replayed {
    points: Vec<Point>,
    /// Parts of the figure that could not be made, and why.
    left_out: Vec<String>,
    /// True if the machine is the paper's, and not another one that the user chose.
    is_papers: bool,
}

impl From<Vec<Point>> for Replayed {
    fn from(points: Vec<Point>) -> Self {
        Self {
            points,
            left_out: Vec::new(),
            is_papers: false,
        }
    }
}

impl Replayed {
    /// Enters the paper's numbers, by the point and the name of the arm.
    fn enter_paper(&mut self, number: impl Fn(&Point, &str) -> Option<f64>) {
        if !self.is_papers {
            return;
        }
        for point in &mut self.points {
            let numbers = point.arms.iter().map(|arm| number(point, &arm.arm));
            let numbers: Vec<Option<f64>> = numbers.collect();
            for (arm, number) in point.arms.iter_mut().zip(numbers) {
                arm.paper = number;
            }
        }
    }
}

/// Beginning of the sentence on parts of a figure that could not be made.
const LEFT_OUT: &str = "LEFT OUT: ";

impl std::fmt::Debug for Kind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name)
    }
}

/// All figures, in the order of the page.
pub const ALL: [Kind; 14] = [
    Kind {
        name: "p0-celeron",
        paper: "P0 table 2, figures 8 and 9",
        machine: CELERON,
        replay: transpose::celeron,
        tell: transpose::tell_celeron,
    },
    Kind {
        name: "p0-celeron-superpages",
        paper: "P0 figures 10 and 11",
        machine: CELERON,
        replay: transpose::celeron_superpages,
        tell: transpose::tell_celeron_superpages,
    },
    Kind {
        name: "p0-pentium4",
        paper: "P0 figures 12 and 13",
        machine: PENTIUM4,
        replay: transpose::pentium4,
        tell: transpose::tell_pentium4,
    },
    Kind {
        name: "p1-pairs",
        paper: "P1 figure 5",
        machine: CORE2,
        replay: isolation::pairs,
        tell: isolation::tell_pairs,
    },
    Kind {
        name: "p1-rule",
        paper: "P1 section 3.2",
        machine: ZEN,
        replay: isolation::rule,
        tell: isolation::tell_rule,
    },
    Kind {
        name: "p2-bandwidth",
        paper: "P2 result 3",
        machine: ALPHA,
        replay: patch::bandwidth,
        tell: patch::tell_bandwidth,
    },
    Kind {
        name: "p2-fft",
        paper: "P2 result 4",
        machine: ALPHA,
        replay: patch::fft,
        tell: patch::tell_fft,
    },
    Kind {
        name: "p2-product",
        paper: "P2 result 2",
        machine: ATHLON,
        replay: patch::product,
        tell: patch::tell_product,
    },
    Kind {
        name: "p3-celeron-load",
        paper: "P3 figure 10 (a)",
        machine: CELERON,
        replay: transpose::p3_load,
        tell: transpose::tell_p3_celeron_load,
    },
    Kind {
        name: "p3-pentium4-load",
        paper: "P3 figures 9 and 10 (b)",
        machine: PENTIUM4,
        replay: transpose::p3_load,
        tell: transpose::tell_p3_pentium4_load,
    },
    Kind {
        name: "p3-store",
        paper: "P3 figure 11 (b)",
        machine: PENTIUM4,
        replay: transpose::p3_store,
        tell: transpose::tell_p3_pentium4_store,
    },
    Kind {
        name: "p3-stride",
        paper: "P3 section 5.1",
        machine: PENTIUM4,
        replay: transpose::stride,
        tell: transpose::tell_stride,
    },
    Kind {
        name: "p3-programs",
        paper: "P3 figures 12 and 13",
        machine: PENTIUM4,
        replay: programs::replayed,
        tell: programs::tell_pentium4,
    },
    Kind {
        name: "p3-programs-celeron",
        paper: "P3 figures 12 and 13",
        machine: CELERON,
        replay: programs::replayed,
        tell: programs::tell_celeron,
    },
];

/// The figure of that name.
#[must_use]
pub fn named(name: &str) -> Option<Kind> {
    ALL.into_iter().find(|kind| kind.name == name)
}

impl Kind {
    /// Makes the figure.
    ///
    /// # Errors
    /// If the machine that the user chose does not fit the figure.
    pub fn make(&self, settings: &Settings, memory: &Memory) -> Result<Figure, ReplayError> {
        let machine = settings.machine(self.machine)?;
        let replayed = (self.replay)(settings, memory, &machine)?;
        let is_papers = settings.machine.is_none();
        let replayed = Replayed {
            is_papers,
            ..replayed
        };
        Ok((self.tell)(&machine, replayed))
    }

    /// Returns the figure in the words of this version, which draws its conclusions anew from the points. A figure of a machine that the user chose stays
    /// as it is.
    ///
    /// # Errors
    /// If the paper's machine cannot be read.
    pub fn retell(&self, figure: &Figure) -> Result<Figure, ReplayError> {
        let machine = parsed(self.machine)?;
        if figure.machine != machine.name {
            return Ok(figure.clone());
        }
        let mut points = figure.points.clone();
        for arm in points.iter_mut().flat_map(|point| &mut point.arms) {
            arm.paper = None;
        }
        let said = figure.verdict.iter();
        let left_out = said.filter_map(|text| text.strip_prefix(LEFT_OUT)?.strip_suffix('.'));
        let replayed = Replayed {
            points,
            left_out: left_out.map(str::to_owned).collect(),
            is_papers: true,
        };
        Ok((self.tell)(&machine, replayed))
    }
}

/// Size to replay.
struct Size {
    label: String,
    bytes: u64,
    /// Parameter of the loop: a dimension, points, a stride.
    number: u64,
}

/// Largest size of which many draws are quick, in bytes.
const SMALL: u64 = 1 << 20;
/// Size above which eight draws are enough, in bytes.
const LARGE: u64 = 10 << 20;
/// Size above which no real kernel dealt a draw, in bytes.
const HUGE: u64 = 48 << 20;

/// Replays each draw of each arm at each size, on all CPUs.
fn replay(
    sizes: &[Size],
    arms: &[Arm],
    draws: impl Fn(&Size) -> usize,
    one: impl Fn(&Size, Arm, usize) -> Outcome + Sync,
) -> Replayed {
    let work: Vec<(usize, Arm, usize)> = (0..sizes.len())
        .flat_map(|size| arms.iter().map(move |arm| (size, *arm)))
        .flat_map(|(size, arm)| (0..draws(&sizes[size])).map(move |draw| (size, arm, draw)))
        .collect();
    let outcomes = parallel::map(&work, |&(size, arm, draw)| one(&sizes[size], arm, draw));
    let mut rest = &outcomes[..];
    let points = sizes.iter();
    let points: Vec<Point> = points
        .map(|size| Point {
            label: size.label.clone(),
            bytes: size.bytes,
            traced: None,
            arms: arms
                .iter()
                .map(|arm| {
                    let (mine, others) = rest.split_at(draws(size));
                    rest = others;
                    result(*arm, mine)
                })
                .collect(),
        })
        .collect();
    points.into()
}

/// Sink that runs references on core 0 of a system.
pub(crate) struct SystemSink<'a> {
    system: System,
    pages: &'a Placement,
}

impl Sink for SystemSink<'_> {
    #[inline]
    fn load(&mut self, at: u64) {
        self.system.load(0, self.pages, at);
    }

    #[inline]
    fn store(&mut self, at: u64) {
        self.system.store(0, self.pages, at);
    }

    #[inline]
    fn loads(&mut self, at: u64, count: u64) {
        self.system.load_run(0, self.pages, at, 8, count);
    }
}

/// Runs a loop once to fill caches and TLBs, and then once more for the counts.
pub(crate) fn counted<'a>(
    machine: &Machine,
    pages: &'a Placement,
    run: impl Fn(&mut SystemSink<'a>, bool),
) -> Counts {
    let mut running = SystemSink {
        system: System::new(machine),
        pages,
    };
    run(&mut running, false);
    let before = running.system.counts(0);
    run(&mut running, true);
    running.system.counts(0).since(&before)
}

fn place(memory: &Memory, arm: Arm, bytes: u64, draw: usize) -> SourcedPlacement {
    memory.place(arm, bytes, draw)
}

/// Ratio of two medians, as gain: 1.1 is 10 % better.
fn gain(figure: &Figure, point: &Point, arm: &str, over: &str) -> Option<f64> {
    let (of, over) = (point.arm(arm)?.value.median, point.arm(over)?.value.median);
    Some(if figure.higher_is_better {
        of / over
    } else {
        over / of
    })
}

/// Points where an arm's median is more than 1 % worse than another's.
fn losses(figure: &Figure, arm: &str, over: &str) -> Vec<String> {
    let mut found = Vec::new();
    for point in &figure.points {
        if let Some(gain) = gain(figure, point, arm, over)
            && gain < 0.99
        {
            found.push(format!(
                "{} {}: {:.1} %",
                figure.axis,
                point.label,
                (gain - 1.0) * 100.0
            ));
        }
    }
    if found.is_empty() {
        return vec![format!(
            "{arm} loses to {over} nowhere by more than 1 % of the median."
        )];
    }
    vec![format!("{arm} loses to {over} at {}.", found.join(", "))]
}

/// Reason why a transpose or a product loses by color.
const JUST_BEYOND: &str = "That is just beyond the cache, where evenly placed pages all lose and luck keeps some; the paper has a small loss there, too (figure 9 (b)).";

/// Reports the points at which `both` is worse than one of two other arms, beyond the spread of draws, and adds `why`;
/// or that there is none.
fn both_never_worse(figure: &Figure, alone: [&str; 2], why: &str) -> String {
    let mut worse = Vec::new();
    for point in &figure.points {
        let Some(both) = point.arm("both") else {
            continue;
        };
        for name in alone {
            let Some(other) = point.arm(name) else {
                continue;
            };
            let better = |spread: &Spread| {
                if figure.higher_is_better {
                    spread.p95
                } else {
                    spread.p5
                }
            };
            let poor = |spread: &Spread| {
                if figure.higher_is_better {
                    spread.p5
                } else {
                    spread.p95
                }
            };
            let beyond = if figure.higher_is_better {
                better(&both.value) < poor(&other.value)
            } else {
                better(&both.value) > poor(&other.value)
            };
            if beyond {
                worse.push(format!("{} {} ({name})", figure.axis, point.label));
            }
        }
    }
    if worse.is_empty() {
        format!(
            "Superpages with coloring are nowhere worse than {} or {} alone beyond the spread of draws.",
            alone[0], alone[1]
        )
    } else {
        format!(
            "MISSED: superpages with coloring are worse than one of them alone beyond the spread of draws at {}. {why}",
            worse.join(", ")
        )
    }
}

const CELERON: (&str, &str) = ("celeron-900.toml", machines::CELERON_900);
const PENTIUM4: (&str, &str) = ("pentium4-1600.toml", machines::PENTIUM4_1600);
const ALPHA: (&str, &str) = ("alpha-21264.toml", machines::ALPHA_21264);
const ATHLON: (&str, &str) = ("athlon-k75.toml", machines::ATHLON_K75);
const CORE2: (&str, &str) = ("core2-duo.toml", machines::CORE2_DUO);
const ZEN: (&str, &str) = ("zen.toml", machines::ZEN);

//! The problem: tasks, their schedule, their demands and the cache.

use std::time::Duration;

use super::PlanError;
use super::graph::Graph;
use super::needs::{Needs, Unit};
use super::schedule::{Caches, Place, Preemption, Window};

/// The most tasks of a plan.
pub const MOST_TASKS: usize = 256;

/// The most colors of a cache that are divided.
pub const MOST_COLORS: usize = 4096;

/// Quantity that a plan makes as small as possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Objective {
    /// The sum of the costs of all tasks: by second where tasks have periods, by run where none has.
    Sum,
    /// The largest share of its deadline that any task takes; then the sum.
    Worst,
}

/// A task.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Name of the task, unique in the plan.
    pub name: String,
    /// CPUs on which it may run.
    pub cpus: Vec<u32>,
    /// Part of each period in which it may run; `None` if it may run at any time.
    pub window: Option<Window>,
    /// Time from one run to the next.
    pub period: Option<Duration>,
    /// Longest time that a run may take; without one, the period.
    pub deadline: Option<Duration>,
    /// Demand for colors.
    pub needs: Needs,
}

impl Task {
    /// Makes a task that may run at any time.
    #[must_use]
    pub fn new(name: &str, cpus: Vec<u32>, needs: Needs) -> Self {
        Self {
            name: name.to_owned(),
            cpus,
            window: None,
            period: None,
            deadline: None,
            needs,
        }
    }
}

/// A cache, and the tasks that divide it.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// Colors of the cache.
    pub colors: usize,
    /// Colors that no task gets: for the kernel and other programs.
    pub others: usize,
    /// Groups of CPUs, each with a cache of its own that they share. No group: all CPUs share one cache.
    pub sharing: Vec<Vec<u32>>,
    /// Order of tasks on one CPU.
    pub preemption: Preemption,
    /// Quantity to make small.
    pub objective: Objective,
    /// Time of a miss, which makes misses comparable with seconds.
    pub miss_time: Option<Duration>,
    /// The tasks.
    pub tasks: Vec<Task>,
    /// Groups of tasks, by number, of which no two run at the same time: no run of one begins before a run of another has ended.
    pub never_together: Vec<Vec<usize>>,
    /// Groups of tasks of which no two may share a color, whatever their schedule.
    pub apart: Vec<Vec<usize>>,
}

/// Reason why a problem has no meaning.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ProblemError {
    /// The search gave colors that the plan does not allow.
    #[error(
        "the search gave tasks that may run together a common color, or one that does not exist: this is an error of superhue, please report it \
         with the file"
    )]
    Internal,
    /// There is nothing to plan.
    #[error("there is no task: add [[task]] with name, cpu and colors")]
    NoTasks,
    /// More tasks than a plan may have.
    #[error(
        "there are {0} tasks, and a plan has at most {MOST_TASKS}: join tasks that run by turns on one CPU"
    )]
    TooManyTasks(usize),
    /// A number of colors that no cache has.
    #[error("a cache with {0} colors cannot be divided: it is a number from 1 to {MOST_COLORS}")]
    Colors(usize),
    /// Nothing is left for tasks.
    #[error("others = {others} leaves none of the {colors} colors for tasks")]
    Others {
        /// Colors for others.
        others: usize,
        /// All colors.
        colors: usize,
    },
    /// Two tasks have one name.
    #[error("two tasks are called `{0}`")]
    SameName(String),
    /// A task that runs nowhere.
    #[error("task {0} has no CPU")]
    NoCpu(String),
    /// A CPU of no group.
    #[error("task {name} runs on CPU {cpu}, which is in no group of shared-by")]
    UnknownCpu {
        /// Name of the task.
        name: String,
        /// The CPU.
        cpu: u32,
    },
    /// A CPU of two groups.
    #[error("CPU {0} is in two groups of shared-by: it has one cache")]
    TwoCaches(u32),
    /// A group names a task that there is not.
    #[error("there is no task {0}")]
    NoTask(usize),
    /// Two demands on a pair of tasks exclude each other.
    #[error("{one} and {other} are never together and yet apart: remove one of the two")]
    Contradiction {
        /// Name of a task.
        one: String,
        /// Name of the other.
        other: String,
    },
    /// Two tasks on one CPU have windows with a common moment, and neither interrupts the other.
    #[error(
        "the windows of {one} and {other} overlap on CPU {cpu}, where a run ends before another begins: change the windows, or write \
         schedule = \"preemptive\""
    )]
    BothAtOnce {
        /// Name of a task.
        one: String,
        /// Name of the other.
        other: String,
        /// The CPU.
        cpu: u32,
    },
    /// A task without a color.
    #[error("task {0} has no color: each has at least 1")]
    NoColorsFor(String),
    /// A task with more colors than a cache has.
    #[error(
        "task {name} has {colors} colors, and a cache has at most {MOST_COLORS}: write a smaller number, or leave that point of its curve out"
    )]
    TooManyColorsFor {
        /// Name of the task.
        name: String,
        /// Number of the task's colors, or that of the last point of its curve.
        colors: usize,
    },
    /// Costs in different units.
    #[error(
        "{misses} has misses and {seconds} has seconds: add miss-time, the time of a miss, to compare them"
    )]
    MixedUnits {
        /// Name of a task with misses.
        misses: String,
        /// Name of a task with seconds.
        seconds: String,
    },
    /// Costs by second and by run.
    #[error(
        "{with} has a period and {without} has none: costs are by second or by run, so give all tasks with a curve a period, or none"
    )]
    MixedPeriods {
        /// Name of a task with a period.
        with: String,
        /// Name of a task without one.
        without: String,
    },
    /// Misses beside a deadline.
    #[error(
        "{0} has misses, and minimise = \"worst\" compares times with deadlines: add miss-time, the time of a miss"
    )]
    NoTime(String),
    /// No deadline.
    #[error(
        "{0} has neither deadline nor period, and minimise = \"worst\" compares times with deadlines"
    )]
    NoDeadline(String),
    /// A time of 0.
    #[error("the {what} of {name} is 0")]
    NoDuration {
        /// Name of the task.
        name: String,
        /// The time: period or deadline.
        what: &'static str,
    },
}

/// Unit of a sum of costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Quantity.
    pub unit: Unit,
    /// True for the quantity in each second, false for that of one run of each task.
    pub is_per_second: bool,
}

/// A number of colors that a task can get.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Size {
    pub(super) colors: usize,
    /// Part of the sum.
    pub(super) cost: f64,
    /// Cost of a run in the unit of its curve.
    pub(super) per_run: Option<f64>,
    /// Seconds of a run as a share of the deadline.
    pub(super) of_deadline: Option<f64>,
}

/// Sizes of all tasks; ascending in colors.
#[derive(Debug)]
pub(super) struct Sizes {
    pub(super) of: Vec<Vec<Size>>,
    /// Unit of the costs; `None` if there are no curves.
    pub(super) rate: Option<Rate>,
}

impl Sizes {
    /// Least number of colors of each task.
    pub(super) fn least(&self) -> Vec<usize> {
        let first = self.of.iter().map(|sizes| sizes.first());
        first
            .map(|size| size.map_or(0, |size| size.colors))
            .collect()
    }

    /// Numbers of colors and costs of each task, without those that take a larger share of the deadline.
    pub(super) fn within(&self, ceiling: f64) -> Vec<Vec<(usize, f64)>> {
        let is_within = |size: &&Size| size.of_deadline.is_none_or(|share| share <= ceiling);
        let of = self.of.iter().map(|sizes| {
            let within = sizes.iter().filter(is_within);
            within.map(|size| (size.colors, size.cost)).collect()
        });
        of.collect()
    }

    /// All shares of deadlines, ascending.
    pub(super) fn ceilings(&self) -> Vec<f64> {
        let shares = self.of.iter().flatten().filter_map(|size| size.of_deadline);
        let mut shares: Vec<f64> = shares.collect();
        shares.sort_by(f64::total_cmp);
        shares.dedup();
        shares
    }
}

impl Problem {
    /// Makes a problem without tasks, in which all CPUs share the cache and no colors are kept for others.
    #[must_use]
    pub const fn new(colors: usize, preemption: Preemption) -> Self {
        Self {
            colors,
            others: 0,
            sharing: Vec::new(),
            preemption,
            objective: Objective::Sum,
            miss_time: None,
            tasks: Vec::new(),
            never_together: Vec::new(),
            apart: Vec::new(),
        }
    }

    /// Checks the problem, and returns the graph of tasks that must not share a color.
    pub(super) fn conflicts(&self) -> Result<Graph, ProblemError> {
        self.check_colors()?;
        self.check_tasks()?;
        let places = self.places()?;
        let len = self.tasks.len();
        let mut never = Graph::new(len);
        let mut apart = Graph::new(len);
        for (groups, graph) in [
            (&self.never_together, &mut never),
            (&self.apart, &mut apart),
        ] {
            for group in groups {
                if let Some(&unknown) = group.iter().find(|&&task| task >= len) {
                    return Err(ProblemError::NoTask(unknown));
                }
                // A file may repeat a name as often as it has room.
                let mut members = group.clone();
                members.sort_unstable();
                members.dedup();
                for &one in &members {
                    (members.iter()).for_each(|&other| graph.connect(one, other));
                }
            }
        }
        let mut conflicts = Graph::new(len);
        for one in 0..len {
            for other in one + 1..len {
                let (is_never, is_apart) = (never.has(one, other), apart.has(one, other));
                let names = || (self.tasks[one].name.clone(), self.tasks[other].name.clone());
                if is_never && is_apart {
                    let (one, other) = names();
                    return Err(ProblemError::Contradiction { one, other });
                }
                if is_apart || (!is_never && self.may_meet(&places, one, other)?) {
                    conflicts.connect(one, other);
                }
            }
        }
        Ok(conflicts)
    }

    fn check_colors(&self) -> Result<(), ProblemError> {
        if !(1..=MOST_COLORS).contains(&self.colors) {
            return Err(ProblemError::Colors(self.colors));
        }
        if self.others >= self.colors {
            let (others, colors) = (self.others, self.colors);
            return Err(ProblemError::Others { others, colors });
        }
        let mut known: Vec<u32> = self.sharing.iter().flatten().copied().collect();
        known.sort_unstable();
        match known.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(ProblemError::TwoCaches(pair[0])),
            None => Ok(()),
        }
    }

    fn check_tasks(&self) -> Result<(), ProblemError> {
        match self.tasks.len() {
            0 => return Err(ProblemError::NoTasks),
            count if count > MOST_TASKS => return Err(ProblemError::TooManyTasks(count)),
            _ => {}
        }
        for (at, task) in self.tasks.iter().enumerate() {
            let name = || task.name.clone();
            if self.tasks[..at].iter().any(|other| other.name == task.name) {
                return Err(ProblemError::SameName(name()));
            }
            if task.cpus.is_empty() {
                return Err(ProblemError::NoCpu(name()));
            }
            for (what, time) in [("period", task.period), ("deadline", task.deadline)] {
                if time.is_some_and(|time| time.is_zero()) {
                    return Err(ProblemError::NoDuration { name: name(), what });
                }
            }
            match task.needs.most() {
                0 => return Err(ProblemError::NoColorsFor(name())),
                // Sums of the colors of all tasks stay far below the limits of their type.
                colors if colors > MOST_COLORS => {
                    let name = name();
                    return Err(ProblemError::TooManyColorsFor { name, colors });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the place of each task among the caches.
    fn places(&self) -> Result<Vec<Place>, ProblemError> {
        let cpus = self.tasks.iter().flat_map(|task| &task.cpus).copied();
        let caches = match self.sharing.is_empty() {
            true => Caches::one(cpus),
            false => Caches::of_groups(&self.sharing),
        };
        let places = self.tasks.iter().map(|task| {
            let name = || task.name.clone();
            let place = caches.place(&task.cpus);
            place.map_err(|cpu| ProblemError::UnknownCpu { name: name(), cpu })
        });
        places.collect()
    }

    /// Returns true if one of two tasks may use the cache during a run of the other, by CPUs and windows alone.
    fn may_meet(&self, places: &[Place], one: usize, other: usize) -> Result<bool, ProblemError> {
        let can_meet = places[one].meets(&places[other], self.preemption);
        let (one, other) = (&self.tasks[one], &self.tasks[other]);
        let overlap = (one.window.zip(other.window)).is_none_or(|(a, b)| a.overlaps(&b));
        let both_are_known = one.window.is_some() && other.window.is_some();
        if let ([cpu], [same]) = (&one.cpus[..], &other.cpus[..])
            && cpu == same
            && both_are_known
            && overlap
            && self.preemption == Preemption::Cyclic
        {
            return Err(ProblemError::BothAtOnce {
                one: one.name.clone(),
                other: other.name.clone(),
                cpu: *cpu,
            });
        }
        Ok(overlap && can_meet)
    }

    /// Returns the sizes that each task can get, with those left out that miss its deadline.
    pub(super) fn sizes(&self) -> Result<Sizes, PlanError> {
        let rate = self.rate()?;
        let of = self.tasks.iter().map(|task| self.sizes_of(task, rate));
        Ok(Sizes {
            of: of.collect::<Result<_, _>>()?,
            rate,
        })
    }

    /// The unit in which costs are added up; `None` without curves.
    fn rate(&self) -> Result<Option<Rate>, ProblemError> {
        let curves = || {
            self.tasks.iter().filter_map(|task| match &task.needs {
                Needs::Curve(curve) => Some((task, curve.unit())),
                Needs::Colors(_) => None,
            })
        };
        let Some((_, unit)) = curves().next() else {
            return Ok(None);
        };
        let named = |unit: Unit| {
            let task = curves().find(|(_, other)| *other == unit);
            task.map(|(task, _)| task.name.clone())
        };
        let is_mixed = match (named(Unit::Misses), named(Unit::Seconds)) {
            (Some(misses), Some(seconds)) if self.miss_time.is_none() => {
                return Err(ProblemError::MixedUnits { misses, seconds });
            }
            (Some(_), Some(_)) => true,
            _ => false,
        };
        if self.objective == Objective::Worst {
            for (task, unit) in curves() {
                let name = || task.name.clone();
                if unit == Unit::Misses && self.miss_time.is_none() {
                    return Err(ProblemError::NoTime(name()));
                }
                if task.deadline.or(task.period).is_none() {
                    return Err(ProblemError::NoDeadline(name()));
                }
            }
        }
        let with = curves().find(|(task, _)| task.period.is_some());
        let without = curves().find(|(task, _)| task.period.is_none());
        if let (Some((with, _)), Some((without, _))) = (with, without) {
            let (with, without) = (with.name.clone(), without.name.clone());
            return Err(ProblemError::MixedPeriods { with, without });
        }
        Ok(Some(Rate {
            unit: if is_mixed { Unit::Seconds } else { unit },
            is_per_second: with.is_some(),
        }))
    }

    fn sizes_of(&self, task: &Task, rate: Option<Rate>) -> Result<Vec<Size>, PlanError> {
        let (curve, rate) = match (&task.needs, rate) {
            (Needs::Curve(curve), Some(rate)) => (curve, rate),
            (Needs::Colors(colors), _) => return Ok(vec![fixed(*colors)]),
            (Needs::Curve(_), None) => return Ok(Vec::new()),
        };
        let deadline = task.deadline.or(task.period).map(|time| time.as_secs_f64());
        let in_a_second = match (rate.is_per_second, task.period) {
            (true, Some(period)) => period.as_secs_f64(),
            _ => 1.0,
        };
        let mut sizes = Vec::new();
        for &(colors, cost) in curve.points() {
            let seconds = curve.seconds(cost, self.miss_time);
            let part = match rate.unit {
                Unit::Seconds => seconds.unwrap_or(cost),
                Unit::Misses => cost,
            };
            sizes.push(Size {
                colors,
                cost: part / in_a_second,
                per_run: Some(cost),
                of_deadline: seconds
                    .zip(deadline)
                    .map(|(time, deadline)| time / deadline),
            });
        }
        sizes.retain(|size| size.of_deadline.is_none_or(|share| share <= 1.0));
        match (curve.points().last(), deadline) {
            (Some(&(colors, cost)), Some(deadline)) if sizes.is_empty() => Err(PlanError::Late {
                name: task.name.clone(),
                seconds: curve.seconds(cost, self.miss_time).unwrap_or_default(),
                deadline,
                colors,
            }),
            _ => Ok(sizes),
        }
    }
}

/// The one size of a task with a fixed number of colors.
const fn fixed(colors: usize) -> Size {
    Size {
        colors,
        cost: 0.0,
        per_run: None,
        of_deadline: None,
    }
}

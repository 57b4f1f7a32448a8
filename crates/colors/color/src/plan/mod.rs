//! Plan of page colors for tasks that must not evict each other from a shared cache.
//!
//! Analysis of the longest run of a task on one CPU stays true on several CPUs if no other task evicts its lines while it runs: each task
//! gets a set of colors, and tasks that may run at the same time get sets without a color in common (Zhang, Guan and Wang, 2014).
//!
//! ```text
//!   tasks: CPUs, windows, demands ──> schedule: conflicts ──────> admission: do the least demands fit?  no ──> Refusal
//!                                     needs: costs by colors  ──> sizes: the least sum of costs         yes ──> Plan
//! ```
//!
//! Pure: no clock, no system call, no random number. The same problem gives the same plan everywhere.
//!
//! ```
//! use superhue_color::plan::{Needs, Preemption, Problem, Task, plan};
//!
//! let task = |name: &str, cpu, colors| Task::new(name, vec![cpu], Needs::Colors(colors));
//! let mut problem = Problem::new(8, Preemption::Cyclic);
//! problem.tasks = vec![task("control", 0, 4), task("logger", 0, 3), task("camera", 1, 4)];
//! let plan = plan(&problem).unwrap();
//! // On one CPU by turns, control and logger share colors; camera runs beside them.
//! let sets: Vec<String> = plan.shares.iter().map(|share| share.colors.to_string()).collect();
//! assert_eq!(sets, ["0-3", "0-2", "4-7"]);
//! ```

mod cover;
mod graph;
mod modules;
mod needs;
mod problem;
mod refusal;
mod schedule;
mod sizes;
#[cfg(test)]
mod testing;
mod work;

use superhue_model::ColorSet;

pub use needs::{Curve, CurveError, MOST_POINTS, Needs, Unit};
pub use problem::{MOST_COLORS, MOST_TASKS, Objective, Problem, ProblemError, Rate, Task};
pub use refusal::{Change, Obstacle, Refusal};
pub use schedule::{Preemption, Window, WindowError};

use graph::Graph;
use problem::Sizes;
use refusal::Demand;
use sizes::{Choice, Outcome, choose};

/// Colors for each task.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// One for each task, in their order.
    pub shares: Vec<Share>,
    /// The highest colors, for everything else; `None` if the problem keeps none.
    pub others: Option<ColorSet>,
    /// Colors that no task gains from; `None` if there are none.
    pub unused: Option<ColorSet>,
    /// Pairs of tasks that must not share a color.
    pub conflicts: Vec<(usize, usize)>,
    /// The sum of the costs; `None` if no task has a curve.
    pub cost: Option<Cost>,
    /// With [`Objective::Worst`]: the largest share of a deadline that a run takes.
    pub worst: Option<f64>,
}

/// Sum of the costs of a plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// The sum.
    pub value: f64,
    /// No plan for the problem has a smaller one. Under [`Objective::Worst`]: no plan that is as good for the worst task.
    pub bound: f64,
    /// True if there is no better plan; the search stopped early otherwise.
    pub is_best: bool,
    /// Unit of both.
    pub rate: Rate,
}

/// Colors of one task.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// The set.
    pub colors: ColorSet,
    /// Least number of colors with which the task meets its demand and its deadline.
    pub least: usize,
    /// Predicted cost of a run in the unit of the task's curve; `None` for a fixed number of colors.
    pub cost: Option<f64>,
    /// That cost as a share of the deadline, 0 to 1; `None` if one of them is not known in seconds.
    pub of_deadline: Option<f64>,
}

/// Reason why there is no plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The problem contradicts itself.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// A task misses its deadline with any number of colors.
    #[error(
        "task {name} takes {seconds} s of a deadline of {deadline} s even with {colors} colors, the most of its curve"
    )]
    Late {
        /// Name of the task.
        name: String,
        /// Seconds that the task's shortest run takes.
        seconds: f64,
        /// Deadline of the task in seconds.
        deadline: f64,
        /// Colors of the last point of its curve.
        colors: usize,
    },
    /// The tasks demand more colors than there are.
    #[error("the tasks demand more colors than there are")]
    Refused(Refusal),
}

/// Chooses a set of colors for each task, so that tasks that conflict have none in common and the costs are least.
///
/// # Errors
/// If the problem contradicts itself, or the tasks do not fit.
pub fn plan(problem: &Problem) -> Result<Plan, PlanError> {
    let graph = problem.conflicts()?;
    let sizes = problem.sizes()?;
    let limit = problem.colors - problem.others;
    let choice = match choose(&graph, &sizes.within(f64::INFINITY), limit) {
        Outcome::Chosen(choice) => choice,
        refused => {
            let demand = Demand {
                graph: &graph,
                least: &sizes.least(),
                colors: problem.colors,
                others: problem.others,
            };
            let is_proved = refused == Outcome::TooMany;
            return Err(PlanError::Refused(demand.explain(is_proved)));
        }
    };
    let choice = match problem.objective {
        Objective::Sum => choice,
        Objective::Worst => least_worst(&graph, &sizes, limit, choice),
    };
    Ok(finished(problem, &graph, &sizes, choice)?)
}

/// Chooses sizes for which the largest share of a deadline is least; of these, the ones with the least sum of costs.
fn least_worst(graph: &Graph, sizes: &Sizes, limit: usize, first: Choice) -> Choice {
    let ceilings = sizes.ceilings();
    let is_within = |ceiling: f64| {
        let within = sizes.within(ceiling);
        if within.iter().any(Vec::is_empty) {
            return Outcome::TooMany;
        }
        let least = within.iter().map(|sizes| vec![(sizes[0].0, 0.0)]);
        choose(graph, &least.collect::<Vec<_>>(), limit)
    };
    // A lower ceiling demands more colors.
    let (mut low, mut high) = (0, ceilings.len().saturating_sub(1));
    let mut is_proved = true;
    while low < high {
        let middle = usize::midpoint(low, high);
        let outcome = is_within(ceilings[middle]);
        is_proved &= outcome != Outcome::Unknown;
        match outcome {
            Outcome::Chosen(_) => high = middle,
            Outcome::TooMany | Outcome::Unknown => low = middle + 1,
        }
    }
    let ceiling = ceilings.get(high).copied().unwrap_or(f64::INFINITY);
    let mut choice = match choose(graph, &sizes.within(ceiling), limit) {
        Outcome::Chosen(choice) => choice,
        Outcome::TooMany | Outcome::Unknown => first,
    };
    choice.is_best &= is_proved;
    choice
}

/// Makes the plan of a choice.
fn finished(
    problem: &Problem,
    graph: &Graph,
    sizes: &Sizes,
    choice: Choice,
) -> Result<Plan, ProblemError> {
    let mut shares = Vec::new();
    let mut is_used = vec![false; problem.colors];
    for ((task, sizes), set) in problem.tasks.iter().zip(&sizes.of).zip(&choice.sets) {
        for &color in set {
            is_used[color] = true;
        }
        let nothing = || ProblemError::NoColorsFor(task.name.clone());
        let size = sizes.iter().rfind(|size| size.colors <= set.len());
        let size = size.ok_or_else(nothing)?;
        shares.push(Share {
            colors: set_of(set, problem.colors).ok_or_else(nothing)?,
            least: sizes.first().map_or(0, |size| size.colors),
            cost: size.per_run,
            of_deadline: size.of_deadline,
        });
    }
    let limit = problem.colors - problem.others;
    let is_wrong = |(one, other): (usize, usize)| {
        let sets = [one, other].map(|task| shares.get(task).map(|share: &Share| &share.colors));
        match sets {
            [Some(one), Some(other)] => one.iter().any(|color| other.contains(color)),
            _ => true,
        }
    };
    let conflicts = (0..graph.len()).flat_map(|one| {
        let later = graph.neighbours(one).filter(move |&other| other > one);
        later.map(move |other| (one, other))
    });
    let conflicts: Vec<(usize, usize)> = conflicts.collect();
    let beyond = |share: &Share| {
        share
            .colors
            .iter()
            .any(|color| usize::from(color.0) >= limit)
    };
    if conflicts.iter().copied().any(is_wrong) || shares.iter().any(beyond) {
        return Err(ProblemError::Internal);
    }
    let others: Vec<usize> = (limit..problem.colors).collect();
    let unused: Vec<usize> = (0..limit).filter(|&color| !is_used[color]).collect();
    let worst = shares.iter().filter_map(|share| share.of_deadline);
    let worst = worst.reduce(f64::max);
    Ok(Plan {
        others: set_of(&others, problem.colors),
        unused: set_of(&unused, problem.colors),
        conflicts,
        cost: sizes.rate.map(|rate| Cost {
            value: choice.cost,
            bound: choice.bound,
            is_best: choice.is_best,
            rate,
        }),
        worst: worst.filter(|_| problem.objective == Objective::Worst),
        shares,
    })
}

/// The set of these colors out of `colors`; `None` for no color.
fn set_of(set: &[usize], colors: usize) -> Option<ColorSet> {
    let mut words = vec![0_u64; colors.div_ceil(64)];
    for &color in set {
        *words.get_mut(color / 64)? |= 1 << (color % 64);
    }
    ColorSet::from_words(&words, colors)
}

#[cfg(test)]
mod tests;

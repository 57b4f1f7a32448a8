//! JSON document of a plan: `superhue-plan/1`.

use serde::Serialize;
use superhue::ColorPlacement;
use superhue::model::words;
use superhue::page_colors::oracles::OracleKind;
use superhue::page_colors::plan::{
    Change, Cost, Needs, Objective, Obstacle, Plan, PlanError, Preemption, Problem, Refusal, Share,
    Unit,
};
use superhue::procfs::hardware::CpuList;

use super::file::Start;

/// The schema's name.
const SCHEMA: &str = "superhue-plan/1";

/// The whole document.
#[derive(Debug, Serialize)]
pub(super) struct Document {
    schema: &'static str,
    version: &'static str,
    /// Number of colors.
    pub(super) colors: usize,
    /// The oracle that found that number; `null` if --of gave it.
    pub(super) oracle: Option<&'static str>,
    /// `cyclic` or `preemptive`.
    pub(super) schedule: &'static str,
    /// `sum` or `worst`.
    pub(super) minimise: &'static str,
    /// True if there is a plan.
    pub(super) fits: bool,
    /// The tasks; empty without a plan.
    pub(super) tasks: Vec<PlannedTask>,
    /// Colors that no task gets: for the kernel and other programs.
    pub(super) others: Option<String>,
    /// Colors that no task gains from.
    pub(super) unused: Option<String>,
    /// Pairs of tasks that must not share a color.
    pub(super) conflicts: Vec<(String, String)>,
    pub(super) cost: Option<PlanCost>,
    /// The largest share of a deadline, under `worst`.
    pub(super) worst: Option<f64>,
    pub(super) refusal: Option<PlanRefusal>,
}

/// A task with its colors.
#[derive(Debug, Serialize)]
pub(super) struct PlannedTask {
    pub(super) name: String,
    pub(super) cpus: String,
    pub(super) colors: String,
    pub(super) count: usize,
    pub(super) least: usize,
    pub(super) cost: Option<f64>,
    /// `misses` or `seconds`.
    pub(super) unit: Option<&'static str>,
    pub(super) of_deadline: Option<f64>,
    /// Command line that starts it; `null` if the file names its unit alone.
    pub(super) command: Option<String>,
    /// Rule of the daemon; `null` if the file names no unit.
    pub(super) rule: Option<String>,
}

/// Sum of the costs.
#[derive(Debug, Serialize)]
pub(super) struct PlanCost {
    pub(super) value: f64,
    pub(super) bound: f64,
    pub(super) is_best: bool,
    /// `misses` or `seconds`.
    pub(super) unit: &'static str,
    /// `second` or `run`.
    pub(super) per: &'static str,
}

/// Reason why the tasks do not fit.
#[derive(Debug, Serialize)]
pub(super) struct PlanRefusal {
    /// `clique`, `together`, `unknown` or `deadline`.
    pub(super) obstacle: &'static str,
    /// In words.
    pub(super) reason: String,
    pub(super) tasks: Vec<Demand>,
    /// Colors that these need together.
    pub(super) needed: Option<usize>,
    /// Colors for tasks.
    pub(super) available: usize,
    /// In words.
    pub(super) changes: Vec<String>,
}

/// A task that does not fit.
#[derive(Debug, Serialize)]
pub(super) struct Demand {
    pub(super) name: String,
    pub(super) cpus: String,
    pub(super) least: usize,
}

impl Document {
    /// Makes the document of a result.
    pub(super) fn new(
        problem: &Problem,
        starts: &[Start],
        oracle: Option<&'static str>,
        result: &Result<Plan, PlanError>,
    ) -> Self {
        let mut document = Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            colors: problem.colors,
            oracle,
            schedule: match problem.preemption {
                Preemption::Cyclic => "cyclic",
                Preemption::Preemptive => "preemptive",
            },
            minimise: match problem.objective {
                Objective::Sum => "sum",
                Objective::Worst => "worst",
            },
            fits: result.is_ok(),
            tasks: Vec::new(),
            others: None,
            unused: None,
            conflicts: Vec::new(),
            cost: None,
            worst: None,
            refusal: None,
        };
        match result {
            Ok(plan) => document.add(problem, starts, plan),
            Err(error) => document.refusal = Some(refusal(problem, error)),
        }
        document
    }

    fn add(&mut self, problem: &Problem, starts: &[Start], plan: &Plan) {
        let name = |task: usize| problem.tasks[task].name.clone();
        let placement = placement(starts, self.oracle);
        let tasks = problem.tasks.iter().zip(starts).zip(&plan.shares);
        self.tasks = tasks
            .map(|((task, start), share)| planned(task, start, share, placement))
            .collect();
        self.others = plan.others.as_ref().map(ToString::to_string);
        self.unused = plan.unused.as_ref().map(ToString::to_string);
        let conflicts = plan.conflicts.iter();
        self.conflicts = conflicts
            .map(|&(one, other)| (name(one), name(other)))
            .collect();
        self.cost = plan.cost.map(PlanCost::from);
        self.worst = plan.worst;
    }
}

impl From<Cost> for PlanCost {
    fn from(cost: Cost) -> Self {
        Self {
            value: cost.value,
            bound: cost.bound,
            is_best: cost.is_best,
            unit: unit_name(cost.rate.unit),
            per: if cost.rate.is_per_second {
                "second"
            } else {
                "run"
            },
        }
    }
}

const fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Misses => "misses",
        Unit::Seconds => "seconds",
    }
}

type PlanTask = superhue::page_colors::plan::Task;

fn cpus_of(task: &PlanTask) -> String {
    task.cpus.iter().copied().collect::<CpuList>().to_string()
}

/// Returns the mechanism that all tasks must have in common: the kernel and recoloring number the colors differently. `None` where each command of one
/// machine takes the same one by itself.
pub(super) fn placement(starts: &[Start], oracle: Option<&str>) -> Option<ColorPlacement> {
    // The kernel gives no colors to services that run already.
    if starts.iter().any(|start| start.unit.is_some()) {
        return Some(ColorPlacement::Recolor);
    }
    oracle.map(|oracle| match oracle == OracleKind::Kernel.name() {
        true => ColorPlacement::Kernel,
        false => ColorPlacement::Recolor,
    })
}

fn planned(
    task: &PlanTask,
    start: &Start,
    share: &Share,
    placement: Option<ColorPlacement>,
) -> PlannedTask {
    let (colors, cpus) = (share.colors.to_string(), cpus_of(task));
    let words = match (&start.command, &start.unit) {
        (Some(command), _) => Some(command.as_str()),
        (None, Some(_)) => None,
        (None, None) => Some("COMMAND"),
    };
    let option = placement.map_or_else(String::new, |it| format!(" --placement {it}"));
    let command = words.map(|words| {
        format!(
            "superhue run --colors {colors}{option} --strict --swap -- taskset -c {cpus} {words}"
        )
    });
    let rule = start.unit.as_ref().map(|unit| {
        format!(
            "[[rule]]\nname = \"{}\"\nunit = {}\ncolors = \"{colors}\"\nplacement = \"recolor\"\nswap = true\n",
            task.name,
            toml_string(unit)
        )
    });
    PlannedTask {
        name: task.name.clone(),
        command,
        rule,
        count: share.colors.len(),
        least: share.least,
        cost: share.cost,
        unit: match &task.needs {
            Needs::Curve(curve) => Some(unit_name(curve.unit())),
            Needs::Colors(_) => None,
        },
        of_deadline: share.of_deadline,
        colors,
        cpus,
    }
}

/// Returns a text as a string of TOML, in which each letter shows itself.
fn toml_string(text: &str) -> String {
    let mut string = "\"".to_owned();
    for letter in text.chars() {
        match letter {
            '"' | '\\' => string.extend(['\\', letter]),
            _ if words::is_harmless(letter) => string.push(letter),
            _ => string += &format!("\\U{:08x}", u32::from(letter)),
        }
    }
    string + "\""
}

fn refusal(problem: &Problem, error: &PlanError) -> PlanRefusal {
    let available = problem.colors - problem.others.min(problem.colors);
    match error {
        PlanError::Refused(refusal) => explained(problem, refusal),
        PlanError::Late { name, colors, .. } => PlanRefusal {
            obstacle: "deadline",
            reason: error.to_string(),
            tasks: (problem.tasks.iter())
                .filter(|task| task.name == *name)
                .map(|task| Demand {
                    name: name.clone(),
                    cpus: cpus_of(task),
                    least: *colors,
                })
                .collect(),
            needed: None,
            available,
            changes: vec![format!(
                "give {name} a longer deadline, or measure its curve with more colors"
            )],
        },
        PlanError::Problem(error) => PlanRefusal {
            obstacle: "unknown",
            reason: error.to_string(),
            tasks: Vec::new(),
            needed: None,
            available,
            changes: Vec::new(),
        },
    }
}

fn explained(problem: &Problem, refusal: &Refusal) -> PlanRefusal {
    let kept = match problem.others {
        0 => String::new(),
        others => format!(" ({} less {others} for others)", problem.colors),
    };
    let available = format!("{} colors for tasks{kept}", refusal.available);
    let demands: Vec<String> = (refusal.tasks.iter())
        .map(|&(task, least)| format!("{} {least}", problem.tasks[task].name))
        .collect();
    let (obstacle, reason) = match (refusal.obstacle, refusal.needed) {
        (Obstacle::Clique, _) if demands.len() == 1 => (
            "clique",
            format!("{}: more than the {available}", demands.join("")),
        ),
        (Obstacle::Clique, needed) => (
            "clique",
            format!(
                "all of these may run at the same time: {} = {}, more than the {available}",
                demands.join(" + "),
                needed.unwrap_or_default()
            ),
        ),
        (Obstacle::Together, needed) => {
            let least = needed.map_or_else(
                || format!("more than {}", refusal.available),
                |needed| needed.to_string(),
            );
            let text = format!(
                "these do not fit together, although each group that may run at the same time does: {}; they take {least} colors, and \
                 there are {available}",
                demands.join(", ")
            );
            ("together", text)
        }
        (Obstacle::Unknown, _) => (
            "unknown",
            format!(
                "no assignment was found in the {available}, and none was excluded: the search stopped at its limit"
            ),
        ),
    };
    PlanRefusal {
        obstacle,
        reason,
        tasks: (refusal.tasks.iter())
            .map(|&(task, least)| Demand {
                name: problem.tasks[task].name.clone(),
                cpus: cpus_of(&problem.tasks[task]),
                least,
            })
            .collect(),
        needed: refusal.needed,
        available: refusal.available,
        changes: refusal
            .changes
            .iter()
            .map(|change| advice(problem, *change))
            .collect(),
    }
}

/// A change, as an instruction.
fn advice(problem: &Problem, change: Change) -> String {
    let name = |task: usize| problem.tasks[task].name.as_str();
    match change {
        Change::Colors(colors) => format!("take a cache with {colors} colors"),
        Change::Others(others) => format!("others = {others}"),
        Change::Smaller { task, colors } => match problem.tasks[task].needs {
            Needs::Colors(_) => format!("{}: colors = {colors}", name(task)),
            Needs::Curve(_) => format!(
                "{}: let {colors} colors do (a longer deadline, or a point of its curve with fewer colors)",
                name(task)
            ),
        },
        Change::InTurns { one, other } => {
            let (one, other) = (name(one), name(other));
            format!(
                "let {one} and {other} run in turns (on one CPU, or never-together = [[\"{one}\", \"{other}\"]])"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_of_toml_has_the_value_of_its_text() {
        for text in [
            "a.service",
            "app-foo\\x2dbar.service",
            "a\\\\",
            "\"'\\u0041",
            "caf\u{e9}\u{200d}\u{1b}\n",
        ] {
            let line = format!("unit = {}\n", toml_string(text));
            assert_eq!(words::harmless_lines(&line), line);
            let table: toml::Table = toml::from_str(&line).unwrap();
            assert_eq!(table["unit"].as_str(), Some(text), "{line}");
        }
    }
}

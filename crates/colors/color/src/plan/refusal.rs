//! Reason why tasks do not fit, and changes with which they would.

use super::graph::Graph;
use super::sizes::{Outcome, choose_with};
use super::work::Work;

/// The most changes of each kind.
const MOST_CHANGES: usize = 3;
/// The most tries to find changes of each kind.
const MOST_TRIES: usize = 40;
/// Work of the search for the heaviest clique.
const CLIQUE: u64 = 4_000_000;
/// Work of each try: there are hundreds.
const TRYING: u64 = 100_000;

/// Tasks that demand more colors than there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The tasks, each with its least number of colors.
    pub tasks: Vec<(usize, usize)>,
    /// Relation of the tasks.
    pub obstacle: Obstacle,
    /// Colors that these tasks need together; `None` if that is not known.
    pub needed: Option<usize>,
    /// Colors for tasks.
    pub available: usize,
    /// Changes, each of which alone is enough to make room for all tasks.
    pub changes: Vec<Change>,
}

/// Relation of tasks that do not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// Each two of them conflict, so their demands add up.
    Clique,
    /// Each clique of them fits, and no assignment for all exists. None of them could be left out of that proof.
    Together,
    /// The search stopped before it found an assignment, or a proof that there is none.
    Unknown,
}

/// Change of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A cache with this number of colors.
    Colors(usize),
    /// Number of colors for others.
    Others(usize),
    /// Smaller number of colors for a task.
    Smaller {
        /// The task.
        task: usize,
        /// Number of colors for the task.
        colors: usize,
    },
    /// Two tasks that never run at the same time.
    InTurns {
        /// One task.
        one: usize,
        /// The other task.
        other: usize,
    },
}

/// The demands that do not fit.
pub(super) struct Demand<'a> {
    pub(super) graph: &'a Graph,
    /// Least number of colors of each task.
    pub(super) least: &'a [usize],
    pub(super) colors: usize,
    pub(super) others: usize,
}

impl Demand<'_> {
    /// Explains why they do not fit; `is_proved` is false if they only were not found to.
    pub(super) fn explain(&self, is_proved: bool) -> Refusal {
        let available = self.colors - self.others;
        let clique = self
            .graph
            .heaviest_clique(self.least, &mut Work::new(CLIQUE));
        let weight: usize = clique.iter().map(|&task| self.least[task]).sum();
        let (obstacle, tasks) = match (weight > available, is_proved) {
            (true, _) => (Obstacle::Clique, clique),
            (false, true) => (Obstacle::Together, self.smallest(available)),
            (false, false) => (Obstacle::Unknown, (0..self.least.len()).collect()),
        };
        let needed = match obstacle {
            Obstacle::Clique => Some(weight),
            Obstacle::Together => self.needed(&tasks, available),
            Obstacle::Unknown => None,
        };
        let changes = match obstacle {
            Obstacle::Unknown => Vec::new(),
            _ => self.changes(&tasks, needed, available),
        };
        Refusal {
            tasks: tasks
                .into_iter()
                .map(|task| (task, self.least[task]))
                .collect(),
            obstacle,
            needed,
            available,
            changes,
        }
    }

    /// Returns true if all tasks fit in this graph with these demands.
    fn fits(graph: &Graph, demands: &[usize], colors: usize) -> bool {
        matches!(
            choose_with(graph, &sizes_of(demands), colors, TRYING),
            Outcome::Chosen(_)
        )
    }

    fn least_of(&self, tasks: &[usize]) -> Vec<usize> {
        tasks.iter().map(|&task| self.least[task]).collect()
    }

    /// Leaves out tasks as long as the rest does not fit.
    fn smallest(&self, available: usize) -> Vec<usize> {
        let mut tasks: Vec<usize> = (0..self.least.len()).collect();
        for task in (0..self.least.len()).rev() {
            let rest: Vec<usize> = tasks
                .iter()
                .copied()
                .filter(|&other| other != task)
                .collect();
            let graph = self.graph.of(&rest);
            let sizes = sizes_of(&self.least_of(&rest));
            if choose_with(&graph, &sizes, available, TRYING) == Outcome::TooMany {
                tasks = rest;
            }
        }
        tasks
    }

    /// Returns the least number of colors for which these tasks fit, if it is found.
    fn needed(&self, tasks: &[usize], available: usize) -> Option<usize> {
        let (graph, least) = (self.graph.of(tasks), self.least_of(tasks));
        let enough: usize = least.iter().sum();
        (available + 1..=enough)
            .take(MOST_TRIES)
            .find(|&colors| Self::fits(&graph, &least, colors))
    }

    /// Collects changes that make room for all tasks, not only for these, which need `needed` colors; each is tried.
    fn changes(&self, tasks: &[usize], needed: Option<usize>, available: usize) -> Vec<Change> {
        let mut changes = Vec::new();
        if let Some(needed) = needed {
            let everyone: usize = self.least.iter().sum();
            let mut numbers = (needed..=everyone.max(needed)).take(MOST_TRIES);
            let enough = numbers.find(|&colors| Self::fits(self.graph, self.least, colors));
            if let Some(missing) = enough.map(|enough| enough - available) {
                changes.push(Change::Colors(self.colors + missing));
                changes.extend(self.others.checked_sub(missing).map(Change::Others));
            }
            changes.extend(self.smaller(tasks, needed - available, available));
        }
        let pairs = (tasks.iter().enumerate())
            .flat_map(|(at, &one)| tasks[at + 1..].iter().map(move |&other| (one, other)));
        let pairs = pairs.filter(|&(one, other)| self.graph.has(one, other));
        let in_turns = pairs.take(MOST_TRIES).filter_map(|(one, other)| {
            let mut parted = self.graph.clone();
            parted.part(one, other);
            let fits = Self::fits(&parted, self.least, available);
            fits.then_some(Change::InTurns { one, other })
        });
        changes.extend(in_turns.take(MOST_CHANGES));
        changes
    }

    /// Returns tasks that make room with fewer colors, the largest first.
    fn smaller(&self, tasks: &[usize], missing: usize, available: usize) -> Vec<Change> {
        let mut largest = tasks.to_vec();
        largest.sort_by_key(|&task| (std::cmp::Reverse(self.least[task]), task));
        let smaller = largest.into_iter().take(MOST_TRIES).filter_map(|task| {
            let colors = self.least[task]
                .checked_sub(missing)
                .filter(|&colors| colors > 0)?;
            let mut demands = self.least.to_vec();
            demands[task] = colors;
            let fits = Self::fits(self.graph, &demands, available);
            fits.then_some(Change::Smaller { task, colors })
        });
        smaller.take(MOST_CHANGES).collect()
    }
}

/// Sizes of tasks that have one each.
fn sizes_of(demands: &[usize]) -> Vec<Vec<(usize, f64)>> {
    demands.iter().map(|&least| vec![(least, 0.0)]).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{complete, cycle};
    use super::*;

    fn explained(graph: &Graph, least: &[usize], colors: usize, others: usize) -> Refusal {
        let demand = Demand {
            graph,
            least,
            colors,
            others,
        };
        demand.explain(true)
    }

    #[test]
    fn a_clique_is_named_with_what_would_make_room() {
        let refusal = explained(&complete(3), &[4, 3, 2], 9, 2);
        assert_eq!(refusal.tasks, [(0, 4), (1, 3), (2, 2)]);
        assert_eq!(
            (refusal.obstacle, refusal.needed),
            (Obstacle::Clique, Some(9))
        );
        assert_eq!(refusal.available, 7);
        let changes = [
            Change::Colors(11),
            Change::Others(0),
            Change::Smaller { task: 0, colors: 2 },
            Change::Smaller { task: 1, colors: 1 },
            Change::InTurns { one: 0, other: 1 },
            Change::InTurns { one: 0, other: 2 },
            Change::InTurns { one: 1, other: 2 },
        ];
        assert_eq!(refusal.changes, changes);
    }

    #[test]
    fn a_ring_is_named_whole_and_without_the_tasks_around_it() {
        let mut graph = Graph::new(7);
        for at in 0..5 {
            graph.connect(at + 1, (at + 1) % 5 + 1);
        }
        graph.connect(0, 6);
        let refusal = explained(&graph, &[1, 2, 2, 2, 2, 2, 1], 4, 0);
        assert_eq!(refusal.obstacle, Obstacle::Together);
        assert_eq!(refusal.tasks, [(1, 2), (2, 2), (3, 2), (4, 2), (5, 2)]);
        assert_eq!(refusal.needed, Some(5));
        assert!(refusal.changes.contains(&Change::Colors(5)));
        assert!(
            refusal
                .changes
                .contains(&Change::InTurns { one: 1, other: 2 })
        );
    }

    #[test]
    fn an_undecided_plan_names_all_tasks_and_no_number() {
        let graph = cycle(5);
        let demand = Demand {
            graph: &graph,
            least: &[2; 5],
            colors: 5,
            others: 0,
        };
        let refusal = demand.explain(false);
        assert_eq!(
            (refusal.obstacle, refusal.needed),
            (Obstacle::Unknown, None)
        );
        assert_eq!((refusal.tasks.len(), refusal.changes.len()), (5, 0));
    }
}

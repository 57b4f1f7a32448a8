//! Tasks that stand in the same relation to all other tasks, joined to one.
//!
//! ```text
//!   a and b never share a color, same others:   L colors for both = some for a, the rest for b        cost: the cheapest division
//!   a and b may share colors, same others:      L colors for both = L for each                        cost: the sum
//! ```
//!
//! Either way the joined task has costs by number of colors again, and nothing is lost: an assignment of colors to the joined task is one
//! for both, and the other way round. Tasks on CPUs by turns become one task at the end. Whatever is left over is searched
//! ([`super::sizes`]).

use super::graph::Graph;

/// A number of colors that makes a difference, and its cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Step {
    pub(super) colors: usize,
    pub(super) cost: f64,
    /// The steps of the two parts.
    parts: (usize, usize),
}

/// A task, or joined tasks.
#[derive(Debug)]
pub(super) struct Module {
    /// Ascending in colors, strictly falling in costs; never empty. Only the first may be beyond the limit.
    pub(super) steps: Vec<Step>,
    parts: Parts,
}

#[derive(Debug)]
enum Parts {
    Task(usize),
    /// Parts that never share a color.
    Apart(Box<Module>, Box<Module>),
    /// Parts that may share all colors.
    InTurns(Box<Module>, Box<Module>),
}

impl Module {
    /// Makes a module of one task, from its numbers of colors and their costs: ascending, never rising, and at least one.
    pub(super) fn task(index: usize, sizes: &[(usize, f64)]) -> Self {
        let steps = sizes.iter().map(|&(colors, cost)| Step {
            colors,
            cost,
            parts: (0, 0),
        });
        Self {
            steps: falling(steps),
            parts: Parts::Task(index),
        }
    }

    fn apart(one: Self, other: Self, limit: usize) -> Self {
        Self {
            steps: divided(&one.steps, &other.steps, limit),
            parts: Parts::Apart(Box::new(one), Box::new(other)),
        }
    }

    fn in_turns(one: Self, other: Self, limit: usize) -> Self {
        Self {
            steps: shared(&one.steps, &other.steps, limit),
            parts: Parts::InTurns(Box::new(one), Box::new(other)),
        }
    }

    /// Returns the last step that takes at most `colors` colors.
    pub(super) fn step_within(&self, colors: usize) -> Option<usize> {
        within(&self.steps, colors)
    }

    /// Hands these colors, as many as the step has, to the tasks.
    pub(super) fn assign(&self, step: usize, colors: &[usize], tasks: &mut [Vec<usize>]) {
        let Some(step) = self.steps.get(step) else {
            return;
        };
        let (left, right) = step.parts;
        match &self.parts {
            Parts::Task(index) => {
                tasks[*index] = colors.iter().copied().take(step.colors).collect();
            }
            Parts::Apart(one, other) => {
                let (ones, others) = colors.split_at(one.steps[left].colors.min(colors.len()));
                one.assign(left, ones, tasks);
                other.assign(right, others, tasks);
            }
            Parts::InTurns(one, other) => {
                one.assign(left, colors, tasks);
                other.assign(right, colors, tasks);
            }
        }
    }
}

fn within(steps: &[Step], colors: usize) -> Option<usize> {
    steps
        .partition_point(|step| step.colors <= colors)
        .checked_sub(1)
}

/// Keeps the first step, and those that cost less than all before them.
fn falling(steps: impl Iterator<Item = Step>) -> Vec<Step> {
    let mut kept: Vec<Step> = Vec::new();
    for step in steps {
        if kept.last().is_none_or(|last| step.cost < last.cost) {
            kept.push(step);
        }
    }
    kept
}

/// Steps of two parts that divide their colors; the least numbers also if they are beyond the limit.
pub(super) fn divided(one: &[Step], other: &[Step], limit: usize) -> Vec<Step> {
    let (Some(first), Some(second)) = (one.first(), other.first()) else {
        return Vec::new();
    };
    let least = Step {
        colors: first.colors + second.colors,
        cost: first.cost + second.cost,
        parts: (0, 0),
    };
    if least.colors > limit {
        return vec![least];
    }
    let mut best: Vec<Option<Step>> = vec![None; limit + 1];
    for (left, one) in one.iter().enumerate() {
        for (right, other) in other.iter().enumerate() {
            let colors = one.colors + other.colors;
            let Some(place) = best.get_mut(colors) else {
                break;
            };
            let cost = one.cost + other.cost;
            if place.is_none_or(|known| cost < known.cost) {
                *place = Some(Step {
                    colors,
                    cost,
                    parts: (left, right),
                });
            }
        }
    }
    falling(best.into_iter().flatten())
}

/// Steps of two parts that have the same colors.
fn shared(one: &[Step], other: &[Step], limit: usize) -> Vec<Step> {
    let least = (one.first().into_iter().chain(other.first()))
        .map(|step| step.colors)
        .max();
    let least = least.unwrap_or_default();
    let both = one.iter().chain(other).map(|step| step.colors);
    let mut levels: Vec<usize> = both
        .filter(|&colors| colors == least || (colors > least && colors <= limit))
        .collect();
    levels.sort_unstable();
    levels.dedup();
    falling(levels.into_iter().filter_map(|colors| {
        let (left, right) = (within(one, colors)?, within(other, colors)?);
        Some(Step {
            colors,
            cost: one[left].cost + other[right].cost,
            parts: (left, right),
        })
    }))
}

/// Joins tasks as long as two have the same neighbours besides each other.
pub(super) fn reduce(
    mut graph: Graph,
    mut modules: Vec<Module>,
    limit: usize,
) -> (Graph, Vec<Module>) {
    while let Some((one, other)) = twins(&graph) {
        let are_apart = graph.has(one, other);
        let second = modules.remove(other);
        let first = modules.remove(one);
        let joined = match are_apart {
            true => Module::apart(first, second, limit),
            false => Module::in_turns(first, second, limit),
        };
        modules.insert(one, joined);
        let kept: Vec<usize> = (0..graph.len()).filter(|&vertex| vertex != other).collect();
        graph = graph.of(&kept);
    }
    (graph, modules)
}

/// Returns two vertices with the same neighbours, the lower one first.
fn twins(graph: &Graph) -> Option<(usize, usize)> {
    let pairs = (0..graph.len()).flat_map(|one| (one + 1..graph.len()).map(move |two| (one, two)));
    let mut pairs = pairs;
    pairs.find(|&(one, other)| graph.are_twins(one, other))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{complete, cycle, graph_of};
    use super::*;

    fn modules(sizes: &[&[(usize, f64)]]) -> Vec<Module> {
        let numbered = sizes.iter().enumerate();
        numbered
            .map(|(at, sizes)| Module::task(at, sizes))
            .collect()
    }

    fn points(module: &Module) -> Vec<(usize, f64)> {
        module
            .steps
            .iter()
            .map(|step| (step.colors, step.cost))
            .collect()
    }

    #[test]
    fn tasks_apart_divide_their_colors_in_the_cheapest_way() {
        let sizes: [&[(usize, f64)]; 2] = [&[(1, 10.0), (3, 2.0)], &[(1, 8.0), (2, 5.0)]];
        let (graph, joined) = reduce(complete(2), modules(&sizes), 8);
        assert_eq!(graph.len(), 1);
        assert_eq!(
            points(&joined[0]),
            [(2, 18.0), (3, 15.0), (4, 10.0), (5, 7.0)]
        );
        let mut tasks = vec![Vec::new(); 2];
        joined[0].assign(2, &[3, 4, 5, 9], &mut tasks);
        assert_eq!(tasks, [vec![3, 4, 5], vec![9]]);
    }

    #[test]
    fn tasks_in_turns_have_all_of_the_colors() {
        let sizes: [&[(usize, f64)]; 2] = [&[(1, 10.0), (3, 2.0)], &[(2, 8.0), (4, 5.0)]];
        let (_, joined) = reduce(graph_of(2, &[]), modules(&sizes), 3);
        assert_eq!(points(&joined[0]), [(2, 18.0), (3, 10.0)]);
        let mut tasks = vec![Vec::new(); 2];
        joined[0].assign(1, &[0, 1, 2], &mut tasks);
        assert_eq!(tasks, [vec![0, 1, 2], vec![0, 1]]);
        // The least is kept beyond the limit, so that it can be refused.
        let (_, joined) = reduce(complete(2), modules(&[&[(3, 0.0)], &[(4, 0.0)]]), 5);
        assert_eq!(points(&joined[0]), [(7, 0.0)]);
        let (_, joined) = reduce(graph_of(2, &[]), modules(&[&[(3, 0.0)], &[(9, 0.0)]]), 5);
        assert_eq!(points(&joined[0]), [(9, 0.0)]);
    }

    #[test]
    fn a_size_that_costs_as_much_as_a_smaller_one_is_left_out() {
        let module = Module::task(0, &[(1, 5.0), (2, 5.0), (4, 3.0)]);
        assert_eq!(points(&module), [(1, 5.0), (4, 3.0)]);
        let steps: Vec<_> = [0, 1, 3, 9].map(|colors| module.step_within(colors)).into();
        assert_eq!(steps, [None, Some(0), Some(0), Some(1)]);
    }

    #[test]
    fn rings_have_no_twins_and_cpus_by_turns_become_one_task() {
        let one: &[(usize, f64)] = &[(1, 0.0)];
        let (ring, _) = reduce(cycle(5), modules(&[one; 5]), 9);
        assert_eq!(ring.len(), 5);
        // Tasks 0 to 2 on one CPU, 3 and 4 on another.
        let edges: Vec<(usize, usize)> = (0..3).flat_map(|a| [(a, 3), (a, 4)]).collect();
        let (both, joined) = reduce(graph_of(5, &edges), modules(&[one; 5]), 9);
        assert_eq!(both.len(), 1);
        assert_eq!(points(&joined[0]), [(2, 0.0)]);
    }
}

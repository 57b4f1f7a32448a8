//! Number of colors of each task, so that the sum of the costs is least and an assignment exists.
//!
//! ```text
//!   conflict graph ──> parts that are not connected ──> twins joined ──> one task left?   its cheapest number that fits: exact
//!                                                                        else             start: every task as small as it may be
//!                                                                                         raise: most cost saved by a color first
//!                                                                                         search: branch and bound over numbers
//! ```
//!
//! The search is exact unless its work runs out. Then the result is that of the raises, or better, and the lower bound says how far from the
//! best it can be at most. The bound adds up groups of tasks that all conflict: the cheapest division of the colors in each.

use super::cover::{Fit, Order, fit, lowest_free};
use super::graph::Graph;
use super::modules::{Module, Step, divided, reduce};
use super::work::Work;

/// Work of the raises of each connected part: a step is a vertex, a color or a size that is looked at. One part takes a few seconds at
/// most, and a plan of several hard parts that many times as long: with one budget for all, an early part would leave none for the others.
const RAISING: u64 = 20_000_000;
/// Work of the search for the best numbers of each part.
const SEARCHING: u64 = 20_000_000;
/// The most cliques that bound the sizes of tasks.
const MOST_CLIQUES: usize = 256;

/// Result of the search.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    /// An assignment.
    Chosen(Choice),
    /// Even the least numbers do not fit.
    TooMany,
    /// The search stopped before it found whether the least numbers fit.
    Unknown,
}

/// An assignment.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Choice {
    /// Colors of each task.
    pub(super) sets: Vec<Vec<usize>>,
    /// Sum of the costs.
    pub(super) cost: f64,
    /// No assignment costs less than this.
    pub(super) bound: f64,
    /// True if no assignment costs less than this one.
    pub(super) is_best: bool,
}

/// Chooses one of the sizes of each task, and its colors out of `limit`.
pub(super) fn choose(graph: &Graph, sizes: &[Vec<(usize, f64)>], limit: usize) -> Outcome {
    choose_with(graph, sizes, limit, SEARCHING)
}

/// The same with a limit on the work of each search.
pub(super) fn choose_with(
    graph: &Graph,
    sizes: &[Vec<(usize, f64)>],
    limit: usize,
    searching: u64,
) -> Outcome {
    let mut choice = Choice {
        sets: vec![Vec::new(); sizes.len()],
        cost: 0.0,
        bound: 0.0,
        is_best: true,
    };
    let mut unknown = false;
    for members in graph.components() {
        let modules = members.iter().map(|&task| Module::task(task, &sizes[task]));
        let (graph, modules) = reduce(graph.of(&members), modules.collect(), limit);
        let mut part = Part::new(&graph, &modules, limit, searching);
        match part.start() {
            Fit::TooMany => return Outcome::TooMany,
            Fit::Unknown => {
                unknown = true;
                continue;
            }
            Fit::Fits(sets) => part.solve(sets),
        }
        for ((module, &step), set) in modules.iter().zip(&part.best).zip(&part.sets) {
            module.assign(step, set, &mut choice.sets);
        }
        choice.cost += part.cost;
        choice.bound += part.bound;
        choice.is_best &= part.is_best;
    }
    match unknown {
        true => Outcome::Unknown,
        false => Outcome::Chosen(choice),
    }
}

/// A connected part of the problem, with the best result so far.
struct Part<'a> {
    graph: &'a Graph,
    modules: &'a [Module],
    limit: usize,
    /// Work of each search.
    searching: u64,
    cliques: Vec<Vec<usize>>,
    /// Vertices in the order in which the search fixes their sizes.
    order: Vec<usize>,
    best: Vec<usize>,
    sets: Vec<Vec<usize>>,
    cost: f64,
    bound: f64,
    is_best: bool,
}

impl<'a> Part<'a> {
    fn new(graph: &'a Graph, modules: &'a [Module], limit: usize, searching: u64) -> Self {
        let mut order: Vec<usize> = (0..graph.len()).collect();
        let degree = |vertex: usize| graph.neighbours(vertex).count();
        order.sort_by_key(|&vertex| (std::cmp::Reverse(degree(vertex)), vertex));
        Self {
            graph,
            modules,
            limit,
            searching,
            cliques: Vec::new(),
            order,
            best: vec![0; modules.len()],
            sets: Vec::new(),
            cost: 0.0,
            bound: 0.0,
            is_best: false,
        }
    }

    /// Colors for the least sizes.
    fn start(&self) -> Fit {
        let demands = self.demands(&self.best);
        fit(
            self.graph,
            &demands,
            self.limit,
            &mut Work::new(self.searching),
        )
    }

    fn demands(&self, steps: &[usize]) -> Vec<usize> {
        let steps = self.modules.iter().zip(steps);
        steps
            .map(|(module, &step)| module.steps[step].colors)
            .collect()
    }

    fn cost_of(&self, steps: &[usize]) -> f64 {
        let steps = self.modules.iter().zip(steps);
        steps.map(|(module, &step)| module.steps[step].cost).sum()
    }

    /// Improves the least sizes, which have these colors.
    fn solve(&mut self, sets: Vec<Vec<usize>>) {
        self.sets = sets;
        self.cost = self.cost_of(&self.best);
        self.bound = self.cost;
        self.is_best = self.modules.iter().all(|module| module.steps.len() == 1);
        if self.is_best {
            return;
        }
        self.cliques = cliques(self.graph);
        self.raise(&mut Work::new(RAISING));
        self.cost = self.cost_of(&self.best);
        self.bound = self.lower_bound().min(self.cost);
        self.is_best = self.cost <= self.bound;
        if self.is_best {
            return;
        }
        let mut work = Work::new(self.searching);
        let mut steps = vec![0; self.modules.len()];
        let is_complete = self.search(0, &mut steps, &mut work);
        self.is_best = is_complete;
        self.bound = if is_complete {
            self.cost
        } else {
            self.bound.min(self.cost)
        };
    }

    /// Raises the size that saves the most for a color, as long as colors can be found by the simple orders.
    fn raise(&mut self, work: &mut Work) {
        let counts = self.modules.iter().map(|module| module.steps.len());
        let all: usize = counts.clone().sum();
        let mut is_refused: Vec<Vec<bool>> = counts.map(|steps| vec![false; steps]).collect();
        while let Some((vertex, step)) = self.worthiest(&is_refused) {
            let mut steps = self.best.clone();
            steps[vertex] = step;
            let found = self.tops(&steps, &|_| true).and_then(|_| {
                let demands = self.demands(&steps);
                [Order::Hindered, Order::Largest]
                    .into_iter()
                    .find_map(|order| lowest_free(self.graph, &demands, self.limit, order, work))
            });
            match found {
                Some(sets) => (self.best, self.sets) = (steps, sets),
                None => is_refused[vertex][step] = true,
            }
            if !work.spend(all as u64) {
                return;
            }
        }
    }

    /// The larger size that saves the most for each further color.
    fn worthiest(&self, is_refused: &[Vec<bool>]) -> Option<(usize, usize)> {
        let mut found: Option<(f64, usize, usize)> = None;
        for (vertex, module) in self.modules.iter().enumerate() {
            let now = module.steps[self.best[vertex]];
            for (at, step) in module.steps.iter().enumerate().skip(self.best[vertex] + 1) {
                if is_refused[vertex][at] || step.colors > self.limit {
                    continue;
                }
                let worth = (now.cost - step.cost) / as_number(step.colors - now.colors);
                if found.is_none_or(|(most, ..)| worth > most) {
                    found = Some((worth, vertex, at));
                }
            }
        }
        found.map(|(_, vertex, step)| (vertex, step))
    }

    /// Returns the largest step of each vertex if all others keep theirs, or their least ones where they are not fixed; the step itself
    /// of those that are fixed. `None` if a clique has too few colors already.
    fn tops(&self, steps: &[usize], is_fixed: &dyn Fn(usize) -> bool) -> Option<Vec<usize>> {
        let demands = self.demands(steps);
        let mut room = vec![self.limit; demands.len()];
        for clique in &self.cliques {
            let sum: usize = clique.iter().map(|&vertex| demands[vertex]).sum();
            let spare = self.limit.checked_sub(sum)?;
            for &vertex in clique {
                room[vertex] = room[vertex].min(demands[vertex] + spare);
            }
        }
        let vertices = self.modules.iter().zip(room).enumerate();
        vertices
            .map(|(vertex, (module, room))| match is_fixed(vertex) {
                true => Some(steps[vertex]),
                false => module.step_within(room),
            })
            .collect()
    }

    /// No sizes cost less than this.
    fn lower_bound(&self) -> f64 {
        let none = vec![0; self.modules.len()];
        let tops = self.tops(&none, &|_| false);
        let alone = tops.map_or(0.0, |tops| self.cost_of(&tops));
        let mut groups: Vec<(Vec<usize>, Vec<Step>)> = Vec::new();
        for (vertex, module) in self.modules.iter().enumerate() {
            let group = (groups.iter_mut())
                .find(|(members, _)| members.iter().all(|&other| self.graph.has(vertex, other)));
            match group {
                Some((members, steps)) => {
                    members.push(vertex);
                    *steps = divided(steps, &module.steps, self.limit);
                }
                None => {
                    let end = module.step_within(self.limit).map_or(1, |last| last + 1);
                    groups.push((vec![vertex], module.steps[..end].to_vec()));
                }
            }
        }
        let cheapest = groups.iter().filter_map(|(_, steps)| steps.last());
        alone.max(cheapest.map(|step| step.cost).sum())
    }

    /// Tries all sizes of the vertices from `depth` on; returns false if the work ran out.
    fn search(&mut self, depth: usize, steps: &mut Vec<usize>, work: &mut Work) -> bool {
        if !work.spend(1 + self.modules.len() as u64) {
            return false;
        }
        let mut fixed = vec![false; steps.len()];
        for &vertex in self.order.iter().take(depth) {
            fixed[vertex] = true;
        }
        let Some(tops) = self.tops(steps, &|vertex| fixed[vertex]) else {
            return true;
        };
        if self.cost_of(&tops) >= self.cost {
            return true;
        }
        let sets = match fit(self.graph, &self.demands(steps), self.limit, work) {
            Fit::TooMany => return true,
            Fit::Unknown => return false,
            Fit::Fits(sets) => sets,
        };
        let Some(&vertex) = self.order.get(depth) else {
            self.cost = self.cost_of(steps);
            self.best.clone_from(steps);
            self.sets = sets;
            return true;
        };
        let mut is_complete = true;
        for step in (0..=tops[vertex]).rev() {
            steps[vertex] = step;
            is_complete &= self.search(depth + 1, steps, work);
            if work.is_out() {
                is_complete = false;
                break;
            }
        }
        steps[vertex] = 0;
        is_complete
    }
}

/// Returns a clique for each edge, and each vertex without one, as far as there is room; each cannot be extended.
fn cliques(graph: &Graph) -> Vec<Vec<usize>> {
    let mut found: Vec<Vec<usize>> = Vec::new();
    for one in 0..graph.len() {
        let alone = graph.neighbours(one).next().is_none();
        let ends: Vec<usize> = match alone {
            true => vec![one],
            false => graph.neighbours(one).filter(|&other| other > one).collect(),
        };
        for other in ends {
            let is_known = (found.iter()).any(|clique| {
                clique.binary_search(&one).is_ok() && clique.binary_search(&other).is_ok()
            });
            if is_known {
                continue;
            }
            let mut clique = vec![one, other];
            clique.dedup();
            for more in 0..graph.len() {
                if clique.iter().all(|&member| graph.has(more, member)) {
                    clique.push(more);
                }
            }
            clique.sort_unstable();
            found.push(clique);
            if found.len() == MOST_CLIQUES {
                return found;
            }
        }
    }
    found
}

#[allow(clippy::cast_precision_loss, reason = "a number of colors")]
const fn as_number(colors: usize) -> f64 {
    colors as f64
}

#[cfg(test)]
mod tests {
    use super::super::testing::{
        cheapest, complete, cycle, graph_of, is_proper, random_graph, random_sizes,
    };
    use super::*;
    use superhue_model::Random;

    fn demands(choice: &Choice) -> Vec<usize> {
        choice.sets.iter().map(Vec::len).collect()
    }

    /// Sum of the costs of the sizes that the tasks got.
    fn cost(choice: &Choice, sizes: &[Vec<(usize, f64)>]) -> f64 {
        let costs = choice.sets.iter().zip(sizes).map(|(set, sizes)| {
            let size = sizes.iter().rfind(|size| size.0 <= set.len());
            size.unwrap().1
        });
        costs.sum()
    }

    #[test]
    fn costs_are_those_of_an_exhaustive_search() {
        let mut random = Random::new(6);
        let (mut chosen, mut refused, mut rings) = (0, 0, 0);
        for round in 0..500 {
            let len = 1 + random.below(6);
            let share = random.below(101);
            // Every fifth has no twins, so that the search is tried as well.
            let graph = match round % 5 {
                0 => cycle(5),
                _ => random_graph(len, share, &mut random),
            };
            let sizes = random_sizes(graph.len(), 3, &mut random);
            let limit = 2 + random.below(7);
            let best = cheapest(&graph, &sizes, limit);
            match (choose(&graph, &sizes, limit), best) {
                (Outcome::Chosen(choice), Some(best)) => {
                    assert!(choice.is_best);
                    assert_eq!(
                        (choice.cost, choice.bound),
                        (best, best),
                        "{graph:?} {sizes:?}"
                    );
                    assert_eq!(cost(&choice, &sizes), best);
                    assert!(is_proper(&graph, &demands(&choice), limit, &choice.sets));
                    chosen += 1;
                    rings += usize::from(round % 5 == 0);
                }
                (Outcome::TooMany, None) => refused += 1,
                other => panic!("{other:?}: {graph:?} {sizes:?} {limit}"),
            }
        }
        assert!(
            chosen > 150 && refused > 50 && rings > 20,
            "{chosen} {refused} {rings}"
        );
    }

    #[test]
    fn large_problems_have_a_proper_assignment_and_a_bound() {
        let mut random = Random::new(7);
        let mut is_inexact = 0;
        for (len, limit) in [(20, 64), (40, 32), (60, 32), (80, 48)] {
            let graph = random_graph(len, 30, &mut random);
            let sizes = random_sizes(len, 5, &mut random);
            let Outcome::Chosen(choice) = choose(&graph, &sizes, limit) else {
                panic!("{len} tasks of few colors fit")
            };
            assert!(is_proper(&graph, &demands(&choice), limit, &choice.sets));
            assert!((cost(&choice, &sizes) - choice.cost).abs() < 1e-6);
            assert!(choice.bound <= choice.cost);
            assert_eq!(choice.is_best, choice.bound == choice.cost);
            is_inexact += u32::from(!choice.is_best);
        }
        assert!(is_inexact > 0, "the search stops in none of these");
    }

    #[test]
    fn more_colors_never_cost_more() {
        let mut random = Random::new(8);
        for _ in 0..60 {
            let len = 2 + random.below(7);
            let graph = random_graph(len, 60, &mut random);
            let sizes = random_sizes(len, 4, &mut random);
            let mut before = f64::INFINITY;
            for limit in 1..30 {
                match choose(&graph, &sizes, limit) {
                    Outcome::Chosen(choice) => {
                        assert!(choice.cost <= before, "{limit}: {graph:?} {sizes:?}");
                        before = choice.cost;
                    }
                    Outcome::TooMany => assert!(before.is_infinite()),
                    Outcome::Unknown => panic!("small problems are decided"),
                }
            }
            assert!(before.is_finite());
        }
    }

    #[test]
    fn sizes_go_where_they_save_most_and_the_rest_is_not_used() {
        let sizes = vec![
            vec![(1, 100.0), (2, 40.0), (4, 39.0)],
            vec![(1, 50.0), (3, 5.0)],
            vec![(2, 0.0)],
        ];
        let Outcome::Chosen(choice) = choose(&complete(3), &sizes, 8) else {
            panic!("they fit")
        };
        assert_eq!(demands(&choice), [2, 3, 2]);
        assert_eq!(choice.sets, [vec![0, 1], vec![2, 3, 4], vec![5, 6]]);
        assert_eq!(choose(&complete(3), &sizes, 3), Outcome::TooMany);
        assert!(matches!(
            choose(&graph_of(3, &[]), &sizes, 4),
            Outcome::Chosen(_)
        ));
    }
}

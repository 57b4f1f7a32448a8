//! Colors for the vertices of a graph: each gets as many as it demands, and neighbours have none in common.
//!
//! ```text
//!   lowest free colors, in several orders (most hindered vertex first; largest first)      fits?  done
//!   heaviest clique > colors?      it cannot be
//!   exact search: a color goes to a set of vertices without an edge among them; the search divides the demand of one vertex among
//!   the largest such sets that contain it, then continues with the next vertex
//! ```
//!
//! The exact search is complete. A set that has room for another vertex never helps, and the colors of a vertex are exactly as many
//! as it demands. It remembers demands that could not be met, and stops when its work is used up.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::graph::Graph;
use super::work::Work;

/// The exact search takes graphs of at most this many vertices: the bits of a word.
const EXACT_VERTICES: usize = 64;
/// And at most this many colors, which bound the depth of its recursion.
const EXACT_COLORS: usize = 512;
/// The most sets that may contain a vertex.
const MOST_SETS: usize = 2048;

/// Answer to the question whether colors suffice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fit {
    /// Colors of each vertex, ascending.
    Fits(Vec<Vec<usize>>),
    /// There is no such assignment.
    TooMany,
    /// The work ran out before there was an answer.
    Unknown,
}

/// Assigns `demands[v]` of `colors` colors to each vertex `v`.
pub(super) fn fit(graph: &Graph, demands: &[usize], colors: usize, work: &mut Work) -> Fit {
    for order in [Order::Hindered, Order::Largest, Order::Crowded] {
        if let Some(found) = lowest_free(graph, demands, colors, order, work) {
            return Fit::Fits(found);
        }
    }
    let clique = graph.heaviest_clique(demands, work);
    if clique.iter().map(|&vertex| demands[vertex]).sum::<usize>() > colors {
        return Fit::TooMany;
    }
    if graph.len() > EXACT_VERTICES || colors > EXACT_COLORS {
        return Fit::Unknown;
    }
    let mut search = Search {
        graph,
        rows: (0..graph.len()).map(|vertex| graph.mask(vertex)).collect(),
        work,
        failed: HashMap::new(),
        chosen: Vec::new(),
    };
    match search.meet(demands, colors) {
        Some(true) => Fit::Fits(numbered(&search.chosen, demands)),
        Some(false) => Fit::TooMany,
        None => Fit::Unknown,
    }
}

/// Order in which vertices get the lowest free colors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The vertex whose neighbours have the most colors first (DSATUR by Brélaz, with demands).
    Hindered,
    /// The largest demand first.
    Largest,
    /// The largest demand of a vertex and its neighbours together first.
    Crowded,
}

/// Gives each vertex the lowest colors that none of its neighbours has; `None` if a vertex finds too few.
pub(super) fn lowest_free(
    graph: &Graph,
    demands: &[usize],
    colors: usize,
    order: Order,
    work: &mut Work,
) -> Option<Vec<Vec<usize>>> {
    let len = graph.len();
    let around: Vec<usize> = (0..len)
        .map(|v| {
            demands[v]
                + graph
                    .neighbours(v)
                    .map(|other| demands[other])
                    .sum::<usize>()
        })
        .collect();
    let mut blocked = vec![vec![false; colors]; len];
    let mut hindered = vec![0_usize; len];
    let mut found: Vec<Vec<usize>> = vec![Vec::new(); len];
    let mut left: Vec<usize> = (0..len).collect();
    while !left.is_empty() {
        if !work.spend(len as u64) {
            return None;
        }
        let key = |&v: &usize| match order {
            Order::Hindered => (hindered[v], demands[v], around[v], Reverse(v)),
            Order::Largest => (demands[v], around[v], 0, Reverse(v)),
            Order::Crowded => (around[v], demands[v], 0, Reverse(v)),
        };
        let place = (0..left.len()).max_by_key(|&at| key(&left[at]))?;
        let vertex = left.swap_remove(place);
        let free = (0..colors).filter(|&color| !blocked[vertex][color]);
        let taken: Vec<usize> = free.take(demands[vertex]).collect();
        if taken.len() < demands[vertex] {
            return None;
        }
        for other in graph.neighbours(vertex) {
            work.spend(taken.len() as u64);
            for &color in &taken {
                hindered[other] += usize::from(!blocked[other][color]);
                blocked[other][color] = true;
            }
        }
        found[vertex] = taken;
    }
    Some(found)
}

/// Exact search; sets of vertices are bits.
struct Search<'a> {
    graph: &'a Graph,
    rows: Vec<u64>,
    work: &'a mut Work,
    /// Demands that cannot be met, with the most colors for which that is known.
    failed: HashMap<Vec<usize>, usize>,
    /// Sets, each with its number of colors.
    chosen: Vec<(u64, usize)>,
}

impl Search<'_> {
    /// Returns true if the demands can be met; `None` if the work ran out.
    fn meet(&mut self, demands: &[usize], colors: usize) -> Option<bool> {
        let open = (0..demands.len()).filter(|&v| demands[v] > 0);
        let open = open.fold(0_u64, |open, v| open | 1 << v);
        if open == 0 {
            return Some(true);
        }
        if self.failed.get(demands).is_some_and(|&most| colors <= most) {
            return Some(false);
        }
        if !self.work.spend(8) {
            return None;
        }
        let clique = self.graph.heaviest_clique(demands, self.work);
        let fits = clique.iter().map(|&v| demands[v]).sum::<usize>() <= colors;
        // The largest demand of the heaviest clique leaves the fewest ways.
        let vertex = clique
            .into_iter()
            .max_by_key(|&v| (demands[v], Reverse(v)))?;
        let is_met = fits && {
            let mut sets = Vec::new();
            let around = open & !self.rows[vertex] & !(1 << vertex);
            if !self.sets(1 << vertex, around, 0, &mut sets) {
                return None;
            }
            // Sets that serve more vertices first.
            sets.sort_by_key(|set| (Reverse(set.count_ones()), *set));
            self.divide(&sets, demands[vertex], demands, colors)?
        };
        if !is_met {
            let most = self.failed.entry(demands.to_vec()).or_default();
            *most = colors.max(*most);
        }
        Some(is_met)
    }

    /// Collects the largest sets without an edge that contain `set`, out of `candidates`; those with a vertex of `done` are in the list
    /// already (Bron and Kerbosch). Returns false if there are too many.
    fn sets(&mut self, set: u64, candidates: u64, mut done: u64, found: &mut Vec<u64>) -> bool {
        if !self.work.spend(1) || found.len() > MOST_SETS {
            return false;
        }
        if candidates == 0 {
            if done == 0 {
                found.push(set);
            }
            return true;
        }
        let mut rest = candidates;
        while rest != 0 {
            let vertex = rest.trailing_zeros();
            let bit = 1_u64 << vertex;
            let apart = !self.rows[vertex as usize] & !bit;
            if !self.sets(set | bit, rest & apart, done & apart, found) {
                return false;
            }
            rest &= !bit;
            done |= bit;
        }
        true
    }

    /// Divides the demand of a vertex among these sets, which all contain the vertex.
    fn divide(
        &mut self,
        sets: &[u64],
        units: usize,
        demands: &[usize],
        colors: usize,
    ) -> Option<bool> {
        if units == 0 {
            return self.meet(demands, colors);
        }
        if units > colors {
            return Some(false);
        }
        if !self.work.spend(1) {
            return None;
        }
        for (at, &set) in sets.iter().enumerate() {
            let least = if at + 1 == sets.len() { units } else { 1 };
            for count in (least..=units).rev() {
                let after: Vec<usize> = (demands.iter().enumerate())
                    .map(|(v, &demand)| match set >> v & 1 {
                        1 => demand.saturating_sub(count),
                        _ => demand,
                    })
                    .collect();
                self.chosen.push((set, count));
                if self.divide(&sets[at + 1..], units - count, &after, colors - count)? {
                    return Some(true);
                }
                self.chosen.pop();
            }
        }
        Some(false)
    }
}

/// Numbers the colors of the chosen sets; a vertex takes the first ones of its sets, as many as it demands.
fn numbered(chosen: &[(u64, usize)], demands: &[usize]) -> Vec<Vec<usize>> {
    let mut found: Vec<Vec<usize>> = vec![Vec::new(); demands.len()];
    let mut next = 0;
    for &(set, count) in chosen {
        for (vertex, colors) in found.iter_mut().enumerate() {
            if set >> vertex & 1 == 1 {
                let room = demands[vertex] - colors.len();
                colors.extend((next..next + count).take(room));
            }
        }
        next += count;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::testing::{colorable, cycle, graph_of, is_proper, random_graph};
    use super::*;
    use superhue_model::Random;

    fn fits(graph: &Graph, demands: &[usize], colors: usize) -> Fit {
        fit(graph, demands, colors, &mut Work::new(10_000_000))
    }

    #[test]
    fn an_odd_cycle_needs_more_than_its_heaviest_clique() {
        // Five tasks in a ring, two colors each: no two neighbours need more than four, and all together need five.
        let ring = cycle(5);
        assert_eq!(fits(&ring, &[2; 5], 4), Fit::TooMany);
        let Fit::Fits(found) = fits(&ring, &[2; 5], 5) else {
            panic!("five colors suffice")
        };
        assert!(is_proper(&ring, &[2; 5], 5, &found));
        // By a factor: 5/2 of the demand, not 3 times.
        assert_eq!(fits(&ring, &[4; 5], 9), Fit::TooMany);
        assert!(matches!(fits(&ring, &[4; 5], 10), Fit::Fits(_)));
    }

    #[test]
    fn the_answer_is_that_of_an_exhaustive_search() {
        let mut random = Random::new(3);
        let (mut yes, mut no) = (0, 0);
        for _ in 0..600 {
            let len = 1 + random.below(6);
            let share = random.below(101);
            let graph = random_graph(len, share, &mut random);
            let demands: Vec<usize> = (0..len).map(|_| random.below(4)).collect();
            let colors = 1 + random.below(7);
            match (
                fits(&graph, &demands, colors),
                colorable(&graph, &demands, colors),
            ) {
                (Fit::Fits(found), true) => {
                    assert!(is_proper(&graph, &demands, colors, &found), "{found:?}");
                    yes += 1;
                }
                (Fit::TooMany, false) => no += 1,
                (answer, truth) => {
                    panic!("{answer:?}, not {truth}: {graph:?} {demands:?} {colors}")
                }
            }
        }
        assert!(yes > 100 && no > 100, "{yes} {no}");
    }

    #[test]
    fn the_exact_search_alone_answers_likewise() {
        let mut random = Random::new(4);
        for _ in 0..300 {
            let len = 3 + random.below(4);
            let graph = random_graph(len, 50, &mut random);
            let demands: Vec<usize> = (0..len).map(|_| 1 + random.below(3)).collect();
            let colors = 2 + random.below(6);
            let mut search = Search {
                graph: &graph,
                rows: (0..len).map(|vertex| graph.mask(vertex)).collect(),
                work: &mut Work::new(10_000_000),
                failed: HashMap::new(),
                chosen: Vec::new(),
            };
            let met = search.meet(&demands, colors);
            assert_eq!(met, Some(colorable(&graph, &demands, colors)));
            if met == Some(true) {
                let found = numbered(&search.chosen, &demands);
                assert!(is_proper(&graph, &demands, colors, &found), "{found:?}");
            }
        }
    }

    #[test]
    fn rings_need_what_the_formula_says_by_the_exact_search_alone() {
        // A color serves at most k of 2k + 1 vertices in a ring.
        for (half, demand) in [(2, 5), (3, 4), (4, 3), (5, 4)] {
            let ring = cycle(2 * half + 1);
            let demands = vec![demand; 2 * half + 1];
            let needed = ((2 * half + 1) * demand).div_ceil(half);
            for (colors, expected) in [(needed - 1, false), (needed, true)] {
                let mut search = Search {
                    graph: &ring,
                    rows: (0..ring.len()).map(|vertex| ring.mask(vertex)).collect(),
                    work: &mut Work::new(100_000_000),
                    failed: HashMap::new(),
                    chosen: Vec::new(),
                };
                assert_eq!(
                    search.meet(&demands, colors),
                    Some(expected),
                    "{half} {colors}"
                );
                // What failed with some colors, fails with fewer; what was met is not among it.
                let known = search.failed.get(&demands).copied();
                assert_eq!(known, (!expected).then_some(colors));
            }
        }
    }

    #[test]
    fn failures_are_remembered_for_fewer_colors_only() {
        let pair = graph_of(2, &[(0, 1)]);
        let mut search = Search {
            graph: &pair,
            rows: vec![pair.mask(0), pair.mask(1)],
            work: &mut Work::new(1000),
            failed: HashMap::new(),
            chosen: Vec::new(),
        };
        for (colors, met) in [(3, false), (4, true), (2, false), (5, true), (3, false)] {
            assert_eq!(search.meet(&[2, 2], colors), Some(met), "{colors}");
        }
        assert_eq!(search.failed[&vec![2, 2]], 3);
    }

    #[test]
    fn large_graphs_are_colored_properly_or_not_at_all() {
        let mut random = Random::new(5);
        let mut found_one = 0;
        for _ in 0..20 {
            let graph = random_graph(150, 20, &mut random);
            let demands: Vec<usize> = (0..150).map(|_| 1 + random.below(20)).collect();
            let colors = 100 + random.below(400);
            if let Fit::Fits(found) = fits(&graph, &demands, colors) {
                assert!(is_proper(&graph, &demands, colors, &found));
                found_one += 1;
            }
        }
        assert!(found_one > 5, "{found_one}");
    }

    #[test]
    fn without_work_nothing_is_claimed() {
        let ring = cycle(7);
        let answer = fit(&ring, &[3; 7], 7, &mut Work::new(30));
        assert_eq!(answer, Fit::Unknown);
        assert_eq!(fits(&graph_of(0, &[]), &[], 0), Fit::Fits(Vec::new()));
    }
}

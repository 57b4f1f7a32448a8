//! Graphs and exhaustive searches for the tests of the plan.

use superhue_model::Random;

use super::graph::Graph;

pub(super) fn graph_of(len: usize, edges: &[(usize, usize)]) -> Graph {
    let mut graph = Graph::new(len);
    for &(one, other) in edges {
        graph.connect(one, other);
    }
    graph
}

pub(super) fn complete(len: usize) -> Graph {
    let edges: Vec<_> = (0..len).flat_map(|a| (0..a).map(move |b| (a, b))).collect();
    graph_of(len, &edges)
}

pub(super) fn cycle(len: usize) -> Graph {
    let edges: Vec<_> = (0..len).map(|at| (at, (at + 1) % len)).collect();
    graph_of(len, &edges)
}

/// A graph of which each edge exists with this probability in percent.
pub(super) fn random_graph(len: usize, percent: usize, random: &mut Random) -> Graph {
    let mut graph = Graph::new(len);
    for one in 0..len {
        for other in 0..one {
            if random.below(100) < percent {
                graph.connect(one, other);
            }
        }
    }
    graph
}

/// Up to `most` sizes for each task, ascending, with whole costs that fall.
pub(super) fn random_sizes(len: usize, most: usize, random: &mut Random) -> Vec<Vec<(usize, f64)>> {
    let one = |random: &mut Random| {
        let (mut colors, mut cost) = (0, 100_u32);
        let sizes = (0..1 + random.below(most)).map(|_| {
            colors += 1 + random.below(3);
            cost -= u32::try_from(random.below(20)).unwrap();
            (colors, f64::from(cost))
        });
        sizes.collect()
    };
    (0..len).map(|_| one(random)).collect()
}

/// Returns true if each vertex has as many colors as it demands, out of `colors`, and none in common with a neighbour.
pub(super) fn is_proper(
    graph: &Graph,
    demands: &[usize],
    colors: usize,
    found: &[Vec<usize>],
) -> bool {
    let sound = found.iter().zip(demands).all(|(set, &demand)| {
        set.len() == demand && set.is_sorted_by(|a, b| a < b) && set.iter().all(|&c| c < colors)
    });
    let disjoint = |a: usize, b: usize| found[a].iter().all(|color| !found[b].contains(color));
    sound && (0..graph.len()).all(|a| graph.neighbours(a).all(|b| disjoint(a, b)))
}

/// Tries all assignments: for small graphs.
pub(super) fn colorable(graph: &Graph, demands: &[usize], colors: usize) -> bool {
    fn go(graph: &Graph, demands: &[usize], colors: usize, sets: &mut Vec<u32>) -> bool {
        let vertex = sets.len();
        if vertex == demands.len() {
            return true;
        }
        let taken = (graph.neighbours(vertex).filter(|&other| other < vertex))
            .fold(0, |taken, other| taken | sets[other]);
        (0_u32..1 << colors)
            .filter(|set| set & taken == 0 && set.count_ones() as usize == demands[vertex])
            .any(|set| {
                sets.push(set);
                let found = go(graph, demands, colors, sets);
                sets.pop();
                found
            })
    }
    go(graph, demands, colors, &mut Vec::new())
}

/// The least sum of costs by trying all sizes; `None` if none fit.
pub(super) fn cheapest(graph: &Graph, sizes: &[Vec<(usize, f64)>], colors: usize) -> Option<f64> {
    let mut best: Option<f64> = None;
    let all: usize = sizes.iter().map(Vec::len).product();
    for number in 0..all {
        let mut rest = number;
        let chosen: Vec<(usize, f64)> = (sizes.iter())
            .map(|sizes| {
                let size = sizes[rest % sizes.len()];
                rest /= sizes.len();
                size
            })
            .collect();
        let cost: f64 = chosen.iter().map(|size| size.1).sum();
        let demands: Vec<usize> = chosen.iter().map(|size| size.0).collect();
        if best.is_none_or(|best| cost < best) && colorable(graph, &demands, colors) {
            best = Some(cost);
        }
    }
    best
}

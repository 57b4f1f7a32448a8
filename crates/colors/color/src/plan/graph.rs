//! Graph of the tasks that must not share a color.

use super::work::Work;

/// Undirected graph without loops; vertices are numbered from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Graph {
    len: usize,
    /// Row of each vertex: bit `v % 64` of word `v / 64` is set for each neighbour `v`.
    rows: Vec<Vec<u64>>,
}

impl Graph {
    /// Makes a graph without edges.
    pub(super) fn new(len: usize) -> Self {
        Self {
            len,
            rows: vec![vec![0; len.div_ceil(64)]; len],
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Adds an edge; an edge from a vertex to itself is left out.
    pub(super) fn connect(&mut self, one: usize, other: usize) {
        if one != other {
            self.rows[one][other / 64] |= 1 << (other % 64);
            self.rows[other][one / 64] |= 1 << (one % 64);
        }
    }

    /// Removes an edge.
    pub(super) fn part(&mut self, one: usize, other: usize) {
        self.rows[one][other / 64] &= !(1 << (other % 64));
        self.rows[other][one / 64] &= !(1 << (one % 64));
    }

    pub(super) fn has(&self, one: usize, other: usize) -> bool {
        self.rows[one][other / 64] >> (other % 64) & 1 == 1
    }

    pub(super) fn neighbours(&self, of: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.len).filter(move |&other| self.has(of, other))
    }

    /// The first word of a row: all neighbours, in a graph of at most 64 vertices.
    pub(super) fn mask(&self, of: usize) -> u64 {
        self.rows[of].first().copied().unwrap_or_default()
    }

    /// Returns true if two vertices have the same neighbours besides each other.
    pub(super) fn are_twins(&self, one: usize, other: usize) -> bool {
        let words = self.rows[one].iter().zip(&self.rows[other]);
        words.enumerate().all(|(at, (left, right))| {
            let of = |vertex: usize| u64::from(vertex / 64 == at) << (vertex % 64);
            (left ^ right) & !(of(one) | of(other)) == 0
        })
    }

    /// Returns the graph of these vertices alone, numbered in this order.
    pub(super) fn of(&self, vertices: &[usize]) -> Self {
        let mut part = Self::new(vertices.len());
        for (new, &old) in vertices.iter().enumerate() {
            for (other, &end) in vertices.iter().enumerate().skip(new + 1) {
                if self.has(old, end) {
                    part.connect(new, other);
                }
            }
        }
        part
    }

    /// Returns the vertices of each connected part.
    pub(super) fn components(&self) -> Vec<Vec<usize>> {
        let mut seen = vec![false; self.len];
        let mut components = Vec::new();
        for start in 0..self.len {
            if std::mem::replace(&mut seen[start], true) {
                continue;
            }
            let (mut component, mut next) = (vec![start], vec![start]);
            while let Some(vertex) = next.pop() {
                for other in self.neighbours(vertex) {
                    if !std::mem::replace(&mut seen[other], true) {
                        component.push(other);
                        next.push(other);
                    }
                }
            }
            component.sort_unstable();
            components.push(component);
        }
        components
    }

    /// Returns the heaviest clique that was found, ascending; the heaviest of all unless the work ran out.
    pub(super) fn heaviest_clique(&self, weights: &[usize], work: &mut Work) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.len)
            .filter(|&vertex| weights[vertex] > 0)
            .collect();
        order.sort_by_key(|&vertex| (std::cmp::Reverse(weights[vertex]), vertex));
        let mut search = CliqueSearch {
            graph: self,
            weights,
            work,
            best: Vec::new(),
            best_weight: 0,
        };
        search.extend(&mut Vec::new(), 0, &order);
        let mut best = search.best;
        best.sort_unstable();
        best
    }
}

/// Branch and bound: a clique is extended by vertices that are neighbours of all its members.
struct CliqueSearch<'a> {
    graph: &'a Graph,
    weights: &'a [usize],
    work: &'a mut Work,
    best: Vec<usize>,
    best_weight: usize,
}

impl CliqueSearch<'_> {
    fn extend(&mut self, clique: &mut Vec<usize>, weight: usize, candidates: &[usize]) {
        if weight > self.best_weight {
            self.best_weight = weight;
            self.best.clone_from(clique);
        }
        // The bounds below look at pairs of candidates.
        if !self
            .work
            .spend(1 + (candidates.len() * candidates.len() / 4) as u64)
        {
            return;
        }
        let bounds = self.bounds(candidates);
        for (at, &vertex) in candidates.iter().enumerate() {
            if weight + bounds[at] <= self.best_weight {
                return;
            }
            let rest: Vec<usize> = (candidates[at + 1..].iter().copied())
                .filter(|&other| self.graph.has(vertex, other))
                .collect();
            clique.push(vertex);
            self.extend(clique, weight + self.weights[vertex], &rest);
            clique.pop();
        }
    }

    /// Returns, for each candidate, an upper bound on the weight of a clique of it and later ones: candidates that are no neighbours of
    /// each other count once, with the heaviest of them.
    fn bounds(&self, candidates: &[usize]) -> Vec<usize> {
        let mut groups: Vec<(Vec<usize>, usize)> = Vec::new();
        let mut sum = 0;
        let mut bounds = vec![0; candidates.len()];
        for (at, &vertex) in candidates.iter().enumerate().rev() {
            let weight = self.weights[vertex];
            let group = groups.iter_mut().find(|(members, _)| {
                (members.iter()).all(|&member| !self.graph.has(vertex, member))
            });
            match group {
                Some((members, heaviest)) => {
                    members.push(vertex);
                    sum += weight.saturating_sub(*heaviest);
                    *heaviest = weight.max(*heaviest);
                }
                None => {
                    groups.push((vec![vertex], weight));
                    sum += weight;
                }
            }
            bounds[at] = sum;
        }
        bounds
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{graph_of, random_graph};
    use super::*;
    use superhue_model::Random;

    #[test]
    fn twins_have_the_same_neighbours_besides_each_other() {
        // 0 and 1 are neighbours with the same other neighbour; 3 and 4 are not neighbours.
        let graph = graph_of(70, &[(0, 1), (0, 2), (1, 2), (2, 3), (2, 4), (69, 5)]);
        for (one, other, twins) in [(0, 1, true), (3, 4, true), (0, 3, false), (5, 69, true)] {
            assert_eq!(graph.are_twins(one, other), twins, "{one} {other}");
        }
        assert_eq!(graph.components().len(), 70 - 4 - 1);
        assert_eq!(graph.components()[0], [0, 1, 2, 3, 4]);
        let mut parted = graph.clone();
        parted.part(2, 0);
        assert!(!parted.has(0, 2) && parted.has(2, 1) && graph.has(0, 2));
    }

    #[test]
    fn the_heaviest_clique_is_that_of_an_exhaustive_search() {
        let mut random = Random::new(1);
        for _ in 0..300 {
            let len = 1 + random.below(9);
            let share = random.below(101);
            let graph = random_graph(len, share, &mut random);
            let weights: Vec<usize> = (0..len).map(|_| random.below(6)).collect();
            let weight = |clique: &[usize]| clique.iter().map(|&v| weights[v]).sum::<usize>();
            let mut heaviest = 0;
            for members in 0_u32..1 << len {
                let clique: Vec<usize> = (0..len).filter(|v| members >> v & 1 == 1).collect();
                let is_clique =
                    (clique.iter()).all(|&a| clique.iter().all(|&b| a == b || graph.has(a, b)));
                if is_clique {
                    heaviest = heaviest.max(weight(&clique));
                }
            }
            let found = graph.heaviest_clique(&weights, &mut Work::new(1_000_000));
            assert_eq!(weight(&found), heaviest, "{graph:?} {weights:?}");
        }
    }

    #[test]
    fn without_work_a_clique_is_still_a_clique() {
        let mut random = Random::new(2);
        let graph = random_graph(40, 60, &mut random);
        let found = graph.heaviest_clique(&[1; 40], &mut Work::new(60));
        assert!(
            found
                .iter()
                .all(|&a| found.iter().all(|&b| a == b || graph.has(a, b)))
        );
    }
}

//! Loops over grids that stand in for programs of SPEC CPU, which is not free.

use super::Sink;

/// Loop like that of a program of SPEC CPU: its arrays and the order of its references, after the published
/// descriptions; smaller, and without arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stencil {
    /// 171.swim: shallow water on a square grid, fourteen arrays.
    Swim,
    /// 101.tomcatv: smooths a mesh, seven arrays, and solves it row by row.
    Tomcatv,
    /// 168.wupwise: matrices of 3 x 3 complex numbers times vectors of the neighbours on a lattice of four dimensions.
    Wupwise,
    /// 301.apsi: derivatives along each of three dimensions.
    Apsi,
}

impl Stencil {
    /// All loops.
    pub const ALL: [Self; 4] = [Self::Swim, Self::Tomcatv, Self::Wupwise, Self::Apsi];

    /// The program that it stands in for.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Swim => "swim",
            Self::Tomcatv => "tomcatv",
            Self::Wupwise => "wupwise",
            Self::Apsi => "apsi",
        }
    }

    /// Bytes of its arrays.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Swim => 14 * SWIM * SWIM * 8,
            Self::Tomcatv => 7 * TOMCATV * TOMCATV * 8,
            Self::Wupwise => WUPWISE_SITES * (4 * MATRIX + 2 * SPINOR),
            Self::Apsi => 6 * APSI * APSI * APSI * 8,
        }
    }

    /// Runs one step of the loop.
    pub fn step(self, sink: &mut impl Sink) {
        match self {
            Self::Swim => swim(sink),
            Self::Tomcatv => tomcatv(sink),
            Self::Wupwise => wupwise(sink),
            Self::Apsi => apsi(sink),
        }
    }
}

const SWIM: u64 = 385;

/// Runs three sweeps: flows and heights from velocities, new velocities, and a filter in time.
fn swim(sink: &mut impl Sink) {
    let [u, v, p, unew, vnew, pnew, uold, vold, pold, cu, cv, z, h]: [u64; 13] =
        std::array::from_fn(|array| array as u64);
    let at = |array: u64, i: u64, j: u64| (array * SWIM * SWIM + j * SWIM + i) * 8;
    for j in 1..SWIM - 1 {
        for i in 1..SWIM - 1 {
            for (array, di, dj) in [
                (p, 0, 0),
                (p, 1, 0),
                (u, 1, 0),
                (p, 0, 1),
                (v, 0, 1),
                (v, 1, 1),
                (u, 1, 1),
                (p, 1, 1),
                (u, 0, 0),
                (v, 0, 0),
            ] {
                sink.load(at(array, i + di, j + dj));
            }
            for (array, di, dj) in [(cu, 1, 0), (cv, 0, 1), (z, 1, 1), (h, 0, 0)] {
                sink.store(at(array, i + di, j + dj));
            }
        }
    }
    for j in 1..SWIM - 1 {
        for i in 1..SWIM - 1 {
            for (array, di, dj) in [
                (uold, 1, 0),
                (z, 1, 1),
                (z, 1, 0),
                (cv, 1, 1),
                (cv, 0, 1),
                (cv, 0, 0),
                (cv, 1, 0),
                (h, 1, 0),
                (h, 0, 0),
                (vold, 0, 1),
                (cu, 1, 1),
                (cu, 0, 1),
                (cu, 0, 0),
                (cu, 1, 0),
                (h, 0, 1),
                (pold, 0, 0),
            ] {
                sink.load(at(array, i + di, j + dj));
            }
            for (array, di, dj) in [(unew, 1, 0), (vnew, 0, 1), (pnew, 0, 0)] {
                sink.store(at(array, i + di, j + dj));
            }
        }
    }
    for j in 1..SWIM - 1 {
        for i in 1..SWIM - 1 {
            for [old, now, new] in [[uold, u, unew], [vold, v, vnew], [pold, p, pnew]] {
                for array in [now, new, old] {
                    sink.load(at(array, i, j));
                }
                for array in [old, now] {
                    sink.store(at(array, i, j));
                }
            }
        }
    }
}

const TOMCATV: u64 = 513;

/// Computes residuals by nine points of two arrays, runs a solver forward and back over the rows, and applies the
/// corrections.
fn tomcatv(sink: &mut impl Sink) {
    let [x, y, rx, ry, aa, dd, d]: [u64; 7] = std::array::from_fn(|array| array as u64);
    const N: u64 = TOMCATV;
    let at = |array: u64, i: u64, j: u64| (array * N * N + j * N + i) * 8;
    for j in 1..N - 1 {
        for i in 1..N - 1 {
            for array in [x, y] {
                for (di, dj) in [
                    (2, 1),
                    (0, 1),
                    (1, 2),
                    (1, 0),
                    (1, 1),
                    (2, 2),
                    (0, 2),
                    (2, 0),
                    (0, 0),
                ] {
                    sink.load(at(array, i + di - 1, j + dj - 1));
                }
            }
            for array in [aa, dd, rx, ry] {
                sink.store(at(array, i, j));
            }
        }
    }
    for j in 2..N - 1 {
        for i in 1..N - 1 {
            for (array, back) in [
                (aa, 0),
                (d, 1),
                (aa, 1),
                (dd, 0),
                (rx, 0),
                (rx, 1),
                (ry, 0),
                (ry, 1),
            ] {
                sink.load(at(array, i, j - back));
            }
            for array in [d, rx, ry] {
                sink.store(at(array, i, j));
            }
        }
    }
    for j in (1..N - 2).rev() {
        for i in 1..N - 1 {
            for (array, ahead) in [(rx, 0), (aa, 0), (rx, 1), (d, 0), (ry, 0), (ry, 1)] {
                sink.load(at(array, i, j + ahead));
            }
            for array in [rx, ry] {
                sink.store(at(array, i, j));
            }
        }
    }
    for j in 1..N - 1 {
        for i in 1..N - 1 {
            for [to, by] in [[x, rx], [y, ry]] {
                sink.load(at(to, i, j));
                sink.load(at(by, i, j));
                sink.store(at(to, i, j));
            }
        }
    }
}

/// Sides of the lattice, and the data of each site: a matrix for each direction, a vector of twelve complex numbers.
const WUPWISE: [u64; 4] = [8, 8, 16, 16];
const WUPWISE_SITES: u64 = 8 * 8 * 16 * 16;
const MATRIX: u64 = 9 * 16;
const SPINOR: u64 = 12 * 16;

/// Multiplies, for each site and direction: its own matrix times the vector ahead, and the matrix behind times the
/// vector behind.
fn wupwise(sink: &mut impl Sink) {
    let (vectors, results) = (
        WUPWISE_SITES * 4 * MATRIX,
        WUPWISE_SITES * (4 * MATRIX + SPINOR),
    );
    for site in 0..WUPWISE_SITES {
        let mut below = 1;
        for (direction, side) in (0u64..).zip(WUPWISE) {
            let place = site / below % side;
            let ahead = site - place * below + (place + 1) % side * below;
            let behind = site - place * below + (place + side - 1) % side * below;
            for (matrix, vector) in [(site, ahead), (behind, behind)] {
                sink.loads((matrix * 4 + direction) * MATRIX, MATRIX / 8);
                sink.loads(vectors + vector * SPINOR, SPINOR / 8);
            }
            below *= side;
        }
        for at in (0..SPINOR).step_by(8) {
            sink.store(results + site * SPINOR + at);
        }
    }
}

/// Side of the grid: half of SPEC's.
const APSI: u64 = 56;

/// Adds differences to the tendency of each of three fields, along each dimension, all along one dimension before the
/// next.
fn apsi(sink: &mut impl Sink) {
    const N: u64 = APSI;
    let at = |array: u64, x: u64, y: u64, z: u64| (array * N * N * N + (z * N + y) * N + x) * 8;
    for field in 0..3 {
        for dimension in 0..3 {
            for outer in 0..N {
                for inner in 0..N {
                    for along in 1..N - 1 {
                        let place = |along: u64| match dimension {
                            0 => at(field, along, inner, outer),
                            1 => at(field, inner, along, outer),
                            _ => at(field, inner, outer, along),
                        };
                        sink.load(place(along - 1));
                        sink.load(place(along + 1));
                        let tendency = place(along) + 3 * N * N * N * 8;
                        sink.load(tendency);
                        sink.store(tendency);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Tally;
    use super::*;

    #[test]
    fn stencils_stay_in_their_arrays_and_use_all_of_them() {
        for stencil in Stencil::ALL {
            let mut tally = Tally::default();
            stencil.step(&mut tally);
            let bytes = stencil.bytes();
            // Only the first step of swim uses its psi; edges of a grid are not computed.
            assert!(
                tally.end <= bytes && tally.end > bytes / 14 * 12,
                "{}: {} of {bytes}",
                stencil.name(),
                tally.end
            );
            assert!(
                tally.loads > tally.stores && tally.stores > 0,
                "{}",
                stencil.name()
            );
        }
    }
}

//! The loops of the papers, as loads and stores at offsets of their memory.

mod stencil;

use superhue_cachesim::Random;

pub use stencil::Stencil;

/// Receiver of references.
pub trait Sink {
    /// A load at this offset.
    fn load(&mut self, at: u64);
    /// A store.
    fn store(&mut self, at: u64);
    /// Loads of `count` doubles, one behind the other.
    fn loads(&mut self, at: u64, count: u64) {
        for index in 0..count {
            self.load(at + index * 8);
        }
    }
}

/// Sink that records references: offset << 1 | 1 for a store.
#[derive(Debug, Default, Clone)]
pub struct RecordingSink(pub Vec<u32>);

impl Sink for RecordingSink {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "what is recorded is a few MiB"
    )]
    fn load(&mut self, at: u64) {
        self.0.push((at << 1) as u32);
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "what is recorded is a few MiB"
    )]
    fn store(&mut self, at: u64) {
        self.0.push((at << 1 | 1) as u32);
    }
}

/// Matrix of a transpose that is accessed by columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stride {
    /// `a[i][j] = b[j][i]`: P0 figure 7, P3 figure 8.
    Load,
    /// `a[j][i] = b[i][j]`: i and j exchanged (P3 section 5.1).
    Store,
}

/// Bytes of the two matrices of a transpose.
#[must_use]
pub const fn transpose_bytes(dim: u64) -> u64 {
    2 * dim * dim * 8
}

/// Transposes doubles: matrix a, and behind it b.
pub fn transpose(sink: &mut impl Sink, dim: u64, stride: Stride) {
    let b = dim * dim * 8;
    for i in 0..dim {
        for j in 0..dim {
            let (across, along) = ((j * dim + i) * 8, (i * dim + j) * 8);
            match stride {
                Stride::Load => {
                    sink.load(b + across);
                    sink.store(along);
                }
                Stride::Store => {
                    sink.load(b + along);
                    sink.store(across);
                }
            }
        }
    }
}

/// Loads doubles, one after the other (P2, result 3).
pub fn sweep(sink: &mut impl Sink, bytes: u64) {
    sink.loads(0, bytes.div_ceil(8));
}

/// Loads doubles a stride apart, from `columns` neighbouring starts in turn.
pub fn strided(sink: &mut impl Sink, bytes: u64, stride: u64, columns: u64) {
    for column in 0..columns {
        for at in (column * 8 % stride..bytes).step_by(stride as usize) {
            sink.load(at);
        }
    }
}

/// Bytes of a transform of `points` points: input, output and factors, complex doubles each.
#[must_use]
pub const fn fft_bytes(points: u64) -> u64 {
    3 * points * 16
}

/// Runs a fast Fourier transform of complex doubles (P2, result 4), out of place: depth first like FFTW's, radix 4,
/// with leaves of 16 points and factors in the order of their use. A reference is 16 bytes.
pub fn fft(sink: &mut impl Sink, points: u64) {
    step(sink, points, points, 0, 1, points * 16);
}

fn step(sink: &mut impl Sink, all: u64, points: u64, from: u64, stride: u64, to: u64) {
    if points <= 16 {
        for k in 0..points {
            sink.load((from + k * stride) * 16);
        }
        for k in 0..points {
            sink.store(to + k * 16);
        }
        return;
    }
    let quarter = points / 4;
    for q in 0..4 {
        step(
            sink,
            all,
            quarter,
            from + q * stride,
            stride * 4,
            to + q * quarter * 16,
        );
    }
    // Factors of larger steps lie behind those of smaller steps; there are less than `all` of them.
    let factors = 2 * all * 16 + (quarter - 1) * 16;
    for k in 0..quarter {
        for q in 0..4 {
            sink.load(to + (q * quarter + k) * 16);
        }
        for q in 0..3 {
            sink.load(factors + (k * 3 + q) * 16);
        }
        for q in 0..4 {
            sink.store(to + (q * quarter + k) * 16);
        }
    }
}

/// Bytes of a product of square matrices of doubles: c, a and b.
#[must_use]
pub const fn product_bytes(dim: u64) -> u64 {
    3 * dim * dim * 8
}

/// Computes rows of c = a b by the inner product: `c[i][j]` is the sum of `a[i][k] * b[k][j]`.
pub fn product(sink: &mut impl Sink, dim: u64, rows: std::ops::Range<u64>) {
    let (a, b) = (dim * dim * 8, 2 * dim * dim * 8);
    for i in rows {
        for j in 0..dim {
            for k in 0..dim {
                sink.load(a + (i * dim + k) * 8);
                sink.load(b + (k * dim + j) * 8);
            }
            sink.store((i * dim + j) * 8);
        }
    }
}

/// Task of P1 section 4.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Reads and writes a matrix column by column.
    Mcol,
    /// Reads and writes a matrix at random.
    Cnt,
    /// SHA-1 of a file.
    Sha,
    /// Finds edges in an image.
    SusanEdges,
    /// Smooths an image.
    SusanSmoothing,
}

impl Task {
    /// All tasks.
    pub const ALL: [Self; 5] = [
        Self::Mcol,
        Self::Cnt,
        Self::Sha,
        Self::SusanEdges,
        Self::SusanSmoothing,
    ];

    /// Returns the name in the paper.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mcol => "mcol",
            Self::Cnt => "cnt",
            Self::Sha => "sha",
            Self::SusanEdges => "suse",
            Self::SusanSmoothing => "suss",
        }
    }

    /// Cycles of arithmetic per reference, in thousandths: declared, after a look at the programs' loops.
    #[must_use]
    pub const fn arithmetic(self) -> u64 {
        match self {
            Self::Mcol => 500,
            Self::Cnt => 2_000,
            Self::Sha => 3_000,
            Self::SusanEdges | Self::SusanSmoothing => 1_500,
        }
    }

    /// References of one run of the task.
    #[must_use]
    pub fn references(self) -> Vec<u32> {
        let mut sink = RecordingSink::default();
        match self {
            Self::Mcol => mcol(&mut sink),
            Self::Cnt => cnt(&mut sink),
            Self::Sha => sha(&mut sink),
            Self::SusanEdges => susan_edges(&mut sink),
            Self::SusanSmoothing => susan_smoothing(&mut sink),
        }
        sink.0
    }
}

/// Rows and columns of mcol's matrix of doubles: 766 KiB, which half of the shared cache holds.
const MCOL: u64 = 313;

fn mcol(sink: &mut impl Sink) {
    for at in 0..MCOL * MCOL {
        sink.store(at * 8);
    }
    for _ in 0..2 {
        for column in 0..MCOL {
            for row in 0..MCOL {
                sink.load((row * MCOL + column) * 8);
                sink.store((row * MCOL + column) * 8);
            }
        }
    }
}

/// A matrix of 3 MiB, more than the cache.
fn cnt(sink: &mut impl Sink) {
    let mut random = Random::new(2014);
    for _ in 0..600_000 {
        let at = random.below(3 << 17) * 8;
        sink.load(at);
        sink.store(at);
    }
}

/// Computes SHA-1 as MiBench does: reads blocks of 8 KiB from a file of 3 MiB (which lies in the page cache behind the
/// program's own memory), and expands each 64 bytes to 80 words.
fn sha(sink: &mut impl Sink) {
    const FILE: u64 = 16 << 10;
    const WORDS: u64 = 8 << 10;
    for block in 0..(3 << 20) / 8192u64 {
        for at in (0..8192).step_by(8) {
            sink.load(FILE + block * 8192 + at);
            sink.store(at);
        }
        for chunk in (0..8192).step_by(64) {
            for word in 0..16 {
                sink.load(chunk + word * 4);
                sink.store(WORDS + word * 4);
            }
            for word in 16..80 {
                for back in [3, 8, 14, 16] {
                    sink.load(WORDS + (word - back) * 4);
                }
                sink.store(WORDS + word * 4);
            }
            for word in 0..80 {
                sink.load(WORDS + word * 4);
            }
        }
    }
}

/// Size of MiBench's large picture in pixels.
const WIDTH: u64 = 384;
const HEIGHT: u64 = 288;

/// Brightness of the pixels: a gradient with noise and a few edges; the program's branches depend on it.
fn brightness() -> Vec<u8> {
    let mut random = Random::new(384);
    (0..WIDTH * HEIGHT)
        .map(|at| {
            let (x, y) = (at % WIDTH, at / WIDTH);
            let edge = if (x / 48 + y / 36) % 2 == 0 { 60 } else { 150 };
            (edge + x / 8 + random.below(9)) as u8
        })
        .collect()
}

/// Offsets of the tables behind the picture.
const TABLE: u64 = 112 << 10;
const RESPONSE: u64 = 120 << 10;
const MIDDLE: u64 = RESPONSE + WIDTH * HEIGHT * 4;

/// Rows of the round mask of 37 pixels: its reach to each side.
const MASK: [u64; 7] = [1, 2, 3, 3, 3, 2, 1];

/// Runs SUSAN's edges in two passes. The first compares each pixel with its neighbours in the mask, through a table of
/// 516 bytes; the second looks at the response of each pixel and, if it is an edge, at its neighbours.
fn susan_edges(sink: &mut impl Sink) {
    const MAX_AREA: u32 = 2650;
    let picture = brightness();
    let mut responses = vec![0u32; picture.len()];
    for y in 3..HEIGHT - 3 {
        for x in 3..WIDTH - 3 {
            let center = picture[(y * WIDTH + x) as usize];
            sink.load(y * WIDTH + x);
            let mut area = 100;
            for (row, reach) in (0u64..).zip(MASK) {
                for column in x - reach..=x + reach {
                    let at = (y + row - 3) * WIDTH + column;
                    sink.load(at);
                    let differs = i64::from(center) - i64::from(picture[at as usize]);
                    sink.load(TABLE + (258 + differs) as u64);
                    if differs.abs() < 20 {
                        area += 100
                            - (differs.unsigned_abs() as u32 * differs.unsigned_abs() as u32) / 4;
                    }
                }
            }
            if area <= MAX_AREA {
                responses[(y * WIDTH + x) as usize] = MAX_AREA - area;
                sink.store(RESPONSE + (y * WIDTH + x) * 4);
            }
        }
    }
    for y in 4..HEIGHT - 4 {
        for x in 4..WIDTH - 4 {
            sink.load(RESPONSE + (y * WIDTH + x) * 4);
            if responses[(y * WIDTH + x) as usize] == 0 {
                continue;
            }
            for (row, reach) in (0u64..).zip(MASK) {
                for column in x - reach..=x + reach {
                    sink.load((y + row - 3) * WIDTH + column);
                }
            }
            for side in [WIDTH, 1] {
                sink.load(RESPONSE + (y * WIDTH + x - side) * 4);
                sink.load(RESPONSE + (y * WIDTH + x + side) * 4);
            }
            sink.store(MIDDLE + y * WIDTH + x);
        }
    }
}

/// Runs SUSAN's smoothing: weighs 15 rows of 15 pixels by distance and by brightness. It handles every second row,
/// which is enough, as all rows are alike.
fn susan_smoothing(sink: &mut impl Sink) {
    const REACH: u64 = 7;
    let picture = brightness();
    for y in (REACH..HEIGHT - REACH).step_by(2) {
        for x in REACH..WIDTH - REACH {
            let center = picture[(y * WIDTH + x) as usize];
            sink.load(y * WIDTH + x);
            for row in 0..=2 * REACH {
                for column in 0..=2 * REACH {
                    let at = (y + row - REACH) * WIDTH + x + column - REACH;
                    sink.load(at);
                    let differs = i64::from(center) - i64::from(picture[at as usize]);
                    sink.load(TABLE + 1024 + row * 15 + column);
                    sink.load(TABLE + (258 + differs) as u64);
                }
            }
            sink.store(RESPONSE + y * WIDTH + x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts and upper bound of references.
    #[derive(Default)]
    pub(super) struct Tally {
        pub(super) loads: u64,
        pub(super) stores: u64,
        pub(super) end: u64,
    }

    impl Sink for Tally {
        fn load(&mut self, at: u64) {
            self.loads += 1;
            self.end = self.end.max(at + 8);
        }

        fn store(&mut self, at: u64) {
            self.stores += 1;
            self.end = self.end.max(at + 8);
        }
    }

    #[test]
    fn loops_stay_in_their_memory() {
        let mut tally = Tally::default();
        for stride in [Stride::Load, Stride::Store] {
            transpose(&mut tally, 47, stride);
        }
        assert_eq!(
            (tally.loads, tally.stores, tally.end),
            (2 * 2209, 2 * 2209, transpose_bytes(47))
        );
        let mut tally = Tally::default();
        fft(&mut tally, 1 << 12);
        assert!(tally.end <= fft_bytes(1 << 12), "{}", tally.end);
        // 4 steps of 16 to 4096 points: 7 loads and 4 stores for 4 points, and the leaves.
        assert_eq!(tally.loads, (4096 / 4) * 7 * 4 + 4096);
        assert_eq!(tally.stores, 4096 * 4 + 4096);
        let mut tally = Tally::default();
        product(&mut tally, 10, 0..10);
        assert_eq!(
            (tally.loads, tally.stores, tally.end),
            (2000, 100, product_bytes(10))
        );
    }

    #[test]
    fn factors_of_steps_do_not_overlap() {
        // A step of 4 q points has 3 q factors from q - 1 on, so the next step's factors, from 4 q - 1 on, begin behind
        // them.
        for quarter in [16u64, 64, 256] {
            assert!(quarter - 1 + 3 * quarter < 4 * quarter);
        }
    }

    #[test]
    fn tasks_fit_into_what_kernels_dealt_to_them() {
        for task in Task::ALL {
            let most = task
                .references()
                .into_iter()
                .map(|word| u64::from(word >> 1))
                .max();
            let room = if task == Task::Mcol { 1 << 20 } else { 4 << 20 };
            assert!(most.unwrap_or(0) < room, "{}", task.name());
        }
    }
}

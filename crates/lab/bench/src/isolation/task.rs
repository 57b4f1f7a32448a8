//! Tasks of victims and partners.

use std::hint::black_box;

use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use sha2::{Digest, Sha256};

use super::image;
use crate::buffer::Buffer;
use crate::workload::gather::{below, xorshift};

/// Words in a cache line.
const LINE_WORDS: usize = 8;
/// Bytes that the hash reads in one step.
const BLOCK: usize = 64 << 10;

/// A task on a buffer, done in steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// Touches no memory.
    Spin,
    /// Sums a matrix in order, column by column (`mcol`).
    Ordered,
    /// Counts the positive numbers of a matrix in random order (`cnt`).
    Random,
    /// Follows a random cycle through all lines; each load waits for the one before.
    Chain,
    /// Writes every line.
    Thrash,
    /// SHA-256 of all bytes.
    Hash,
    /// Smooths an image, keeping edges.
    Smooth,
    /// Finds the edges of an image.
    Edges,
}

impl Task {
    /// Returns the name in documents and tables.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Spin => "alone",
            Self::Ordered => "mcol",
            Self::Random => "cnt",
            Self::Chain => "chase",
            Self::Thrash => "thrasher",
            Self::Hash => "sha256",
            Self::Smooth => "susan-smoothing",
            Self::Edges => "susan-edges",
        }
    }

    /// Fills its memory.
    pub(super) fn prepare(self, memory: &mut Buffer) {
        match self {
            Self::Spin => {}
            Self::Chain => {
                let words = memory.words();
                let mut order: Vec<usize> = (0..words.len() / LINE_WORDS)
                    .map(|line| line * LINE_WORDS)
                    .collect();
                order.shuffle(&mut Xoshiro256PlusPlus::seed_from_u64(7));
                for (at, next) in order.iter().zip(order.iter().cycle().skip(1)) {
                    words[*at] = *next as u64;
                }
            }
            Self::Smooth | Self::Edges => image::draw(memory.bytes()),
            Self::Ordered | Self::Random | Self::Thrash | Self::Hash => {
                let mut state = 88_172_645_463_325_252;
                for value in memory.doubles() {
                    state = xorshift(state);
                    *value = (state >> 40) as f64 - f64::from(1 << 23);
                }
            }
        }
    }

    /// Does a piece of work; `turn` counts the pieces. For a victim, a piece is one job: it touches every line of its
    /// memory once or more.
    pub(super) fn step(self, memory: &mut Buffer, turn: u64) {
        match self {
            Self::Spin => {
                let spun = (0..20_000).fold(turn | 1, |state, _| xorshift(state));
                black_box(spun);
            }
            Self::Ordered => {
                let values = memory.doubles();
                let dim = values.len().isqrt();
                let sum: f64 = (0..dim)
                    .map(|column| values[column..].iter().step_by(dim).take(dim).sum::<f64>())
                    .sum();
                black_box(sum);
            }
            Self::Random => {
                let values = memory.doubles();
                let (mut state, mut positive) =
                    (turn.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, 0_u32);
                for _ in 0..values.len() / LINE_WORDS {
                    state = xorshift(state);
                    let at = below(state, values.len() as u64) as usize;
                    positive += u32::from(values[at] > 0.0);
                }
                black_box(positive);
            }
            Self::Chain => {
                let words = memory.words();
                let mut at = 0;
                for _ in 0..words.len() / LINE_WORDS {
                    at = words[at] as usize;
                }
                black_box(at);
            }
            Self::Thrash => {
                for word in memory.words().iter_mut().step_by(LINE_WORDS) {
                    *word = turn;
                }
            }
            Self::Hash => {
                let bytes = memory.bytes();
                let blocks = bytes.len() / BLOCK;
                let at = turn as usize % blocks.max(1) * BLOCK;
                let block = &bytes[at..(at + BLOCK).min(bytes.len())];
                black_box(Sha256::digest(block));
            }
            Self::Smooth => image::smooth(memory.bytes(), turn),
            Self::Edges => image::edges(memory.bytes(), turn),
        }
    }
}

#[cfg(test)]
mod tests {
    use superhue_model::ByteCount;

    use super::*;

    #[test]
    fn every_task_does_its_work_on_any_memory() {
        for task in [
            Task::Spin,
            Task::Ordered,
            Task::Random,
            Task::Chain,
            Task::Thrash,
            Task::Hash,
            Task::Smooth,
            Task::Edges,
        ] {
            for pages in [1, 3, 70] {
                let mut memory = Buffer::new(ByteCount(pages << 12)).unwrap();
                task.prepare(&mut memory);
                for turn in 0..70 {
                    task.step(&mut memory, turn);
                }
            }
        }
    }

    #[test]
    fn a_chain_comes_back_after_all_lines_and_not_before() {
        let mut memory = Buffer::new(ByteCount(8192)).unwrap();
        Task::Chain.prepare(&mut memory);
        let words = memory.words();
        let mut at = words[0] as usize;
        let mut steps = 1;
        while at != 0 {
            at = words[at] as usize;
            steps += 1;
        }
        assert_eq!(steps, 128);
    }
}

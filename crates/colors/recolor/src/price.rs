//! Price of recoloring.

use std::time::Duration;

/// Total price of recoloring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Price {
    /// Pages that Superhue requested the kernel to take out.
    pub attempts: u64,
    /// Pages that were taken out.
    pub outs: u64,
    /// Pages that we brought in again; the program faulted in the others before.
    pub ins: u64,
    /// Frames that were dealt.
    pub dealt: u64,
    /// Passes over requested pages.
    pub rounds: u64,
    /// Major faults of the programs in the meantime, which waited for swap.
    pub program_faults: u64,
    /// CPU time of ours, including measuring frames.
    pub cpu: Duration,
}

impl std::ops::Add for Price {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            attempts: self.attempts + other.attempts,
            outs: self.outs + other.outs,
            ins: self.ins + other.ins,
            dealt: self.dealt + other.dealt,
            rounds: self.rounds + other.rounds,
            program_faults: self.program_faults + other.program_faults,
            cpu: self.cpu + other.cpu,
        }
    }
}

//! Results of the draws of an arm, summed up.

use superhue_cachesim::Counts;

use crate::arm::Arm;
use crate::document::{ArmResult, Spread};

/// Result of one draw.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    pub(crate) real: bool,
    pub(crate) references: u64,
    pub(crate) misses: f64,
    pub(crate) walks: f64,
    pub(crate) value: f64,
}

impl Outcome {
    pub(crate) fn of(real: bool, counts: &Counts, value: f64) -> Self {
        let references = counts.references().max(1) as f64;
        Self {
            real,
            references: counts.references(),
            misses: counts.memory as f64 * 1e3 / references,
            walks: counts.walks as f64 * 1e3 / references,
            value,
        }
    }
}

pub(crate) fn result(arm: Arm, outcomes: &[Outcome]) -> ArmResult {
    let spread =
        |of: fn(&Outcome) -> f64| Spread::of(&outcomes.iter().map(of).collect::<Vec<f64>>());
    ArmResult {
        arm: arm.name().to_owned(),
        draws: outcomes.len(),
        real: outcomes.iter().filter(|outcome| outcome.real).count(),
        references: outcomes.first().map_or(0, |outcome| outcome.references),
        misses: spread(|outcome| outcome.misses),
        walks: spread(|outcome| outcome.walks),
        value: spread(|outcome| outcome.value),
        paper: None,
    }
}

/// Effects that no figure models, and `more` of one figure.
pub(crate) fn not_modelled(more: &[&str]) -> Vec<String> {
    let common = [
        "Prefetching, and references that overlap: each miss is charged in full, so modelled gains are an upper end.",
        "Instructions: their fetches, their arithmetic, interrupts, and the kernel's own references.",
    ];
    common
        .iter()
        .chain(more)
        .map(|text| (*text).to_owned())
        .collect()
}

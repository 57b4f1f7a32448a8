//! How what Superhue may cost is divided among what it does while it places memory.
//!
//! The ceiling (`--max-overhead`) is a share of one CPU's time. What is not here is deciding and acting:
//! they take what they take, which is little once memory is placed, and a tenth is left for them.

/// Taking samples of accesses.
pub(crate) const SAMPLES: f64 = 0.55;
/// Looking at the page tables of processes that have changed.
pub(crate) const LOOKS: f64 = 0.2;
/// Reading the sizes of all processes.
pub(crate) const GLANCES: f64 = 0.1;
/// Finding out which processes there are.
pub(crate) const SEARCHES: f64 = 0.05;

const _: () = assert!(SAMPLES + LOOKS + GLANCES + SEARCHES < 0.91);

/// How many times its own cost a piece of work must be apart from the next one, if it may take `part`
/// of a ceiling of `max_overhead`.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to what fits"
)]
pub(crate) fn apart(max_overhead: f64, part: f64) -> u32 {
    (1.0 / (max_overhead * part).max(1e-6))
        .round()
        .clamp(1.0, 1e6) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dear_work_is_rare() {
        assert_eq!(apart(0.01, LOOKS), 500);
        assert_eq!(apart(1.0, 1.0), 1);
        assert_eq!(apart(0.0, LOOKS), 1_000_000);
    }
}

//! Many questions at once.
//!
//! Ten metrics tested with a 5 % risk each show "something" by chance in up to 40 % of comparisons of a program with itself. Holm's step-down
//! method (Scandinavian J. of Statistics 6, 1979) keeps the risk of *any* false finding below the level, whatever the dependence between the
//! metrics, and is never less powerful than Bonferroni's.

/// Adjusts p-values of questions asked together; keeps their order. Each result is at least its input and at most 1. Compare it with the level
/// that is meant for all questions together.
#[must_use]
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|a, b| p_values[*a].total_cmp(&p_values[*b]));
    let mut adjusted = vec![1.0; p_values.len()];
    let mut highest: f64 = 0.0;
    for (rank, index) in order.into_iter().enumerate() {
        let factor = (p_values.len() - rank) as f64;
        highest = highest.max(p_values[index] * factor).min(1.0);
        adjusted[index] = highest;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worked_by_hand() {
        // The factors are 4 * 0.005, 3 * 0.01, 2 * 0.03, and 1 * 0.04, which is raised to the one before.
        let adjusted = holm(&[0.01, 0.04, 0.03, 0.005]);
        for (got, want) in adjusted.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            assert!((got - want).abs() < 1e-12, "{adjusted:?}");
        }
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
        assert!(holm(&[]).is_empty());
        assert_eq!(holm(&[0.04]), [0.04]);
    }
}

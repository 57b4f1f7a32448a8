//! Medians, quartiles and deviations.

/// Returns a sorted copy; every value must be finite.
#[must_use]
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut copy = values.to_vec();
    copy.sort_by(f64::total_cmp);
    copy
}

/// Returns the quantile `q` (0 to 1) of ascending values, between neighbours by linear interpolation (type 7 of Hyndman & Fan 1996, the default of
/// R and NumPy). `None` without values.
#[must_use]
pub fn quantile(ascending: &[f64], q: f64) -> Option<f64> {
    let last = ascending.len().checked_sub(1)?;
    let place = q.clamp(0.0, 1.0) * last as f64;
    let below = place.floor() as usize;
    let (low, high) = (ascending[below], ascending[(below + 1).min(last)]);
    // This form gives exactly the value of equal neighbours.
    Some(low + (high - low) * (place - below as f64))
}

/// Returns the median of ascending values: the middle one, or the midpoint of the middle two. `None` without values.
#[must_use]
pub fn median(ascending: &[f64]) -> Option<f64> {
    let last = ascending.len().checked_sub(1)?;
    Some(f64::midpoint(
        ascending[last / 2],
        ascending[last.div_ceil(2)],
    ))
}

/// Returns the median absolute deviation from the median, unscaled. `None` without values.
#[must_use]
pub fn mad(ascending: &[f64]) -> Option<f64> {
    let centre = median(ascending)?;
    let deviations: Vec<f64> = ascending
        .iter()
        .map(|value| (value - centre).abs())
        .collect();
    median(&sorted(&deviations))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn textbook_values() {
        let values = sorted(&[7.0, 1.0, 3.0, 10.0]);
        assert_eq!(median(&values), Some(5.0));
        assert_eq!(quantile(&values, 0.25), Some(2.5));
        assert_eq!(quantile(&values, 0.75), Some(7.75));
        assert_eq!(quantile(&values, 1.0), Some(10.0));
        assert_eq!(mad(&values), Some(3.0));
        assert_eq!(median(&[4.0]), Some(4.0));
        assert_eq!(mad(&[4.0, 4.0, 4.0]), Some(0.0));
        assert_eq!(median(&[]), None);
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(mad(&[]), None);
    }
}

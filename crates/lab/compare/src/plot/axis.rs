//! A number line with round numbers.

use superhue_measure::human::{Scale, grouped};
use superhue_measure::metric::Unit;

/// A linear axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    low: f64,
    high: f64,
    /// Ticks, ascending: position and label.
    pub ticks: Vec<(f64, String)>,
    /// The unit of the labels, without space: `MiB`; may be empty.
    pub unit: String,
}

impl Axis {
    /// Makes an axis for these values with as many ticks as `fits` allows. `fits` takes the number of ticks and the length of the longest label
    /// in characters.
    #[must_use]
    pub fn new(unit: &Unit, values: &[f64], fits: impl Fn(usize, usize) -> bool) -> Self {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (least, most) = if least <= most {
            (least, most)
        } else {
            (0.0, 0.0)
        };
        let scale = Scale::new(unit, least.abs().max(most.abs()));
        let whole = matches!(unit, Unit::Count) && scale.divisor == 1.0;
        let (low, high) = room(least, most);
        let (low, high) = (low / scale.divisor, high / scale.divisor);
        let ticks = (2..=7)
            .rev()
            .map(|wanted| ticks(low, high, wanted, whole, least >= 0.0))
            .find(|ticks| {
                let longest = ticks.iter().map(|(_, label)| label.chars().count()).max();
                fits(ticks.len(), longest.unwrap_or(0))
            })
            .unwrap_or_default();
        Self {
            low: low * scale.divisor,
            high: high * scale.divisor,
            ticks: (ticks.into_iter())
                .map(|(value, label)| (value * scale.divisor, label))
                .collect(),
            unit: scale.suffix.trim().to_owned(),
        }
    }

    /// Returns true if 0 lies beyond the ends, so that distances on the axis are no ratios.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        !(self.low..=self.high).contains(&0.0)
    }

    /// Returns true if a value lies between the ends.
    #[must_use]
    pub fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Returns the place of a value between the ends: 0 is the low end, 1 the high end. A value beyond an end gets the place of that end.
    #[must_use]
    pub fn place(&self, value: f64) -> f64 {
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }
}

/// Returns the ends of an axis, with some space around the values.
fn room(least: f64, most: f64) -> (f64, f64) {
    if least == most {
        // A single value lies in the middle; a single 0 lies near the low end.
        let air = least.abs() * 0.1;
        return if air > 0.0 {
            (least - air, most + air)
        } else {
            (-0.04, 1.0)
        };
    }
    // If the values reach down towards 0, the axis includes 0.
    let least = if least > 0.0 && least < 0.4 * most {
        0.0
    } else {
        least
    };
    let air = (most - least) * 0.04;
    (least - air, most + air)
}

/// Returns multiples of a round step between `low` and `high`, about `wanted` of them.
fn ticks(
    low: f64,
    high: f64,
    wanted: usize,
    whole: bool,
    not_negative: bool,
) -> Vec<(f64, String)> {
    let raw = (high - low) / wanted as f64;
    let magnitude = 10f64.powi(raw.log10().floor() as i32);
    let factor = [1.0, 2.0, 5.0].into_iter().find(|f| f * magnitude >= raw);
    let mut step = factor.unwrap_or(10.0) * magnitude;
    if whole {
        step = step.max(1.0);
    }
    // A step of 0.05 needs two decimals; the small term is for 0.1 + rounding.
    let decimals = (-(step.log10() + 1e-9).floor()).clamp(0.0, 12.0) as usize;
    let first = (low / step).ceil();
    let count = ((high / step).floor() - first).clamp(-1.0, 20.0) as i32 + 1;
    (0..count)
        .map(|i| (first + f64::from(i)) * step)
        .filter(|value| !not_negative || *value > -step / 2.0)
        .map(|value| {
            // Replaces -0.0 and values such as 1e-17.
            let value = if value.abs() < step / 2.0 { 0.0 } else { value };
            let label = grouped(value, if value == 0.0 { 0 } else { decimals });
            (value, label)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(unit: &Unit, values: &[f64]) -> (Vec<String>, String) {
        let axis = Axis::new(unit, values, |ticks, _| ticks <= 6);
        let labels = axis.ticks.into_iter().map(|(_, label)| label).collect();
        (labels, axis.unit)
    }

    #[test]
    fn ticks_are_round_in_the_unit_people_read() {
        let (ticks, unit) = labels(&Unit::Seconds, &[0.981, 1.243]);
        assert_eq!(ticks, ["1.00", "1.05", "1.10", "1.15", "1.20", "1.25"]);
        assert_eq!(unit, "s");
        let mib = 1024.0 * 1024.0;
        let (ticks, unit) = labels(&Unit::Bytes, &[200.0 * mib, 260.0 * mib]);
        assert_eq!(ticks, ["200", "220", "240", "260"]);
        assert_eq!(unit, "MiB");
        let (ticks, unit) = labels(&Unit::Share, &[0.0, 0.97]);
        assert_eq!(ticks, ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(unit, "%");
    }

    #[test]
    fn counts_have_whole_ticks() {
        let (ticks, _) = labels(&Unit::Count, &[0.0, 2.0]);
        assert_eq!(ticks, ["0", "1", "2"]);
        let (ticks, _) = labels(&Unit::Count, &[0.0, 0.0]);
        assert_eq!(ticks, ["0", "1"]);
    }

    #[test]
    fn an_axis_has_a_true_zero_or_says_that_it_is_cut() {
        let is_cut = |values: &[f64]| Axis::new(&Unit::Seconds, values, |_, _| true).is_cut();
        assert!(is_cut(&[0.981, 1.243]) && is_cut(&[-3.0, -2.0]) && is_cut(&[5.0]));
        // Values that reach down towards 0 share an axis with it.
        for values in [&[0.0, 0.97][..], &[0.3, 1.0], &[-1.0, 2.0], &[0.0], &[]] {
            assert!(!is_cut(values), "{values:?}");
        }
    }

    proptest! {
        #[test]
        fn every_value_has_a_place_and_ticks_ascend(
            values in prop::collection::vec(-1e12..1e12f64, 0..20)
        ) {
            let axis = Axis::new(&Unit::Plain(String::new()), &values, |ticks, _| ticks <= 8);
            for value in &values {
                prop_assert!((0.0..=1.0).contains(&axis.place(*value)));
            }
            prop_assert!(!axis.ticks.is_empty());
            for pair in axis.ticks.windows(2) {
                prop_assert!(pair[0].0 < pair[1].0);
                prop_assert!(pair[0].1 != pair[1].1, "{:?}", axis.ticks);
            }
        }
    }
}

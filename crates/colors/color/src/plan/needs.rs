//! Demands of a task: a number of colors, or its cost by number of colors.

use std::time::Duration;

/// The most points of a curve.
pub const MOST_POINTS: usize = 256;

/// Quantity that a curve counts for one run of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Misses of the cache.
    Misses,
    /// Seconds.
    Seconds,
}

/// Demand of a task.
#[derive(Debug, Clone, PartialEq)]
pub enum Needs {
    /// Exact number of colors, no more and no fewer.
    Colors(usize),
    /// As many as pay.
    Curve(Curve),
}

impl Needs {
    /// The most colors that the task can get.
    pub(super) fn most(&self) -> usize {
        match self {
            Self::Colors(colors) => *colors,
            Self::Curve(curve) => curve.points.last().map_or(0, |point| point.0),
        }
    }
}

/// Costs of one run of a task by number of colors.
///
/// Between two points the cost is that of the point with fewer colors, so a plan promises nothing that was not measured. A task gets at
/// least the colors of the first point and at most those of the last one.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    unit: Unit,
    points: Vec<(usize, f64)>,
}

/// Reason why points are no curve.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CurveError {
    /// A single point, or none, shows no dependence on the number of colors.
    #[error("a curve has 2 to {MOST_POINTS} points, not {0}: for a fixed number write `colors`")]
    Points(usize),
    /// A number of colors that cannot be.
    #[error("a point of a curve has at least 1 color, not 0")]
    NoColors,
    /// A cost that is not finite, or negative.
    #[error("{cost} is no cost of a run with {colors} colors: it is a finite number from 0")]
    Cost {
        /// Number of colors of the point.
        colors: usize,
        /// Cost of the point.
        cost: f64,
    },
    /// The points are in disorder.
    #[error(
        "the point of {colors} colors comes after that of {before}: points ascend, each number comes once"
    )]
    Disordered {
        /// Number of colors of the point.
        colors: usize,
        /// Number of colors of the point before it.
        before: usize,
    },
    /// More colors would cost more.
    #[error(
        "a run with {colors} colors costs {cost}, more than {before} with fewer: more colors never cost more; for measured costs take \
         the largest of this and all later points"
    )]
    Rises {
        /// Number of colors of the point.
        colors: usize,
        /// Cost of the point.
        cost: f64,
        /// The cost of the point before it.
        before: f64,
    },
}

impl Curve {
    /// Makes a curve of points: number of colors and cost of a run.
    ///
    /// # Errors
    /// If there are fewer than 2 or more than [`MOST_POINTS`] points; if numbers do not ascend, or costs rise or are not finite numbers
    /// from 0.
    pub fn new(unit: Unit, points: Vec<(usize, f64)>) -> Result<Self, CurveError> {
        if !(2..=MOST_POINTS).contains(&points.len()) {
            return Err(CurveError::Points(points.len()));
        }
        let mut last: Option<(usize, f64)> = None;
        for &(colors, cost) in &points {
            if colors == 0 {
                return Err(CurveError::NoColors);
            }
            if !cost.is_finite() || cost < 0.0 {
                return Err(CurveError::Cost { colors, cost });
            }
            if let Some((before, _)) = last.filter(|&(before, _)| colors <= before) {
                return Err(CurveError::Disordered { colors, before });
            }
            if let Some((_, before)) = last.filter(|&(_, before)| cost > before) {
                return Err(CurveError::Rises {
                    colors,
                    cost,
                    before,
                });
            }
            last = Some((colors, cost));
        }
        Ok(Self { unit, points })
    }

    /// Quantity that the curve counts.
    #[must_use]
    pub const fn unit(&self) -> Unit {
        self.unit
    }

    /// Returns the points: number of colors and cost of a run, ascending in colors.
    #[must_use]
    pub fn points(&self) -> &[(usize, f64)] {
        &self.points
    }

    /// Cost of a run with `colors` colors, in the curve's unit; `None` if that is less than its first point.
    #[must_use]
    pub fn cost(&self, colors: usize) -> Option<f64> {
        let point = self.points.iter().rfind(|point| point.0 <= colors);
        point.map(|point| point.1)
    }

    /// Seconds that a cost of this curve takes; `None` for misses without the time of one.
    pub(super) fn seconds(&self, cost: f64, miss_time: Option<Duration>) -> Option<f64> {
        match self.unit {
            Unit::Seconds => Some(cost),
            Unit::Misses => miss_time.map(|time| cost * time.as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_promises_nothing_between_its_points() {
        let curve = Curve::new(Unit::Misses, vec![(2, 90.0), (4, 50.0), (8, 50.0)]).unwrap();
        let costs: Vec<_> = [0, 1, 2, 3, 4, 7, 8, 100]
            .map(|colors| curve.cost(colors))
            .into();
        let expected = [
            None,
            None,
            Some(90.0),
            Some(90.0),
            Some(50.0),
            Some(50.0),
            Some(50.0),
            Some(50.0),
        ];
        assert_eq!(costs, expected);
        assert_eq!(curve.seconds(90.0, None), None);
        assert_eq!(
            curve.seconds(90.0, Some(Duration::from_secs(2))),
            Some(180.0)
        );
    }

    #[test]
    fn points_that_are_no_curve_are_refused() {
        let many = (1..=MOST_POINTS + 1).map(|colors| (colors, 0.0)).collect();
        for (points, says) in [
            (vec![], "2 to 256 points, not 0"),
            (vec![(1, 1.0)], "2 to 256 points, not 1"),
            (many, "not 257"),
            (vec![(0, 1.0), (1, 0.0)], "at least 1 color"),
            (
                vec![(1, f64::NAN), (2, 0.0)],
                "NaN is no cost of a run with 1 colors",
            ),
            (vec![(1, f64::INFINITY), (2, 0.0)], "inf is no cost"),
            (vec![(1, -1.0), (2, -2.0)], "-1 is no cost"),
            (
                vec![(2, 1.0), (1, 0.0)],
                "of 1 colors comes after that of 2",
            ),
            (
                vec![(2, 1.0), (2, 0.0)],
                "of 2 colors comes after that of 2",
            ),
            (
                vec![(1, 1.0), (2, 1.5)],
                "costs 1.5, more than 1 with fewer",
            ),
        ] {
            let error = Curve::new(Unit::Seconds, points).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}

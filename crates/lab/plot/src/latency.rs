//! Latency against the number of pages: the measurement of `superhue colors --verify`.

use serde::{Deserialize, Serialize};

/// Largest number of arms and points to draw; no measurement has nearly as many.
const MAX_POINTS: usize = 1024;

/// Latency of a load in working sets of growing size, by the colors of their pages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Cache: `L2`.
    pub cache: String,
    /// Number of its ways.
    pub ways: u64,
    /// Number of its colors that the oracle distinguishes.
    pub colors: u64,
    /// Name of the oracle of the colors.
    pub oracle: String,
    /// Name of the processor, if it reports one.
    pub processor: Option<String>,
    /// Nanoseconds of a tick of the clock, measured with the system's clock.
    pub nanoseconds_per_tick: f64,
    /// Placements that are compared.
    pub arms: Vec<Arm>,
    /// Number of pages at which one color is full.
    pub cliff: Cliff,
}

/// One placement of pages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    /// Name for people: `one color`.
    pub name: String,
    /// Number of colors of its pages; `None` for the kernel's own placement.
    pub colors: Option<u64>,
    /// Measurements by number of pages, ascending.
    pub points: Vec<Point>,
}

/// Measurements of working sets of one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Number of base pages in the working set.
    pub pages: u64,
    /// Ticks per load of each repetition, which has pages of its own.
    pub ticks: Vec<f64>,
}

/// Point at which the latency of one color leaves that of the cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cliff {
    /// Number of pages at which it must be: ways + 1.
    pub expected_pages: u64,
    /// Number of pages at which it is; `None` if there is none.
    pub found_pages: Option<u64>,
}

impl Cliff {
    /// Returns true if it is where it must be.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.found_pages == Some(self.expected_pages)
    }
}

impl Point {
    /// Returns the median ticks of all repetitions; `None` without any.
    #[must_use]
    pub fn median_ticks(&self) -> Option<f64> {
        let mut sorted = self.ticks.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let upper = *sorted.get(sorted.len() / 2)?;
        if sorted.len() % 2 == 1 {
            return Some(upper);
        }
        let lower = *sorted.get(sorted.len() / 2 - 1)?;
        Some(f64::midpoint(lower, upper))
    }
}

impl Latency {
    /// Reads a verification from JSON, or from a document that holds it as `verification`.
    ///
    /// # Errors
    /// Describes the fault: no JSON, no verification, or impossible values.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let whole: serde_json::Value =
            serde_json::from_str(text).map_err(|error| error.to_string())?;
        let part = match whole.get("verification") {
            Some(serde_json::Value::Null) => {
                return Err("it holds no verification: made without --verify".to_owned());
            }
            Some(part) => part.clone(),
            None => whole,
        };
        let found: Self = serde_json::from_value(part).map_err(|error| error.to_string())?;
        let ticks = (found.arms.iter())
            .flat_map(|arm| &arm.points)
            .flat_map(|point| &point.ticks);
        let is_time = |time: &f64| time.is_finite() && *time >= 0.0;
        let points = found.arms.iter().map(|arm| arm.points.len()).sum::<usize>();
        if found.arms.len() > MAX_POINTS || points > MAX_POINTS {
            Err("it has more points than any measurement".to_owned())
        } else if !(is_time(&found.nanoseconds_per_tick) && ticks.into_iter().all(is_time)) {
            Err("it has times that cannot be".to_owned())
        } else {
            Ok(found)
        }
    }

    /// Converts ticks to nanoseconds.
    #[must_use]
    pub fn nanoseconds(&self, ticks: f64) -> f64 {
        ticks * self.nanoseconds_per_tick
    }
}

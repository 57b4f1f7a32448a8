//! Latency against the number of pages: what `superhue colors --verify` measures.

use serde::{Deserialize, Serialize};

/// Most arms and points that are drawn; no measurement has nearly as many.
const MOST: usize = 1024;

/// How long a load takes in working sets of growing size, by the colors of their pages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Which cache: `L2`.
    pub cache: String,
    /// Its ways.
    pub ways: u64,
    /// The colors of it that the oracle tells apart.
    pub colors: u64,
    /// Who told the colors.
    pub oracle: String,
    /// The processor's name for itself, where it has one.
    pub processor: Option<String>,
    /// Length of a tick of the clock, by the system's clock.
    pub nanoseconds_per_tick: f64,
    /// Placements compared.
    pub arms: Vec<Arm>,
    /// Where one color is full.
    pub cliff: Cliff,
}

/// One placement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    /// For people: `one color`.
    pub name: String,
    /// Colors its pages are of; `None` for the kernel's own placement.
    pub colors: Option<u64>,
    /// By number of pages, ascending.
    pub points: Vec<Point>,
}

/// Working sets of one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Base pages in it.
    pub pages: u64,
    /// Ticks for each load, of every repetition, each with pages of its own.
    pub ticks: Vec<f64>,
}

/// Where the latency of one color leaves that of the cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cliff {
    /// Pages where it must be: ways + 1.
    pub expected_pages: u64,
    /// Pages where it is; `None` if there is none.
    pub found_pages: Option<u64>,
}

impl Cliff {
    /// Whether it is where it must be.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.found_pages == Some(self.expected_pages)
    }
}

impl Point {
    /// Of all repetitions; `None` without any.
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
    /// Reads it from JSON, or from a document that holds it as `verification`.
    ///
    /// # Errors
    /// What is wrong with the text: no JSON, no verification in it, or values that cannot be.
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
        if found.arms.len() > MOST || points > MOST {
            Err("it has more points than any measurement".to_owned())
        } else if !(is_time(&found.nanoseconds_per_tick) && ticks.into_iter().all(is_time)) {
            Err("it has times that cannot be".to_owned())
        } else {
            Ok(found)
        }
    }

    /// Nanoseconds of so many ticks.
    #[must_use]
    pub fn nanoseconds(&self, ticks: f64) -> f64 {
        ticks * self.nanoseconds_per_tick
    }
}

//! The options of placement: what the command line and the daemon's rules have in common.
//!
//! ```text
//!   --min-resident 90          PlacementArgs (clap) ---.
//!                                                       >--- PlacementOptions --- config() ---> Config
//!   min-resident = "90%"       [[rule]] (TOML) --------'
//! ```

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use superhue_heat::TrackerKind;
use superhue_model::{ByteCount, ColorRequest, Share};

use crate::{ColorPlacement, Config, Pages, chosen_stall_bound};

/// Options of placement. Each has its documentation in [`Config`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlacementOptions {
    /// See [`Config::pages`].
    pub pages: Option<Pages>,
    /// See [`Config::budget`].
    pub budget: Option<Share>,
    /// See [`Config::min_resident`].
    pub min_resident: u8,
    /// See [`Config::settle`].
    pub settle: Duration,
    /// See [`Config::min_active`].
    pub min_active: u8,
    /// See [`Config::cold_after`].
    pub cold_after: Duration,
    /// See [`Config::tracker`].
    pub tracker: Option<TrackerKind>,
    /// See [`Config::max_overhead`].
    pub max_overhead: f64,
    /// Time of every 100 ms of a process that collapses may take; zero means no bound, `None` the default one with its exemptions.
    pub max_stall: Option<Duration>,
    /// See [`Config::rate`].
    pub rate: Option<ByteCount>,
    /// See [`Config::colors`].
    pub colors: ColorRequest,
    /// See [`Config::placement`].
    pub placement: ColorPlacement,
    /// See [`Config::swap`].
    pub swap: bool,
}

impl Default for PlacementOptions {
    fn default() -> Self {
        let usual = Config::default();
        Self {
            pages: usual.pages,
            budget: usual.budget,
            min_resident: usual.min_resident,
            settle: usual.settle,
            min_active: usual.min_active,
            cold_after: usual.cold_after,
            tracker: usual.tracker,
            max_overhead: usual.max_overhead,
            max_stall: None,
            rate: usual.rate,
            colors: usual.colors,
            placement: usual.placement,
            swap: usual.swap,
        }
    }
}

impl PlacementOptions {
    /// Returns the configuration of a watch with these options.
    #[must_use]
    pub fn config(&self) -> Config {
        Config {
            pages: self.pages,
            budget: self.budget,
            min_resident: self.min_resident,
            settle: self.settle,
            min_active: self.min_active,
            cold_after: self.cold_after,
            tracker: self.tracker,
            max_overhead: self.max_overhead,
            max_stall: chosen_stall_bound(self.max_stall),
            rate: self.rate,
            colors: self.colors.clone(),
            placement: self.placement,
            swap: self.swap,
            ..Config::default()
        }
    }
}

impl fmt::Display for PlacementOptions {
    /// Writes the policy, the ceiling of the cost, and each option that is not the default: `hot, at most 1% of a CPU, budget 5%`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Self::default();
        f.write_str(self.pages.map_or("auto", Pages::name))?;
        if let Some(budget) = self.budget {
            write!(f, ", budget {budget}")?;
        }
        write!(f, ", at most {}% of a CPU", self.max_overhead * 100.0)?;
        match self.max_stall {
            None => {}
            Some(Duration::ZERO) => f.write_str(", stalls without a bound")?,
            Some(bound) => write!(f, ", max-stall {bound:?}")?,
        }
        if let Some(rate) = self.rate {
            write!(f, ", rate {rate}")?;
        }
        if self.min_resident != usual.min_resident {
            write!(f, ", min-resident {}%", self.min_resident)?;
        }
        if self.settle != usual.settle {
            write!(f, ", settle {:?}", self.settle)?;
        }
        if self.min_active != usual.min_active {
            write!(f, ", min-active {}%", self.min_active)?;
        }
        if self.cold_after != usual.cold_after {
            write!(f, ", cold-after {:?}", self.cold_after)?;
        }
        if let Some(tracker) = self.tracker {
            write!(f, ", tracker {}", tracker.name())?;
        }
        if self.colors != ColorRequest::Off {
            write!(f, ", colors {}", self.colors)?;
        }
        if self.placement != usual.placement {
            write!(f, ", placement {}", self.placement)?;
        }
        if self.swap {
            f.write_str(", swap")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_a_watch() {
        let (ours, usual) = (PlacementOptions::default().config(), Config::default());
        assert_eq!(format!("{ours:?}"), format!("{usual:?}"));
    }

    #[test]
    fn options_that_are_not_the_default_are_written() {
        let text = PlacementOptions::default().to_string();
        assert_eq!(text, "auto, at most 1% of a CPU");
        let options = PlacementOptions {
            pages: Some(Pages::Resident),
            min_resident: 90,
            settle: Duration::from_secs(1),
            rate: Some(ByteCount(64 << 20)),
            tracker: Some(TrackerKind::Idle),
            max_stall: Some(Duration::ZERO),
            ..PlacementOptions::default()
        };
        assert_eq!(
            options.to_string(),
            "resident, at most 1% of a CPU, stalls without a bound, rate 64.0 MiB, min-resident 90%, settle 1s, tracker idle"
        );
    }
}

//! The options of placement: what the command line and the daemon's rules have in common.
//!
//! ```text
//!   --min-resident 90          PlacementArgs (clap) ---.
//!                                                       >--- PlacementOptions --- Config::from() ---> Config
//!   min-resident = "90%"       [[rule]] (TOML) --------'
//! ```

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use superhue_heat::TrackerKind;
use superhue_model::{ByteCount, ColorRequest, Share};

use crate::pages::Pages;

/// Share of a region's base pages that must be resident before `resident` promotes it, in percent.
pub const MIN_RESIDENT_DEFAULT: u8 = 75;

/// Share of a region's base pages that must be active before `hot` promotes it, in percent: a
/// quarter, as in the HPS paper.
pub const MIN_ACTIVE_DEFAULT: u8 = 25;

/// Mechanism that places memory by color.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ColorPlacement {
    /// The kernel, where it colors pages and its geometry is not refuted; else recoloring.
    #[default]
    Auto,
    /// The kernel, or no placement.
    Kernel,
    /// Superhue, which gives pages other frames (see `superhue_recolor`).
    Recolor,
}

impl ColorPlacement {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Kernel, Self::Recolor];

    /// Returns the name in options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Kernel => "kernel",
            Self::Recolor => "recolor",
        }
    }
}

impl fmt::Display for ColorPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Options of placement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlacementOptions {
    /// Memory that gets huge pages; `None` is [`Pages::Auto`].
    pub pages: Option<Pages>,
    /// Resident memory that promotion may add; `None` is the policy's own default (1 % of anonymous memory for `auto`, 5 % for `resident` and `hot`, no limit
    /// for `always`).
    pub budget: Option<Share>,
    /// Percent of a region that must be resident before `resident`, or `auto` without a tracker, promotes it, 1 to 100.
    pub min_resident: u8,
    /// Time for which a partly resident region must have stopped growing.
    pub settle: Duration,
    /// Percent of a region that must be active before `auto` or `hot` promotes it, 1 to 100.
    pub min_active: u8,
    /// Time for which a huge page must have been idle before `auto` or `hot` splits it, if it holds mostly zeroes.
    pub cold_after: Duration,
    /// Tracker of accesses; `None` is the best tracker that works.
    pub tracker: Option<TrackerKind>,
    /// Cost that looking and tracking may have in the long run, as a share of one CPU's time and, for tracking, of the target's: 0 to 1.
    pub max_overhead: f64,
    /// Time that collapses may take out of every 100 ms of a process; zero is no bound, and `None` the default one with its exemptions (see
    /// [`crate::Config::stall_bound`]).
    pub max_stall: Option<Duration>,
    /// Bytes that may be collapsed per second; `None` is the policy's own default.
    pub rate: Option<ByteCount>,
    /// Page colors on which memory is placed.
    pub colors: ColorRequest,
    /// Mechanism that places memory on colors.
    pub placement: ColorPlacement,
    /// True if Superhue may make a small swap in memory where none is on: pages of running programs get frames of other colors through swap.
    pub swap: bool,
}

impl Default for PlacementOptions {
    fn default() -> Self {
        Self {
            pages: None,
            budget: None,
            min_resident: MIN_RESIDENT_DEFAULT,
            settle: Duration::from_millis(100),
            min_active: MIN_ACTIVE_DEFAULT,
            cold_after: Duration::from_secs(30),
            tracker: None,
            max_overhead: 0.01,
            max_stall: None,
            rate: None,
            colors: ColorRequest::Off,
            placement: ColorPlacement::Auto,
            swap: false,
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
        write!(f, ", at most {}% of a CPU", in_percent(self.max_overhead))?;
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

/// Returns a share in percent, as people write it: without the error of the last binary digit.
pub(crate) fn in_percent(share: f64) -> f64 {
    let percent = share * 100.0;
    format!("{percent:.9}").parse().unwrap_or(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            max_overhead: 0.07,
            ..PlacementOptions::default()
        };
        assert_eq!(
            options.to_string(),
            "resident, at most 7% of a CPU, stalls without a bound, rate 64.0 MiB, min-resident 90%, settle 1s, tracker idle"
        );
    }
}

//! `--pages resident` and `always`: huge pages by residency, without knowledge of accesses.
//!
//! `always` takes every region that has a page. `resident` is stricter: without access tracking, residency is the best sign that a huge page will
//! be used, because a page is resident once the program has touched it. The rule wants most of a region resident, so that promotion adds little. It
//! also wants the region to be quiet: one that is still being filled will soon be full, and then costs nothing at all.
//!
//! ```text
//!   resident
//!    512 |                    +-----------  full: promoted at once, adds nothing
//!        |                   /
//!    384 |-------/----------/--------------  min_resident
//!        |      /  +-------/- - - - - -   stopped at 450: after `settle`, adds 62 pages
//!        |     /  /
//!        |    /  /      +-----------------   stopped at 100: never
//!        +-------------------------------> time
//! ```

use std::time::Duration;

use crate::candidate::{PromotionReadiness, Rule};
use crate::scheme::pages_of_a_region;
use crate::{FULL, Resident};

/// The rule of `always`.
#[derive(Debug)]
pub(crate) struct AnyPage;

impl Rule for AnyPage {
    type Note = ();

    fn ripeness(&self, _resident: u16, (): &()) -> PromotionReadiness {
        PromotionReadiness::AtOnce
    }
}

/// The rule of `resident`.
#[derive(Debug)]
pub(crate) struct NearlyFull {
    min_resident: u16,
    settle: Duration,
}

impl NearlyFull {
    pub(crate) fn of(resident: &Resident) -> Self {
        Self {
            min_resident: pages_of_a_region(resident.min_resident),
            settle: resident.settle,
        }
    }
}

impl Rule for NearlyFull {
    type Note = ();

    fn ripeness(&self, resident: u16, (): &()) -> PromotionReadiness {
        if resident >= FULL {
            PromotionReadiness::AtOnce
        } else if resident >= self.min_resident {
            PromotionReadiness::AfterQuiet(self.settle)
        } else {
            PromotionReadiness::Never
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_is_rounded_up_and_kept_in_range() {
        for (share, pages) in [
            ("75%", 384),
            ("0%", 1),
            ("0.1%", 1),
            ("0.2%", 2),
            ("1M", 256),
            ("100%", 512),
            ("1000%", 512),
            ("1T", 512),
        ] {
            let rule = NearlyFull::of(&Resident {
                min_resident: share.parse().unwrap(),
                ..Resident::default()
            });
            assert_eq!(rule.min_resident, pages, "{share}");
        }
    }

    #[test]
    fn only_a_full_region_is_ripe_at_once() {
        let rule = NearlyFull {
            min_resident: 384,
            settle: Duration::from_secs(1),
        };
        assert_eq!(rule.ripeness(383, &()), PromotionReadiness::Never);
        let quiet = PromotionReadiness::AfterQuiet(Duration::from_secs(1));
        assert_eq!(rule.ripeness(384, &()), quiet);
        assert_eq!(rule.ripeness(511, &()), quiet);
        assert_eq!(rule.ripeness(512, &()), PromotionReadiness::AtOnce);
    }
}

//! The capabilities that the rules need: the daemon keeps no other.
//!
//! | for | capability | because |
//! |---|---|---|
//! | looking | `CAP_SYS_PTRACE`, `CAP_DAC_READ_SEARCH` | other users' `/proc/PID/maps`, `pagemap`, `smaps` |
//! | | `CAP_CHECKPOINT_RESTORE` | `/proc/PID/map_files`: the contents of shared objects |
//! | collapsing | `CAP_SYS_NICE` | `process_madvise(2)` on other processes |
//! | tracking (ptwalk) | `CAP_BPF`, `CAP_PERFMON`, `CAP_DAC_OVERRIDE` | to load and run its program; to write other users' `clear_refs` |
//! | tracking (idle) | `CAP_SYS_ADMIN` | page frame numbers |
//! | colors | `CAP_SYS_ADMIN` | page frame numbers |
//! | users | `CAP_SETUID`, `CAP_SETGID`, `CAP_SETPCAP` | to start processes of the user that can get no other capability |
//! | | `CAP_KILL` | to end them, also at the daemon's death |
//! | | `CAP_SYS_NICE` | the one capability that they keep |
//! | swap in memory | `CAP_SYS_ADMIN` | `swapon(2)`, `swapoff(2)` |

use rustix::thread::CapabilitySet;
use superhue::{Pages, PlacementOptions};
use superhue_heat::{Scope, TrackerKind, choose};
use superhue_model::ColorRequest;
use superhue_procfs::Roots;

use crate::config::Settings;
use crate::users;

/// Returns the capabilities that one rule needs, if `usual` tracks accesses for rules that name no tracker.
pub(crate) fn of_rule(placement: &PlacementOptions, usual: Option<TrackerKind>) -> CapabilitySet {
    let mut needed = CapabilitySet::SYS_PTRACE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::CHECKPOINT_RESTORE;
    if placement.pages != Some(Pages::Kernel) {
        needed |= CapabilitySet::SYS_NICE;
    }
    if placement.colors != ColorRequest::Off {
        needed |= CapabilitySet::SYS_NICE | CapabilitySet::SYS_ADMIN;
    }
    if placement.swap {
        needed |= CapabilitySet::SYS_ADMIN;
    }
    if tracks(placement) {
        needed |= match placement.tracker.or(usual) {
            Some(TrackerKind::Ptwalk) => {
                CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::DAC_OVERRIDE
            }
            Some(TrackerKind::Idle) => CapabilitySet::SYS_ADMIN | CapabilitySet::DAC_OVERRIDE,
            // The files of DAMON are root's.
            Some(TrackerKind::Damon) | None => CapabilitySet::DAC_OVERRIDE,
        };
    }
    needed
}

pub(crate) fn tracks(placement: &PlacementOptions) -> bool {
    matches!(placement.pages, None | Some(Pages::Auto | Pages::Hot))
        || placement.colors != ColorRequest::Off
}

/// Returns the capabilities that all rules need. If no rule has a placement, returns those of a rule without options: a reload may bring the first
/// one, and dropped capabilities do not come back.
#[must_use]
pub fn needed(settings: &Settings, roots: &Roots) -> CapabilitySet {
    let placements: Vec<&PlacementOptions> = (settings.rules.iter())
        .filter_map(|rule| rule.placement.as_ref())
        .collect();
    let usual = PlacementOptions::default();
    let of_users = match settings.users {
        Some(_) => users::NEEDED,
        None => CapabilitySet::empty(),
    };
    let placements = if placements.is_empty() {
        vec![&usual]
    } else {
        placements
    };
    let tracker = (placements.iter().any(|placement| tracks(placement)))
        .then(|| choose(roots, None, Scope::Promotable).ok())
        .flatten()
        .map(|chosen| chosen.tracker.kind());
    let needed = placements
        .iter()
        .map(|placement| of_rule(placement, tracker));
    needed.fold(of_users, |all, one| all | one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::missing;

    #[test]
    fn each_rule_adds_what_it_needs_and_no_more() {
        let look = PlacementOptions {
            pages: Some(Pages::Kernel),
            ..PlacementOptions::default()
        };
        let resident = PlacementOptions {
            pages: Some(Pages::Resident),
            ..PlacementOptions::default()
        };
        let hot = PlacementOptions::default();
        let kind = Some(TrackerKind::Ptwalk);
        let [look, resident, hot] = [look, resident, hot].map(|it| of_rule(&it, kind));
        assert!(!look.contains(CapabilitySet::SYS_NICE));
        assert_eq!(resident, look | CapabilitySet::SYS_NICE);
        let more = CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::DAC_OVERRIDE;
        assert_eq!(hot, resident | more);
        assert!(!hot.contains(CapabilitySet::SYS_ADMIN));
        let mut settings = Settings::default();
        let before = needed(&settings, &Roots::default());
        assert!(!before.intersects(CapabilitySet::SETUID | CapabilitySet::SETGID));
        settings.users = Some(users::UserSettings {
            allow: Vec::new(),
            terms: superhue::act::Terms {
                budget: superhue_model::Share::BasisPoints(500),
                rate: None,
            },
            clients: 1,
            clients_per_user: 1,
        });
        let with_users = needed(&settings, &Roots::default());
        assert_eq!(with_users, before | users::NEEDED);
        let swap = PlacementOptions {
            swap: true,
            ..PlacementOptions::default()
        };
        assert_eq!(of_rule(&swap, kind), hot | CapabilitySet::SYS_ADMIN);
        let idle = PlacementOptions {
            tracker: Some(TrackerKind::Idle),
            ..PlacementOptions::default()
        };
        let idle = of_rule(&idle, kind);
        assert!(idle.contains(CapabilitySet::SYS_ADMIN) && !idle.contains(CapabilitySet::BPF));
        let told = missing(hot, resident).unwrap();
        assert!(
            told.contains("CAP_BPF") && !told.contains("CAP_SYS_NICE"),
            "{told}"
        );
        assert_eq!(missing(look, hot), None);
    }
}

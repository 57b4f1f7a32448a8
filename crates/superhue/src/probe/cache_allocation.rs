//! Checks whether the hardware divides caches between groups of tasks, which page colors then need not do.
//!
//! Nothing is tried: to mount resctrl, or to make a group in it, would change the machine.

use superhue_procfs::hardware::{AllocationState, CacheMasks};

use super::Probe;
use super::finding::{Finding, Trial};
use super::surroundings::ProbeEnvironment;
use crate::cache_allocation::CacheAllocationAdvice;

pub(super) const ALLOCATION: Probe = Probe {
    id: "cache-allocation",
    name: "Cache allocation by the hardware",
    how: "read the CPU's flags, the kernel's file systems, the mounts, and the info of a mounted resctrl",
    used_for: "isolation in the L3 without page colors; superhue does not set it up",
    run: allocation,
};

fn allocation(around: &ProbeEnvironment) -> Trial {
    Ok(conclude(CacheAllocationAdvice::read(&around.roots)))
}

fn conclude(here: CacheAllocationAdvice) -> Finding {
    let l2 = here.offer.masks(2).and_then(CacheMasks::can_divide);
    let finding = match (here.offer.state, here.offer.can_divide_l3()) {
        (AllocationState::Mounted, Some(true)) => Finding::yes(here.found),
        (AllocationState::Mounted, Some(false)) if l2 == Some(true) => Finding::partial(here.found),
        (AllocationState::NotMounted | AllocationState::MountedElsewhere, _) => {
            Finding::partial(here.found)
        }
        (AllocationState::Unknown | AllocationState::Mounted, None) => Finding::unknown(here.found),
        _ => Finding::no(here.found),
    };
    finding.remedy(here.advice)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use superhue_procfs::Roots;
    use superhue_testing::unpack_tree;

    use super::super::Availability;
    use super::*;

    #[test]
    fn the_verdict_is_on_the_l3() {
        let root = tempfile::tempdir().unwrap();
        let verdict = || {
            let roots = Roots::under(root.path());
            conclude(CacheAllocationAdvice::read(&roots)).availability
        };
        assert_eq!(verdict(), Availability::Unknown, "no /proc");
        unpack_tree("machines/resctrl-arm64", root.path());
        assert_eq!(verdict(), Availability::Yes);

        let info = root.path().join("sys/fs/resctrl/info");
        fs::write(info.join("L3/cbm_mask"), "0\n").unwrap();
        assert_eq!(verdict(), Availability::Unknown);
        fs::remove_dir_all(info.join("L3")).unwrap();
        assert_eq!(verdict(), Availability::Partial, "the L2 alone");
        fs::remove_dir_all(info.join("L2")).unwrap();
        assert_eq!(verdict(), Availability::No, "monitoring alone");

        fs::write(root.path().join("proc/self/mountinfo"), "").unwrap();
        assert_eq!(verdict(), Availability::Partial, "not mounted");
        fs::write(root.path().join("proc/filesystems"), "\text4\n").unwrap();
        assert_eq!(verdict(), Availability::No);
    }
}

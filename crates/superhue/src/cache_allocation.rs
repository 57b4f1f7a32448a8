//! Advice on cache allocation by the hardware (resctrl), the better means of isolation where the CPU has it.
//!
//! Superhue does not set resctrl up: it reads what is there, and says when resctrl serves better than page colors and when colors do.
//!
//! | | resctrl | page colors |
//! |---|---|---|
//! | divides | the L3, on some CPUs the L2 | the L2, and the L3 where its index contains that of the L2 |
//! | into | as many parts as there are groups, at most one per bit of the mask | as many parts as there are colors |
//! | memory | stays where it is, on huge pages too | moves; no huge page in a part of the colors |
//! | in a virtual machine | hidden by the hypervisor | by measurement |

use serde::Serialize;
use superhue_procfs::Roots;
use superhue_procfs::hardware::{AllocationFlags, AllocationState, CacheAllocation, CacheMasks};

/// Command that mounts resctrl, for root.
const MOUNT: &str = "mount -t resctrl resctrl /sys/fs/resctrl";
/// Merit of resctrl, as an end of a sentence.
const MERIT: &str = "moves no page, keeps huge pages and takes no memory";

/// Cache allocation here, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CacheAllocationAdvice {
    /// The offer of CPU and kernel.
    #[serde(flatten)]
    pub offer: CacheAllocation,
    /// The offer in words, without a full stop.
    pub found: String,
    /// The next step in words, without a full stop.
    pub advice: String,
}

impl CacheAllocationAdvice {
    /// Reads the offer of this machine.
    #[must_use]
    pub fn read(roots: &Roots) -> Self {
        Self::on(CacheAllocation::read(roots))
    }

    /// Advises on an offer.
    fn on(offer: CacheAllocation) -> Self {
        let (found, advice) = (found(&offer), advice(&offer));
        Self {
            offer,
            found,
            advice,
        }
    }

    /// Returns everything in one line.
    #[must_use]
    pub fn line(&self) -> String {
        format!(
            "Cache allocation (resctrl): {}; {}",
            self.found, self.advice
        )
    }

    /// Returns a line for a user who isolates programs by page colors where resctrl could divide the L3; `None` elsewhere, and where no
    /// group is left.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let is_usable = self.offer.can_divide_l3() == Some(true);
        if !is_usable || self.offer.groups_left == Some(0) {
            return None;
        }
        let first = match self.offer.state {
            AllocationState::Mounted => "",
            AllocationState::MountedElsewhere => ", in the mount namespace of process 1",
            _ => ", once it is mounted",
        };
        Some(format!(
            "hint: resctrl can divide the L3 of this machine{first}: it {MERIT}; `superhue check cache-allocation` says when page colors \
             serve better"
        ))
    }
}

/// Returns the offer in words.
fn found(offer: &CacheAllocation) -> String {
    let place = offer.mount_point.as_deref().unwrap_or("?");
    match (offer.state, offer.flags) {
        (AllocationState::Mounted, _) => format!("mounted at {place}; {}", mounted(offer)),
        (AllocationState::MountedElsewhere, _) => {
            format!("mounted at {place} for process 1, not in this mount namespace")
        }
        (AllocationState::NotMounted, Some(flags)) if flags.can_allocate() => {
            format!("CPU ({}) and kernel have it, not mounted", names(flags))
        }
        (AllocationState::NotMounted, _) => {
            "the kernel has it, not mounted; only a mount shows which caches it divides".to_owned()
        }
        (AllocationState::NotInKernel, Some(flags)) => {
            format!("the CPU has it ({}), the kernel does not", names(flags))
        }
        (AllocationState::NotInKernel, None) => {
            "the kernel does not have it; no flag shows whether the CPU does".to_owned()
        }
        (AllocationState::NotOffered, _) => {
            "not offered by this CPU (no flag cat_l3 or cat_l2)".to_owned()
        }
        (AllocationState::Hidden, _) => {
            "hidden by the hypervisor (flag hypervisor, and no cat_l3 or cat_l2)".to_owned()
        }
        (AllocationState::Unknown, _) => format!("not known: {}", reasons(offer)),
    }
}

/// Returns the flags for masks, with a comma between them.
fn names(flags: AllocationFlags) -> String {
    let known = [
        (flags.cat_l3, "cat_l3"),
        (flags.cdp_l3, "cdp_l3"),
        (flags.cat_l2, "cat_l2"),
        (flags.cdp_l2, "cdp_l2"),
    ];
    let names = known.iter().filter(|(is_set, _)| *is_set);
    names.map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
}

/// Returns the reasons for unknown values.
fn reasons(offer: &CacheAllocation) -> String {
    let reasons = offer.gaps.iter();
    let reasons: Vec<String> = reasons
        .map(|(file, reason)| format!("{file}: {reason}"))
        .collect();
    reasons.join("; ")
}

/// Describes the masks and groups of a mounted resctrl.
fn mounted(offer: &CacheAllocation) -> String {
    let Some(caches) = &offer.caches else {
        return format!("its info is not known: {}", reasons(offer));
    };
    if caches.is_empty() {
        return "it divides no cache".to_owned();
    }
    let mut parts: Vec<String> = caches.iter().map(masks).collect();
    parts.push(format!(
        "{} of {} groups left",
        or_unknown(offer.groups_left),
        or_unknown(offer.groups)
    ));
    if offer.can_divide_l3().is_none() {
        parts.push(format!("not known: {}", reasons(offer)));
    }
    parts.join("; ")
}

/// Describes the masks of a level.
fn masks(cache: &CacheMasks) -> String {
    let apart = if cache.is_code_apart {
        ", code and data apart"
    } else {
        ""
    };
    format!(
        "L{}: {} ways, {} bits, at least {} in a mask{apart}",
        cache.level,
        or_unknown(cache.ways),
        or_unknown(cache.bits.map(u64::from)),
        or_unknown(cache.min_bits)
    )
}

/// Returns a number, or `?`.
fn or_unknown(number: Option<u64>) -> String {
    number.map_or_else(|| "?".to_owned(), |number| number.to_string())
}

/// Returns the next step in words.
fn advice(offer: &CacheAllocation) -> String {
    match offer.state {
        AllocationState::Mounted => of_mounted(offer),
        AllocationState::MountedElsewhere => format!(
            "the kernel mounts it once only: as root, nsenter --target 1 --mount; {}",
            choice(offer)
        ),
        AllocationState::NotMounted => format!("as root: {MOUNT}; {}", choice(offer)),
        AllocationState::NotInKernel if offer.flags.is_some() => {
            "a kernel with CONFIG_X86_CPU_RESCTRL, started without rdt=!l3cat; until then use page colors".to_owned()
        }
        AllocationState::NotInKernel => {
            "use page colors; a CPU with MPAM needs a kernel with CONFIG_ARM64_MPAM".to_owned()
        }
        AllocationState::NotOffered => "use page colors to isolate programs in a cache".to_owned(),
        AllocationState::Hidden => {
            "use page colors, which are measured here; resctrl on the host divides its L3 between guests".to_owned()
        }
        AllocationState::Unknown => {
            "make the files that it names readable in /proc, and look again".to_owned()
        }
    }
}

/// Returns the next step where resctrl is mounted.
fn of_mounted(offer: &CacheAllocation) -> String {
    let l2 = offer.masks(2).and_then(CacheMasks::can_divide);
    match (offer.can_divide_l3(), l2) {
        (Some(true), _) if offer.groups_left == Some(0) => {
            "remove a group (rmdir) to make another; until then use page colors".to_owned()
        }
        (Some(true), _) | (Some(false), Some(true)) => choice(offer),
        (Some(false), _) => "use page colors to isolate programs in a cache".to_owned(),
        (None, _) => "use page colors, unless its info shows masks for the L3".to_owned(),
    }
}

/// Returns when resctrl serves better, and when page colors do.
fn choice(offer: &CacheAllocation) -> String {
    match offer.can_divide_l3() {
        Some(true) => {}
        Some(false) => {
            return format!(
                "use it to isolate groups in the L2: it {MERIT}; use page colors for the L3 and inside virtual machines"
            );
        }
        None => return "then look again; until then use page colors".to_owned(),
    }
    let parts = match parts(offer) {
        Some(parts) => format!("more than {parts} parts"),
        None => "more parts than it has groups".to_owned(),
    };
    // Masks for the L2 leave no need of colors for it.
    let l2 = match offer.masks(2).and_then(CacheMasks::can_divide) {
        Some(true) => "",
        _ => "the L2 of a core, ",
    };
    format!(
        "use it to isolate groups in the L3: it {MERIT}; use page colors for {l2}{parts} and inside virtual machines"
    )
}

/// Returns the most disjoint parts of the L3: one per group, each of the fewest bits.
fn parts(offer: &CacheAllocation) -> Option<u64> {
    let l3 = offer.masks(3)?;
    let by_bits = u64::from(l3.bits?) / l3.min_bits?.max(1);
    Some(by_bits.min(offer.groups?))
}

#[cfg(test)]
mod tests {
    use superhue_testing::unpack_tree;
    use tempfile::TempDir;

    use super::*;

    fn recorded(name: &str) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        unpack_tree(&format!("machines/{name}"), root.path());
        root
    }

    fn advice_on(root: &TempDir) -> CacheAllocationAdvice {
        CacheAllocationAdvice::read(&Roots::under(root.path()))
    }

    /// Returns the advice on a machine without a mount that has these flags, and resctrl if the kernel has it.
    fn unmounted(flags: &str, is_in_kernel: bool) -> CacheAllocationAdvice {
        let root = tempfile::tempdir().unwrap();
        let proc = root.path().join("proc");
        std::fs::create_dir_all(proc.join("self")).unwrap();
        let list = if is_in_kernel {
            "nodev\tresctrl\n"
        } else {
            "\text4\n"
        };
        std::fs::write(proc.join("cpuinfo"), flags).unwrap();
        std::fs::write(proc.join("filesystems"), list).unwrap();
        std::fs::write(proc.join("self/mountinfo"), "").unwrap();
        advice_on(&root)
    }

    #[test]
    fn a_mounted_resctrl_is_described_and_preferred() {
        let advice = advice_on(&recorded("resctrl-intel"));
        assert_eq!(
            advice.found,
            "mounted at /sys/fs/resctrl; L3: 11 ways, 11 bits, at least 1 in a mask; 5 of 8 groups left"
        );
        for part in ["huge pages", "the L2 of a core", "more than 8 parts"] {
            assert!(advice.advice.contains(part), "{part}: {}", advice.advice);
        }
        assert!(
            advice
                .hint()
                .unwrap()
                .contains("resctrl can divide the L3 of this machine: ")
        );
        assert!(!advice.line().contains('\n'), "{}", advice.line());

        let apart = advice_on(&recorded("resctrl-amd-cdp"));
        assert!(
            apart.found.contains("code and data apart; 6 of 8"),
            "{}",
            apart.found
        );
        let arm = advice_on(&recorded("resctrl-arm64"));
        assert!(arm.found.contains("L3: ? ways, 16 bits"), "{}", arm.found);
        assert!(arm.advice.contains("more than 16 parts"), "{}", arm.advice);
        assert!(!arm.advice.contains("the L2 of a core"), "{}", arm.advice);
    }

    #[test]
    fn without_a_group_left_there_is_no_hint() {
        let root = recorded("resctrl-intel");
        let bandwidth = root.path().join("sys/fs/resctrl/info/MB/num_closids");
        std::fs::write(bandwidth, "3\n").unwrap();
        let full = advice_on(&root);
        assert!(full.found.ends_with("0 of 3 groups left"), "{}", full.found);
        assert!(full.advice.starts_with("remove a group"), "{}", full.advice);
        assert_eq!(full.hint(), None);
    }

    #[test]
    fn what_is_not_known_is_not_a_number() {
        let root = recorded("resctrl-intel");
        let info = root.path().join("sys/fs/resctrl/info");
        std::fs::write(info.join("L3/cbm_mask"), "0\n").unwrap();
        let garbled = advice_on(&root);
        for part in ["11 ways, ? bits", "cbm_mask: not understood"] {
            assert!(garbled.found.contains(part), "{}", garbled.found);
        }
        assert!(
            garbled.advice.starts_with("use page colors"),
            "{}",
            garbled.advice
        );
        assert_eq!(garbled.hint(), None);
        std::fs::remove_dir_all(&info).unwrap();
        let gone = advice_on(&root);
        assert!(gone.found.contains("info is not known: "), "{}", gone.found);
        assert_eq!(gone.hint(), None);
    }

    #[test]
    fn each_state_has_its_next_step() {
        let x86 = |flags: &str| format!("flags\t\t: fpu {flags}\n");
        let arm = "Features\t: fp\n".to_owned();
        for (flags, is_in_kernel, found, advice, has_hint) in [
            (x86("cat_l3 cdp_l3"), true, "(cat_l3, cdp_l3)", MOUNT, true),
            (
                x86("cat_l2"),
                true,
                "(cat_l2)",
                "use it to isolate groups in the L2",
                false,
            ),
            (
                arm.clone(),
                true,
                "only a mount shows",
                "then look again",
                false,
            ),
            (
                x86("cat_l3"),
                false,
                "the kernel does not",
                "CONFIG_X86_CPU_RESCTRL",
                false,
            ),
            (arm, false, "no flag shows", "CONFIG_ARM64_MPAM", false),
            (
                x86(""),
                false,
                "not offered by this CPU",
                "page colors",
                false,
            ),
            (
                x86("hypervisor"),
                false,
                "hidden by the hypervisor",
                "on the host",
                false,
            ),
        ] {
            let said = unmounted(&flags, is_in_kernel);
            assert!(said.found.contains(found), "{flags}: {}", said.found);
            assert!(said.advice.contains(advice), "{flags}: {}", said.advice);
            assert_eq!(said.hint().is_some(), has_hint, "{flags}");
            assert!(!said.line().contains('\n'), "{}", said.line());
        }
        let mountable = unmounted("flags : cat_l3\n", true).hint().unwrap();
        assert!(mountable.contains("once it is mounted"), "{mountable}");
        let unknown = advice_on(&tempfile::tempdir().unwrap());
        assert!(
            unknown.found.contains("cpuinfo: cannot be read"),
            "{}",
            unknown.found
        );
    }

    #[test]
    fn json_has_facts_and_words_beside_each_other() {
        let json = serde_json::to_value(advice_on(&recorded("resctrl-intel"))).unwrap();
        assert_eq!(json["state"], "mounted");
        assert_eq!(json["caches"][0]["bits"], 11);
        assert_eq!(json["groups_left"], 5);
        assert!(
            json["advice"].is_string() && json["flags"]["cat_l3"] == true,
            "{json}"
        );
    }
}

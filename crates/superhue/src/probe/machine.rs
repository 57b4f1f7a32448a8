//! The hardware's description of itself, and whether it is real hardware.
//!
//! This module tries nothing: [`hardware`](superhue_procfs::hardware) judges which parts of such
//! descriptions can be trusted, and only measurement could overrule it.

use superhue_model::ByteCount;
use superhue_procfs::hardware::{AssessedCache, Machine, Usability, Virtualization};

use super::Probe;
use super::finding::{Finding, Trial};
use super::surroundings::ProbeEnvironment;

pub(super) const VM: Probe = Probe {
    id: "vm",
    name: "Hardware without a hypervisor between",
    how: "asked the processor (CPUID) and looked for the traces of hypervisors and containers",
    used_for: "knowing whether frame numbers and caches are the real ones",
    run: |around| Ok(conclude_on_machine(&around.virtualization())),
};

pub(super) const CACHES: Probe = Probe {
    id: "caches",
    name: "Cache geometry",
    how: "read /sys/devices/system/cpu, and checked whether it agrees with itself and the machine",
    used_for: "page colors by calculation; what is doubtful must be measured",
    run: caches,
};

fn conclude_on_machine(virtualization: &Virtualization) -> Finding {
    let container = virtualization
        .container
        .as_ref()
        .map_or_else(String::new, |container| {
            format!(", in a container ({container})")
        });
    match virtualization.machine {
        Machine::Bare => Finding::yes(format!("none{container}")),
        Machine::Virtual => {
            let hypervisor = virtualization
                .hypervisor
                .as_deref()
                .unwrap_or("kind not known");
            Finding::partial(format!(
                "a virtual machine ({hypervisor}){container}: page frames are the hypervisor's to \
                 move, caches its to describe"
            ))
            .remedy("nothing for huge pages; page colors must be measured, not calculated")
        }
        Machine::Unknown => Finding::unknown(format!("nothing tells{container}")),
    }
}

fn caches(around: &ProbeEnvironment) -> Trial {
    let caches = around
        .hardware()
        .caches
        .map_err(|error| Finding::unknown(error.to_string()))?;
    Ok(conclude_on_caches(&caches))
}

fn conclude_on_caches(caches: &[AssessedCache]) -> Finding {
    let data: Vec<_> = caches
        .iter()
        .filter(|cache| cache.cache.holds_data())
        .collect();
    let mut found: Vec<String> = data.iter().map(|cache| describe(cache)).collect();
    // Every core has caches of its own, which are usually alike.
    found.dedup();
    let found = found.join("; ");
    let all = |wanted: fn(&Usability) -> bool| data.iter().all(|cache| wanted(&cache.verdict));
    if data.is_empty() {
        return Finding::unknown("no cache for data is described");
    }
    if all(|usability| matches!(usability, Usability::Usable)) {
        return Finding::yes(found);
    }
    let finding = if all(|usability| matches!(usability, Usability::Unusable(_))) {
        Finding::no(found)
    } else {
        Finding::partial(found)
    };
    finding.remedy("measure the colors instead of calculating them")
}

fn describe(cache: &AssessedCache) -> String {
    let size = cache
        .cache
        .size
        .as_ref()
        .map_or_else(String::new, |size: &ByteCount| format!(" {size}"));
    format!("{}{size}: {}", cache.cache.name(), cache.verdict.word())
}

#[cfg(test)]
mod tests {
    use superhue_model::BASE_PAGE_SIZE;
    use superhue_procfs::Roots;
    use superhue_procfs::hardware::{Cache, CacheKind, Circumstances, Cpuid, assess};

    use super::super::Availability as Capable;
    use super::*;

    fn machine(machine: Machine) -> Virtualization {
        let nowhere = Roots::under("/nonexistent".as_ref());
        Virtualization {
            machine,
            ..Virtualization::read(&nowhere, &Cpuid::none())
        }
    }

    fn l2(ways: Option<u64>, on: Machine) -> AssessedCache {
        let cache = Cache {
            level: Some(2),
            kind: Some(CacheKind::Unified),
            size: Some(ByteCount(2 << 20)),
            ways,
            sets: ways.map(|ways| (2 << 20) / 64 / ways),
            line: Some(ByteCount(64)),
            lines_per_tag: Some(1),
            shared_by: None,
            gaps: superhue_procfs::system::Gaps::default(),
        };
        let virtualization = &machine(on);
        let page = ByteCount(BASE_PAGE_SIZE);
        assess(
            cache,
            &Circumstances {
                virtualization,
                page,
                hashed: None,
            },
        )
    }

    #[test]
    fn caches_are_as_good_as_the_hardware_wing_says() {
        let finding = conclude_on_caches(&[l2(Some(16), Machine::Bare)]);
        assert_eq!(finding, Finding::yes("L2 2.0 MiB: usable"));
        let two = [l2(Some(16), Machine::Bare), l2(Some(16), Machine::Bare)];
        assert_eq!(conclude_on_caches(&two), finding, "alike, so named once");
        let guest = conclude_on_caches(&[l2(Some(16), Machine::Virtual)]);
        assert_eq!(
            (guest.availability, guest.found.as_str()),
            (Capable::Partial, "L2 2.0 MiB: doubtful")
        );
        assert_eq!(
            conclude_on_caches(&[l2(None, Machine::Bare)]).availability,
            Capable::No
        );
        assert_eq!(conclude_on_caches(&[]).availability, Capable::Unknown);
    }

    #[test]
    fn a_guest_is_not_the_real_thing_and_the_unknown_not_bare_metal() {
        assert_eq!(
            conclude_on_machine(&machine(Machine::Bare)).availability,
            Capable::Yes
        );
        assert_eq!(
            conclude_on_machine(&machine(Machine::Virtual)).availability,
            Capable::Partial
        );
        assert_eq!(
            conclude_on_machine(&machine(Machine::Unknown)).availability,
            Capable::Unknown
        );
    }
}

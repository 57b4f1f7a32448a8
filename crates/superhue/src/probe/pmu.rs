//! Hardware counters.

use std::hint::black_box;

use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use superhue_model::HUGE_PAGE_SIZE;
use superhue_sys::perf::{Counter, Event};
use superhue_sys::scratch::Scratch;
use superhue_sys::seccomp::RiskyCall;

use super::Probe;
use super::finding::{Finding, Trial, symbol};
use super::surroundings::ProbeEnvironment;

pub(super) const PMU: Probe = Probe {
    id: "pmu",
    name: "Hardware counters",
    how: "counted own cycles and data-TLB load misses (perf_event_open) while reading 2 MiB of \
          base pages",
    used_for: "TLB misses counted in place of the model (advise)",
    run: pmu,
};

/// Result of one counter: true if it counted at all, or the error that kept it from starting.
type CounterResult = Result<bool, Errno>;

fn pmu(around: &ProbeEnvironment) -> Trial {
    around.survive(RiskyCall::PerfEventOpen)?;
    let mut scratch =
        Scratch::in_base_pages(HUGE_PAGE_SIZE as usize).map_err(Finding::no_scratch)?;
    scratch.fill(1);
    let count = |event| -> CounterResult {
        let counter = Counter::start(event)?;
        black_box(scratch.is_intact(1));
        Ok(counter.read()?.count > 0)
    };
    Ok(conclude(
        around,
        count(Event::Cycles),
        count(Event::DtlbLoadMisses),
    ))
}

fn conclude(around: &ProbeEnvironment, cycles: CounterResult, misses: CounterResult) -> Finding {
    let found = format!(
        "cycles: {}; data-TLB load misses: {}",
        words(cycles),
        words(misses)
    );
    match (cycles, misses) {
        (Ok(true), Ok(true)) => Finding::yes(found),
        (Ok(true), _) | (_, Ok(true)) => Finding::partial(found),
        (Err(Errno::ACCESS | Errno::PERM), _) => Finding::no(found).remedy(format!(
            "as root: sysctl kernel.perf_event_paranoid=2 (or lower); or {}",
            around.permit(CapabilitySet::PERFMON, RiskyCall::PerfEventOpen)
        )),
        (Err(Errno::NOENT | Errno::OPNOTSUPP | Errno::NODEV), _) => {
            Finding::no(format!("{found}: this (virtual) CPU shows no counters"))
                .remedy("in a virtual machine: ask for a virtual PMU; else bare metal")
        }
        (Err(Errno::NOSYS), _) => Finding::no(found).remedy("a kernel with CONFIG_PERF_EVENTS=y"),
        _ => Finding::no(found),
    }
}

fn words(counted: CounterResult) -> String {
    match counted {
        Ok(true) => "counted".to_owned(),
        Ok(false) => "stayed at 0".to_owned(),
        Err(errno) => symbol(errno),
    }
}

#[cfg(test)]
mod tests {
    use superhue_procfs::Roots;

    use super::super::{Availability, ProbeOptions};
    use super::*;

    #[test]
    fn counters_that_open_but_stay_at_zero_are_no_counters() {
        let around = ProbeEnvironment::of(&Roots::default(), ProbeOptions::default());
        let availability = |cycles, misses| conclude(&around, cycles, misses).availability;
        assert_eq!(availability(Ok(true), Ok(true)), Availability::Yes);
        assert_eq!(
            availability(Ok(true), Err(Errno::NOENT)),
            Availability::Partial
        );
        assert_eq!(availability(Ok(false), Ok(false)), Availability::No);
        assert_eq!(
            availability(Err(Errno::NOENT), Err(Errno::NOENT)),
            Availability::No
        );
        let forbidden = conclude(&around, Err(Errno::ACCESS), Err(Errno::ACCESS));
        assert_eq!(forbidden.availability, Availability::No);
        assert!(forbidden.remedy.unwrap().contains("perf_event_paranoid"));
    }
}

//! `MADV_COLLAPSE`, on the caller's own memory and on another process's.

use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use superhue_model::HUGE_PAGE_SIZE;
use superhue_sys::collapse::{own_collapse, process_collapse};
use superhue_sys::scratch::Scratch;
use superhue_sys::scratch_child::{Backing, ScratchChild};
use superhue_sys::seccomp::RiskyCall;
use superhue_sys::thp::{ThpSwitch, thp_switch};

use super::Probe;
use super::finding::{Finding, Trial, symbol};
use super::look::{ProcessFiles, ReadFailure};
use super::surroundings::ProbeEnvironment;

pub(super) const OWN: Probe = Probe {
    id: "collapse",
    name: "Collapse own memory",
    how: "filled 2 MiB of base pages, madvise(MADV_COLLAPSE), looked at page table and bytes",
    used_for: "the library (hps.h), which asks for a program that links it",
    run: own,
};

pub(super) const REMOTE: Probe = Probe {
    id: "remote-collapse",
    name: "Collapse another process's memory",
    how: "had a scratch child fill 2 MiB, process_madvise(MADV_COLLAPSE), looked at its page \
          table and bytes",
    used_for: "making huge pages of programs' memory",
    run: remote,
};

const SEED: u64 = 0xc011_a95e;

/// Attempts at a collapse: a page that is busy for a moment (`EAGAIN`, `EBUSY`) is no evidence about the machine.
const ATTEMPTS: u32 = 5;

fn own(around: &ProbeEnvironment) -> Trial {
    let mut scratch =
        Scratch::in_base_pages(HUGE_PAGE_SIZE as usize).map_err(Finding::no_scratch)?;
    scratch.fill(SEED);
    let region = scratch.region();
    let look = ProcessFiles::own(&around.roots);
    in_base_pages(look.is_huge(region))?;
    Ok(match attempt(|| own_collapse(region)) {
        Ok(()) => conclude(look.is_huge(region), scratch.is_intact(SEED), "own memory"),
        Err(Errno::INVAL) if thp_switch() == Ok(ThpSwitch::Never) => {
            Finding::no("EINVAL: this process is barred from huge pages (PR_SET_THP_DISABLE)")
                .remedy("start it from a parent without that setting")
        }
        Err(errno) => refused(errno),
    })
}

fn remote(around: &ProbeEnvironment) -> Trial {
    around.survive(RiskyCall::ProcessMadvise)?;
    let child = ScratchChild::start().map_err(Finding::no_child)?;
    // The child inherits the caller's own ban on huge pages, which this trial is not about.
    let _ = child.set_thp_switch(ThpSwitch::System);
    let region = child.map(Backing::BasePages).map_err(Finding::no_child)?;
    child.fill(SEED).map_err(Finding::no_child)?;
    let look = ProcessFiles::at(&around.roots, child.pid());
    in_base_pages(look.is_huge(region))?;
    Ok(match attempt(|| process_collapse(&child, region)) {
        Ok(()) => {
            let intact = child.is_intact(SEED).map_err(Finding::no_child)?;
            let mut finding = conclude(look.is_huge(region), intact, "a child's memory");
            if around.grant(CapabilitySet::SYS_PTRACE).is_some() {
                finding.found += "; other users' processes need CAP_SYS_PTRACE as well";
            }
            finding
        }
        Err(errno @ (Errno::PERM | Errno::ACCESS)) => Finding::no(symbol(errno))
            .remedy(around.permit(CapabilitySet::SYS_NICE, RiskyCall::ProcessMadvise)),
        Err(errno) => refused(errno),
    })
}

fn attempt(mut collapse: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    let mut result = collapse();
    for _ in 1..ATTEMPTS {
        match result {
            Err(Errno::AGAIN | Errno::BUSY | Errno::INTR) => result = collapse(),
            _ => break,
        }
    }
    result
}

/// Returns `Ok` if the trial starts from base pages.
fn in_base_pages(huge: Result<bool, ReadFailure>) -> Result<(), Finding> {
    match huge {
        Ok(false) => Ok(()),
        Ok(true) => Err(Finding::unknown(
            "could not be tried: khugepaged got there first",
        )),
        Err(blind) => Err(Finding::unseen(blind)),
    }
}

fn conclude(huge: Result<bool, ReadFailure>, intact: bool, whose: &str) -> Finding {
    match (huge, intact) {
        (_, false) => Finding::no("the collapse lost bytes: do not use this kernel"),
        (Ok(true), true) => Finding::yes(format!("{whose} became a huge page, bytes intact")),
        (Ok(false), true) => Finding::no("reported done, but the page table shows base pages"),
        (Err(blind), true) => Finding::unseen(blind),
    }
}

fn refused(errno: Errno) -> Finding {
    let name = symbol(errno);
    match errno {
        Errno::NOMEM => Finding::partial(format!(
            "{name}: works, but no free huge page just now (fragmented, or a cgroup's limit)"
        ))
        .remedy("free memory, or compact it: echo 1 > /proc/sys/vm/compact_memory"),
        Errno::AGAIN | Errno::BUSY => Finding::partial(format!(
            "{name} {ATTEMPTS} times: pages of the trial stay busy"
        )),
        Errno::INVAL => Finding::no(format!("{name}: this kernel cannot"))
            .remedy("Linux 6.1 or later with CONFIG_TRANSPARENT_HUGEPAGE=y"),
        Errno::NOSYS => Finding::no(format!(
            "{name}: no such system call, or hidden by a filter"
        ))
        .remedy("Linux 6.1 or later; in a container, a seccomp profile that allows it"),
        _ => Finding::no(name),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Availability;
    use super::*;

    #[test]
    fn a_collapse_counts_only_when_seen_and_harmless() {
        let availability = |huge, intact| conclude(huge, intact, "memory").availability;
        assert_eq!(availability(Ok(true), true), Availability::Yes);
        assert_eq!(availability(Ok(false), true), Availability::No);
        assert_eq!(availability(Ok(true), false), Availability::No);
        assert_eq!(
            availability(Err("no pagemap".into()), true),
            Availability::Unknown
        );
        assert!(in_base_pages(Ok(false)).is_ok());
        assert_eq!(
            in_base_pages(Ok(true)).unwrap_err().availability,
            Availability::Unknown
        );
    }

    #[test]
    fn what_may_pass_is_no_refusal() {
        assert_eq!(refused(Errno::NOMEM).availability, Availability::Partial);
        assert_eq!(refused(Errno::AGAIN).availability, Availability::Partial);
        assert_eq!(refused(Errno::INVAL).availability, Availability::No);
        let mut answers = [Err(Errno::AGAIN), Err(Errno::BUSY), Ok(())].into_iter();
        assert_eq!(attempt(|| answers.next().unwrap()), Ok(()));
        let mut asked = 0;
        let refuse = || {
            asked += 1;
            Err(Errno::INVAL)
        };
        assert_eq!(attempt(refuse), Err(Errno::INVAL));
        assert_eq!(asked, 1, "a refusal is not asked for twice");
    }
}

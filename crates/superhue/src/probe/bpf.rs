//! Running a BPF program that reads kernel memory.

use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use superhue_heat::{PtwalkTracker, Scope, TrackError};
use superhue_sys::bpf::{Program, Trial};
use superhue_sys::seccomp::RiskyCall;

use super::Probe;
use super::finding::{self, Finding, symbol};
use super::surroundings::ProbeEnvironment;

pub(super) const BPF: Probe = Probe {
    id: "bpf",
    name: "BPF page-table walk",
    how: "loaded and ran BPF syscall programs: one that returns, one that reads kernel memory and \
          forgets it, and, with BTF, the walk itself, through this process's own page tables",
    used_for: "heat tracker `ptwalk`: accessed bits of every page, exactly",
    run: bpf,
};

fn bpf(around: &ProbeEnvironment) -> finding::Trial {
    around.survive(RiskyCall::Bpf)?;
    let has_btf = around.roots.sys.join("kernel/btf/vmlinux").exists();
    Ok(conclude(
        around,
        run(Trial::ReturnZero),
        || run(Trial::ReadKernel),
        has_btf,
        || walk(around),
    ))
}

/// Tries the tracker itself: it proves its reading of page tables on its own memory. The
/// kernel may run programs and yet not let them find a process (before Linux 6.10).
fn walk(around: &ProbeEnvironment) -> Result<(), String> {
    match PtwalkTracker::new(&around.roots, Scope::Anonymous) {
        Ok(_) => Ok(()),
        Err(TrackError::Unusable { why, .. }) => Err(why),
        Err(other) => Err(other.to_string()),
    }
}

/// Returns the program's result, or the step that failed.
fn run(trial: Trial) -> Result<i32, (&'static str, Errno)> {
    let program = Program::load(trial).map_err(|errno| ("loading", errno))?;
    program.run().map_err(|errno| ("running", errno))
}

fn conclude(
    around: &ProbeEnvironment,
    returns: Result<i32, (&'static str, Errno)>,
    reads: impl FnOnce() -> Result<i32, (&'static str, Errno)>,
    has_btf: bool,
    walks: impl FnOnce() -> Result<(), String>,
) -> Finding {
    let needed = CapabilitySet::BPF | CapabilitySet::PERFMON;
    match returns {
        Ok(0) => {}
        Ok(other) => return Finding::no(format!("the program returned {other} instead of 0")),
        Err((step, errno @ (Errno::PERM | Errno::ACCESS))) => {
            return Finding::no(format!("{step}: {}", symbol(errno)))
                .remedy(around.permit(needed, RiskyCall::Bpf));
        }
        Err((step, errno)) => {
            return Finding::no(format!("{step}: {}", symbol(errno)))
                .remedy("Linux 5.14 or later with CONFIG_BPF_SYSCALL=y");
        }
    }
    match reads() {
        Ok(0) => {}
        Ok(code) => {
            let errno = Errno::from_raw_os_error(code.wrapping_neg());
            return Finding::partial(format!(
                "programs run, but reading kernel memory failed: {}",
                symbol(errno)
            ));
        }
        Err((step, errno)) => {
            let remedy = if errno == Errno::PERM {
                around.permit(needed, RiskyCall::Bpf)
            } else {
                "a kernel not locked down for confidentiality (/sys/kernel/security/lockdown)"
                    .to_owned()
            };
            return Finding::partial(format!(
                "programs run, but none that reads kernel memory: {step}: {}",
                symbol(errno)
            ))
            .remedy(remedy);
        }
    }
    if !has_btf {
        return Finding::partial("both ran and kernel memory was read, but BTF is missing")
            .remedy("a kernel with CONFIG_DEBUG_INFO_BTF=y, and /sys visible");
    }
    match walks() {
        Ok(()) => Finding::yes("all ran, and the walk led to memory of this process"),
        // Each reason contains its remedy.
        Err(why) => Finding::partial(format!("programs that read kernel memory run, but: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use superhue_procfs::Roots;

    use super::super::{Availability, ProbeOptions};
    use super::*;

    #[test]
    fn every_step_has_its_verdict() {
        let around = ProbeEnvironment::of(&Roots::default(), ProbeOptions::default());
        let walking = |returns, reads, btf, walks: Result<(), String>| {
            conclude(&around, returns, || reads, btf, || walks).availability
        };
        let availability = |returns, reads, btf| walking(returns, reads, btf, Ok(()));
        assert_eq!(availability(Ok(0), Ok(0), true), Availability::Yes);
        assert_eq!(availability(Ok(0), Ok(0), false), Availability::Partial);
        assert_eq!(availability(Ok(0), Ok(-14), true), Availability::Partial);
        assert_eq!(
            availability(Ok(0), Err(("loading", Errno::INVAL)), true),
            Availability::Partial
        );
        assert_eq!(availability(Ok(1), Ok(0), true), Availability::No);
        assert_eq!(
            availability(Err(("loading", Errno::PERM)), Ok(0), true),
            Availability::No
        );
        assert_eq!(
            walking(Ok(0), Ok(0), true, Err("old".to_owned())),
            Availability::Partial
        );
        let untried = || panic!("must not be tried");
        let failed = conclude(&around, Ok(0), || Ok(-14), true, untried);
        assert!(failed.found.ends_with("EFAULT"), "{failed:?}");
    }

    #[test]
    fn reading_is_not_tried_where_nothing_runs() {
        let around = ProbeEnvironment::of(&Roots::default(), ProbeOptions::default());
        let refused = Err(("loading", Errno::NOSYS));
        let finding = conclude(
            &around,
            refused,
            || panic!("must not be tried"),
            true,
            || Ok(()),
        );
        assert_eq!(finding.availability, Availability::No);
        assert!(finding.remedy.is_some());
    }
}

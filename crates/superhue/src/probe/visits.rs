//! Whether programs can be visited: stopped by ptrace, and worked in while they stand still.
//!
//! Superhue's visiting process is no ancestor of the programs it visits, which is what `kernel.yama.ptrace_scope` asks for. So
//! one scratch child stops another, instead of us stopping our own child, which would be allowed more.

use std::fs;

use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use superhue_sys::scratch_child::ScratchChild;

use super::Probe;
use super::finding::{Finding, Trial, symbol};
use super::surroundings::Surroundings;

pub(super) const VISITS: Probe = Probe {
    id: "visits",
    name: "Visit programs (ptrace)",
    how: "had one scratch child stop another by ptrace, read its memory and let it go; whether other users' programs \
          may be is told by CAP_SYS_PTRACE, and not tried",
    used_for: "huge pages without CAP_SYS_NICE; placing memory by page color (run, attach, compare)",
    run: visits,
};

fn visits(around: &Surroundings) -> Trial {
    let visitor = ScratchChild::start().map_err(Finding::no_child)?;
    let visited = ScratchChild::start().map_err(Finding::no_child)?;
    let stopped = visitor.stop(&visited);
    let scope = fs::read_to_string(around.roots.proc.join("sys/kernel/yama/ptrace_scope")).ok();
    let scope = scope.and_then(|scope| scope.trim().parse().ok());
    Ok(conclude(around, stopped, scope))
}

/// In a container these are two obstacles, which one option each removes.
const IN_A_CONTAINER: &str =
    "in a container: --cap-add SYS_PTRACE --security-opt seccomp=unconfined";

fn conclude(around: &Surroundings, stopped: Result<(), Errno>, scope: Option<u8>) -> Finding {
    let others = around.grant(CapabilitySet::SYS_PTRACE);
    match stopped {
        Ok(()) if around.filtered == Some(true) => Finding::no(
            "this process runs under a seccomp filter, and so will what it starts: such programs are left alone, as the \
             filter might end them for a call that is not their own",
        )
        .remedy(format!(
            "start superhue without the filter; {IN_A_CONTAINER}"
        )),
        Ok(()) => match others {
            None => Finding::yes("own programs, and those of other users"),
            Some(grant) => Finding::partial("own programs; not those of other users")
                .remedy(format!("for other users' programs {grant}")),
        },
        Err(errno @ (Errno::PERM | Errno::ACCESS)) => {
            let name = symbol(errno);
            match scope {
                Some(scope @ 1..) => {
                    let found = format!("{name}: kernel.yama.ptrace_scope is {scope}");
                    Finding::no(found).remedy(yama(scope))
                }
                _ => Finding::no(format!(
                    "{name}: a seccomp filter, or a security module"
                ))
                .remedy(format!(
                    "{IN_A_CONTAINER}; systemd: SystemCallFilter=ptrace; else look at SELinux, AppArmor"
                )),
            }
        }
        Err(Errno::NOSYS) if cfg!(not(target_arch = "x86_64")) => {
            Finding::no("visits are written for x86-64 only")
        }
        Err(Errno::NOSYS) => Finding::no("ENOSYS: a seccomp filter hides the call").remedy(IN_A_CONTAINER),
        // It answered when it was started.
        Err(Errno::SRCH) => Finding::no("a seccomp filter kills the caller of ptrace(2) (SIGSYS)")
            .remedy(format!(
                "a seccomp profile that allows ptrace, process_vm_readv and process_vm_writev (systemd: \
                 SystemCallFilter=); {IN_A_CONTAINER}"
            )),
        Err(errno) => Finding::unknown(format!(
            "could not be tried to the end: {}",
            symbol(errno)
        )),
    }
}

fn yama(scope: u8) -> String {
    let root = "run superhue as root, or with CAP_SYS_PTRACE";
    match scope {
        1 => format!(
            "{root}; or as root: sysctl kernel.yama.ptrace_scope=0 (then every process of a user may look into \
             all others of that user)"
        ),
        2 => root.to_owned(),
        _ => "a reboot with a smaller kernel.yama.ptrace_scope: nobody may trace, and that cannot be taken back"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use superhue_procfs::Roots;

    use super::super::Availability;
    use super::*;

    fn around(held: CapabilitySet, filtered: bool) -> Surroundings {
        let mut around = Surroundings::of(&Roots::default(), Default::default());
        around.held = Some(held);
        around.filtered = Some(filtered);
        around.user_namespace = Some(false);
        around
    }

    #[test]
    fn whose_programs_can_be_visited_is_told_apart() {
        let root = around(CapabilitySet::SYS_PTRACE, false);
        let user = around(CapabilitySet::empty(), false);
        assert_eq!(
            conclude(&root, Ok(()), Some(1)).availability,
            Availability::Yes
        );
        let own = conclude(&user, Ok(()), None);
        assert_eq!(own.availability, Availability::Partial);
        assert!(own.remedy.unwrap().contains("programs CAP_SYS_PTRACE"));
        let filtered = conclude(&around(CapabilitySet::SYS_PTRACE, true), Ok(()), None);
        assert_eq!(filtered.availability, Availability::No);
        assert!(filtered.remedy.unwrap().contains("--cap-add SYS_PTRACE"));
    }

    #[test]
    fn what_forbids_it_is_named() {
        let user = around(CapabilitySet::empty(), false);
        let refused = |scope| conclude(&user, Err(Errno::PERM), scope);
        for scope in 1..=3 {
            let finding = refused(Some(scope));
            assert_eq!(finding.availability, Availability::No);
            let named = format!("kernel.yama.ptrace_scope is {scope}");
            assert!(finding.found.contains(&named), "{}", finding.found);
        }
        assert!(refused(Some(1)).remedy.unwrap().contains("ptrace_scope=0"));
        assert!(refused(Some(3)).remedy.unwrap().contains("reboot"));
        for scope in [None, Some(0)] {
            let remedy = refused(scope).remedy.unwrap();
            assert!(remedy.contains("--cap-add SYS_PTRACE"), "{remedy}");
        }
        let killed = conclude(&user, Err(Errno::SRCH), Some(0));
        assert!(killed.found.contains("kills the caller"));
        assert_eq!(
            conclude(&user, Err(Errno::TIMEDOUT), None).availability,
            Availability::Unknown
        );
    }
}

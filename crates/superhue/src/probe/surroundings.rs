//! Facts about the caller that every trial may need: roots, capabilities, seccomp filters.

use std::fs;

use rustix::thread::CapabilitySet;
use superhue_procfs::Roots;
use superhue_procfs::hardware::{Cpuid, Hardware, Virtualization};
use superhue_sys::seccomp::RiskyCall;

use super::ProbeOptions;
use super::finding::Finding;

/// The caller and its environment.
#[derive(Debug)]
pub(super) struct ProbeEnvironment {
    pub(super) roots: Roots,
    pub(super) options: ProbeOptions,
    /// Effective capabilities; `None` when the kernel does not show them.
    pub(super) held: Option<CapabilitySet>,
    /// True if a seccomp filter is in force; `None` when not known.
    pub(super) filtered: Option<bool>,
    /// True if the caller's capabilities count in its own user namespace only (rootless
    /// containers); `None` when not known.
    pub(super) user_namespace: Option<bool>,
}

impl ProbeEnvironment {
    pub(super) fn of(roots: &Roots, options: ProbeOptions) -> Self {
        let own = |name| fs::read_to_string(roots.proc.join("self").join(name)).ok();
        Self {
            held: rustix::thread::capabilities(None)
                .ok()
                .map(|sets| sets.effective),
            filtered: own("status").as_deref().and_then(is_filtered),
            user_namespace: own("uid_map").map(|map| !maps_everybody(&map)),
            roots: roots.clone(),
            options,
        }
    }

    /// Reads the hardware's description of itself.
    pub(super) fn hardware(&self) -> Hardware {
        Hardware::read(&self.roots, &self.cpuid())
    }

    /// Finds out whether there is a hypervisor.
    pub(super) fn virtualization(&self) -> Virtualization {
        Virtualization::read(&self.roots, &self.cpuid())
    }

    /// Returns the processor's own answers, unless `roots` are of another machine.
    fn cpuid(&self) -> Cpuid {
        if self.roots == Roots::default() {
            Cpuid::native()
        } else {
            Cpuid::none()
        }
    }

    /// Returns `Ok` unless a seccomp filter kills the caller of this system call, so that this
    /// process must not try it.
    pub(super) fn survive(&self, call: RiskyCall) -> Result<(), Finding> {
        if self.filtered == Some(false) {
            return Ok(());
        }
        match call.is_survived() {
            Ok(true) => Ok(()),
            Ok(false) => {
                let name = call.name();
                let found = format!("a seccomp filter kills the caller of {name}(2) (SIGSYS)");
                Err(Finding::no(found).remedy(allow(name)))
            }
            Err(errno) => Err(Finding::no_child(errno)),
        }
    }

    /// Returns the remedy for an `EPERM` of a call that needs `capabilities` (or none).
    pub(super) fn permit(&self, capabilities: CapabilitySet, call: RiskyCall) -> String {
        let filter = (self.filtered != Some(false)).then(|| allow(call.name()));
        match (self.grant(capabilities), filter) {
            (Some(grant), Some(filter)) => format!("{grant}; in a container also: {filter}"),
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => {
                "all that is needed is held, yet overruled: look for a security module \
                             (SELinux, AppArmor) or kernel lockdown"
                    .to_owned()
            }
        }
    }

    /// Returns the way to get the missing ones of `capabilities`; `None` when all are held and count.
    pub(super) fn grant(&self, capabilities: CapabilitySet) -> Option<String> {
        let missing = capabilities - self.held.unwrap_or(CapabilitySet::empty());
        if !missing.is_empty() {
            return Some(format!("{}: run as root or grant it", names(missing)));
        }
        (self.user_namespace == Some(true) && !capabilities.is_empty()).then(|| {
            format!(
                "{} outside this user namespace: a container started by root, or none",
                names(capabilities)
            )
        })
    }
}

/// Returns the way to let a system call pass a filter.
fn allow(name: &str) -> String {
    format!(
        "a seccomp profile that allows {name} (systemd: SystemCallFilter=, containers: \
         --security-opt seccomp=)"
    )
}

/// The capabilities that Superhue uses, by name.
pub(super) const RELEVANT: [(CapabilitySet, &str); 5] = [
    (CapabilitySet::SYS_NICE, "CAP_SYS_NICE"),
    (CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE"),
    (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"),
    (CapabilitySet::BPF, "CAP_BPF"),
    (CapabilitySet::PERFMON, "CAP_PERFMON"),
];

/// Returns the names of the relevant ones among `capabilities`, joined for a sentence.
pub(super) fn names(capabilities: CapabilitySet) -> String {
    let names: Vec<&str> = RELEVANT
        .into_iter()
        .filter(|(one, _)| capabilities.contains(*one))
        .map(|(_, name)| name)
        .collect();
    names.join(" + ")
}

/// Returns true if the `Seccomp` line of `/proc/PID/status` (`proc_pid_status(5)`) shows a mode other than 0; `None` without that line.
fn is_filtered(status: &str) -> Option<bool> {
    let mode = status
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp:"))?;
    Some(mode.trim() != "0")
}

/// Returns true if a user namespace maps every user to itself, as the initial one does
/// (`user_namespaces(7)`).
fn maps_everybody(uid_map: &str) -> bool {
    uid_map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(held: CapabilitySet, filtered: bool, user_namespace: bool) -> ProbeEnvironment {
        ProbeEnvironment {
            roots: Roots::default(),
            options: ProbeOptions::default(),
            held: Some(held),
            filtered: Some(filtered),
            user_namespace: Some(user_namespace),
        }
    }

    #[test]
    fn the_remedy_names_what_is_in_the_way() {
        let both = CapabilitySet::BPF | CapabilitySet::PERFMON;
        let permit = |held, filtered, namespace| {
            around(held, filtered, namespace).permit(both, RiskyCall::Bpf)
        };
        let nothing = CapabilitySet::empty();
        let lacking = permit(nothing, false, false);
        assert!(
            lacking.starts_with("CAP_BPF + CAP_PERFMON: run as root"),
            "{lacking}"
        );
        let half = permit(CapabilitySet::BPF, false, false);
        assert!(half.starts_with("CAP_PERFMON: run as root"), "{half}");
        let rootless = permit(both, false, true);
        assert!(
            rootless.contains("outside this user namespace"),
            "{rootless}"
        );
        let filtered = permit(both, true, false);
        assert!(
            filtered.contains("seccomp profile that allows bpf"),
            "{filtered}"
        );
        let overruled = permit(both, false, false);
        assert!(overruled.contains("security module"), "{overruled}");
        let free = around(nothing, true, true).permit(nothing, RiskyCall::Userfaultfd);
        assert!(
            free.starts_with("a seccomp profile that allows userfaultfd"),
            "{free}"
        );
    }

    #[test]
    fn seccomp_and_user_namespace_are_recognised() {
        assert_eq!(
            is_filtered("Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t0\n"),
            Some(false)
        );
        assert_eq!(is_filtered("Seccomp:\t2\n"), Some(true));
        assert_eq!(is_filtered("Name:\tx\n"), None);
        assert!(maps_everybody("         0          0 4294967295\n"));
        assert!(!maps_everybody("         0     100000      65536\n"));
        assert!(!maps_everybody(
            "         0          0 4294967295\n 1 1 1\n"
        ));
    }
}

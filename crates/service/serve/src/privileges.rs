//! Dropping of capabilities that are not needed.

use std::fmt;

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, set_capabilities,
    set_no_new_privs,
};

/// Capabilities that the service holds after [`drop_privileges`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldCapabilities(pub CapabilitySet);

impl fmt::Display for HeldCapabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no capability");
        }
        let names: Vec<String> = self
            .0
            .iter_names()
            .map(|(name, _)| format!("CAP_{name}"))
            .collect();
        f.write_str(&names.join(", "))
    }
}

/// Keeps at most these capabilities in the calling thread, which must be the process's only one, and
/// ensures that no program executed from it gets more (`no_new_privs`).
///
/// # Errors
/// Errors of `capset(2)` and `prctl(2)`; then nothing must be served.
pub fn drop_privileges(needed: CapabilitySet) -> Result<HeldCapabilities, Errno> {
    set_no_new_privs(true)?;
    match clear_ambient_capability_set() {
        // There is no ambient set before Linux 4.3.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(errno) => return Err(errno),
    }
    let now = capabilities(None)?;
    let kept = now.permitted & needed;
    set_capabilities(
        None,
        CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    Ok(HeldCapabilities(capabilities(None)?.permitted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_needed_stays() {
        // In a thread of its own: capabilities belong to threads.
        std::thread::spawn(|| {
            let before = capabilities(None).unwrap().permitted;
            let needed = CapabilitySet::KILL | CapabilitySet::SYS_PTRACE;
            let held = drop_privileges(needed).unwrap();
            assert_eq!(held.0, before & needed);
            assert_eq!(capabilities(None).unwrap().effective, held.0);
            assert!(rustix::thread::no_new_privs().unwrap());
            let none = drop_privileges(CapabilitySet::empty()).unwrap();
            assert_eq!(none.to_string(), "no capability");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn capabilities_are_named_as_in_the_manual() {
        let held = HeldCapabilities(CapabilitySet::BPF | CapabilitySet::KILL);
        assert_eq!(held.to_string(), "CAP_KILL, CAP_BPF");
    }
}

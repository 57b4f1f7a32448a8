//! Probes of what this machine lets *this* caller do, by trying it: the engine behind
//! `superhue check`.
//!
//! A kernel version says little. Distributions port features back, configurations leave them out,
//! containers and virtual machines hide them, seccomp filters and security modules forbid them, and
//! some need a capability that the caller may or may not hold. So a trial tests each capability:
//! it does once what Superhue would do, on scratch memory that no other program uses, and checks
//! the effect where it should show. An answer of `Ok` proves nothing yet.
//!
//! ```text
//!   scratch mapping            what the caller may do to itself
//!   scratch child              what it may do to another process, or what it cannot undo
//!   file below /proc or /sys   what it cannot try without changing the machine: only read
//! ```
//!
//! A trial leaves nothing behind: no mapping, descriptor, thread or process, no setting of the
//! machine. (The one trial that would change a global setting for a moment needs an option, see
//! [`ProbeOptions`].) It never fails: a missing feature is an [`Availability`] with the reason and,
//! where there is one, the remedy. A trial that cannot even run gives [`Availability::Unknown`].
//!
//! Each family of trials is a file; a capability is one `Probe` in it and one line of `PROBES`.

mod accessed;
mod base;
mod bpf;
mod cache_allocation;
mod collapse;
mod colors;
mod damon;
mod finding;
mod frames;
mod hugetlb;
mod idle;
mod kernel_colors;
mod look;
mod machine;
mod mthp;
mod pmu;
mod scan;
mod service;
mod split;
mod surroundings;
mod swap;
mod thp;
mod userfault;

use serde::Serialize;
use superhue_procfs::Roots;

use finding::{Finding, Trial};
use surroundings::ProbeEnvironment;

/// Verdict on one capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Availability {
    /// The trial ran and its effect was seen.
    Yes,
    /// Part of it works, or it fails for a reason that may pass.
    Partial,
    /// The trial was refused or had no effect.
    No,
    /// The trial could not run.
    Unknown,
}

/// One capability that Superhue can use, and its verdict here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Capability {
    /// Stable key.
    pub id: &'static str,
    /// Name in a few words, for people.
    pub name: &'static str,
    /// Verdict of the trial.
    #[serde(rename = "verdict")]
    pub availability: Availability,
    /// Observation of the trial, with the kernel's error by symbol where there was one.
    pub found: String,
    /// Method of the trial.
    pub how: &'static str,
    /// Purpose for which Superhue uses it.
    pub used_for: &'static str,
    /// Way to get (more of) it; `None` where there is nothing to gain or no way.
    pub remedy: Option<String>,
}

/// Permissions of trials beyond touching scratch memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProbeOptions {
    /// Sets up an idle DAMON thread in sysfs for a moment where no program uses DAMON, since only then
    /// the kernel shows which kinds of monitoring it has. Changes, and restores, a global setting.
    pub may_touch_damon: bool,
}

/// One trial, and the texts that accompany its result.
#[derive(Debug)]
struct Probe {
    id: &'static str,
    name: &'static str,
    how: &'static str,
    used_for: &'static str,
    run: fn(&ProbeEnvironment) -> Trial,
}

/// All trials, in the order in which a reader wants to see the results.
const PROBES: &[&Probe] = &[
    &base::PAGE_SIZE,
    &base::CAPABILITIES,
    &machine::VM,
    &machine::CACHES,
    &collapse::OWN,
    &collapse::REMOTE,
    &service::USERS,
    &split::SPLIT,
    &thp::MODE,
    &thp::PER_PROCESS,
    &mthp::MTHP,
    &hugetlb::HUGETLB,
    &scan::PAGEMAP_SCAN,
    &accessed::CLEAR_REFS,
    &bpf::BPF,
    &idle::PAGE_IDLE,
    &damon::DAMON,
    &frames::PFN,
    &colors::MEASURED,
    &kernel_colors::KERNEL,
    &cache_allocation::ALLOCATION,
    &swap::SWAP,
    &userfault::MOVE,
    &pmu::PMU,
];

/// Returns the keys of all capabilities, in the order in which [`all`] returns them.
pub fn ids() -> impl Iterator<Item = &'static str> {
    PROBES.iter().map(|probe| probe.id)
}

/// Returns the key and the name of each capability, in the same order.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    PROBES.iter().map(|probe| (probe.id, probe.name))
}

/// Tries everything; takes well under a second.
///
/// Trials always run on the running system; `roots` is where they look for their effect and
/// for the settings.
#[must_use]
pub fn all(roots: &Roots) -> Vec<Capability> {
    all_with(roots, ProbeOptions::default())
}

/// Tries everything, with the permissions of `options`.
#[must_use]
pub fn all_with(roots: &Roots, options: ProbeOptions) -> Vec<Capability> {
    let around = ProbeEnvironment::of(roots, options);
    PROBES
        .iter()
        .map(|probe| probe.capability(&around))
        .collect()
}

/// Tries one capability; returns `None` when none has the key.
#[must_use]
pub fn one(id: &str, roots: &Roots) -> Option<Capability> {
    let probe = PROBES.iter().find(|probe| probe.id == id)?;
    Some(probe.capability(&ProbeEnvironment::of(roots, ProbeOptions::default())))
}

impl Probe {
    fn capability(&self, around: &ProbeEnvironment) -> Capability {
        let Finding {
            availability,
            found,
            remedy,
        } = match base::unsuitable_page_size() {
            Some(finding) if self.id != base::PAGE_SIZE.id => finding,
            _ => (self.run)(around).unwrap_or_else(|early| early),
        };
        let Self {
            id,
            name,
            how,
            used_for,
            ..
        } = *self;
        Capability {
            id,
            name,
            availability,
            found,
            how,
            used_for,
            remedy,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_probe_has_its_own_key_and_says_what_it_is() {
        let distinct: BTreeSet<_> = ids().collect();
        assert_eq!(distinct.len(), PROBES.len());
        for probe in PROBES {
            let is_key = |c: char| c.is_ascii_lowercase() || c == '-';
            assert!(probe.id.chars().all(is_key), "{}", probe.id);
            for text in [probe.name, probe.how, probe.used_for] {
                assert!(
                    !text.is_empty() && !text.ends_with('.'),
                    "{}: {text:?}",
                    probe.id
                );
            }
        }
    }

    #[test]
    fn an_unknown_key_is_none_and_a_known_one_is_itself() {
        assert_eq!(one("warp-drive", &Roots::default()), None);
        let found = one("page-size", &Roots::default()).unwrap();
        assert_eq!(found.id, "page-size");
    }
}

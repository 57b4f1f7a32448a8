//! Advice on which processes would gain from huge pages, how much, and what stands in the way: `superhue advise`. Changes nothing.
//!
//! ```text
//!   CPU time ──> worth a look? ──watch──> windows ──> rates ──estimate──> gain, low to high
//!                       |                                              ^
//!   status, why ────────+                  color::walks: what a miss costs here
//! ```
//!
//! * [`rates`] and [`estimate`](mod@estimate) are pure: they know figures, and neither processes nor clocks.
//! * It watches only processes that use the CPU and have memory that could be huge. For each of the others it reports why there is no estimate.
//! * The reach of the TLB comes from [`tlb`](crate::tlb): CPUID, timing or the user.
//! * Without a tracker, or where the reach of the TLB is not known, gains are `None`, with the reason. Users without privileges get all other
//!   figures; the choice of processes to watch does not depend on what the processor reports about itself.

mod clock;
mod document;
pub mod estimate;
mod observe;
pub mod rates;
mod verdict;
mod walks;
mod watch;

use std::time::{Duration, Instant};

use observe::{EXPLAINED, FIRST_LOOK, LEAST_WATCH, await_load, cpus_of, explain, look, watch_all};
use superhue_model::{ByteCount, ProcessId};
use superhue_procfs::hardware::{Cpuid, Virtualization};
use superhue_procfs::process::{identify, identities, still_runs};
use superhue_procfs::{ReadError, Roots};

use crate::AllocatorRequest;
use crate::probe;
use crate::tlb::{TlbReport, TlbSetting};
use crate::why::Machine;

pub use document::{
    Advice, MachineFacts, Obstacle, ProcessAdvice, SCHEMA, ServiceAdvice, WalkFacts, WatchExtent,
};
pub use verdict::{LEAST_GAIN, NoGain, State, Verdict, toml_string};

/// Selection of processes for the advice, and the time it may take.
#[derive(Debug, Clone)]
pub struct AdviseRequest {
    /// Processes by number; each must exist. Empty: all visible processes.
    pub pids: Vec<u32>,
    /// True if they are the members of a group, of which some may end meanwhile.
    pub is_group: bool,
    /// Time for which processes are watched, all together.
    pub time: Duration,
    /// Largest footprint for which the cost of walks is measured, in three kinds of pages.
    pub largest_footprint: ByteCount,
    /// Function that returns the service of a process, if that is known.
    pub service_of: fn(&Roots, u32) -> Option<String>,
    /// Source of the facts on the TLB and the hypervisor: the processor, or a recorded one.
    pub cpuid: Cpuid,
    /// Source of the facts on the TLB: that, a measurement, or the user.
    pub tlb: TlbSetting,
}

/// Reason for the lack of advice.
#[derive(Debug, thiserror::Error)]
pub enum AdviseError {
    /// A named process cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Reads, watches and estimates. Calls `interrupted` often; once it returns true, the advice holds what was found until then.
///
/// # Errors
/// Fails when a named process is gone or the caller may not read it; when processes cannot be listed.
pub fn advise(
    roots: &Roots,
    asked: &AdviseRequest,
    interrupted: &mut dyn FnMut() -> bool,
) -> Result<Advice, AdviseError> {
    let named = !asked.pids.is_empty();
    let ids: Vec<ProcessId> = if named {
        let ids = asked.pids.iter().map(|&pid| identify(roots, pid));
        ids.filter(|found| !(asked.is_group && is_no_member(found)))
            .collect::<Result<_, _>>()?
    } else {
        let own = std::process::id();
        let mut all = identities(roots)?;
        all.retain(|id| id.pid != own);
        all
    };
    // Timing may take most of a second, which is not part of the time for watching.
    let tlb = find_tlb(roots, &asked.cpuid, asked.tlb);
    let begun = Instant::now();
    let cpus = cpus_of(roots, &ids, FIRST_LOOK.min(asked.time / 4), interrupted);
    let machine = Machine::read(roots);
    let mut processes = Vec::new();
    for (id, cpus) in ids.into_iter().zip(cpus) {
        match look(roots, id, cpus, asked) {
            Ok(Some(found)) => processes.push((id, found)),
            Ok(None) => {}
            Err(error) if named && !asked.is_group => return Err(error.into()),
            Err(_) => {}
        }
    }
    processes.sort_by_key(|(_, found)| std::cmp::Reverse(found.rss_bytes));
    // Watching needs a part of the time.
    let until = asked.time.saturating_sub(reserve(asked));
    for (place, (id, found)) in processes.iter_mut().enumerate() {
        if interrupted() {
            found.unknown_because = Some("interrupted before its memory was read".to_owned());
        } else if place > 0 && begun.elapsed() >= until {
            let why = match named {
                true => "there was no time to read its memory: give --for more",
                false => "there was no time to read its memory: name it, or give --for more",
            };
            found.unknown_because = Some(why.to_owned());
        } else if named || place < EXPLAINED {
            explain(roots, *id, &machine, found);
        } else {
            found.unknown_because = Some(format!(
                "only the {EXPLAINED} largest processes are looked at page by page; name it"
            ));
        }
    }
    await_load(roots, asked.time, begun, &mut processes, interrupted);
    let mut facts = facts(roots, tlb, machine);
    let left = asked.time.saturating_sub(begun.elapsed());
    watch_all(roots, asked, &mut facts, &mut processes, left, interrupted);
    for (id, found) in &mut processes {
        let runs = still_runs(roots, *id);
        verdict::conclude(found, runs, facts.tlb_reach_base_bytes, facts.tracker);
        let is_service = |unit: &str| unit.ends_with(".service");
        if !found.attempts.is_empty() && found.service.as_deref().is_some_and(is_service) {
            let request = AllocatorRequest::for_process(roots, id.pid);
            found.attempts.extend(request.ok().map(verdict::drop_in));
        }
    }
    let mut processes: Vec<ProcessAdvice> = processes.into_iter().map(|(_, found)| found).collect();
    let rank = |found: &ProcessAdvice| {
        found
            .estimate
            .map_or(0.0, |one| one.gain.likely * found.cpus)
    };
    processes.sort_by(|a, b| {
        rank(b)
            .total_cmp(&rank(a))
            .then_with(|| b.rss_bytes.cmp(&a.rss_bytes))
    });
    Ok(Advice {
        schema: SCHEMA,
        services: verdict::services(&processes),
        machine: facts,
        processes,
    })
}

/// Returns the time that is kept for watching.
fn reserve(asked: &AdviseRequest) -> Duration {
    LEAST_WATCH.min(asked.time / 2)
}

/// Returns true for what may have been listed in a group and is no process any more, or is a thread of the kernel.
const fn is_no_member(found: &Result<ProcessId, ReadError>) -> bool {
    matches!(
        found,
        Err(ReadError::Vanished { .. } | ReadError::KernelThread { .. })
    )
}

/// Finds the TLB; true on a virtual machine.
fn find_tlb(roots: &Roots, cpuid: &Cpuid, setting: TlbSetting) -> (TlbReport, bool) {
    let virtualization = Virtualization::read(roots, cpuid);
    let tlb = TlbReport::find(roots, cpuid, &virtualization, setting);
    let is_virtual = virtualization.machine == superhue_procfs::hardware::Machine::Virtual;
    (tlb, is_virtual)
}

fn facts(
    roots: &Roots,
    (tlb, virtual_machine): (TlbReport, bool),
    huge_pages: Machine,
) -> MachineFacts {
    let counters = probe::one("pmu", roots);
    MachineFacts {
        tlb_reach_base_bytes: tlb.base_reach(),
        tlb_reach_huge_bytes: tlb.huge_reach(),
        tlb_unknown_because: tlb.unknown_because.clone(),
        tlb,
        virtual_machine,
        walks: Vec::new(),
        walks_unknown_because: None,
        miss_counters_unknown_because: counters
            .filter(|found| found.availability != probe::Availability::Yes)
            .map(|found| found.found),
        tracker: None,
        tracker_unknown_because: None,
        huge_pages,
    }
}

#[cfg(test)]
mod tests;

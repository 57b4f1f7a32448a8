//! Advice on which processes would gain from huge pages, how much, and what stands in the way: `superhue advise`. Changes nothing.
//!
//! ```text
//!   CPU time ──> who is worth a look ──watch──> windows ──> rates ──estimate──> gain, low to high
//!                       |                                              ^
//!   status, why ────────+                  color::walks: what a miss costs here
//! ```
//!
//! * [`rates`] and [`estimate`](mod@estimate) are pure: they know figures, and neither processes nor clocks.
//! * It watches only processes that use the CPU and have memory that could be huge. For each of the others it reports why the process cannot gain.
//! * The reach of the TLB comes from [`tlb`](crate::tlb): CPUID, timing or the user.
//! * Without a tracker, or where the reach of the TLB is not known, gains are `None`, with the reason. Users without privileges get all other
//!   figures; the choice of processes to watch does not depend on what the processor reports about itself.

mod clock;
pub mod estimate;
pub mod rates;
mod verdict;
mod walks;
mod watch;

use std::time::{Duration, Instant};

use serde::Serialize;
use superhue_color::walks::WalkCost;
use superhue_heat::{PtwalkTracker, Scope};
use superhue_model::{ByteCount, ProcessId};
use superhue_procfs::hardware::{Cpuid, Virtualization};
use superhue_procfs::process::{cpu_now, identify, identities, status, still_runs};
use superhue_procfs::{ReadError, Roots};

use crate::status::{brief, explained};
use crate::tlb::{NO_BASE_ENTRIES, TlbReport, TlbSetting};
use crate::why::{Machine, Reason};
use crate::{ProcessStatus, probe};
use estimate::{Estimate, HotMemory, Interval};
pub use verdict::{LEAST_GAIN, NoGain, State, Verdict, toml_string};

/// The version of the document.
pub const SCHEMA: &str = "superhue-advise/1";

/// Time over which CPU use is measured before processes are chosen for watching.
const FIRST_LOOK: Duration = Duration::from_millis(500);

/// A process that uses less of a CPU than this is not watched.
const LEAST_CPUS: f64 = 0.01;

/// Memory below this is not worth a policy for huge pages.
const LEAST_MEMORY: ByteCount = ByteCount(4 << 20);

/// Shortest time for which a process is watched; it bounds the number of processes that fit into the given time.
const LEAST_WATCH: Duration = Duration::from_millis(500);

/// Processes that are looked at page by page, those with most memory first.
const EXPLAINED: usize = 64;

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

/// Complete output of `superhue advise`.
#[derive(Debug, Serialize)]
pub struct Advice {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Facts on the processor and the kernel.
    pub machine: MachineFacts,
    /// Advice by process, the greatest likely gain first.
    pub processes: Vec<ProcessAdvice>,
    /// Advice by service, where that is known.
    pub services: Vec<ServiceAdvice>,
}

/// Facts on the machine.
#[derive(Debug, Serialize)]
pub struct MachineFacts {
    /// Bytes that the last TLB reaches with base pages; `None` if it is not known.
    pub tlb_reach_base_bytes: Option<ByteCount>,
    /// Bytes that the last TLB reaches with huge pages; `None` if it is not known.
    pub tlb_reach_huge_bytes: Option<ByteCount>,
    /// Reason if the reaches are not known.
    pub tlb_unknown_because: Option<String>,
    /// Entries of the TLB, their source, and costs.
    pub tlb: TlbReport,
    /// True on a virtual machine, where walks pass through the host's tables too.
    pub virtual_machine: bool,
    /// Cost of a miss by footprint; empty if nothing could be estimated, or the cost could not be measured.
    pub walks: Vec<WalkFacts>,
    /// Reason if the cost of walks was not measured although processes were watched.
    pub walks_unknown_because: Option<String>,
    /// Reason if the figures do not come from the processor's own counters of TLB misses; `None` where they can.
    pub miss_counters_unknown_because: Option<String>,
    /// Method of tracking accesses; `None` if they could not be tracked.
    pub tracker: Option<&'static str>,
    /// Reason if `tracker` is `None`.
    pub tracker_unknown_because: Option<String>,
    /// The kernel's own settings for huge pages.
    pub huge_pages: Machine,
}

/// Cost of a TLB miss, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WalkFacts {
    /// Bytes of memory over which the loads were spread.
    pub footprint_bytes: ByteCount,
    /// True if neighbouring pages lay in neighbouring frames; false if they lay anywhere.
    pub together: bool,
    /// If loads do not wait for each other.
    pub apart_seconds: f64,
    /// If each waits for the one before.
    pub chained_seconds: f64,
    /// For a page that is read in order.
    pub in_order_seconds: f64,
    /// The share of the time that huge pages saved if loads did not wait for each other, and nothing else was done.
    pub apart_gain: f64,
    /// The same if each load waited for the one before.
    pub chained_gain: f64,
    /// The same for pages in order.
    pub in_order_gain: f64,
}

/// Memory that is not huge, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Obstacle {
    /// The reason, as in `superhue status --why`.
    pub reason: Reason,
    /// In words.
    pub text: &'static str,
    /// Resident bytes.
    pub bytes: ByteCount,
}

/// One process.
#[derive(Debug, Serialize)]
pub struct ProcessAdvice {
    /// Its number.
    pub pid: u32,
    /// Command name.
    pub name: String,
    /// Real user.
    pub uid: u32,
    /// The service it belongs to.
    pub service: Option<String>,
    /// CPUs it uses, 1 for one all the time.
    pub cpus: f64,
    /// Resident memory of every kind.
    pub rss_bytes: Option<ByteCount>,
    /// Resident anonymous memory.
    pub anonymous_bytes: Option<ByteCount>,
    /// Memory that huge pages map now, of every kind.
    pub huge_bytes: Option<ByteCount>,
    /// Memory that could be huge at once (`superhue status --why`).
    pub possible_bytes: Option<ByteCount>,
    /// Bytes that would become resident if `possible_bytes` became huge.
    pub growth_bytes: Option<ByteCount>,
    /// Page tables.
    pub page_table_bytes: Option<ByteCount>,
    /// The most that its huge pages hold beyond what it touched.
    pub bloat_bound_bytes: Option<ByteCount>,
    /// Memory that it touches within 1 ms of its CPU time; an estimate.
    pub hot_1ms_bytes: Option<ByteCount>,
    /// The same for 100 ms.
    pub hot_100ms_bytes: Option<ByteCount>,
    /// The part of the watched memory that was not touched in the longest windows; an estimate.
    pub untouched_bytes: Option<ByteCount>,
    /// Obstacles, the one with most memory first.
    pub obstacles: Vec<Obstacle>,
    /// Reason if sizes, obstacles or the estimate are missing.
    pub unknown_because: Option<String>,
    /// True if the caller may not read its page tables.
    #[serde(skip)]
    pub is_denied: bool,
    /// Extent of the watching; `None` if it was not watched.
    pub watched: Option<WatchExtent>,
    /// Gain from huge pages; `None` if it could not be watched, or the reach of the TLB is not known.
    pub estimate: Option<Estimate>,
    /// State: an estimate, or the reason for having none.
    pub state: State,
    /// Verdict on that gain.
    pub verdict: Verdict,
    /// Reason why there is nothing to gain, if that is the verdict.
    pub no_gain: Option<NoGain>,
    /// The verdict in a sentence.
    pub because: String,
    /// Suggestions: commands, or a rule for the daemon.
    #[serde(rename = "try")]
    pub attempts: Vec<String>,
}

/// Extent of the observations of a process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WatchExtent {
    /// Seconds.
    pub seconds: f64,
    /// Windows.
    pub windows: usize,
    /// Base pages in the memory that was watched.
    pub pages: u64,
    /// The share of them in regions that could be huge as a whole.
    pub possible: f64,
}

/// The processes of one service.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServiceAdvice {
    /// Its name.
    pub service: String,
    /// Processes.
    pub processes: usize,
    /// State of its busy processes, else of its largest one.
    pub state: State,
    /// CPUs they use.
    pub cpus: f64,
    /// Resident memory, that shared by several counted for each; `None` if that of a process is not known.
    pub rss_bytes: Option<ByteCount>,
    /// Memory that huge pages map; `None` if that of a process is not known.
    pub huge_bytes: Option<ByteCount>,
    /// Memory that could be huge; `None` if that of a process is not known.
    pub possible_bytes: Option<ByteCount>,
    /// The share of their CPU time that would be saved; `None` unless its busy processes have an estimate.
    pub gain: Option<Interval>,
    /// Reason if `gain` is `None`.
    pub gain_unknown_because: Option<String>,
    /// The rule to try.
    #[serde(rename = "try")]
    pub attempts: Vec<String>,
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

/// Looks on, a second at a time, while no process with memory that could be huge uses the CPU.
fn await_load(
    roots: &Roots,
    time: Duration,
    begun: Instant,
    processes: &mut [(ProcessId, ProcessAdvice)],
    interrupted: &mut dyn FnMut() -> bool,
) {
    loop {
        let left = time.saturating_sub(begun.elapsed());
        let could = |found: &ProcessAdvice| found.possible_bytes >= Some(LEAST_MEMORY);
        let is_hopeless = !processes.iter().any(|(_, found)| could(found));
        let is_busy = processes.iter().any(|(_, found)| is_worth(found));
        if is_hopeless || is_busy || left < LEAST_WATCH || interrupted() {
            return;
        }
        let ids: Vec<ProcessId> = processes.iter().map(|(id, _)| *id).collect();
        let cpus = cpus_of(roots, &ids, left.min(Duration::from_secs(1)), interrupted);
        for ((_, found), cpus) in processes.iter_mut().zip(cpus) {
            found.cpus = cpus;
        }
    }
}

/// Returns the number of CPUs that each process uses.
fn cpus_of(
    roots: &Roots,
    ids: &[ProcessId],
    time: Duration,
    interrupted: &mut dyn FnMut() -> bool,
) -> Vec<f64> {
    let read = || -> Vec<Option<Duration>> {
        ids.iter()
            .map(|id| cpu_now(roots, id.pid).ok().map(|cpu| cpu.total()))
            .collect()
    };
    let (begun, before) = (Instant::now(), read());
    while begun.elapsed() < time && !interrupted() {
        std::thread::sleep(Duration::from_millis(20).min(time));
    }
    let wall = begun.elapsed().as_secs_f64().max(1e-3);
    let pairs = before.into_iter().zip(read());
    pairs
        .map(|(before, after)| {
            let used = before
                .zip(after)
                .map(|(before, after)| after.saturating_sub(before));
            used.map_or(0.0, |used| used.as_secs_f64() / wall)
        })
        .collect()
}

/// Returns the figures that every user may read; `None` for threads of the kernel.
fn look(
    roots: &Roots,
    id: ProcessId,
    cpus: f64,
    asked: &AdviseRequest,
) -> Result<Option<ProcessAdvice>, ReadError> {
    let shown = brief(roots, id.pid)?;
    let status = status(roots, id.pid)?;
    if shown.rss_bytes.is_none() {
        return Ok(None);
    }
    Ok(Some(ProcessAdvice {
        pid: id.pid,
        name: shown.name,
        uid: shown.uid,
        service: (asked.service_of)(roots, id.pid),
        cpus,
        rss_bytes: shown.rss_bytes,
        anonymous_bytes: shown.anonymous_bytes,
        huge_bytes: None,
        possible_bytes: None,
        growth_bytes: None,
        page_table_bytes: status.page_tables,
        bloat_bound_bytes: None,
        hot_1ms_bytes: None,
        hot_100ms_bytes: None,
        untouched_bytes: None,
        obstacles: Vec::new(),
        unknown_because: None,
        is_denied: false,
        watched: None,
        estimate: None,
        state: State::Unknown,
        verdict: Verdict::Unknown,
        no_gain: None,
        because: String::new(),
        attempts: Vec::new(),
    }))
}

/// Reads its page tables, if the caller may.
fn explain(roots: &Roots, id: ProcessId, machine: &Machine, found: &mut ProcessAdvice) {
    match explained(roots, id.pid, machine) {
        Ok(shown) => {
            found.bloat_bound_bytes = shown.bloat_bound_bytes;
            found.rss_bytes = shown.rss_bytes;
            found.anonymous_bytes = shown.anonymous_bytes;
            take_why(&shown, found);
        }
        Err(error) => {
            found.is_denied = matches!(error, ReadError::Denied { .. });
            found.unknown_because = Some(error.to_string());
        }
    }
}

fn take_why(shown: &ProcessStatus, found: &mut ProcessAdvice) {
    let Some(why) = &shown.why else { return };
    found.huge_bytes = Some(why.huge_bytes);
    let possible = why
        .reasons
        .iter()
        .filter(|one| one.reason == Reason::Possible);
    let (bytes, growth) = possible.fold((ByteCount(0), ByteCount(0)), |(bytes, growth), one| {
        (bytes + one.bytes, growth + one.growth_bytes)
    });
    found.possible_bytes = Some(bytes);
    found.growth_bytes = Some(growth);
    found.obstacles = why
        .reasons
        .iter()
        .filter(|one| one.reason != Reason::Possible && one.bytes.0 > 0)
        .map(|one| Obstacle {
            reason: one.reason,
            text: one.reason.describe(),
            bytes: one.bytes,
        })
        .collect();
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

/// Watches the processes that could gain, one after the other, and estimates.
fn watch_all(
    roots: &Roots,
    asked: &AdviseRequest,
    facts: &mut MachineFacts,
    processes: &mut [(ProcessId, ProcessAdvice)],
    time: Duration,
    interrupted: &mut dyn FnMut() -> bool,
) {
    let mut worth: Vec<usize> = (0..processes.len())
        .filter(|&place| {
            processes
                .get(place)
                .is_some_and(|(_, found)| is_worth(found))
        })
        .collect();
    if worth.is_empty() {
        return;
    }
    worth.sort_by(|&a, &b| {
        let weight = |place: usize| processes.get(place).map_or(0.0, |(_, found)| found.cpus);
        weight(b).total_cmp(&weight(a))
    });
    let mut tracker = match PtwalkTracker::new(roots, Scope::Promotable) {
        Ok(tracker) => tracker,
        Err(error) => {
            facts.tracker_unknown_because = Some(error.to_string());
            return;
        }
    };
    facts.tracker = Some("ptwalk");
    let fits = match time.is_zero() {
        true => 0.0,
        false => (time.as_secs_f64() / LEAST_WATCH.as_secs_f64())
            .floor()
            .max(1.0),
    };
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a handful"
    )]
    let (watched, passed) = worth.split_at(worth.len().min(fits as usize));
    for &place in passed {
        if let Some((_, found)) = processes.get_mut(place) {
            found.unknown_because =
                Some("there was no time to watch it: name it, or give --for more".to_owned());
        }
    }
    let each = time / u32::try_from(watched.len()).unwrap_or(1).max(1);
    let mut seen = Vec::new();
    for &place in watched {
        let Some((id, found)) = processes.get_mut(place) else {
            continue;
        };
        if interrupted() {
            found.unknown_because = Some(INTERRUPTED.to_owned());
            continue;
        }
        match watch::watch(roots, &mut tracker, *id, each, interrupted) {
            Ok(Some(one)) if one.windows > 0 || !interrupted() => seen.push((place, one)),
            Ok(_) if interrupted() => found.unknown_because = Some(INTERRUPTED.to_owned()),
            Ok(_) => {
                let why = "none of its memory was in base pages when it was watched";
                found.unknown_because = Some(why.to_owned());
            }
            Err(error) => found.unknown_because = Some(error.to_string()),
        }
    }
    for (place, one) in &seen {
        if let Some((_, found)) = processes.get_mut(*place) {
            take_seen(one, found);
        }
    }
    let unknown = |processes: &mut [(ProcessId, ProcessAdvice)], why: &str| {
        for (place, _) in &seen {
            if let Some((_, found)) = processes.get_mut(*place) {
                found.unknown_because = Some(why.to_owned());
            }
        }
    };
    let Some(reach) = facts.tlb_reach_base_bytes else {
        // The cost of a miss is not measured where the number of misses is not known.
        let why = facts.tlb_unknown_because.as_deref();
        let why = why.unwrap_or(NO_BASE_ENTRIES);
        let why = format!("the reach of this CPU's TLB is not known ({why})");
        unknown(processes, &why);
        return;
    };
    let largest = seen
        .iter()
        .map(|(_, one)| one.observed.pages)
        .fold(0.0, f64::max);
    let costs = match walks::costs(roots, largest, asked.largest_footprint) {
        Ok(costs) => costs,
        Err(why) => {
            unknown(processes, &why);
            facts.walks_unknown_because = Some(why);
            return;
        }
    };
    let scattered = costs.scattered.iter().map(|cost| walk_facts(cost, false));
    let together = costs.together.iter().map(|cost| walk_facts(cost, true));
    facts.walks = together.chain(scattered).collect();
    let entries = reach.0 as f64 / superhue_model::BASE_PAGE_SIZE as f64;
    for (place, one) in seen {
        let Some((_, found)) = processes.get_mut(place) else {
            continue;
        };
        found.estimate = estimate::estimate(&one.observed, entries, &costs);
        if found.estimate.is_none() {
            found.unknown_because =
                Some("it had no CPU time in any window in which it was watched".to_owned());
        }
    }
}

/// Reason for an unknown gain.
const INTERRUPTED: &str = "interrupted before it was watched";

/// Takes over the observations of a process that do not depend on the TLB.
fn take_seen(one: &watch::ProcessObservations, found: &mut ProcessAdvice) {
    // CPU time is counted in ticks of 10 ms: a share of a shorter time says little.
    if one.seconds >= LEAST_WATCH.as_secs_f64() / 2.0 {
        found.cpus = one.cpus;
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts of pages"
    )]
    let pages = one.observed.pages as u64;
    found.watched = Some(WatchExtent {
        seconds: one.seconds,
        windows: one.windows,
        pages,
        possible: one.observed.possible,
    });
    let bytes = pages as f64 * superhue_model::BASE_PAGE_SIZE as f64;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a part of its memory"
    )]
    let untouched = one.untouched.map(|share| ByteCount((share * bytes) as u64));
    found.untouched_bytes = untouched;
    let hot = HotMemory::of(&one.observed);
    found.hot_1ms_bytes = hot.map(|hot| hot.within_1ms);
    found.hot_100ms_bytes = hot.map(|hot| hot.within_100ms);
}

/// Returns true if a process could gain at all, as far as is known without watching it.
fn is_worth(found: &ProcessAdvice) -> bool {
    found.cpus >= LEAST_CPUS
        && found.unknown_because.is_none()
        && found
            .possible_bytes
            .is_some_and(|bytes| bytes >= LEAST_MEMORY)
}

fn walk_facts(cost: &WalkCost, together: bool) -> WalkFacts {
    WalkFacts {
        footprint_bytes: cost.footprint,
        together,
        apart_seconds: cost.apart_ns * 1e-9,
        chained_seconds: cost.chained_ns * 1e-9,
        in_order_seconds: cost.in_order_ns * 1e-9,
        apart_gain: cost.apart_gain,
        chained_gain: cost.chained_gain,
        in_order_gain: cost.in_order_gain,
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering};

    use superhue_procfs::hardware::CpuidTable;
    use superhue_testing::{ChildGuard, skip};

    use super::*;

    static LOOKED_AT: AtomicBool = AtomicBool::new(false);

    /// Processors as they describe themselves, and the expected number of TLB entries or reason.
    ///
    /// To `advise`, a machine without a description of caches is one of them: `advise` reads none.
    const PROCESSORS: [(&str, &str, Result<u64, &str>); 5] = [
        (
            "a Xeon whose hypervisor hides the TLB",
            "0 0 20 756e6547 6c65746e 49656e69\n1 0 a06d1 0 80000000 0\n2 0 feff01 f0 0 0\n",
            Err("the processor reports no TLBs; its hypervisor probably hides them"),
        ),
        (
            "Zen 4",
            "0 0 10 68747541 444d4163 69746e65\n80000000 0 80000028 0 0 0\n\
             80000005 0 ff48ff40 ff48ff40 0 0\n80000006 0 5c002200 6c004200 0 0\n",
            Ok(3072),
        ),
        (
            "one that has its levels for huge pages alone",
            "0 0 10 68747541 444d4163 69746e65\n80000000 0 80000028 0 0 0\n80000005 0 ff48ff40 0 0 0\n",
            Err(NO_BASE_ENTRIES),
        ),
        (
            "one of a maker that is not known",
            "0 0 1 746e6543 736c7561 48727561\n",
            Err("how processors by \"CentaurHauls\" report their TLBs is not known"),
        ),
        (
            "none that can be asked",
            "",
            Err("this architecture has no CPUID, and Linux shows no TLBs elsewhere"),
        ),
    ];

    fn cpuid(table: &str) -> Cpuid {
        if table.is_empty() {
            Cpuid::none()
        } else {
            Cpuid::recorded(CpuidTable::parse(table).unwrap())
        }
    }

    #[test]
    fn the_reach_of_a_tlb_is_known_or_its_reason_is() {
        let roots = Roots::default();
        for (name, table, wanted) in PROCESSORS {
            let tlb = find_tlb(&roots, &cpuid(table), TlbSetting::Cpuid);
            let facts = facts(&roots, tlb, Machine::read(&roots));
            let reach = wanted.ok().map(|entries| ByteCount(entries * 4096));
            assert_eq!(facts.tlb_reach_base_bytes, reach, "{name}");
            let why = facts.tlb_unknown_because.as_deref();
            assert_eq!(why, wanted.err(), "{name}");
        }
    }

    /// A buffer of 32 MiB that is filled again and again.
    fn filling() -> ChildGuard {
        let mut busy = Command::new("dd");
        busy.args(["if=/dev/zero", "of=/dev/null", "bs=32M"]);
        ChildGuard::spawn(busy.stderr(Stdio::null()))
    }

    #[test]
    fn who_is_busy_is_watched_on_every_processor() {
        let busy = filling();
        for (name, table, wanted) in PROCESSORS {
            let mut asked = AdviseRequest {
                pids: vec![busy.pid()],
                is_group: false,
                time: Duration::from_secs(2),
                largest_footprint: ByteCount(16 << 20),
                service_of: |_, _| None,
                cpuid: cpuid(table),
                tlb: TlbSetting::Cpuid,
            };
            // The number of windows in that time depends on the machine.
            let (machine, found) = loop {
                let advice = advise(&Roots::default(), &asked, &mut || false).unwrap();
                let found = advice.processes.into_iter().next().unwrap();
                let is_seen = found.hot_100ms_bytes.is_some();
                if is_seen || asked.time >= Duration::from_secs(32) {
                    break (advice.machine, found);
                }
                asked.time *= 2;
            };
            if let Some(why) = machine.tracker_unknown_because {
                return skip("tracking", &why);
            }
            assert_eq!(machine.tracker, Some("ptwalk"), "{name}");
            if found.possible_bytes < Some(LEAST_MEMORY) {
                return skip("base-pages", "the kernel makes all memory huge by itself");
            }
            let watched = found.watched.unwrap();
            assert!(watched.windows > 0 && watched.pages > 0, "{name}");
            let hot = found.hot_1ms_bytes.zip(found.hot_100ms_bytes);
            assert!(hot.is_some_and(|(ms, more)| ms <= more), "{name}: {hot:?}");
            match wanted {
                Ok(_) => {
                    let is_measured = machine.walks_unknown_because.is_none();
                    assert_eq!(found.estimate.is_some(), is_measured, "{name}: {found:?}");
                }
                Err(why) => {
                    let why = format!("the reach of this CPU's TLB is not known ({why})");
                    assert_eq!(found.unknown_because.as_deref(), Some(&*why), "{name}");
                    assert_eq!((found.estimate, found.verdict), (None, Verdict::Unknown));
                    assert!(found.because.ends_with(&why), "{}", found.because);
                    let wanted = [format!("superhue trial {}", busy.pid())];
                    assert_eq!(found.attempts, wanted, "{name}");
                    assert!(machine.walks.is_empty(), "{name}: {:?}", machine.walks);
                }
            }
        }
    }

    #[test]
    fn nothing_is_to_be_tried_on_who_has_ended() {
        let mut busy = filling();
        let asked = AdviseRequest {
            pids: vec![busy.pid()],
            is_group: false,
            // The end of the process ends the watching. On a busy machine the first look alone may take seconds.
            time: Duration::from_secs(20),
            largest_footprint: ByteCount(64 << 20),
            service_of: |_, _| {
                LOOKED_AT.store(true, Ordering::Relaxed);
                None
            },
            cpuid: Cpuid::native(),
            tlb: TlbSetting::Cpuid,
        };
        let (mut is_killed, mut asked_before) = (false, false);
        let advice = advise(&Roots::default(), &asked, &mut || {
            // `interrupted` is called before the page tables are read, and again only where a process is watched.
            let is_looked_at = LOOKED_AT.load(Ordering::Relaxed);
            if !std::mem::replace(&mut asked_before, is_looked_at) {
                return false;
            }
            if !is_killed {
                busy.0.kill().unwrap();
                busy.0.wait().unwrap();
                is_killed = true;
            }
            false
        });
        let advice = advice.unwrap();
        let found = &advice.processes[0];
        if !is_killed {
            let why = [
                &advice.machine.tracker_unknown_because,
                &found.unknown_because,
            ];
            return skip("tracking", &format!("{why:?}"));
        }
        assert!(
            found
                .possible_bytes
                .is_some_and(|bytes| bytes >= LEAST_MEMORY)
        );
        let told = (found.verdict, found.no_gain);
        assert_eq!(told, (Verdict::NoGain, Some(NoGain::Ended)), "{found:?}");
        assert!(found.attempts.is_empty(), "{found:?}");
    }
}

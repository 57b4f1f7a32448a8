//! Looks at processes: which are busy, what stands in their way, and what their accesses are.

use std::time::{Duration, Instant};

use superhue_heat::{PtwalkTracker, Scope};
use superhue_model::{ByteCount, ProcessId};
use superhue_procfs::process::{cpu_now, status};
use superhue_procfs::{ReadError, Roots};

use super::document::{MachineFacts, Obstacle, ProcessAdvice, WatchExtent, walk_facts};
use super::estimate::HotMemory;
use super::{AdviseRequest, estimate, walks, watch};
use crate::ProcessStatus;
use crate::status::{brief, explained};
use crate::tlb::NO_BASE_ENTRIES;
use crate::why::{Machine, Reason};

/// Time over which CPU use is measured before processes are chosen for watching.
pub(super) const FIRST_LOOK: Duration = Duration::from_millis(500);

/// A process that uses less of a CPU than this is not watched.
pub(super) const LEAST_CPUS: f64 = 0.01;

/// Memory below this is not worth a policy for huge pages.
pub(super) const LEAST_MEMORY: ByteCount = ByteCount(4 << 20);

/// Shortest time for which a process is watched; it bounds the number of processes that fit into the given time.
pub(super) const LEAST_WATCH: Duration = Duration::from_millis(500);

/// Processes that are looked at page by page, those with most memory first.
pub(super) const EXPLAINED: usize = 64;

/// Looks on, a second at a time, while no process with memory that could be huge uses the CPU.
pub(super) fn await_load(
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
pub(super) fn cpus_of(
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
pub(super) fn look(
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
        name: shown.name,
        uid: shown.uid,
        service: (asked.service_of)(roots, id.pid),
        cpus,
        rss_bytes: shown.rss_bytes,
        anonymous_bytes: shown.anonymous_bytes,
        page_table_bytes: status.page_tables,
        ..ProcessAdvice::unseen(id.pid)
    }))
}

/// Reads its page tables, if the caller may.
pub(super) fn explain(roots: &Roots, id: ProcessId, machine: &Machine, found: &mut ProcessAdvice) {
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

/// Watches the processes that could gain, one after the other, and estimates.
pub(super) fn watch_all(
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

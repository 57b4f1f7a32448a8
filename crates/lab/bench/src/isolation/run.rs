//! Measurement of victims beside partners.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use rustix::thread::{CpuSet, sched_setaffinity};
use superhue_model::{BASE_PAGE_SIZE, ByteCount, ColorRequest, ColorSet};

use super::task::Task;
use crate::BenchError;
use crate::allocate::{allocate, allocate_set};
use crate::arm::Arm;
use crate::buffer::Buffer;
use crate::clock::cpu_time;
use crate::document::isolation::{ALONE, Case, Isolation, Partition};
use crate::document::{Settings, SkippedPart};
use crate::frames::FrameShuffler;
use crate::machine::{Caches, PinnedCpu};
use crate::measure::Watcher;
use crate::painter::Painter;
use crate::workload::Sweep;

/// Untimed jobs before the timed ones.
const WARM: usize = 10;
/// The victim's sleep between jobs: long enough for any partner here to go over all of the cache.
const PAUSE: Duration = Duration::from_micros(300);

/// A victim and its partner.
#[derive(Debug, Clone, Copy)]
struct Pair {
    victim: Task,
    /// Working set, in percent of the cache.
    victim_percent: f64,
    partner: Task,
    partner_percent: f64,
}

/// The victims' working sets in percent of the cache: three quarters of their half of the cache, and more than that
/// half.
const FITS: f64 = 37.5;
const TOO_LARGE: f64 = 70.0;

/// The pairs of the paper, and two more: a victim that waits for every load, and one that does not fit into its share.
fn pairs(sweep: Sweep) -> Vec<Pair> {
    let pair = |victim, victim_percent, partner, partner_percent| Pair {
        victim,
        victim_percent,
        partner,
        partner_percent,
    };
    let quick = vec![
        pair(Task::Ordered, FITS, Task::Spin, 0.0),
        pair(Task::Ordered, FITS, Task::Thrash, 200.0),
    ];
    if sweep == Sweep::Quick {
        return quick;
    }
    let more = [
        pair(Task::Ordered, FITS, Task::Random, 75.0),
        pair(Task::Ordered, FITS, Task::Hash, 200.0),
        pair(Task::Ordered, FITS, Task::Smooth, 100.0),
        pair(Task::Ordered, FITS, Task::Edges, 100.0),
        pair(Task::Random, FITS, Task::Spin, 0.0),
        pair(Task::Random, FITS, Task::Ordered, 75.0),
        pair(Task::Random, FITS, Task::Thrash, 200.0),
        pair(Task::Chain, FITS, Task::Spin, 0.0),
        pair(Task::Chain, FITS, Task::Thrash, 200.0),
        pair(Task::Ordered, TOO_LARGE, Task::Spin, 0.0),
        pair(Task::Ordered, TOO_LARGE, Task::Thrash, 200.0),
    ];
    quick.into_iter().chain(more).collect()
}

/// The colors of victim and partner.
struct Halves {
    victim: ColorSet,
    partner: ColorSet,
}

impl Halves {
    /// Splits the colors into a lower and an upper half; `None` if there is only one color.
    fn of(colors: usize) -> Option<Self> {
        let half = |low: usize, high: usize| {
            let bound = |color| u16::try_from(color).ok();
            ColorRequest::List(vec![(bound(low)?, bound(high)?)])
                .of(colors)
                .ok()?
        };
        let border = colors / 2;
        Some(Self {
            victim: half(0, border.checked_sub(1)?)?,
            partner: half(border, colors - 1)?,
        })
    }
}

/// Measures all pairs, in rounds of fresh allocations, the cases of a round in random order.
pub fn measure(
    settings: &Settings,
    caches: &Caches,
    pinned: &PinnedCpu,
    mut painter: Option<&mut (dyn Painter + '_)>,
    watcher: &mut dyn Watcher,
    skipped: &mut Vec<SkippedPart>,
) -> Isolation {
    let halves = painter
        .as_ref()
        .and_then(|painter| Halves::of(painter.colors()));
    let jobs = if settings.sweep == Sweep::Quick {
        50
    } else {
        200
    };
    let across = other_cpu(caches, pinned);
    if across.is_none() {
        let (what, reason) = (
            "isolation across CPUs".to_owned(),
            why_not_across(caches, pinned),
        );
        skipped.push(SkippedPart { what, reason });
    }
    let mut plans = Vec::new();
    for pair in pairs(settings.sweep) {
        for placement in Partition::ALL {
            if placement != Partition::Kernel && halves.is_none() {
                continue;
            }
            for partner_cpu in [None, across]
                .into_iter()
                .take(if across.is_some() { 2 } else { 1 })
            {
                plans.push((
                    pair,
                    case(pair, placement, partner_cpu, caches.colored_bytes()),
                ));
            }
        }
    }
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(settings.seed);
    let mut shuffler = FrameShuffler::default();
    watcher.begin("isolation", settings.allocations * plans.len());
    'rounds: for _ in 0..settings.allocations {
        plans.shuffle(&mut rng);
        for (pair, case) in &mut plans {
            if watcher.stop() {
                break 'rounds;
            }
            watcher.step();
            shuffler.shuffle(ByteCount(case.victim_bytes + case.partner_bytes), &mut rng);
            match round(
                *pair,
                case,
                jobs,
                halves.as_ref(),
                painter.as_deref_mut(),
                &mut rng,
            ) {
                Ok(times) => case.rounds.push(times),
                Err(trouble) => case.failed.push(trouble.to_string()),
            }
        }
    }
    let mut cases: Vec<Case> = plans.into_iter().map(|(_, case)| case).collect();
    cases.sort_by(|a, b| {
        let key = |case: &Case| {
            (
                case.victim.clone(),
                case.victim_bytes,
                case.partner != ALONE,
                case.partner.clone(),
            )
        };
        key(a)
            .cmp(&key(b))
            .then(a.placement.cmp(&b.placement))
            .then(a.partner_cpu.cmp(&b.partner_cpu))
    });
    Isolation {
        jobs,
        pause_seconds: PAUSE.as_secs_f64(),
        victim_colors: halves.as_ref().map(|halves| halves.victim.to_string()),
        partner_colors: halves.as_ref().map(|halves| halves.partner.to_string()),
        capacity_given_up: halves
            .as_ref()
            .map(|halves| 1.0 - halves.victim.len() as f64 / halves.victim.colors() as f64),
        cases,
    }
}

fn case(pair: Pair, placement: Partition, partner_cpu: Option<u32>, cache: u64) -> Case {
    let bytes =
        |percent: f64| ((cache as f64 * percent / 100.0) as u64).next_multiple_of(BASE_PAGE_SIZE);
    Case {
        victim: pair.victim.name().to_owned(),
        victim_bytes: bytes(pair.victim_percent),
        partner: pair.partner.name().to_owned(),
        partner_bytes: bytes(pair.partner_percent),
        partner_cpu,
        placement,
        rounds: Vec::new(),
        failed: Vec::new(),
        summary: None,
    }
}

/// Other CPUs that share the cache whose colors are measured.
fn sharing(caches: &Caches, cpu: u32) -> impl Iterator<Item = u32> {
    let shared = caches.level(2).into_iter().flat_map(|l2| &l2.shared_by);
    shared.copied().filter(move |other| *other != cpu)
}

/// The first of them that this process may use.
fn other_cpu(caches: &Caches, pinned: &PinnedCpu) -> Option<u32> {
    sharing(caches, pinned.cpu).find(|other| pinned.allowed.contains(other))
}

/// Reason why partners on other CPUs are not measured.
fn why_not_across(caches: &Caches, pinned: &PinnedCpu) -> String {
    let cpu = pinned.cpu;
    let others: Vec<String> = sharing(caches, cpu).map(|cpu| cpu.to_string()).collect();
    if !others.is_empty() {
        return format!(
            "this process may not use another CPU that shares the L2 of CPU {cpu} (CPU {})",
            others.join(", ")
        );
    }
    let outer = caches
        .0
        .iter()
        .rfind(|cache| cache.level > 2 && cache.shared_by.len() > 1);
    let outer = outer.map_or_else(String::new, |cache| {
        format!(
            "; the {} is shared, but its colors are not measured",
            cache.name()
        )
    });
    format!("the L2, whose colors these are, belongs to CPU {cpu} alone{outer}")
}

/// Runs one round: fresh allocations for both, a running partner, and the victim's jobs. Returns the time of each job
/// in nanoseconds.
fn round(
    pair: Pair,
    case: &Case,
    jobs: usize,
    halves: Option<&Halves>,
    mut painter: Option<&mut (dyn Painter + '_)>,
    rng: &mut Xoshiro256PlusPlus,
) -> Result<Vec<u64>, BenchError> {
    let mut memory = |bytes: u64, set: Option<&ColorSet>| -> Result<Buffer, BenchError> {
        let size = ByteCount(bytes.max(BASE_PAGE_SIZE));
        match (case.placement, set, painter.as_deref_mut()) {
            (Partition::Kernel, ..) => Ok(allocate(Arm::Kernel, size, None, rng)?.0),
            (placement, Some(set), Some(painter)) => {
                let shuffled = placement == Partition::Shuffled;
                let (buffer, filled) = allocate_set(size, set, shuffled, painter, rng)?;
                let pages = buffer.range().len().whole_pages().0;
                // A round with other pages would count for colors that it did not have.
                if filled.placed < pages {
                    let reasons: Vec<&str> = filled.refused.keys().map(String::as_str).collect();
                    return Err(BenchError(format!(
                        "{} of {pages} pages got their colors ({})",
                        filled.placed,
                        reasons.join(", ")
                    )));
                }
                Ok(buffer)
            }
            _ => Err(BenchError(
                "no oracle finds page colors here; `superhue colors` shows the reasons".to_owned(),
            )),
        }
    };
    let mut mine = memory(case.victim_bytes, halves.map(|halves| &halves.victim))?;
    let mut theirs = memory(case.partner_bytes, halves.map(|halves| &halves.partner))?;
    pair.victim.prepare(&mut mine);
    pair.partner.prepare(&mut theirs);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let partner = || -> Result<(), BenchError> {
            if let Some(cpu) = case.partner_cpu {
                let mut one = CpuSet::new();
                one.set(cpu as usize);
                sched_setaffinity(None, &one).map_err(|error| {
                    BenchError::during(&format!("cannot run the partner on CPU {cpu}"), error)
                })?;
            }
            let mut turn = 0;
            while !stop.load(Ordering::Relaxed) {
                pair.partner.step(&mut theirs, turn);
                turn += 1;
            }
            Ok(())
        };
        let started = std::thread::Builder::new().spawn_scoped(scope, partner);
        let started =
            started.map_err(|error| BenchError::during("cannot start the partner", error))?;
        let times = jobs_of(pair.victim, &mut mine, jobs);
        stop.store(true, Ordering::Relaxed);
        match started.join() {
            Ok(ran) => ran.map(|()| times),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Does the jobs and times them by this thread's CPU time.
fn jobs_of(victim: Task, memory: &mut Buffer, jobs: usize) -> Vec<u64> {
    let mut times = Vec::with_capacity(jobs);
    for turn in 0..(WARM + jobs) as u64 {
        std::thread::sleep(PAUSE);
        let before = cpu_time();
        victim.step(memory, turn);
        let took = cpu_time().saturating_sub(before);
        if turn >= WARM as u64 {
            times.push(took.max(1));
        }
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_share_no_color() {
        let halves = Halves::of(32).unwrap();
        assert_eq!(halves.victim.to_string(), "0-15");
        assert_eq!(halves.partner.to_string(), "16-31");
        assert!(Halves::of(1).is_none());
        let odd = Halves::of(3).unwrap();
        assert_eq!((odd.victim.len(), odd.partner.len()), (1, 2));
    }

    #[test]
    fn every_victim_is_also_measured_alone() {
        for sweep in [Sweep::Quick, Sweep::Full] {
            for pair in pairs(sweep) {
                let alone = |other: &Pair| {
                    other.partner == Task::Spin
                        && other.victim == pair.victim
                        && other.victim_percent == pair.victim_percent
                };
                assert!(pairs(sweep).iter().any(alone));
            }
        }
    }

    #[test]
    fn a_partner_on_another_cpu_needs_one_that_is_allowed_and_shares_the_cache() {
        let l2 = |shared_by: &[u32]| {
            Caches(vec![crate::machine::CacheLevel {
                level: 2,
                bytes: 1 << 20,
                ways: None,
                shared_by: shared_by.to_vec(),
            }])
        };
        let pinned = |allowed: &[u32]| PinnedCpu {
            cpu: 2,
            allowed: allowed.to_vec(),
        };
        assert_eq!(other_cpu(&l2(&[1, 2, 3]), &pinned(&[2, 3])), Some(3));
        assert_eq!(other_cpu(&l2(&[1, 2]), &pinned(&[2, 3])), None);
        let why = why_not_across(&l2(&[1, 2]), &pinned(&[2, 3]));
        assert!(
            why.contains("may not use") && why.contains("(CPU 1)"),
            "{why}"
        );
        let why = why_not_across(&l2(&[2]), &pinned(&[2, 3]));
        assert!(why.contains("belongs to CPU 2 alone"), "{why}");
    }

    #[test]
    fn a_round_whose_partner_cannot_run_on_its_cpu_fails() {
        let pair = pairs(Sweep::Quick)[0];
        let last = u32::try_from(CpuSet::MAX_CPU - 1).unwrap();
        let case = case(pair, Partition::Kernel, Some(last), 1 << 20);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let trouble = round(pair, &case, 1, None, None, &mut rng).unwrap_err();
        let wanted = format!("cannot run the partner on CPU {last}: ");
        assert!(trouble.0.starts_with(&wanted), "{trouble}");
    }

    #[test]
    fn every_job_is_timed_and_the_partner_stops() {
        let pair = Pair {
            victim: Task::Chain,
            victim_percent: 1.0,
            partner: Task::Thrash,
            partner_percent: 2.0,
        };
        let case = case(pair, Partition::Kernel, None, 1 << 20);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let begun = std::time::Instant::now();
        let times = round(pair, &case, 5, None, None, &mut rng).unwrap();
        let all = u64::try_from(begun.elapsed().as_nanos()).unwrap();
        assert_eq!(times.len(), 5);
        // A job goes from line to line, and no cache does that in half a nanosecond; and all jobs are done within the
        // round.
        let least = case.victim_bytes / 64 / 2;
        assert!(
            least > 0 && times.iter().all(|time| *time >= least),
            "{times:?}"
        );
        assert!(times.iter().sum::<u64>() <= all, "{times:?} in {all} ns");
    }
}

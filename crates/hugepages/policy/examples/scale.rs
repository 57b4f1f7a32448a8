//! Measures the time of a decision on a large machine: 100 processes of 8 GiB each, 409,600 regions.
//!
//! ```text
//! cargo run --release -p superhue-policy --example scale
//! ```
//!
//! Prints the median and the longest of a number of decisions in several situations. The target is
//! 20 ms.
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::time::{Duration, Instant};

use superhue_model::{
    ActionResult, ByteCount, Effect, HUGE_PAGE_SIZE, Outcome, PAGES_PER_REGION, PageCount, Plan,
    ProcessHeat, ProcessId, ProcessView, Region, RegionHeat, RegionView, Snapshot, VirtAddr,
    VirtRange, Vma, VmaKind,
};
use superhue_policy::{Active, Pattern, Policy, Scheme};

const PROCESSES: u32 = 100;
const REGIONS: u64 = 4096;
const BASE: u64 = 0x7f00_0000_0000;
const LOOKS: u32 = 31;
const INTERVAL: Duration = Duration::from_millis(100);

/// Makes a machine whose regions are those of `region(process, index)`.
fn snapshot(region: impl Fn(u32, u64) -> (u64, bool)) -> Snapshot {
    let bytes = REGIONS * HUGE_PAGE_SIZE;
    let process = |pid| ProcessView {
        rss_anon: Some(ByteCount(bytes)),
        vmas: vec![Vma {
            range: VirtRange {
                start: VirtAddr(BASE),
                end: VirtAddr(BASE + bytes),
            },
            kind: VmaKind::Anonymous,
            writable: true,
        }],
        regions: (0..REGIONS)
            .map(|index| {
                let (resident, huge) = region(pid, index);
                RegionView {
                    region: Region::containing(VirtAddr(BASE + index * HUGE_PAGE_SIZE)),
                    resident: PageCount(resident),
                    huge: Some(huge),
                }
            })
            .collect(),
        ..ProcessView::unread(ProcessId {
            pid,
            start_ticks: 1,
        })
    };
    Snapshot {
        at: Duration::ZERO,
        processes: (1..=PROCESSES).map(process).collect(),
        objects: Vec::new(),
    }
}

/// Decides again and again, and prints the times.
fn measure(name: &str, mut policy: Box<dyn Policy>, mut snapshot: Snapshot, grow: bool) {
    let mut times = Vec::new();
    let mut planned = 0;
    for look in 0..LOOKS {
        snapshot.at = INTERVAL * look;
        for process in &mut snapshot.processes {
            heat_up(process, look);
        }
        if grow {
            for process in &mut snapshot.processes {
                for region in &mut process.regions {
                    let resident = region.resident.0 % (PAGES_PER_REGION - 1) + 1;
                    region.resident = PageCount(resident);
                }
            }
        }
        let before = Instant::now();
        let plan = policy.decide(&snapshot);
        times.push(before.elapsed());
        planned += plan.actions.len();
        policy.learn(snapshot.at, &fulfil(&plan, &mut snapshot));
    }
    let first = times[0];
    times.sort_unstable();
    let ledger = policy.ledger();
    let ms = |time: Duration| format!("{:6.2} ms", time.as_secs_f64() * 1e3);
    println!(
        "{name:<32} first {}  median {}  longest {}  {planned:>6} planned  {:>6} tracked",
        ms(first),
        ms(times[times.len() / 2]),
        ms(times[times.len() - 1]),
        ledger.tracked.regions,
    );
}

/// Brings the heat of a process, if it has any, up to a new sample: huge pages have been idle, and of other regions half the pages are active (of
/// one page none).
fn heat_up(process: &mut ProcessView, look: u32) {
    let Some(heat) = &mut process.heat else {
        return;
    };
    heat.samples = u64::from(look) + 1;
    heat.watched = INTERVAL * (look + 1);
    heat.regions.clear();
    heat.regions.extend(process.regions.iter().map(|view| {
        let pages = view.resident.0 / 2;
        let huge = view.huge == Some(true);
        RegionHeat {
            region: view.region,
            active: (!huge).then_some(PageCount(pages)),
            is_range: false,
            rate: if huge || pages == 0 { 0.0 } else { 100.0 },
            per_second: if huge || pages == 0 { 0.0 } else { 2000.0 },
            idle: if huge || pages == 0 {
                heat.watched
            } else {
                Duration::ZERO
            },
        }
    }));
}

/// Lets every action succeed.
fn fulfil(plan: &Plan, snapshot: &mut Snapshot) -> Outcome {
    let results = plan.actions.iter().map(|action| {
        let process = snapshot
            .processes
            .iter_mut()
            .find(|process| action.owner() == process.id.into());
        let region = process.and_then(|process| {
            let regions = &mut process.regions;
            regions
                .iter_mut()
                .find(|view| view.region == action.region())
        });
        if let Some(region) = region {
            region.resident = PageCount(PAGES_PER_REGION);
            region.huge = Some(true);
        }
        ActionResult {
            action: *action,
            effect: Effect::Done,
            took: Duration::ZERO,
        }
    });
    Outcome {
        results: results.collect(),
    }
}

fn main() {
    let resident = || Scheme::resident().policy();
    let unlimited = || {
        let mut scheme = Scheme::always();
        scheme.quota.rate = None;
        scheme.policy()
    };
    let hot = || {
        let pattern = Pattern::Active(Active {
            cold_after: INTERVAL * 10,
            ..Active::default()
        });
        Scheme {
            pattern,
            ..Scheme::hot()
        }
        .policy()
    };
    let heated = |mut snapshot: Snapshot| {
        for process in &mut snapshot.processes {
            process.heat = Some(ProcessHeat::default());
        }
        snapshot
    };
    let scattered = |pid: u32, index: u64| {
        // Any fixed mix will do.
        let mixed = (u64::from(pid) * REGIONS + index).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        1 + mixed % PAGES_PER_REGION
    };
    println!("{PROCESSES} processes with {REGIONS} regions each, {LOOKS} looks");
    measure(
        "resident, all huge",
        resident(),
        snapshot(|_, _| (512, true)),
        false,
    );
    measure(
        "resident, all full",
        resident(),
        snapshot(|_, _| (512, false)),
        false,
    );
    measure(
        "resident, scattered",
        resident(),
        snapshot(|pid, index| (scattered(pid, index), false)),
        false,
    );
    measure(
        "resident, all growing past 75 %",
        resident(),
        snapshot(|_, _| (400, false)),
        true,
    );
    measure(
        "always, no rate limit, scattered",
        unlimited(),
        snapshot(|pid, index| (scattered(pid, index), false)),
        false,
    );
    measure(
        "hot, scattered",
        hot(),
        heated(snapshot(|pid, index| (scattered(pid, index), false))),
        false,
    );
    measure(
        "hot, all huge and cold",
        hot(),
        heated(snapshot(|_, _| (512, true))),
        false,
    );
    measure(
        "hot, all idle",
        hot(),
        heated(snapshot(|_, _| (1, false))),
        false,
    );
}

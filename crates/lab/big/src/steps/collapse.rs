//! Rate at which many threads collapse memory at once, and how long the threads that touch this memory wait meanwhile.
//!
//! Three ways: many threads of another process collapse the memory of one process (`outside`), of as many processes (`outside-each`), or
//! the program's own threads do (`inside`). Then `superhue attach` collapses one process's memory, with its limit on stalls and without.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use hdrhistogram::Histogram;
use rustix::io::Errno;
use serde_json::{Value, json};
use superhue::model::{ByteCount, HUGE_PAGE_SIZE, Region};
use superhue::procfs::Roots;
use superhue::procfs::process::{self, PageScanner};
use superhue::sys::collapse::process_collapse;

use super::{Context, Skip, gib};
use crate::children::RunningCommand;
use crate::plan;
use crate::serve::{Times, histogram};
use crate::target::{Kind, Target, number};

const WAYS: [&str; 3] = ["outside", "outside-each", "inside"];

/// Time during which touches are measured before any collapse.
const BEFORE: Duration = Duration::from_millis(400);

/// Measures each way with each number of collapsing threads.
pub fn run(context: &Context) -> Result<()> {
    if context.usable.0 < 256 << 20 {
        return Err(Skip(format!("only {} of memory may be filled", context.usable)).into());
    }
    if let Err(error) = CollapseRun::new(context, "outside", 1, 1, ByteCount(8 << 20))
        .and_then(|mut mixed| mixed.collapse())
    {
        context.note(format!("collapsing from outside: {error:#}"))?;
    }
    let counts = plan::ends_first(plan::collapsers(context.cpus));
    let most = counts.iter().copied().max().unwrap_or(1);
    // Each way and number has the same size, so that all rates are of the same work.
    let each = ByteCount((context.usable.0 * 3 / 5 / most as u64).min(1 << 29) >> 21 << 21);
    // Seconds for one GiB, with filling and freeing it; of the slowest run so far.
    let mut seconds_a_gib: f64 = 3.0;
    for count in counts {
        for way in WAYS {
            let beside = context.cpus.saturating_sub(count).max(1);
            let crowded =
                (context.cpus > beside && (count == 1 || count == most) && way == "outside")
                    .then_some(context.cpus);
            for touchers in [Some(beside), crowded].into_iter().flatten() {
                let what = format!("{way}, {count} collapsing, {touchers} touching");
                let all = gib(each) * count as f64;
                if !context.has_time_for(1.0 + all * seconds_a_gib * 1.3, &what)? {
                    continue;
                }
                let begun = Instant::now();
                match CollapseRun::new(context, way, count, touchers, each)
                    .and_then(|mut mixed| mixed.collapse())
                {
                    Ok(row) => context.row(row)?,
                    Err(error) => context.note(format!("{what}: {error:#}"))?,
                }
                let took = (begun.elapsed() - BEFORE.min(begun.elapsed())).as_secs_f64() / all;
                // The first run's time is no bound for the others yet.
                seconds_a_gib = if count == 1 {
                    took
                } else {
                    seconds_a_gib.max(took)
                };
            }
        }
    }
    for stall in ["10ms", "0"] {
        let what = format!("superhue attach --max-stall {stall}");
        if context.has_time_for(6.0, &what)? {
            match attached(context, stall) {
                Ok(row) => context.row(row)?,
                Err(error) => context.note(format!("{what}: {error:#}"))?,
            }
        }
    }
    Ok(())
}

/// Targets of one run, and the threads that collapse their memory.
struct CollapseRun {
    way: &'static str,
    count: usize,
    touchers: usize,
    targets: Vec<Target>,
}

impl CollapseRun {
    fn new(
        context: &Context,
        way: &'static str,
        count: usize,
        touchers: usize,
        each: ByteCount,
    ) -> Result<Self> {
        let processes = if way == "outside-each" { count } else { 1 };
        let size = ByteCount(each.0 * (count / processes) as u64);
        let mut targets = Vec::new();
        for _ in 0..processes {
            let mut target = Target::start(&context.own, size)?;
            target.fill(size, context.cpus, context.left(), Kind::Base)?;
            targets.push(target);
        }
        Ok(Self {
            way,
            count,
            touchers,
            targets,
        })
    }

    /// Measures touches alone, then touches beside collapses.
    fn collapse(&mut self) -> Result<Value> {
        let alone = self.timed(|_| {
            thread::sleep(BEFORE);
            Ok(CollapseCounts::default())
        })?;
        let beside = self.timed(|mixed| {
            if mixed.way == "inside" {
                mixed.inside()
            } else {
                mixed.outside()
            }
        })?;
        let collapsed = beside.1;
        let bytes = ByteCount(collapsed.done * HUGE_PAGE_SIZE);
        Ok(json!({
            "way": self.way, "collapsing": self.count, "touching": self.touchers.max(self.targets.len()), "processes": self.targets.len(),
            "gib": gib(bytes), "seconds": collapsed.seconds,
            "gib_per_second": (collapsed.seconds > 0.0).then(|| gib(bytes) / collapsed.seconds),
            "failed": collapsed.failed, "error": collapsed.error.map(|errno| errno.to_string()),
            "collapse": collapsed.times, "pauses_alone": alone.0, "pauses_beside": beside.0,
            "touches_per_second_alone": alone.2, "touches_per_second_beside": beside.2,
        }))
    }

    /// Runs `act` while threads touch all targets. Returns the pauses of all targets, and touches per second.
    fn timed(
        &mut self,
        act: impl FnOnce(&mut Self) -> Result<CollapseCounts>,
    ) -> Result<(Times, CollapseCounts, Option<f64>)> {
        let threads = self.touchers.div_ceil(self.targets.len()).max(1);
        for target in &mut self.targets {
            target.ask(&format!("stir {threads} timed free"))?;
        }
        let begun = Instant::now();
        let collapsed = act(self)?;
        let seconds = begun.elapsed().as_secs_f64();
        let mut all = Times::default();
        for target in &mut self.targets {
            let one = target.still()?;
            // Each quantile is that of the slowest target; the targets are alike.
            all = Times {
                count: all.count + one.count,
                p50_ns: all.p50_ns.max(one.p50_ns),
                p99_ns: all.p99_ns.max(one.p99_ns),
                p999_ns: all.p999_ns.max(one.p999_ns),
                max_ns: all.max_ns.max(one.max_ns),
                over_1ms: all.over_1ms + one.over_1ms,
            };
        }
        Ok((all, collapsed, super::per_second(all.count, seconds)))
    }

    fn inside(&mut self) -> Result<CollapseCounts> {
        let target = self.targets.first_mut().context("no target")?;
        let told = target.ask(&format!("collapse {}", self.count))?;
        let count = |name: &str| told[name].as_u64().unwrap_or(0);
        Ok(CollapseCounts {
            done: count("done"),
            failed: count("failed"),
            seconds: number(&told, "seconds")?,
            ..CollapseCounts::default()
        })
    }

    /// Collapses each part of the regions in its own thread.
    fn outside(&mut self) -> Result<CollapseCounts> {
        let mut parts = Vec::new();
        for target in &self.targets {
            let regions = target.regions();
            let shares = self.count / self.targets.len();
            for part in regions.chunks(regions.len().div_ceil(shares).max(1)) {
                parts.push((target.pidfd()?, part.to_vec()));
            }
        }
        let (times, errors) = (Mutex::new(histogram()?), Mutex::new((0, None)));
        let begun = Instant::now();
        thread::scope(|scope| {
            for (pidfd, part) in &parts {
                let (times, errors) = (&times, &errors);
                scope.spawn(move || {
                    let (own, failed, error) =
                        of_part(part, |region| process_collapse(pidfd, region));
                    if let (Ok(own), Ok(mut all)) = (own, times.lock()) {
                        let _ = all.add(&own);
                    }
                    if let Ok(mut all) = errors.lock() {
                        all.0 += failed;
                        all.1 = all.1.or(error);
                    }
                });
            }
        });
        let seconds = begun.elapsed().as_secs_f64();
        let poisoned = || anyhow!("a collapsing thread panicked");
        let times = times.into_inner().map_err(|_| poisoned())?;
        let (failed, error) = errors.into_inner().map_err(|_| poisoned())?;
        let done = times.len();
        if done == 0 {
            return Err(anyhow!(
                "none of {failed} was made: {}",
                error.map_or_else(|| "no reason".to_owned(), |errno| errno.to_string())
            ));
        }
        Ok(CollapseCounts {
            done,
            failed,
            error,
            seconds,
            times: Some(Times::from(&times)),
        })
    }
}

/// Result of collapsing.
#[derive(Debug, Default)]
struct CollapseCounts {
    done: u64,
    failed: u64,
    /// The first error.
    error: Option<Errno>,
    seconds: f64,
    /// Time of each collapse that succeeded.
    times: Option<Times>,
}

fn of_part(
    part: &[Region],
    collapse: impl Fn(Region) -> Result<(), Errno>,
) -> (Result<Histogram<u64>>, u64, Option<Errno>) {
    let (mut failed, mut first) = (0, None);
    let mut times = match histogram() {
        Ok(times) => times,
        Err(error) => return (Err(error), 0, None),
    };
    for region in part {
        let begun = Instant::now();
        match collapse(*region) {
            Ok(()) => times
                .saturating_record(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX)),
            Err(errno) => {
                failed += 1;
                first = first.or(Some(errno));
                if matches!(errno, Errno::PERM | Errno::NOSYS) {
                    break;
                }
            }
        }
    }
    (Ok(times), failed, first)
}

/// Runs `superhue attach --pages resident` on a process that one or two threads touch, until 95 % of its memory is huge.
fn attached(context: &Context, stall: &str) -> Result<Value> {
    let size = ByteCount((context.usable.0 / 4).min(4 << 30) >> 21 << 21);
    let touchers = context.cpus.saturating_sub(1).clamp(1, 2);
    let mut target = Target::start(&context.own, size)?;
    target.fill(size, context.cpus, context.left(), Kind::Base)?;
    target.ask(&format!("stir {touchers} timed free"))?;
    thread::sleep(BEFORE);
    let alone = target.still()?;
    target.ask(&format!("stir {touchers} timed free"))?;
    let pid = target.pid().to_string();
    let most = Duration::from_secs_f64((context.left().as_secs_f64() - 2.0).clamp(2.0, 20.0));
    let words = [
        "attach",
        "--json",
        "--quiet",
        "--pages",
        "resident",
        "--rate",
        "1T",
        "--max-stall",
        stall,
        &pid,
    ];
    let mut command = context.superhue();
    let begun = Instant::now();
    let mut running = RunningCommand::start(command.args(words))?;
    let regions = target.regions().len();
    let mut settled = None;
    while begun.elapsed() < most && settled.is_none() {
        if let Some(ended) = running.ended()? {
            return Err(anyhow!("superhue ended: {}", ended.complaint()));
        }
        thread::sleep(Duration::from_millis(50));
        settled = (huge(&target)? * 20 >= regions * 19).then(|| begun.elapsed().as_secs_f64());
    }
    let seconds = begun.elapsed().as_secs_f64();
    let made = huge(&target)?;
    let beside = target.still()?;
    let ended = running.terminate(Duration::from_secs(5))?;
    let told: Value = serde_json::from_str(&ended.out).unwrap_or_default();
    let bytes = ByteCount(made as u64 * HUGE_PAGE_SIZE);
    Ok(json!({
        "way": format!("superhue attach --max-stall {stall}"), "collapsing": 1, "touching": touchers, "processes": 1, "gib": gib(bytes),
        "seconds": seconds, "gib_per_second": gib(bytes) / seconds, "seconds_to_95": settled,
        "failed": told.pointer("/collapses/failed").and_then(Value::as_object).map(|failed| failed.values().filter_map(Value::as_u64).sum::<u64>()),
        "superhue_cpu_seconds": told.pointer("/superhue/cpu_seconds"), "pauses_alone": alone, "pauses_beside": beside,
    }))
}

/// Returns the number of the target's regions that are huge now.
fn huge(target: &Target) -> Result<usize> {
    let roots = Roots::default();
    let vmas = process::maps(&roots, target.pid())?;
    let views = PageScanner::new().regions(&roots, target.id()?, &vmas)?;
    Ok(views.iter().filter(|view| view.huge == Some(true)).count())
}

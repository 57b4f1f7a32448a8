//! Cost to a process's threads of the passes that trackers make, on 1 to 16 threads that each have a processor.
//!
//! First the passing thread only spins, on its own processor where there is one. Then it repeats each kind of pass without a break, and then
//! makes one pass at a time. The cost of passes is what the target's threads lose against the first case. The cost of a pass that clears
//! accessed bits comes after the pass, as threads touch each page again.

use std::fs::{File, OpenOptions};
use std::hint::spin_loop;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::json;
use superhue::model::{BASE_PAGE_SHIFT, ByteCount, HUGE_PAGE_SIZE, VirtRange};
use superhue::procfs::Roots;
use superhue::procfs::process::{self, PageScanner};
use superhue::sys::pagemap::WORD_PRESENT;
use superhue::trackers::{Scope, Tracker, TrackerKind, choose};
use superhue_workloads::access::median;
use superhue_workloads::memory::Mapping;

use super::{Context, Skip, gib, per_second, spread};
use crate::plan;
use crate::serve::{allowed_cpus, stay_on, stay_on_any};
use crate::target::{Kind, Target};

/// A size within reach of the TLBs, where the flush is the cost; and a size where each pass walks many entries.
const SIZES: [ByteCount; 2] = [ByteCount(4 << 20), ByteCount(512 << 20)];

/// Bit of a `pagemap` word: the page was written since the soft-dirty marks were last cleared.
const SOFT_DIRTY: u64 = 1 << 55;

/// Windows of each kind.
const ROUNDS: usize = 4;

/// Returns the time until a pass is paid for: by then threads have touched most entries of this much memory at random, several times.
fn paced(size: ByteCount) -> Duration {
    if size == SIZES[0] {
        Duration::from_millis(20)
    } else {
        Duration::from_millis(200)
    }
}

/// Kind of pass.
struct Pass {
    name: &'static str,
    make: Act,
}

/// Makes one pass over a target.
type Act = Box<dyn FnMut(&Target) -> Result<()>>;

/// Measures each number of threads, with little memory and with much.
pub fn run(context: &Context) -> Result<()> {
    if context.usable < SIZES[0] {
        return Err(Skip("no memory may be filled".to_owned()).into());
    }
    let counts = plan::ends_first(plan::threads(context.cpus));
    let sizes: Vec<ByteCount> = SIZES
        .into_iter()
        .filter(|size| *size <= context.usable)
        .collect();
    let cpus = allowed_cpus();
    let mut is_first = true;
    // Windows of two kinds share the time that single passes leave.
    let kinds = (counts.len() * ROUNDS * 4) as f64;
    let one_by_one: f64 = sizes
        .iter()
        .map(|size| paced(*size).as_secs_f64() * kinds * 1.4)
        .sum();
    let all =
        (context.left().as_secs_f64() * 0.8 - one_by_one) / (kinds * 2.0 * sizes.len() as f64);
    let window = Duration::from_secs_f64(all.clamp(0.02, 0.2));
    for threads in counts {
        for size in &sizes {
            let passes = passes(context, is_first)?;
            is_first = false;
            let what = format!("{threads} threads, {:.3} GiB", gib(*size));
            let each = window.as_secs_f64() * 2.0 + paced(*size).as_secs_f64() * 1.4;
            if !context.has_time_for(
                passes.len() as f64 * ROUNDS as f64 * each * 1.1 + 0.5,
                &what,
            )? {
                continue;
            }
            let shared = threads >= context.cpus;
            for pass in passes {
                // A child inherits the affinity of this thread.
                stay_on_any(&cpus)?;
                let mut target = Target::start(&context.own, *size)?;
                target.fill(*size, context.cpus, context.left(), Kind::Base)?;
                target.ask(&format!("stir {threads} plain pinned"))?;
                // This thread runs beside the target's threads if there is a processor for it.
                if let Some(cpu) = cpus.get(threads % cpus.len().max(1)) {
                    stay_on(*cpu)?;
                }
                let times = (window, paced(*size));
                of_pass(context, target, pass, threads, shared, times)?;
            }
        }
    }
    Ok(())
}

/// Measures one kind of pass. Each kind has its own target: `4` in `clear_refs` changes the entries if the kernel has soft-dirty marks.
fn of_pass(
    context: &Context,
    mut target: Target,
    mut pass: Pass,
    threads: usize,
    shared: bool,
    (window, paced): (Duration, Duration),
) -> Result<()> {
    let size = target.filled();
    if let Err(error) = (pass.make)(&target) {
        return context.note(format!("{}: {error:#}", pass.name));
    }
    // This comes before any pass, because the cost of passes lasts beyond them.
    let still = |_: &Target| {
        spin_loop();
        Ok(())
    };
    thread::sleep(paced);
    let mut alone = Vec::new();
    for _ in 0..ROUNDS {
        alone.push(of_window(&mut target, window, still)?.0);
    }
    let rate = median(&mut alone).unwrap_or(0.0);
    let (mut beside, mut took, mut made) = (Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        let (with, count, seconds) = of_window(&mut target, window, &mut pass.make)?;
        beside.push(with);
        took.push(seconds / count.max(1) as f64 * 1e6);
        made += count;
    }
    // Single passes, each with time for its cost.
    let mut lost = Vec::new();
    for round in 0..=ROUNDS {
        let mut is_first = true;
        let (with, _, seconds) = of_window(&mut target, paced, |target| {
            if std::mem::take(&mut is_first) {
                (pass.make)(target)?;
            }
            spin_loop();
            Ok(())
        })?;
        // The first round still pays for earlier passes.
        if round > 0 && rate > 0.0 {
            lost.push((1.0 - with / rate) * seconds * threads as f64 * 1e6);
        }
    }
    let kept: Vec<f64> = beside
        .iter()
        .filter(|_| rate > 0.0)
        .map(|with| with / rate)
        .collect();
    context.row(json!({
        "pass": pass.name, "threads": threads, "gib": gib(size), "shares_a_cpu": shared, "passes": made,
        "us_a_pass": spread(&took), "thread_us_lost_by_one": spread(&lost), "throughput_kept": spread(&kept),
        "touches_per_second_alone": rate, "touches_per_second_beside": median(&mut beside),
    }))
}

/// Repeats `act` for a time. Returns touches per second, the number of repetitions, and their seconds.
fn of_window(
    target: &mut Target,
    window: Duration,
    mut act: impl FnMut(&Target) -> Result<()>,
) -> Result<(f64, u64, f64)> {
    let before = target.touches()?;
    let (begun, mut count) = (Instant::now(), 0);
    while begun.elapsed() < window {
        act(target)?;
        count += 1;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let touches = target.touches()? - before;
    // The touches are read some microseconds before and after the window.
    Ok((
        per_second(touches, begun.elapsed().as_secs_f64()).unwrap_or(0.0),
        count,
        seconds,
    ))
}

fn passes(context: &Context, says: bool) -> Result<Vec<Pass>> {
    let clear = |what: &'static str| {
        move |target: &Target| -> Result<()> {
            let path = format!("/proc/{}/clear_refs", target.pid());
            let mut file = OpenOptions::new()
                .write(true)
                .open(&path)
                .with_context(|| format!("cannot open {path}"))?;
            file.write_all(what.as_bytes())
                .with_context(|| format!("cannot write {what} to {path}"))
        }
    };
    let mut scanner = PageScanner::new();
    let look = move |target: &Target| {
        let roots = Roots::default();
        let vmas = process::maps(&roots, target.pid())?;
        scanner
            .regions(&roots, target.id()?, &vmas)
            .map(drop)
            .context("cannot look")
    };
    let mut passes = vec![
        Pass {
            name: "clear_refs 1",
            make: Box::new(clear("1")),
        },
        Pass {
            name: "clear_refs 4",
            make: Box::new(clear("4")),
        },
        Pass {
            name: "look",
            make: Box::new(look),
        },
    ];
    match choose(
        &Roots::default(),
        Some(TrackerKind::Ptwalk),
        Scope::Anonymous,
    ) {
        Ok(chosen) => passes.push(Pass {
            name: "sample by ptwalk",
            make: Box::new(sample(chosen.tracker)),
        }),
        Err(error) if says => context.note(error.to_string())?,
        Err(_) => {}
    }
    if says {
        context.note(soft_dirty()?)?;
    }
    Ok(passes)
}

fn sample(mut tracker: Box<dyn Tracker>) -> impl FnMut(&Target) -> Result<()> {
    move |target| {
        let id = target.id()?;
        tracker.arm(id)?;
        let ranges: [VirtRange; 1] = [target.range()];
        tracker.read(id, &ranges)?;
        Ok(())
    }
}

/// Returns a note on whether `4` in `clear_refs` write-protects memory: if the kernel has soft-dirty marks, memory just written has one.
/// Trackers write `4` only where it does not.
fn soft_dirty() -> Result<String> {
    let mapping = Mapping::new(ByteCount(HUGE_PAGE_SIZE))?;
    mapping.fill();
    let mut word = [0; 8];
    let read = File::open("/proc/self/pagemap").and_then(|file| {
        file.read_exact_at(&mut word, (mapping.range().start.0 >> BASE_PAGE_SHIFT) * 8)
    });
    let word = u64::from_ne_bytes(word);
    let found = if read.is_err() || word & WORD_PRESENT == 0 {
        "whether this kernel has soft-dirty marks cannot be told: without them `clear_refs 4` does nothing but flush"
    } else if word & SOFT_DIRTY == 0 {
        "this kernel has no soft-dirty marks: `clear_refs 4` does nothing but flush, and superhue writes it to that end"
    } else {
        "this kernel has soft-dirty marks: `clear_refs 4` write-protects memory, and superhue does not write it"
    };
    Ok(found.to_owned())
}

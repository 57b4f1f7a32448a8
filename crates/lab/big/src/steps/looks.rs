//! Cost of looking at memory, by GiB: full looks, samples of accesses by each tracker, and `superhue heat` and `superhue attach`.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::{Value, json};
use superhue::model::{ByteCount, VirtRange};
use superhue::procfs::Roots;
use superhue::procfs::process::{self, PageScanner};
use superhue::trackers::{Reading, Scope, TrackerKind, choose};

use super::{Context, Skip, gib, own_cpu_seconds, spread};
use crate::children::RunningCommand;
use crate::machine::peak_rss;
use crate::plan;
use crate::target::{Kind, Target};

/// Full looks, and samples, of one size; fewer of large sizes, since each takes seconds.
const LOOKS: usize = 5;
const LOOKS_AT_MUCH: usize = 3;
const LARGE_SIZE: ByteCount = ByteCount(32 << 30);

/// Seconds for which `superhue heat` and `superhue attach` watch.
const WATCHED: f64 = 4.5;

/// Grows a process step by step, first with base pages, then with huge pages.
pub fn run(context: &Context) -> Result<()> {
    let sizes = plan::sizes(context.usable);
    let Some(largest) = sizes.last() else {
        return Err(Skip("no memory may be filled".to_owned()).into());
    };
    // Base pages take longer, and more sizes are measured of them.
    let most = Instant::now() + context.left() * 7 / 10;
    let mut is_first = true;
    for (kind, until, step) in [(Kind::Base, most, 1), (Kind::Huge, context.until(), 2)] {
        let mut target = Target::start(&context.own, *largest)?;
        // Huge pages are measured at every other size, the largest included.
        for size in sizes.iter().skip((sizes.len() - 1) % step).step_by(step) {
            let left = until.saturating_duration_since(Instant::now());
            let what = format!("{:.1} GiB of {} pages", gib(*size), kind.name());
            if left < Duration::from_secs(3) {
                context.note(format!("left out for want of time: {what}"))?;
                continue;
            }
            let before = target.filled();
            let seconds = target.fill(*size, context.cpus, left / 2, kind)?;
            let filled = target.filled();
            context.row(json!({
                "measure": "fill", "page": kind.name(), "gib": gib(filled), "threads": context.cpus, "seconds": seconds,
                "gib_per_second": (seconds > 0.0).then(|| (gib(filled) - gib(before)) / seconds),
            }))?;
            of_size(context, &mut target, kind, until, is_first)?;
            is_first = false;
            if filled < *size {
                context.note(format!(
                    "{what}: only {:.1} GiB were filled in the time for it",
                    gib(filled)
                ))?;
                break;
            }
        }
    }
    Ok(())
}

fn of_size(
    context: &Context,
    target: &mut Target,
    kind: Kind,
    until: Instant,
    is_first: bool,
) -> Result<()> {
    let head = json!({"page": kind.name(), "gib": gib(target.filled())});
    let row = |measure: &str, more: Value| {
        let mut row = head.clone();
        row["measure"] = measure.into();
        if let (Some(row), Value::Object(more)) = (row.as_object_mut(), more) {
            row.extend(more);
        }
        context.row(row)
    };
    match look(target) {
        Ok(found) => row("look", found)?,
        Err(error) => context.note(format!("full looks: {error:#}"))?,
    }
    for tracker in TrackerKind::ALL {
        if Instant::now() >= until {
            break;
        }
        match samples(context, target, tracker) {
            Ok(found) => row("sample", found)?,
            Err(error) if is_first => context.note(format!("tracker {tracker}: {error:#}"))?,
            Err(_) => {}
        }
    }
    target.ask("stir 1 plain free")?;
    let pid = target.pid().to_string();
    let duration = format!("{WATCHED}s");
    // By default a process of this size is not sampled.
    let heat: &[&str] = &["heat", "--max-stall", "0", "--for", &duration, &pid];
    let hot: &[&str] = &[
        "attach",
        "--json",
        "--quiet",
        "--pages",
        "hot",
        "--dry-run",
        "--max-stall",
        "0",
        "--for",
        &duration,
        &pid,
    ];
    for (measure, arguments) in [("heat", heat), ("attach", hot)] {
        if until
            .saturating_duration_since(Instant::now())
            .as_secs_f64()
            < WATCHED + 2.0
        {
            context.note(format!(
                "left out for want of time: {measure} at {:.1} GiB of {} pages",
                gib(target.filled()),
                kind.name()
            ))?;
            continue;
        }
        match watched(context, arguments) {
            Ok(found) => row(measure, found)?,
            Err(error) if is_first => context.note(format!("superhue {measure}: {error:#}"))?,
            Err(_) => {}
        }
    }
    target.still()?;
    Ok(())
}

fn looks(target: &Target) -> usize {
    if target.filled() > LARGE_SIZE {
        LOOKS_AT_MUCH
    } else {
        LOOKS
    }
}

/// Measures full looks at all regions, as the policy loop makes them.
fn look(target: &Target) -> Result<Value> {
    let (roots, id) = (Roots::default(), target.id()?);
    let mut scanner = PageScanner::new();
    let (mut wall, mut cpu) = (Vec::new(), Vec::new());
    let (mut regions, mut huge, mut resident) = (0, 0, 0);
    for _ in 0..looks(target) {
        let (begun, used) = (Instant::now(), own_cpu_seconds());
        let vmas = process::maps(&roots, target.pid())?;
        let views = scanner.regions(&roots, id, &vmas)?;
        wall.push(begun.elapsed().as_secs_f64() * 1e3);
        cpu.push((own_cpu_seconds() - used) * 1e3);
        regions = views.len();
        huge = views.iter().filter(|view| view.huge == Some(true)).count();
        resident = views.iter().map(|view| view.resident.0).sum::<u64>();
    }
    Ok(json!({
        "wall_ms": spread(&wall), "cpu_ms": spread(&cpu), "regions": regions, "huge_regions": huge, "resident_pages": resident,
        "method": scanner.method().map(process::ScanMethod::describe),
    }))
}

/// Measures samples by one tracker. The target touches all its memory between arming and reading.
fn samples(context: &Context, target: &mut Target, kind: TrackerKind) -> Result<Value> {
    let (roots, id) = (Roots::default(), target.id()?);
    let mut chosen = choose(&roots, Some(kind), Scope::Anonymous)?;
    let ranges: Vec<VirtRange> = process::maps(&roots, id.pid)?
        .iter()
        .filter(|vma| Scope::Anonymous.includes(vma))
        .map(|vma| vma.range)
        .collect();
    let [mut arm, mut locked, mut read, mut cpu, mut touch] = [const { Vec::new() }; 5];
    let (mut present, mut accessed, mut flushed) = (0, 0, false);
    let is_exact = kind != TrackerKind::Damon;
    for _ in 0..if is_exact { looks(target) } else { 2 } {
        let used = own_cpu_seconds();
        let armed = chosen.tracker.arm(id)?;
        let used = own_cpu_seconds() - used;
        touch.push(
            crate::target::number(&target.ask(&format!("touch {}", context.cpus))?, "seconds")?
                * 1e3,
        );
        let (begun, before) = (Instant::now(), own_cpu_seconds());
        let reading = chosen.tracker.read(id, &ranges)?;
        read.push(begun.elapsed().as_secs_f64() * 1e3);
        cpu.push((used + own_cpu_seconds() - before) * 1e3);
        arm.push(armed.took.as_secs_f64() * 1e3);
        locked.push(armed.locked.as_secs_f64() * 1e3);
        flushed = armed.flushed;
        if let Reading::Pages(regions) = &reading {
            let own = target.range();
            let inside = || {
                regions
                    .iter()
                    .filter(|one| own.contains(&one.region.range()))
            };
            present = inside().map(|one| one.present.len().0).sum::<u64>();
            accessed = inside().map(|one| one.accessed.len().0).sum::<u64>();
        }
    }
    chosen.tracker.release(id);
    Ok(json!({
        "tracker": kind.name(), "arm_ms": spread(&arm), "locked_ms": spread(&locked), "read_ms": spread(&read), "cpu_ms": spread(&cpu),
        "touch_ms": spread(&touch), "flushed": flushed,
        "present_pages": is_exact.then_some(present), "accessed_pages": is_exact.then_some(accessed),
    }))
}

/// Runs `superhue` on the target with a user's options, while a thread touches pages at random.
fn watched(context: &Context, arguments: &[&str]) -> Result<Value> {
    let until = (Instant::now() + Duration::from_secs_f64(WATCHED * 3.0)).min(context.until());
    let mut running = RunningCommand::start(context.superhue().args(arguments))?;
    let mut peak = None;
    let ended = loop {
        if let Some(ended) = running.ended()? {
            break ended;
        }
        peak = peak_rss(running.pid()).or(peak);
        if Instant::now() >= until {
            bail!("it did not end in time");
        }
        thread::sleep(Duration::from_millis(5));
    };
    if !ended.is_well() {
        bail!(ended.complaint());
    }
    let told = serde_json::from_str(&ended.out).unwrap_or_else(|_| told_by_heat(&ended.out));
    let part = |pointer: &str| told.pointer(pointer);
    Ok(json!({
        "tracker": part("/tracking/tracker"), "wall_seconds": ended.wall.as_secs_f64(), "cpu_seconds": ended.cpu_seconds(),
        "peak_rss_bytes": peak.map(|size| size.0), "samples": part("/samples"), "target_slowdown": part("/target_slowdown"),
        "full_looks": part("/superhue/full_looks"),
    }))
}

/// Reads the lines below the table of `superhue heat`. Its JSON output has a part for each page that differs from its neighbors, which
/// makes hundreds of megabytes at 16 GiB.
fn told_by_heat(text: &str) -> Value {
    let of = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(name));
        lines.next().map(str::trim)
    };
    let samples = of("watched").and_then(|line| {
        let (before, _) = line.split_once(" sample")?;
        before.rsplit(' ').next()?.parse::<u64>().ok()
    });
    let slowdown = of("cost").and_then(|line| {
        let (_, after) = line.split_once("slowed by ")?;
        after.split(' ').next()?.parse::<f64>().ok()
    });
    json!({
        "tracking": {"tracker": of("tracker").and_then(|line| line.split(':').next())},
        "samples": samples, "target_slowdown": slowdown.map(|percent| percent / 100.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_heat_says_is_read() {
        let text = " ACCESSED   RESIDENT  SAMPLES  MAPPING\n    0 KiB    112 KiB        0  55a6-55a7 rw-p [heap]\n\n\
            process   12781 (superhue-worklo)\n\
            watched   all memory, tracker ptwalk: 10 samples of 50 ms to 380 ms, 2.7 s of 3.0 s watched\n\
            tracker   ptwalk: the first choice, and it works here\n\
            cost      2.79 % of a CPU; the process slowed by 3.80 % (estimated)\n";
        let told = told_by_heat(text);
        assert_eq!(told["tracking"]["tracker"], "ptwalk");
        assert_eq!(told["samples"], 10);
        assert!((told["target_slowdown"].as_f64().unwrap() - 0.038).abs() < 1e-9);
        let one =
            "watched   anonymous memory, tracker ptwalk: 1 sample of 50 ms, 0.1 s of 3.0 s watched";
        assert_eq!(told_by_heat(one)["samples"], 1);
        assert_eq!(told_by_heat("nothing")["samples"], Value::Null);
    }
}

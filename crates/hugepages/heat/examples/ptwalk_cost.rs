//! Measures the cost of the tracker `ptwalk`, as JSON on standard output.
//!
//! ```text
//!   ptwalk_cost [LARGEST]     GiB of base pages, a power of two; 1 unless given
//! ```
//!
//! The process watches itself. It touches every page between arming and reading, so all bits are set. It writes the memory once before the first
//! measurement: the first touch of a frame that a hypervisor has not backed yet costs a multiple. Huge pages are measured in the same sizes, as
//! entries of 2 MiB.
//!
//! If pages are missed although all were touched, another monitor cleared their bits. `cleared` lists the number of missing pages at many readings
//! after one pass over all the memory. A monitor like DAMON shows as steps, one sampling interval apart, with nothing between them.

#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::error::Error;
use std::time::{Duration, Instant};

use serde_json::json;
use superhue_heat::{PtwalkTracker, Reading, Scope, Tracker};
use superhue_model::{PageCount, VirtRange};
use superhue_procfs::{Roots, process};
use superhue_sys::scratch::Scratch;

const GIB: usize = 1 << 30;
const RUNS: usize = 15;

fn main() -> Result<(), Box<dyn Error>> {
    let largest = match std::env::args().nth(1) {
        Some(text) => text.parse::<usize>()?,
        None => 1,
    };
    let roots = Roots::default();
    let started = Instant::now();
    let mut tracker = PtwalkTracker::new(&roots, Scope::Anonymous)?;
    let start = started.elapsed();

    let mut rows = Vec::new();
    let mut cleared = serde_json::Value::Null;
    // Arming clears the bits of all memory of the process, so there is no more than what is measured. The largest size comes first: the host then has
    // backed the frames of the others.
    let sizes: Vec<usize> = std::iter::successors(Some(largest), |gib| Some(gib / 2))
        .take_while(|gib| *gib > 0)
        .collect();
    for &gib in &sizes {
        let mut memory = Scratch::in_base_pages(gib * GIB)?;
        (0..gib * GIB / 4096).for_each(|page| memory.touch_page(page));
        rows.push(measure(&roots, &mut tracker, &mut memory, gib, 4096)?);
        if gib == largest {
            cleared = cleared_by_others(&roots, &mut tracker, &mut memory, largest)?;
        }
    }
    for &gib in &sizes {
        let mut memory = Scratch::untouched(gib * GIB)?;
        memory.advise_huge()?;
        (0..gib * 512).for_each(|region| memory.touch_page(region * 512));
        rows.push(measure(&roots, &mut tracker, &mut memory, gib, 2 << 20)?);
    }
    let report = json!({
        "start_ms": ms(start),
        "runs": RUNS,
        "measured": rows,
        "cleared": cleared,
    });
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}

/// Reads the first `gib` of `memory`, whose entries map `step` bytes.
fn measure(
    roots: &Roots,
    tracker: &mut PtwalkTracker,
    memory: &mut Scratch,
    gib: usize,
    step: usize,
) -> Result<serde_json::Value, Box<dyn Error>> {
    let this = process::identify(roots, std::process::id())?;
    let mut range = memory.range();
    range.end.0 = range.start.0 + (gib * GIB) as u64;
    let (mut arms, mut reads) = (Vec::new(), Vec::new());
    let mut seen = (0, 0);
    let mut missed = Vec::new();
    for _ in 0..RUNS {
        let armed = tracker.arm(this)?;
        for page in (0..gib * GIB / 4096).step_by(step / 4096) {
            memory.touch_page(page);
        }
        let started = Instant::now();
        let reading = tracker.read(this, &[range])?;
        reads.push(started.elapsed());
        arms.push(armed.took);
        seen = count(&reading, range);
        missed.push(seen.0 - seen.1);
    }
    let read = spread(&mut reads);
    Ok(json!({
        "gib": gib,
        "page_bytes": step,
        "read_ms": read,
        "read_ms_per_gib": read["median"].as_f64().map(|all| all / gib as f64),
        "arm_ms": spread(&mut arms),
        "present_pages": seen.0,
        "accessed_pages": seen.1,
        // By run. Not 0 if another monitor clears accessed bits too, as DAMON does, or if memory was too short for huge pages.
        "present_but_not_accessed": missed,
    }))
}

/// Touches all pages once, then only reads, for three seconds. Returns pairs of the milliseconds since then and of the pages that no longer look
/// accessed, where their number changed.
fn cleared_by_others(
    roots: &Roots,
    tracker: &mut PtwalkTracker,
    memory: &mut Scratch,
    gib: usize,
) -> Result<serde_json::Value, Box<dyn Error>> {
    let this = process::identify(roots, std::process::id())?;
    let range = memory.range();
    (0..gib * GIB / 4096).for_each(|page| memory.touch_page(page));
    let touched = Instant::now();
    let (mut steps, mut readings, mut last) = (Vec::new(), 0_u32, None);
    while touched.elapsed() < Duration::from_secs(3) {
        let (present, accessed) = count(&tracker.read(this, &[range])?, range);
        readings += 1;
        let missing = present - accessed;
        if last.replace(missing) != Some(missing) {
            steps.push(json!([ms(touched.elapsed()).round(), missing]));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(json!({ "gib": gib, "readings": readings, "ms_and_pages_missing": steps }))
}

fn count(reading: &Reading, range: VirtRange) -> (u64, u64) {
    let Reading::Pages(regions) = reading else {
        return (0, 0);
    };
    let inside = || {
        regions
            .iter()
            .filter(|one| range.contains(&one.region.range()))
    };
    let PageCount(present) = PageCount(inside().map(|one| one.present.len().0).sum());
    (present, inside().map(|one| one.accessed.len().0).sum())
}

fn spread(times: &mut [Duration]) -> serde_json::Value {
    times.sort_unstable();
    let at = |share: f64| ms(times[((times.len() - 1) as f64 * share).round() as usize]);
    json!({ "median": at(0.5), "lowest": at(0.0), "p90": at(0.9), "highest": at(1.0) })
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

//! Page colors found by timing on each core: their number, their certainty, the time it takes, and whether cores agree.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use serde_json::{Value, json};
use superhue::model::{ByteCount, Color};
use superhue::page_colors::Page;
use superhue::page_colors::oracles::{Backing, HardwareProbe, Palette, Sample, Search};

use super::{Context, Skip};
use crate::children;
use crate::serve::{allowed_cpus, stay_on, stay_on_any};

/// Pages of each test of a found palette.
const TESTED: usize = 600;

/// Measures core after core, and then all cores at once.
pub fn run(context: &Context) -> Result<()> {
    let cpus = allowed_cpus();
    let Some(first) = cpus.first().copied() else {
        return Err(Skip("no processor".to_owned()).into());
    };
    HardwareProbe::new().map_err(|error| Skip(format!("loads cannot be timed: {error}")))?;
    if context.usable.0 < 256 << 20 {
        return Err(Skip(format!("only {} of memory may be filled", context.usable)).into());
    }
    let mut reference: Option<CorePalette> = None;
    // Seconds for one core, from the last one. Other load on the machine makes the search twenty times as long, or makes it fail.
    let mut seconds = 0.6_f64;
    for (at, cpu) in cpus.iter().enumerate() {
        // The time for one more core. All cores at once, measured after it, disturb each other.
        let what = format!("{} of {} cores", cpus.len() - at, cpus.len());
        if !context.has_time_for(seconds * 1.5, &what)? {
            break;
        }
        let begun = Instant::now();
        stay_on(*cpu)?;
        let (mut row, found) = on_this(*cpu)?;
        if let Some(reference) = &reference {
            // Pages that the first core has classified, tested by their conflicts in the caches of this core.
            let agreement = reference
                .palette
                .agreement(&mut HardwareProbe::new()?, &reference.known);
            row["pages_of_first_core"] = json!({"tested": agreement.tested, "own": agreement.own, "foreign": agreement.foreign});
        }
        context.row(row)?;
        reference = reference.or(found);
        seconds = begun.elapsed().as_secs_f64();
    }
    drop(reference);
    if cpus.len() > 1 && context.has_time_for(seconds * 2.0, "all cores at once")? {
        let begun = Instant::now();
        let found: Vec<Result<Value>> = thread::scope(|scope| {
            let threads: Vec<_> = cpus
                .iter()
                .map(|cpu| scope.spawn(|| stay_on(*cpu).and_then(|()| Ok(on_this(*cpu)?.0))))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
                .collect()
        });
        let seconds = begun.elapsed().as_secs_f64();
        for row in found {
            let mut row = row?;
            row["at_once"] = cpus.len().into();
            row["seconds_of_all"] = seconds.into();
            context.row(row)?;
        }
    }
    // Comes last: disturbed timing makes it slow.
    stay_on_any(&cpus)?;
    match oracles(context, first) {
        Ok(row) => context.row(row),
        Err(error) => context.note(format!("superhue colors: {error:#}")),
    }
}

/// Result of one core.
struct CorePalette {
    /// Kept allocated while later cores test its pages.
    _sample: Sample,
    palette: Palette,
    known: Vec<(Page, Color)>,
}

/// Finds the colors of fresh pages on the core to which this thread is pinned.
fn on_this(cpu: usize) -> Result<(Value, Option<CorePalette>)> {
    let sample = Sample::new(ByteCount(32 << 20), Backing::BasePages)?;
    let mut probe = HardwareProbe::new()?;
    let begun = Instant::now();
    let palette = match Palette::discover(&mut probe, sample.pages(), &Search::default()) {
        Ok(palette) => palette,
        Err(error) => {
            let seconds = begun.elapsed().as_secs_f64();
            return Ok((
                json!({"cpu": cpu, "at_once": 1, "colors": null, "seconds": seconds, "why": error.to_string()}),
                None,
            ));
        }
    };
    let seconds = begun.elapsed().as_secs_f64();
    let members: std::collections::HashSet<Page> =
        palette.sets().iter().flatten().copied().collect();
    let step = (sample.pages().len() / TESTED / 2).max(1);
    let others: Vec<Page> = sample
        .pages()
        .iter()
        .filter(|page| !members.contains(page))
        .step_by(step)
        .copied()
        .collect();
    let mut colors = vec![None; others.len()];
    palette.classify(&mut probe, &others, &mut colors);
    let mut known: Vec<(Page, Color)> = others
        .iter()
        .zip(&colors)
        .filter_map(|(page, color)| Some((*page, (*color)?)))
        .collect();
    let classified = known.len() as f64 / others.len() as f64;
    known.truncate(TESTED);
    let agreement = palette.agreement(&mut probe, &known);
    let contrast = palette.contrast();
    let row = json!({
        "cpu": cpu, "at_once": 1, "colors": palette.colors(), "ways": palette.ways(), "seconds": seconds,
        "classified": classified,
        "tested": agreement.tested, "own": agreement.own, "foreign": agreement.foreign,
        "ticks_kept": contrast.kept, "ticks_evicted": contrast.evicted,
    });
    Ok((
        row,
        Some(CorePalette {
            _sample: sample,
            palette,
            known,
        }),
    ))
}

/// Runs `superhue colors` and returns its result for each oracle, that of frame numbers included.
fn oracles(context: &Context, cpu: usize) -> Result<Value> {
    let until = (Instant::now() + Duration::from_secs(15)).min(context.until());
    let ended = children::run(
        context
            .superhue()
            .args(["colors", "--json", "--cpu", &cpu.to_string()]),
        until,
    )?;
    // `superhue colors` exits with status 3 if no oracle is right; its output still lists the oracles and the reasons.
    let told: Value = serde_json::from_str(&ended.out).map_err(|_| anyhow!(ended.complaint()))?;
    let oracles = told["oracles"].as_array().into_iter().flatten();
    let oracles: Vec<Value> = oracles
        .map(|oracle| {
            let evicted = &oracle["predicted_to_conflict"];
            json!({
                "name": oracle["name"], "trust": oracle["trust"], "colors": oracle["colors"], "reason": oracle["reason"],
                "conflicts_predicted": evicted["tried"], "conflicts_seen": evicted["evicted"],
            })
        })
        .collect();
    Ok(
        json!({"cpu": cpu, "cache": told["cache"], "seconds": ended.wall.as_secs_f64(), "oracles": oracles}),
    )
}

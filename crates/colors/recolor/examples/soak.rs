//! `soak PID SECONDS`: gives all base pages of a process frames of one half of the colors, then of the other, over and over.
//!
//! Does to every page in memory, at full speed, what `superhue attach --colors` does to hot pages. Needs root, and swap
//! in memory that is on. Prints one line of JSON at the end: pages recolored, and the price.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example")]

use std::collections::HashSet;
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use superhue_color::oracles::{HardwareProbe, MeasuredOracle, PaletteConfig, SharedPalette};
use superhue_model::{ColorRequest, PageCount, ProcessId, VirtAddr};
use superhue_procfs::Roots;
use superhue_procfs::process::{identify, maps, present_pages, still_runs};
use superhue_recolor::{Price, RecolorError, RecolorResult, Recolorer, TargetColors};

/// Pages requested at a time, and pages looked at in one turn.
const ASKED: usize = 256;
const LOOKED: usize = 1 << 14;

/// Frames held to choose from: 64 MiB.
const HOLD: PageCount = PageCount(1 << 14);

fn main() -> ExitCode {
    match soak() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::FAILURE
        }
    }
}

fn recolorer(roots: &Roots) -> Result<Recolorer, Box<dyn Error>> {
    let config = PaletteConfig::new("/".as_ref(), None);
    let palette = SharedPalette::open_or_find(&mut HardwareProbe::new()?, &config, |_| {})?;
    let oracle = MeasuredOracle::new(palette, HardwareProbe::new()?);
    Ok(Recolorer::new(oracle, roots)?)
}

/// Pages of private and shared memory that are in memory.
fn pages(roots: &Roots, id: ProcessId) -> Vec<VirtAddr> {
    let mut found: Vec<VirtAddr> = present_pages(roots, id, LOOKED)
        .unwrap_or_default()
        .into_iter()
        .map(|found| found.page)
        .collect();
    let shared = maps(roots, id.pid).unwrap_or_default();
    let shared = shared
        .iter()
        .filter(|vma| matches!(vma.kind, superhue_model::VmaKind::Shmem(_)));
    for vma in shared {
        let all = (vma.range.start.0..vma.range.end.0).step_by(4096);
        found.extend(all.take(LOOKED).map(VirtAddr));
    }
    found
}

fn soak() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(pid), Some(seconds)) = (arguments.next(), arguments.next()) else {
        return Err("usage: soak PID SECONDS".into());
    };
    let roots = Roots::default();
    let id = identify(&roots, pid.parse()?)?;
    let end = Instant::now() + Duration::from_secs(seconds.parse()?);
    let mut recolored = 0_u64;
    let mut price = Price::default();
    let mut drifts = 0;
    let mut pending = HashSet::new();
    'colors: while Instant::now() < end {
        let mut recolorer = recolorer(&roots)?;
        let all = recolorer.colors();
        let lower = "50%".parse::<ColorRequest>()?;
        let lower = lower.of(all)?.ok_or("no colors")?;
        let upper: ColorRequest = format!("{}-{}", lower.len(), all - 1).parse()?;
        let upper = upper.of(all)?.ok_or("no colors")?;
        'turns: loop {
            for set in [&lower, &upper] {
                let want = TargetColors::Within(set.clone());
                let there = pages(&roots, id);
                // The process has ended, or is about to end.
                if there.is_empty() && (Instant::now() >= end || !still_runs(&roots, id)) {
                    price = price + recolorer.price();
                    break 'colors;
                }
                for part in there.chunks(ASKED) {
                    if Instant::now() >= end {
                        price = price + recolorer.price();
                        break 'colors;
                    }
                    // Counts pages that were not used before the last turn ended, and are mapped now.
                    for (page, color) in part
                        .iter()
                        .zip(recolorer.colors_of(id, part).unwrap_or_default())
                    {
                        recolored += u64::from(pending.remove(page) && color.is_some());
                    }
                    match recolorer.place(id, part, &want, HOLD) {
                        Ok(placed) => {
                            for (page, placed) in part.iter().zip(placed) {
                                match placed {
                                    RecolorResult::Recolored(_) => recolored += 1,
                                    RecolorResult::Unmapped => drop(pending.insert(*page)),
                                    _ => {}
                                }
                            }
                        }
                        Err(RecolorError::Gone | RecolorError::Userfaultfd) => {
                            price = price + recolorer.price();
                            break 'colors;
                        }
                        // A busy machine: find the colors again.
                        Err(RecolorError::Oracle(_)) => {
                            drifts += 1;
                            break 'turns;
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
        price = price + recolorer.price();
    }
    println!(
        "{{\"recolored_pages\": {recolored}, \"attempts\": {}, \"outs\": {}, \"ins\": {}, \"program_faults\": {}, \"cpu_seconds\": {:.2}, \"drifts\": {drifts}}}",
        price.attempts,
        price.outs,
        price.ins,
        price.program_faults,
        price.cpu.as_secs_f64()
    );
    Ok(())
}

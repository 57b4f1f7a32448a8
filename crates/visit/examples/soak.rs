//! Exchanges the pages of a running program again and again, and tells what the visits came to. Prints JSON.
//!
//! `soak SUPERHUE PID PAGES SECONDS MAX_PAUSE_MS SHARE keep|sum START:PAGES...`: until so many pages were exchanged or so many
//! seconds have passed; `keep` prints each pause. Every page is given a frame of another color each time.
#![allow(clippy::print_stdout, reason = "that is what it is for")]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures for people"
)]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;
use superhue_color::oracles::{HardwareProbe, PaletteConfig, SharedPalette};
use superhue_model::{BASE_PAGE_SIZE, Color, Obstacle, PageCount, ProcessId, VirtAddr};
use superhue_visit::{Done, Limits, Placed, Visitor, Want, Work};

/// Pages asked about in a visit.
const ASKED: usize = 1024;

#[derive(Debug, Default, Serialize)]
struct Sums {
    visits: u64,
    pages_exchanged: u64,
    pages_left: BTreeMap<String, u64>,
    /// Visits that did not take place, by what spoke against them.
    obstacles: BTreeMap<String, u64>,
    begun_again: u64,
    threads: u32,
    seconds: f64,
    /// Rounds over all of the memory, and how long the program stood still in each, in milliseconds.
    rounds: u64,
    round_pause_ms: Vec<f64>,
    round_visits: Vec<u64>,
    /// How long each visit stopped the program: in order of length, or shares of them.
    pause_ms: Vec<f64>,
    pause_ms_at: BTreeMap<&'static str, f64>,
}

struct Options {
    superhue: PathBuf,
    id: ProcessId,
    pages: u64,
    seconds: f64,
    limits: Limits,
    keep: bool,
    memory: Vec<VirtAddr>,
}

fn main() -> ExitCode {
    let result = options().and_then(|options| run(&options));
    match result.and_then(|sums| Ok(serde_json::to_string(&sums)?)) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("soak: {error}");
            ExitCode::FAILURE
        }
    }
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let mut next = || words.next().ok_or("wrong usage");
    let superhue = PathBuf::from(next()?);
    let pid: u32 = next()?.parse()?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(')').ok_or("no such process")?.1;
    let start_ticks = fields.split_whitespace().nth(19).ok_or("no start")?;
    let id = ProcessId {
        pid,
        start_ticks: start_ticks.parse()?,
    };
    let (pages, seconds) = (next()?.parse()?, next()?.parse()?);
    let limits = Limits {
        max_pause: Duration::from_secs_f64(next()?.parse::<f64>()? / 1e3),
        share: next()?.parse()?,
        room: PageCount(4096),
        ..Limits::default()
    };
    let keep = next()? == "keep";
    let mut memory = Vec::new();
    for area in words {
        let (start, count) = area.split_once(':').ok_or("START:PAGES")?;
        let start: u64 = start.parse()?;
        memory.extend((0..count.parse()?).map(|at| VirtAddr(start + at * BASE_PAGE_SIZE)));
    }
    Ok(Options {
        superhue,
        id,
        pages,
        seconds,
        limits,
        keep,
        memory,
    })
}

fn run(options: &Options) -> Result<Sums, Box<dyn Error>> {
    let mut visitor = Visitor::new(&options.superhue);
    let config = PaletteConfig::new(Path::new("/"), None);
    SharedPalette::open_or_find(&mut HardwareProbe::new()?, &config, |_| {})?;
    let colors = visitor.use_palette(&config.places)?;
    let mut sums = Sums::default();
    let mut at = 0;
    let mut round = (Duration::ZERO, 0);
    let begun = Instant::now();
    let elapsed = || begun.elapsed().as_secs_f64();
    while sums.pages_exchanged < options.pages && elapsed() < options.seconds {
        let pages: Vec<VirtAddr> = options.memory[at..].iter().take(ASKED).copied().collect();
        // Another one each round, and all of them evenly.
        let want = (0..pages.len()).map(|page| (at + page) as u64 + sums.rounds * 7);
        let want = want.map(|color| Color((color % colors as u64) as u16));
        let work = Work::Place {
            want: Want::Each(want.collect()),
            pages,
        };
        std::thread::sleep(visitor.wait_for(options.id));
        let visited = visitor.visit(options.id, &work, options.limits);
        let pause = visitor.last_pause();
        if !pause.is_zero() {
            sums.pause_ms.push(pause.as_secs_f64() * 1e3);
            round = (round.0 + pause, round.1 + 1);
        }
        let done = match visited {
            Ok(visited) => {
                sums.visits += 1;
                sums.begun_again += u64::from(visited.begun_again);
                sums.threads = sums.threads.max(visited.threads);
                visited.done
            }
            Err(obstacle) => {
                *sums
                    .obstacles
                    .entry(obstacle.describe().to_owned())
                    .or_default() += 1;
                if obstacle == Obstacle::Gone {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
        };
        let Done::Placed(placed) = done else {
            return Err("another answer than asked for".into());
        };
        // No further than to the first that there was no time for, if there is progress.
        let mut passed = 0;
        for (page, placed) in placed.iter().enumerate() {
            match placed {
                Placed::Exchanged(_) => {
                    sums.pages_exchanged += 1;
                    passed = page + 1;
                }
                Placed::Left(left) => {
                    *sums.pages_left.entry(format!("{left:?}")).or_default() += 1;
                }
            }
        }
        at += passed.max(1);
        if at >= options.memory.len() {
            at = 0;
            sums.rounds += 1;
            sums.round_pause_ms.push(round.0.as_secs_f64() * 1e3);
            sums.round_visits.push(round.1);
            round = (Duration::ZERO, 0);
        }
    }
    sums.seconds = elapsed();
    sums.pause_ms.sort_by(f64::total_cmp);
    for (name, share) in [("50 %", 0.5), ("99 %", 0.99), ("100 %", 1.0)] {
        let last = sums.pause_ms.len().saturating_sub(1);
        let index = (last as f64 * share).round() as usize;
        if let Some(pause) = sums.pause_ms.get(index) {
            sums.pause_ms_at.insert(name, *pause);
        }
    }
    if !options.keep {
        sums.pause_ms.clear();
        sums.round_pause_ms.clear();
        sums.round_visits.clear();
    }
    Ok(sums)
}

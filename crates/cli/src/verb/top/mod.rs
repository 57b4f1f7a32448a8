//! `superhue top`.
//!
//! ```text
//!   reader thread   survey, machine, mappings, objects, tracker ──TopSnapshot──┐
//!   daemon thread   asks the control socket ──────────────────────DaemonState─────┼──> rows ──> draw   (the terminal)
//!   this thread     keys ──> state ──DataRequest──> reader                       ├──────────> table, document (once)
//!                                                                                 └──────────> record ──> FILE ──> replay ──> draw ...
//! ```
//!
//! This thread waits only for the terminal: a process whose memory map is locked, a daemon that does not answer, or a
//! terminal that stalls delay only their own figures. `rows`, `state`, `draw` and `document` do nothing but calculate.

mod columns;
mod daemon;
mod document;
mod draw;
mod gathered;
mod machine;
mod reader;
mod record;
mod replay;
mod rows;
mod state;
mod table;

use std::time::{Duration, Instant};

use superhue::ceiling::apart;
use superhue::procfs::Roots;
use superhue::{Targets, cpu_time, own_cpu_time};

use crate::output::{Failure, VerbResult, print_as_it_is, print_json};
use crate::terminal::{Event, Screen, is_there};
use crate::top_args::TopArgs;
use crate::verb::members;

use daemon::DaemonPoller;
use gathered::TopSnapshot;
use reader::Reader;
use record::entry::ShownView;
use rows::Rows;
use state::{KeyOutcome, State};

/// Longest time until figures are drawn again: their age changes.
const AGAIN: Duration = Duration::from_secs(1);
/// Share of superhue's own CPU limit that making and drawing tables may take, except for drawings that a key requires.
const DRAWING: f64 = 0.25;
/// Interval at which superhue checks for something new to draw.
const GLANCE: Duration = Duration::from_millis(200);

/// Shows the memory of services, processes and objects, and the actions of the daemon.
pub fn top(args: &TopArgs) -> VerbResult {
    if let Some(path) = &args.replay {
        return replay::replay(args, path);
    }
    let roots = Roots::default();
    let targets = match args.targets.is_empty() {
        true => Targets::All,
        // A unit or a cgroup that is not there shows at once, and not as an empty screen.
        false => members::named(&roots, &args.targets)
            .and_then(|_| members::targets(&roots, &args.targets))?,
    };
    if let Some(path) = &args.record {
        return record::record(args, targets, path);
    }
    if args.json || args.once || !is_there() {
        return once(&roots, args, &targets);
    }
    let status = live(args, targets)?;
    Ok(status.into())
}

/// Looks once, and a second time for figures that are rates.
fn once(roots: &Roots, args: &TopArgs, targets: &Targets) -> VerbResult {
    let gathered = reader::gather_once(roots, args, targets)?;
    let asked = gathered.asked;
    let rows = Rows::of(&gathered.gathered, &asked);
    if args.json {
        return print_json(&document::Document::of(&gathered.gathered, &asked, &rows));
    }
    let shown = ShownView {
        gathered: &gathered.gathered,
        asked: &asked,
        rows: &rows,
    };
    print_as_it_is(&table::text(args.view, shown, None, args.width.wide))
}

/// Runs until the user ends it; returns the exit status.
fn live(args: &TopArgs, targets: Targets) -> Result<u8, Failure> {
    // Comes before any thread is started: all of them leave signals to this one.
    let mut screen = Screen::open()?;
    let mut reader = Reader::start(args, targets);
    let asking = DaemonPoller::start(args);
    let mut state = State::new(args.view);
    let mut shown: Option<(std::sync::Arc<TopSnapshot>, Rows)> = None;
    let mut drawn: Option<Instant> = None;
    let mut is_new = true;
    // Time at which the CPU limit allows the next drawing.
    let mut next = Instant::now();
    let mut asked_for = 0_u8;
    loop {
        let gathered = reader.latest();
        let is_other =
            (shown.as_ref()).is_none_or(|(before, _)| !std::sync::Arc::ptr_eq(before, &gathered));
        let is_old = drawn.is_none_or(|drawn| drawn.elapsed() >= AGAIN);
        let is_due = (is_other || is_old) && Instant::now() >= next;
        if is_due || is_new {
            let begun = cpu_time();
            if is_due || shown.is_none() {
                let rows = Rows::of(&gathered, &asking.latest());
                shown = Some((gathered, rows));
            }
            if let Some((gathered, rows)) = &shown {
                let asked = asking.latest();
                let shown = ShownView {
                    gathered,
                    asked: &asked,
                    rows,
                };
                let drawing = screen.draw(|buffer| draw::draw(buffer, &mut state, shown));
                if let Err(ending) = drawing {
                    return Ok(ending.status());
                }
                reader.wish(state.wishes());
            }
            drawn = Some(Instant::now());
            is_new = false;
            let cost = cpu_time().saturating_sub(begun);
            next = match asked_for {
                0 => Instant::now() + apart(cost, args.max_overhead * DRAWING),
                _ => Instant::now(),
            };
            asked_for = asked_for.saturating_sub(1);
        }
        match screen.next(GLANCE) {
            Event::Nothing => {}
            Event::Redraw => is_new = true,
            Event::Key(key) => {
                if state.press(key) == KeyOutcome::End {
                    return Ok(0);
                }
                is_new = true;
                // One drawing with the data that is there, and one with the data read for it.
                asked_for = 2;
            }
            Event::Ended(ending) => return Ok(ending.status()),
        }
        reader.mind();
    }
}

/// Returns the CPU time of superhue so far.
fn own_cpu() -> Duration {
    own_cpu_time()
}

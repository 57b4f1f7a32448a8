//! `superhue top --replay`: shows a record, on the same screen or as one table or document.
//!
//! ```text
//!   FILE, FILE.1 ──> record ──snapshot──> draw   (the terminal) <── keys: step, jump, go to a time
//!                                   └───> table, document (once)
//! ```

mod index;

use std::path::Path;

use super::document::Document;
use super::record::entry::Moment;
use super::state::{KeyOutcome, Playhead, State, TimeStep};
use super::{GLANCE, draw, table};
use crate::output::{FAILED, Failure, VerbResult, note, print_as_it_is, print_json};
use crate::terminal::{Event, Screen, is_there};
use crate::top_args::{TopArgs, ViewName};

use index::Record;

/// Shows the record at `path`.
pub fn replay(args: &TopArgs, path: &Path) -> VerbResult {
    let record = Record::open(path).map_err(|error| Failure::new(FAILED, error))?;
    if record.damaged() > 0 {
        note(&format!(
            "{} of {} has damaged entries, which are left out: {}",
            path.display(),
            record.len(),
            record.damaged()
        ));
    }
    let start = match args.at {
        Some(at) => record.find(at).map_err(|why| Failure::new(FAILED, why))?,
        None => record.len() - 1,
    };
    if args.json || args.once || !is_there() {
        return once(args, record, start);
    }
    let status = live(args.view, record, start)?;
    Ok(status.into())
}

/// Prints one snapshot.
fn once(args: &TopArgs, mut record: Record, index: usize) -> VerbResult {
    let moment = record
        .moment(index)
        .map_err(|error| Failure::new(FAILED, error))?;
    if args.json {
        let document = Document::of(&moment.gathered, &moment.asked, &moment.rows);
        return print_json(&document.recorded_at(moment.at));
    }
    let playhead = playhead(&record, index);
    let recorded = Some(playhead.position.as_str());
    print_as_it_is(&table::text(
        args.view,
        moment.shown(),
        recorded,
        args.width.wide,
    ))
}

fn playhead(record: &Record, index: usize) -> Playhead {
    let at = record.shown_time(index);
    Playhead {
        position: format!("{at} UTC, snapshot {} of {}", index + 1, record.len()),
        ..Playhead::default()
    }
}

/// Runs until the user ends it; returns the exit status.
fn live(view: ViewName, mut record: Record, start: usize) -> Result<u8, Failure> {
    let mut screen = Screen::open()?;
    let mut state = State::new(view);
    let mut index = start;
    let mut moment = show(&mut record, &mut state, index);
    let mut is_new = true;
    loop {
        if is_new {
            let drawing = screen.draw(|buffer| {
                draw::draw(buffer, &mut state, moment.shown());
            });
            if let Err(ending) = drawing {
                return Ok(ending.status());
            }
        }
        is_new = true;
        match screen.next(GLANCE) {
            Event::Nothing => is_new = false,
            Event::Redraw => {}
            Event::Key(key) => match state.press(key) {
                KeyOutcome::No => {}
                KeyOutcome::End => return Ok(0),
                KeyOutcome::Go(step) => match target(&record, index, step) {
                    Ok(wanted) => {
                        index = wanted;
                        moment = show(&mut record, &mut state, index);
                    }
                    Err(why) => state.complain(why),
                },
            },
            Event::Ended(ending) => return Ok(ending.status()),
        }
    }
}

/// Returns the snapshot to go to.
fn target(record: &Record, from: usize, step: TimeStep) -> Result<usize, String> {
    match step {
        TimeStep::Snapshots(by) => Ok(record.step(from, by)),
        TimeStep::Seconds(seconds) => Ok(record.jump(from, seconds)),
        TimeStep::To(time) => record.find(time),
    }
}

/// Returns the snapshot to show; an empty one with the reason if it cannot be read.
fn show(record: &mut Record, state: &mut State, index: usize) -> Moment {
    state.playhead = Some(playhead(record, index));
    record.moment(index).unwrap_or_else(|error| {
        let mut moment = Moment::default();
        moment.gathered.trouble = Some(format!("{error:#}"));
        moment
    })
}

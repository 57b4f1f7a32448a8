//! `superhue top --record`: writes snapshots to a file, without a screen.
//!
//! ```text
//!   reader thread, daemon thread ──snapshot──> rows ──> entry ──> writer ──> FILE, FILE.1
//! ```
//!
//! The same threads read as for the screen, within the same bound on their cost. The largest and the busiest processes take the place of those
//! on the screen: they are read first.

pub mod entry;
pub mod segments;
mod writer;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use superhue::ceiling::apart;
use superhue::model::ProcessId;
use superhue::sys::process::SignalSet;
use superhue::{Targets, cpu_time};

use super::columns::Column;
use super::daemon::DaemonPoller;
use super::gathered::TopSnapshot;
use super::reader::{DataRequest, Reader};
use super::rows::{Row, Rows, Subject};
use super::state::TRACKED;
use super::{DRAWING, GLANCE};
use crate::output::{FAILED, Failure, VerbResult, note};
use crate::terminal::ENDING;
use crate::top_args::{TopArgs, ViewName};
use crate::utc;

use entry::ShownView;
use writer::RecordWriter;

/// Number of processes that are read first by their size, and by their CPU time.
const READ_FIRST: usize = 64;

/// Records until a signal ends it.
pub fn record(args: &TopArgs, targets: Targets, path: &Path) -> VerbResult {
    let failed = |error: anyhow::Error| Failure::new(FAILED, error);
    let writer = RecordWriter::open(path, args.record_limit, args.interval);
    let mut writer = writer.map_err(failed)?;
    note(&format!(
        "recording to {}; Control-C ends it",
        path.display()
    ));
    // Comes before any thread is started: all of them leave signals to this one.
    let ending = SignalSet::of(&ENDING);
    let _ = ending.block();
    let mut reader = Reader::start(args, targets);
    let asking = DaemonPoller::start(args);
    let mut last = Duration::ZERO;
    let mut due = Instant::now();
    loop {
        let pause = due.saturating_duration_since(Instant::now()).min(GLANCE);
        if ending.wait(pause).is_some() {
            note(&writer.summary());
            return Ok(ExitCode::SUCCESS);
        }
        reader.mind();
        if Instant::now() < due {
            continue;
        }
        let gathered = reader.latest();
        if last.is_zero() {
            must_be_read(&gathered)?;
        }
        // Nothing was read since the last snapshot.
        if gathered.at == last {
            due = Instant::now() + GLANCE / 4;
            continue;
        }
        last = gathered.at;
        let begun = cpu_time();
        let asked = asking.latest();
        let rows = Rows::of(&gathered, &asked);
        let shown = ShownView {
            gathered: &gathered,
            asked: &asked,
            rows: &rows,
        };
        let at = since_1970().saturating_sub(reader.age(&gathered));
        writer.append(at, shown).map_err(failed)?;
        reader.wish(read_first(&rows, args));
        let cost = cpu_time().saturating_sub(begun);
        let apart = apart(cost, args.max_overhead * DRAWING);
        due = (due + args.interval).max(Instant::now() + apart);
    }
}

/// Fails if processes cannot be read at all: the record would be empty.
fn must_be_read(gathered: &TopSnapshot) -> Result<(), Failure> {
    match &gathered.trouble {
        Some(trouble) => Err(Failure::new(
            FAILED,
            format!("nothing to record: {trouble}"),
        )),
        None => Ok(()),
    }
}

fn since_1970() -> Duration {
    utc::now().unwrap_or_default()
}

/// Returns the data to read: the largest and the busiest processes first.
fn read_first(rows: &Rows, args: &TopArgs) -> DataRequest {
    let largest = first(rows, Column::Resident);
    let busiest = first(rows, Column::Cpu);
    let mut known = BTreeSet::new();
    let both = largest.iter().chain(&busiest).filter_map(|row| id_of(row));
    let processes = both.map(|id| id.pid).filter(|&pid| known.insert(pid));
    let own = std::process::id();
    let may_be_read = largest.iter().filter(|row| row.processes_read > 0);
    let tracked = may_be_read
        .filter_map(|row| id_of(row))
        .filter(|id| args.track && id.pid != own)
        .take(TRACKED);
    DataRequest {
        processes: processes.collect(),
        tracked: tracked.collect(),
        detail: None,
        objects: args.view == ViewName::Objects,
    }
}

/// Returns the first rows in the order of a column.
fn first(rows: &Rows, column: Column) -> Vec<&Row> {
    let mut all: Vec<&Row> = rows.processes.iter().collect();
    if all.len() > READ_FIRST {
        all.select_nth_unstable_by(READ_FIRST, |a, b| column.order(a, b));
        all.truncate(READ_FIRST);
    }
    all.sort_by(|a, b| column.order(a, b));
    all
}

fn id_of(row: &Row) -> Option<ProcessId> {
    match row.subject {
        Subject::Process(id) => Some(id),
        _ => None,
    }
}

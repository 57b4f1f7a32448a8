//! The table of `superhue advise` that fits the terminal: a service or process in a row, with its state and the next step.

use rustix::process::geteuid;
use superhue::advise::estimate::Interval;
use superhue::advise::{
    Advice, LEAST_GAIN, MachineFacts, Obstacle, ProcessAdvice, ServiceAdvice, State,
};
use superhue::model::{ByteCount, words};
use superhue::why::Reason;

use super::{LEAST_SHOWN, ROWS, unknown};
use crate::output::prose;
use crate::paint::{Paint, Shade};
use crate::sheet::{Column, Sheet, left, right};
use crate::verb::tlb;

/// Columns before the next step, at most.
const BEFORE: usize = 60;

/// A service, or a process without one.
struct Row {
    name: String,
    cpus: f64,
    rss: Option<ByteCount>,
    huge: Option<ByteCount>,
    possible: Option<ByteCount>,
    gain: String,
    has_gain: bool,
    next: String,
}

/// Formats services and the processes without one; processes alone if arguments name them.
pub(super) fn table(advice: &Advice, named: bool, width: usize) -> String {
    let of_service = |found: &ProcessAdvice| !named && found.service.is_some();
    let services = advice.services.iter().filter(|_| !named);
    let mut rows: Vec<Row> = services.map(|one| of(one, &advice.processes)).collect();
    let alone = advice.processes.iter().filter(|found| !of_service(found));
    rows.extend(alone.map(of_process));
    if !named {
        rows.sort_by_key(|row| std::cmp::Reverse(row.rss));
        // Rows with a gain first; the sort is stable.
        rows.sort_by_key(|row| !row.has_gain);
    }
    let is_shown = |row: &&Row| named || row.rss.is_some_and(|bytes| bytes >= LEAST_SHOWN);
    let mut shown: Vec<&Row> = rows.iter().filter(is_shown).collect();
    shown.truncate(if named { usize::MAX } else { ROWS });
    let mut table = Sheet::new(&COLUMNS);
    for row in &shown {
        table.row(row.cells());
    }
    let fitted = table.fitted(Some(width.min(BEFORE)), Paint::of_stdout());
    let mut lines = fitted.text.lines();
    let mut text = with_step(lines.next().unwrap_or_default(), TITLE, width);
    // Each row has one line: no cell is wrapped.
    for (line, row) in lines.zip(&shown) {
        text += &with_step(line, &words::harmless(&row.next), width);
    }
    let rest = rows.len() - shown.len();
    if rest > 0 {
        text += &prose(&format!(
            "{rest} more, smaller ones among them: --json has all\n"
        ));
    }
    text
}

/// Title of the next step.
const TITLE: &str = "DO";

/// Adds the next step to a row; on a line of its own where it does not fit, so that a command stays whole.
fn with_step(line: &str, next: &str, width: usize) -> String {
    let letters = next.chars().count();
    if next.is_empty() {
        format!("{line}\n")
    } else if BEFORE + 2 + letters <= width {
        format!("{line}  {next}\n")
    } else if next == TITLE {
        format!("{line}\n")
    } else {
        let indent = width.saturating_sub(letters);
        format!("{line}\n{}{next}\n", " ".repeat(indent))
    }
}

const COLUMNS: [Column; 6] = [
    left("SERVICE").cut(),
    right("CPU").rank(2),
    right("RSS").rank(4),
    right("HUGE").rank(3),
    right("CAN BE").rank(1),
    right("GAIN").shaded(shade),
];

fn shade(gain: &str) -> Option<Shade> {
    match gain {
        "blocked" => Some(Shade::Doubtful),
        gain if gain.ends_with('%') => Some(Shade::Good),
        _ => None,
    }
}

impl Row {
    fn cells(&self) -> [String; 6] {
        let size = |bytes: Option<ByteCount>| bytes.map_or("?".to_owned(), short);
        let huge = match (self.huge, self.rss) {
            (Some(huge), Some(rss)) if rss.0 > 0 => {
                format!("{:.0}%", huge.0 as f64 / rss.0 as f64 * 100.0)
            }
            _ => "?".to_owned(),
        };
        [
            self.name.clone(),
            format!("{:.2}", self.cpus),
            size(self.rss),
            huge,
            size(self.possible),
            self.gain.clone(),
        ]
    }
}

fn of(one: &ServiceAdvice, processes: &[ProcessAdvice]) -> Row {
    let members = || {
        let is_of = |found: &&ProcessAdvice| found.service.as_deref() == Some(&*one.service);
        processes.iter().filter(is_of)
    };
    let largest = members().max_by_key(|found| found.rss_bytes);
    let target = match unit(&one.service) {
        Some(unit) => format!("--unit {}", shell_words::quote(unit)),
        None => largest.map_or_else(String::new, |found| found.pid.to_string()),
    };
    let obstacle = largest.and_then(|found| found.obstacles.first());
    Row {
        name: unit(&one.service).unwrap_or(&one.service).to_owned(),
        cpus: one.cpus,
        rss: one.rss_bytes,
        huge: one.huge_bytes,
        possible: one.possible_bytes,
        gain: gain(one.state, one.gain),
        has_gain: has_gain(one.state, one.gain),
        next: next(one.state, one.gain, &target, obstacle),
    }
}

fn of_process(found: &ProcessAdvice) -> Row {
    let of_estimate = found.estimate.map(|one| one.gain);
    Row {
        name: format!("{} ({})", found.name, found.pid),
        cpus: found.cpus,
        rss: found.rss_bytes,
        huge: found.huge_bytes,
        possible: found.possible_bytes,
        gain: gain(found.state, of_estimate),
        has_gain: has_gain(found.state, of_estimate),
        next: next(
            found.state,
            of_estimate,
            &found.pid.to_string(),
            found.obstacles.first(),
        ),
    }
}

/// Returns true if the estimate shows a gain, or may hold one.
fn has_gain(state: State, gain: Option<Interval>) -> bool {
    state == State::Measured && gain.is_some_and(|gain| gain.high >= LEAST_GAIN)
}

/// Returns the estimate, or the state in its place. Unknown is `?`, never 0.
fn gain(state: State, gain: Option<Interval>) -> String {
    match (state, gain) {
        (State::Measured, Some(_)) if !has_gain(state, gain) => "none".to_owned(),
        (State::Measured, Some(gain)) => {
            let percent = |share: f64| format!("{:.0}", share * 100.0);
            format!("{}-{} %", percent(gain.low), percent(gain.high))
        }
        (State::Idle, _) => "idle".to_owned(),
        (State::Blocked, _) => "blocked".to_owned(),
        (State::Huge, _) => "is huge".to_owned(),
        (State::Small, _) => "small".to_owned(),
        (State::Ended, _) => "ended".to_owned(),
        (State::Measured | State::Unreadable | State::Unknown, _) => "?".to_owned(),
    }
}

fn next(state: State, gain: Option<Interval>, target: &str, obstacle: Option<&Obstacle>) -> String {
    match state {
        State::Measured if !has_gain(state, gain) => String::new(),
        State::Measured | State::Unknown => format!("superhue trial {target}"),
        State::Idle => "ask again under load".to_owned(),
        State::Unreadable if geteuid().is_root() => "see --json for the reason".to_owned(),
        State::Unreadable => "run as root".to_owned(),
        State::Blocked => obstacle
            .map_or("see status --why", |one| remedy(one.reason))
            .to_owned(),
        State::Huge | State::Small | State::Ended => String::new(),
    }
}

/// Returns the shortest remedy for what blocks most of a process's memory; `superhue status --why` has the long one.
const fn remedy(reason: Reason) -> &'static str {
    match reason {
        Reason::Misaligned => "restart with shmem_enabled=advise",
        Reason::CopyOnWrite => "shared since a fork",
        Reason::Disabled => "allow huge pages (prctl)",
        Reason::NoRoom => "raise the cgroup's limit",
        Reason::Sparse => "too sparse for huge pages",
        _ => "see superhue status --why",
    }
}

/// Returns the unit's name as options take it; `None` if it is none.
fn unit(service: &str) -> Option<&str> {
    let name = service.strip_suffix(".service");
    name.or_else(|| service.ends_with(".scope").then_some(service))
}

/// Formats a size in at most six characters: `584M`, `1.2G`.
fn short(bytes: ByteCount) -> String {
    let mib = bytes.0 as f64 / f64::from(1 << 20);
    if mib < 9999.5 {
        format!("{mib:.0}M")
    } else {
        format!("{:.1}G", mib / 1024.0)
    }
}

/// Formats the remarks on the machine that the reader of the table needs.
pub(super) fn notes(facts: &MachineFacts) -> String {
    let mut text = String::from("\n");
    match (facts.tlb_reach_base_bytes, &facts.tlb_unknown_because) {
        (Some(base), _) => {
            text += &format!(
                "GAIN: estimated share of the CPU time. The TLB reaches {base} with base pages{}.\n",
                tlb::source(&facts.tlb)
            );
            text += tlb::remark(&facts.tlb);
        }
        (None, Some(why)) => {
            text += &format!("GAIN is not known: {why}. `superhue trial` measures it.\n");
        }
        (None, None) => {}
    }
    text + &unknown(facts)
}

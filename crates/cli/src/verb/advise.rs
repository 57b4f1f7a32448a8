//! `superhue advise`.

mod brief;

use std::time::Duration;

use superhue::advise::estimate::Interval;
use superhue::advise::{
    Advice, AdviseError, AdviseRequest, MachineFacts, ProcessAdvice, State, advise as look,
};
use superhue::model::{ByteCount, counted};
use superhue::procfs::Roots;
use superhue::procfs::hardware::Cpuid;
use superhue_daemon::rules::GroupFacts;

use crate::advise_args::AdviseArgs;
use crate::output::{
    Failure, VerbResult, fitted, note, print_as_it_is, print_json, prose, size, terminal_width,
};
use crate::sheet::{Column, Sheet, left, right};
use crate::verb::ending::EndingSignals;
use crate::verb::members::{code_of_read, named};
use crate::verb::tlb;

/// Rows of a table for all processes; JSON has all.
const ROWS: usize = 20;

/// Columns of a table where the terminal does not say how many it has.
const NARROW: usize = 80;

/// Smaller processes are counted and not shown, unless an argument names them.
const LEAST_SHOWN: ByteCount = ByteCount(16 << 20);

/// Prints which processes would gain from huge pages.
pub fn advise(args: &AdviseArgs) -> VerbResult {
    let roots = Roots::default();
    let members = named(&roots, &args.targets)?;
    let is_named = members.is_some();
    let is_group = members.as_ref().is_some_and(|members| members.is_group);
    let asked = AdviseRequest {
        pids: members.map_or_else(Vec::new, |members| members.pids),
        is_group,
        time: args.time,
        largest_footprint: args.footprint,
        service_of,
        cpuid: Cpuid::native(),
        tlb: args.tlb.tlb,
    };
    let signals = EndingSignals::hold();
    let mut ended = false;
    let mut interrupted = || {
        ended = ended || signals.wait(Duration::ZERO);
        ended
    };
    let result = look(&roots, &asked, &mut interrupted);
    signals.release();
    let advice =
        result.map_err(|AdviseError::Read(error)| Failure::new(code_of_read(&error), error))?;
    if ended {
        note("interrupted: the result is of what was watched until then");
    }
    if args.json {
        return print_json(&advice);
    }
    print_as_it_is(&text(&advice, args, is_named))
}

/// Returns the service or scope of a process, else its cgroup; `None` for the root cgroup.
fn service_of(roots: &Roots, pid: u32) -> Option<String> {
    let group = GroupFacts::of_process(roots, pid)?;
    (group.path != "/").then(|| group.service().into_owned())
}

fn text(advice: &Advice, args: &AdviseArgs, named: bool) -> String {
    if args.wide {
        let mut text = prose(&machine(&advice.machine));
        text += &processes(&advice.processes, named);
        text += &prose(&obstacles(&advice.processes, named));
        text += &services(advice);
        return text + &prose(&attempts(&advice.processes));
    }
    let width = terminal_width().map_or(NARROW, usize::from).min(120);
    let mut text = brief::table(advice, named, width);
    text += &prose(&obstacles(&advice.processes, named));
    text += &prose(&drop_in(&advice.processes, named));
    text + &prose(&brief::notes(&advice.machine))
}

fn machine(facts: &MachineFacts) -> String {
    let source = tlb::source(&facts.tlb);
    let mut text = match (facts.tlb_reach_base_bytes, facts.tlb_reach_huge_bytes) {
        (Some(base), Some(huge)) => {
            format!("The TLB reaches {base} with base pages, {huge} with huge pages{source}.")
        }
        (Some(base), None) => format!("The TLB reaches {base} with base pages{source}."),
        _ => format!(
            "The reach of this CPU's TLB is not known: {}. So gains are not known; what is touched is.",
            facts
                .tlb_unknown_because
                .as_deref()
                .unwrap_or("nobody says")
        ),
    };
    if let Some(last) = facts.walks.last() {
        let together = facts.walks.iter().rfind(|walk| walk.together);
        text += &format!(
            " A miss in {} of base pages costs a load that waits for it {:.0} ns here",
            last.footprint_bytes,
            last.chained_seconds * 1e9,
        );
        if let Some(together) = together {
            let ns = together.chained_seconds * 1e9;
            text += &format!(", {ns:.0} where neighbouring pages lie side by side");
        }
        text += if facts.virtual_machine {
            " (a virtual machine: walks are longer).\n"
        } else {
            ".\n"
        };
    } else {
        text.push('\n');
    }
    text += tlb::remark(&facts.tlb);
    text += &unknown(facts);
    if facts.tlb_reach_base_bytes.is_some() {
        text += &match &facts.miss_counters_unknown_because {
            Some(why) => format!(
                "Gains are estimates by a model of touches that were seen, not of counted misses: {why}.\n"
            ),
            None => {
                "Gains are estimates by a model of misses that the processor counted.\n".to_owned()
            }
        };
    }
    text + "\n"
}

/// Formats the reasons why gains are not known, a line for each.
fn unknown(facts: &MachineFacts) -> String {
    let mut text = String::new();
    for (what, why) in [
        (
            "The cost of a TLB miss is not known",
            &facts.walks_unknown_because,
        ),
        (
            "Accesses cannot be tracked, so gains are not known",
            &facts.tracker_unknown_because,
        ),
    ] {
        if let Some(why) = why {
            text += &format!("{what}: {why}.\n");
        }
    }
    text
}

fn gain(gain: Option<Interval>) -> String {
    gain.map_or_else(
        || "?".to_owned(),
        |gain| {
            let percent = |share: f64| format!("{:.0}", share * 100.0);
            format!(
                "{} % ({} to {})",
                percent(gain.likely),
                percent(gain.low),
                percent(gain.high)
            )
        },
    )
}

const PROCESSES: [Column; 12] = [
    right("PID"),
    left("NAME"),
    right("CPUS"),
    right("RSS"),
    right("HUGE"),
    right("POSSIBLE"),
    right("HOT 1MS"),
    right("HOT 100MS"),
    right("UNTOUCHED"),
    right("TABLES"),
    left("GAIN"),
    left("WHY"),
];

fn processes(processes: &[ProcessAdvice], named: bool) -> String {
    let is_shown = |found: &&ProcessAdvice| {
        named
            || found.estimate.is_some()
            || found.rss_bytes.is_some_and(|bytes| bytes >= LEAST_SHOWN)
    };
    let shown: Vec<&ProcessAdvice> = processes.iter().filter(is_shown).collect();
    let rows = if named {
        shown.len()
    } else {
        shown.len().min(ROWS)
    };
    let mut table = Sheet::new(&PROCESSES);
    for found in shown.iter().take(rows) {
        let gains = match (found.estimate, found.no_gain, found.state) {
            (_, _, State::Idle) => "idle".to_owned(),
            (_, _, State::Blocked) => "blocked".to_owned(),
            (Some(one), _, _) => gain(Some(one.gain)),
            (None, Some(_), _) => "none".to_owned(),
            (None, None, _) => "?".to_owned(),
        };
        table.row([
            found.pid.to_string(),
            found.name.clone(),
            format!("{:.2}", found.cpus),
            size(found.rss_bytes),
            size(found.huge_bytes),
            size(found.possible_bytes),
            size(found.hot_1ms_bytes),
            size(found.hot_100ms_bytes),
            size(found.untouched_bytes),
            size(found.page_table_bytes),
            gains,
            found.because.clone(),
        ]);
    }
    let mut text = fitted(&table, true);
    let rest = processes.len() - rows;
    if rest > 0 {
        let others = counted(rest as u64, "other");
        text += &format!(" and {others}, smaller or without an estimate\n");
    }
    text
}

/// Lists the obstacles of processes that an argument names.
fn obstacles(processes: &[ProcessAdvice], named: bool) -> String {
    let mut text = String::new();
    for found in processes.iter().filter(|_| named) {
        if !found.obstacles.is_empty() {
            text += &format!("\nObstacles to huge pages in process {}:\n", found.pid);
            for one in &found.obstacles {
                text += &format!("  {:>10}  {}\n", one.bytes.to_string(), one.text);
            }
        }
    }
    text
}

/// Shows the lines for the unit file of a named service, if its allocator can ask for huge pages.
fn drop_in(processes: &[ProcessAdvice], named: bool) -> String {
    let lines = |found: &ProcessAdvice| {
        let attempts = found.attempts.iter();
        let mut lines = attempts.filter(|text| text.starts_with("[Service]"));
        Some((found.service.clone()?, lines.next()?.replace('\n', "\n  ")))
    };
    match processes.iter().filter(|_| named).find_map(lines) {
        Some((service, lines)) => format!(
            "\nOr its allocator asks for huge pages after a restart, which may cost memory (systemctl edit {service}):\n  {lines}\n"
        ),
        None => String::new(),
    }
}

const SERVICES: [Column; 7] = [
    left("SERVICE"),
    right("PROCESSES"),
    right("CPUS"),
    right("RSS"),
    right("HUGE"),
    right("POSSIBLE"),
    left("GAIN"),
];

fn services(advice: &Advice) -> String {
    if advice.services.is_empty() {
        return String::new();
    }
    let mut table = Sheet::new(&SERVICES);
    for one in advice.services.iter().take(ROWS) {
        table.row([
            one.service.clone(),
            one.processes.to_string(),
            format!("{:.2}", one.cpus),
            size(one.rss_bytes),
            size(one.huge_bytes),
            size(one.possible_bytes),
            gain(one.gain),
        ]);
    }
    let rest = advice.services.len().saturating_sub(ROWS);
    let more = if rest > 0 {
        format!(" and {rest} more\n")
    } else {
        String::new()
    };
    format!("\n{}{more}", fitted(&table, true))
}

/// Returns the line in place of commands to try: it counts the processes whose gain may be known later.
fn nothing_to_try(processes: &[ProcessAdvice]) -> String {
    let open = [
        (State::Idle, "idle"),
        (State::Blocked, "blocked"),
        (State::Unreadable, "not readable"),
    ];
    let counts = open.iter().filter_map(|(state, word)| {
        let count = processes.iter().filter(|found| found.state == *state);
        let count = count.count();
        (count > 0).then(|| format!("{count} {word}"))
    });
    let counts: Vec<String> = counts.collect();
    match counts.is_empty() {
        true => "\nNothing to try: no process here shows a gain.\n".to_owned(),
        false => format!("\nNothing to try now. Processes: {}.\n", counts.join(", ")),
    }
}

fn attempts(processes: &[ProcessAdvice]) -> String {
    let worth: Vec<&ProcessAdvice> = processes
        .iter()
        .filter(|found| !found.attempts.is_empty())
        .collect();
    let Some(first) = worth.first() else {
        return nothing_to_try(processes);
    };
    let mut text = format!("\nTry for process {} ({}):\n", first.pid, first.name);
    for attempt in &first.attempts {
        for line in attempt.lines() {
            text += &format!("  {line}\n");
        }
    }
    if worth.len() > 1 {
        let others: Vec<String> = worth
            .iter()
            .skip(1)
            .take(5)
            .map(|found| found.pid.to_string())
            .collect();
        text += &format!("The same for {}.\n", others.join(", "));
    }
    text
}

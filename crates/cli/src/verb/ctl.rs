//! `superhue ctl`.

mod gain;
mod trial;
mod trouble;

use std::collections::BTreeSet;
use std::path::Path;

use superhue::live::{LiveColors, LiveMemory, WatchAccount};
use superhue::model::{ByteCount, counted};
use superhue::procfs::Roots;
use superhue_daemon::account::{
    DaemonAccount, HoldAccount, PodsAccount, RuleAccount, UsersAccount,
};
use superhue_daemon::ctl::{Answer, AskError, Request, RuleSummary, Why, ask};
use superhue_daemon::metrics::Format;

use crate::args::{CtlArgs, CtlRequest};
use crate::output::{
    FAILED, Failure, UNABLE, VerbResult, fitted, note, print, print_as_it_is, print_json, prose,
    size,
};
use crate::paint::Shade;
use crate::sheet::{Column, Sheet, left, right};
use crate::utc;

use super::members;

/// Most processes left alone that are listed one by one.
const HELD_UP_SHOWN: usize = 10;

/// Number of waiting processes that is normal at any time.
const BEHIND: u64 = 200;

/// Sends a request to the daemon, and shows the answer.
pub fn ctl(args: &CtlArgs) -> VerbResult {
    let request = match &args.request {
        CtlRequest::Status => Request::Status,
        CtlRequest::Rules => Request::Rules,
        CtlRequest::Why { targets } => Request::Why {
            pid: members::one(&Roots::default(), targets)?,
        },
        CtlRequest::Metrics { openmetrics } => Request::Metrics {
            format: if *openmetrics {
                Format::OpenMetrics
            } else {
                Format::Plain
            },
        },
        CtlRequest::Pause => Request::Pause,
        CtlRequest::Resume => Request::Resume,
        CtlRequest::Reload => Request::Reload,
        CtlRequest::Trial(of) => return trial::trial(of, &args.socket, args.json),
    };
    let mut answer = answer_to(&args.socket, request)?;
    if let Answer::Status { status } = &mut answer {
        add_idle_rules(&args.socket, status);
    }
    if args.json {
        print_json(&answer)?;
        return Ok(match answer {
            Answer::Refused { .. } => FAILED.into(),
            _ => std::process::ExitCode::SUCCESS,
        });
    }
    match answer {
        Answer::Status { status } => print_as_it_is(&status_text(&status, args.wide)),
        Answer::Rules { rules } => print_as_it_is(&rules_table(&rules, args.wide)),
        Answer::Why(why) => print(&why_text(&why)),
        // Metrics are harmless: the daemon escapes foreign text in them.
        Answer::Metrics { text } => print_as_it_is(&text),
        Answer::Done { text } => print(&format!("{text}\n")),
        // To a request that only a trial makes.
        Answer::Held(held) => print(&format!("rule {} is held\n", held.rule.name)),
        Answer::Refused { text } => {
            let mut lines = text.lines();
            let first = lines.next().unwrap_or_default();
            let failure = Failure::new(FAILED, first);
            lines.for_each(note);
            Err(failure)
        }
    }
}

/// Sends a request and waits for the answer.
fn answer_to(socket: &Path, request: Request) -> Result<Answer, Failure> {
    ask(socket, request).map_err(|error| Failure::new(code_of(&error), error))
}

/// Returns the exit status for a daemon that cannot be reached.
const fn code_of(error: &AskError) -> u8 {
    match error {
        AskError::Denied(_) => UNABLE,
        _ => FAILED,
    }
}

/// Adds the rules that have had no process so far. The daemon's account has only the others, and a rule that matches nothing is what its author
/// looks for.
fn add_idle_rules(socket: &Path, status: &mut DaemonAccount) {
    let Ok(Answer::Rules { rules }) = answer_to(socket, Request::Rules) else {
        return;
    };
    let names: BTreeSet<String> = rules.iter().map(|rule| rule.name.clone()).collect();
    // A reload in between may have changed the rules.
    let mut known: Vec<RuleAccount> = std::mem::take(&mut status.rules);
    let mut all = Vec::with_capacity(rules.len());
    for rule in rules {
        let place = known.iter().position(|one| one.name == rule.name);
        all.push(match place {
            Some(place) => known.remove(place),
            None => RuleAccount {
                off: rule.placement.starts_with("off"),
                name: rule.name,
                processes: rule.processes,
                ..RuleAccount::default()
            },
        });
    }
    all.extend(known.into_iter().filter(|one| !names.contains(&one.name)));
    status.rules = all;
}

fn status_text(status: &DaemonAccount, wide: bool) -> String {
    let mut text = prose(&headlines(status));
    if !status.rules.is_empty() {
        text += "\n";
        text += &services_table(status, wide);
        text += &prose(&gain::hint(status));
    }
    let now = utc::now().unwrap_or_default().as_secs();
    for rule in &status.rules {
        if rule.held {
            text += &prose(&held_text(rule, &status.holds));
        }
        if let Some(trial) = &rule.trial {
            text += &prose(&gain::sentence(&rule.name, trial, now));
        }
        let Some(watch) = &rule.watch else { continue };
        for sentence in trouble::sentences(watch) {
            text += &prose(&format!("rule {}: {sentence}\n", rule.name));
        }
        if let Some(colors) = &watch.colors {
            text += &prose(&format!("rule {}: {}\n", rule.name, colors_text(colors)));
        }
    }
    text
}

/// Returns a sentence on a rule that a client holds. An older daemon does not name the process.
fn held_text(rule: &RuleAccount, holds: &[HoldAccount]) -> String {
    let name = &rule.name;
    let hold = holds.iter().find(|hold| hold.rule == *name);
    let owner = hold.map_or_else(|| "a client".to_owned(), HoldAccount::owner);
    format!("rule {name}: the daemon leaves its processes alone while {owner} holds the rule\n")
}

/// Returns the lines above the table.
fn headlines(status: &DaemonAccount) -> String {
    let own = &status.own;
    let share = own.cpu_seconds / status.uptime_seconds.max(1e-9) * 100.0;
    let memory = size(own.rss_bytes);
    let mut text = format!(
        "superhue daemon {} (process {}), up for {:.0} s: {}{}; {share:.2} % of a CPU, {memory}\n",
        status.version,
        status.pid,
        status.uptime_seconds,
        counted(status.rules_total, "rule"),
        if status.paused {
            ", PAUSED (superhue ctl resume)"
        } else {
            ""
        },
    );
    if let Some(error) = &status.config.error {
        text +=
            &format!("the last configuration was refused, older rules are in force:\n{error}\n");
    }
    if let Some(because) = &status.discovery.limited_because {
        text += &format!("services are found late: {because}\n");
    }
    match (&status.metrics.error, &status.metrics.address) {
        (Some(error), _) => text += &format!("{error} (tried again)\n"),
        (None, Some(address)) => text += &format!("metrics are served at {address}\n"),
        (None, None) => {}
    }
    text += &users_line(&status.users);
    text += &held_up(status);
    if let Some(pods) = &status.discovery.pods {
        text += &pods_line(pods);
    }
    text
}

/// Returns lines about processes that hold up workers, and those that are left alone for that; empty if there are none.
fn held_up(status: &DaemonAccount) -> String {
    let (workers, discovery) = (&status.workers, &status.discovery);
    let mut text = String::new();
    for left in &workers.left_behind {
        text += &format!(
            "{} of {} has held up a watch of rule {} for {:.0} s: worker {} is given up and cannot end before it\n",
            process(left.process),
            left.tenant,
            left.rule.as_deref().unwrap_or("?"),
            left.seconds,
            left.worker
                .map_or_else(|| "?".to_owned(), |pid| pid.to_string()),
        );
    }
    if discovery.readers_left_behind > 0 {
        let count = discovery.readers_left_behind;
        let workers = counted(count, "worker");
        let verb = if count == 1 { "is" } else { "are" };
        text += &format!("{workers} for reading processes {verb} given up and cannot end\n");
    }
    let left_alone = workers.left_alone.iter().chain(&discovery.left_alone);
    for held in left_alone.take(HELD_UP_SHOWN) {
        text += &format!(
            "{} of {} is left alone for a while: it holds up each process that reads or changes it\n",
            process(held.process),
            held.tenant
        );
    }
    let more =
        (workers.left_alone.len() + discovery.left_alone.len()).saturating_sub(HELD_UP_SHOWN);
    if more > 0 {
        text += &format!("and {} likewise\n", counted(more as u64, "more process"));
    }
    if discovery.behind > BEHIND {
        text += &format!(
            "{} processes wait to be looked at: their tenants have many\n",
            discovery.behind
        );
    }
    text
}

fn process(pid: Option<u32>) -> String {
    pid.map_or_else(|| "a process".to_owned(), |pid| format!("process {pid}"))
}

/// Returns a line about users; empty if no users are allowed.
fn users_line(users: &UsersAccount) -> String {
    if let Some(error) = &users.error {
        return format!("{error}\n");
    }
    let Some(socket) = &users.socket else {
        return String::new();
    };
    let UsersAccount {
        clients,
        started,
        failed,
        refused,
        ..
    } = users;
    format!(
        "users are served at {socket}: {} now, {started} so far ({failed} failed), {refused} refused\n",
        counted(*clients, "program")
    )
}

fn colors_text(colors: &LiveColors) -> String {
    if let Some(why) = &colors.without {
        return format!("without colors: {why}");
    }
    let LiveColors {
        request,
        wanted,
        oracle,
        recolored_pages,
        ..
    } = colors;
    let share = colors.share.map_or(String::new(), |share| {
        let percent = share * 100.0;
        // An earlier daemon does not report the known part.
        let known = match colors.known_bytes {
            ByteCount(0) => colors.resident_bytes,
            known => known,
        };
        let unknown = colors.resident_bytes.0.saturating_sub(known.0);
        let rest = match unknown {
            0 => String::new(),
            unknown => format!(" (the colors of {} are not known)", ByteCount(unknown)),
        };
        format!("; {percent:.1} % of {known} accessed memory is on them{rest}")
    });
    format!(
        "{wanted} of {} colors ({request}), by oracle {oracle}{share}; {} recolored",
        colors.colors,
        counted(*recolored_pages, "page")
    )
}

const SERVICES: [Column; 11] = [
    left("RULE").cut(),
    left("SERVICE").cut().shaded(shade),
    right("PROCESSES").rank(5),
    right("RSS").rank(1),
    right("HUGE").rank(2),
    right("COVERAGE"),
    right("GAIN").rank(3),
    right("CONVERGED").rank(6),
    right("COLLAPSES").rank(4),
    right("STALLED").rank(7),
    right("CPU").rank(8),
];

/// State of a rule that has had no process so far.
const NO_PROCESS: &str = "no process";

fn shade(service: &str) -> Option<Shade> {
    (service == NO_PROCESS).then_some(Shade::Doubtful)
}

/// Returns a table with a line for each rule, and one for each of its services.
fn services_table(status: &DaemonAccount, wide: bool) -> String {
    let mut table = Sheet::new(&SERVICES);
    for rule in &status.rules {
        let Some(watch) = &rule.watch else {
            let state = match (rule.off, rule.processes) {
                (true, _) => "left alone",
                (false, 0) => NO_PROCESS,
                (false, _) => "",
            };
            table.row([rule.name.as_str(), state, &rule.processes.to_string()]);
            continue;
        };
        let cpu = format!("{:.2} s", watch.own.cpu_seconds);
        table.row(row(
            [&rule.name, &policy(watch)],
            &watch.memory,
            [
                gain::cell(rule),
                String::new(),
                watch.collapses.done.to_string(),
                seconds(watch.stalls.collapsing_seconds),
                cpu,
            ],
        ));
        for (label, service) in &watch.services {
            if service.memory.processes == 0 {
                continue;
            }
            // The service may have begun before the daemon saw it.
            let converged = rule.converged_seconds.get(label);
            table.row(row(
                ["", label],
                &service.memory,
                [
                    String::new(),
                    converged.map_or("?".to_owned(), |&after| seconds(after)),
                    service.actions.collapses_done.to_string(),
                    seconds(service.actions.collapsing_seconds),
                    String::new(),
                ],
            ));
        }
    }
    fitted(&table, wide)
}

fn row(names: [&str; 2], memory: &LiveMemory, done: [String; 5]) -> [String; 11] {
    let huge = size(memory.huge_bytes);
    let coverage = memory
        .coverage
        .map_or("-".to_owned(), |it| format!("{:.1} %", it * 100.0));
    let [gain, converged, collapses, stalled, cpu] = done;
    [
        names[0].to_owned(),
        names[1].to_owned(),
        memory.processes.to_string(),
        memory.resident_bytes.to_string(),
        huge,
        coverage,
        gain,
        converged,
        collapses,
        stalled,
        cpu,
    ]
}

fn policy(watch: &WatchAccount) -> String {
    match (watch.pages, &watch.tracker) {
        (Some(pages), Some(tracker)) => format!("({pages}, {tracker})"),
        (Some(pages), None) => format!("({pages})"),
        (None, _) => "(no memory worth it yet)".to_owned(),
    }
}

/// Returns a line about the kubelet's answers.
fn pods_line(pods: &PodsAccount) -> String {
    let known = match (pods.known, pods.age_seconds) {
        (Some(known), Some(age)) => {
            format!("{}, asked {} ago", counted(known, "pod"), seconds(age))
        }
        _ => "pods unknown".to_owned(),
    };
    match &pods.error {
        None => format!("{known}\n"),
        Some(error) => format!("{known}; the kubelet does not answer now: {error}\n"),
    }
}

fn seconds(seconds: f64) -> String {
    if seconds < 1.0 {
        format!("{:.1} ms", seconds * 1e3)
    } else {
        format!("{seconds:.1} s")
    }
}

const RULES: [Column; 5] = [
    left("RULE").cut(),
    right("PROCESSES"),
    left("IF").wrapped(),
    left("THEN").wrapped(),
    left("WHERE").cut().rank(1),
];

/// Returns a table of the rules, in order.
pub fn rules_table(rules: &[RuleSummary], wide: bool) -> String {
    if rules.is_empty() {
        return "there are no rules: every process is left alone\n".to_owned();
    }
    let mut table = Sheet::new(&RULES);
    for rule in rules {
        table.row([
            rule.name.clone(),
            rule.processes.to_string(),
            rule.conditions.clone(),
            rule.placement.clone(),
            rule.place.clone(),
        ]);
    }
    fitted(&table, wide)
}

fn why_text(why: &Why) -> String {
    let mut text = format!(
        "process {} in cgroup {}\n",
        why.pid,
        why.cgroup.as_deref().unwrap_or("(unknown)")
    );
    if why.passed_unlisted > 0 {
        let rules = counted(why.passed_unlisted, "rule");
        let verb = if why.passed_unlisted == 1 {
            "does"
        } else {
            "do"
        };
        text += &format!("  {rules} before {verb} not hold\n");
    }
    for verdict in &why.passed {
        text += &format!("  not {}: {}\n", verdict.rule, verdict.because);
    }
    match &why.rule {
        Some(rule) => text += &format!("rule {rule}: {}\n", why.placement),
        None => text += &format!("{}\n", why.placement),
    }
    if why.watched {
        text += "its memory is being watched\n";
    }
    if let Some(trouble) = &why.trouble {
        text += &format!("but: {trouble}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use superhue::live::ServiceAccount;
    use superhue::model::ByteCount;

    use super::*;

    #[test]
    fn a_service_shows_its_convergence_or_that_it_is_unknown() {
        let service = ServiceAccount {
            memory: LiveMemory {
                processes: 1,
                huge_bytes: Some(ByteCount(2 << 20)),
                ..LiveMemory::default()
            },
            ..ServiceAccount::default()
        };
        let names = ["a.service", "b.service"].map(str::to_owned);
        let watch = WatchAccount {
            services: names.clone().map(|name| (name, service)).into(),
            trouble: Some("no tracker works here".to_owned()),
            ..WatchAccount::default()
        };
        let status = DaemonAccount {
            rules: vec![RuleAccount {
                name: "r".to_owned(),
                held: true,
                watch: Some(Arc::new(watch)),
                converged_seconds: BTreeMap::from([("a.service".to_owned(), 12.0)]),
                ..RuleAccount::default()
            }],
            holds: vec![HoldAccount {
                rule: "r".to_owned(),
                pid: Some(812),
                uid: Some(1000),
            }],
            ..DaemonAccount::default()
        };
        let text = status_text(&status, true);
        let [known, unknown] = names.map(|name| {
            let mut lines = text.lines().filter(|line| line.contains(&name));
            lines
                .next()
                .unwrap()
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        });
        // Coverage is not known; then convergence, collapses, stalls.
        assert!(known.ends_with(" 2.0 MiB - 12.0 s 0 0.0 ms"), "{known}");
        assert!(unknown.ends_with(" 2.0 MiB - ? 0 0.0 ms"), "{unknown}");
        assert!(
            text.ends_with(
                "\nrule r: the daemon leaves its processes alone while process 812 of user 1000 holds the rule\nrule r: no tracker works here\n"
            ),
            "{text}"
        );
    }
}

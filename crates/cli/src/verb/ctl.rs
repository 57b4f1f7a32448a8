//! `superhue ctl`.

use comfy_table::Table;
use superhue::live::{LiveColors, LiveMemory, WatchAccount};
use superhue_daemon::account::{DaemonAccount, PodsAccount, UsersAccount};
use superhue_daemon::ctl::{Answer, AskError, Request, RuleSummary, Why, ask};
use superhue_daemon::metrics::Format;

use crate::args::{CtlArgs, CtlRequest};
use crate::output::{
    FAILED, Failure, UNABLE, VerbResult, note, print, print_as_it_is, print_json, right, size,
    table, text_of,
};

/// Most processes left alone that are listed one by one.
const HELD_UP_SHOWN: usize = 10;

/// Number of waiting processes that is normal at any time.
const BEHIND: u64 = 200;

/// Sends a request to the daemon, and shows the answer.
pub fn ctl(args: &CtlArgs) -> VerbResult {
    let request = match args.request {
        CtlRequest::Status => Request::Status,
        CtlRequest::Rules => Request::Rules,
        CtlRequest::Why { pid } => Request::Why { pid },
        CtlRequest::Metrics { openmetrics } => Request::Metrics {
            format: if openmetrics {
                Format::OpenMetrics
            } else {
                Format::Plain
            },
        },
        CtlRequest::Pause => Request::Pause,
        CtlRequest::Resume => Request::Resume,
        CtlRequest::Reload => Request::Reload,
    };
    let answer = ask(&args.socket, request).map_err(|error| {
        let code = match error {
            AskError::Denied(_) => UNABLE,
            _ => FAILED,
        };
        Failure::new(code, error)
    })?;
    if args.json {
        print_json(&answer)?;
        return Ok(match answer {
            Answer::Refused { .. } => FAILED.into(),
            _ => std::process::ExitCode::SUCCESS,
        });
    }
    match answer {
        Answer::Status { status } => print(&status_text(&status)),
        Answer::Rules { rules } => print(&rules_table(&rules)),
        Answer::Why(why) => print(&why_text(&why)),
        // Metrics are harmless: the daemon escapes foreign text in them.
        Answer::Metrics { text } => print_as_it_is(&text),
        Answer::Done { text } => print(&format!("{text}\n")),
        Answer::Refused { text } => {
            let mut lines = text.lines();
            let first = lines.next().unwrap_or_default();
            let failure = Failure::new(FAILED, first);
            lines.for_each(note);
            Err(failure)
        }
    }
}

fn status_text(status: &DaemonAccount) -> String {
    let own = &status.own;
    let share = own.cpu_seconds / status.uptime_seconds.max(1e-9) * 100.0;
    let memory = size(own.rss_bytes);
    let mut text = format!(
        "superhue daemon {} (process {}), up for {:.0} s: {} rules{}; {share:.2} % of a CPU, {memory}\n",
        status.version,
        status.pid,
        status.uptime_seconds,
        status.rules_total,
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
    if !status.rules.is_empty() {
        text += "\n";
        text += &services_table(status);
    }
    for rule in &status.rules {
        let Some(watch) = &rule.watch else { continue };
        if let Some(trouble) = &watch.trouble {
            text += &format!("rule {}: {trouble}\n", rule.name);
        }
        if let Some(colors) = &watch.colors {
            text += &format!("rule {}: {}\n", rule.name, colors_text(colors));
        }
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
        text += &format!("{count} workers that read processes are given up and cannot end\n");
    }
    let left_alone = workers.left_alone.iter().chain(&discovery.left_alone);
    for held in left_alone.take(HELD_UP_SHOWN) {
        text += &format!(
            "{} of {} is left alone for a while: it holds up whoever reads or changes it\n",
            process(held.process),
            held.tenant
        );
    }
    let more =
        (workers.left_alone.len() + discovery.left_alone.len()).saturating_sub(HELD_UP_SHOWN);
    if more > 0 {
        text += &format!("and {more} more processes likewise\n");
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
        "users are served at {socket}: {clients} programs now, {started} so far ({failed} failed), {refused} refused\n"
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
        let memory = colors.resident_bytes;
        format!("; {percent:.1} % of {memory} accessed memory is on them")
    });
    format!(
        "{wanted} of {} colors ({request}), by oracle {oracle}{share}; {recolored_pages} pages recolored",
        colors.colors
    )
}

/// Returns a table with a line for each rule, and one for each of its services.
fn services_table(status: &DaemonAccount) -> String {
    let mut table = table(&[
        "RULE",
        "SERVICE",
        "PROCESSES",
        "RSS",
        "HUGE",
        "COVERAGE",
        "COLLAPSES",
        "STALLED",
        "CPU",
    ]);
    for rule in &status.rules {
        let Some(watch) = &rule.watch else {
            let state = if rule.off { "left alone" } else { "" };
            table.add_row([rule.name.as_str(), state, &rule.processes.to_string()]);
            continue;
        };
        let cpu = format!("{:.2} s", watch.own.cpu_seconds);
        row(
            &mut table,
            [&rule.name, &policy(watch)],
            &watch.memory,
            [
                watch.collapses.done.to_string(),
                seconds(watch.stalls.collapsing_seconds),
                cpu,
            ],
        );
        for (label, service) in &watch.services {
            if service.memory.processes == 0 {
                continue;
            }
            row(
                &mut table,
                ["", label],
                &service.memory,
                [
                    service.actions.collapses_done.to_string(),
                    seconds(service.actions.collapsing_seconds),
                    String::new(),
                ],
            );
        }
    }
    right(&mut table, &[2, 3, 4, 5, 6, 7, 8]);
    text_of(&table)
}

fn row(table: &mut Table, names: [&str; 2], memory: &LiveMemory, done: [String; 3]) {
    let huge = size(memory.huge_bytes);
    let coverage = memory
        .coverage
        .map_or("-".to_owned(), |it| format!("{:.1} %", it * 100.0));
    let [collapses, stalled, cpu] = done;
    table.add_row([
        names[0].to_owned(),
        names[1].to_owned(),
        memory.processes.to_string(),
        memory.resident_bytes.to_string(),
        huge,
        coverage,
        collapses,
        stalled,
        cpu,
    ]);
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
        (Some(known), Some(age)) => format!("{known} pods, asked {} ago", seconds(age)),
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

/// Returns a table of the rules, in order.
pub fn rules_table(rules: &[RuleSummary]) -> String {
    if rules.is_empty() {
        return "there are no rules: every process is left alone\n".to_owned();
    }
    let mut table = table(&["RULE", "PROCESSES", "IF", "THEN", "WHERE"]);
    for rule in rules {
        table.add_row([
            rule.name.clone(),
            rule.processes.to_string(),
            rule.conditions.clone(),
            rule.placement.clone(),
            rule.place.clone(),
        ]);
    }
    right(&mut table, &[1]);
    text_of(&table)
}

fn why_text(why: &Why) -> String {
    let mut text = format!(
        "process {} in cgroup {}\n",
        why.pid,
        why.cgroup.as_deref().unwrap_or("(unknown)")
    );
    if why.passed_unlisted > 0 {
        text += &format!("  {} rules before do not hold\n", why.passed_unlisted);
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

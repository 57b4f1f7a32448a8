//! Makes a page of samples from the daemon's account.

use std::time::{Duration, SystemTime};

use superhue::live::WatchAccount;
use superhue_model::ByteCount;
use superhue_procfs::system::ThpCounters;

use super::families::Id;
use super::page::{Page, Value};
use super::sums::{Counter, OTHER, RuleSums, SERVICE_COUNTERS, Sums, UNBOUNDED};
use crate::account::{DaemonAccount, RuleAccount, TrialAccount};

/// Rules with series of their own; there may be 10,000 that leave their processes alone.
const RULES: usize = 1000;

/// Values that the account does not have.
#[derive(Debug)]
pub(crate) struct MetricsInputs<'a> {
    /// Time of the daemon's start.
    pub(crate) started: SystemTime,
    /// Time when the rules in force were read.
    pub(crate) loaded: SystemTime,
    /// Longest time since a watch of each rule published an account, in the order of the account; `None` without a watch.
    pub(crate) ages: &'a [Option<Duration>],
    /// The kernel's own counters; `None` where they cannot be read.
    pub(crate) kernel: Option<&'a ThpCounters>,
    /// Memory in folios of each size; empty where the kernel does not count it.
    pub(crate) folios: &'a [(ByteCount, ByteCount)],
}

/// CPU time by part. The main part is a difference of clocks that are read one after the other.
#[derive(Debug, Default)]
pub(crate) struct CpuParts {
    main: f64,
}

/// Makes all samples.
pub(super) fn page(
    account: &DaemonAccount,
    beside: &MetricsInputs<'_>,
    sums: &Sums,
    parts: &mut CpuParts,
) -> Page {
    let mut page = Page::new();
    of_daemon(&mut page, account, beside);
    of_rules(&mut page, account, beside, sums);
    of_cpu(&mut page, account, sums, parts);
    for (size, bytes) in beside.folios {
        page.number(Id::KernelFolios, &[&size.0.to_string()], float(bytes.0));
    }
    if let Some(kernel) = beside.kernel {
        for (event, &count) in &kernel.0 {
            let event = event.strip_prefix("thp_").unwrap_or(event);
            page.number(Id::KernelThp, &[event], float(count));
        }
    }
    page
}

fn of_daemon(page: &mut Page, account: &DaemonAccount, beside: &MetricsInputs<'_>) {
    let unix = |time: SystemTime| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH);
        since.map_or(0.0, |since| since.as_secs_f64())
    };
    page.number(Id::Build, &[&account.version], 1.0);
    page.number(Id::StartTime, &[], unix(beside.started));
    page.number(Id::Paused, &[], flag(account.paused));
    page.number(Id::Rules, &[], float(account.rules_total));
    let config = &account.config;
    page.number(Id::LastReload, &[], flag(config.error.is_none()));
    page.number(Id::LastReloadTime, &[], unix(beside.loaded));
    page.number(Id::Reloads, &["accepted"], float(config.reloads));
    page.number(Id::Reloads, &["refused"], float(config.refused));
    page.number(Id::CpuCeiling, &[], account.own.max_overhead);
    if let Some(memory) = account.own.rss_bytes {
        page.number(Id::Memory, &[], float(memory.0));
    }
    let sockets = [
        ("ctl", account.own.requests, account.own.requests_refused),
        (
            "metrics",
            account.metrics.requests,
            account.metrics.requests_refused,
        ),
        (
            "users",
            account.users.started + account.users.refused,
            account.users.refused,
        ),
    ];
    for (socket, requests, refused) in sockets {
        page.number(Id::Requests, &[socket], float(requests));
        page.number(Id::RequestsRefused, &[socket], float(refused));
    }
    let users = &account.users;
    page.number(Id::UsersClients, &[], float(users.clients));
    page.number(Id::UsersStarted, &[], float(users.started));
    page.number(Id::UsersFailed, &[], float(users.failed));
    let (workers, discovery) = (&account.workers, &account.discovery);
    page.number(Id::Workers, &[], float(workers.running));
    page.number(Id::WorkersStarted, &[], float(workers.started));
    for (kind, given_up, left, alone) in [
        (
            "watch",
            workers.given_up,
            workers.left_behind.len() as u64,
            workers.left_alone.len(),
        ),
        (
            "reader",
            discovery.readers_given_up,
            discovery.readers_left_behind,
            discovery.left_alone.len(),
        ),
    ] {
        page.number(Id::WorkersGivenUp, &[kind], float(given_up));
        page.number(Id::WorkersLeft, &[kind], float(left));
        page.number(Id::HeldUpBy, &[kind], float(alone as u64));
    }
    page.number(Id::DiscoveryBehind, &[], float(discovery.behind));
    page.number(Id::Cgroups, &["known"], float(discovery.cgroups));
    let watched = float(discovery.cgroups_of_interest);
    page.number(Id::Cgroups, &["watched"], watched);
    let limited = flag(discovery.limited_because.is_some());
    page.number(Id::DiscoveryLimited, &[], limited);
    if let Some(pods) = &account.discovery.pods {
        page.number(Id::KubeletRequests, &[], float(pods.requests));
        page.number(Id::KubeletFailed, &[], float(pods.failed));
        if let Some(age) = pods.age_seconds {
            page.number(Id::KubeletAge, &[], age);
        }
    }
}

fn of_cpu(page: &mut Page, account: &DaemonAccount, sums: &Sums, parts: &mut CpuParts) {
    let discovery = account.discovery.cpu_seconds;
    let [tracking, watching, acting] =
        ["tracking", "watching", "acting"].map(|part| sums.all(Id::RuleCpu, part));
    let rest = account.own.cpu_seconds - discovery - tracking - watching - acting;
    // Otherwise it might fall by a little.
    parts.main = parts.main.max(rest);
    for (part, seconds) in [
        ("discovery", discovery),
        ("tracking", tracking),
        ("watching", watching),
        ("acting", acting),
        ("main", parts.main),
    ] {
        page.number(Id::Cpu, &[part], seconds);
    }
}

fn of_rules(page: &mut Page, account: &DaemonAccount, beside: &MetricsInputs<'_>, sums: &Sums) {
    let mut services = 0;
    let mut others = 0;
    let mut has_others = false;
    for (index, rule) in account.rules.iter().enumerate() {
        let name = rule.name.as_str();
        // A rule may have this name.
        if index >= RULES || name == OTHER {
            others += rule.processes;
            has_others = true;
        } else {
            page.number(Id::RuleProcesses, &[name], float(rule.processes));
            page.number(Id::RuleOnTrial, &[name], flag(rule.held));
            of_trial(page, name, rule.trial.as_ref());
        }
        let Some(watch) = &rule.watch else { continue };
        let there = |service: &&superhue::live::ServiceAccount| service.memory.processes > 0;
        services += watch.services.values().filter(there).count() as u64;
        // The number of series has a bound.
        if index >= RULES {
            continue;
        }
        of_watch(page, name, watch);
        if let Some(age) = beside.ages.get(index).copied().flatten() {
            page.number(Id::RuleAge, &[name], age.as_secs_f64());
        }
        if let Some(rule) = sums.of(name) {
            counters_of(page, name, rule);
        }
        of_services(page, rule, watch, sums);
    }
    if has_others {
        page.number(Id::RuleProcesses, &[OTHER], float(others));
    }
    page.number(Id::Services, &[], float(services));
}

fn of_trial(page: &mut Page, name: &str, trial: Option<&TrialAccount>) {
    let Some(trial) = trial else { return };
    for (bound, share) in [
        ("estimate", trial.gain),
        ("low", trial.gain_low),
        ("high", trial.gain_high),
    ] {
        if let Some(share) = share {
            page.number(Id::RuleGain, &[name, bound], share);
        }
    }
    let end = float(trial.ended_at_seconds);
    page.number(Id::RuleTrialEnd, &[name], end);
}

fn of_watch(page: &mut Page, name: &str, watch: &WatchAccount) {
    page.number(Id::RuleTrouble, &[name], flag(watch.trouble.is_some()));
    if let Some(pages) = watch.pages {
        let tracker = watch.tracker.as_deref().unwrap_or("none");
        page.number(Id::RuleInfo, &[name, pages.name(), tracker], 1.0);
    }
    let memory = &watch.memory;
    page.number(Id::RuleResident, &[name], float(memory.resident_bytes.0));
    page.number(Id::RuleAnonymous, &[name], float(memory.anonymous_bytes.0));
    if let Some(held) = memory.held_bytes {
        page.number(Id::RuleHeld, &[name], float(held.0));
    }
    // Without a process the value is unknown, but it is 0.
    let huge = memory.huge_bytes.map(|bytes| bytes.0);
    if let Some(huge) = huge.or((memory.processes == 0).then_some(0)) {
        page.number(Id::RuleHuge, &[name], float(huge));
    }
    if let Some(hot) = &watch.hot_set_bytes {
        for (share, bytes) in ["0.5", "0.9", "0.99"].into_iter().zip(hot) {
            page.number(Id::RuleHot, &[name, share], float(bytes.0));
        }
    }
    for (reason, &count) in &watch.left_alone {
        page.number(Id::RuleLeftAlone, &[name, reason], float(count));
    }
    for (reason, &count) in &watch.waiting {
        page.number(Id::RuleWaiting, &[name, reason], float(count));
    }
    page.number(Id::RuleBudgetUsed, &[name], float(watch.charged_bytes.0));
    if let Some(budget) = watch.budget_bytes {
        page.number(Id::RuleBudget, &[name], float(budget.0));
    }
    if let Some(share) = watch.colors.as_ref().and_then(|colors| colors.share) {
        page.number(Id::RuleColorShare, &[name], share);
    }
    page.number(Id::RuleCpuCeiling, &[name], watch.own.max_overhead);
}

fn counters_of(page: &mut Page, name: &str, rule: &RuleSums) {
    let mut buckets: Vec<(f64, u64)> = Vec::new();
    let mut seconds = 0.0;
    for ((id, what), &value) in &rule.told {
        match (id, what.as_str()) {
            (Id::RuleCollapseTime, "") => seconds = value,
            (Id::RuleCollapseTime, bound) => {
                let bound = if bound == UNBOUNDED {
                    f64::INFINITY
                } else {
                    bound.parse().unwrap_or(f64::INFINITY)
                };
                buckets.push((bound, count(value)));
            }
            (id, "") => page.number(*id, &[name], value),
            (id, what) => page.number(*id, &[name, what], value),
        }
    }
    if !buckets.is_empty() {
        buckets.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let value = Value::Buckets(seconds, buckets);
        page.put(Id::RuleCollapseTime, &[name], value);
    }
}

fn of_services(page: &mut Page, rule: &RuleAccount, watch: &WatchAccount, sums: &Sums) {
    let name = rule.name.as_str();
    for told in sums.services(name, watch) {
        let labels = [name, told.service];
        let memory = &told.memory;
        page.number(Id::ServiceProcesses, &labels, float(memory.processes));
        let resident = float(memory.resident_bytes.0);
        page.number(Id::ServiceResident, &labels, resident);
        let anonymous = float(memory.anonymous_bytes.0);
        page.number(Id::ServiceAnonymous, &labels, anonymous);
        if let Some(held) = memory.held_bytes {
            page.number(Id::ServiceHeld, &labels, float(held.0));
        }
        let huge = memory.huge_bytes.map(|bytes| bytes.0);
        if let Some(huge) = huge.or((memory.processes == 0).then_some(0)) {
            page.number(Id::ServiceHuge, &labels, float(huge));
        }
        if let Some(&seconds) = rule.converged_seconds.get(told.service) {
            page.number(Id::ServiceConverged, &labels, seconds);
        }
        for (id, value) in SERVICE_COUNTERS.into_iter().zip(told.counters) {
            page.number(id, &labels, value);
        }
    }
}

impl Sums {
    /// Returns a counter over all rules, including rules that are no longer in force.
    fn all(&self, id: Id, what: &str) -> f64 {
        let counter: Counter = (id, what.to_owned());
        let of_one = |rule: &RuleSums| rule.told.get(&counter).copied().unwrap_or_default();
        self.gone(&counter) + self.rules().map(of_one).sum::<f64>()
    }
}

#[allow(clippy::cast_precision_loss, reason = "exact below 2^53")]
const fn float(count: u64) -> f64 {
    count as f64
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sums of whole numbers that are not negative"
)]
const fn count(value: f64) -> u64 {
    value as u64
}

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::metrics::WatchSample;

    fn text(account: &DaemonAccount, sums: &Sums, parts: &mut CpuParts) -> String {
        let beside = MetricsInputs {
            started: SystemTime::UNIX_EPOCH,
            loaded: SystemTime::UNIX_EPOCH,
            ages: &[],
            kernel: None,
            folios: &[],
        };
        page(account, &beside, sums, parts).openmetrics()
    }

    fn rule(name: &str, watch: Option<WatchAccount>) -> RuleAccount {
        RuleAccount {
            name: name.to_owned(),
            processes: 2,
            watch: watch.map(Arc::new),
            ..RuleAccount::default()
        }
    }

    #[test]
    fn rules_beyond_the_thousandth_are_summed_up() {
        let mut rules: Vec<RuleAccount> = (0..RULES + 5)
            .map(|n| rule(&format!("r{n}"), None))
            .collect();
        rules[3].name = OTHER.to_owned();
        let account = DaemonAccount {
            rules,
            ..DaemonAccount::default()
        };
        let text = text(&account, &Sums::default(), &mut CpuParts::default());
        let lines = text.matches("superhue_rule_processes{").count();
        assert_eq!(lines, RULES, "999 of their own, and the others");
        // One rule has this name, and five are too many.
        assert!(text.contains("superhue_rule_processes{rule=\"other\"} 12\n"));
    }

    #[test]
    fn a_rule_on_trial_is_marked() {
        let mut held = rule("held", None);
        held.held = true;
        let account = DaemonAccount {
            rules: vec![held, rule("free", None)],
            ..DaemonAccount::default()
        };
        let text = text(&account, &Sums::default(), &mut CpuParts::default());
        assert!(text.contains("superhue_rule_on_trial{rule=\"held\"} 1\n"));
        assert!(text.contains("superhue_rule_on_trial{rule=\"free\"} 0\n"));
    }

    #[test]
    fn a_measured_gain_has_its_bounds_and_others_no_series() {
        let mut tried = rule("tried", None);
        tried.trial = Some(TrialAccount::example(0.03));
        let account = DaemonAccount {
            rules: vec![tried, rule("not", None)],
            ..DaemonAccount::default()
        };
        let text = text(&account, &Sums::default(), &mut CpuParts::default());
        let gains = text
            .lines()
            .filter(|line| line.starts_with("superhue_rule_gain_ratio{"));
        let wanted = [("estimate", "0.03"), ("low", "0.0125")];
        let wanted = wanted.map(|(bound, share)| {
            format!("superhue_rule_gain_ratio{{rule=\"tried\",bound=\"{bound}\"}} {share}")
        });
        assert_eq!(gains.collect::<Vec<_>>(), wanted);
        let end = "superhue_rule_trial_end_timestamp_seconds{rule=\"tried\"} 1800000000";
        assert!(text.contains(end), "{text}");
    }

    #[test]
    fn what_is_not_known_is_not_told_and_nothing_is_0() {
        let mut watch = WatchAccount::default();
        let told = |watch: &WatchAccount| {
            let account = DaemonAccount {
                rules: vec![rule("r", Some(watch.clone()))],
                ..DaemonAccount::default()
            };
            text(&account, &Sums::default(), &mut CpuParts::default())
        };
        let series = "\nsuperhue_rule_huge_bytes{rule=\"r\"}";
        assert!(
            told(&watch).contains(&format!("{series} 0\n")),
            "nobody has any"
        );
        watch.memory.processes = 1;
        assert!(!told(&watch).contains(series), "the kernel does not tell");
        watch.memory.huge_bytes = Some(ByteCount(5));
        assert!(told(&watch).contains(&format!("{series} 5\n")));
        for absent in [
            "superhue_rule_budget_bytes{",
            "superhue_rule_hot_set_bytes{",
            "\nsuperhue_resident_memory_bytes ",
            "superhue_kernel_thp_events_total{",
            "superhue_kernel_folios_bytes{",
            "superhue_rule_collapse_duration_seconds_bucket{",
        ] {
            assert!(!told(&watch).contains(absent), "{absent}");
        }
    }

    #[test]
    fn convergence_has_a_series_only_where_it_is_known() {
        let mut service = superhue::live::ServiceAccount::default();
        service.memory.processes = 1;
        let services = ["a", "b"].map(|name| (name.to_owned(), service));
        let watch = WatchAccount {
            services: services.into(),
            ..WatchAccount::default()
        };
        let mut sums = Sums::default();
        let seen = WatchSample {
            rule: "r".into(),
            watch: 1,
            account: Arc::new(watch.clone()),
        };
        sums.look(&[seen], 10);
        let mut rule = rule("r", Some(watch));
        rule.converged_seconds.insert("a".to_owned(), 2.5);
        let account = DaemonAccount {
            rules: vec![rule],
            ..DaemonAccount::default()
        };
        let text = text(&account, &sums, &mut CpuParts::default());
        let series = "\nsuperhue_service_converged_seconds{";
        assert_eq!(text.matches(series).count(), 1, "{text}");
        assert!(
            text.contains(&format!("{series}rule=\"r\",service=\"a\"}} 2.5\n")),
            "{text}"
        );
    }

    #[test]
    fn parts_of_the_cpu_time_never_fall_back() {
        let mut account = DaemonAccount::default();
        let mut parts = CpuParts::default();
        let mut before = 0.0;
        for (all, discovery) in [(1.0, 0.25), (1.0, 0.5), (1.1, 0.5), (2.0, 0.5)] {
            account.own.cpu_seconds = all;
            account.discovery.cpu_seconds = discovery;
            let text = text(&account, &Sums::default(), &mut parts);
            let line = text
                .lines()
                .find(|line| line.contains("part=\"main\""))
                .unwrap();
            let now: f64 = line.rsplit_once(' ').unwrap().1.parse().unwrap();
            assert!(now >= before, "{line}");
            before = now;
        }
        assert!((before - 1.5).abs() < 1e-12);
    }
}

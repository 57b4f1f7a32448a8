//! The families of metrics. One table makes the served page and the list in `docs/guide/metrics.md`.

/// Behavior of a value over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The value only grows, until the daemon restarts.
    Counter,
    /// The current value.
    Gauge,
    /// Numbers of events, by their duration.
    Histogram,
    /// Always 1: the labels hold the information.
    Info,
}

impl Kind {
    /// Returns its name in the documentation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }
}

/// A metric of which there may be a value for each combination of its labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    /// Name of the metric, without `superhue_`, the unit and the suffix.
    pub stem: &'static str,
    /// Unit of the values; it is part of the name.
    pub unit: Option<&'static str>,
    /// The kind of its values.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// Description of the metric.
    pub help: &'static str,
}

impl Family {
    /// Returns the name for queries: of a histogram without `_bucket`, `_sum` and `_count`.
    #[must_use]
    pub fn name(&self) -> String {
        let unit = self.unit.map(|unit| format!("_{unit}")).unwrap_or_default();
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        format!("superhue_{}{unit}{suffix}", self.stem)
    }
}

macro_rules! families {
    ($($id:ident = $kind:ident $stem:literal $unit:expr, [$($label:literal),*] $help:literal;)*) => {
        /// A family, by its place in [`FAMILIES`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(super) enum Id { $($id),* }

        /// All families, in the order in which they are served.
        pub const FAMILIES: &[Family] = &[$(Family {
            stem: $stem,
            unit: $unit,
            kind: Kind::$kind,
            labels: &[$($label),*],
            help: $help,
        }),*];
    };
}

const NONE: Option<&str> = None;
const BYTES: Option<&str> = Some("bytes");
const SECONDS: Option<&str> = Some("seconds");
const RATIO: Option<&str> = Some("ratio");

families! {
    Build = Info "build" NONE, ["version"] "The daemon's version.";
    StartTime = Gauge "start_time" SECONDS, [] "Start time of the daemon, in seconds since 1970.";
    Paused = Gauge "paused" NONE, [] "1 while the daemon observes and takes no action (superhue ctl pause).";
    Rules = Gauge "rules" NONE, [] "Rules in force.";
    LastReload = Gauge "config_last_reload_successful" NONE, []
        "0 if the configuration that was read last was refused; older rules are in force then.";
    LastReloadTime = Gauge "config_last_reload_success_timestamp" SECONDS, []
        "Time at which the rules in force were read, in seconds since 1970.";
    Reloads = Counter "config_reloads" NONE, ["result"] "Readings of the configuration since the start, accepted and refused.";
    Cpu = Counter "cpu" SECONDS, ["part"]
        "CPU time of the daemon. part: discovery (finding services), tracking (accesses), watching (other looks and decisions), acting (collapses, splits, moves of pages to other frames), main (all else).";
    CpuCeiling = Gauge "cpu_ceiling" RATIO, []
        "Largest cost of all rules together, without acting, as a share of one CPU (max-overhead of [daemon]).";
    Memory = Gauge "resident_memory" BYTES, [] "Resident memory of the daemon and its workers.";
    Requests = Counter "requests" NONE, ["socket"] "Requests at the daemon's sockets: ctl, metrics and users.";
    RequestsRefused = Counter "requests_refused" NONE, ["socket"] "Clients refused: malformed, not allowed, too many, too slow.";
    Cgroups = Gauge "cgroups" NONE, ["state"] "Cgroups: known, and of these watched (a rule can match them).";
    DiscoveryLimited = Gauge "discovery_limited" NONE, [] "1 if services are found the slow way (superhue ctl status says why).";
    KubeletRequests = Counter "kubelet_requests" NONE, [] "Requests to the kubelet for the names of pods; absent without [kubernetes].";
    KubeletFailed = Counter "kubelet_requests_failed" NONE, [] "Of these, requests without a valid answer (superhue ctl status says why).";
    KubeletAge = Gauge "kubelet_answer_age" SECONDS, [] "Time since the last valid answer of the kubelet; absent before the first one.";
    UsersClients = Gauge "users_clients" NONE, [] "Programs of users that the daemon acts for now ([users]).";
    UsersStarted = Counter "users_clients_started" NONE, [] "Programs of users that the daemon has acted for.";
    UsersFailed = Counter "users_clients_failed" NONE, [] "Of these, those whose worker ended by an error.";
    Workers = Gauge "workers" NONE, [] "Processes that watch for the daemon now, one for each tenant of a rule.";
    WorkersStarted = Counter "workers_started" NONE, [] "Processes that the daemon has started to watch.";
    WorkersGivenUp = Counter "workers_given_up" NONE, ["kind"] "Workers (watch, reader) that were given up because a process held them up.";
    WorkersLeft = Gauge "workers_left_behind" NONE, ["kind"] "Workers that were given up and have not ended.";
    HeldUpBy = Gauge "processes_left_alone" NONE, ["kind"] "Processes that are left alone for a while because they held up a worker of this kind.";
    DiscoveryBehind = Gauge "discovery_behind" NONE, [] "Processes that wait until it is their tenant's turn to be read.";
    Services = Gauge "services" NONE, [] "Services that have processes, over all rules.";

    RuleInfo = Info "rule" NONE, ["rule", "pages", "tracker"] "The policy that a rule follows now, and what tracks accesses for it.";
    RuleTrouble = Gauge "rule_trouble" NONE, ["rule"] "1 if the daemon cannot apply the rule; its processes are left alone then.";
    RuleOnTrial = Gauge "rule_on_trial" NONE, ["rule"] "1 while `superhue ctl trial` holds a rule; the daemon leaves its processes alone then.";
    RuleGain = Gauge "rule_gain" RATIO, ["rule", "bound"]
        "The gain that the last trial of a rule measured (superhue ctl trial): by which share its metric is better with the rule. bound: estimate, low and high (not ruled out). Absent without a trial of the rule as it is now.";
    RuleTrialEnd = Gauge "rule_trial_end_timestamp" SECONDS, ["rule"] "End of the last trial of a rule, in seconds since 1970.";
    RuleAge = Gauge "rule_account_age" SECONDS, ["rule"]
        "Age of the figures of a rule; those of a rule whose processes do nothing may be some minutes old.";
    RuleProcesses = Gauge "rule_processes" NONE, ["rule"] "Processes that belong to a rule.";
    RuleProcessesSeen = Counter "rule_processes_seen" NONE, ["rule"] "Processes that have belonged to a rule.";
    RuleDenied = Counter "rule_processes_denied" NONE, ["rule"] "Of these, processes that the daemon might not look at.";
    RuleLeftAlone = Gauge "rule_processes_left_alone" NONE, ["rule", "reason"] "Processes whose pages could not be recolored when last tried.";
    RuleResident = Gauge "rule_resident" BYTES, ["rule"] "Resident memory; what processes share counts for each.";
    RuleAnonymous = Gauge "rule_anonymous" BYTES, ["rule"] "Resident anonymous memory.";
    RuleHuge = Gauge "rule_huge" BYTES, ["rule"] "Anonymous memory that huge pages map; divided by the anonymous memory it is the coverage.";
    RuleHeld = Gauge "rule_held" BYTES, ["rule"] "Memory that the kernel holds beside the resident memory: huge pages of which parts were given back, until they are split. Absent where it is unknown (it takes `CAP_SYS_ADMIN`).";
    RuleHot = Gauge "rule_hot_set" BYTES, ["rule", "share"] "The memory that receives this share of all sampled accesses, over the processes that are sampled.";
    RuleCollapses = Counter "rule_collapses" NONE, ["rule"] "Regions collapsed to huge pages.";
    RuleCollapsesFailed = Counter "rule_collapses_failed" NONE, ["rule", "reason"] "Collapses that the kernel refused, by errno.";
    RuleCollapsesSkipped = Counter "rule_collapses_skipped" NONE, ["rule", "reason"] "Collapses left undone, by what was in the way.";
    RuleCollapseTime = Histogram "rule_collapse_duration" SECONDS, ["rule"]
        "Time that the kernel took for a collapse, in which the process can neither map nor fault in memory.";
    RuleSplits = Counter "rule_splits" NONE, ["rule"] "Huge pages split again.";
    RuleSplitsFailed = Counter "rule_splits_failed" NONE, ["rule", "reason"] "Splits that the kernel refused, by errno.";
    RuleWaiting = Gauge "rule_regions_waiting" NONE, ["rule", "reason"] "Regions that are ready for a collapse, by the reason why they wait.";
    RuleAdded = Counter "rule_added" BYTES, ["rule"] "Memory that collapses have added, over all time: the bound of the bloat they made.";
    RuleBudgetUsed = Gauge "rule_budget_used" BYTES, ["rule"] "Added memory that is still there and charged to the budget.";
    RuleBudget = Gauge "rule_budget" BYTES, ["rule"] "The budget, for a rule that has one.";
    RuleStall = Counter "rule_stall" SECONDS, ["rule", "cause"] "Time for which programs were held up: collapse (splits included), tracking (estimated).";
    RuleColorShare = Gauge "rule_color_share" RATIO, ["rule"] "Share of the accessed memory of known color that has a wanted color. Pages that are not recolored yet have no known color.";
    RuleColorPages = Counter "rule_color_pages_recolored" NONE, ["rule"] "Pages that were moved to a frame of a wanted color.";
    RuleCpu = Counter "rule_cpu" SECONDS, ["rule", "part"] "CPU time of the rule's watch. part: tracking (accesses), watching (other looks and decisions), acting (collapses, splits, moves of pages to other frames).";
    RuleCpuCeiling = Gauge "rule_cpu_ceiling" RATIO, ["rule"] "Largest cost of the rule's watch now, as a share of one CPU.";
    RuleLooks = Counter "rule_looks" NONE, ["rule", "kind"] "Looks at processes: full (page tables), and quick.";

    ServiceProcesses = Gauge "service_processes" NONE, ["rule", "service"] "Processes of a service.";
    ServiceResident = Gauge "service_resident" BYTES, ["rule", "service"] "Resident memory of a service.";
    ServiceAnonymous = Gauge "service_anonymous" BYTES, ["rule", "service"] "Resident anonymous memory of a service.";
    ServiceHuge = Gauge "service_huge" BYTES, ["rule", "service"] "Anonymous memory of a service that huge pages map.";
    ServiceHeld = Gauge "service_held" BYTES, ["rule", "service"] "Memory that the kernel holds beside the resident memory of a service: huge pages of which parts were given back. Absent likewise.";
    ServiceConverged = Gauge "service_converged" SECONDS, ["rule", "service"] "Time from the start of a service until 95 % of its present huge memory was there, made by superhue or by the kernel. Absent for a service that had begun before the daemon saw it.";
    ServiceCollapses = Counter "service_collapses" NONE, ["rule", "service"] "Regions of a service collapsed to huge pages.";
    ServiceCollapsesFailed = Counter "service_collapses_failed" NONE, ["rule", "service"] "Collapses that the kernel refused.";
    ServiceCollapsesSkipped = Counter "service_collapses_skipped" NONE, ["rule", "service"] "Collapses left undone.";
    ServiceSplits = Counter "service_splits" NONE, ["rule", "service"] "Huge pages of a service split again.";
    ServiceStall = Counter "service_stall" SECONDS, ["rule", "service"] "Time for which collapses and splits held a service up.";
    ServiceAdded = Counter "service_added" BYTES, ["rule", "service"] "Memory that collapses have added to a service, over all time.";

    KernelFolios = Gauge "kernel_folios" BYTES, ["size"] "Anonymous memory of the whole machine in folios of a size, in bytes; the kernel makes those below 2 MiB (mTHP). Absent before Linux 6.12.";
    KernelThp = Counter "kernel_thp_events" NONE, ["event"] "The kernel's own counters of huge pages, of the whole machine since boot (thp_* of /proc/vmstat).";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_as_usual() {
        let names: BTreeSet<String> = FAMILIES.iter().map(Family::name).collect();
        assert_eq!(names.len(), FAMILIES.len());
        for family in FAMILIES {
            let name = family.name();
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(name.chars().all(plain), "{name}");
            assert!(
                family.help.ends_with('.') && !family.help.contains(['\n', '\\', '|']),
                "{name}"
            );
        }
        assert_eq!(
            FAMILIES[Id::Cpu as usize].name(),
            "superhue_cpu_seconds_total"
        );
        assert_eq!(FAMILIES[Id::KernelThp as usize].stem, "kernel_thp_events");
        assert_eq!(FAMILIES.len(), Id::KernelThp as usize + 1);
    }
}

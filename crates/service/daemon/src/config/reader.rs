//! Reads tables of configuration files into settings, and notes each fault with its place.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::sync::Arc;

use superhue::act::Terms;
use superhue::parse::TextPositions;
use superhue::{Pages, PlacementOptions, PolicyOption, parse};
use superhue_heat::TrackerKind;
use superhue_model::ColorRequest;
use toml::Spanned;

use super::raw::{RawDaemon, RawFile, RawKubernetes, RawRule, RawUsers};
use super::values::{
    allowed, filled, from_root, is_this_machine, key_values, metrics_address, no_slash, pages,
    pattern, rule_name, user,
};
use super::{
    Lookups, MOST_RULES, Problem, Settings, Source, USERS_BUDGET, USERS_CLIENTS, USERS_CLIENTS_EACH,
};
use crate::kubelet::KubeletSettings;
use crate::rules::{Conditions, PodConditions, Rule, User};
use crate::users::UserSettings;

/// Maximum number of problems that are reported at once.
pub(super) const MOST_PROBLEMS: usize = 20;
const MOST_METRICS_SERVICES: i64 = 2000;
const MOST_USERS_CLIENTS: i64 = 1024;

/// Maximum number of entries of `allow`.
const MOST_ALLOWED: usize = 1000;

/// Bytes of the path of a socket (`sun_path` of `unix(7)`, without the zero at its end).
pub(super) const LONGEST_SOCKET: usize = 107;

/// A file, with the lines and columns of its offsets.
pub(super) struct File<'a> {
    /// Position in the order of the files.
    index: usize,
    source: &'a Source,
    places: TextPositions<'a>,
}

impl<'a> File<'a> {
    pub(super) fn new(index: usize, source: &'a Source) -> Self {
        Self {
            index,
            source,
            places: TextPositions::new(&source.text),
        }
    }

    /// Returns line and column, in characters from 1.
    fn place(&self, at: usize) -> (usize, usize) {
        self.places.of(at)
    }

    /// Returns file and line, for people.
    fn line_of(&self, at: usize) -> String {
        format!("{}:{}", self.source.name, self.place(at).0)
    }
}

/// Reads one file after the other.
pub(super) struct Reader<'a> {
    pub(super) settings: Settings,
    /// Problems, each with the index of its file.
    pub(super) problems: Vec<(usize, Problem)>,
    /// Place of each name.
    pub(super) named: BTreeMap<Arc<str>, String>,
    /// Place of each table that may stand in one file only.
    pub(super) tables: BTreeMap<&'static str, String>,
    /// True if all files could be parsed.
    pub(super) is_complete: bool,
    pub(super) lookups: &'a Lookups<'a>,
}

impl Reader<'_> {
    /// Returns the settings, or else the problems.
    pub(super) fn finish(mut self) -> Result<Settings, Vec<Problem>> {
        if self.problems.is_empty() {
            return Ok(self.settings);
        }
        self.problems.sort_by_key(|&(index, _)| index);
        self.problems.truncate(MOST_PROBLEMS);
        Err(self.problems.into_iter().map(|(_, it)| it).collect())
    }

    /// Reads the tables that may stand in one file only.
    pub(super) fn read_tables(&mut self, file: &File<'_>, raw: &RawFile) {
        if let Some(daemon) = self.only(file, "daemon", &raw.daemon) {
            let daemon = daemon.get_ref();
            let wanted = self.value(file, &daemon.max_overhead, parse::max_overhead);
            self.settings.max_overhead = wanted.unwrap_or(self.settings.max_overhead);
            self.metrics(file, daemon);
        }
        if let Some(kubernetes) = self.only(file, "kubernetes", &raw.kubernetes) {
            self.kubernetes(file, kubernetes);
        }
        if let Some(users) = self.only(file, "users", &raw.users) {
            self.users(file, users);
        }
    }

    /// Returns the table if this file has it and no file before it does. A second one is a problem and not an override: its keys would apply to
    /// all rules, against the text of the first file.
    fn only<'t, T>(
        &mut self,
        file: &File<'_>,
        name: &'static str,
        table: &'t Option<Spanned<T>>,
    ) -> Option<&'t Spanned<T>> {
        let table = table.as_ref()?;
        if let Some(before) = self.tables.get(name) {
            let text =
                format!("[{name}] is in another file, too ({before}): write its keys into one");
            self.wrong(file, table.span(), text);
            return None;
        }
        self.tables.insert(name, file.line_of(table.span().start));
        Some(table)
    }

    /// Reads the rules of a file.
    pub(super) fn read_rules(&mut self, file: &File<'_>, rules: Vec<Spanned<RawRule>>) {
        for rule in rules {
            if self.settings.rules.len() == MOST_RULES {
                let text = format!("there are more than {MOST_RULES} rules: use patterns instead");
                return self.wrong(file, rule.span(), text);
            }
            let span = rule.span();
            if let Some(rule) = self.rule(file, rule.into_inner(), span) {
                self.settings.rules.push(rule);
            }
        }
    }

    fn metrics(&mut self, file: &File<'_>, raw: &RawDaemon) {
        let is_public = raw.metrics_public.as_ref().is_some_and(|it| *it.get_ref());
        let read = |text: &str| metrics_address(text, is_public);
        self.settings.metrics = self.value(file, &raw.metrics, read);
        if let (Some(public), None) = (&raw.metrics_public, &raw.metrics) {
            let text = "there is no `metrics`: this says nothing then";
            self.wrong(file, public.span(), text);
        }
        let services = self.number(file, &raw.metrics_services, 0..=MOST_METRICS_SERVICES);
        self.settings.metrics_services = services.unwrap_or(self.settings.metrics_services);
    }

    /// Reads `[users]`.
    fn users(&mut self, file: &File<'_>, raw: &Spanned<RawUsers>) {
        let given = raw.get_ref();
        let named = given.allow.as_ref().map(Spanned::get_ref);
        let named = named.map(Vec::as_slice).unwrap_or_default();
        if named.is_empty() {
            let text =
                "[users] allows nobody: add allow = [\"alice\", \"@staff\"], or leave it out";
            return self.wrong(file, raw.span(), text);
        }
        if named.len() > MOST_ALLOWED {
            let text = format!("more than {MOST_ALLOWED} are named: use groups (\"@staff\")");
            return self.wrong(file, raw.span(), text);
        }
        let mut allow = Vec::new();
        for one in named {
            match allowed(one.get_ref(), self.lookups) {
                Ok(one) => allow.push(one),
                Err(text) => self.wrong(file, one.span(), text),
            }
        }
        let budget = self.value(file, &given.budget, parse::budget);
        let rate = self.value(file, &given.rate, parse::rate);
        let clients = self.number(file, &given.clients, 1..=MOST_USERS_CLIENTS);
        let each = self.number(file, &given.clients_per_user, 1..=MOST_USERS_CLIENTS);
        let clients = clients.unwrap_or(USERS_CLIENTS);
        self.settings.users = Some(UserSettings {
            allow,
            terms: Terms {
                budget: budget.unwrap_or(USERS_BUDGET),
                rate,
            },
            clients,
            clients_per_user: each.unwrap_or(USERS_CLIENTS_EACH).min(clients),
        });
    }

    fn rule(&mut self, file: &File<'_>, raw: RawRule, span: Range<usize>) -> Option<Rule> {
        let problems_before = self.problems.len();
        let name = self.name(file, &raw, span.clone());
        let conditions = Conditions {
            unit: self.value(file, &raw.unit, |text| no_slash(text).and_then(pattern)),
            cgroup: self.value(file, &raw.cgroup, |text| from_root(text).and_then(pattern)),
            pod: self.pod(file, &raw),
            user: self.user(file, &raw),
            executable: self.value(file, &raw.executable, pattern),
        };
        let is_any = raw.any.as_ref().is_some_and(|any| *any.get_ref());
        if let Some(any) = &raw.any
            && (!is_any || !conditions.is_empty())
        {
            let text = "any = true is for rules without another condition, and for nothing else";
            self.wrong(file, any.span(), text);
        } else if !is_any && raw.has_no_condition() {
            let text = "this rule says of no process that it is for it: add unit, cgroup, user, \
                        executable, or what is to hold of a pod, or any = true";
            self.wrong(file, span.clone(), text);
        }
        let placement = self.placement(file, &raw);
        (self.problems.len() == problems_before).then(|| Rule {
            name: name.unwrap_or_default(),
            place: file.line_of(span.start),
            conditions,
            placement,
        })
    }

    fn name(&mut self, file: &File<'_>, raw: &RawRule, span: Range<usize>) -> Option<Arc<str>> {
        if raw.name.is_none() {
            self.wrong(
                file,
                span,
                "this rule has no name: add name = \"...\", by which `superhue ctl` tells it",
            );
        }
        let name = self.value(file, &raw.name, rule_name)?;
        let at = raw.name.as_ref().map(Spanned::span)?;
        let place = file.line_of(at.start);
        if let Some(before) = self.named.insert(name.clone(), place) {
            self.wrong(
                file,
                at,
                format!("another rule is called `{name}` ({before})"),
            );
        }
        Some(name)
    }

    fn user(&mut self, file: &File<'_>, raw: &RawRule) -> Option<User> {
        let find = self.lookups.user_number;
        self.value(file, &raw.user, |text| user(text, find))
    }

    fn pod(&mut self, file: &File<'_>, raw: &RawRule) -> PodConditions {
        if let Some(given) = raw.of_pod().into_iter().flatten().next()
            && self.settings.kubelet.is_none()
            && self.is_complete
        {
            let text = "pods are known only where the configuration says whom to ask: [kubernetes] with \
                        kubelet = \"http://127.0.0.1:10255\", or https with a token-file";
            self.wrong(file, given.span(), text);
        }
        PodConditions {
            namespace: self.value(file, &raw.namespace, |text| {
                no_slash(text).and_then(pattern)
            }),
            name: self.value(file, &raw.pod, |text| no_slash(text).and_then(pattern)),
            container: self.value(file, &raw.container, |text| {
                no_slash(text).and_then(pattern)
            }),
            labels: (self.value(file, &raw.pod_label, key_values)).unwrap_or_default(),
            annotations: (self.value(file, &raw.pod_annotation, key_values)).unwrap_or_default(),
        }
    }

    /// Reads `[kubernetes]`: the kubelet to ask for pods.
    fn kubernetes(&mut self, file: &File<'_>, raw: &Spanned<RawKubernetes>) {
        let given = raw.get_ref();
        let Some(kubelet) = &given.kubelet else {
            let text =
                "[kubernetes] says nothing without kubelet = \"http://127.0.0.1:10255\" (or https)";
            return self.wrong(file, raw.span(), text);
        };
        let url = match filled(kubelet.get_ref(), self.lookups.variable) {
            Ok(url) => url,
            Err(text) => return self.wrong(file, kubelet.span(), text),
        };
        let rest = url.strip_prefix("http://");
        let is_secret = rest.is_none();
        let rest = rest.or_else(|| url.strip_prefix("https://"));
        let Some(host) =
            rest.filter(|rest| !rest.is_empty() && !rest.contains(char::is_whitespace))
        else {
            let text =
                format!("`{url}` is no address: write http://HOST:PORT or https://HOST:PORT");
            return self.wrong(file, kubelet.span(), text);
        };
        if !is_secret && !is_this_machine(host) {
            let text = format!(
                "`{url}` would be asked in the clear: use https, or the node's own 127.0.0.1"
            );
            return self.wrong(file, kubelet.span(), text);
        }
        if let Some(token) = given.token_file.as_ref().filter(|_| !is_secret) {
            let text = "a token is sent only by https: any process that listens on that port would have it";
            return self.wrong(file, token.span(), text);
        }
        let absolute = |text: &str| match text.starts_with('/') {
            true => Ok(PathBuf::from(text)),
            false => Err(format!("`{text}` is no path from the root")),
        };
        let token_file = self.value(file, &given.token_file, absolute);
        let ca_file = self.value(file, &given.ca_file, absolute);
        self.settings.kubelet = Some(KubeletSettings {
            url,
            token_file,
            ca_file,
            skip_verify: given
                .skip_verify
                .as_ref()
                .is_some_and(|given| *given.get_ref()),
        });
    }

    /// Reads the placement of the processes; `None` leaves them alone.
    fn placement(&mut self, file: &File<'_>, raw: &RawRule) -> Option<PlacementOptions> {
        if raw
            .pages
            .as_ref()
            .is_some_and(|pages| pages.get_ref() == "off")
        {
            for (key, other) in raw.options() {
                let text = format!("`{key}` has no effect with pages = \"off\": remove it");
                self.wrong(file, other, text);
            }
            return None;
        }
        let pages = self.value(file, &raw.pages, pages);
        let budget = self.value(file, &raw.budget, parse::budget);
        let max_overhead = self.value(file, &raw.max_overhead, parse::max_overhead);
        let max_stall = self.value(file, &raw.max_stall, parse::max_stall);
        let rate = self.value(file, &raw.rate, parse::rate);
        let min_resident = self.value(file, &raw.min_resident, parse::percent);
        let settle = self.value(file, &raw.settle, parse::time);
        let min_active = self.value(file, &raw.min_active, parse::percent);
        let cold_after = self.value(file, &raw.cold_after, parse::time);
        let tracker = self.tracker(file, raw);
        let colors = self.value(file, &raw.colors, parse::colors);
        let placement = self.value(file, &raw.placement, parse::placement);
        let usual = PlacementOptions::default();
        let colors = colors.unwrap_or(usual.colors);
        if let Some(placement) = (raw.placement.as_ref()).filter(|_| colors == ColorRequest::Off) {
            let text = "`placement` needs `colors` in the same rule";
            self.wrong(file, placement.span(), text);
        }
        let policy = pages.flatten().unwrap_or(Pages::Auto);
        let colored = colors != ColorRequest::Off;
        for (option, given) in [
            (PolicyOption::MinResident, &raw.min_resident),
            (PolicyOption::Settle, &raw.settle),
            (PolicyOption::MinActive, &raw.min_active),
            (PolicyOption::ColdAfter, &raw.cold_after),
            (PolicyOption::Tracker, &raw.tracker),
        ] {
            if let (Some(given), Some(users)) = (given, option.users_without(policy, colored)) {
                let (key, policy) = (option.key(), policy.name());
                let text = format!(
                    "`{key}` has no effect with pages = \"{policy}\" (only {users}): remove it"
                );
                self.wrong(file, given.span(), text);
            }
        }
        let swap = raw.swap.as_ref().filter(|swap| *swap.get_ref());
        if let Some(swap) = swap.filter(|_| colors == ColorRequest::Off) {
            let text = "`swap` needs `colors` in the same rule";
            self.wrong(file, swap.span(), text);
        }
        Some(PlacementOptions {
            pages: pages.flatten(),
            budget,
            max_overhead: max_overhead.unwrap_or(usual.max_overhead),
            max_stall,
            rate,
            min_resident: min_resident.unwrap_or(usual.min_resident),
            settle: settle.unwrap_or(usual.settle),
            min_active: min_active.unwrap_or(usual.min_active),
            cold_after: cold_after.unwrap_or(usual.cold_after),
            tracker,
            colors,
            placement: placement.unwrap_or(usual.placement),
            swap: swap.is_some(),
        })
    }

    /// Reads the tracker of a rule. DAMON serves one watch at a time.
    fn tracker(&mut self, file: &File<'_>, raw: &RawRule) -> Option<TrackerKind> {
        let tracker = self.value(file, &raw.tracker, parse::tracker)?;
        let has_damon = |rule: &Rule| {
            let placement = rule.placement.as_ref();
            placement.is_some_and(|it| it.tracker == Some(TrackerKind::Damon))
        };
        if tracker == TrackerKind::Damon
            && let Some(other) = self.settings.rules.iter().find(|rule| has_damon(rule))
            && let Some(named) = &raw.tracker
        {
            let text = format!(
                "DAMON serves one rule, and {} ({}) names it",
                other.name, other.place
            );
            self.wrong(file, named.span(), text);
        }
        Some(tracker)
    }

    /// Reads a given value with `read`; `None` if it is missing or wrong.
    fn value<T>(
        &mut self,
        file: &File<'_>,
        given: &Option<Spanned<String>>,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let given = given.as_ref()?;
        match read(given.get_ref()) {
            Ok(value) => Some(value),
            Err(text) => {
                self.wrong(file, given.span(), text);
                None
            }
        }
    }

    /// Returns a given number, if it is in `possible`.
    fn number(
        &mut self,
        file: &File<'_>,
        given: &Option<Spanned<i64>>,
        possible: RangeInclusive<i64>,
    ) -> Option<usize> {
        let given = given.as_ref()?;
        let number = usize::try_from(*given.get_ref()).ok();
        let number = number.filter(|_| possible.contains(given.get_ref()));
        if number.is_none() {
            let text = format!(
                "this is a number from {} to {}",
                possible.start(),
                possible.end()
            );
            self.wrong(file, given.span(), text);
        }
        number
    }

    fn wrong(&mut self, file: &File<'_>, span: Range<usize>, text: impl Into<String>) {
        self.problem(file, Some(span), text);
    }

    pub(super) fn problem(
        &mut self,
        file: &File<'_>,
        span: Option<Range<usize>>,
        text: impl Into<String>,
    ) {
        let problem = Problem {
            file: file.source.name.clone(),
            at: span.map(|span| file.place(span.start)),
            text: text.into(),
        };
        self.problems.push((file.index, problem));
    }
}

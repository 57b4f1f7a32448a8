//! Turns the texts of the configuration into rules. Pure: it reads no files.
//!
//! ```toml
//! [daemon]
//! max-overhead = "2%"            # of one CPU, all rules together
//! metrics = "127.0.0.1:9119"     # or the path of a socket; without it there is no endpoint
//! metrics-services = 200         # services with series of their own
//!
//! [users]                        # users without CAP_SYS_NICE for whom the daemon makes huge pages
//! allow = ["alice", "1000", "@staff"]
//! budget = "256M"                # for one client
//!
//! [[rule]]
//! name = "redis"
//! unit = "redis*.service"        # conditions: unit, cgroup, user, executable, those of pods, or any = true
//! pages = "hot"                  # the placement
//! budget = "5%"
//!
//! [[rule]]
//! name = "everybody-else"
//! any = true
//! pages = "off"
//! ```
//!
//! Each of the tables `[daemon]`, `[users]` and `[kubernetes]` may stand in any one of the files. Rules are in the order of the files.
//!
//! All problems are reported at once, each with file, line and column, and then no setting is accepted.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::sync::Arc;

use glob::Pattern;
use serde::Deserialize;
use superhue::act::Terms;
use superhue::parse::TextPositions;
use superhue::{Pages, PlacementOptions, PolicyOption, parse};
use superhue_heat::TrackerKind;
use superhue_model::{ColorRequest, Share};
use toml::Spanned;

use crate::kubelet::KubeletSettings;
use crate::rules::{Conditions, KeyValue, PodConditions, Rule, User};
use crate::users::{AllowEntry, UserSettings};

/// Maximum number of rules. Each costs some 100 ns for every cgroup that appears, and a kilobyte.
pub const MOST_RULES: usize = 10_000;

/// Maximum number of problems that are reported at once.
const MOST_PROBLEMS: usize = 20;

/// The longest name of a rule, and the longest pattern.
const LONGEST_NAME: usize = 64;
const LONGEST_PATTERN: usize = 1024;

/// The longest key of a label or an annotation: a name of 63 and a prefix of 253 characters.
const LONGEST_KEY: usize = 317;

/// Default ceiling of all rules together: 2 % of one CPU.
const MAX_OVERHEAD: f64 = 0.02;

/// Services with series of their own: the default, and the maximum.
const METRICS_SERVICES: usize = 200;
const MOST_METRICS_SERVICES: i64 = 2000;

/// Default budget of one client of a user.
const USERS_BUDGET: Share = Share::BasisPoints(500);

/// Clients of users at a time, in all and of one user: the defaults, and the maximum. Each has a process.
const USERS_CLIENTS: usize = 32;
const USERS_CLIENTS_EACH: usize = 4;
const MOST_USERS_CLIENTS: i64 = 1024;

/// Maximum number of entries of `allow`.
const MOST_ALLOWED: usize = 1000;

/// Bytes of the path of a socket (`sun_path` of `unix(7)`, without the zero at its end).
const LONGEST_SOCKET: usize = 107;

/// Address at which metrics are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsAddress {
    /// A port.
    Port(SocketAddr),
    /// A Unix socket.
    Socket(PathBuf),
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(address) => write!(f, "{address}"),
            Self::Socket(path) => write!(f, "{}", path.display()),
        }
    }
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Its name in messages: its path.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// Settings in the files.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The ceiling of all rules together, as a share of one CPU's time.
    pub max_overhead: f64,
    /// Address for metrics; `None` for no endpoint.
    pub metrics: Option<MetricsAddress>,
    /// Number of services with series of their own.
    pub metrics_services: usize,
    /// The kubelet to ask for pods; `None` without `[kubernetes]`.
    pub kubelet: Option<KubeletSettings>,
    /// The service for users; `None` without one.
    pub users: Option<UserSettings>,
    /// The rules, in the order in which they are tried.
    pub rules: Vec<Rule>,
    /// The files, in order.
    pub files: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_overhead: MAX_OVERHEAD,
            metrics: None,
            metrics_services: METRICS_SERVICES,
            kubelet: None,
            users: None,
            rules: Vec::new(),
            files: Vec::new(),
        }
    }
}

/// A problem, and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub file: String,
    /// Line and column, from 1; `None` if it is about the whole file.
    pub at: Option<(usize, usize)>,
    /// The problem, and what to write instead.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some((line, column)) = self.at {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.text)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawFile {
    daemon: Option<Spanned<RawDaemon>>,
    kubernetes: Option<Spanned<RawKubernetes>>,
    users: Option<Spanned<RawUsers>>,
    #[serde(default)]
    rule: Vec<Spanned<RawRule>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawDaemon {
    max_overhead: Option<Spanned<String>>,
    metrics: Option<Spanned<String>>,
    metrics_public: Option<Spanned<bool>>,
    metrics_services: Option<Spanned<i64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawKubernetes {
    kubelet: Option<Spanned<String>>,
    token_file: Option<Spanned<String>>,
    ca_file: Option<Spanned<String>>,
    skip_verify: Option<Spanned<bool>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawUsers {
    allow: Option<Spanned<Vec<Spanned<String>>>>,
    budget: Option<Spanned<String>>,
    rate: Option<Spanned<String>>,
    clients: Option<Spanned<i64>>,
    clients_per_user: Option<Spanned<i64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawRule {
    name: Option<Spanned<String>>,
    unit: Option<Spanned<String>>,
    cgroup: Option<Spanned<String>>,
    namespace: Option<Spanned<String>>,
    pod: Option<Spanned<String>>,
    container: Option<Spanned<String>>,
    pod_label: Option<Spanned<String>>,
    pod_annotation: Option<Spanned<String>>,
    user: Option<Spanned<String>>,
    executable: Option<Spanned<String>>,
    any: Option<Spanned<bool>>,
    pages: Option<Spanned<String>>,
    budget: Option<Spanned<String>>,
    max_overhead: Option<Spanned<String>>,
    max_stall: Option<Spanned<String>>,
    rate: Option<Spanned<String>>,
    min_resident: Option<Spanned<String>>,
    settle: Option<Spanned<String>>,
    min_active: Option<Spanned<String>>,
    cold_after: Option<Spanned<String>>,
    tracker: Option<Spanned<String>>,
    colors: Option<Spanned<String>>,
    placement: Option<Spanned<String>>,
    swap: Option<Spanned<bool>>,
}

impl RawRule {
    /// Returns the options that are given, beside `pages`: key and place.
    fn options(&self) -> impl Iterator<Item = (&'static str, Range<usize>)> {
        let texts = [
            ("budget", &self.budget),
            ("max-overhead", &self.max_overhead),
            ("max-stall", &self.max_stall),
            ("rate", &self.rate),
            ("min-resident", &self.min_resident),
            ("settle", &self.settle),
            ("min-active", &self.min_active),
            ("cold-after", &self.cold_after),
            ("tracker", &self.tracker),
            ("colors", &self.colors),
            ("placement", &self.placement),
        ];
        let texts = texts
            .into_iter()
            .filter_map(|(key, text)| Some((key, text.as_ref()?.span())));
        texts.chain(self.swap.as_ref().map(|swap| ("swap", swap.span())))
    }
}

/// Functions that look up values outside of the files.
pub struct Lookups<'a> {
    /// Finds users by name. An error is a reason why that is not known.
    pub user_number: &'a dyn Fn(&str) -> Result<Option<u32>, String>,
    /// Finds groups by name; likewise.
    pub group_number: &'a dyn Fn(&str) -> Result<Option<u32>, String>,
    /// Finds variables of the environment.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
}

/// Reads the files, the first one's rules first.
///
/// # Errors
/// The problems (the first few), in the order of the files.
pub fn parse(sources: &[Source], lookups: &Lookups<'_>) -> Result<Settings, Vec<Problem>> {
    let mut reader = Reader {
        settings: Settings {
            files: sources.iter().map(|source| source.name.clone()).collect(),
            ..Settings::default()
        },
        problems: Vec::new(),
        named: BTreeMap::new(),
        tables: BTreeMap::new(),
        is_complete: true,
        lookups,
    };
    let mut files = Vec::new();
    for (index, source) in sources.iter().enumerate() {
        let file = File::new(index, source);
        match toml::from_str::<RawFile>(&source.text) {
            Ok(raw) => files.push((file, raw)),
            Err(error) => {
                let text = error.message().trim_end().replace('\n', "; ");
                reader.problem(&file, error.span(), text);
            }
        }
    }
    // [kubernetes] may be in the file that cannot be read.
    reader.is_complete = files.len() == sources.len();
    // A rule about pods needs [kubernetes], which may stand in a later file.
    for (file, raw) in &files {
        reader.read_tables(file, raw);
    }
    for (file, raw) in files {
        reader.read_rules(&file, raw.rule);
    }
    reader.finish()
}

/// A file, with the lines and columns of its offsets.
struct File<'a> {
    /// Its place in the order of the files.
    index: usize,
    source: &'a Source,
    places: TextPositions<'a>,
}

impl<'a> File<'a> {
    fn new(index: usize, source: &'a Source) -> Self {
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
struct Reader<'a> {
    settings: Settings,
    /// Problems, each with the index of its file.
    problems: Vec<(usize, Problem)>,
    /// Place of each name.
    named: BTreeMap<Arc<str>, String>,
    /// Place of each table that may stand in one file only.
    tables: BTreeMap<&'static str, String>,
    /// True if all files could be parsed.
    is_complete: bool,
    lookups: &'a Lookups<'a>,
}

impl Reader<'_> {
    /// Returns the settings, or else the problems.
    fn finish(mut self) -> Result<Settings, Vec<Problem>> {
        if self.problems.is_empty() {
            return Ok(self.settings);
        }
        self.problems.sort_by_key(|&(index, _)| index);
        self.problems.truncate(MOST_PROBLEMS);
        Err(self.problems.into_iter().map(|(_, it)| it).collect())
    }

    /// Reads the tables that may stand in one file only.
    fn read_tables(&mut self, file: &File<'_>, raw: &RawFile) {
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
    fn read_rules(&mut self, file: &File<'_>, rules: Vec<Spanned<RawRule>>) {
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

    fn problem(&mut self, file: &File<'_>, span: Option<Range<usize>>, text: impl Into<String>) {
        let problem = Problem {
            file: file.source.name.clone(),
            at: span.map(|span| file.place(span.start)),
            text: text.into(),
        };
        self.problems.push((file.index, problem));
    }
}

impl RawRule {
    fn has_no_condition(&self) -> bool {
        let given = [&self.unit, &self.cgroup, &self.user, &self.executable];
        given
            .iter()
            .chain(&self.of_pod())
            .all(|given| given.is_none())
    }

    fn of_pod(&self) -> [&Option<Spanned<String>>; 5] {
        [
            &self.namespace,
            &self.pod,
            &self.container,
            &self.pod_label,
            &self.pod_annotation,
        ]
    }
}

/// Reads a user or group: a name, or a number if there is no such name.
fn user(text: &str, find: &dyn Fn(&str) -> Result<Option<u32>, String>) -> Result<User, String> {
    // The last number means "no user" to the kernel.
    let number = text.parse().ok().filter(|&number| number != u32::MAX);
    if text.is_empty() {
        return Err("`` is no user".to_owned());
    }
    // A rule about an unknown user would be passed over, and the next one taken: so a failure to look it up is a fault of the configuration.
    let found = find(text).map_err(|why| format!("`{text}` cannot be looked up: {why}"))?;
    Ok(User {
        name: text.to_owned(),
        number: found.or(number),
    })
}

/// Returns true if an address without its scheme (`127.0.0.1:10255/pods`) is of this machine itself.
fn is_this_machine(address: &str) -> bool {
    let authority = address.split(['/', '?', '#']).next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    // A name before `@` is no host.
    !authority.contains('@')
        && (host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback()))
}

/// Reads `alice`, `1000` or `@staff`.
fn allowed(text: &str, lookups: &Lookups<'_>) -> Result<AllowEntry, String> {
    if let Some(group) = text.strip_prefix('@') {
        return user(group, lookups.group_number)
            .map(AllowEntry::Group)
            .map_err(|why| match group.is_empty() {
                true => "`@` is no group".to_owned(),
                false => why,
            });
    }
    let user = user(text, lookups.user_number)?;
    if user.number == Some(0) {
        return Err(format!(
            "`{text}` needs no service: root has CAP_SYS_NICE, and what it may do is not lent"
        ));
    }
    Ok(AllowEntry::User(user))
}

/// Reads the address for metrics. One that other machines can reach needs `metrics-public`, too.
fn metrics_address(text: &str, is_public: bool) -> Result<MetricsAddress, String> {
    if text.starts_with('/') {
        if text.len() > LONGEST_SOCKET || text.ends_with('/') || text.contains('\0') {
            return Err(format!(
                "`{text}` cannot be the path of a socket: at most {LONGEST_SOCKET} bytes, with a name at its end"
            ));
        }
        return Ok(MetricsAddress::Socket(text.into()));
    }
    let address: SocketAddr = text.parse().map_err(|_| {
        format!(
            "`{text}` is no address: write 127.0.0.1:9119, [::1]:9119 or the path of a socket, such as \
             /run/superhue/metrics.sock"
        )
    })?;
    if address.port() == 0 {
        return Err(format!(
            "`{text}` would be another port at each start: name one, such as 9119"
        ));
    }
    if !is_public && !address.ip().to_canonical().is_loopback() {
        return Err(format!(
            "`{text}` can be reached from other machines, and each of them gets an answer: use 127.0.0.1:{0}, or add \
             metrics-public = true (and see that a firewall lets in nobody but your Prometheus)",
            address.port()
        ));
    }
    Ok(MetricsAddress::Port(address))
}

fn rule_name(text: &str) -> Result<Arc<str>, String> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "._@-".contains(c);
    if text.is_empty() || text.len() > LONGEST_NAME || !text.chars().all(is_fine) {
        return Err(format!(
            "`{text}` is no name of a rule: 1 to {LONGEST_NAME} letters, digits and . _ @ -"
        ));
    }
    Ok(text.into())
}

/// Reads the policy; `None` for the best that works.
fn pages(text: &str) -> Result<Option<Pages>, String> {
    if text == "auto" {
        return Ok(None);
    }
    let found = Pages::ALL.into_iter().find(|pages| pages.name() == text);
    match found {
        Some(Pages::Never) => Err(
            "`never` works only for commands that superhue starts: use \"off\", or \"kernel\" to look on"
                .to_owned(),
        ),
        Some(pages) => Ok(Some(pages)),
        None => Err(format!(
            "`{text}` is no policy: use \"auto\", \"hot\", \"resident\", \"always\", \"kernel\" (only look) \
             or \"off\" (leave alone)"
        )),
    }
}

fn pattern(text: &str) -> Result<Pattern, String> {
    if text.is_empty() || text.len() > LONGEST_PATTERN {
        return Err(format!("a pattern has 1 to {LONGEST_PATTERN} characters"));
    }
    Pattern::new(text).map_err(|error| {
        format!(
            "`{text}` is no pattern: {} (at character {})",
            error.msg,
            error.pos + 1
        )
    })
}

/// Reads `app=redis,tier`: keys that must be present, some of them with a pattern for the value.
fn key_values(text: &str) -> Result<Vec<KeyValue>, String> {
    let one = |part: &str| {
        let (key, value) = match part.split_once('=') {
            Some((key, value)) => (key.trim_end(), Some(value.trim_start_matches('=').trim())),
            None => (part, None),
        };
        let is_fine = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        if key.is_empty() || key.len() > LONGEST_KEY || !key.chars().all(is_fine) {
            return Err(format!(
                "`{part}` is neither KEY nor KEY=VALUE, such as app=redis"
            ));
        }
        let value = value
            .filter(|value| !value.is_empty())
            .map(pattern)
            .transpose()?;
        Ok(KeyValue {
            key: key.to_owned(),
            value,
        })
    };
    text.split(',').map(|part| one(part.trim())).collect()
}

/// Replaces `${NAME}` by variables of the environment.
fn filled(text: &str, find: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, after) =
            (after.split_once('}')).ok_or_else(|| format!("`{text}`: ${{ without }}"))?;
        let value = find(name).filter(|value| !value.is_empty());
        let value = value.ok_or_else(|| format!("`{text}`: {name} is not in the environment"))?;
        filled += before;
        // An IPv6 address needs brackets in a URL.
        let is_v6 = value.parse::<std::net::Ipv6Addr>().is_ok();
        filled += &if is_v6 { format!("[{value}]") } else { value };
        rest = after;
    }
    Ok(filled + rest)
}

fn no_slash(text: &str) -> Result<&str, String> {
    if text.contains('/') {
        return Err(format!(
            "`{text}` has a `/`, which no unit, namespace, pod or container has (for a path use cgroup)"
        ));
    }
    Ok(text)
}

fn from_root(text: &str) -> Result<&str, String> {
    if !text.starts_with('/') || text.starts_with("/sys/fs/cgroup") {
        return Err(format!(
            "`{text}` is no cgroup: write the path below the mount, such as /system.slice/redis.service"
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;

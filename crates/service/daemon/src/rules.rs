//! Finds the rule that a process belongs to: the first one whose conditions all hold. Pure: facts in, decision out.
//!
//! A cgroup alone decides most of it. So rules are tried on the cgroup first, once for all its processes. What is left are *candidates*: rules that
//! may still hold, in order, up to the first one that holds for every process. Processes are read only where a candidate needs more, and cgroups
//! without candidates are not read again.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use glob::{MatchOptions, Pattern};
use superhue::{Config, PlacementOptions};
use superhue_procfs::Roots;
use superhue_procfs::cgroup::path_of_process;

use crate::pods::{Pod, Pods, place};

/// Maximum number of characters of a label.
const LABEL: usize = 200;

/// Options for patterns: `*` and `?` stay within one part of a path, `**` spans parts.
const MATCHING: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// One rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Name of the rule, which is unique.
    pub name: Arc<str>,
    /// Place of the rule in the files: `FILE:LINE`.
    pub place: String,
    /// The conditions, all of which must hold.
    pub conditions: Conditions,
    /// Placement of the processes; `None` leaves them alone.
    pub placement: Option<PlacementOptions>,
}

/// Conditions, all of which must hold. Without any, they hold for every process.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Conditions {
    /// A unit of the system's systemd that the process belongs to: a service or scope, or a slice above it.
    pub unit: Option<Pattern>,
    /// The path of its cgroup below the mount, which begins with `/`.
    pub cgroup: Option<Pattern>,
    /// The pod that its cgroup belongs to.
    pub pod: PodConditions,
    /// Effective user of the process.
    pub user: Option<User>,
    /// The file that it executes: its path, or its name if the pattern has no `/`.
    pub executable: Option<Pattern>,
}

/// Conditions on the pod, all of which must hold. Without any, they hold for processes without a pod, too.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PodConditions {
    /// Pattern for the pod's namespace.
    pub namespace: Option<Pattern>,
    /// Pattern for the pod's name.
    pub name: Option<Pattern>,
    /// The name of the container.
    pub container: Option<Pattern>,
    /// Labels, all of which it must have.
    pub labels: Vec<KeyValue>,
    /// Annotations, likewise.
    pub annotations: Vec<KeyValue>,
}

/// A label or an annotation that must be there, with this value if one is given.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyValue {
    /// Key of the label or annotation.
    pub key: String,
    /// Pattern for its value.
    pub value: Option<Pattern>,
}

/// A user, by name or number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The name as written.
    pub name: String,
    /// The number; `None` if there is no such user.
    pub number: Option<u32>,
}

/// A cgroup, as rules see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupFacts {
    /// Path of the cgroup below the mount: `/`, `/system.slice/redis.service`.
    pub path: String,
    /// Pod that the cgroup belongs to, as far as it is known.
    pub pod: PodFacts,
}

/// Known facts about a cgroup's pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PodFacts {
    /// The cgroup belongs to no pod.
    #[default]
    None,
    /// The cgroup belongs to a pod that the kubelet has not named, or not yet.
    Unknown,
    /// The kubelet knows it.
    Known {
        /// The pod.
        pod: Arc<Pod>,
        /// The name of the container; `None` if the kubelet has not named it: a new one, or none that the pod names.
        container: Option<String>,
    },
}

impl GroupFacts {
    /// Makes the facts of a cgroup with this path.
    #[must_use]
    pub fn new(path: &str) -> Self {
        let path = path.trim_end_matches('/');
        let path = if path.is_empty() { "/" } else { path };
        Self {
            path: path.to_owned(),
            pod: PodFacts::None,
        }
    }

    /// Reads the facts of the cgroup that process `pid` is in now; `None` if that cannot be read.
    #[must_use]
    pub fn of_process(roots: &Roots, pid: u32) -> Option<Self> {
        Some(Self::new(&path_of_process(roots, pid).ok()??))
    }

    /// Adds the known facts about its pod.
    #[must_use]
    pub fn with_pods(mut self, pods: &Pods) -> Self {
        let Some(place) = place(&self.path) else {
            return self;
        };
        self.pod = match pods.get(&place.uid) {
            None => PodFacts::Unknown,
            Some(pod) => PodFacts::Known {
                pod: Arc::clone(pod),
                container: (place.container).and_then(|id| pod.containers.get(id).cloned()),
            },
        };
        self
    }

    /// Returns the units of the system's systemd that it belongs to: slices from the root on, and the first service or scope.
    ///
    /// A cgroup below that service or scope is no unit: the user to whom it is delegated may have made it, under any name
    /// (`https://systemd.io/CGROUP_DELEGATION`).
    pub fn units(&self) -> impl Iterator<Item = &str> {
        let mut is_over = false;
        let parts = self.path.split('/').filter(|part| !part.is_empty());
        parts.map_while(move |part| {
            let is_slice = part.ends_with(".slice");
            let is_unit = is_slice || part.ends_with(".service") || part.ends_with(".scope");
            (is_unit && !std::mem::replace(&mut is_over, !is_slice)).then_some(part)
        })
    }

    /// Returns the name that its processes are counted under: their pod (`shop/redis-0`), service or scope, else the cgroup.
    #[must_use]
    pub fn service(&self) -> Cow<'_, str> {
        if let PodFacts::Known { pod, .. } = &self.pod {
            return format!("{}/{}", pod.namespace, pod.name).into();
        }
        let unit = self.units().last().filter(|unit| !unit.ends_with(".slice"));
        unit.unwrap_or(&self.path).into()
    }

    /// Returns the tenant of its processes, which could act together: their pod, all that a user of the system's systemd runs, or the service or
    /// scope. `None` if only their user determines it.
    #[must_use]
    pub fn tenant(&self) -> Option<Arc<str>> {
        if let Some(place) = place(&self.path) {
            return Some(format!("pod {}", place.uid).into());
        }
        let is_user = |unit: &&str| unit.starts_with("user-") && unit.ends_with(".slice");
        let user = self.units().find(is_user);
        let service = || self.units().last().filter(|unit| !unit.ends_with(".slice"));
        Some(shortened(user.or_else(service)?).into())
    }

    /// Returns the same, cut to fit into a line: the name of the service in accounts.
    #[must_use]
    pub fn label(&self) -> String {
        shortened(&self.service())
    }
}

/// Cuts a label to fit into a line. Keeps the end, which distinguishes most.
fn shortened(label: &str) -> String {
    let count = label.chars().count();
    if count <= LABEL {
        return label.to_owned();
    }
    let end: String = label.chars().skip(count - LABEL + 1).collect();
    format!("…{end}")
}

/// Facts about one process; read only if a candidate needs them.
pub trait ProcessFacts {
    /// Returns its effective user; `None` if it is gone.
    fn user(&mut self) -> Option<u32>;
    /// Returns the file that it executes; `None` if unknown.
    fn executable(&mut self) -> Option<&Path>;
}

/// Rules that may hold for the processes of a cgroup, by index, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Candidates(pub Arc<[u32]>);

/// Reason why a rule does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mismatch {
    /// The unit.
    Unit,
    /// The cgroup.
    Cgroup,
    /// The process is in no pod.
    NoPod,
    /// Nothing is known of its pod yet, so this rule may hold or not: no later rule is tried.
    PodUnknown,
    /// The kubelet has not named its container yet: likewise.
    ContainerUnknown,
    /// The pod's namespace.
    Namespace,
    /// The pod's name.
    PodName,
    /// The container.
    Container,
    /// The pod's labels.
    Label,
    /// The pod's annotations.
    Annotation,
    /// The user.
    User,
    /// There is no such user.
    NoSuchUser,
    /// The executable.
    Executable,
}

impl Mismatch {
    /// Describes it in words.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Unit => "it belongs to another unit, or to none",
            Self::Cgroup => "it is in another cgroup",
            Self::NoPod => "it is in no pod",
            Self::PodUnknown => {
                "the kubelet has not said what its pod is: it is left alone until then"
            }
            Self::ContainerUnknown => {
                "the kubelet has not said which container it is in: it is left alone until then"
            }
            Self::Namespace => "its pod is in another namespace",
            Self::PodName => "its pod has another name",
            Self::Container => "it is in another container",
            Self::Label => "its pod has no such label",
            Self::Annotation => "its pod has no such annotation",
            Self::User => "it runs as another user",
            Self::NoSuchUser => "there is no user of that name",
            Self::Executable => "it executes another file",
        }
    }
}

impl Mismatch {
    /// Returns true if the rule may hold all the same, once more is known.
    #[must_use]
    pub const fn is_undecided(self) -> bool {
        matches!(self, Self::PodUnknown | Self::ContainerUnknown)
    }
}

impl KeyValue {
    fn is_among(&self, all: &BTreeMap<String, String>) -> bool {
        let value = all.get(&self.key);
        value.is_some_and(|value| {
            let pattern = self.value.as_ref();
            // Values are no paths.
            pattern.is_none_or(|pattern| pattern.matches(value))
        })
    }
}

impl PodConditions {
    /// Returns true if there is no condition.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn mismatch(&self, facts: &PodFacts) -> Option<Mismatch> {
        if self.is_empty() {
            return None;
        }
        let (pod, container) = match facts {
            PodFacts::None => return Some(Mismatch::NoPod),
            PodFacts::Unknown => return Some(Mismatch::PodUnknown),
            PodFacts::Known { pod, container } => (pod, container),
        };
        let differs = |pattern: &Option<Pattern>, text: &str| {
            (pattern.as_ref()).is_some_and(|pattern| !pattern.matches(text))
        };
        if differs(&self.namespace, &pod.namespace) {
            return Some(Mismatch::Namespace);
        }
        if differs(&self.name, &pod.name) {
            return Some(Mismatch::PodName);
        }
        if !self.labels.iter().all(|it| it.is_among(&pod.labels)) {
            return Some(Mismatch::Label);
        }
        if !(self.annotations.iter()).all(|it| it.is_among(&pod.annotations)) {
            return Some(Mismatch::Annotation);
        }
        match (&self.container, container) {
            (None, _) => None,
            (Some(_), None) => Some(Mismatch::ContainerUnknown),
            (pattern, Some(name)) => differs(pattern, name).then_some(Mismatch::Container),
        }
    }
}

impl Conditions {
    /// Returns true if there is no condition.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns true if a cgroup alone does not decide.
    fn asks_for_process(&self) -> bool {
        self.user.is_some() || self.executable.is_some()
    }

    fn group_mismatch(&self, group: &GroupFacts) -> Option<Mismatch> {
        let differs = |pattern: &Pattern, text: &str| !pattern.matches_with(text, MATCHING);
        if let Some(unit) = &self.unit
            && group.units().all(|name| differs(unit, name))
        {
            return Some(Mismatch::Unit);
        }
        let cgroup = self.cgroup.as_ref();
        if cgroup.is_some_and(|path| differs(path, &group.path)) {
            return Some(Mismatch::Cgroup);
        }
        self.pod.mismatch(&group.pod)
    }

    fn process_mismatch(&self, process: &mut dyn ProcessFacts) -> Option<Mismatch> {
        if let Some(user) = &self.user {
            if user.number.is_none() {
                return Some(Mismatch::NoSuchUser);
            }
            if process.user() != user.number {
                return Some(Mismatch::User);
            }
        }
        let pattern = self.executable.as_ref()?;
        let holds = process.executable().is_some_and(|path| {
            let name = Path::new(path.file_name().unwrap_or_default());
            let subject = if pattern.as_str().contains('/') {
                path
            } else {
                name
            };
            pattern.matches_path_with(subject, MATCHING)
        });
        (!holds).then_some(Mismatch::Executable)
    }
}

impl Rule {
    /// Returns the placement of its processes, in words.
    #[must_use]
    pub fn placed(&self) -> String {
        match &self.placement {
            Some(placement) => placement.to_string(),
            None => "off (left alone)".to_owned(),
        }
    }
}

/// Returns the settings of a watch of processes with this placement.
#[must_use]
pub fn config_of(placement: &PlacementOptions, roots: &Roots) -> Config {
    Config {
        roots: roots.clone(),
        ..Config::from(placement)
    }
}

impl fmt::Display for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        match &self.value {
            Some(value) => write!(f, "={value}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Conditions {
    /// Writes the conditions as in a file, with commas between.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pattern = |pattern: &Option<Pattern>| pattern.as_ref().map(|it| it.as_str().to_owned());
        let list = |all: &[KeyValue]| {
            let all: Vec<String> = all.iter().map(ToString::to_string).collect();
            (!all.is_empty()).then(|| all.join(","))
        };
        let all = [
            ("unit", pattern(&self.unit)),
            ("cgroup", pattern(&self.cgroup)),
            ("namespace", pattern(&self.pod.namespace)),
            ("pod", pattern(&self.pod.name)),
            ("container", pattern(&self.pod.container)),
            ("pod-label", list(&self.pod.labels)),
            ("pod-annotation", list(&self.pod.annotations)),
            ("user", self.user.as_ref().map(|user| user.name.clone())),
            ("executable", pattern(&self.executable)),
        ];
        let given = all
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)));
        let given: Vec<String> = given
            .map(|(key, value)| format!("{key} = {value:?}"))
            .collect();
        if given.is_empty() {
            return f.write_str("any = true");
        }
        f.write_str(&given.join(", "))
    }
}

/// Returns the rules that may hold for processes of `group`.
#[must_use]
pub fn candidates(rules: &[Rule], group: &GroupFacts) -> Candidates {
    let mut found = Vec::new();
    for (index, rule) in (0..).zip(rules) {
        match rule.conditions.group_mismatch(group) {
            None => {
                found.push(index);
                if !rule.conditions.asks_for_process() {
                    break;
                }
            }
            // A process that may belong to this rule does not get the placement of a later one: "off" may be meant.
            Some(because) if because.is_undecided() => break,
            Some(_) => {}
        }
    }
    Candidates(found.into())
}

impl Candidates {
    /// Returns true if no rule can hold.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the rule that holds for every process of the cgroup, if no other one can.
    #[must_use]
    pub fn certain(&self, rules: &[Rule]) -> Option<usize> {
        let &index = self.0.first()?;
        let index = index as usize;
        let rule = rules.get(index)?;
        (!rule.conditions.asks_for_process()).then_some(index)
    }

    /// Returns the rule that holds for a process of the cgroup.
    pub fn decide(&self, rules: &[Rule], process: &mut dyn ProcessFacts) -> Option<usize> {
        let indexes = self.0.iter().map(|&index| index as usize);
        let mut holding = indexes.filter_map(|index| {
            let rule = rules.get(index)?;
            let mismatch = rule.conditions.process_mismatch(process);
            mismatch.is_none().then_some(index)
        });
        holding.next()
    }
}

/// Returns the reason why `rule` does not hold for a process; `None` if it does.
pub fn mismatch(
    rule: &Rule,
    group: &GroupFacts,
    process: &mut dyn ProcessFacts,
) -> Option<Mismatch> {
    let conditions = &rule.conditions;
    (conditions.group_mismatch(group)).or_else(|| conditions.process_mismatch(process))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;

    struct Facts(Option<u32>, Option<PathBuf>, u32);

    impl ProcessFacts for Facts {
        fn user(&mut self) -> Option<u32> {
            self.2 += 1;
            self.0
        }
        fn executable(&mut self) -> Option<&Path> {
            self.2 += 1;
            self.1.as_deref()
        }
    }

    fn facts(user: u32, executable: &str) -> Facts {
        Facts(Some(user), Some(executable.into()), 0)
    }

    /// Makes rules of `unit`, `cgroup`, `user`, `executable`; empty for none.
    fn rules(all: &[[&str; 4]]) -> Vec<Rule> {
        let pattern = |text: &str| (!text.is_empty()).then(|| Pattern::new(text).unwrap());
        let rule = |(number, text): (usize, &[&str; 4])| Rule {
            name: number.to_string().into(),
            place: String::new(),
            conditions: Conditions {
                unit: pattern(text[0]),
                cgroup: pattern(text[1]),
                pod: PodConditions::default(),
                user: (!text[2].is_empty()).then(|| User {
                    name: text[2].to_owned(),
                    number: text[2].parse().ok(),
                }),
                executable: pattern(text[3]),
            },
            placement: None,
        };
        all.iter().enumerate().map(rule).collect()
    }

    fn decide(rules: &[Rule], group: &str, process: &mut Facts) -> Option<usize> {
        candidates(rules, &GroupFacts::new(group)).decide(rules, process)
    }

    #[test]
    fn the_first_rule_that_holds_wins() {
        let rules = rules(&[
            ["", "", "7", "redis-server"],
            ["redis*.service", "", "", ""],
            ["", "/system.slice/**", "", ""],
            ["", "", "", "/usr/bin/*"],
        ]);
        let redis = "/system.slice/redis.service";
        let mut process = facts(7, "/opt/redis-server");
        assert_eq!(decide(&rules, redis, &mut process), Some(0));
        assert_eq!(decide(&rules, redis, &mut facts(8, "/x")), Some(1));
        let mut other = facts(8, "/x");
        let cron = "/system.slice/cron.service";
        assert_eq!(decide(&rules, cron, &mut other), Some(2));
        let mut tool = facts(8, "/usr/bin/tool");
        assert_eq!(decide(&rules, "/", &mut tool), Some(3));
        let mut deeper = facts(8, "/usr/bin/more/tool");
        assert_eq!(decide(&rules, "/", &mut deeper), None, "`*` is one part");
        // No condition holds for a fact that cannot be read.
        let mut unknown = Facts(None, None, 0);
        assert_eq!(decide(&rules, "/", &mut unknown), None);
    }

    #[test]
    fn processes_are_read_only_where_a_rule_asks() {
        let rules = rules(&[
            ["a.service", "", "", ""],
            ["", "/b/**", "7", ""],
            ["", "/b/c", "", ""],
            ["", "", "", "never-reached-in-b-c"],
        ]);
        let of = |path: &str| candidates(&rules, &GroupFacts::new(path));
        assert_eq!(of("/a.service").certain(&rules), Some(0));
        assert_eq!(*of("/b/c").0, [1, 2], "rule 2 holds for all that are left");
        assert_eq!(of("/b/c").certain(&rules), None);
        let mut process = facts(7, "");
        of("/a.service").decide(&rules, &mut process);
        assert_eq!(process.2, 0);
        of("/b/c").decide(&rules, &mut process);
        assert_eq!(process.2, 1, "the user, and not the executable");
        assert!(candidates(&rules[..3], &GroupFacts::new("/z")).is_empty());
    }

    #[test]
    fn labels_are_bounded() {
        assert_eq!(shortened("redis.service"), "redis.service");
        let long = shortened(&format!("/{}/end", "ä".repeat(500)));
        assert_eq!(long.chars().count(), LABEL);
        assert!(long.starts_with('…') && long.ends_with("/end"));
    }

    #[test]
    fn what_a_user_names_like_a_unit_is_none() {
        let of = |path: &str| {
            let group = GroupFacts::new(path);
            let units: Vec<String> = group.units().map(str::to_owned).collect();
            (units.join(" "), group.service().into_owned())
        };
        let both = |units: &str, service: &str| (units.to_owned(), service.to_owned());
        assert_eq!(
            of("/system.slice/redis.service"),
            both("system.slice redis.service", "redis.service")
        );
        assert_eq!(
            of("/user.slice/user-7.slice/user@7.service/app.slice/redis.service"),
            both("user.slice user-7.slice user@7.service", "user@7.service")
        );
        assert_eq!(
            of("/system.slice/docker-ab.scope/init.scope"),
            both("system.slice docker-ab.scope", "docker-ab.scope")
        );
        let pod = "/kubepods/burstable/pod1/redis.service";
        assert_eq!(of(pod), both("", pod));
        assert_eq!(of("/system.slice"), both("system.slice", "/system.slice"));
        assert_eq!(of("/"), both("", "/"));
        assert_eq!(of(""), both("", "/"));
    }

    #[test]
    fn paths_are_matched_part_by_part() {
        let matches = |pattern: &str, path: &str| {
            let rules = rules(&[["", pattern, "", ""]]);
            !candidates(&rules, &GroupFacts::new(path)).is_empty()
        };
        assert!(matches("/system.slice/*", "/system.slice/a.service"));
        assert!(!matches("/system.slice/*", "/system.slice/a.service/b"));
        assert!(matches("/system.slice/**", "/system.slice/a.service/b"));
        assert!(matches("/**/pod-[ab]", "/kubepods/x/pod-b"));
        assert!(!matches("/system.slice", "/system.slice/a.service"));
        assert!(matches("/", "/"));
        assert!(matches("/*\u{fffd}", "/x\u{fffd}"));
    }

    #[test]
    fn a_hostile_name_takes_no_time() {
        // The work of a naive matcher grows with a power of the length.
        let rules = rules(&[["", "/*a*a*a*a*a*a*a*a*b", "", ""]]);
        let group = GroupFacts::new(&format!("/{}", "a".repeat(255)));
        let begun = std::time::Instant::now();
        assert!(candidates(&rules, &group).is_empty());
        assert!(begun.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn why_a_rule_does_not_hold_is_told() {
        let rules = rules(&[
            ["a.service", "", "", ""],
            ["", "/a", "", ""],
            ["", "", "7", ""],
            ["", "", "nobody-of-that-name", ""],
            ["", "", "", "redis"],
            ["", "", "8", "tool"],
        ]);
        let group = GroupFacts::new("/b");
        let told: Vec<_> = (rules.iter())
            .map(|rule| mismatch(rule, &group, &mut facts(8, "/bin/tool")))
            .collect();
        assert_eq!(
            told,
            [
                Some(Mismatch::Unit),
                Some(Mismatch::Cgroup),
                Some(Mismatch::User),
                Some(Mismatch::NoSuchUser),
                Some(Mismatch::Executable),
                None,
            ]
        );
    }

    const POD: &str = "/kubepods.slice/kubepods-pod0c_1d.slice";
    const CONTAINER: &str = "89ef89ef89ef89ef";

    fn pods() -> Pods {
        let map = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
        let pod = Pod {
            namespace: "shop".to_owned(),
            name: "redis-0".to_owned(),
            labels: map("app", "redis"),
            annotations: map("superhue.dev/pages", "hot"),
            containers: map(CONTAINER, "server"),
        };
        [("0c-1d".to_owned(), Arc::new(pod))].into()
    }

    fn pod_rule(change: impl FnOnce(&mut PodConditions)) -> Rule {
        let mut rule = rules(&[[""; 4]]).remove(0);
        change(&mut rule.conditions.pod);
        rule
    }

    fn because(rule: &Rule, path: &str, pods: &Pods) -> Option<Mismatch> {
        let group = GroupFacts::new(path).with_pods(pods);
        mismatch(rule, &group, &mut facts(7, "/x"))
    }

    #[test]
    fn pods_are_told_by_what_the_kubelet_says() {
        let pattern = |text: &str| Some(Pattern::new(text).unwrap());
        let has = |key: &str, value: &str| KeyValue {
            key: key.to_owned(),
            value: (!value.is_empty()).then(|| Pattern::new(value).unwrap()),
        };
        let inside = format!("{POD}/cri-containerd-{CONTAINER}.scope");
        let of = |rule: &Rule| because(rule, &inside, &pods());
        let namespace = |text| pod_rule(|pod| pod.namespace = pattern(text));
        assert_eq!(of(&namespace("sh*")), None);
        assert_eq!(of(&namespace("kube-*")), Some(Mismatch::Namespace));
        assert_eq!(of(&pod_rule(|pod| pod.name = pattern("redis-?"))), None);
        let other = pod_rule(|pod| pod.name = pattern("mysql-?"));
        assert_eq!(of(&other), Some(Mismatch::PodName));
        assert_eq!(of(&pod_rule(|pod| pod.labels = vec![has("app", "")])), None);
        let both = pod_rule(|pod| pod.labels = vec![has("app", "redis"), has("tier", "")]);
        assert_eq!(of(&both), Some(Mismatch::Label));
        let hot = pod_rule(|pod| pod.annotations = vec![has("superhue.dev/pages", "hot")]);
        assert_eq!(of(&hot), None);
        let off = pod_rule(|pod| pod.annotations = vec![has("superhue.dev/pages", "off")]);
        assert_eq!(of(&off), Some(Mismatch::Annotation));
        let container = |text| pod_rule(|pod| pod.container = pattern(text));
        assert_eq!(of(&container("server")), None);
        assert_eq!(of(&container("sidecar")), Some(Mismatch::Container));
        // Elsewhere.
        assert_eq!(
            because(&hot, "/system.slice/a.service", &pods()),
            Some(Mismatch::NoPod)
        );
        assert_eq!(
            because(&hot, &inside, &Pods::new()),
            Some(Mismatch::PodUnknown)
        );
        let new = format!("{POD}/cri-containerd-ffffffffffffffff.scope");
        assert_eq!(
            because(&container("server"), &new, &pods()),
            Some(Mismatch::ContainerUnknown)
        );
        assert_eq!(because(&hot, &new, &pods()), None, "the pod is known");
        let service = GroupFacts::new(&inside).with_pods(&pods());
        assert_eq!(service.service(), "shop/redis-0");
        assert_eq!(
            both.conditions.to_string(),
            "pod-label = \"app=redis,tier\""
        );
    }

    #[test]
    fn nobody_gets_a_later_rule_while_an_earlier_one_may_be_his() {
        let off = pod_rule(|pod| {
            pod.annotations = vec![KeyValue {
                key: "superhue.dev/pages".to_owned(),
                value: Some(Pattern::new("off").unwrap()),
            }];
        });
        let all = [off, rules(&[[""; 4]]).remove(0)];
        let group = |pods: &Pods| GroupFacts::new(POD).with_pods(pods);
        assert!(candidates(&all, &group(&Pods::new())).is_empty());
        assert_eq!(*candidates(&all, &group(&pods())).0, [1]);
        assert_eq!(*candidates(&all, &GroupFacts::new("/a.service")).0, [1]);
    }
}

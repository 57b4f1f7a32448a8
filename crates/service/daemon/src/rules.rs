//! Which rule a process belongs to: the first one all of whose conditions hold. Pure: facts in, decision out.
//!
//! A cgroup alone decides most of it. So rules are first asked about the cgroup, once for all its processes, and what is left are
//! *candidates*: rules that may still hold, in order, up to the first one that holds whoever the process is. Processes are looked at only
//! where a candidate asks for more, and cgroups without candidates are not looked at again.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use glob::{MatchOptions, Pattern};
use superhue::{MAX_STALL_DEFAULT, Pages};
use superhue_model::{ColorRequest, Share};

/// A label has at most so many letters.
const LABEL: usize = 200;

/// How patterns are matched: `*` and `?` stay within one part of a path, `**` spans parts.
const MATCHING: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// One rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Its name, which is unique.
    pub name: Arc<str>,
    /// Where it stands: `FILE:LINE`.
    pub place: String,
    /// What all has to hold.
    pub conditions: Conditions,
    /// What becomes of the processes; `None` leaves them alone.
    pub placement: Option<Placement>,
}

/// What all has to hold. None at all holds for every process.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Conditions {
    /// A unit of the system's systemd that the process belongs to: a service or scope, or a slice above it.
    pub unit: Option<Pattern>,
    /// The path of its cgroup below the mount, which begins with `/`.
    pub cgroup: Option<Pattern>,
    /// Its effective user.
    pub user: Option<User>,
    /// The file that it executes: its path, or its name if the pattern has no `/`.
    pub executable: Option<Pattern>,
}

/// A user, by name or number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// As written.
    pub name: String,
    /// The number; `None` if there is nobody of that name.
    pub number: Option<u32>,
}

/// What becomes of the processes of a rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// The policy; `None` is `hot` where accesses can be tracked, else `resident`.
    pub pages: Option<Pages>,
    /// How much memory superpages may add; `None` is the policy's own default.
    pub budget: Option<Share>,
    /// What the rule's watch may cost, as a share of one CPU's time.
    pub max_overhead: f64,
    /// How much of every 100 ms of a process collapses may take; zero is for no bound.
    pub max_stall: Duration,
    /// Page colors.
    pub colors: ColorRequest,
}

/// What a rule may cost unless it says otherwise: 1 % of one CPU.
const MAX_OVERHEAD: f64 = 0.01;

impl Default for Placement {
    /// What a rule without options comes to.
    fn default() -> Self {
        Self {
            pages: None,
            budget: None,
            max_overhead: MAX_OVERHEAD,
            max_stall: MAX_STALL_DEFAULT,
            colors: ColorRequest::Off,
        }
    }
}

/// A cgroup, as rules see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupFacts {
    /// Its path below the mount: `/`, `/system.slice/redis.service`.
    pub path: String,
}

impl GroupFacts {
    /// Of a cgroup with this path; bytes that are no UTF-8 are replaced.
    #[must_use]
    pub fn new(path: &str) -> Self {
        let path = path.trim_end_matches('/');
        let path = if path.is_empty() { "/" } else { path };
        Self {
            path: path.to_owned(),
        }
    }

    /// The units of the system's systemd that it belongs to: slices from the root on, and the first service or scope.
    ///
    /// What is below that service or scope may have been made by whoever it is delegated to, under any name, and is no unit
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

    /// What its processes are counted under: their service or scope, else the cgroup.
    #[must_use]
    pub fn service(&self) -> &str {
        let unit = self.units().last().filter(|unit| !unit.ends_with(".slice"));
        unit.unwrap_or(&self.path)
    }

    /// The same, no longer than fits into a line: what accounts call the service.
    #[must_use]
    pub fn label(&self) -> String {
        shortened(self.service())
    }
}

/// A label that fits into a line. Its end is what tells most.
fn shortened(label: &str) -> String {
    let count = label.chars().count();
    if count <= LABEL {
        return label.to_owned();
    }
    let end: String = label.chars().skip(count - LABEL + 1).collect();
    format!("…{end}")
}

/// What is known of one process; read only if a candidate asks for it.
pub trait ProcessFacts {
    /// Its effective user; `None` if it is gone.
    fn user(&mut self) -> Option<u32>;
    /// The file that it executes; `None` if that cannot be told.
    fn executable(&mut self) -> Option<&Path>;
}

/// Rules that may hold for the processes of a cgroup, by index, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Candidates(pub Arc<[u32]>);

/// Why a rule does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mismatch {
    /// The unit.
    Unit,
    /// The cgroup.
    Cgroup,
    /// The user.
    User,
    /// There is no such user.
    NoSuchUser,
    /// The executable.
    Executable,
}

impl Mismatch {
    /// In words.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Unit => "it belongs to another unit, or to none",
            Self::Cgroup => "it is in another cgroup",
            Self::User => "it runs as another user",
            Self::NoSuchUser => "there is no user of that name",
            Self::Executable => "it executes another file",
        }
    }
}

impl Conditions {
    /// Whether nothing has to hold.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a cgroup alone decides.
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
        (cgroup.is_some_and(|path| differs(path, &group.path))).then_some(Mismatch::Cgroup)
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
    /// What becomes of its processes, in words.
    #[must_use]
    pub fn placed(&self) -> String {
        match &self.placement {
            Some(placement) => placement.to_string(),
            None => "off (left alone)".to_owned(),
        }
    }
}

impl fmt::Display for Conditions {
    /// As in a file, with commas between.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pattern = |pattern: &Option<Pattern>| pattern.as_ref().map(|it| it.as_str().to_owned());
        let all = [
            ("unit", pattern(&self.unit)),
            ("cgroup", pattern(&self.cgroup)),
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

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.pages.map_or("auto", Pages::name))?;
        if let Some(budget) = self.budget {
            write!(f, ", budget {budget}")?;
        }
        write!(f, ", at most {}% of a CPU", self.max_overhead * 100.0)?;
        match self.max_stall {
            MAX_STALL_DEFAULT => {}
            Duration::ZERO => f.write_str(", stalls without a bound")?,
            bound => write!(f, ", max-stall {bound:?}")?,
        }
        match &self.colors {
            ColorRequest::Off => Ok(()),
            colors => write!(f, ", colors {colors}"),
        }
    }
}

/// Rules that may hold for processes of `group`.
#[must_use]
pub fn candidates(rules: &[Rule], group: &GroupFacts) -> Candidates {
    let mut found = Vec::new();
    for (index, rule) in (0..).zip(rules) {
        if rule.conditions.group_mismatch(group).is_none() {
            found.push(index);
            if !rule.conditions.asks_for_process() {
                break;
            }
        }
    }
    Candidates(found.into())
}

impl Candidates {
    /// Whether no rule can hold.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rule that holds for every process of the cgroup, if there is but one that can.
    #[must_use]
    pub fn certain(&self, rules: &[Rule]) -> Option<usize> {
        let &index = self.0.first()?;
        let index = index as usize;
        let rule = rules.get(index)?;
        (!rule.conditions.asks_for_process()).then_some(index)
    }

    /// The rule that holds for a process of the cgroup.
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

/// Why `rule` does not hold for a process; `None` if it does.
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

    /// `unit`, `cgroup`, `user`, `executable`; empty for none.
    fn rules(all: &[[&str; 4]]) -> Vec<Rule> {
        let pattern = |text: &str| (!text.is_empty()).then(|| Pattern::new(text).unwrap());
        let rule = |(number, text): (usize, &[&str; 4])| Rule {
            name: number.to_string().into(),
            place: String::new(),
            conditions: Conditions {
                unit: pattern(text[0]),
                cgroup: pattern(text[1]),
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
        // What cannot be read holds for nothing.
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
            (units.join(" "), group.service().to_owned())
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
        // What is tried by a naive matcher grows with a power of the length.
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
}

use super::reader::MOST_PROBLEMS;
use super::values::is_this_machine;
use crate::users::AllowEntry;
use std::time::Duration;
use superhue_heat::TrackerKind;

use super::*;
use superhue_model::{ColorRequest, Share};

fn source(name: &str, text: &str) -> Source {
    Source {
        name: name.to_owned(),
        text: text.to_owned(),
    }
}

fn user(name: &str) -> Result<Option<u32>, String> {
    match name {
        "far" => Err("the directory does not answer".to_owned()),
        name => Ok((name == "redis").then_some(7)),
    }
}

fn group(name: &str) -> Result<Option<u32>, String> {
    Ok((name == "staff").then_some(50))
}

fn variable(name: &str) -> Option<String> {
    match name {
        "NODE_IP" => Some("10.1.2.3".to_owned()),
        "NODE_IP6" => Some("fd00::1".to_owned()),
        _ => None,
    }
}

const LOOKUPS: Lookups<'static> = Lookups {
    user_number: &user,
    group_number: &group,
    variable: &variable,
};

fn read(text: &str) -> Result<Settings, Vec<String>> {
    let told = parse(&[source("superhue.toml", text)], &LOOKUPS);
    told.map_err(|problems| problems.iter().map(Problem::to_string).collect())
}

/// Returns the only problem of a file whose second line is `line`, in a rule that is otherwise right.
fn problem(line: &str) -> String {
    let text = format!("[[rule]]\n{line}\nname = \"a\"\nany = true\n");
    let problems = read(&text).unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems.into_iter().next().unwrap()
}

#[test]
fn a_whole_file_is_read() {
    let text = r#"
[daemon]
max-overhead = "3%"

[[rule]]
name = "redis"
unit = "redis*.service"
cgroup = "/system.slice/**"
user = "redis"
executable = "/usr/bin/redis-server"
pages = "auto"
budget = "64M"
max-overhead = "0.5%"
max-stall = "2ms"
rate = "256M"
min-resident = "90%"
settle = "1s"
min-active = "50%"
cold-after = "2m"
tracker = "idle"
colors = "spread"
placement = "recolor"
swap = true

[[rule]]
name = "rest"
any = true
pages = "off"
"#;
    let settings = read(text).unwrap();
    assert!((settings.max_overhead - 0.03).abs() < 1e-12);
    let [redis, rest] = &settings.rules[..] else {
        panic!("{settings:?}")
    };
    assert_eq!(redis.place, "superhue.toml:5");
    assert_eq!(
        redis.conditions.unit.as_ref().unwrap().as_str(),
        "redis*.service"
    );
    assert_eq!(redis.conditions.user.as_ref().unwrap().number, Some(7));
    let placement = redis.placement.as_ref().unwrap();
    assert_eq!(placement.pages, None, "auto");
    assert_eq!(placement.budget, Some("64M".parse::<Share>().unwrap()));
    assert!((placement.max_overhead - 0.005).abs() < 1e-12);
    assert_eq!(placement.max_stall, Some(Duration::from_millis(2)));
    assert_eq!(placement.colors, ColorRequest::Spread);
    assert!(placement.swap);
    assert_eq!(
        placement.to_string(),
        "auto, budget 64.0 MiB, at most 0.5% of a CPU, max-stall 2ms, rate 256.0 MiB, min-resident 90%, settle 1s, min-active 50%, \
         cold-after 120s, tracker idle, colors spread, placement recolor, swap"
    );
    let config = superhue::Config::from(placement);
    assert_eq!(config.options.tracker, Some(TrackerKind::Idle));
    assert_eq!(
        (config.options.min_resident, config.options.min_active),
        (90, 50)
    );
    assert!(rest.conditions.is_empty() && rest.placement.is_none());
}

#[test]
fn what_is_not_said_has_a_default() {
    let settings = read("[[rule]]\nname = \"a\"\nuser = \"12\"").unwrap();
    let placement = settings.rules[0].placement.as_ref().unwrap();
    assert_eq!((placement.pages, placement.budget), (None, None));
    assert_eq!(placement.max_stall, None);
    assert!(!placement.swap);
    assert_eq!(
        settings.rules[0].conditions.user.as_ref().unwrap().number,
        Some(12)
    );
    assert_eq!(read("").unwrap().rules, []);
    // There is no such user yet: the package may be installed later.
    let settings = read("[[rule]]\nname = \"a\"\nuser = \"postgres\"").unwrap();
    assert_eq!(
        settings.rules[0].conditions.user.as_ref().unwrap().number,
        None
    );
}

#[test]
fn each_wrong_value_is_told_with_its_place() {
    for (line, expected) in [
        ("budget = \"5 apples\"", "superhue.toml:2:10: "),
        (
            "budget = \"200%\"",
            "superhue.toml:2:10: `200%` is not between 0% and 100%",
        ),
        (
            "budget = 5",
            "superhue.toml:2:10: invalid type: integer `5`, expected a string",
        ),
        (
            "max-stall = \"10 parsecs\"",
            "superhue.toml:2:13: `10 parsecs` is not a time",
        ),
        (
            "max-stall = \"10s\"",
            "superhue.toml:2:13: `10s` is not between 100us and 100ms",
        ),
        (
            "max-overhead = \"0\"",
            "superhue.toml:2:16: `0` is no percentage",
        ),
        ("colors = \"blue\"", "superhue.toml:2:10: "),
        ("rate = \"1M\"", "superhue.toml:2:8: `1M` is less than 2M"),
        (
            "min-resident = \"120%\"",
            "superhue.toml:2:16: `120%` is no whole percentage from 1% to 100%",
        ),
        (
            "min-active = \"a quarter\"",
            "superhue.toml:2:14: `a quarter` is no whole percentage",
        ),
        (
            "settle = \"soon\"",
            "superhue.toml:2:10: `soon` is not a time",
        ),
        (
            "cold-after = \"9000h\"",
            "superhue.toml:2:14: `9000h` is not between 0s and a year",
        ),
        (
            "tracker = \"pebs\"",
            "superhue.toml:2:11: `pebs` is no tracker: use one of \"ptwalk\", \"idle\", \"damon\"",
        ),
        (
            "min-active = \"50%\"\npages = \"resident\"",
            "superhue.toml:2:14: `min-active` has no effect with pages = \"resident\" (only auto and hot): remove it",
        ),
        (
            "settle = \"1s\"\npages = \"hot\"",
            "superhue.toml:2:10: `settle` has no effect with pages = \"hot\" (only auto and resident): remove it",
        ),
        (
            "tracker = \"idle\"\npages = \"kernel\"",
            "superhue.toml:2:11: `tracker` has no effect with pages = \"kernel\" (only auto, hot and colors): remove it",
        ),
        (
            "placement = \"kernel\"",
            "superhue.toml:2:13: `placement` needs `colors` in the same rule",
        ),
        (
            "swap = true",
            "superhue.toml:2:8: `swap` needs `colors` in the same rule",
        ),
        (
            "swap = \"yes\"",
            "superhue.toml:2:8: invalid type: string \"yes\", expected a boolean",
        ),
        (
            "pages = \"warm\"",
            "superhue.toml:2:9: `warm` is no policy: use \"auto\", \"hot\"",
        ),
        (
            "pages = \"never\"",
            "superhue.toml:2:9: `never` works only for commands",
        ),
        (
            "bugdet = \"5%\"",
            "superhue.toml:2:1: unknown field `bugdet`, expected one of `name`",
        ),
        ("  üser = \"x\"", "superhue.toml:2:3: "),
        (
            "pages = \"hot\"\npages = \"off\"",
            "superhue.toml:3:1: duplicate key",
        ),
        ("pages = ", "superhue.toml:2:"),
    ] {
        let told = problem(line);
        assert!(told.starts_with(expected), "{line}: {told}");
    }
}

#[test]
fn conditions_that_cannot_hold_are_told() {
    let of = |line: &str| {
        let text = format!("[[rule]]\nname = \"a\"\n{line}\n");
        read(&text).unwrap_err().join("; ")
    };
    for (line, expected) in [
        ("unit = \"a/b\"", "superhue.toml:3:8: `a/b` has a `/`"),
        ("unit = \"a[\"", "superhue.toml:3:8: `a[` is no pattern"),
        (
            "cgroup = \"system.slice\"",
            "superhue.toml:3:10: `system.slice` is no cgroup",
        ),
        ("cgroup = \"/sys/fs/cgroup/a\"", "superhue.toml:3:10: "),
        (
            "cgroup = \"/a**\"",
            "superhue.toml:3:10: `/a**` is no pattern",
        ),
        (
            "executable = \"\"",
            "superhue.toml:3:14: a pattern has 1 to 1024 characters",
        ),
        ("user = \"\"", "superhue.toml:3:8: `` is no user"),
        (
            "pages = \"hot\"",
            "superhue.toml:1:1: this rule says of no process that it is for it",
        ),
        (
            "any = false",
            "superhue.toml:3:7: any = true is for rules without another",
        ),
        (
            "any = true\nuser = \"1\"",
            "superhue.toml:3:7: any = true is for rules without another",
        ),
        (
            "any = true\npages = \"off\"\nbudget = \"5%\"",
            "superhue.toml:5:10: `budget` has no effect with pages = \"off\": remove it",
        ),
    ] {
        let told = of(line);
        assert!(told.starts_with(expected), "{line}: {told}");
    }
    let told = read("[[rule]]\nany = true").unwrap_err();
    assert!(
        told[0].starts_with("superhue.toml:1:1: this rule has no name"),
        "{told:?}"
    );
    let told = read("[[rule]]\nname = \"a b\"\nany = true").unwrap_err();
    assert!(
        told[0].starts_with("superhue.toml:2:8: `a b` is no name"),
        "{told:?}"
    );
}

#[test]
fn files_follow_each_other_and_names_are_unique_in_all() {
    let rule = |name: &str| format!("[[rule]]\nname = \"{name}\"\nany = true\n");
    let files = |second: &str| {
        let second = source("conf.d/b.toml", second);
        parse(&[source("superhue.toml", &rule("a")), second], &LOOKUPS)
    };
    let settings = files(&rule("b")).unwrap();
    let names: Vec<_> = settings.rules.iter().map(|rule| &*rule.name).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(settings.files, ["superhue.toml", "conf.d/b.toml"]);
    assert_eq!(settings.rules[1].place, "conf.d/b.toml:1");
    let told = files(&rule("a")).unwrap_err();
    assert_eq!(
        told[0].to_string(),
        "conf.d/b.toml:2:8: another rule is called `a` (superhue.toml:2)"
    );
}

#[test]
fn each_table_is_in_one_file_and_in_any() {
    let files = |texts: [&str; 3]| {
        let names = ["superhue.toml", "conf.d/a.toml", "conf.d/b.toml"];
        let sources: Vec<Source> = (names.into_iter().zip(texts))
            .map(|(name, text)| source(name, text))
            .collect();
        let told = parse(&sources, &LOOKUPS);
        told.map_err(|problems| problems.iter().map(Problem::to_string).collect::<Vec<_>>())
    };
    let pods = "[[rule]]\nname = \"a\"\npod = \"x\"\n";
    let daemon = "[daemon]\nmax-overhead = \"1%\"\n";
    let users = "[users]\nallow = [\"redis\"]\n";
    // The rule about pods is read although the kubelet is in a later file.
    let settings = files(["", pods, &format!("{daemon}{LOCAL}{users}")]).unwrap();
    assert!((settings.max_overhead - 0.01).abs() < 1e-12);
    assert!(settings.kubelet.is_some() && settings.users.is_some());
    assert_eq!(settings.rules.len(), 1);
    for table in [daemon, LOCAL, users] {
        let name = table.lines().next().unwrap();
        let told = files(["", table, &format!("\n{table}")]).unwrap_err();
        assert_eq!(
            told,
            [format!(
                "conf.d/b.toml:2:1: {name} is in another file, too (conf.d/a.toml:1): write its keys into one"
            )]
        );
    }
    // In the order of the files, although tables are read before rules.
    let told = files(["[[rule]]\n", "[daemon]\nmax-overhead = \"x\"\n", "["]).unwrap_err();
    let of = |told: &String| told.split(':').next().unwrap().to_owned();
    let of: Vec<String> = told.iter().map(of).collect();
    assert_eq!(
        of,
        [
            "superhue.toml",
            "superhue.toml",
            "conf.d/a.toml",
            "conf.d/b.toml"
        ]
    );
}

#[test]
fn all_problems_are_told_at_once_but_not_without_end() {
    let wrong = "[[rule]]\nname = \"a b\"\nbudget = \"x\"\nany = true\n";
    assert_eq!(read(wrong).unwrap_err().len(), 2);
    assert_eq!(read(&wrong.repeat(100)).unwrap_err().len(), MOST_PROBLEMS);
}

#[test]
fn one_rule_may_name_damon() {
    let rule = |name: &str, tracker: &str| {
        format!("[[rule]]\nname = \"{name}\"\nany = true\ntracker = \"{tracker}\"\n")
    };
    let two = |second: &str| read(&(rule("a", "damon") + &rule("b", second)));
    assert_eq!(two("ptwalk").unwrap().rules.len(), 2);
    let problems = two("damon").unwrap_err();
    let [problem] = &problems[..] else {
        panic!("{problems:?}")
    };
    assert_eq!(
        problem,
        "superhue.toml:8:11: DAMON serves one rule, and a (superhue.toml:1) names it"
    );
}

#[test]
fn ten_thousand_rules_are_taken_and_not_one_more() {
    let text: String = (0..=MOST_RULES)
        .map(|n| format!("[[rule]]\nname = \"r{n}\"\nunit = \"s{n}-*.service\"\n"))
        .collect();
    let fits = text.rfind("[[rule]]").unwrap();
    let settings = read(&text[..fits]).unwrap();
    assert_eq!(settings.rules.len(), MOST_RULES);
    let group = crate::rules::GroupFacts::new("/system.slice/s9999-x.service");
    let found = crate::rules::candidates(&settings.rules, &group);
    assert_eq!(*found.0, [9999]);
    let told = read(&text).unwrap_err();
    let line = 3 * MOST_RULES + 1;
    assert_eq!(
        told,
        [format!(
            "superhue.toml:{line}:1: there are more than 10000 rules: use patterns instead"
        )]
    );
}

#[test]
fn metrics_are_served_where_they_are_wanted() {
    let of = |text: &str| read(&format!("[daemon]\n{text}")).unwrap();
    assert_eq!((of("").metrics, of("").metrics_services), (None, 200));
    let port = |text: &str| Some(MetricsAddress::Port(text.parse().unwrap()));
    for address in [
        "127.0.0.1:9119",
        "127.3.2.1:80",
        "[::1]:9119",
        "[::ffff:127.0.0.1]:9119",
    ] {
        let settings = of(&format!("metrics = \"{address}\""));
        assert_eq!(settings.metrics, port(address), "{address}");
    }
    for address in ["0.0.0.0:9119", "[::]:9119", "192.0.2.1:9119"] {
        let settings = of(&format!("metrics = \"{address}\"\nmetrics-public = true"));
        assert_eq!(settings.metrics, port(address), "{address}");
    }
    let path = "/run/superhue/metrics.sock";
    let settings = of(&format!("metrics = \"{path}\"\nmetrics-services = 0"));
    assert_eq!(settings.metrics, Some(MetricsAddress::Socket(path.into())));
    assert_eq!(settings.metrics_services, 0);
}

#[test]
fn metrics_that_cannot_be_meant_are_told_with_their_place() {
    let long = format!("metrics = \"/{}\"", "x".repeat(107));
    for (line, expected) in [
        (
            "metrics = \"0.0.0.0:9119\"",
            ":2:11: `0.0.0.0:9119` can be reached from other machines",
        ),
        (
            "metrics = \"[::]:9119\"",
            "use 127.0.0.1:9119, or add metrics-public = true",
        ),
        (
            "metrics = \"0.0.0.0:1\"\nmetrics-public = false",
            ":2:11: `0.0.0.0:1` can be reached",
        ),
        (
            "metrics = \"localhost:9119\"",
            ":2:11: `localhost:9119` is no address: write 127.0.0.1:9119",
        ),
        (
            "metrics = \"127.0.0.1\"",
            ":2:11: `127.0.0.1` is no address",
        ),
        ("metrics = \"\"", ":2:11: `` is no address"),
        ("metrics = \"127.0.0.1:0\"", "another port at each start"),
        ("metrics = 9119", ":2:11: invalid type: integer `9119`"),
        ("metrics = \"/run/\"", "cannot be the path of a socket"),
        (&long, "at most 107 bytes"),
        ("metrics-public = true", ":2:18: there is no `metrics`"),
        (
            "metrics-services = -1",
            ":2:20: this is a number from 0 to 2000",
        ),
        (
            "metrics-services = 2001",
            ":2:20: this is a number from 0 to 2000",
        ),
        ("metrics-services = \"many\"", ":2:20: invalid type"),
        ("metric = \"x\"", ":2:1: unknown field `metric`"),
    ] {
        let problems = read(&format!("[daemon]\n{line}")).unwrap_err();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains(expected), "{line}: {problems:?}");
    }
}

const LOCAL: &str = "[kubernetes]\nkubelet = \"http://127.0.0.1:10255\"\n";

#[test]
fn rules_for_pods_are_read() {
    let text = format!(
        "{LOCAL}[[rule]]\nname = \"a\"\nnamespace = \"shop-*\"\npod = \"redis-?\"\ncontainer = \"server\"\n\
         pod-label = \"app=redis, tier\"\npod-annotation = \"superhue.dev/pages=hot\"\n"
    );
    let settings = read(&text).unwrap();
    let conditions = &settings.rules[0].conditions;
    assert_eq!(
        conditions.to_string(),
        "namespace = \"shop-*\", pod = \"redis-?\", container = \"server\", pod-label = \"app=redis,tier\", \
         pod-annotation = \"superhue.dev/pages=hot\""
    );
    assert!(conditions.pod.labels[1].value.is_none());
    let kubelet = settings.kubelet.unwrap();
    assert_eq!(kubelet.url, "http://127.0.0.1:10255");
}

#[test]
fn the_kubelet_is_asked_where_it_is_said_and_not_in_the_clear() {
    let kubelet = |lines: &str| read(&format!("[kubernetes]\n{lines}\n"));
    let url = |lines: &str| kubelet(lines).unwrap().kubelet.unwrap().url;
    assert_eq!(
        url("kubelet = \"https://${NODE_IP}:10250\""),
        "https://10.1.2.3:10250"
    );
    assert_eq!(
        url("kubelet = \"https://${NODE_IP6}:10250\""),
        "https://[fd00::1]:10250"
    );
    let wrong = |lines: &str, expected: &str| {
        let problems = kubelet(lines).unwrap_err();
        assert!(
            problems.len() == 1 && problems[0].contains(expected),
            "{problems:?}"
        );
    };
    wrong(
        "kubelet = \"https://${NOWHERE}:10250\"",
        ":2:11: `https://${NOWHERE}:10250`: NOWHERE is not in the environment",
    );
    wrong("kubelet = \"https://${NODE_IP\"", "${ without }");
    wrong("kubelet = \"10.1.2.3\"", "is no address");
    wrong("kubelet = \"http://10.1.2.3:10255\"", "in the clear");
    wrong(
        "kubelet = \"http://127.0.0.1:1\"\ntoken-file = \"/t\"",
        ":3:14: a token is sent only by https",
    );
    wrong(
        "kubelet = \"https://a:1\"\nca-file = \"x\"",
        "is no path from the root",
    );
    wrong("skip-verify = true", "says nothing without kubelet");
    let alone = read("[[rule]]\nname = \"a\"\npod-label = \"a=b\"\n").unwrap_err();
    assert!(
        alone[0].contains(":3:13: pods are known only where"),
        "{alone:?}"
    );
    for (label, expected) in [
        ("=x", "is neither KEY nor KEY=VALUE"),
        ("a,,b", "is neither"),
        ("a b", "is neither"),
        ("a=[", "no pattern"),
    ] {
        let problems = read(&format!(
            "{LOCAL}[[rule]]\nname = \"a\"\npod-label = \"{label}\"\n"
        ))
        .unwrap_err();
        assert!(problems[0].contains(expected), "{label}: {problems:?}");
    }
}

#[test]
fn users_are_allowed_by_name_number_or_group() {
    assert_eq!(read("").unwrap().users, None);
    let least = read("[users]\nallow = [\"redis\"]\n").unwrap();
    let users = least.users.unwrap();
    assert_eq!(users.terms.budget, Share::BasisPoints(500));
    assert_eq!((users.clients, users.clients_per_user), (32, 4));
    assert_eq!(users.terms.rate, None);
    let text = r#"
[users]
allow = ["redis", "1000", "@staff", "@60", "ghost"]
budget = "256M"
rate = "1G"
clients = 3
clients-per-user = 9
"#;
    let users = read(text).unwrap().users.unwrap();
    let numbers = users.allow.iter().map(|allowed| match allowed {
        AllowEntry::User(user) => (false, user.number),
        AllowEntry::Group(group) => (true, group.number),
    });
    assert_eq!(
        numbers.collect::<Vec<_>>(),
        [
            (false, Some(7)),
            (false, Some(1000)),
            (true, Some(50)),
            (true, Some(60)),
            (false, None),
        ]
    );
    assert_eq!(
        users.terms.budget,
        Share::Bytes(superhue_model::ByteCount(256 << 20))
    );
    assert_eq!(users.terms.rate, Some(superhue_model::ByteCount(1 << 30)));
    assert_eq!((users.clients, users.clients_per_user), (3, 3));
}

#[test]
fn users_that_cannot_be_allowed_are_told_with_their_place() {
    for (line, expected) in [
        ("", ":1:1: [users] allows nobody"),
        ("allow = []", ":1:1: [users] allows nobody"),
        ("allow = [\"a\", \"0\"]", ":2:15: `0` needs no service"),
        ("allow = [\"\"]", ":2:10: `` is no user"),
        ("allow = [\"@\"]", ":2:10: `@` is no group"),
        ("allow = \"a\"", ":2:9: "),
        ("allow = [\"a\"]\nbudget = \"much\"", ":3:10: "),
        (
            "allow = [\"a\"]\nrate = \"1M\"",
            ":3:8: `1M` is less than 2M",
        ),
        (
            "allow = [\"a\"]\nclients = 0",
            ":3:11: this is a number from 1 to 1024",
        ),
        (
            "allow = [\"a\"]\npages = \"hot\"",
            ":3:1: unknown field `pages`",
        ),
    ] {
        let problems = read(&format!("[users]\n{line}\n")).unwrap_err();
        assert!(problems[0].contains(expected), "{line}: {problems:?}");
    }
}

/// Returns the keys of a table, as the parser names them when it refuses another one.
fn keys_of(table: &str) -> Vec<String> {
    let told = read(&format!("{table}\nno-such-key = 1\n")).unwrap_err();
    let (_, keys) = told[0].split_once("expected one of ").unwrap();
    let keys = keys.split('`').skip(1).step_by(2);
    keys.map(str::to_owned).collect()
}

#[test]
fn every_key_is_in_the_manual_page_and_in_the_example() {
    let file = |path: &str| {
        let path = format!("{}/../../../{path}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let has = |text: &str, key: &str| {
        let mut words = text.split(|c: char| !(c.is_ascii_lowercase() || c == '-'));
        words.any(|word| word == key)
    };
    let page = file("man/superhue.toml.5").replace('\\', "");
    // A key is described below a line with its name: `.TP`, then `.B KEY` or `.BR KEY ", " KEY`.
    let titles: Vec<&str> = page
        .split(".TP\n")
        .skip(1)
        .map(|it| it.lines().next().unwrap())
        .collect();
    let example = file("packaging/superhue.toml");
    for (table, least) in [
        ("[daemon]", 4),
        ("[users]", 5),
        ("[kubernetes]", 4),
        ("[[rule]]", 24),
    ] {
        let keys = keys_of(table);
        assert!(keys.len() >= least, "{table}: {keys:?}");
        for key in keys {
            assert!(
                titles.iter().any(|title| has(title, &key)),
                "superhue.toml(5): {key}"
            );
            assert!(has(&example, &key), "packaging/superhue.toml: {key}");
        }
    }
}

#[test]
fn a_user_who_cannot_be_looked_up_is_a_fault_and_no_rule_about_nobody() {
    let problem = problem("user = \"far\"");
    assert!(
        problem.contains("`far` cannot be looked up: the directory does not answer"),
        "{problem}"
    );
}

#[test]
fn only_this_machine_is_asked_in_the_clear() {
    for address in [
        "127.0.0.1:10255",
        "127.1.2.3/pods",
        "localhost:1",
        "[::1]:10255",
    ] {
        assert!(is_this_machine(address), "{address}");
    }
    for address in [
        "localhost.example.org",
        "127.0.0.1.evil.net",
        "localhost@host",
        "127.0.0.1:1@host",
        "[fd00::1]:10255",
        "10.1.2.3",
        "",
    ] {
        assert!(!is_this_machine(address), "{address}");
    }
}

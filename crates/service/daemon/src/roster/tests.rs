use std::fs;
use std::os::unix::fs::symlink;
use superhue_model::ProcessId;

use glob::Pattern;

use super::*;
use crate::rules::{Conditions, User};

const STEP: Duration = Duration::from_secs(100);

fn rule(name: &str, conditions: Conditions) -> Rule {
    Rule {
        name: name.into(),
        place: String::new(),
        conditions,
        placement: None,
    }
}

fn pattern(text: &str) -> Option<Pattern> {
    Some(Pattern::new(text).unwrap())
}

fn rules() -> Arc<[Rule]> {
    let user = Some(User {
        name: "me".to_owned(),
        number: Some(rustix::process::geteuid().as_raw()),
    });
    [
        rule(
            "tool",
            Conditions {
                executable: pattern("tool"),
                ..Conditions::default()
            },
        ),
        rule(
            "unit",
            Conditions {
                unit: pattern("a*.service"),
                ..Conditions::default()
            },
        ),
        rule(
            "mine",
            Conditions {
                cgroup: pattern("/b/**"),
                user,
                ..Conditions::default()
            },
        ),
    ]
    .into()
}

/// A recorded machine.
struct Machine(tempfile::TempDir, Roots);

impl Machine {
    fn new(version: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let machine = Self(folder, roots);
        let mounts = format!("30 22 0:26 / /sys/fs/cgroup rw - {version} {version} rw\n");
        machine.write("proc/self/mountinfo", &mounts);
        machine.write("sys/fs/cgroup/cgroup.procs", "");
        machine
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn group(&self, path: &str, pids: &[u32]) {
        let lines: String = pids.iter().map(|pid| format!("{pid}\n")).collect();
        self.write(&format!("sys/fs/cgroup{path}/cgroup.procs"), &lines);
        let populated = u8::from(!pids.is_empty());
        let events = format!("populated {populated}\nfrozen 0\n");
        self.write(&format!("sys/fs/cgroup{path}/cgroup.events"), &events);
    }

    fn process(&self, pid: u32, start: u64, executable: &str) {
        let zeroes = "0 ".repeat(12);
        let stat = format!("{pid} (x) S 1 1 1 0 -1 0 {zeroes}{start} 0 0");
        self.write(&format!("proc/{pid}/stat"), &stat);
        let link = self.0.path().join(format!("proc/{pid}/exe"));
        let _ = fs::remove_file(&link);
        symlink(executable, link).unwrap();
    }

    fn roster(&self) -> Roster {
        let mut roster = Roster::new(&self.1, 1e9);
        roster.follow(rules(), 1e9);
        roster
    }
}

/// Waits for all answers.
fn settle(roster: &mut Roster) {
    roster.settle(Duration::ZERO, Duration::from_secs(60));
    assert!(roster.turns.is_done());
}

fn told(roster: &mut Roster) -> Option<Vec<String>> {
    settle(roster);
    let rules = rules();
    let changes = roster.changes()?;
    let all = changes
        .iter()
        .flat_map(|(rule, tenants)| tenants.values().map(move |members| (rule, members)));
    let lines = all.flat_map(|(&rule, members)| {
        let name = rules[rule].name.clone();
        let line = move |(id, label): (&ProcessId, &Arc<str>)| {
            format!("{name}: {}@{} {label}", id.pid, id.start_ticks)
        };
        members.iter().map(line).collect::<Vec<_>>()
    });
    Some(lines.collect())
}

#[test]
fn processes_are_found_in_the_cgroups_that_rules_are_about() {
    let machine = Machine::new("cgroup2");
    for (pid, executable) in [(11, "/bin/server"), (12, "/opt/tool (deleted)"), (13, "/x")] {
        machine.process(pid, u64::from(pid), executable);
    }
    machine.group("/s.slice/a1.service", &[11, 12]);
    machine.group("/b/c", &[13]);
    let mut roster = machine.roster();
    assert_eq!(roster.find(12).as_deref(), Some("/s.slice/a1.service"));
    assert_eq!(roster.find(99), None);
    roster.step(STEP);
    let found = [
        "tool: 12@12 a1.service",
        "unit: 11@11 a1.service",
        "mine: 13@13 /b/c",
    ];
    assert_eq!(told(&mut roster).unwrap(), found);
    roster.step(2 * STEP);
    assert_eq!(told(&mut roster), None, "nothing has changed");
    assert_eq!(roster.account(STEP).how, "cgroups");

    // The number has gone to another process.
    machine.process(13, 99, "/x");
    roster.step(3 * STEP);
    assert!(
        told(&mut roster)
            .unwrap()
            .contains(&"mine: 13@99 /b/c".to_owned())
    );
    // It executes something else.
    machine.process(13, 99, "/y/tool");
    roster.step(4 * STEP);
    assert!(
        told(&mut roster)
            .unwrap()
            .contains(&"tool: 13@99 /b/c".to_owned())
    );
}

#[test]
fn a_service_that_is_started_is_found_by_events_alone() {
    let machine = Machine::new("cgroup2");
    machine.process(11, 11, "/bin/server");
    let mut roster = machine.roster();
    roster.step(STEP);
    assert_eq!(told(&mut roster).unwrap(), [""; 0]);
    for round in 0..3 {
        machine.group("/s.slice/a1.service", &[]);
        roster.take_events(STEP);
        machine.group("/s.slice/a1.service", &[11]);
        roster.take_events(STEP);
        let found = ["unit: 11@11 a1.service"];
        assert_eq!(
            told(&mut roster).as_deref(),
            Some(&found.map(str::to_owned)[..]),
            "{round}"
        );
        let folder = machine.0.path().join("sys/fs/cgroup/s.slice/a1.service");
        fs::remove_dir_all(folder).unwrap();
        roster.take_events(STEP);
        assert_eq!(told(&mut roster).unwrap(), [""; 0]);
    }
    // A process that no rule could match is not even read.
    machine.group("/other", &[11]);
    roster.take_events(STEP);
    assert!(
        !roster.groups["/other"].candidates.is_empty(),
        "`tool` may be anywhere"
    );
}

#[test]
fn without_the_unified_tree_all_processes_are_read() {
    let machine = Machine::new("tmpfs");
    for pid in [11, 12] {
        machine.process(pid, u64::from(pid), "/bin/server");
    }
    machine.write(
        "proc/11/cgroup",
        "4:memory:/m\n1:name=systemd:/s.slice/a1.service\n",
    );
    machine.write("proc/12/cgroup", "4:memory:/m\n1:name=systemd:/else\n");
    let mut roster = machine.roster();
    roster.step(STEP);
    assert_eq!(told(&mut roster).unwrap(), ["unit: 11@11 a1.service"]);
    let account = roster.account(STEP);
    assert_eq!(account.how, "processes");
    assert!(account.limited_because.unwrap().contains("version 2"));
    fs::remove_dir_all(machine.0.path().join("proc/11")).unwrap();
    roster.step(2 * STEP);
    assert_eq!(told(&mut roster).unwrap(), [""; 0]);
    let Source::Processes { places, .. } = &roster.source else {
        unreachable!()
    };
    assert_eq!(places.len(), 1);
}

#[test]
fn nothing_is_left_of_what_is_gone() {
    let machine = Machine::new("cgroup2");
    let mut roster = machine.roster();
    for pid in 100..400 {
        machine.process(pid, 1, "/x");
        machine.group(&format!("/s.slice/a{pid}.service"), &[pid]);
        roster.take_events(STEP * pid);
        roster.step(STEP * pid);
        let folder = machine
            .0
            .path()
            .join(format!("sys/fs/cgroup/s.slice/a{pid}.service"));
        fs::remove_dir_all(folder).unwrap();
    }
    roster.take_events(STEP * 1000);
    let left: Vec<_> = roster.groups.keys().collect();
    assert_eq!(left, ["/", "/s.slice"]);
    assert_eq!(roster.changes().unwrap(), BTreeMap::new());
}

#[test]
fn new_rules_match_everybody_anew() {
    let machine = Machine::new("cgroup2");
    machine.process(11, 11, "/bin/server");
    machine.group("/s.slice/a1.service", &[11]);
    let mut roster = machine.roster();
    roster.step(STEP);
    assert_eq!(told(&mut roster).unwrap().len(), 1);
    roster.follow(Arc::new([]), 1.0);
    roster.step(2 * STEP);
    assert_eq!(told(&mut roster).unwrap(), [""; 0]);
    assert_eq!(roster.due(3 * STEP), None, "nobody to look for");
    roster.follow(rules(), 1.0);
    roster.step(3 * STEP);
    assert_eq!(told(&mut roster).unwrap().len(), 1);
}

#[test]
fn known_processes_keep_their_rule_until_they_have_been_asked_about_anew() {
    for version in ["cgroup2", "tmpfs"] {
        let machine = Machine::new(version);
        for (pid, executable, path) in [
            (11, "/bin/server", "/s.slice/a1.service"),
            (12, "/opt/tool", "/s.slice/a1.service"),
        ] {
            machine.process(pid, u64::from(pid), executable);
            let line = format!("4:memory:/m\n1:name=systemd:{path}\n");
            machine.write(&format!("proc/{pid}/cgroup"), &line);
        }
        machine.group("/s.slice/a1.service", &[11, 12]);
        let mut roster = machine.roster();
        roster.step(STEP);
        let found = told(&mut roster).unwrap();
        assert_eq!(found, ["tool: 12@12 a1.service", "unit: 11@11 a1.service"]);

        // Another rule comes first, and one is gone.
        let all = rules();
        let server = Conditions {
            executable: pattern("other"),
            ..Conditions::default()
        };
        let changed: Arc<[Rule]> = [rule("other", server), all[1].clone(), all[0].clone()].into();
        roster.follow(changed.clone(), 1e9);
        let at_once = roster.changes().unwrap();
        let members = |changes: &BTreeMap<usize, Tenants>, rule: usize| -> Vec<u32> {
            let tenants = changes.get(&rule).into_iter().flat_map(BTreeMap::values);
            tenants.flat_map(|it| it.keys().map(|id| id.pid)).collect()
        };
        // By its known facts, number 12 belongs to the unit now, whose rule comes before that of the tool.
        assert_eq!(members(&at_once, 1), [11, 12], "{version}");
        roster.step(2 * STEP);
        settle(&mut roster);
        assert_eq!(
            roster.changes(),
            None,
            "{version}: the answers change nothing"
        );
        assert!(roster.groups.values().all(|group| {
            let mut members = group.members.values();
            members.all(|member| !member.is_provisional)
        }));

        // One has become another program while the rules change.
        machine.process(11, 77, "/bin/other");
        roster.follow(changed, 1e9);
        roster.step(3 * STEP);
        settle(&mut roster);
        let changes = roster.changes().unwrap();
        assert_eq!(members(&changes, 0), [11], "{version}");
        assert_eq!(members(&changes, 1), [12], "{version}");
    }
}

const UID: &str = "0c1d9ba4-5f3e-4e0c-9d57-3f1f0f9f2c11";
const ID: &str = "89ef0123456789abcdef0123456789abcdef0123456789abcdef0123456789ab";

/// Returns the cgroup of a container, as each runtime makes it with each driver, and one beside it that is none.
fn trees() -> [(String, String); 4] {
    let slice = format!(
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice",
        UID.replace('-', "_")
    );
    let folder = format!("/kubepods/burstable/pod{UID}");
    [
        (format!("{slice}/cri-containerd-{ID}.scope"), slice.clone()),
        (
            format!("{slice}/crio-{ID}.scope/container"),
            format!("{slice}/crio-conmon-{ID}.scope"),
        ),
        (format!("{folder}/{ID}"), folder.clone()),
        (
            format!("{folder}/crio-{ID}"),
            format!("{folder}/crio-conmon-{ID}"),
        ),
    ]
}

fn pod_rules() -> Arc<[Rule]> {
    let rule = |name: &str, change: &dyn Fn(&mut crate::rules::PodConditions)| {
        let mut conditions = Conditions::default();
        change(&mut conditions.pod);
        rule(name, conditions)
    };
    let says = |value: &str| crate::rules::KeyValue {
        key: "superhue.dev/pages".to_owned(),
        value: pattern(value),
    };
    [
        rule("off", &|pod| pod.annotations = vec![says("off")]),
        rule("server", &|pod| {
            pod.annotations = vec![says("hot")];
            pod.container = pattern("server");
        }),
        rule("everybody", &|_| ()),
    ]
    .into()
}

/// Waits until the rules have the expected processes.
fn expect(roster: &mut Roster, expected: &[&str]) {
    let rules = pod_rules();
    let begun = Instant::now();
    let mut found: Vec<String> = Vec::new();
    while begun.elapsed() < Duration::from_secs(60) {
        roster.take_pods(STEP);
        settle(roster);
        // Also without a change since the last call.
        roster.changed = true;
        let changes = roster.changes().unwrap();
        let lines = changes.iter().flat_map(|(&rule, tenants)| {
            let name = &rules[rule].name;
            let members = tenants.values().flatten();
            members.map(move |(id, label)| format!("{name}: {} {label}", id.pid))
        });
        found = lines.collect();
        // They are ordered by tenant; the order of numbers is easier to read.
        let place = |line: &String| {
            let (rule, rest) = line.split_once(": ").unwrap();
            let rank = rules.iter().position(|it| *it.name == *rule);
            (rank, rest.to_owned())
        };
        found.sort_by_key(place);
        if found == expected {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{found:?} and not {expected:?}");
}

#[test]
fn pods_are_matched_in_the_trees_of_every_runtime_and_driver() {
    use crate::kubelet::fake::{Fake, pod};
    for (container, beside) in trees() {
        let machine = Machine::new("cgroup2");
        for pid in [11, 12, 13] {
            machine.process(pid, u64::from(pid), "/bin/server");
        }
        machine.group("/system.slice/a1.service", &[13]);
        let fake = Fake::with(&[]);
        let mut roster = Roster::new(&machine.1, 1e9);
        roster.ask_kubelet(Some(&fake.settings));
        roster.follow(pod_rules(), 1e9);
        roster.step(STEP);
        expect(&mut roster, &["everybody: 13 a1.service"]);

        // A pod appears: its processes get no rule before the kubelet has named it, not even the last one.
        machine.group(&container, &[11]);
        machine.group(&beside, &[12]);
        roster.take_events(STEP);
        roster.step(2 * STEP);
        expect(&mut roster, &["everybody: 13 a1.service"]);
        // The kubelet names a container later than its pod: the roster asks again.
        fake.answer(&[pod(UID, "redis-0", "hot", "")]);
        roster.step(3 * STEP);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) && roster.pods().is_empty() {
            roster.take_pods(STEP);
            std::thread::sleep(Duration::from_millis(5));
        }
        expect(&mut roster, &["everybody: 13 a1.service"]);
        fake.answer(&[pod(UID, "redis-0", "hot", ID)]);
        roster.step(4 * STEP);
        let server = "server: 11 shop/redis-0";
        expect(&mut roster, &[server, "everybody: 13 a1.service"]);
        assert_eq!(
            roster.account(STEP).pods.unwrap().known,
            Some(1),
            "{container}"
        );

        // The annotation is changed, and changed back.
        fake.answer(&[pod(UID, "redis-0", "off", ID)]);
        roster.kubelet().unwrap().ask();
        let off = [
            "off: 11 shop/redis-0",
            "off: 12 shop/redis-0",
            "everybody: 13 a1.service",
        ];
        expect(&mut roster, &off);
        fake.answer(&[pod(UID, "redis-0", "none", ID)]);
        roster.kubelet().unwrap().ask();
        let all = [
            "everybody: 11 shop/redis-0",
            "everybody: 12 shop/redis-0",
            "everybody: 13 a1.service",
        ];
        expect(&mut roster, &all);

        // It ends.
        let mut folder = machine.0.path().join("sys/fs/cgroup");
        folder.push(if container.starts_with("/kubepods.") {
            "kubepods.slice"
        } else {
            "kubepods"
        });
        fs::remove_dir_all(folder).unwrap();
        roster.take_events(STEP);
        roster.step(5 * STEP);
        expect(&mut roster, &["everybody: 13 a1.service"]);
        assert!(roster.pod_groups.is_empty(), "{:?}", roster.pod_groups);
        assert!(roster.unnamed.is_empty(), "{:?}", roster.unnamed);
    }
}

#[test]
fn without_the_unified_tree_pods_are_matched_too() {
    use crate::kubelet::fake::{Fake, pod};
    let machine = Machine::new("tmpfs");
    machine.process(11, 11, "/bin/server");
    let [(container, _), ..] = trees();
    machine.write(
        "proc/11/cgroup",
        &format!("4:memory:/m\n1:name=systemd:{container}\n"),
    );
    let fake = Fake::with(&[pod(UID, "redis-0", "hot", ID)]);
    let mut roster = Roster::new(&machine.1, 1e9);
    roster.ask_kubelet(Some(&fake.settings));
    roster.follow(pod_rules(), 1e9);
    roster.step(STEP);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) && roster.pods().is_empty() {
        roster.take_pods(2 * STEP);
        std::thread::sleep(Duration::from_millis(5));
    }
    roster.step(2 * STEP);
    expect(&mut roster, &["server: 11 shop/redis-0"]);
}

#[test]
fn a_process_that_comes_back_is_asked_about_again() {
    let rules = rules();
    let mut turns = QueryScheduler::new(&Roots::default(), 0.0);
    let mut group = Group::new("/b/x", &rules, &Pods::default()).unwrap();
    let own = std::process::id();
    // The question that waits may be about another process of that number.
    for (is_there, waiting) in [(true, 1), (false, 1), (true, 2), (true, 2)] {
        let pids = is_there.then_some(own).into_iter().collect();
        group.has(pids, &rules, &mut turns, STEP, false);
        assert_eq!(turns.waiting(), waiting);
    }
    group.remove(own);
    group.add(own, None, &rules, &mut turns, STEP);
    assert_eq!(turns.waiting(), 3);
}

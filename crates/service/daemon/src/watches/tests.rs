use super::held_up::{
    AFTER_TROUBLE, GIVEN_UP_EVERY, LETTING_GO, MANY_LEFT, SILENCE, WATCH_SLEEP_LIMITS,
};
use super::shares::{divide_budget, divided};
use crate::avoidance::LEFT_ALONE;
use crate::workers::Task;
use std::time::Instant;
use superhue_model::Share;

use superhue::Pages;

use super::*;
use crate::rules::Conditions;

const NOW: Duration = Duration::from_secs(1);

fn rule(name: &str, pages: Option<Pages>) -> Rule {
    Rule {
        name: name.into(),
        place: String::new(),
        conditions: Conditions::default(),
        placement: pages.map(|pages| PlacementOptions {
            pages: Some(pages),
            ..PlacementOptions::default()
        }),
    }
}

fn members() -> Tenants {
    tenants(&["a.service"])
}

fn tenants(names: &[&str]) -> Tenants {
    let nobody = |index: usize| ProcessId {
        pid: (u32::MAX >> 1) - u32::try_from(index).unwrap(),
        start_ticks: 1,
    };
    let one = |(index, name): (usize, &&str)| {
        let members = Members::from([(nobody(index), Arc::from(*name))]);
        (Arc::from(*name), members)
    };
    names.iter().enumerate().map(one).collect()
}

/// Waits until `what` holds, however slow the machine is.
fn wait(watches: &mut Watches, what: impl Fn(&Watches) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !what(watches) {
        assert!(Instant::now() < deadline, "{:?}", watches.account());
        std::thread::sleep(Duration::from_millis(5));
        watches.tend(watches.now);
    }
}

fn ceiling(watches: &Watches, name: &str) -> Option<f64> {
    Some(watches.of(name).1?.own.max_overhead)
}

fn numbers(watches: &Watches, name: &str) -> Vec<u64> {
    let lanes = watches
        .kept
        .get(name)
        .into_iter()
        .flat_map(|kept| kept.lanes.values());
    let running = lanes.filter_map(|lane| lane.running.as_ref());
    running.map(|running| running.number).collect()
}

fn watches(rules: Vec<Rule>) -> Watches {
    let mut watches = Watches::new(&Roots::default());
    watches.follow(rules.into(), 0.01);
    watches
}

#[test]
fn rules_have_watches_only_while_they_are_worth_it() {
    let off = rule("off", None);
    let mut watches = watches(vec![rule("a", Some(Pages::Kernel)), off]);
    assert!(watches.account().is_empty(), "nobody has any process");
    watches.feed([(0, members()), (1, members())].into(), NOW);
    assert_eq!(watches.account()[0].watch, None, "it has said nothing yet");
    wait(&mut watches, |watches| watches.account()[0].watch.is_some());
    let account = watches.account();
    assert_eq!(account.len(), 2);
    assert!(account[0].watch.is_some() && !account[0].off);
    assert!(account[1].watch.is_none() && account[1].off);
    watches.feed(BTreeMap::new(), NOW);
    assert_eq!(watches.account()[0].processes, 0);
}

#[test]
fn a_reload_keeps_the_watches_of_rules_that_stay() {
    let rules = ["a", "b", "c"].map(|name| rule(name, Some(Pages::Kernel)));
    let mut watches = watches(rules.to_vec());
    let all = || (0..3).map(|index| (index, members())).collect();
    watches.feed(all(), NOW);
    let before = numbers(&watches, "a");
    assert_eq!(before.len(), 1);
    let mut rules = rules.to_vec();
    // Other conditions, another place, another placement, gone.
    rules[0].conditions.unit = Some(glob::Pattern::new("x").unwrap());
    rules[1].placement.as_mut().unwrap().pages = Some(Pages::Resident);
    rules.swap(0, 1);
    rules.truncate(2);
    watches.follow(rules.into(), 0.01);
    assert_eq!(numbers(&watches, "a"), before);
    for name in ["b", "c"] {
        assert_eq!(numbers(&watches, name), [0; 0]);
    }
    assert_eq!(watches.ending.len(), 2);
    wait(&mut watches, |watches| watches.ending.is_empty());
    assert_eq!(
        watches.take_ended().len(),
        2,
        "what they came to is not lost"
    );
}

#[test]
fn the_watches_of_a_rule_that_is_held_stand_still_and_no_others() {
    let mut watches = watches(vec![
        rule("a", Some(Pages::Kernel)),
        rule("b", Some(Pages::Kernel)),
    ]);
    watches.feed([(0, members()), (1, members())].into(), NOW);
    let told = |watches: &Watches| {
        ["a", "b"].map(|name| {
            let lane = watches.kept[name].lanes.values().next().unwrap();
            lane.running.as_ref().unwrap().told.as_ref().unwrap().held
        })
    };
    assert_eq!(told(&watches), [false, false]);
    watches.hold(["b".into()].into());
    wait(&mut watches, |watches| told(watches) == [false, true]);
    assert!(watches.account()[1].held && !watches.account()[0].held);
    watches.hold(BTreeSet::new());
    wait(&mut watches, |watches| told(watches) == [false, false]);
    // A process that holds up workers would hold up a trial, too.
    let evil = u32::MAX >> 1;
    assert_eq!(watches.processes("b")[0].pid, evil);
    let lane = Lane::Tenant("a.service".into());
    watches.give_up(&"b".into(), &lane, Some(evil), NOW);
    assert_eq!(watches.processes("b"), []);
    assert_eq!(watches.processes("no such rule"), []);
}

#[test]
fn the_ceiling_is_divided_among_those_that_have_processes() {
    let rules = ["a", "b", "c"].map(|name| rule(name, Some(Pages::Kernel)));
    let mut watches = watches(rules.to_vec());
    watches.feed([(0, members()), (1, members())].into(), NOW);
    let is = |name: &'static str, expected: f64| {
        move |watches: &Watches| {
            ceiling(watches, name).is_some_and(|found| (found - expected).abs() < 1e-12)
        }
    };
    // Two rules of 1 % each may cost 1 % together.
    wait(&mut watches, is("a", 0.005));
    wait(&mut watches, is("b", 0.005));
    watches.feed([(1, members())].into(), NOW);
    wait(&mut watches, is("b", 0.01));
}

#[test]
fn each_tenant_has_a_worker_which_ends_when_it_is_idle() {
    let mut watches = watches(vec![rule("a", Some(Pages::Kernel))]);
    watches.feed([(0, tenants(&["x.service", "y.service"]))].into(), NOW);
    let first = numbers(&watches, "a");
    assert_eq!(first.len(), 2);
    let is_whole =
        |watches: &Watches| ceiling(watches, "a").is_some_and(|it| (it - 0.01).abs() < 1e-12);
    wait(&mut watches, is_whole);
    watches.feed([(0, tenants(&["x.service"]))].into(), NOW);
    assert_eq!(numbers(&watches, "a"), first, "it is kept for a while");
    watches.tend(NOW + KEPT_EMPTY);
    assert_eq!(numbers(&watches, "a"), first[..1]);
    let seen = watches.of("a").1.unwrap().own.cpu_seconds;
    watches.feed(
        [(0, tenants(&["x.service", "y.service"]))].into(),
        NOW + KEPT_EMPTY,
    );
    wait(&mut watches, is_whole);
    assert!(
        watches.of("a").1.unwrap().own.cpu_seconds >= seen,
        "what was is not forgotten"
    );
    assert_eq!(watches.workers().started, 3);
}

#[test]
fn tenants_beyond_the_most_share_a_worker_and_one_that_holds_it_up_gets_another() {
    let mut rules = rule("a", Some(Pages::Kernel));
    rules.placement.as_mut().unwrap().swap = true;
    let mut watches = watches(vec![rules]);
    watches.feed([(0, tenants(&["x.service", "y.service"]))].into(), NOW);
    assert_eq!(numbers(&watches, "a"), [1], "swap is one for the machine");
    let evil = u32::MAX >> 1;
    watches.give_up(&"a".into(), &Lane::Shared, Some(evil), NOW);
    watches.tend(NOW);
    let numbers_now = numbers(&watches, "a");
    assert!(numbers_now.is_empty(), "they release their locks first");
    watches.tend(NOW + LETTING_GO);
    assert_eq!(numbers(&watches, "a"), [2, 3]);
    let lane = &watches.kept["a"].lanes[&Lane::Tenant("x.service".into())];
    assert_eq!(lane.members.len(), 1);
    let told = lane.running.as_ref().unwrap().told.as_ref().unwrap();
    assert!(told.leave_alone.contains(&evil));
    let account = watches.workers();
    assert_eq!((account.given_up, account.left_alone.len()), (1, 1));
    assert_eq!(account.left_alone[0].process, Some(evil));
    assert_eq!(account.left_alone[0].tenant, "x.service");
    // Each time for longer.
    watches.tend(NOW + LEFT_ALONE);
    assert_eq!(watches.workers().left_alone, []);
    let own = Lane::Tenant("x.service".into());
    watches.give_up(&"a".into(), &own, Some(evil), NOW + LEFT_ALONE);
    watches.tend(NOW + 2 * LEFT_ALONE);
    assert_eq!(watches.workers().left_alone.len(), 1);
    watches.tend(NOW + 3 * LEFT_ALONE);
    assert_eq!(watches.workers().left_alone, []);
}

/// Leaves a worker behind that does not end.
fn leave(watches: &mut Watches, tenant: &str) {
    let task = Task::Read(Roots::default());
    let kept = rustix::thread::CapabilitySet::empty();
    watches.left.push(AbandonedWorker {
        worker: Worker::start(&task, kept, WATCH_SLEEP_LIMITS).unwrap(),
        rule: "a".into(),
        tenant: tenant.into(),
        was_shared: false,
        process: None,
        since: NOW,
        kill_at: None,
        memory: ByteCount(0),
    });
}

#[test]
fn workers_left_behind_by_some_tenants_keep_no_other_from_having_one() {
    let mut watches = watches(vec![rule("a", Some(Pages::Kernel))]);
    for number in 0..MANY_LEFT {
        leave(&mut watches, &format!("evil{number}.service"));
    }
    watches.feed([(0, tenants(&["evil0.service", "x.service"]))].into(), NOW);
    let is_watched = |watches: &Watches, tenant: &str| {
        let lane = Lane::Tenant(tenant.into());
        watches.kept["a"].lanes[&lane].running.is_some()
    };
    assert!(is_watched(&watches, "x.service"));
    assert!(!is_watched(&watches, "evil0.service"));
    watches.left.clear();
    watches.tend(NOW + LEFT_ALONE);
    assert!(is_watched(&watches, "evil0.service"));
}

#[test]
fn a_tenant_that_left_a_worker_behind_shares_none_with_others() {
    let mut rules = rule("a", Some(Pages::Kernel));
    rules.placement.as_mut().unwrap().swap = true;
    let mut watches = watches(vec![rules]);
    leave(&mut watches, "evil.service");
    watches.feed([(0, tenants(&["evil.service", "x.service"]))].into(), NOW);
    let names = |watches: &Watches| -> Vec<String> {
        let members = watches.kept["a"].lanes[&Lane::Shared].members.values();
        members.map(ToString::to_string).collect()
    };
    assert_eq!(names(&watches), ["x.service"]);
    watches.left[0].worker.kill();
    wait(&mut watches, |watches| names(watches).len() == 2);
}

#[test]
fn few_workers_of_single_tenants_are_given_up_at_once() {
    let mut watches = watches(vec![rule("a", Some(Pages::Kernel))]);
    let names = ["a.service", "b.service", "c.service", "d.service"];
    watches.feed([(0, tenants(&names))].into(), NOW);
    let held = names.iter().zip(1..).map(|(name, seconds)| HeldUpWorker {
        rule: "a".into(),
        lane: Lane::Tenant((*name).into()),
        process: None,
        lasts: Duration::from_secs(seconds),
    });
    watches.give_up_some(held.collect(), NOW);
    let left: Vec<&str> = watches.left.iter().map(|left| &*left.tenant).collect();
    assert_eq!(left, ["d.service", "c.service"]);
    let again = || HeldUpWorker {
        rule: "a".into(),
        lane: Lane::Tenant("a.service".into()),
        process: None,
        lasts: SILENCE,
    };
    watches.give_up_some(vec![again()], NOW);
    assert_eq!(watches.left.len(), 2, "in the same second");
    watches.give_up_some(vec![again()], NOW + GIVEN_UP_EVERY);
    assert_eq!(watches.left.len(), 3);
}

#[test]
fn a_worker_that_was_ended_is_followed_soon_and_less_soon_each_time() {
    let mut ends = RestartBackoff::default();
    let mut pause = |lasted: u64| ends.after(Duration::from_secs(lasted), false).as_secs();
    assert_eq!([1, 1, 1, 1].map(&mut pause), [1, 2, 4, 8]);
    assert_eq!([0; 4].map(&mut pause), [16, 32, 60, 60]);
    assert_eq!(pause(3600), 1);
    assert_eq!(ends.after(Duration::ZERO, true), AFTER_TROUBLE);
}

#[test]
fn what_is_not_used_goes_to_those_that_need_more() {
    assert_eq!(divided(0.01, &[None, None]), [0.005, 0.005]);
    assert_eq!(divided(0.01, &[Some(0.0), Some(0.001)]), [0.005, 0.005]);
    let found = divided(0.01, &[Some(0.0), None, Some(0.002), Some(1.0)]);
    let expected = [0.000_625, 0.004_875, 0.002, 0.0025];
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-12, "{found:?}");
    }
    assert_eq!(divided(0.01, &[]), [0.0; 0]);
}

#[test]
fn a_budget_that_is_a_size_holds_for_all_tenants_together() {
    let mut rules = rule("a", Some(Pages::Resident));
    let size = ByteCount(100 << 20);
    rules.placement.as_mut().unwrap().budget = Some(Share::Bytes(size));
    let mut watches = watches(vec![rules]);
    watches.feed([(0, tenants(&["x.service", "y.service"]))].into(), NOW);
    let budgets = |watches: &mut Watches, charged: [u64; 2]| {
        let lanes = watches.kept.get_mut("a").unwrap().lanes.values_mut();
        for (lane, charged) in lanes.zip(charged) {
            let running = lane.running.as_mut().unwrap();
            let account = Arc::make_mut(&mut running.account);
            account.charged_bytes = ByteCount(charged << 20);
            // It uses the budget that it was sent.
            account.budget_bytes = lane.budget;
            if let Some(told) = &mut running.told {
                told.budget = lane.budget;
            }
        }
        let kept = watches.kept.get_mut("a").unwrap();
        divide_budget(size, kept.lanes.values_mut());
        let given = kept.lanes.values().map(|lane| lane.budget.unwrap().0 >> 20);
        given.collect::<Vec<_>>()
    };
    assert_eq!(budgets(&mut watches, [0, 0]), [50, 50]);
    // One worker has used all: the other one must have less before the first one gets more.
    let first = budgets(&mut watches, [50, 0]);
    assert_eq!(first[0], 50);
    assert!(first[1] < 50);
    let mut now = first;
    for _ in 0..60 {
        now = budgets(&mut watches, [now[0], 0]);
        assert!(now.iter().sum::<u64>() <= 100, "{now:?}");
    }
    assert!(now[0] >= 96, "{now:?}");
}

#[test]
fn a_watch_in_trouble_is_told_and_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let roots = Roots::under(folder.path());
    std::fs::create_dir(&roots.proc).unwrap();
    std::os::unix::fs::symlink("0", roots.proc.join("self")).unwrap();
    let mut watches = Watches::new(&roots);
    watches.follow([rule("a", Some(Pages::Kernel))].into(), 0.01);
    watches.feed([(0, members())].into(), NOW);
    let deadline = Instant::now() + Duration::from_secs(60);
    let in_trouble = |watches: &Watches| {
        let mut lanes = watches.kept["a"].lanes.values();
        lanes.any(|lane| lane.trouble.is_some())
    };
    while !in_trouble(&watches) {
        assert!(Instant::now() < deadline);
        watches.tend(NOW);
    }
    assert!(watches.of("a").1.unwrap().trouble.is_some());
    watches.tend(NOW + AFTER_TROUBLE);
    assert!(!in_trouble(&watches), "tried again");
}

#[test]
fn what_ended_workers_have_charged_is_not_given_again() {
    let mut rules = rule("a", Some(Pages::Resident));
    let size = ByteCount(100 << 20);
    rules.placement.as_mut().unwrap().budget = Some(Share::Bytes(size));
    let mut watches = watches(vec![rules]);
    watches.feed([(0, tenants(&["x.service", "y.service"]))].into(), NOW);
    let own = Lane::Tenant("x.service".into());
    let lanes = &mut watches.kept.get_mut("a").unwrap().lanes;
    let account = &mut lanes
        .get_mut(&own)
        .unwrap()
        .running
        .as_mut()
        .unwrap()
        .account;
    Arc::make_mut(account).charged_bytes = ByteCount(80 << 20);
    watches.give_up(&"a".into(), &own, None, NOW);
    let budget = |watches: &mut Watches, tenant: &str| {
        let lanes = &mut watches.kept.get_mut("a").unwrap().lanes;
        for _ in 0..60 {
            divide_budget(size, lanes.values_mut());
        }
        lanes[&Lane::Tenant(tenant.into())].budget.unwrap().0 >> 20
    };
    let other = budget(&mut watches, "y.service");
    assert!((15..=20).contains(&other), "{other}");
    // The next worker begins with what it carries.
    watches.tend(NOW + LETTING_GO);
    let lane = &watches.kept["a"].lanes[&own];
    assert!(lane.running.is_some());
    assert_eq!(lane.carried, ByteCount(80 << 20));
    assert!(lane.budget.unwrap() >= lane.carried);
    let other = budget(&mut watches, "y.service");
    assert!((10..=20).contains(&other), "{other}");
}

#[test]
fn a_process_with_the_number_of_one_that_is_avoided_is_another_one() {
    let mut watches = watches(vec![rule("a", Some(Pages::Kernel))]);
    let id = |start_ticks| ProcessId {
        pid: 77,
        start_ticks,
    };
    let fed = |start| {
        let members = Members::from([(id(start), Arc::from("a.service"))]);
        BTreeMap::from([(0, Tenants::from([(Arc::from("a.service"), members)]))])
    };
    watches.feed(fed(5), NOW);
    let mut avoidance = Avoidance::new(NOW);
    avoidance.prolong(NOW, LEFT_ALONE, LEFT_ALONE);
    let avoided = AvoidedProcess {
        start_ticks: Some(5),
        rule: "a".into(),
        tenant: "a.service".into(),
        avoidance,
    };
    watches.avoided.insert(77, avoided);
    watches.feed(fed(5), NOW);
    assert_eq!(watches.processes("a"), []);
    watches.feed(fed(6), NOW);
    assert_eq!(watches.processes("a"), [id(6)]);
    assert!(watches.avoided.is_empty());
    watches.end(Duration::ZERO);
}

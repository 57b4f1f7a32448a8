//! The plan as a whole: schedules, objectives, contradictions.

use std::time::Duration;

use superhue_model::Random;

use super::testing::{colorable, complete, is_proper};
use super::*;

const fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

fn task(name: &str, cpu: u32, colors: usize) -> Task {
    Task::new(name, vec![cpu], Needs::Colors(colors))
}

fn curve(unit: Unit, points: &[(usize, f64)]) -> Needs {
    Needs::Curve(Curve::new(unit, points.to_vec()).unwrap())
}

fn problem(colors: usize, tasks: Vec<Task>) -> Problem {
    let mut problem = Problem::new(colors, Preemption::Cyclic);
    problem.tasks = tasks;
    problem
}

fn sets(problem: &Problem) -> Vec<String> {
    let plan = plan(problem).unwrap();
    plan.shares
        .iter()
        .map(|share| share.colors.to_string())
        .collect()
}

fn wrong(problem: &Problem) -> String {
    plan(problem).unwrap_err().to_string()
}

#[test]
fn who_runs_at_the_same_time_follows_from_cpus_preemption_and_groups() {
    let tasks = || {
        vec![
            task("a", 0, 2),
            task("b", 0, 2),
            task("c", 1, 2),
            task("d", 2, 2),
        ]
    };
    let base = problem(8, tasks());
    let conflicts = |problem: &Problem| plan(problem).unwrap().conflicts;
    assert_eq!(conflicts(&base), [(0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]);
    let mut preemptive = base.clone();
    preemptive.preemption = Preemption::Preemptive;
    assert_eq!(conflicts(&preemptive).len(), 6);
    let mut sharing = base.clone();
    sharing.sharing = vec![vec![0, 1], vec![2]];
    assert_eq!(conflicts(&sharing), [(0, 2), (1, 2)]);
    let mut groups = base.clone();
    groups.never_together = vec![vec![0, 2, 3]];
    groups.apart = vec![vec![0, 1]];
    assert_eq!(conflicts(&groups), [(0, 1), (1, 2), (1, 3)]);
    // A task that migrates may meet all others, also those of its own CPUs.
    let mut migrating = base;
    migrating.tasks[0].cpus = vec![0, 1];
    migrating.tasks[1].cpus = vec![0, 1];
    assert_eq!(conflicts(&migrating).len(), 6);
}

#[test]
fn windows_that_never_overlap_share_colors() {
    let mut frame = problem(4, vec![task("a", 0, 3), task("b", 1, 3)]);
    let window = |offset, length| Window::new(ms(10), ms(offset), ms(length)).unwrap();
    frame.tasks[0].window = Some(window(0, 5));
    frame.tasks[1].window = Some(window(5, 5));
    assert_eq!(sets(&frame), ["0-2", "0-2"]);
    frame.tasks[1].window = Some(window(4, 5));
    assert!(matches!(plan(&frame), Err(PlanError::Refused(_))));
    frame.tasks[1].cpus = vec![0];
    assert!(wrong(&frame).contains("the windows of a and b overlap on CPU 0"));
    // Without a window it runs whenever the other does not.
    frame.tasks[1].window = None;
    assert_eq!(sets(&frame), ["0-2", "0-2"]);
}

#[test]
fn others_keep_the_highest_colors_and_what_nobody_gains_from_is_unused() {
    let mut some = problem(16, vec![task("a", 0, 3), task("b", 1, 4)]);
    some.others = 5;
    let found = plan(&some).unwrap();
    let text = |set: &Option<ColorSet>| set.as_ref().map(ToString::to_string);
    assert_eq!(text(&found.others), Some("11-15".to_owned()));
    assert_eq!(text(&found.unused), Some("7-10".to_owned()));
    assert_eq!(found.cost, None);
    some.others = 0;
    some.tasks[0].needs = Needs::Colors(12);
    let found = plan(&some).unwrap();
    assert_eq!((found.others, found.unused), (None, None));
    assert_eq!(sets(&some), ["0-11", "12-15"]);
}

#[test]
fn sums_are_by_second_and_the_worst_is_by_deadline() {
    // b misses more in a run, a in a second.
    let mut two = problem(
        4,
        vec![
            Task::new("a", vec![0], curve(Unit::Misses, &[(1, 100.0), (3, 10.0)])),
            Task::new("b", vec![1], curve(Unit::Misses, &[(1, 150.0), (3, 10.0)])),
        ],
    );
    assert_eq!(sets(&two), ["0", "1-3"]);
    let cost = plan(&two).unwrap().cost.unwrap();
    assert_eq!((cost.value, cost.bound, cost.is_best), (110.0, 110.0, true));
    assert_eq!(
        (cost.rate.unit, cost.rate.is_per_second),
        (Unit::Misses, false)
    );
    two.tasks[0].period = Some(ms(10));
    assert!(wrong(&two).contains("a has a period and b has none"));
    two.tasks[1].period = Some(ms(100));
    let found = plan(&two).unwrap();
    assert_eq!(sets(&two), ["0-2", "3"]);
    assert_eq!(found.cost.unwrap().value, 10.0 / 0.01 + 150.0 / 0.1);
    assert_eq!(found.shares[1].cost, Some(150.0));
    // Now as seconds of a deadline: b comes closest to its own.
    two.objective = Objective::Worst;
    assert!(wrong(&two).contains("a has misses"));
    two.miss_time = Some(Duration::from_micros(10));
    two.tasks[0].deadline = Some(ms(10));
    two.tasks[1].deadline = Some(ms(2));
    let found = plan(&two).unwrap();
    assert_eq!(sets(&two), ["0", "1-3"]);
    assert!((found.worst.unwrap() - 0.1).abs() < 1e-9);
    two.tasks[0].period = None;
    two.tasks[1].period = None;
    two.tasks[0].deadline = None;
    assert!(wrong(&two).contains("a has neither deadline nor period"));
}

#[test]
fn a_deadline_is_a_demand() {
    let seconds = curve(Unit::Seconds, &[(1, 0.012), (2, 0.009), (4, 0.004)]);
    let mut two = problem(5, vec![Task::new("a", vec![0], seconds), task("b", 1, 3)]);
    two.tasks[0].deadline = Some(ms(10));
    let found = plan(&two).unwrap();
    assert_eq!(found.shares[0].least, 2);
    assert!((found.shares[0].of_deadline.unwrap() - 0.9).abs() < 1e-9);
    two.tasks[0].deadline = Some(ms(5));
    let Err(PlanError::Refused(refusal)) = plan(&two) else {
        panic!("4 and 3 are more than 5")
    };
    assert_eq!(refusal.tasks, [(0, 4), (1, 3)]);
    assert_eq!((refusal.needed, refusal.available), (Some(7), 5));
    two.tasks[0].deadline = Some(ms(3));
    let late = wrong(&two);
    assert!(
        late.contains("task a takes 0.004 s of a deadline of 0.003 s even with 4 colors"),
        "{late}"
    );
}

#[test]
fn tasks_on_tens_of_thousands_of_cpus_are_compared_at_once() {
    let halves = || {
        vec![
            (0..1 << 15).collect::<Vec<u32>>(),
            (1 << 15..1 << 16).collect(),
        ]
    };
    let mut large = problem(8, vec![task("a", 0, 3), task("b", 0, 4), task("c", 0, 3)]);
    large.sharing = halves();
    for (task, cpus) in large.tasks.iter_mut().zip(halves()) {
        task.cpus = cpus;
    }
    large.tasks[2].cpus = vec![7];
    assert_eq!(plan(&large).unwrap().conflicts, [(0, 2)]);
    // A cache for each CPU: runs on one CPU end before another begins.
    large.sharing = (0..1 << 16).map(|cpu| vec![cpu]).collect();
    large.tasks[1].cpus = (1 << 10..1 << 16).collect();
    assert_eq!(plan(&large).unwrap().conflicts, []);
    large.preemption = Preemption::Preemptive;
    assert_eq!(plan(&large).unwrap().conflicts, [(0, 1), (0, 2)]);
    // Names that come again and again.
    large.never_together = vec![[0, 1].repeat(1 << 16)];
    large.apart = vec![[1, 2].repeat(1 << 16)];
    assert_eq!(plan(&large).unwrap().conflicts, [(0, 2), (1, 2)]);
    large.tasks[2].cpus = vec![1 << 16];
    assert!(wrong(&large).contains("task c runs on CPU 65536"));
}

type Edit = fn(&mut Problem);

#[test]
fn problems_without_a_meaning_are_refused() {
    let good = problem(8, vec![task("a", 0, 2), task("b", 1, 2)]);
    let cases: [(Edit, &str); 17] = [
        (|p| p.tasks.clear(), "there is no task"),
        (|p| p.colors = 0, "0 colors cannot be divided"),
        (|p| p.colors = 4097, "4097 colors cannot be divided"),
        (|p| p.others = 8, "others = 8 leaves none of the 8 colors"),
        (
            |p| p.tasks[1].name = "a".to_owned(),
            "two tasks are called `a`",
        ),
        (|p| p.tasks[1].cpus.clear(), "task b has no CPU"),
        (|p| p.sharing = vec![vec![0]], "task b runs on CPU 1"),
        (
            |p| p.sharing = vec![vec![0, 1], vec![1]],
            "CPU 1 is in two groups",
        ),
        (|p| p.apart = vec![vec![0, 2]], "there is no task 2"),
        (|p| p.never_together = vec![vec![9]], "there is no task 9"),
        (
            |p| (p.apart, p.never_together) = (vec![vec![0, 1]], vec![vec![1, 0]]),
            "a and b are never together and yet apart",
        ),
        (
            |p| p.tasks[0].needs = Needs::Colors(0),
            "task a has no color",
        ),
        (
            |p| {
                p.tasks = (0..3)
                    .map(|at| task(&format!("t{at}"), at, isize::MAX as usize))
                    .collect()
            },
            "task t0 has 9223372036854775807 colors, and a cache has at most 4096",
        ),
        (
            |p| p.tasks[1].needs = curve(Unit::Misses, &[(1, 9.0), (4097, 8.0)]),
            "task b has 4097 colors",
        ),
        (
            |p| p.tasks[0].period = Some(Duration::ZERO),
            "the period of a is 0",
        ),
        (
            |p| p.tasks[0].deadline = Some(Duration::ZERO),
            "the deadline of a is 0",
        ),
        (
            |p| p.tasks = (0..257).map(|at| task(&at.to_string(), 0, 1)).collect(),
            "there are 257 tasks",
        ),
    ];
    assert!(plan(&good).is_ok());
    for (change, says) in cases {
        let mut bad = good.clone();
        change(&mut bad);
        let error = wrong(&bad);
        assert!(error.contains(says), "{says}: {error}");
    }
    let mut mixed = good;
    mixed.tasks[0].needs = curve(Unit::Misses, &[(1, 9.0), (2, 8.0)]);
    mixed.tasks[1].needs = curve(Unit::Seconds, &[(1, 9.0), (2, 8.0)]);
    assert!(wrong(&mixed).contains("a has misses and b has seconds"));
    mixed.miss_time = Some(ms(1));
    assert_eq!(plan(&mixed).unwrap().cost.unwrap().rate.unit, Unit::Seconds);
}

#[test]
fn a_task_with_more_colors_than_the_machine_is_a_clique_of_its_own() {
    let Err(PlanError::Refused(refusal)) = plan(&problem(8, vec![task("a", 0, 9)])) else {
        panic!("9 are more than 8")
    };
    assert_eq!((refusal.tasks, refusal.needed), (vec![(0, 9)], Some(9)));
}

/// A plan of random tasks on up to four CPUs, of which some may never run together.
fn random_problem(tasks: usize, colors: usize, random: &mut Random) -> Problem {
    let one = |at: usize, random: &mut Random| {
        let cpu = u32::try_from(random.below(4)).unwrap();
        let needs = match random.below(2) {
            0 => Needs::Colors(1 + random.below(3)),
            _ => {
                let least = 1 + random.below(2);
                let costs = [
                    60 + random.below(40),
                    30 + random.below(30),
                    random.below(30),
                ];
                let points = costs.iter().enumerate();
                let points = points.map(|(step, &cost)| {
                    (least + 2 * step, f64::from(u32::try_from(cost).unwrap()))
                });
                curve(Unit::Seconds, &points.collect::<Vec<_>>())
            }
        };
        let mut task = Task::new(&format!("t{at}"), vec![cpu], needs);
        task.deadline = Some(Duration::from_secs(100 + random.below(200) as u64));
        task
    };
    let mut made = problem(colors, (0..tasks).map(|at| one(at, random)).collect());
    made.others = random.below(2);
    if random.below(2) == 1 {
        made.preemption = Preemption::Preemptive;
    }
    if random.below(2) == 1 {
        made.sharing = vec![vec![0, 1], vec![2, 3]];
    }
    if tasks > 1 && random.below(2) == 1 {
        made.never_together = vec![vec![0, tasks - 1]];
    }
    made
}

#[test]
fn the_worst_task_is_as_good_as_an_exhaustive_search_makes_it() {
    let mut random = Random::new(10);
    let (mut planned, mut refused) = (0, 0);
    for _ in 0..300 {
        let tasks = 1 + random.below(5);
        let colors = 3 + random.below(6);
        let mut problem = random_problem(tasks, colors, &mut random);
        problem.objective = Objective::Worst;
        let (graph, sizes) = (problem.conflicts().unwrap(), problem.sizes().unwrap());
        // The least ceiling whose demands can be met, by trying all.
        let limit = problem.colors - problem.others;
        let mut ceilings = sizes.ceilings();
        ceilings.push(f64::INFINITY);
        let best = ceilings.into_iter().find(|&ceiling| {
            let within = sizes.within(ceiling);
            let least: Option<Vec<usize>> = within
                .iter()
                .map(|sizes| sizes.first().map(|size| size.0))
                .collect();
            least.is_some_and(|least| colorable(&graph, &least, limit))
        });
        match (plan(&problem), best) {
            (Ok(found), Some(best)) => {
                let has_curve = best.is_finite();
                assert_eq!(found.worst, has_curve.then_some(best));
                planned += 1;
            }
            (Err(PlanError::Refused(_)), None) => refused += 1,
            other => panic!("{other:?}: {problem:?}"),
        }
    }
    assert!(planned > 100 && refused > 20, "{planned} {refused}");
}

#[test]
fn plans_of_many_tasks_are_valid_whatever_their_schedule() {
    let mut random = Random::new(11);
    let mut planned = 0;
    for round in 0..25 {
        let mut problem = random_problem(30 + 9 * round, 64, &mut random);
        for group in 0..random.below(6) {
            let members = (0..4).map(|at| (group * 4 + at) % problem.tasks.len());
            problem.never_together.push(members.collect());
        }
        problem.preemption = Preemption::Cyclic;
        let graph = problem.conflicts().unwrap();
        let found = plan(&problem).unwrap();
        let sets: Vec<Vec<usize>> = (found.shares.iter())
            .map(|share| {
                share
                    .colors
                    .iter()
                    .map(|color| usize::from(color.0))
                    .collect()
            })
            .collect();
        let demands: Vec<usize> = sets.iter().map(Vec::len).collect();
        assert!(is_proper(
            &graph,
            &demands,
            problem.colors - problem.others,
            &sets
        ));
        for (share, task) in found.shares.iter().zip(&problem.tasks) {
            assert!(share.colors.len() >= share.least);
            if let Needs::Colors(colors) = task.needs {
                assert_eq!(share.colors.len(), colors);
            }
        }
        planned += 1;
    }
    assert_eq!(planned, 25);
}

#[test]
fn the_named_tasks_of_a_refusal_do_not_fit_and_its_changes_do() {
    let mut random = Random::new(12);
    let (mut refusals, mut changes) = (0, 0);
    for _ in 0..300 {
        let tasks = 2 + random.below(5);
        let colors = 2 + random.below(5);
        let problem = random_problem(tasks, colors, &mut random);
        let Err(PlanError::Refused(refusal)) = plan(&problem) else {
            continue;
        };
        refusals += 1;
        let demands: Vec<usize> = refusal.tasks.iter().map(|task| task.1).collect();
        let members: Vec<usize> = refusal.tasks.iter().map(|task| task.0).collect();
        let graph = problem.conflicts().unwrap().of(&members);
        let limit = problem.colors - problem.others;
        assert!(!colorable(&graph, &demands, limit), "{refusal:?}");
        if refusal.obstacle == Obstacle::Clique {
            assert_eq!(graph, complete(members.len()));
            assert_eq!(refusal.needed, Some(demands.iter().sum()));
        }
        for change in refusal.changes {
            let mut changed = problem.clone();
            match change {
                Change::Colors(colors) => changed.colors = colors,
                Change::Others(others) => changed.others = others,
                Change::Smaller { task, colors } => {
                    changed.tasks[task].needs = Needs::Colors(colors)
                }
                Change::InTurns { one, other } => changed.never_together.push(vec![one, other]),
            }
            assert!(plan(&changed).is_ok(), "{change:?}: {problem:?}");
            changes += 1;
        }
    }
    assert!(refusals > 50 && changes > 100, "{refusals} {changes}");
}

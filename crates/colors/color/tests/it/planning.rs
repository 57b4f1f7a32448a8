//! Plans on a modelled cache: tasks with planned colors run beside each other as they run alone, and tasks that a plan refuses do not fit.
//!
//! The model has one small private cache for each core and a shared one of 16 colors and 8 ways.

use superhue_cachesim::{Counts, Machine, Placement, Random, System};
use superhue_color::plan::{Needs, Obstacle, Plan, PlanError, Preemption, Problem, Task, plan};

const CORES: usize = 4;
const COLORS: u64 = 16;
const WAYS: usize = 8;
const PAGE: u64 = 4096;
const LINE: u64 = 64;

/// Times and sources do not matter here: only misses count.
const MACHINE: &str = r#"
name = "test"
about = "test"
cores = 4
clock_mhz = 1000
page_kib = 4
superpage_kib = 2048
source = "made up"
[[cache]]
name = "L1d"
size_kib = 4
ways = 1
line = 64
replacement = "lru"
write_back = true
write_allocate = true
cycles = 1
source = "made up"
[[cache]]
name = "L2"
size_kib = 512
ways = 8
line = 64
replacement = "lru"
shared = true
write_back = true
write_allocate = true
cycles = 10
source = "made up"
[[tlb]]
name = "DTLB"
level = 1
entries = 64
ways = 4
holds = ["base", "super"]
source = "made up"
[walk]
entry = 8
directory = false
through = "L1d"
cycles = 10
source = "made up"
[costs]
memory = 100
write_back = 10
source = "made up"
"#;

fn machine() -> Machine {
    let machine = Machine::parse("test", MACHINE).unwrap();
    assert_eq!(machine.last().colors(PAGE), COLORS);
    machine
}

/// A program on a core: its pages, and the offsets that it loads from or, if odd, stores to.
struct Program {
    core: usize,
    pages: Placement,
    accesses: Vec<u64>,
}

impl Program {
    /// Runs the access of this number; its lowest bit says that it is a store.
    fn step(&self, system: &mut System, number: usize) {
        let at = self.accesses[number];
        match at & 1 {
            1 => system.store(self.core, &self.pages, at & !7),
            _ => system.load(self.core, &self.pages, at & !7),
        }
    }
}

/// Memory in these colors, its page table in one of them: that with the fewest pages.
fn placed(pages: usize, set: &[u64], task: u64, random: &mut Random) -> Placement {
    let placement = Placement::colored_set(pages, PAGE, COLORS, set, random);
    let count = |color: u64| {
        let frames = (0..pages).map(|page| placement.frame(page));
        frames.filter(|frame| frame % COLORS == color).count()
    };
    let color = set
        .iter()
        .copied()
        .min_by_key(|&color| count(color))
        .unwrap();
    // Behind all frames that placements deal.
    let table = (1 << 21) + task * COLORS + color;
    let address = placement.address(0);
    placement.with_tables(address, table, &[table]).unwrap()
}

fn colors_of(plan: &Plan, task: usize) -> Vec<u64> {
    let colors = plan.shares[task].colors.iter();
    colors.map(|color| u64::from(color.0)).collect()
}

fn random_problem(random: &mut Random) -> Problem {
    let mut problem = Problem::new(COLORS as usize, Preemption::Cyclic);
    problem.others = random.below(3) as usize;
    let tasks = 2 + random.below(6);
    problem.tasks = (0..tasks)
        .map(|at| {
            let cpu = random.below(CORES as u64) as u32;
            let needs = Needs::Colors(1 + random.below(7) as usize);
            Task::new(&format!("t{at}"), vec![cpu], needs)
        })
        .collect();
    problem
}

/// Chooses one task of each CPU that has any.
fn running(problem: &Problem, random: &mut Random) -> Vec<usize> {
    let of_cpu = |cpu: usize| {
        let tasks = problem.tasks.iter().enumerate();
        let here = tasks.filter(move |(_, task)| task.cpus == [cpu as u32]);
        here.map(|(at, _)| at).collect::<Vec<_>>()
    };
    let cpus = (0..CORES).map(of_cpu).filter(|tasks| !tasks.is_empty());
    cpus.map(|tasks| tasks[random.below(tasks.len() as u64) as usize])
        .collect()
}

/// Runs the programs together, in turns of random lengths.
fn together(machine: &Machine, programs: &[Program], random: &mut Random) -> Vec<Counts> {
    let mut system = System::new(machine);
    let mut next = vec![0; programs.len()];
    while next
        .iter()
        .zip(programs)
        .any(|(&at, program)| at < program.accesses.len())
    {
        let turn = random.below(programs.len() as u64) as usize;
        let program = &programs[turn];
        let end = (next[turn] + 1 + random.below(50) as usize).min(program.accesses.len());
        for number in next[turn]..end {
            program.step(&mut system, number);
        }
        next[turn] = end;
    }
    programs
        .iter()
        .map(|program| system.counts(program.core))
        .collect()
}

#[test]
fn tasks_with_planned_colors_miss_as_often_together_as_alone() {
    let machine = machine();
    let mut random = Random::new(1);
    let (mut planned, mut disturbed) = (0, 0);
    for _ in 0..200 {
        let problem = random_problem(&mut random);
        let Ok(plan) = plan(&problem) else { continue };
        let tasks = running(&problem, &mut random);
        let programs = |is_planned: bool, random: &mut Random| -> Vec<Program> {
            let of = |&task: &usize| {
                let set = match is_planned {
                    true => colors_of(&plan, task),
                    false => (0..plan.shares[task].colors.len() as u64).collect(),
                };
                // From less than its colors hold to twice as much.
                let most = plan.shares[task].colors.len() * WAYS * 2;
                let pages = 1 + random.below(most as u64) as usize;
                let accesses = (0..pages * 40).map(|_| random.below(pages as u64 * PAGE));
                let accesses: Vec<u64> = accesses.collect();
                Program {
                    core: problem.tasks[task].cpus[0] as usize,
                    pages: placed(pages, &set, task as u64, random),
                    accesses,
                }
            };
            tasks.iter().map(of).collect()
        };
        let alone = |program: &Program| {
            let mut system = System::new(&machine);
            (0..program.accesses.len()).for_each(|number| program.step(&mut system, number));
            system.counts(program.core)
        };
        let isolated = programs(true, &mut random);
        let counts: Vec<Counts> = isolated.iter().map(alone).collect();
        assert_eq!(together(&machine, &isolated, &mut random), counts);
        // With as many colors each, but the same ones, tasks disturb each other: the comparison can fail.
        let mixed = programs(false, &mut random);
        let counts: Vec<Counts> = mixed.iter().map(alone).collect();
        disturbed += usize::from(together(&machine, &mixed, &mut random) != counts);
        planned += 1;
    }
    assert!(planned > 100 && disturbed > 50, "{planned} {disturbed}");
}

/// Misses of a second sweep over all memory of these programs, page by page in turns.
fn misses_once_warm(machine: &Machine, programs: &[Program]) -> u64 {
    let mut system = System::new(machine);
    let memory = |system: &System| -> u64 {
        programs
            .iter()
            .map(|program| system.counts(program.core).memory)
            .sum()
    };
    let mut warm = 0;
    for round in 0..2 {
        if round == 1 {
            warm = memory(&system);
        }
        let longest = programs
            .iter()
            .map(|program| program.pages.len())
            .max()
            .unwrap();
        for page in 0..longest as u64 {
            for program in programs
                .iter()
                .filter(|program| page < program.pages.len() as u64)
            {
                for at in (0..PAGE).step_by(LINE as usize) {
                    system.load(program.core, &program.pages, page * PAGE + at);
                }
            }
        }
    }
    memory(&system) - warm
}

#[test]
fn planned_tasks_find_all_their_memory_again_and_refused_ones_cannot() {
    let machine = machine();
    let mut random = Random::new(2);
    let (mut planned, mut refused) = (0, 0);
    for _ in 0..200 {
        let problem = random_problem(&mut random);
        // Each task fills its colors, but for the place of its page table.
        let pages = |colors: usize| colors * WAYS - 1;
        let program = |task: usize, pages: Placement| Program {
            core: problem.tasks[task].cpus[0] as usize,
            pages,
            accesses: Vec::new(),
        };
        match plan(&problem) {
            Ok(plan) => {
                let tasks = running(&problem, &mut random);
                let programs = tasks.iter().map(|&task| {
                    let set = colors_of(&plan, task);
                    let pages = placed(pages(set.len()), &set, task as u64, &mut random);
                    program(task, pages)
                });
                let programs: Vec<Program> = programs.collect();
                assert_eq!(misses_once_warm(&machine, &programs), 0, "{problem:?}");
                planned += 1;
            }
            Err(PlanError::Refused(refusal)) => {
                assert_eq!(refusal.obstacle, Obstacle::Clique);
                let available = refusal.available;
                // Spread over all colors that there are for tasks, as evenly as can be.
                let set: Vec<u64> = (0..available as u64).collect();
                let programs: Vec<Program> = (refusal.tasks.iter())
                    .map(|&(task, colors)| {
                        let pages = placed(pages(colors), &set, task as u64, &mut random);
                        program(task, pages)
                    })
                    .collect();
                // The private caches hold a page each, so memory beyond these must miss.
                let all: usize = programs.iter().map(|program| program.pages.len()).sum();
                if all > available * WAYS + programs.len() {
                    assert!(misses_once_warm(&machine, &programs) > 0, "{problem:?}");
                    refused += 1;
                }
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(planned > 40 && refused > 30, "{planned} {refused}");
}

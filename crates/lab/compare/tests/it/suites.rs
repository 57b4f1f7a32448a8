//! Suites: decisions on figures, their output, and comparisons that stop and continue.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, LogNormal, Normal};
use superhue_compare::SuiteView;
use superhue_measure::{
    Arm, Comparison, Context, Decision, Design, Execution, Metric, Plan, Runner, RunnerError,
    Sample, Schedule, Settings, Suite, SuiteArm, SuiteProgram, UserMetric, execute, go_on,
};

/// Factor of a run's speed.
type Noise = fn(&mut Xoshiro256PlusPlus) -> f64;

/// Machine that gives each arm its speed in operations per second, and its memory.
struct Machine<'a> {
    arms: &'a [(f64, f64)],
    noise: Noise,
    rng: Xoshiro256PlusPlus,
}

/// Half a percent of noise.
fn little_noise(rng: &mut Xoshiro256PlusPlus) -> f64 {
    0.995 + rng.random::<f64>() * 0.01
}

impl Runner for Machine<'_> {
    fn run(&mut self, arm: usize, _warmup: bool) -> Result<Sample, RunnerError> {
        let (speed, memory) = self.arms[arm];
        let noise = (self.noise)(&mut self.rng);
        let mut sample = Sample::new();
        sample.set("ops", speed * noise);
        sample.set("p99", 1e-3 / noise);
        sample.set("max_rss", memory);
        if arm == 0 {
            sample.set_missing("seconds_to_95", "no huge page in the end");
        } else {
            sample.set("seconds_to_95", 0.5);
        }
        if speed == 0.0 {
            return Err(RunnerError::Failed {
                reason: "out of luck".into(),
                sample,
            });
        }
        Ok(sample)
    }
}

fn arms(count: usize) -> Vec<Arm> {
    (0..count)
        .map(|arm| Arm::new(format!("arm{arm}"), format!("--option {arm}")))
        .collect()
}

fn metrics() -> Vec<Metric> {
    let speed = UserMetric::parse("ops=x").unwrap();
    let tail = UserMetric::parse("p99:lower=x").unwrap();
    SuiteProgram::metrics(Some(speed.metric()), Some(tail.metric()))
}

fn settings(runs: usize) -> Settings {
    Settings {
        runs,
        warmup: 1,
        smallest: 0.03,
        resamples: 200,
        ..Settings::default()
    }
}

fn compared(speeds: &[(f64, f64)], runs: usize, seed: u64) -> Comparison {
    compared_under(little_noise, speeds, runs, seed)
}

fn compared_under(noise: Noise, speeds: &[(f64, f64)], runs: usize, seed: u64) -> Comparison {
    let design = Design::new(arms(speeds.len()), metrics(), settings(runs)).unwrap();
    let mut machine = Machine {
        arms: speeds,
        noise,
        rng: Xoshiro256PlusPlus::seed_from_u64(seed),
    };
    let execution = execute(&design.schedule(), &mut machine, &mut |_| (), &|| false);
    Comparison::new(design, execution, Context::default())
}

fn told(count: usize) -> Vec<SuiteArm> {
    let told = arms(count).into_iter().map(|arm| SuiteArm {
        name: arm.name,
        options: arm.options,
        skipped: None,
        obstacle: Some(None),
    });
    told.collect()
}

fn suite(speeds: &[(f64, f64)], runs: usize) -> Suite {
    let mut suite = Suite::new("A few", 0.03, told(speeds.len()));
    let plan = || Plan {
        command: "./server | cat".into(),
        ..Plan::default()
    };
    let mut program = SuiteProgram::new("one", "database", plan());
    program.take(compared(speeds, runs, 1), 0.03);
    suite.programs.push(program);
    let mut program = SuiteProgram::new("two|2", "compiler", plan());
    program.skipped = Some("there is no program `two` here (apt install two)".into());
    suite.programs.push(program);
    suite
        .programs
        .push(SuiteProgram::new("three", "compiler", plan()));
    suite
}

const SPEEDS: [(f64, f64); 5] = [
    (100.0, 64e6),
    (120.0, 64e6),
    (80.0, 128e6),
    (100.2, 64e6),
    (0.0, 64e6),
];

#[test]
fn the_picture_has_a_field_for_each_program_and_arm() {
    let mut told = suite(&SPEEDS, 10);
    told.programs[0].name = "<one> & more".into();
    let plot = SuiteView(&told).plot();
    for expected in [
        "A few</text>",
        "&lt;one&gt; &amp; more",
        "faster than `arm0`",
        "1.20x",
        "0.80x",
        "2.00x memory",
        "failed",
        "two|2 not measured",
        "not measured yet: three",
    ] {
        assert!(plot.contains(expected), "{expected}:\n{plot}");
    }
    assert!(!plot.contains("NaN") && !plot.contains("inf"));
    // Three runs decide nothing, so no field has a color.
    let few = SuiteView(&suite_of(3)).plot();
    assert!(few.contains("x ?"), "{few}");
    // A suite without measurements must not fail.
    let empty = SuiteView(&Suite::new("Nothing", 0.03, Vec::new())).plot();
    assert!(empty.contains("0 of 0 programs"), "{empty}");
}

/// Lines fit narrow terminals, and no arm loses its verdict, its speed or the interval.
#[test]
fn narrow_tables_fit() {
    let mut suite = suite(&SPEEDS, 10);
    suite.arms[1].name = "an arm with a name of many words".into();
    suite.programs[0].rows[1]
        .arm
        .clone_from(&suite.arms[1].name);
    let interval = suite.programs[0].rows[1].speed.interval.unwrap();
    let interval = format!("{:.3} to {:.3}", interval.low, interval.high);
    for room in [40, 50, 59, 72] {
        let table = SuiteView(&suite).table(Some(room));
        for line in table.lines() {
            assert!(line.chars().count() <= room, "{room}: {line}");
        }
        for shown in [
            interval.as_str(),
            "faster",
            "slower",
            "failed",
            "an ar",
            "\u{2026}",
        ] {
            assert!(table.contains(shown), "{room}: {shown}: {table}");
        }
        let unfolded = table.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(unfolded.contains("no room for: "), "{room}: {table}");
    }
    let whole = SuiteView(&suite).table(None);
    assert!(whole.contains("converged") && !whole.contains("no room for: "));
}

/// Returns the decision on the speed of an arm of two, after rounds were added until the interval was narrow.
fn decision_under(noise: Noise, speed: f64, seed: u64) -> Decision {
    let after = |runs| compared_under(noise, &[(100.0, 64e6), (speed, 64e6)], runs, seed);
    let mut counts = (6..24).step_by(2);
    let runs = counts.find(|runs| after(*runs).is_precise("ops", 0.03));
    let mut program = SuiteProgram::new("one", "database", Plan::default());
    program.take(after(runs.unwrap_or(24)), 0.03);
    program.rows[1].speed.decision
}

/// Fixed seeds: the counts are the same on every machine.
#[test]
fn a_speed_beyond_the_smallest_difference_is_seldom_the_same() {
    const REPETITIONS: u64 = 200;
    let noises: [Noise; 4] = [
        little_noise,
        |rng| Normal::new(1.0, 0.02).unwrap().sample(rng),
        |rng| LogNormal::new(0.0, 0.05).unwrap().sample(rng),
        |rng| little_noise(rng) * [1.0, 0.8][usize::from(rng.random_bool(0.2))],
    ];
    for (kind, noise) in noises.into_iter().enumerate() {
        let same = |speed| {
            let all = (0..REPETITIONS).map(|seed| decision_under(noise, speed, seed));
            all.filter(|decision| *decision == Decision::Same).count() as u64
        };
        for speed in [100.0 * 1.031, 100.0 / 1.031] {
            let same = same(speed);
            assert!(same * 100 <= REPETITIONS * 5, "{kind}, {speed}: {same}");
        }
        // Without this the rule could call nothing the same.
        let equal = same(100.0);
        assert!(kind != 0 || equal * 100 >= REPETITIONS * 95, "{equal}");
    }
}

#[test]
fn four_runs_are_too_few_for_sameness() {
    let same_after = |runs| {
        let comparison = compared(&[(100.0, 64e6), (100.0, 64e6)], runs, 1);
        let mut program = SuiteProgram::new("one", "database", Plan::default());
        program.take(comparison, 0.03);
        program.rows[1].speed.decision
    };
    assert_eq!(same_after(4), Decision::Undecided);
    assert_eq!(same_after(8), Decision::Same);
}

/// Judges 24 runs of two arms.
fn judged(machine: &mut dyn Runner) -> SuiteProgram {
    let design = Design::new(arms(2), metrics(), settings(24)).unwrap();
    let execution = execute(&design.schedule(), machine, &mut |_| (), &|| false);
    let mut program = SuiteProgram::new("one", "database", Plan::default());
    program.take(Comparison::new(design, execution, Context::default()), 0.03);
    program
}

/// Two arms, of which the second is quicker in each second run and fails in the others.
struct FailingHalf(u32);

impl Runner for FailingHalf {
    fn run(&mut self, arm: usize, _warmup: bool) -> Result<Sample, RunnerError> {
        let mut sample = Sample::new();
        sample.set("ops", if arm == 0 { 100.0 } else { 125.0 });
        self.0 += u32::from(arm == 1);
        match arm == 1 && self.0.is_multiple_of(2) {
            true => Err(RunnerError::Failed {
                reason: "exit status 1, expected 0".into(),
                sample,
            }),
            false => Ok(sample),
        }
    }
}

#[test]
fn a_selection_of_runs_is_not_faster() {
    let program = judged(&mut FailingHalf(0));
    let row = &program.rows[1];
    assert!(row.failed >= 10 && row.speed.measured >= 10, "{row:?}");
    assert!(row.speed.interval.unwrap().low > 1.2);
    assert_eq!(row.speed.decision, Decision::Undecided);
}

/// Two arms, of which the second takes twice as long in each fourth run.
struct SlowQuarter(u32);

impl Runner for SlowQuarter {
    fn run(&mut self, arm: usize, _warmup: bool) -> Result<Sample, RunnerError> {
        let mut sample = Sample::new();
        self.0 += u32::from(arm == 1);
        let is_slow = arm == 1 && self.0.is_multiple_of(4);
        sample.set("ops", if is_slow { 50.0 } else { 100.0 });
        Ok(sample)
    }
}

#[test]
fn an_arm_with_a_slow_quarter_is_not_the_same() {
    let program = judged(&mut SlowQuarter(0));
    let speed = &program.rows[1].speed;
    assert_eq!(speed.ratio, Some(1.0));
    assert_eq!(speed.decision, Decision::Undecided);
}

#[test]
fn decisions_follow_from_the_comparison() {
    let suite = suite(&SPEEDS, 10);
    let rows = &suite.programs[0].rows;
    let speeds: Vec<Decision> = rows.iter().map(|row| row.speed.decision).collect();
    let wanted = [
        Decision::Reference,
        Decision::Better,
        Decision::Worse,
        Decision::Same,
        Decision::NotMeasured,
    ];
    assert_eq!(speeds, wanted);
    assert!((rows[1].speed.ratio.unwrap() - 1.2).abs() < 0.02);
    assert_eq!(rows[2].memory.decision, Decision::Worse);
    assert_eq!(rows[2].memory.ratio, Some(2.0));
    assert_eq!(rows[1].memory.decision, Decision::Same);
    assert_eq!(rows[1].tail.as_ref().unwrap().decision, Decision::Same);
    assert_eq!(rows[4].failed, 10);
    assert_eq!(
        (rows[1].converged.median, rows[1].converged.measured),
        (Some(0.5), 10)
    );
    assert_eq!(rows[0].converged.decision, Decision::NotMeasured);

    // Three runs decide nothing, however far apart the values are, and give no mean.
    let few = suite_of(3);
    let told = SuiteView(&few).table(None);
    assert!(
        told.contains("undecided in 1") && !told.contains("geometric"),
        "{told}"
    );
    // The mean of one program is its ratio, with the same asymmetric interval.
    let interval = rows[1].speed.interval.unwrap();
    let mean = format!(
        "geometric mean {:.3}x ({:.3} to {:.3})",
        rows[1].speed.ratio.unwrap(),
        interval.low,
        interval.high
    );
    assert!(
        SuiteView(&suite).table(None).contains(&mean),
        "{mean}:\n{}",
        SuiteView(&suite).table(None)
    );
    let decisions = few.programs[0].rows.iter().skip(1);
    assert!(
        decisions
            .map(|row| row.speed.decision)
            .all(|decision| decision == Decision::Undecided)
    );
}

/// Twelve programs have two equally fast arms each, with noise that spans 20 %. The mean of all is more precise than any single ratio, and its
/// interval contains the true value about as often as it promises.
#[test]
fn the_mean_of_many_programs_has_an_interval() {
    let (suites, mut hits, mut narrower) = (60, 0, 0);
    for seed in 0..suites {
        let mut suite = Suite::new("Many", 0.03, told(2));
        for program in 0..12 {
            let design = Design::new(arms(2), metrics(), settings(8)).unwrap();
            let mut machine = Noisy(Xoshiro256PlusPlus::seed_from_u64(seed * 100 + program));
            let execution = execute(&design.schedule(), &mut machine, &mut |_| (), &|| false);
            let name = format!("program {program}");
            let mut one = SuiteProgram::new(name, "noise", Plan::default());
            one.take(Comparison::new(design, execution, Context::default()), 0.03);
            suite.programs.push(one);
        }
        let table = SuiteView(&suite).table(None);
        let told = table.split("geometric mean ").nth(1).unwrap();
        let told = told.split(['(', ')']).nth(1).unwrap();
        let mut ends = told.split(" to ").map(|end| end.parse::<f64>().unwrap());
        let (low, high) = (ends.next().unwrap(), ends.next().unwrap());
        hits += u32::from((low..=high).contains(&1.0));
        let widths = suite.programs.iter().map(|program| {
            let interval = program.rows[1].speed.interval.unwrap();
            interval.high / interval.low
        });
        let narrowest = widths.fold(f64::INFINITY, f64::min);
        narrower += u32::from(high / low < narrowest);
    }
    // 95 % of 60 are 57; fewer than 52 have a probability of 0.2 %.
    assert!((52..=60).contains(&hits), "{hits}");
    assert!(narrower >= 55, "{narrower}");
}

/// Two equal arms, with noise that spans a fifth.
struct Noisy(Xoshiro256PlusPlus);

impl Runner for Noisy {
    fn run(&mut self, _arm: usize, _warmup: bool) -> Result<Sample, RunnerError> {
        let mut sample = Sample::new();
        sample.set("ops", 100.0 * (0.9 + self.0.random::<f64>() * 0.2));
        Ok(sample)
    }
}

fn suite_of(runs: usize) -> Suite {
    suite(&SPEEDS[..4], runs)
}

/// Half the time is twice the speed.
#[test]
fn a_time_is_told_as_speed() {
    let speed = UserMetric::parse("ops:lower=x").unwrap();
    let metrics = SuiteProgram::metrics(Some(speed.metric()), None);
    let design = Design::new(arms(2), metrics, settings(8)).unwrap();
    let mut machine = Machine {
        arms: &[(100.0, 1e6), (50.0, 1e6)],
        noise: little_noise,
        rng: Xoshiro256PlusPlus::seed_from_u64(2),
    };
    let execution = execute(&design.schedule(), &mut machine, &mut |_| (), &|| false);
    let mut program = SuiteProgram::new("one", "database", Plan::default());
    program.take(Comparison::new(design, execution, Context::default()), 0.03);
    let figure = &program.rows[1].speed;
    assert!((figure.ratio.unwrap() - 2.0).abs() < 0.05, "{figure:?}");
    let interval = figure.interval.unwrap();
    assert!(interval.low <= 2.01 && interval.high >= 1.99 && interval.low <= interval.high);
    assert_eq!(figure.decision, Decision::Better);
    assert_eq!(program.rows[1].tail, None);
}

#[test]
fn a_document_is_read_again_and_wrong_ones_are_refused() {
    let suite = suite(&SPEEDS, 8);
    let text = suite.to_json().unwrap();
    assert!(Suite::is_one(&text));
    assert_eq!(Suite::from_json(&text).unwrap(), suite);
    // Rows are computed from the measurements, and the rows in the file are ignored.
    let forged = text.replace("\"decision\": \"worse\"", "\"decision\": \"better\"");
    assert_ne!(forged, text);
    assert_eq!(Suite::from_json(&forged).unwrap(), suite);

    let comparison = suite.programs[0].comparison.as_ref().unwrap();
    let comparison = comparison.to_json().unwrap();
    assert!(!Suite::is_one(&comparison) && !Suite::is_one("{") && !Suite::is_one("[]"));
    for (wrong, expected) in [
        (comparison, "superhue-compare/1"),
        ("{}".to_owned(), "no field `schema`"),
        (text.replace("\"two|2\"", "\"one\""), "two programs"),
        (
            text.replace(
                "\"smallest\": 0.03,\n  \"unfinished\"",
                "\"smallest\": -1,\n  \"unfinished\"",
            ),
            "smallest",
        ),
        (text.replace("\"arm\": 4,\n", "\"arm\": 9,\n"), "number 9"),
    ] {
        let error = Suite::from_json(&wrong).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn the_table_tells_all_of_it() {
    let mut suite = suite(&SPEEDS, 8);
    suite.unfinished = Some("the time is up".into());
    suite.arms.push(SuiteArm {
        name: "mimalloc".into(),
        options: "--env LD_PRELOAD=libmimalloc.so.2".into(),
        skipped: Some("cannot be preloaded (apt install libmimalloc2.0)".into()),
        obstacle: None,
    });
    suite.arms[1].obstacle = Some(Some("that takes CAP_SYS_NICE".into()));
    let table = SuiteView(&suite).table(None);
    for expected in [
        "1 of 3 programs measured, 8 runs of each arm",
        "one (database, by ops)",
        "faster",
        "slower",
        "0 of 8",
        "2.000x worse",
        "1.000x same",
        "500.0 ms",
        "`arm1`: faster in 1 of 1, slower in 0, same in 0, undecided in 0",
        "superhue made no huge pages in arm `arm1`: that takes CAP_SYS_NICE. The result shows nothing about its huge pages there",
        "arm `mimalloc` left out: cannot be preloaded (apt install libmimalloc2.0)",
        "two|2 not measured: there is no program `two` here (apt install two)",
        "not measured yet: three",
        "one under `arm4`: 8 of 8 runs failed and are not counted (first: out of luck)",
        "not finished: the time is up",
    ] {
        assert!(table.contains(expected), "{expected}:\n{table}");
    }
    assert!(!table.lines().any(|line| line.ends_with(' ')), "{table}");

    let markdown = SuiteView(&suite).markdown();
    assert!(markdown.contains("| **faster** |"), "{markdown}");
    assert!(markdown.contains(r"- two\|2 not measured"), "{markdown}");
    // A row has as many cells as there are headings.
    let bars = |line: &str| line.replace(r"\|", "").matches('|').count();
    let rows: Vec<&str> = markdown
        .lines()
        .filter(|line| line.starts_with('|'))
        .collect();
    assert_eq!(rows.len(), 2 + 5, "{markdown}");
    assert!(rows.iter().all(|row| bars(row) == 10), "{markdown}");

    let csv = SuiteView(&suite).csv().unwrap();
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let rows: Vec<std::collections::HashMap<String, String>> =
        reader.deserialize().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 5 * 4);
    let row = rows.iter().find(|row| row["arm"] == "arm1").unwrap();
    assert_eq!(
        (row["figure"].as_str(), row["decision"].as_str()),
        ("speed", "better")
    );
    // The export loses no digit.
    let ratio = suite.programs[0].rows[1].speed.ratio;
    assert_eq!(row["ratio"].parse().ok(), ratio);
    assert_eq!(row["reference"], "arm0");

    // Without measurements the table says so.
    suite.programs.remove(0);
    let table = SuiteView(&suite).table(None);
    assert!(
        table.contains("0 of 2 programs measured, no runs"),
        "{table}"
    );
    assert_eq!(SuiteView(&suite).csv().unwrap().lines().count(), 1);
}

/// A comparison that stops at any run and continues equals one that never stopped.
#[test]
fn what_is_gone_on_with_is_what_was_not_left() {
    let speeds = &SPEEDS[..3];
    let machine = || Machine {
        arms: speeds,
        noise: little_noise,
        rng: Xoshiro256PlusPlus::seed_from_u64(9),
    };
    let all = Schedule::new(3, 6, 1, 4);
    let whole = execute(&all, &mut machine(), &mut |_| (), &|| false);
    for first in 0..=all.turns().len() {
        let (mut machine, mut execution) = (machine(), Execution::default());
        // A shorter schedule is the beginning of a longer one.
        let short = Schedule::new(3, first.div_ceil(3).max(1), 1, 4);
        go_on(
            &mut execution,
            &short,
            first,
            &mut machine,
            &mut |_| (),
            &|| false,
        );
        assert_eq!(execution.records.len(), first);
        assert!(execution.follows(&all));
        execution.interrupted = true;
        go_on(
            &mut execution,
            &all,
            usize::MAX,
            &mut machine,
            &mut |_| (),
            &|| false,
        );
        assert_eq!(execution, whole);
    }
    assert!(!whole.follows(&Schedule::new(3, 6, 1, 5)));
    assert!(!whole.follows(&Schedule::new(3, 6, 0, 4)));
    assert!(!whole.follows(&Schedule::new(3, 5, 1, 4)));
}

//! Short programs of fixed work, many at a time: alone, under `superhue run`, and under `superhue run --pages resident`.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use superhue::model::ByteCount;
use superhue_workloads::access::median;

use super::{Context, Skip, gib, spread};
use crate::children::{self, CommandResult, RunningCommand};
use crate::plan;

/// Wall seconds that a program's work takes where each copy has a processor to itself.
const SECONDS: f64 = 2.0;

/// Number of times that everything is repeated, if there is time.
const ROUNDS: usize = 5;

const ARMS: [(&str, &[&str]); 3] = [
    ("stock", &[]),
    ("run", &["run", "--quiet"]),
    ("run resident", &["run", "--quiet", "--pages", "resident"]),
];

/// A program and its work: `pattern` makes a fixed number of passes; `dense` measures for a fixed time.
struct Program {
    name: &'static str,
    arguments: Vec<String>,
    /// Prefix of the output line with its speed, for a program with fixed time instead of fixed work.
    speed: Option<&'static str>,
}

/// Measurements of all copies of one program under one arm.
#[derive(Debug, Clone)]
struct ArmMeasurement {
    walls: Vec<f64>,
    speeds: Vec<f64>,
    own_cpu: Option<f64>,
    all_cpu: f64,
    huge: Option<f64>,
}

/// Measures, in each round, each program with each number of copies under each arm, in an order that changes.
pub fn run(context: &Context) -> Result<()> {
    let counts: Vec<(usize, ByteCount)> = plan::copies(context.cpus)
        .into_iter()
        .filter_map(|count| Some((count, plan::of_copy(context.usable, count)?)))
        .collect();
    if counts.is_empty() {
        return Err(Skip(format!("only {} of memory may be filled", context.usable)).into());
    }
    let mut done = 0;
    // Seconds of one run where each copy has a processor; of the slowest run so far.
    let mut seconds_a_run = SECONDS + 1.5;
    'rounds: for round in 0..ROUNDS {
        for number in 0..3 {
            for (count, size) in counts.iter().rev() {
                let program = program(context, number, *size)?;
                let queue = (*count as f64 / context.cpus as f64).max(1.0);
                if context.left().as_secs_f64() < seconds_a_run * queue * ARMS.len() as f64 * 1.1 {
                    if round == 0 {
                        context.note(format!(
                            "left out for want of time: {count} copies of {}",
                            program.name
                        ))?;
                        continue;
                    }
                    break 'rounds;
                }
                let mut found: Vec<(&str, ArmMeasurement)> = Vec::new();
                let begun = Instant::now();
                for at in 0..ARMS.len() {
                    let Some((arm, words)) = ARMS.get((at + round) % ARMS.len()) else {
                        continue;
                    };
                    match copies(context, &program, words, *count) {
                        Ok(of) => found.push((arm, of)),
                        Err(error) => context.note(format!(
                            "{count} copies of {} by {arm}: {error:#}",
                            program.name
                        ))?,
                    }
                }
                seconds_a_run =
                    seconds_a_run.max(begun.elapsed().as_secs_f64() / ARMS.len() as f64 / queue);
                tell(context, &program, *count, *size, round, &found)?;
                done += 1;
            }
        }
    }
    if done == 0 {
        bail!("there was no time for any program");
    }
    Ok(())
}

/// Returns one of three programs: random touches of all base pages, skewed touches, and random loads for a fixed time.
fn program(context: &Context, number: usize, size: ByteCount) -> Result<Program> {
    let size = size.0.to_string();
    if number == 2 {
        let arguments = [
            "dense",
            "--size",
            &size,
            "--settle",
            "0ms",
            "--seconds",
            "2",
        ]
        .map(str::to_owned)
        .to_vec();
        return Ok(Program {
            name: "dense",
            arguments,
            speed: Some("throughput_mops "),
        });
    }
    let (name, order) = if number == 0 {
        ("pattern random", "random")
    } else {
        ("pattern skewed", "skewed")
    };
    let base = ["pattern", "--size", &size, "--order", order]
        .map(str::to_owned)
        .to_vec();
    // As many passes as take `SECONDS` alone, in whole sets of 16.
    let mut tried = Command::new(context.workload_path());
    tried.args(&base).args(["--seconds", "0.1"]);
    let ended = children::run(
        &mut tried,
        (Instant::now() + Duration::from_secs(20)).min(context.until()),
    )?;
    let last: Value = ended
        .out
        .lines()
        .last()
        .and_then(|line| serde_json::from_str(line).ok())
        .with_context(|| ended.complaint())?;
    let number = |name: &str| {
        last[name]
            .as_f64()
            .with_context(|| format!("pattern does not say {name}"))
    };
    let sets = (SECONDS * number("sets")? / number("seconds")?)
        .ceil()
        .clamp(1.0, 10_000.0);
    let mut arguments = base;
    arguments.extend(["--passes".to_owned(), format!("{:.0}", sets * 16.0)]);
    Ok(Program {
        name,
        arguments,
        speed: None,
    })
}

/// Starts all copies, and waits for all of them.
fn copies(
    context: &Context,
    program: &Program,
    under: &[&str],
    count: usize,
) -> Result<ArmMeasurement> {
    let report = |copy: usize| Some(context.scratch.as_ref()?.join(format!("report-{copy}")));
    let mut running = Vec::new();
    for copy in 0..count {
        let mut command = Command::new(context.workload_path());
        if !under.is_empty() {
            command = context.superhue();
            command.args(under);
            if let Some(report) = report(copy) {
                let _ = std::fs::remove_file(&report);
                command.arg("--report").arg(report);
            }
            command.arg("--").arg(context.workload_path());
        }
        running.push(RunningCommand::start(command.args(&program.arguments))?);
    }
    let mut ended: Vec<CommandResult> = Vec::new();
    // Polls all copies, so that each end is noticed at once, in whatever order the copies end.
    while !running.is_empty() {
        let mut at = 0;
        while let Some(one) = running.get_mut(at) {
            if let Some(end) = one.ended()? {
                ended.push(end);
                drop(running.swap_remove(at));
            } else {
                at += 1;
            }
        }
        if Instant::now() >= context.until() {
            bail!("they did not end in time");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    if let Some(bad) = ended.iter().find(|end| !end.is_well()) {
        bail!("{}", bad.complaint());
    }
    let speeds = program.speed.map(|name| {
        let lines = ended.iter().flat_map(|end| end.out.lines());
        lines
            .filter_map(|line| line.strip_prefix(name)?.parse().ok())
            .collect()
    });
    let written = (0..count).filter(|_| !under.is_empty()).filter_map(report);
    let reports: Vec<Value> = written
        .filter_map(|path| serde_json::from_slice(&std::fs::read(path).ok()?).ok())
        .collect();
    let number = |report: &Value, pointer: &str| report.pointer(pointer).and_then(Value::as_f64);
    let own: Vec<f64> = reports
        .iter()
        .filter_map(|report| number(report, "/superhue/cpu_seconds"))
        .collect();
    let huge: Vec<f64> = reports
        .iter()
        .filter_map(|report| number(report, "/collapses/done"))
        .collect();
    Ok(ArmMeasurement {
        walls: ended.iter().map(|end| end.wall.as_secs_f64()).collect(),
        speeds: speeds.unwrap_or_default(),
        own_cpu: (own.len() == count).then(|| own.iter().sum()),
        all_cpu: ended.iter().map(CommandResult::cpu_seconds).sum(),
        huge: (huge.len() == count).then(|| huge.iter().sum()),
    })
}

/// Writes a row for each arm, with its ratio to `stock` in the same round: of wall time, or of inverse speed where time is fixed.
fn tell(
    context: &Context,
    program: &Program,
    count: usize,
    size: ByteCount,
    round: usize,
    found: &[(&str, ArmMeasurement)],
) -> Result<()> {
    let middle = |values: &[f64]| median(&mut values.to_vec());
    let stock = found
        .iter()
        .find(|(arm, _)| *arm == "stock")
        .map(|(_, of)| of);
    for (arm, of) in found {
        let ratio = stock.and_then(|stock| {
            let (own, base) = if program.speed.is_some() {
                (middle(&stock.speeds)?, middle(&of.speeds)?)
            } else {
                (middle(&of.walls)?, middle(&stock.walls)?)
            };
            (base > 0.0).then(|| own / base)
        });
        context.row(json!({
            "program": program.name, "copies": count, "gib_each": gib(size), "arm": arm, "round": round, "fixed": if program.speed.is_some() { "time" } else { "work" },
            "wall_seconds": spread(&of.walls), "speed": spread(&of.speeds), "time_against_stock": ratio,
            "cpu_seconds": of.all_cpu, "superhue_cpu_seconds": of.own_cpu, "collapses": of.huge,
        }))?;
    }
    Ok(())
}

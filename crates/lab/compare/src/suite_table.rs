//! A suite as text, Markdown and CSV: one table, made from the document alone.

use std::fmt::Write as _;

use superhue_measure::suite::{Decision, Figure, Row, SuiteProgram};

use crate::SuiteView;
use crate::columns::NOTHING;
use crate::columns::{self, Column, FittedColumns, text};
use crate::export::{code, escaped, number};
use crate::table::{NARROWEST, wrapped};
use superhue_measure::human::{Scale, clean, exact_percent, listed, ratio};
use superhue_measure::metric::{Builtin, Metric};
use superhue_measure::result::Comparison;
use superhue_measure::stats::bootstrap::Interval;

/// Least and greatest width of names of arms in the text, in characters.
const NAMES: [usize; 2] = [0, 20];

const HEADINGS: [&str; 8] = [
    "arm",
    "speed",
    "95 % interval",
    "verdict",
    "tail",
    "memory",
    "converged",
    "runs",
];

/// The verdict, and the speed with its interval, are never left out.
const COLUMNS: [Column; 8] = [
    text(HEADINGS[0]),
    columns::number(HEADINGS[1]).rank(1),
    columns::number(HEADINGS[2]),
    text(HEADINGS[3]),
    columns::number(HEADINGS[4]).rank(3),
    columns::number(HEADINGS[5]).rank(2),
    columns::number(HEADINGS[6]).rank(5),
    columns::number(HEADINGS[7]).rank(4),
];

/// Columns of the CSV file.
const CSV_COLUMNS: [&str; 14] = [
    "program",
    "kind",
    "arm",
    "figure",
    "metric",
    "median",
    "ratio",
    "ratio_low",
    "ratio_high",
    "decision",
    "measured",
    "missing",
    "failed",
    "reference",
];

type Cells = [String; 8];

/// Results of one arm over all programs.
#[derive(Default)]
struct Score<'a> {
    faster: usize,
    slower: usize,
    same: usize,
    undecided: usize,
    /// Ratios of speed, each with its 95 % interval and the name of the program.
    ratios: Vec<(f64, Interval, &'a str)>,
}

impl SuiteView<'_> {
    /// Formats the table, the summary of each arm, and the omissions with their reasons, for a terminal of `room` columns (at least 40); in full
    /// without one. Where the columns do not fit, some are left out, and where the others do not fit, each arm has two lines.
    #[must_use]
    pub fn table(&self, room: Option<usize>) -> String {
        let room = room.map(|room| room.max(NARROWEST));
        let folded = |text: &str| match room {
            Some(room) => wrapped(text, room, 0),
            None => format!("{text}\n"),
        };
        let measured: Vec<(&SuiteProgram, Vec<Cells>)> = (self.measured())
            .map(|program| (program, cells(program)))
            .collect();
        let rows = measured.iter().flat_map(|(_, rows)| rows);
        let fitted = FittedColumns::new(&COLUMNS, rows, NAMES, room);
        let mut out = folded(&clean(&self.title)) + &folded(&self.circumstances());
        if !measured.is_empty() {
            let _ = write!(out, "\n{}", fitted.headings());
        }
        for (program, rows) in &measured {
            out += &folded(&heading(program));
            for row in rows {
                out += &fitted.row(&row.each_ref().map(String::as_str));
            }
        }
        let left_out = fitted.left_out();
        let no_room = (!left_out.is_empty()).then(|| {
            format!(
                "no room for: {}. A wider terminal shows all columns, and --export-markdown keeps them",
                listed(&left_out, "and")
            )
        });
        let remarks = [self.summary(), self.remarks(), Vec::from_iter(no_room)].concat();
        for (index, text) in remarks.iter().enumerate() {
            out += if index == 0 { "\n" } else { "" };
            out += &folded(text);
        }
        out
    }

    /// Formats the same in the Markdown that GitHub and GitLab render.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut out = format!(
            "## {}\n\n{}\n",
            escaped(&clean(&self.title)),
            escaped(&self.circumstances())
        );
        if self.measured().next().is_some() {
            out += "\n| program |";
            for heading in HEADINGS {
                let _ = write!(out, " {heading} |");
            }
            out += "\n|:---|:---|---:|---:|:---|---:|---:|---:|---:|\n";
        }
        for program in self.measured() {
            for (index, (row, cells)) in program.rows.iter().zip(cells(program)).enumerate() {
                let name = if index == 0 {
                    heading(program)
                } else {
                    String::new()
                };
                let _ = write!(out, "| {} |", escaped(&name));
                for (column, cell) in cells.iter().enumerate() {
                    let is_shown = column == 3
                        && matches!(row.speed.decision, Decision::Better | Decision::Worse);
                    let mark = if is_shown { "**" } else { "" };
                    let _ = write!(out, " {mark}{}{mark} |", escaped(cell));
                }
                out.push('\n');
            }
        }
        let lines: Vec<String> = [self.summary(), self.remarks()].concat();
        if !lines.is_empty() {
            out.push('\n');
        }
        for text in &lines {
            let _ = writeln!(out, "- {}", escaped(text));
        }
        out += "\n### Programs and arms\n\n";
        for arm in &self.arms {
            let _ = writeln!(
                out,
                "- {}: {}",
                escaped(&clean(&arm.name)),
                as_code(&arm.options)
            );
        }
        out.push('\n');
        for program in &self.programs {
            let plan = &program.plan;
            let _ = write!(
                out,
                "- {}: {}",
                escaped(&clean(&program.name)),
                as_code(&plan.command)
            );
            if let Some(load) = &plan.load {
                let _ = write!(out, " under {}", as_code(load));
            }
            out.push('\n');
        }
        out
    }

    /// Formats a CSV line for each program, arm and figure, in base units and full precision (RFC 4180). Unknown values are empty.
    ///
    /// # Errors
    /// Writing to memory gives no reason for an error.
    pub fn csv(&self) -> Result<String, csv::Error> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(CSV_COLUMNS)?;
        for program in self.measured() {
            let reference = program.rows.first().map_or("", |row| &row.arm);
            for row in &program.rows {
                let figures = [
                    ("speed", Some(&row.speed)),
                    ("tail", row.tail.as_ref()),
                    ("memory", Some(&row.memory)),
                    ("converged", Some(&row.converged)),
                ];
                for (name, figure) in figures {
                    let Some(figure) = figure else { continue };
                    let interval = figure.interval;
                    writer.write_record([
                        program.name.clone(),
                        program.kind.clone(),
                        row.arm.clone(),
                        name.to_owned(),
                        figure.metric.clone(),
                        number(figure.median),
                        number(figure.ratio),
                        number(interval.map(|interval| interval.low)),
                        number(interval.map(|interval| interval.high)),
                        word(figure.decision).to_owned(),
                        figure.measured.to_string(),
                        figure.missing.to_string(),
                        row.failed.to_string(),
                        reference.to_owned(),
                    ])?;
                }
            }
        }
        let bytes = writer
            .into_inner()
            .map_err(|error| csv::Error::from(error.into_error()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(crate) fn measured(&self) -> impl Iterator<Item = &SuiteProgram> {
        (self.programs.iter()).filter(|program| !program.rows.is_empty())
    }

    /// Describes the measurement in one line.
    pub(crate) fn circumstances(&self) -> String {
        let measured = self.measured().count();
        let rounds = self.measured().flat_map(|program| &program.rows);
        let rounds: Vec<usize> = rounds.map(|row| row.runs).collect();
        let runs = match (rounds.iter().min(), rounds.iter().max()) {
            (Some(1), Some(1)) => "1 run of each arm".to_owned(),
            (Some(least), Some(most)) if least == most => format!("{least} runs of each arm"),
            (Some(least), Some(most)) => format!("{least} to {most} runs of each arm"),
            _ => "no runs".to_owned(),
        };
        let machines = self.machines();
        let machine = match machines.as_slice() {
            [] => String::new(),
            [(machine, _)] => format!("; {machine}"),
            several => format!("; on {} machines", several.len()),
        };
        format!(
            "{measured} of {} programs measured, {runs} in interleaved rounds; differences below {} count as equal{machine}",
            self.programs.len(),
            exact_percent(self.smallest),
        )
    }

    /// Returns the machines, in the order of the programs, and the programs measured on each.
    fn machines(&self) -> Vec<(String, Vec<String>)> {
        let mut machines: Vec<(String, Vec<String>)> = Vec::new();
        for program in self.measured() {
            let machine = program.comparison.as_ref().and_then(|comparison| {
                let of = |name: &str| comparison.machine.get(name)?.as_str().map(clean);
                Some(format!("{}, Linux {}", of("cpu")?, of("kernel")?))
            });
            let Some(machine) = machine else { continue };
            let name = clean(&program.name);
            match machines.iter_mut().find(|known| known.0 == machine) {
                Some((_, programs)) => programs.push(name),
                None => machines.push((machine, vec![name])),
            }
        }
        machines
    }

    /// Returns a line for each arm but the reference, with its results over all programs.
    pub(crate) fn summary(&self) -> Vec<String> {
        let lines = self.arms.iter().filter_map(|arm| {
            let mut score = Score::default();
            for program in self.measured() {
                let row = program.rows.iter().find(|row| row.arm == arm.name);
                if let Some(row) = row {
                    score.add(&row.speed, &program.name);
                }
            }
            score.told(&arm.name)
        });
        lines.collect()
    }

    /// Returns remarks on what the table lacks, and why.
    pub(crate) fn left_out(&self) -> Vec<String> {
        let (mut remarks, mut missing) = (Vec::new(), Vec::new());
        for arm in &self.arms {
            if let Some(why) = &arm.skipped {
                remarks.push(format!(
                    "arm `{}` left out: {}",
                    clean(&arm.name),
                    clean(why)
                ));
            }
        }
        for program in &self.programs {
            let name = clean(&program.name);
            match (&program.skipped, &program.comparison) {
                (Some(why), _) => remarks.push(format!("{name} not measured: {}", clean(why))),
                (None, None) => missing.push(name),
                (None, Some(comparison)) => {
                    for arm in 0..comparison.arms.len() {
                        let tally = comparison.tally(arm);
                        if let Some(why) = tally.why_failed {
                            remarks.push(format!(
                                "{name} under `{}`: {} of {} runs failed and are not counted (first: {})",
                                clean(&comparison.arms[arm].name),
                                tally.failed,
                                tally.good + tally.failed,
                                clean(why)
                            ));
                        }
                    }
                    if let Some(why) = &comparison.aborted {
                        remarks.push(format!("{name} given up before its end: {}", clean(why)));
                    }
                }
            }
        }
        if !missing.is_empty() {
            remarks.push(format!("not measured yet: {}", missing.join(", ")));
        }
        if let Some(why) = &self.unfinished {
            remarks.push(format!("not finished: {}", clean(why)));
        }
        remarks
    }

    /// Returns a sentence for each arm in which superhue made no huge pages although its policy asks for some.
    #[must_use]
    pub fn powerless(&self) -> Vec<String> {
        let found = self.arms.iter().filter_map(|arm| {
            let why = arm.obstacle.as_ref()?.as_ref()?;
            let (name, why) = (clean(&arm.name), clean(why));
            Some(format!(
                "superhue made no huge pages in arm `{name}`: {why}. The result shows nothing about its huge pages there"
            ))
        });
        found.collect()
    }

    /// Returns what was left out and which arms made no huge pages, and explanations of the table.
    fn remarks(&self) -> Vec<String> {
        let mut remarks = self.left_out();
        remarks.extend(self.powerless());
        let machines = self.machines();
        for (machine, programs) in machines.iter().filter(|_| machines.len() > 1) {
            remarks.push(format!("on {machine}: {}", programs.join(", ")));
        }
        let mut comparisons = self
            .measured()
            .filter_map(|program| program.comparison.as_ref());
        if comparisons.any(Comparison::is_evened) {
            remarks.push(
                "ratios leave out what slowed whole rounds, as the other arms tell it".to_owned(),
            );
        }
        if self.measured().next().is_some() {
            remarks.push(format!(
                "speed: times as fast as the first arm; behind a mean its 95 % interval, for these programs. tail, memory: times the \
                 first arm's. same: the 95 % interval lies within {}. \
                 ?: undecided. converged: until 95 % of the huge pages it ends with are there. Each program is judged by itself; of \
                 40, one has a wrong verdict on the average",
                exact_percent(self.smallest)
            ));
        }
        remarks
    }
}

impl<'a> Score<'a> {
    fn add(&mut self, speed: &Figure, program: &'a str) {
        match speed.decision {
            Decision::Better => self.faster += 1,
            Decision::Worse => self.slower += 1,
            Decision::Same => self.same += 1,
            Decision::Undecided => self.undecided += 1,
            Decision::Reference | Decision::NotMeasured => return,
        }
        // With too few runs for an interval there is no mean either.
        let told = speed.ratio.zip(speed.interval);
        let told = told.filter(|(ratio, interval)| *ratio > 0.0 && interval.low > 0.0);
        self.ratios
            .extend(told.map(|(ratio, interval)| (ratio, interval, program)));
    }

    fn told(mut self, arm: &str) -> Option<String> {
        let programs = self.faster + self.slower + self.same + self.undecided;
        if programs == 0 {
            return None;
        }
        let mut text = format!(
            "`{}`: faster in {} of {programs}, slower in {}, same in {}, undecided in {}",
            clean(arm),
            self.faster,
            self.slower,
            self.same,
            self.undecided
        );
        self.ratios.sort_by(|one, other| one.0.total_cmp(&other.0));
        if let (Some(least), Some(most)) = (self.ratios.first(), self.ratios.last()) {
            let (mean, interval) = geometric_mean(&self.ratios);
            let _ = write!(
                text,
                "; geometric mean {}x ({} to {}), {}x ({}) to {}x ({})",
                ratio(mean),
                ratio(interval.low),
                ratio(interval.high),
                ratio(least.0),
                clean(least.2),
                ratio(most.0),
                clean(most.2)
            );
        }
        Some(text)
    }
}

/// Returns the geometric mean of independently measured ratios, each with its 95 % interval, and the mean's own interval. There must be at least one
/// ratio.
///
/// The mean is about these programs only. Errors of programs are independent, so their variances add up: if h is the distance on a log scale of
/// an end of a ratio's interval from the ratio, the same end of the mean of n ratios is sqrt(sum of h^2) / n away from it. Each end has its own
/// distance, since intervals are asymmetric: the mean of one program has that program's interval. The error of a mean of many ratios is close to
/// normal whatever the errors of its parts are; with few programs the interval is as accurate as the intervals of the ratios.
fn geometric_mean(ratios: &[(f64, Interval, &str)]) -> (f64, Interval) {
    let count = ratios.len() as f64;
    let (mut logs, mut below, mut above) = (0.0, 0.0_f64, 0.0_f64);
    for (ratio, interval, _) in ratios {
        logs += ratio.ln();
        below += (ratio / interval.low).ln().powi(2);
        above += (interval.high / ratio).ln().powi(2);
    }
    let mean = logs / count;
    let interval = Interval {
        low: (mean - below.sqrt() / count).exp(),
        high: (mean + above.sqrt() / count).exp(),
    };
    (mean.exp(), interval)
}

/// Formats the program, its kind, and the metric of its speed.
fn heading(program: &SuiteProgram) -> String {
    let by = program.speed_metric().map(|metric| {
        if metric.name == Builtin::Wall.name() {
            "wall time".to_owned()
        } else {
            clean(&metric.label)
        }
    });
    format!(
        "{} ({}, by {})",
        clean(&program.name),
        clean(&program.kind),
        by.unwrap_or_default()
    )
}

/// Formats a program's lines.
fn cells(program: &SuiteProgram) -> Vec<Cells> {
    let metric = |figure: &Figure| -> Option<&Metric> {
        let mut metrics = program.comparison.as_ref()?.metrics.iter();
        metrics.find(|metric| metric.name == figure.metric)
    };
    let value = |figure: &Figure| match (figure.median, metric(figure)) {
        (Some(median), Some(metric)) => Scale::new(&metric.unit, median).show(median),
        _ => NOTHING.to_owned(),
    };
    let against = |figure: &Figure| match (figure.decision, figure.ratio) {
        (Decision::Reference, _) => value(figure),
        (Decision::NotMeasured, _) | (_, None) => NOTHING.to_owned(),
        (Decision::Undecided, Some(times)) => format!("{}x ?", ratio(times)),
        (decision, Some(times)) => format!("{}x {}", ratio(times), word(decision)),
    };
    let row = |row: &Row| {
        let speed = &row.speed;
        let times = match (speed.decision, speed.ratio) {
            (Decision::Reference, _) => value(speed),
            (_, Some(times)) => format!("{}x", ratio(times)),
            (_, None) => NOTHING.to_owned(),
        };
        let interval = speed.interval.map_or(NOTHING.to_owned(), |interval| {
            format!("{} to {}", ratio(interval.low), ratio(interval.high))
        });
        let verdict = match speed.decision {
            _ if row.failed > 0 && row.failed == row.runs => "failed",
            Decision::Better => "faster",
            Decision::Worse => "slower",
            Decision::NotMeasured => "not measured",
            other => word(other),
        };
        let runs = match row.failed {
            0 => row.runs.to_string(),
            failed => format!("{} of {}", row.runs - failed, row.runs),
        };
        let converged = match (value(&row.converged), row.converged.missing) {
            (value, 0) => value,
            (value, _) if value == NOTHING => value,
            // The remaining runs never converged, which the median does not show.
            (value, _) => format!("{value} in {}", row.converged.measured),
        };
        [
            clean(&row.arm),
            times,
            interval,
            verdict.to_owned(),
            row.tail.as_ref().map_or(NOTHING.to_owned(), against),
            against(&row.memory),
            converged,
            runs,
        ]
    };
    program.rows.iter().map(row).collect()
}

/// Returns a decision as one word.
const fn word(decision: Decision) -> &'static str {
    match decision {
        Decision::Reference => "reference",
        Decision::Better => "better",
        Decision::Worse => "worse",
        Decision::Same => "same",
        Decision::Undecided => "undecided",
        Decision::NotMeasured => "not-measured",
    }
}

/// Formats a text as Markdown code.
fn as_code(text: &str) -> String {
    code(&clean(text))
}

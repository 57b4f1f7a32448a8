//! The result for other programs: Markdown for the page of a change, CSV for spreadsheets and dataframes. Both are made from the document
//! alone, so old results can be exported, too.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::ComparisonView;
use crate::table::HEADINGS;
use superhue_measure::design::{Arm, groups};
use superhue_measure::human::clean;
use superhue_measure::metric::{Better, Metric, Unit};
use superhue_measure::stats::bootstrap::Interval;
use superhue_measure::summary::{ArmSummary, Estimate, ReferenceComparison, Verdict};

/// Columns of the CSV file before the parameter columns.
const FIRST: [&str; 4] = ["metric", "unit", "better", "arm"];

/// Columns of the CSV file after the parameter columns.
const REST: [&str; 27] = [
    "options",
    "reference",
    "measured",
    "missing",
    "failed",
    "median",
    "median_low",
    "median_high",
    "quartile_1",
    "quartile_3",
    "min",
    "max",
    "mad",
    "ratio",
    "ratio_low",
    "ratio_high",
    "paired_ratio",
    "paired_ratio_low",
    "paired_ratio_high",
    "difference",
    "difference_low",
    "difference_high",
    "p",
    "p_corrected",
    "verdict",
    "runs_needed",
    "why_missing",
];

impl ComparisonView<'_> {
    /// Formats a table for each metric, and the sentences, in the Markdown that GitHub and GitLab render.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut out = format!("## {}\n\n", code(&self.command_line()));
        let _ = writeln!(out, "{}", escaped(&self.circumstances()));
        let lines = self.gate_lines();
        for (index, line) in lines.iter().enumerate() {
            let text = line.trim_start();
            let start = match (index, line.len() - text.len()) {
                (0, _) => "\n- ",
                (_, 0) => "- ",
                _ => "  - ",
            };
            let _ = writeln!(out, "{start}{}", escaped(text));
        }
        out.push('\n');
        for text in self.sentences().iter().chain(&self.remarks()) {
            let _ = writeln!(out, "- {}", escaped(text));
        }
        for (metric, block) in self.metrics.iter().zip(self.blocks()) {
            let _ = write!(out, "\n### {}\n\n", escaped(&block.title));
            out += &self.markdown_table(metric, &block.rows);
            for note in &block.notes {
                let _ = write!(out, "\n{}\n", escaped(note));
            }
        }
        out
    }

    fn markdown_table(&self, metric: &Metric, rows: &[[String; 6]]) -> String {
        let scanned = self.parameters();
        let mut out = String::from("|");
        for heading in scanned.iter().map(String::as_str).chain(HEADINGS) {
            let _ = write!(out, " {} |", escaped(heading));
        }
        out += "\n|";
        out += &":---|".repeat(scanned.len() + 1);
        // As in the text table: numbers to the right, the verdict to the left.
        out += "---:|---:|---:|---:|:---|\n";
        for (index, row) in groups(&self.arms).into_iter().flatten().zip(rows) {
            let values = self.arms[index].parameters.values();
            out.push('|');
            for value in values {
                let _ = write!(out, " {} |", escaped(&clean(value)));
            }
            for (column, cell) in row.iter().enumerate() {
                let marked = column == 5 && self.is_judged(metric, index);
                let mark = if marked { "**" } else { "" };
                let _ = write!(out, " {mark}{}{mark} |", escaped(cell));
            }
            out.push('\n');
        }
        out
    }

    fn is_judged(&self, metric: &Metric, arm: usize) -> bool {
        let against = self.against(&metric.name, arm);
        against.is_some_and(|against| against.verdict.is_difference())
    }

    /// Formats a CSV line for each metric and arm, in base units and full precision (RFC 4180). Each parameter has a column `parameter_NAME`;
    /// unknown values are empty.
    ///
    /// # Errors
    /// Writing to memory gives no reason for an error.
    pub fn csv(&self) -> Result<String, csv::Error> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let scanned = self.parameters();
        let parameters = scanned.iter().map(|name| format!("parameter_{name}"));
        let names = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        let header = (names(&FIRST).into_iter().chain(parameters)).chain(names(&REST));
        writer.write_record(header)?;
        for (metric, summary) in self.metrics.iter().zip(&self.summaries) {
            for (arm, summary) in self.arms.iter().zip(&summary.arms) {
                writer.write_record(self.csv_record(metric, arm, summary, &scanned))?;
            }
        }
        let bytes = writer
            .into_inner()
            .map_err(|error| csv::Error::from(error.into_error()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn csv_record(
        &self,
        metric: &Metric,
        arm: &Arm,
        summary: &ArmSummary,
        scanned: &BTreeSet<String>,
    ) -> Vec<String> {
        let mut record = vec![
            metric.name.clone(),
            unit(&metric.unit),
            better(metric.better).to_owned(),
            arm.name.clone(),
        ];
        let values = scanned.iter().map(|name| arm.parameters.get(name));
        record.extend(values.map(|value| value.cloned().unwrap_or_default()));
        let reference = self.arms.get(self.reference_of(summary.arm));
        record.push(arm.options.clone());
        record.push(reference.map_or(String::new(), |arm| arm.name.clone()));
        let failed = self.tally(summary.arm).failed;
        record.extend([summary.measured, summary.missing, failed].map(|count| count.to_string()));
        let values = summary.values.as_ref();
        record.extend(estimate(values.map(|values| values.median)));
        record.extend(ends(values.map(|values| values.quartiles)));
        record.extend(ends(values.map(|values| values.range)));
        record.push(number(values.map(|values| values.mad)));
        record.extend(comparison(summary.against.as_ref()));
        record.push(summary.why_missing.clone().unwrap_or_default());
        record
    }

    /// Returns the names of the parameters; none without a scan.
    fn parameters(&self) -> BTreeSet<String> {
        let first = self.arms.first();
        first.map_or_else(BTreeSet::new, |arm| {
            arm.parameters.keys().cloned().collect()
        })
    }
}

/// Formats the columns from `ratio` to `runs_needed`.
fn comparison(against: Option<&ReferenceComparison>) -> Vec<String> {
    let mut cells = Vec::new();
    cells.extend(estimate(against.and_then(|against| against.ratio)));
    cells.extend(estimate(against.and_then(|against| against.paired_ratio)));
    cells.extend(estimate(against.and_then(|against| against.difference)));
    cells.push(number(against.and_then(|against| against.p)));
    cells.push(number(against.and_then(|against| against.p_corrected)));
    let (verdict, needed) = match against.map(|against| against.verdict) {
        None => ("reference", None),
        Some(Verdict::Better) => ("better", None),
        Some(Verdict::Worse) => ("worse", None),
        Some(Verdict::Higher) => ("higher", None),
        Some(Verdict::Lower) => ("lower", None),
        Some(Verdict::NoDifferenceShown) => ("no-difference-shown", None),
        Some(Verdict::TooFewRuns { needed }) => ("too-few-runs", Some(needed)),
        Some(Verdict::NotMeasured) => ("not-measured", None),
    };
    cells.push(verdict.to_owned());
    cells.push(needed.map_or(String::new(), |needed| needed.to_string()));
    cells
}

fn estimate(estimate: Option<Estimate>) -> [String; 3] {
    let [low, high] = ends(estimate.and_then(|estimate| estimate.interval));
    [number(estimate.map(|estimate| estimate.value)), low, high]
}

fn ends(interval: Option<Interval>) -> [String; 2] {
    [
        number(interval.map(|interval| interval.low)),
        number(interval.map(|interval| interval.high)),
    ]
}

/// Formats a number as the shortest text that reads back as the same number.
pub(crate) fn number(value: Option<f64>) -> String {
    value.map_or(String::new(), |value| value.to_string())
}

fn unit(unit: &Unit) -> String {
    match unit {
        Unit::Seconds => "seconds",
        Unit::Bytes => "bytes",
        Unit::Count => "count",
        Unit::Share => "share",
        Unit::PerSecond => "per-second",
        Unit::Plain(name) => name,
    }
    .to_owned()
}

const fn better(better: Better) -> &'static str {
    match better {
        Better::Lower => "lower",
        Better::Higher => "higher",
        Better::Neither => "neither",
    }
}

/// Escapes text so that Markdown shows it as it is: text from outside cannot make a table cell, link or tag. Between backquotes only table bars
/// have a meaning.
pub(crate) fn escaped(text: &str) -> String {
    // Markdown pairs runs of backquotes of equal length. An odd number of single ones, or a longer run, delimits nothing for sure: then all of them are
    // escaped.
    let is_paired = text.matches('`').count().is_multiple_of(2) && !text.contains("``");
    let mut out = String::with_capacity(text.len());
    let mut is_code = false;
    for character in text.chars() {
        let is_special = match character {
            '`' => {
                is_code = is_paired && !is_code;
                !is_paired
            }
            '|' => true,
            other => !is_code && r"\*_<>[]#~&".contains(other),
        };
        if is_special {
            out.push('\\');
        }
        out.push(character);
    }
    out
}

/// Formats the text as code, between as many backquotes as necessary.
pub(crate) fn code(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    let pad = if longest > 0 { " " } else { "" };
    format!("{fence}{pad}{text}{pad}{fence}")
}

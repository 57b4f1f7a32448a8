//! The result as plain text, for terminals, logs and mails.
//!
//! One block for each metric, one line for each arm; in narrow terminals some numbers are left out, or each arm has two lines. All blocks share their
//! column widths, so the eye can run down a column. The text has the width that the caller names and never contains escape sequences: a file or a pipe
//! gets the same text as the screen.

use std::fmt::Write as _;

use crate::ComparisonView;
use crate::columns::{Column, FittedColumns, NOTHING, number, text};
use superhue_measure::design::{arms_per_value, groups};
use superhue_measure::human::{Scale, clean, command_line, listed, numbered, ratio, shorten};
use superhue_measure::metric::{Better, Metric, Unit};
use superhue_measure::summary::{
    ArmSummary, Estimate, MetricSummary, ReferenceComparison, Verdict,
};

/// Narrowest width for which the text is laid out.
pub(crate) const NARROWEST: usize = 40;

/// Widest width: longer lines are hard to follow with the eye.
const WIDEST: usize = 120;

/// Least and greatest width of names.
const NAMES: [usize; 2] = [8, usize::MAX];

pub(crate) const HEADINGS: [&str; 6] = [
    "arm",
    "median",
    "spread",
    "ratio",
    "95 % interval",
    "verdict",
];

/// The verdict, and the change with its interval, are never left out.
const COLUMNS: [Column; 6] = [
    text(HEADINGS[0]),
    number(HEADINGS[1]).rank(2),
    number(HEADINGS[2]).rank(3),
    number(HEADINGS[3]).rank(1),
    number(HEADINGS[4]),
    text(HEADINGS[5]),
];

type Row = [String; 6];

/// Table of one metric.
pub(crate) struct Block {
    /// Title: `wall time (lower is better)`.
    pub(crate) title: String,
    /// Cells under [`HEADINGS`], one row for each arm.
    pub(crate) rows: Vec<Row>,
    /// Remarks on arms that lack values.
    pub(crate) notes: Vec<String>,
}

impl ComparisonView<'_> {
    /// Formats the sentences, the tables, the remarks and the lines of the gate. In a scan of parameters each table has a part for each value.
    ///
    /// `width` is that of the terminal in columns; it is clamped to 40 to 120. Long names of arms are shortened in the middle to fit, and numbered to
    /// distinguish them. Where the columns do not fit, the spread is left out, then the median; where the others do not fit, each arm has a line for its
    /// verdict and one for its numbers. A remark names the columns that are left out.
    ///
    /// - *spread*: half the interquartile range, as a share of the median.
    /// - *ratio*: median of the arm over that of the reference.
    #[must_use]
    pub fn table(&self, width: usize) -> String {
        self.text(width, &self.blocks().collect::<Vec<Block>>())
    }

    /// Formats as [`table`](Self::table) does, with the blocks of headline metrics only, and says which other metrics
    /// were measured.
    #[must_use]
    pub fn brief(&self, width: usize) -> String {
        let headlines = self.headline_metrics();
        let is_headline = |metric: &Metric| headlines.iter().any(|one| one.name == metric.name);
        let both = self.metrics.iter().zip(self.blocks());
        let (shown, others): (Vec<_>, Vec<_>) = both.partition(|(metric, _)| is_headline(metric));
        let blocks: Vec<Block> = shown.into_iter().map(|(_, block)| block).collect();
        let mut out = self.text(width, &blocks);
        if !others.is_empty() {
            let names = others.iter().map(|(metric, _)| clean(&metric.label));
            let names = listed(&names.collect::<Vec<_>>(), "and");
            let text =
                format!("Measured as well: {names}. --report keeps them, and --from shows them.");
            out.push('\n');
            out += &wrapped(&text, width.clamp(NARROWEST, WIDEST), 0);
        }
        out
    }

    fn text(&self, width: usize, blocks: &[Block]) -> String {
        let width = width.clamp(NARROWEST, WIDEST);
        let rows = blocks.iter().flat_map(|block| &block.rows);
        let fitted = FittedColumns::new(&COLUMNS, rows, NAMES, Some(width));
        let each = arms_per_value(&self.arms);
        let names = self.arms.iter().take(each).map(|arm| clean(&arm.name));
        let names: Vec<String> = names.collect();
        let labels = numbered(names.clone(), |name| {
            name.chars().count() > fitted.name_width()
        });
        let mut out = self.heading(width);
        if labels != names {
            for label in &labels {
                out += &wrapped(label, width, 2);
            }
        }
        for text in &self.sentences() {
            out.push('\n');
            out += &wrapped(text, width, 0);
        }
        for Block { title, rows, notes } in blocks {
            let _ = write!(out, "\n{}{}", wrapped(title, width, 0), fitted.headings());
            for group in groups(&self.arms) {
                let values = self.arms[group.start].values();
                if !values.is_empty() {
                    out += &wrapped(&clean(&values), width, 1);
                }
                for (row, label) in rows[group].iter().zip(&labels) {
                    let mut cells = row.each_ref().map(String::as_str);
                    cells[0] = label;
                    out += &fitted.row(&cells);
                }
            }
            for note in notes {
                out += &wrapped(note, width, 2);
            }
        }
        for remark in remarks_on_tables(blocks, &fitted) {
            out.push('\n');
            out += &wrapped(&remark, width, 0);
        }
        for text in &self.remarks() {
            out.push('\n');
            out += &wrapped(text, width, 0);
        }
        let gates = self.gate_lines();
        if !gates.is_empty() {
            out.push('\n');
        }
        for text in &gates {
            let indent = text.len() - text.trim_start().len();
            out += &wrapped(text.trim_start(), width, indent);
        }
        out
    }

    /// Returns the tables of the metrics, in their order.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Block> {
        let both = self.metrics.iter().zip(&self.summaries);
        both.map(move |(metric, summary)| {
            // Arms that readers compare share one scale; other values of a parameter may differ by any factor.
            let rows = groups(&self.arms).into_iter().flat_map(|group| {
                let arms = &summary.arms[group];
                let scale = scale(metric, arms);
                arms.iter().map(move |arm| self.row(arm, &scale))
            });
            Block {
                title: title(metric),
                rows: rows.collect(),
                notes: self.notes(summary),
            }
        })
    }

    fn heading(&self, width: usize) -> String {
        let command = shorten(&self.command_line(), width);
        format!("{command}\n{}", wrapped(&self.circumstances(), width, 0))
    }

    /// Returns the command as a user would type it.
    pub(crate) fn command_line(&self) -> String {
        command_line(&self.command)
    }

    /// Describes the measurement in one line.
    pub(crate) fn circumstances(&self) -> String {
        let settings = &self.settings;
        let reference = self.arms.get(settings.reference);
        let count = |n: usize, what: &str| {
            let plural = if n == 1 { "" } else { "s" };
            format!("{n} {what}{plural}")
        };
        let values = match groups(&self.arms).len() {
            _ if !self.is_scan() => String::new(),
            n => format!(" at {}", count(n, "value")),
        };
        let warmup = match settings.warmup {
            0 => "without warm-up".to_owned(),
            n => format!("after {}", count(n, "warm-up")),
        };
        format!(
            "{}{values}, {} per arm{} {warmup}, in interleaved rounds, seed {}; reference: `{}`",
            count(arms_per_value(&self.arms), "arm"),
            count(settings.runs, "run"),
            if self.is_scan() { " and value" } else { "" },
            settings.seed,
            reference.map_or(String::new(), |arm| clean(&arm.name)),
        )
    }

    fn row(&self, summary: &ArmSummary, scale: &Scale) -> Row {
        let name = self.arms.get(summary.arm).map_or("", |arm| &arm.name);
        let nothing = || NOTHING.to_owned();
        let (median, spread) = match &summary.values {
            None => (nothing(), nothing()),
            Some(values) => {
                let median = values.median.value;
                let half = (values.quartiles.high - values.quartiles.low) / 2.0;
                let spread = if half == 0.0 {
                    "±0 %".to_owned()
                } else if median == 0.0 {
                    format!("±{}", scale.number(half))
                } else {
                    format!("±{:.1} %", half / median.abs() * 100.0)
                };
                (scale.show(median), spread)
            }
        };
        let (ratio_text, interval) = match &summary.against {
            None => (nothing(), nothing()),
            Some(against) => sizes(against, scale),
        };
        let verdict = self.verdict_text(summary);
        [clean(name), median, spread, ratio_text, interval, verdict]
    }

    /// Returns the verdict on an arm for a table or plot; about 19 characters at most.
    pub(crate) fn verdict_text(&self, summary: &ArmSummary) -> String {
        let measured = summary.values.is_some();
        let text = match &summary.against {
            None if measured => "reference",
            None => "not measured",
            Some(against) => match against.verdict {
                Verdict::Better => "better",
                Verdict::Worse => "worse",
                Verdict::Higher => "higher",
                Verdict::Lower => "lower",
                Verdict::NoDifferenceShown if against.is_beyond_chance() => {
                    return format!("differs by < {} %", self.smallest_percent());
                }
                Verdict::NoDifferenceShown => "no difference shown",
                Verdict::TooFewRuns { needed } => {
                    return format!("needs {needed} runs");
                }
                Verdict::NotMeasured if measured => "no reference",
                Verdict::NotMeasured => "not measured",
            },
        };
        text.to_owned()
    }

    /// Returns remarks on arms that lack values, with the reason, because the remaining values may be a flattering selection.
    fn notes(&self, summary: &MetricSummary) -> Vec<String> {
        let lacking = summary.arms.iter().filter(|arm| arm.missing > 0);
        lacking
            .map(|arm| {
                let name = self.title(arm.arm);
                let runs = arm.measured + arm.missing;
                let why = clean(arm.why_missing.as_deref().unwrap_or("no reason given"));
                format!(
                    "{name}: measured in {} of {runs} good runs ({why})",
                    arm.measured
                )
            })
            .collect()
    }
}

/// Formats the title of a table: `wall time (lower is better)`.
fn title(metric: &Metric) -> String {
    let direction = match metric.better {
        Better::Lower => " (lower is better)",
        Better::Higher => " (higher is better)",
        Better::Neither => "",
    };
    format!("{}{direction}", clean(&metric.label))
}

/// Returns the scale that suits the medians of all these arms.
fn scale(metric: &Metric, arms: &[ArmSummary]) -> Scale {
    let described = arms.iter().filter_map(|arm| arm.values);
    let medians: Vec<f64> = described.map(|values| values.median.value).collect();
    let largest = medians.iter().fold(0.0f64, |most, m| most.max(m.abs()));
    let scale = Scale::new(&metric.unit, largest);
    let countable = matches!(metric.unit, Unit::Count | Unit::Plain(_) | Unit::Bytes);
    if countable && medians.iter().all(|median| median.fract() == 0.0) {
        scale.whole()
    } else {
        scale
    }
}

/// Formats the columns *ratio* and *95 % interval*.
fn sizes(against: &ReferenceComparison, scale: &Scale) -> (String, String) {
    let between = |estimate: Estimate, show: &dyn Fn(f64) -> String| {
        let ends = estimate
            .interval
            .map(|ends| (show(ends.low), show(ends.high)));
        ends.map_or(NOTHING.to_owned(), |(low, high)| format!("{low} to {high}"))
    };
    match (against.ratio, against.difference) {
        (Some(estimate), _) => (ratio(estimate.value), between(estimate, &ratio)),
        (None, Some(difference)) if difference.value != 0.0 => {
            let signed = |value| scale.signed(value);
            (NOTHING.to_owned(), between(difference, &signed))
        }
        // Both medians are 0, or one is unknown.
        (None, _) => (NOTHING.to_owned(), NOTHING.to_owned()),
    }
}

/// Explains what the tables show in another way, or not at all.
fn remarks_on_tables(blocks: &[Block], fitted: &FittedColumns<6>) -> Vec<String> {
    let mut remarks = Vec::new();
    let mut rows = blocks.iter().flat_map(|block| &block.rows);
    if rows.any(has_difference) {
        remarks.push(
            "An interval with signs is one of the difference: no ratio to 0 exists.".to_owned(),
        );
    }
    let left_out = fitted.left_out();
    if !blocks.is_empty() && !left_out.is_empty() {
        remarks.push(format!(
            "No room for: {}. A wider terminal shows all columns, and --export-markdown keeps them.",
            listed(&left_out, "and")
        ));
    }
    remarks
}

fn has_difference(row: &Row) -> bool {
    row[3] == NOTHING && row[4] != NOTHING
}

/// Breaks a text at spaces. Indents each line, and continuation lines by two more.
pub(crate) fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let mut out = " ".repeat(indent);
    let mut column = indent;
    for (index, word) in text.split(' ').enumerate() {
        let length = word.chars().count();
        if index > 0 && column + 1 + length > width {
            let _ = write!(out, "\n{}", " ".repeat(indent + 2));
            column = indent + 2;
        } else if index > 0 {
            out.push(' ');
            column += 1;
        }
        out += word;
        column += length;
    }
    out.push('\n');
    out
}

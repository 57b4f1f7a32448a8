//! The result as text, from the document alone.

use std::fmt::Write as _;

use crate::document::isolation::Isolation;
use crate::document::{ArmResult, Document, PointResult, SweepResult};
use crate::findings::{factor, findings, times};

/// Tables of all results, the findings, and the skipped parts.
#[must_use]
pub fn text(document: &Document) -> String {
    let mut out = String::new();
    for sweep in &document.sweeps {
        let _ = writeln!(
            out,
            "{}: {} [{}]\n",
            sweep.workload, sweep.about, sweep.figure.unit
        );
        out.push_str(&columns(&sweep_rows(sweep)));
        out.push('\n');
    }
    if let Some(isolation) = &document.isolation {
        let _ = writeln!(
            out,
            "isolation: CPU time of a victim's job while a partner has the CPU in between [µs]\n"
        );
        out.push_str(&columns(&isolation_rows(isolation)));
        out.push('\n');
    }
    for said in findings(document) {
        let _ = writeln!(out, "{said}");
    }
    for skipped in &document.skipped {
        let _ = writeln!(out, "skipped: {}: {}", skipped.what, skipped.reason);
    }
    out
}

type Row = Vec<String>;

fn row(cells: &[&str]) -> Row {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

fn sweep_rows(sweep: &SweepResult) -> Vec<Row> {
    let mut rows = vec![row(&[
        "size",
        "KiB",
        "of cache",
        "arm",
        "median",
        "p5",
        "p95",
        "p95/p5",
        "gain",
        "gain over unlucky 10 %",
        "pages placed",
    ])];
    for point in &sweep.points {
        rows.extend(point.arms.iter().map(|arm| arm_row(point, arm)));
    }
    rows
}

fn arm_row(point: &PointResult, arm: &ArmResult) -> Row {
    let size = &point.point;
    let mut cells = vec![
        size.label.clone(),
        format!("{}", size.bytes >> 10),
        format!("{:.0} % L{}", size.share * 100.0, size.level),
        arm.arm.to_string(),
    ];
    let Some(summary) = &arm.summary else {
        cells.push("not measured".to_owned());
        return cells;
    };
    let dash = || "-".to_owned();
    cells.extend([
        number(summary.median.value),
        number(summary.p5),
        number(summary.p95),
        summary
            .spread
            .map_or_else(dash, |spread| format!("{spread:.2}")),
        summary.gain.map_or_else(dash, times),
        summary.gain_unlucky.map_or_else(dash, factor),
        placed(arm),
    ]);
    cells
}

/// Share of pages that the arm placed as intended.
fn placed(arm: &ArmResult) -> String {
    let pages = &arm.pages;
    let wanted = pages.placed + pages.superpages;
    match (wanted, wanted + pages.dealt) {
        (0, _) => "-".to_owned(),
        (wanted, all) => format!("{:.1} %", wanted as f64 / all as f64 * 100.0),
    }
}

fn isolation_rows(isolation: &Isolation) -> Vec<Row> {
    let mut rows = vec![row(&[
        "victim",
        "KiB",
        "partner",
        "placement",
        "median",
        "p99",
        "p99.9",
        "worst",
        "median/alone",
        "p99.9/alone",
        "alone/kernel's",
    ])];
    for case in &isolation.cases {
        let partner = match case.partner_cpu {
            Some(cpu) => format!("{} on CPU {cpu}", case.partner),
            None => case.partner.clone(),
        };
        let mut cells = vec![
            case.victim.clone(),
            format!("{}", case.victim_bytes >> 10),
            partner,
            case.placement.name().to_owned(),
        ];
        let Some(summary) = &case.summary else {
            cells.push("not measured".to_owned());
            rows.push(cells);
            continue;
        };
        let micros = |seconds: f64| number(seconds * 1e6);
        let dash = || "-".to_owned();
        cells.extend([summary.median, summary.p99, summary.p999, summary.worst].map(micros));
        cells.extend(
            [summary.median_disturbance, summary.p999_disturbance]
                .map(|d| d.map_or_else(dash, times)),
        );
        cells.push(summary.cost_alone.map_or_else(dash, factor));
        rows.push(cells);
    }
    rows
}

/// Formats a number with three or four digits.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Formats rows as columns of equal width: the first four left-aligned, numbers right-aligned.
fn columns(rows: &[Row]) -> String {
    const LEFT: usize = 4;
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, width))| {
                if column < LEFT {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
        out.push_str(cells.collect::<Vec<String>>().join("  ").trim_end());
        out.push('\n');
    }
    out
}

//! Text form of a figure.

use std::fmt::Write as _;

use crate::document::{Document, Figure};
use crate::number::number;

/// Writes all figures as text.
#[must_use]
pub fn text(document: &Document) -> String {
    let mut text = String::new();
    for figure in &document.figures {
        let _ = writeln!(
            text,
            "{} · {}{}{}\n{}\n{}\n",
            figure.name,
            figure.paper,
            if figure.paper.is_empty() { "" } else { " · " },
            figure.machine,
            figure.title,
            figure.workload
        );
        text.push_str(&rows(figure, "  "));
        text.push('\n');
        for said in &figure.verdict {
            let _ = writeln!(text, "  {said}");
        }
        for said in &figure.losing {
            let _ = writeln!(text, "  Loses: {said}");
        }
        // The page describes the limits of a paper's figure; this one has no page.
        if figure.name == crate::program::NAME {
            for said in &figure.not_modelled {
                let _ = writeln!(text, "  Not modelled, or assumed: {said}");
            }
        }
        text.push('\n');
    }
    let _ = writeln!(text, "{}", placed(document));
    text
}

/// Describes the frames that were used.
#[must_use]
pub fn placed(document: &Document) -> String {
    let arms = || {
        document
            .figures
            .iter()
            .flat_map(|figure| &figure.points)
            .flat_map(|point| &point.arms)
    };
    let (draws, real) = arms().fold((0, 0), |sum, arm| (sum.0 + arm.draws, sum.1 + arm.real));
    let points = document.figures.iter().flat_map(|figure| &figure.points);
    if points.clone().count() > 0 && points.clone().all(|point| point.traced.is_some()) {
        return format!("All {draws} draws were drawn by the kernels' rules.");
    }
    if document.frames.is_empty() {
        return format!(
            "All {draws} draws were drawn by the kernels' rules: there are no files of frames that real kernels dealt (make them with kernel/frames)."
        );
    }
    format!(
        "{real} of {draws} draws are of real kernels, the others drawn; points of a figure share processes. The JSON has files and sums."
    )
}

/// Cells of a figure's table, header first: misses, TLB, value and the paper's number.
#[must_use]
pub fn cells(figure: &Figure) -> Vec<Vec<String>> {
    let worst = if figure.higher_is_better {
        "worst (least)"
    } else {
        "worst (most)"
    };
    let misses = match &figure.cache {
        Some(cache) => format!("{cache} misses /1000"),
        None => "misses /1000".to_owned(),
    };
    let header = [
        &figure.axis,
        "arm",
        "draws",
        &misses,
        "most",
        "TLB misses /1000",
        &figure.value,
        "5 % - 95 %",
        worst,
        "paper",
    ];
    let mut rows = vec![header.iter().map(|cell| (*cell).to_owned()).collect()];
    for point in &figure.points {
        for arm in &point.arms {
            rows.push(vec![
                point.label.clone(),
                arm.arm.clone(),
                if arm.real == arm.draws {
                    arm.draws.to_string()
                } else {
                    format!("{} ({} drawn)", arm.draws, arm.draws - arm.real)
                },
                number(arm.misses.median),
                number(arm.misses.most),
                number(arm.walks.median),
                number(arm.value.median),
                format!("{} - {}", number(arm.value.p5), number(arm.value.p95)),
                number(arm.value.worst(figure.higher_is_better)),
                arm.paper.map_or(String::new(), number),
            ]);
        }
    }
    rows
}

fn rows(figure: &Figure, indent: &str) -> String {
    let cells = cells(figure);
    let widths: Vec<usize> = (0..cells[0].len())
        .map(|column| {
            cells
                .iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in &cells {
        let mut line = indent.to_owned();
        for (column, cell) in row.iter().enumerate() {
            let room = widths[column] - cell.chars().count();
            if column < 2 {
                let _ = write!(line, "{cell}{}  ", " ".repeat(room));
            } else {
                let _ = write!(line, "{}{cell}  ", " ".repeat(room));
            }
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

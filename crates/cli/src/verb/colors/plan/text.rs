//! A plan as text.

use superhue::model::words;

use super::document::{Document, PlanCost, PlanRefusal, PlannedTask};
use crate::output::{fitted, prose};
use crate::sheet::{Sheet, left, right};

/// Returns the whole result as text, ready to be printed.
pub(super) fn text(document: &Document, wide: bool) -> String {
    match &document.refusal {
        Some(refusal) => refused(document, refusal, wide),
        None => planned(document, wide),
    }
}

fn planned(document: &Document, wide: bool) -> String {
    let mut sheet = Sheet::new(&[
        left("TASK").cut(),
        left("CPU"),
        left("COLORS"),
        right("NUMBER"),
        right("LEAST").rank(1),
        right("COST OF A RUN").rank(2),
        right("OF DEADLINE").rank(3),
    ]);
    for task in &document.tasks {
        sheet.row(row(task));
    }
    for (name, colors) in [
        ("(others)", &document.others),
        ("(unused)", &document.unused),
    ] {
        if let Some(colors) = colors {
            sheet.row([name, "", colors]);
        }
    }
    let mut text = fitted(&sheet, wide);
    text += &prose(&format!("\n{}\n", sentence(document)));
    if let Some(cost) = &document.cost {
        text += &prose(&format!("{}\n", sum(cost)));
    }
    if let Some(worst) = document.worst {
        text += &prose(&format!(
            "The largest share of a deadline is {}.\n",
            percent(worst)
        ));
    }
    text += &commands(document);
    if let Some(others) = &document.others {
        text += &prose(&format!(
            "\nOther programs leave the colors of tasks alone only if they are placed, too: --colors {others}.\n"
        ));
    }
    text
}

fn row(task: &PlannedTask) -> [String; 7] {
    let known = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let cost = task.cost.zip(task.unit);
    [
        task.name.clone(),
        task.cpus.clone(),
        task.colors.clone(),
        task.count.to_string(),
        task.least.to_string(),
        known(cost.map(|(cost, unit)| quantity(cost, unit))),
        known(task.of_deadline.map(percent)),
    ]
}

/// The model of the schedule and the number of colors.
fn sentence(document: &Document) -> String {
    let colors = document.colors;
    let from = document.oracle.map_or_else(
        || format!("{colors} colors (--of)"),
        |oracle| format!("{colors} colors by oracle {oracle}"),
    );
    let schedule = match document.schedule {
        "cyclic" => {
            "on one CPU a run ends before another begins, so its tasks share colors and each run starts with a cold cache"
        }
        _ => "tasks on one CPU interrupt each other, so they share no color",
    };
    format!("{from}; schedule {}: {schedule}.", document.schedule)
}

fn sum(cost: &PlanCost) -> String {
    let per = match cost.per {
        "second" => "per second",
        _ => "in a run of each task",
    };
    let value = quantity(cost.value, cost.unit);
    match cost.is_best {
        true => format!("Predicted: {value} {per}; no assignment has less."),
        false => format!(
            "Predicted: {value} {per}; the best assignment has at least {}.",
            quantity(cost.bound, cost.unit)
        ),
    }
}

/// Commands and rules, to be pasted: a break at the end of a terminal's line would make others of them.
fn commands(document: &Document) -> String {
    let mut text = String::new();
    let commands: Vec<&str> = (document.tasks.iter())
        .filter_map(|task| task.command.as_deref())
        .collect();
    if !commands.is_empty() {
        text += "\nTo start tasks with their colors (as root):\n\n";
        commands.iter().for_each(|lines| text += &indented(lines));
    }
    let rules: Vec<&str> = (document.tasks.iter())
        .filter_map(|task| task.rule.as_deref())
        .collect();
    if !rules.is_empty() {
        text += "\nRules of the daemon:\n";
        for rule in rules {
            text.push('\n');
            rule.lines().for_each(|line| text += &indented(line));
        }
    }
    text
}

fn indented(line: &str) -> String {
    format!("  {}\n", words::harmless_lines(line))
}

fn refused(document: &Document, refusal: &PlanRefusal, wide: bool) -> String {
    let mut sheet = Sheet::new(&[left("TASK").cut(), left("CPU"), right("LEAST")]);
    for task in &refusal.tasks {
        sheet.row([task.name.clone(), task.cpus.clone(), task.least.to_string()]);
    }
    let mut text = fitted(&sheet, wide);
    text += &prose(&format!("\n{}\n", sentence(document)));
    text += &prose(&format!("They do not fit: {}.\n", refusal.reason));
    if !refusal.changes.is_empty() {
        text += "\nEach of these alone makes room:\n";
        for change in &refusal.changes {
            text += &prose(&format!("  {change}\n"));
        }
    }
    text
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A cost with its unit: three significant digits of a time, whole misses.
fn quantity(value: f64, unit: &str) -> String {
    if unit == "misses" {
        return format!("{value:.0} misses");
    }
    let (value, unit) = match value {
        _ if value >= 1.0 => (value, "s"),
        _ if value >= 1e-3 => (value * 1e3, "ms"),
        _ => (value * 1e6, "us"),
    };
    let digits = match value {
        _ if value >= 100.0 => 0,
        _ if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_have_their_units() {
        for (value, unit, text) in [
            (12_345.4, "misses", "12345 misses"),
            (0.0, "seconds", "0.00 us"),
            (0.000_25, "seconds", "250 us"),
            (0.0042, "seconds", "4.20 ms"),
            (12.34, "seconds", "12.3 s"),
        ] {
            assert_eq!(quantity(value, unit), text);
        }
        assert_eq!(percent(0.125), "12.5 %");
    }
}

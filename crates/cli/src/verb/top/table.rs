//! One table, for output without a terminal.

use comfy_table::CellAlignment;
use superhue::model::counted;

use crate::output::{table, text_of};
use crate::terminal::printable;
use crate::top_args::ViewName;

use super::columns::{self, Column};
use super::daemon::DaemonState;
use super::draw;
use super::gathered::TopSnapshot;
use super::rows::Rows;

/// Returns the whole table, the rows with most memory first.
#[must_use]
pub fn text(view: ViewName, gathered: &TopSnapshot, asked: &DaemonState, rows: &Rows) -> String {
    let (title, columns) = match view {
        ViewName::Services => ("SERVICE", columns::of_services(rows)),
        ViewName::Processes => ("PROCESS", columns::of_processes(rows)),
        ViewName::Objects => ("SHARED OBJECT", columns::of_objects()),
    };
    // All figures are as old as this run.
    let columns: Vec<Column> = columns
        .into_iter()
        .filter(|it| *it != Column::Age)
        .collect();
    let titles = columns.iter().map(|column| column.title());
    let mut shown = table(&[&[title], &titles.collect::<Vec<_>>()[..]].concat());
    let line = |name: &str, texts: Vec<String>| {
        let texts = texts.iter().map(|text| printable(text));
        [printable(name)]
            .into_iter()
            .chain(texts)
            .collect::<Vec<_>>()
    };
    if view == ViewName::Objects {
        for object in &rows.objects {
            let texts = columns.iter().map(|it| it.text_of_object(object)).collect();
            shown.add_row(line(&object.name, texts));
        }
    } else {
        let all = if view == ViewName::Services {
            &rows.services
        } else {
            &rows.processes
        };
        let mut all: Vec<_> = all.iter().collect();
        all.sort_by(|a, b| Column::Resident.order(a, b));
        for row in all {
            let texts = columns.iter().map(|it| it.text(row)).collect();
            shown.add_row(line(&row.name, texts));
        }
    }
    for (index, column) in columns.iter().enumerate() {
        if let Some(shown) = shown.column_mut(index + 1).filter(|_| !column.is_left()) {
            shown.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = text_of(&shown);
    text.push('\n');
    let mut notes = vec![draw::machine(gathered), draw::daemon(asked)];
    if let Some((_, Err(why))) = &gathered.objects {
        notes.push(format!("objects  {why}"));
    }
    if let Some(Err(why)) = &gathered.heat.tracker {
        notes.push(format!("tracking {why}"));
    }
    for (count, what) in [
        (rows.denied, "may not be read"),
        (rows.failed, "could not be read"),
    ] {
        if count > 0 {
            notes.push(format!(
                "{count} of {} {what}",
                counted(rows.processes.len() as u64, "process")
            ));
        }
    }
    for note in notes {
        text += &printable(&note);
        text.push('\n');
    }
    text
}

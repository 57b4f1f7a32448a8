//! One table, for output without a terminal.

use superhue::model::counted;

use crate::output::{fitted, prose};
use crate::sheet::{self, Sheet};
use crate::terminal::printable;
use crate::top_args::ViewName;

use super::columns::{self, Column};
use super::draw;
use super::record::entry::ShownView;

/// Returns the whole table, the rows with most memory first. The position in the record follows, if it is from one.
#[must_use]
pub fn text(view: ViewName, shown: ShownView<'_>, recorded: Option<&str>, wide: bool) -> String {
    let ShownView {
        gathered,
        asked,
        rows,
    } = shown;
    let (title, columns) = match view {
        ViewName::Services => ("SERVICE", columns::of_services(rows)),
        ViewName::Processes => ("PROCESS", columns::of_processes(rows)),
        ViewName::Objects => ("SHARED OBJECT", columns::of_objects()),
    };
    // Unless they are from a record, all figures are as old as this run.
    let is_shown = |column: &Column| *column != Column::Age || recorded.is_some();
    let columns: Vec<Column> = columns.into_iter().filter(is_shown).collect();
    let mut sheet = Sheet::new(&layout(title, &columns));
    let line = |name: &str, texts: Vec<String>| {
        std::iter::once(name.to_owned())
            .chain(texts)
            .collect::<Vec<_>>()
    };
    if view == ViewName::Objects {
        for object in &rows.objects {
            let texts = columns.iter().map(|it| it.text_of_object(object)).collect();
            sheet.row(line(&object.name, texts));
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
            sheet.row(line(&row.name, texts));
        }
    }
    let mut text = fitted(&sheet, wide);
    text.push('\n');
    let mut notes: Vec<String> = recorded.iter().map(|at| format!("replay   {at}")).collect();
    notes.extend([draw::machine(gathered), draw::daemon(asked)]);
    if let Some((_, Err(why))) = &gathered.objects {
        notes.push(format!("objects  {why}"));
    } else if view == ViewName::Objects && recorded.is_some() && gathered.objects.is_none() {
        notes.push(format!("objects  {}", draw::NO_OBJECTS));
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
        text += &prose(&format!("{}\n", printable(&note)));
    }
    text
}

/// Returns the columns of the table, and their order of leaving a narrow terminal, as on the screen.
fn layout(title: &'static str, columns: &[Column]) -> Vec<sheet::Column> {
    let others = columns.iter().map(|column| {
        let of_table = match column.is_left() {
            true => sheet::left(column.title()).cut(),
            false => sheet::right(column.title()),
        };
        of_table.rank(column.rank())
    });
    std::iter::once(sheet::left(title).cut())
        .chain(others)
        .collect()
}

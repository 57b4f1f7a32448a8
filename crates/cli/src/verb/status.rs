//! `superhue status`.

use serde::Serialize;
use superhue::procfs::{ReadError, Roots};
use superhue::why::Machine;
use superhue::{
    ColoringStatus, MappingStatus, ProcessStatus, SharedObject, coloring_of_machine,
    shared_objects, status_explained, status_of, status_of_all,
};

use super::{members, status_colors, status_why};
use crate::args::StatusArgs;
use crate::output::{
    FAILED, Failure, VerbResult, note, print, print_json, right, size, table, text_of,
};

/// Most mappings shown of a process; JSON has all.
const MAPPINGS_SHOWN: usize = 12;

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    /// State of a kernel with page coloring.
    #[serde(skip_serializing_if = "Option::is_none")]
    page_coloring: Option<ColoringStatus>,
    /// The machine's settings for huge pages; with `--why`.
    #[serde(skip_serializing_if = "Option::is_none")]
    huge_pages: Option<Machine>,
    processes: Vec<ProcessStatus>,
    /// The shared objects that they map, with all their mappers.
    objects: Vec<SharedObject>,
}

/// Shows the memory of processes.
pub fn status(args: &StatusArgs) -> VerbResult {
    let roots = Roots::default();
    let members = members::named(&roots, &args.named)?;
    let is_named = members.is_some();
    let pids = members.unwrap_or_else(|| args.pids.clone());
    let mut failed = None;
    let huge_pages = args.why.then(|| Machine::read(&roots));
    let processes = if pids.is_empty() {
        status_of_all(&roots).map_err(|error| Failure::new(FAILED, error))?
    } else {
        let mut shown = Vec::new();
        for &pid in &pids {
            let process = match &huge_pages {
                Some(machine) => status_explained(&roots, pid, machine),
                None => status_of(&roots, pid),
            };
            match process {
                Ok(process) => shown.push(process),
                // Members of a group may end, or be threads of the kernel.
                Err(ReadError::Vanished { .. } | ReadError::KernelThread { .. }) if is_named => {}
                Err(error) => {
                    failed = Some(FAILED);
                    note(&error.to_string());
                }
            }
        }
        shown
    };
    let page_coloring = coloring_of_machine(&roots).unwrap_or_else(|error| {
        note(&error.to_string());
        None
    });
    let objects = shared_objects(&roots, &pids).map_err(|error| Failure::new(FAILED, error))?;
    if args.json {
        print_json(&Document {
            schema: "superhue-status/1",
            page_coloring,
            huge_pages,
            processes,
            objects,
        })?;
    } else if let Some(machine) = huge_pages.filter(|_| !processes.is_empty()) {
        for reason in &machine.unknown_because {
            note(reason);
        }
        let mut text = status_why::machine(&machine);
        for process in &processes {
            if let Some(why) = &process.why {
                text += &status_why::process(process, why);
            }
        }
        text += &objects_table(&objects);
        print(&text)?;
    } else if !processes.is_empty() {
        let coloring = page_coloring.as_ref().map(status_colors::machine);
        let mut text = coloring.map_or_else(String::new, |coloring| coloring + "\n");
        text += &processes_table(&processes);
        for process in &processes {
            if let Some(reason) = process
                .unknown_because
                .as_ref()
                .filter(|_| !pids.is_empty())
            {
                note(&format!("process {}: {reason}", process.pid));
            }
            if !process.mappings.is_empty() {
                text += &mappings_table(process);
            }
            if let Some(coloring) = process.colors.as_ref().filter(|_| !pids.is_empty()) {
                text += &status_colors::process(process.pid, coloring);
            }
        }
        text += &objects_table(&objects);
        print(&text)?;
    }
    failed.map_or(Ok(std::process::ExitCode::SUCCESS), |code| Ok(code.into()))
}

fn processes_table(processes: &[ProcessStatus]) -> String {
    let mut table = table(&[
        "PID",
        "NAME",
        "RSS",
        "ANONYMOUS",
        "HUGE",
        "COVERAGE",
        "BLOAT (MOST)",
        "NOTE",
    ]);
    for process in processes {
        let coverage = match process.coverage {
            Some(coverage) => format!("{:.1} %", coverage * 100.0),
            None if process.huge_bytes.is_some() => "-".to_owned(),
            None => "?".to_owned(),
        };
        let note = match process.huge_pages_allowed {
            Some(false) => "huge pages off",
            _ => "",
        };
        table.add_row([
            process.pid.to_string(),
            process.name.clone(),
            size(process.rss_bytes),
            size(process.anonymous_bytes),
            size(process.huge_bytes),
            coverage,
            size(process.bloat_bound_bytes),
            note.to_owned(),
        ]);
    }
    right(&mut table, &[0, 2, 3, 4, 5, 6]);
    text_of(&table)
}

fn mappings_table(process: &ProcessStatus) -> String {
    let mut table = table(&["MAPPING", "RSS", "HUGE", "PAGES", "NAME"]);
    for mapping in process.mappings.iter().take(MAPPINGS_SHOWN) {
        table.add_row([
            mapping.range.to_string(),
            size(mapping.rss_bytes),
            size(mapping.huge_bytes),
            pages(mapping).to_owned(),
            mapping.name.clone().unwrap_or_default(),
        ]);
    }
    right(&mut table, &[1, 2]);
    let mut text = format!(
        "\nProcess {} ({}):\n{}",
        process.pid,
        process.name,
        text_of(&table)
    );
    if process.mappings.len() > MAPPINGS_SHOWN {
        text += &format!(
            " and {} smaller mappings\n",
            process.mappings.len() - MAPPINGS_SHOWN
        );
    }
    text
}

/// Returns a table of shared memory, which belongs to all processes that map it; empty if there is none.
fn objects_table(objects: &[SharedObject]) -> String {
    if objects.is_empty() {
        return String::new();
    }
    let mut table = table(&[
        "SHARED OBJECT",
        "RESIDENT",
        "MAPPED BY",
        "HUGE IN",
        "HUGE (MOST)",
        "TABLES SAVED",
        "NOTE",
    ]);
    for object in objects.iter().take(MAPPINGS_SHOWN) {
        let huge = object.huge_mapped_bytes.values();
        let read = object.huge_mapped_bytes.len();
        let note = object.misaligned_by_bytes;
        table.add_row([
            object.name.clone(),
            object.resident_bytes.to_string(),
            object.mappers.to_string(),
            format!("{} of {read}", huge.filter(|huge| huge.0 > 0).count()),
            object.most_huge_mapped().to_string(),
            object.page_tables_saved_bytes.to_string(),
            note.map_or_else(String::new, |by| format!("misaligned by {by:#x}")),
        ]);
    }
    right(&mut table, &[1, 2, 3, 4, 5]);
    let mut text = format!("\n{}", text_of(&table));
    if objects.len() > MAPPINGS_SHOWN {
        text += &format!(" and {} smaller objects\n", objects.len() - MAPPINGS_SHOWN);
    }
    text
}

fn pages(mapping: &MappingStatus) -> &'static str {
    let huge = mapping.huge_bytes.unwrap_or_default();
    if mapping
        .page_bytes
        .is_some_and(|page| page.0 > superhue::model::BASE_PAGE_SIZE)
    {
        "hugetlb"
    } else if huge.0 > 0 && Some(huge) == mapping.anonymous_bytes {
        "2 MiB"
    } else if huge.0 > 0 {
        "mixed"
    } else {
        "4 KiB"
    }
}

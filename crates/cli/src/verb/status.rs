//! `superhue status`.

use std::process::ExitCode;

use serde::Serialize;
use superhue::model::{ByteCount, counted};
use superhue::procfs::{ReadError, Roots};
use superhue::why::Machine;
use superhue::{
    CacheAllocationAdvice, ColoringStatus, MappingStatus, ProcessStatus, SharedObject,
    coloring_of_machine, shared_objects, status_explained, status_of, status_of_all,
};

use super::members::{self, Members};
use super::{status_colors, status_why};
use crate::args::StatusArgs;
use crate::output::{
    FAILED, Failure, UNABLE, VerbResult, fitted, note, print_as_it_is, print_json, prose, size,
};
use crate::sheet::{Column, Sheet, left, right};

/// Most mappings shown of a process; JSON has all.
const MAPPINGS_SHOWN: usize = 12;

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    /// State of a kernel with page coloring.
    #[serde(skip_serializing_if = "Option::is_none")]
    page_coloring: Option<ColoringStatus>,
    /// Means of the hardware to divide the caches, beside or instead of page colors.
    cache_allocation: CacheAllocationAdvice,
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
    let members = chosen(&roots, args)?;
    let huge_pages = args.why.then(|| Machine::read(&roots));
    let (processes, code) = match &members {
        None => (everything(&roots)?, 0),
        Some(members) => look_at(&roots, members, huge_pages.as_ref()),
    };
    let pids = members.map_or_else(Vec::new, |members| members.pids);
    let page_coloring = coloring_of_machine(&roots).unwrap_or_else(|error| {
        note(&error.to_string());
        None
    });
    let objects = shared_objects(&roots, &pids).map_err(|error| Failure::new(FAILED, error))?;
    let found = Document {
        schema: "superhue-status/1",
        page_coloring,
        cache_allocation: CacheAllocationAdvice::read(&roots),
        huge_pages,
        processes,
        objects,
    };
    if args.json {
        print_json(&found)?;
    } else if !found.processes.is_empty() {
        let text = match &found.huge_pages {
            Some(machine) => explained(machine, &found, args.width.wide),
            None => text(&found, !pids.is_empty(), args.width.wide),
        };
        print_as_it_is(&text)?;
    }
    Ok(ExitCode::from(code))
}

/// Returns the processes that the arguments mean; `None` for all. Each of them is explained with `--why`, so `--all` names them then.
fn chosen(roots: &Roots, args: &StatusArgs) -> Result<Option<Members>, Failure> {
    let members = members::named(roots, &args.targets)?;
    if members.is_none() && args.why {
        return members::everybody(roots).map(Some);
    }
    Ok(members)
}

/// Returns every visible process.
///
/// # Errors
/// No process but superhue exists: an empty table would say that the machine is idle.
fn everything(roots: &Roots) -> Result<Vec<ProcessStatus>, Failure> {
    let found = status_of_all(roots).map_err(|error| Failure::new(FAILED, error))?;
    let is_hidden = members::hides_processes(roots);
    let own = [std::process::id(), parent()];
    let is_other = |process: &ProcessStatus| !own.contains(&process.pid);
    if found.is_empty() || (is_hidden && !found.iter().any(is_other)) {
        return Err(Failure::new(
            UNABLE,
            "no process can be seen in /proc: it hides those of other users (mount option hidepid), or shows none at all; \
             run as root, or as a member of the group that may see them (mount option gid)",
        ));
    }
    if is_hidden {
        note(
            "/proc hides processes of other users (mount option hidepid): the list has the others only",
        );
    }
    Ok(found)
}

/// Returns the process that started this one: the supervising superhue, or the caller.
fn parent() -> u32 {
    let parent = rustix::process::getppid();
    parent.map_or(0, |parent| parent.as_raw_nonzero().get().unsigned_abs())
}

/// Looks at each process; returns the exit status, too: not 0 if one of them cannot be shown.
fn look_at(
    roots: &Roots,
    members: &Members,
    huge_pages: Option<&Machine>,
) -> (Vec<ProcessStatus>, u8) {
    let mut code = 0;
    let mut shown = Vec::new();
    for &pid in &members.pids {
        let process = match huge_pages {
            Some(machine) => status_explained(roots, pid, machine),
            None => status_of(roots, pid),
        };
        match process {
            Ok(process) => shown.push(process),
            // Members of a group may end, or be threads of the kernel.
            Err(ReadError::Vanished { .. } | ReadError::KernelThread { .. })
                if members.is_group => {}
            Err(error) => {
                // A failure of another kind than a lack of permission comes first.
                let this = members::code_of_read(&error);
                code = if code == 0 { this } else { code.min(this) };
                note(&error.to_string());
            }
        }
    }
    (shown, code)
}

/// Formats the reasons why memory is not huge.
fn explained(machine: &Machine, found: &Document, wide: bool) -> String {
    for reason in &machine.unknown_because {
        note(reason);
    }
    let mut text = prose(&status_why::machine(machine));
    for process in &found.processes {
        if let Some(why) = &process.why {
            text += &status_why::process(process, why, wide);
        }
    }
    text + &objects_table(&found.objects, wide)
}

/// Formats the memory of processes; with their mappings if an argument names them.
fn text(found: &Document, is_named: bool, wide: bool) -> String {
    let coloring = found.page_coloring.as_ref();
    let coloring =
        coloring.map(|coloring| status_colors::machine(coloring, &found.cache_allocation));
    let mut text = coloring.map_or_else(String::new, |coloring| prose(&(coloring + "\n")));
    text += &processes_table(&found.processes, wide);
    for process in &found.processes {
        if let Some(reason) = process.unknown_because.as_ref().filter(|_| is_named) {
            note(&format!("process {}: {reason}", process.pid));
        }
        if !process.mappings.is_empty() {
            text += &mappings_table(process, wide);
        }
        if let Some(coloring) = process.colors.as_ref().filter(|_| is_named) {
            text += &prose(&status_colors::process(process.pid, coloring));
        }
    }
    text + &objects_table(&found.objects, wide)
}

const PROCESSES: [Column; 8] = [
    right("PID"),
    left("NAME").cut(),
    right("RSS"),
    right("ANONYMOUS").rank(3),
    right("HUGE").rank(1),
    right("COVERAGE"),
    right("BLOAT (MOST)").rank(4),
    left("NOTE").rank(2),
];

fn processes_table(processes: &[ProcessStatus], wide: bool) -> String {
    let mut table = Sheet::new(&PROCESSES);
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
        table.row([
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
    fitted(&table, wide)
}

const MAPPINGS: [Column; 5] = [
    left("MAPPING").rank(3),
    right("RSS"),
    right("HUGE"),
    left("PAGES").rank(1),
    left("NAME").cut(),
];

fn mappings_table(process: &ProcessStatus, wide: bool) -> String {
    let mut table = Sheet::new(&MAPPINGS);
    for mapping in process.mappings.iter().take(MAPPINGS_SHOWN) {
        table.row([
            mapping.range.to_string(),
            size(mapping.rss_bytes),
            size(mapping.all_huge()),
            pages(mapping).to_owned(),
            mapping.name.clone().unwrap_or_default(),
        ]);
    }
    let title = format!("\nProcess {} ({}):\n", process.pid, process.name);
    let more = more(process.mappings.len(), "smaller mapping");
    prose(&title) + &fitted(&table, wide) + &more
}

/// Returns a line about what a table does not list; empty if it lists all.
fn more(all: usize, noun: &str) -> String {
    match all.saturating_sub(MAPPINGS_SHOWN) {
        0 => String::new(),
        rest => format!(" and {}\n", counted(rest as u64, noun)),
    }
}

const OBJECTS: [Column; 7] = [
    left("SHARED OBJECT").cut(),
    right("RESIDENT"),
    right("MAPPED BY").rank(2),
    right("HUGE IN").rank(3),
    right("HUGE (MOST)"),
    right("TABLES SAVED").rank(4),
    left("NOTE").rank(1),
];

/// Returns a table of shared memory, which belongs to all processes that map it; empty if there is none.
fn objects_table(objects: &[SharedObject], wide: bool) -> String {
    if objects.is_empty() {
        return String::new();
    }
    let mut table = Sheet::new(&OBJECTS);
    for object in objects.iter().take(MAPPINGS_SHOWN) {
        let huge = object.huge_mapped_bytes.values();
        let read = object.huge_mapped_bytes.len();
        let note = object.misaligned_by_bytes;
        table.row([
            object.name.clone(),
            object.resident_bytes.to_string(),
            object.mappers.to_string(),
            format!("{} of {read}", huge.filter(|huge| huge.0 > 0).count()),
            object.most_huge_mapped().to_string(),
            object.page_tables_saved_bytes.to_string(),
            note.map_or_else(String::new, |by| format!("misaligned by {by:#x}")),
        ]);
    }
    let more = more(objects.len(), "smaller object");
    format!("\n{}{more}", fitted(&table, wide))
}

fn pages(mapping: &MappingStatus) -> &'static str {
    if mapping
        .page_bytes
        .is_some_and(|page| page.0 > superhue::model::BASE_PAGE_SIZE)
    {
        return "hugetlb";
    }
    match mapping.all_huge() {
        None => "?",
        Some(ByteCount(0)) => "4 KiB",
        huge if huge == mapping.rss_bytes => "2 MiB",
        Some(_) => "mixed",
    }
}

#[cfg(test)]
mod tests {
    use superhue::model::{VirtAddr, VirtRange};

    use super::*;

    #[test]
    fn pages_of_shared_memory_count_and_what_is_unknown_is_not_small() {
        let mapping = |huge: Option<u64>, other: Option<u64>| MappingStatus {
            range: VirtRange::new(VirtAddr(0), VirtAddr(8 << 20)).unwrap(),
            name: None,
            rss_bytes: Some(ByteCount(4 << 20)),
            anonymous_bytes: Some(ByteCount(0)),
            huge_bytes: huge.map(ByteCount),
            other_huge_bytes: other.map(ByteCount),
            page_bytes: None,
            promotable: false,
        };
        assert_eq!(pages(&mapping(None, None)), "?");
        assert_eq!(pages(&mapping(Some(0), Some(0))), "4 KiB");
        assert_eq!(pages(&mapping(Some(0), None)), "4 KiB");
        assert_eq!(pages(&mapping(Some(0), Some(2 << 20))), "mixed");
        assert_eq!(pages(&mapping(Some(0), Some(4 << 20))), "2 MiB");
        assert_eq!(pages(&mapping(Some(4 << 20), None)), "2 MiB");
    }
}

//! `superhue check`.

use std::process::ExitCode;

use serde::Serialize;
use superhue::probe::{Availability, Capability, ProbeOptions, all_with, ids};
use superhue::procfs::Roots;
use superhue::procfs::hardware::{AssessedCache, Cpuid, Hardware};

use crate::args::CheckArgs;
use crate::output::{
    Failure, UNABLE, USAGE, VerbResult, print, print_json, table, terminal_width, text_of,
};

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    version: &'static str,
    capabilities: Vec<Capability>,
    hardware: Hardware,
}

/// Tries every capability and shows the results.
pub fn check(args: &CheckArgs) -> VerbResult {
    if let Some(unknown) = args.ids.iter().find(|id| !ids().any(|known| known == **id)) {
        let known: Vec<&str> = ids().collect();
        return Err(Failure::new(
            USAGE,
            format!(
                "there is no capability `{unknown}`; there are: {}",
                known.join(", ")
            ),
        ));
    }
    let roots = Roots::default();
    let mut capabilities = all_with(
        &roots,
        ProbeOptions {
            may_touch_damon: args.thorough,
        },
    );
    if !args.ids.is_empty() {
        capabilities.retain(|capability| args.ids.iter().any(|id| id == capability.id));
    }
    let hardware = Hardware::read(&roots, &Cpuid::native());
    let is_missing = |it: &Capability| it.availability == Availability::No;
    // A capability that an argument names is required.
    let status = match !args.ids.is_empty() && capabilities.iter().any(is_missing) {
        true => ExitCode::from(UNABLE),
        false => ExitCode::SUCCESS,
    };
    if args.json {
        let version = env!("CARGO_PKG_VERSION");
        print_json(&Document {
            schema: "superhue-check/1",
            version,
            capabilities,
            hardware,
        })?;
        return Ok(status);
    }
    let mut text = String::new();
    if args.ids.is_empty() {
        text += &verdict(&capabilities);
    }
    text += &capabilities_table(&capabilities);
    for capability in capabilities
        .iter()
        .filter(|capability| !args.ids.is_empty() && capability.availability == Availability::Yes)
    {
        text += &format!("\n{}: {}\n", capability.id, capability.how);
    }
    for capability in &capabilities {
        if let Some(remedy) = &capability.remedy {
            text += &format!("\n{}: what to do: {remedy}", capability.id);
        }
    }
    if args.ids.is_empty() {
        text += &hardware_text(&hardware);
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    print(&text)?;
    Ok(status)
}

/// Uses of superhue, each with the capabilities of which one is enough.
const PURPOSES: [(&str, &[&str]); 5] = [
    (
        "make huge pages in running programs",
        &["remote-collapse", "user-service"],
    ),
    ("split huge pages", &["split"]),
    (
        "see which memory is accessed",
        &["bpf", "pagemap-scan", "clear-refs", "page-idle", "damon"],
    ),
    ("tell page colors", &["colors-measured", "colors-kernel"]),
    ("count TLB misses", &["pmu"]),
];

/// Returns two lines: what works here, and what does not.
fn verdict(capabilities: &[Capability]) -> String {
    let is_there = |id: &&str| {
        let found = capabilities.iter().find(|it| it.id == *id);
        found.is_some_and(|it| matches!(it.availability, Availability::Yes | Availability::Partial))
    };
    let (works, fails): (Vec<_>, Vec<_>) = PURPOSES
        .iter()
        .partition(|(_, ids)| ids.iter().any(&is_there));
    let mut text = String::new();
    for (begin, all) in [("Here superhue can", works), ("It cannot", fails)] {
        let all: Vec<&str> = all.iter().map(|(purpose, _)| *purpose).collect();
        if !all.is_empty() {
            text += &format!("{begin}: {}.\n", all.join("; "));
        }
    }
    text + "\n"
}

fn capabilities_table(capabilities: &[Capability]) -> String {
    let mut table = table(&["CAPABILITY", "", "FOUND", "USED FOR"]);
    if let Some(width) = terminal_width() {
        table.set_width(width);
    } else {
        table.set_width(120);
    }
    table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
    for capability in capabilities {
        let availability = match capability.availability {
            Availability::Yes => "yes",
            Availability::Partial => "partial",
            Availability::No => "no",
            Availability::Unknown => "?",
        };
        table.add_row([
            capability.id,
            availability,
            &capability.found,
            capability.used_for,
        ]);
    }
    text_of(&table)
}

fn hardware_text(hardware: &Hardware) -> String {
    let mut text = String::from("\n\nHARDWARE\n");
    let mut line = |name: &str, value: String| text += &format!(" {name:<14} {value}\n");
    match &hardware.cpu {
        Ok(cpu) => line(
            "processor",
            cpu.model.clone().unwrap_or_else(|| "not known".to_owned()),
        ),
        Err(error) => line("processor", format!("not known: {error}")),
    }
    line("machine", machine(&hardware.virtualization));
    match &hardware.caches {
        Ok(caches) => {
            // Equal caches of several cores share one line.
            let mut told: Vec<(String, String, usize)> = Vec::new();
            for judged in caches {
                let (name, said) = (judged.cache.name(), cache(judged));
                match told.iter_mut().find(|(n, s, _)| *n == name && *s == said) {
                    Some((.., count)) => *count += 1,
                    None => told.push((name, said, 1)),
                }
            }
            for (name, said, count) in told {
                let times = if count > 1 {
                    format!("{count} x ")
                } else {
                    String::new()
                };
                line(&name, format!("{times}{said}"));
            }
        }
        Err(error) => line("caches", format!("not known: {error}")),
    }
    match &hardware.tlb {
        Ok(tlb) => {
            for reach in &tlb.reach {
                let name = format!("TLB L{} {}", reach.level, reach.page);
                line(
                    &name,
                    format!("{} entries reach {}", reach.entries, reach.reach),
                );
            }
        }
        Err(error) => line("TLB", format!("not known: {error}")),
    }
    text
}

fn cache(judged: &AssessedCache) -> String {
    let size = judged
        .cache
        .size
        .map_or_else(|| "size not known".to_owned(), |size| size.to_string());
    let ways = judged
        .cache
        .ways
        .map(|ways| format!(", {ways} ways"))
        .unwrap_or_default();
    let colors = match judged.colors {
        Some(1) => ", 1 color".to_owned(),
        Some(colors) => format!(", {colors} colors"),
        None => String::new(),
    };
    format!(
        "{size}{ways}{colors}: {}",
        judged.verdict.reason().unwrap_or("usable")
    )
}

fn machine(virtualization: &superhue::procfs::hardware::Virtualization) -> String {
    let mut text = match (&virtualization.hypervisor, &virtualization.machine) {
        (Some(name), _) => format!("virtual ({name})"),
        (None, machine) => format!("{machine:?}").to_lowercase(),
    };
    if let Some(container) = &virtualization.container {
        text += &format!(", in a container ({container})");
    }
    text
}

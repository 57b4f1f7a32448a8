//! `superhue check`.

use std::process::ExitCode;

use serde::Serialize;
use superhue::CacheAllocationAdvice;
use superhue::model::counted;
use superhue::probe::{Availability, Capability, ProbeOptions, all_with};
use superhue::procfs::Roots;
use superhue::procfs::hardware::{AssessedCache, Cpuid, Hardware};
use superhue::tlb::{TlbReport, TlbSource};

use crate::args::CheckArgs;
use crate::output::{UNABLE, VerbResult, fitted, print_as_it_is, print_json, prose};
use crate::paint::{Paint, Shade};
use crate::sheet::{Column, Sheet, left};
use crate::verb::tlb;

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    version: &'static str,
    verdict: Verdict,
    capabilities: Vec<Capability>,
    hardware: Hardware,
    tlb: TlbReport,
    cache_allocation: CacheAllocationAdvice,
}

/// Verdict on uses of superhue, or on the capabilities that the arguments name.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Verdict {
    /// One sentence.
    sentence: String,
    works: Vec<&'static str>,
    fails: Vec<&'static str>,
    /// Neither shown to work nor to fail.
    unknown: Vec<&'static str>,
}

/// Tries every capability and shows the results.
pub fn check(args: &CheckArgs) -> VerbResult {
    let roots = Roots::default();
    let options = ProbeOptions {
        may_touch_damon: args.thorough,
    };
    let mut capabilities = all_with(&roots, options);
    let is_named = !args.ids.is_empty();
    if is_named {
        capabilities.retain(|capability| args.ids.contains(&capability.id));
    }
    let verdict = match is_named {
        true => verdict_on_named(&capabilities),
        false => verdict_on_uses(&capabilities),
    };
    let is_missing = |it: &Capability| it.availability == Availability::No;
    // A capability that an argument names is required.
    let status = match is_named && capabilities.iter().any(is_missing) {
        true => ExitCode::from(UNABLE),
        false => ExitCode::SUCCESS,
    };
    let hardware = Hardware::read(&roots, &Cpuid::native());
    // Timing may take most of a second.
    let tlb = || {
        let virtualization = &hardware.virtualization;
        TlbReport::find(&roots, &Cpuid::native(), virtualization, args.tlb.tlb)
    };
    if args.json {
        let version = env!("CARGO_PKG_VERSION");
        let tlb = tlb();
        print_json(&Document {
            schema: "superhue-check/1",
            version,
            verdict,
            capabilities,
            hardware,
            tlb,
            cache_allocation: CacheAllocationAdvice::read(&roots),
        })?;
        return Ok(status);
    }
    let sentence = prose(&format!("{}\n\n", verdict.sentence));
    let mut text = Paint::of_stdout().text(sentence.trim_end(), Some(Shade::Strong));
    text += "\n\n";
    text += &fitted(&table(&capabilities), args.width.wide);
    text += &prose(&details(&capabilities, is_named));
    if !is_named {
        text += &prose(&hardware_text(&hardware, &tlb()));
    }
    print_as_it_is(&text)?;
    Ok(status)
}

/// Returns how the named capabilities were tried, and the remedies of those that are missing.
fn details(capabilities: &[Capability], is_named: bool) -> String {
    let mut text = String::new();
    for capability in capabilities {
        if is_named && capability.availability == Availability::Yes {
            text += &format!("\n{}: {}\n", capability.id, capability.how);
        }
    }
    for capability in capabilities {
        if let Some(remedy) = &capability.remedy {
            text += &format!("\n{}: what to do: {remedy}\n", capability.id);
        }
    }
    text
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

/// Returns the verdict on the uses of superhue.
fn verdict_on_uses(capabilities: &[Capability]) -> Verdict {
    let has_one = |ids: &[&str], wanted: &[Availability]| {
        let mut found = capabilities.iter().filter(|it| ids.contains(&it.id));
        found.any(|it| wanted.contains(&it.availability))
    };
    let (mut works, mut fails, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    for (purpose, ids) in PURPOSES {
        let list = if has_one(ids, &[Availability::Yes, Availability::Partial]) {
            &mut works
        } else if has_one(ids, &[Availability::Unknown]) {
            &mut unknown
        } else {
            &mut fails
        };
        list.push(purpose);
    }
    let mut parts = Vec::new();
    if !works.is_empty() {
        parts.push(format!("superhue can {}", enumerated(&works, "and")));
    }
    if !fails.is_empty() {
        let it = if works.is_empty() {
            "superhue"
        } else {
            "but it"
        };
        parts.push(format!("{it} cannot {}", enumerated(&fails, "or")));
    }
    if !unknown.is_empty() {
        let uses = enumerated(&unknown, "or");
        let (and, it) = match parts.is_empty() {
            true => ("", "superhue"),
            false => ("and ", "it"),
        };
        parts.push(format!("{and}it is not known whether {it} can {uses}"));
    }
    Verdict {
        sentence: format!("Here {}.", parts.join(", ")),
        works,
        fails,
        unknown,
    }
}

/// Returns the verdict on capabilities that the arguments name.
fn verdict_on_named(capabilities: &[Capability]) -> Verdict {
    let of = |wanted: &[Availability]| {
        let found = capabilities.iter();
        let found = found.filter(|it| wanted.contains(&it.availability));
        found.map(|it| it.id).collect::<Vec<_>>()
    };
    let works = of(&[Availability::Yes, Availability::Partial]);
    let (fails, unknown) = (of(&[Availability::No]), of(&[Availability::Unknown]));
    let is_or_are = |all: &[&str]| if all.len() == 1 { "is" } else { "are" };
    let mut parts = Vec::new();
    if !works.is_empty() {
        let verb = is_or_are(&works);
        parts.push(format!(
            "{} {verb} available here",
            enumerated(&works, "and")
        ));
    }
    if !fails.is_empty() {
        let verb = is_or_are(&fails);
        parts.push(format!("{} {verb} missing", enumerated(&fails, "and")));
    }
    if !unknown.is_empty() {
        parts.push(format!(
            "{} could not be tried",
            enumerated(&unknown, "and")
        ));
    }
    Verdict {
        sentence: format!("{}.", parts.join("; ")),
        works,
        fails,
        unknown,
    }
}

/// Joins words: `a, b and c`.
fn enumerated(words: &[&str], last: &str) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [first @ .., end] => format!("{} {last} {end}", first.join(", ")),
    }
}

const COLUMNS: [Column; 4] = [
    left("CAPABILITY"),
    left("").shaded(shade),
    left("FOUND").wrapped(),
    left("USED FOR").wrapped().rank(1),
];

fn shade(answer: &str) -> Option<Shade> {
    match answer {
        "yes" => Some(Shade::Good),
        "partial" | "?" => Some(Shade::Doubtful),
        "no" => Some(Shade::Bad),
        _ => None,
    }
}

fn table(capabilities: &[Capability]) -> Sheet {
    let mut table = Sheet::new(&COLUMNS);
    for capability in capabilities {
        let availability = match capability.availability {
            Availability::Yes => "yes",
            Availability::Partial => "partial",
            Availability::No => "no",
            Availability::Unknown => "?",
        };
        table.row([
            capability.id,
            availability,
            &capability.found,
            capability.used_for,
        ]);
    }
    table
}

fn hardware_text(hardware: &Hardware, tlb: &TlbReport) -> String {
    let mut text = String::from("\nHARDWARE\n");
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
    if let Ok(reported) = &hardware.tlb {
        for reach in &reported.reach {
            let name = format!("TLB L{} {}", reach.level, reach.page);
            let value = format!("{} entries reach {}", reach.entries, reach.reach);
            line(&name, value);
        }
    }
    if tlb.source != Some(TlbSource::Cpuid) {
        for (name, value) in tlb::lines(tlb) {
            line(&name, value);
        }
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
        Some(colors) => format!(", {}", counted(colors, "color")),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn capability(id: &'static str, availability: Availability) -> Capability {
        Capability {
            id,
            name: id,
            availability,
            found: String::new(),
            how: "",
            used_for: "",
            remedy: None,
        }
    }

    #[test]
    fn every_use_either_works_or_fails_and_stands_in_the_sentence() {
        let some = [
            capability("split", Availability::Partial),
            capability("pmu", Availability::No),
            capability("damon", Availability::Yes),
        ];
        let verdict = verdict_on_uses(&some);
        assert_eq!(
            verdict.works,
            ["split huge pages", "see which memory is accessed"]
        );
        let all = [&verdict.works, &verdict.fails, &verdict.unknown];
        assert_eq!(all.map(Vec::len).iter().sum::<usize>(), PURPOSES.len());
        for (purpose, _) in PURPOSES {
            assert!(verdict.sentence.contains(purpose), "{}", verdict.sentence);
        }
        assert!(!verdict.sentence.contains('\n'));
        assert!(verdict_on_uses(&[]).works.is_empty());
        let some = [
            capability("remote-collapse", Availability::Unknown),
            capability("user-service", Availability::No),
        ];
        let verdict = verdict_on_uses(&some);
        assert_eq!(verdict.unknown, ["make huge pages in running programs"]);
        assert!(!verdict.fails.contains(&verdict.unknown[0]));
        let end = ", and it is not known whether it can make huge pages in running programs.";
        assert!(verdict.sentence.ends_with(end), "{}", verdict.sentence);
    }

    #[test]
    fn named_capabilities_are_all_accounted_for() {
        let some = [
            capability("a", Availability::Yes),
            capability("b", Availability::No),
            capability("c", Availability::Unknown),
        ];
        let verdict = verdict_on_named(&some);
        assert_eq!((verdict.works, verdict.fails), (vec!["a"], vec!["b"]));
        assert_eq!(
            verdict.sentence,
            "a is available here; b is missing; c could not be tried."
        );
    }
}

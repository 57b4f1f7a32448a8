//! Accesses as text: a line for each mapping, the most accessed first. Or counts per page, in the format of the
//! `page_acs` file of the paper on HPS:
//!
//! ```text
//!   5617f00d8000-5617f0102000 rw-p [heap]  (168 KiB in 4 KiB pages)
//!     5617f00d8000-5617f00de000 : 12
//!     5617f00de000-5617f0102000 : 0
//! ```

use std::fmt::Write;

use superhue_plot::{Heat, HotSet, Mapping, how, size};

use crate::terminal::printable;

/// Mappings that have a line; the others share one.
const SHOWN: usize = 20;

/// Returns a line for each mapping with pages in memory, and the sum of all.
pub(super) fn by_mapping(heat: &Heat) -> String {
    let mut mappings: Vec<&Mapping> = heat
        .mappings
        .iter()
        .filter(|mapping| !mapping.runs.is_empty())
        .collect();
    mappings.sort_by_key(|mapping| std::cmp::Reverse(accesses(mapping)));
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:>9}  {:>9}  {:>7}  MAPPING",
        "ACCESSED", "RESIDENT", "SAMPLES"
    );
    let (shown, others) = mappings.split_at(mappings.len().min(SHOWN));
    for mapping in shown {
        let most = mapping.runs.iter().map(|run| run.count).max();
        line(
            &mut text,
            &[mapping],
            &most.unwrap_or(0).to_string(),
            &named(mapping),
        );
    }
    if !others.is_empty() {
        line(
            &mut text,
            others,
            "",
            &format!("{} more mappings", others.len()),
        );
    }
    text.push_str("ACCESSED: pages that some sample saw accessed. SAMPLES: how many saw the hottest of them. --list-pages shows each.\n");
    summary(&mut text, heat);
    text
}

fn line(text: &mut String, mappings: &[&Mapping], samples: &str, name: &str) {
    let runs = mappings.iter().flat_map(|mapping| &mapping.runs);
    let (mut accessed, mut resident) = (0, 0);
    for run in runs {
        resident += run.end - run.start;
        accessed += if run.count > 0 {
            run.end - run.start
        } else {
            0
        };
    }
    let (accessed, resident) = (size(accessed), size(resident));
    let _ = writeln!(text, "{accessed:>9}  {resident:>9}  {samples:>7}  {name}");
}

/// Returns the bytes that were seen accessed, each counted once per access.
fn accesses(mapping: &Mapping) -> u128 {
    let of_run = |run: &superhue_plot::Run| u128::from(run.end - run.start) * u128::from(run.count);
    mapping.runs.iter().map(of_run).sum()
}

/// Returns every run of pages with the same count, by mapping, and the sums.
pub(super) fn by_page(heat: &Heat) -> String {
    let mut text = String::new();
    for mapping in heat
        .mappings
        .iter()
        .filter(|mapping| !mapping.runs.is_empty())
    {
        heading(&mut text, mapping);
        for run in &mapping.runs {
            let _ = writeln!(text, "  {:x}-{:x} : {}", run.start, run.end, run.count);
        }
    }
    summary(&mut text, heat);
    text
}

fn heading(text: &mut String, mapping: &Mapping) {
    let pages = [(mapping.base_bytes, "4 KiB"), (mapping.huge_bytes, "2 MiB")];
    let pages: Vec<String> = (pages.iter())
        .filter(|(bytes, _)| *bytes > 0)
        .map(|(bytes, page)| format!("{} in {page} pages", size(*bytes)))
        .collect();
    let pages = if pages.is_empty() {
        "pages not known".to_owned()
    } else {
        pages.join(", ")
    };
    let _ = writeln!(text, "{}  ({pages})", named(mapping));
}

/// Returns its addresses, permissions and name.
fn named(mapping: &Mapping) -> String {
    let Mapping { start, end, .. } = mapping;
    let name = mapping.name.as_deref().unwrap_or("");
    let space = if name.is_empty() { "" } else { " " };
    let permissions = &mapping.permissions;
    // The process chooses its names: no control character reaches the terminal.
    let shown = printable(&format!("{permissions}{space}{name}"));
    format!("{start:x}-{end:x} {shown}")
}

/// Appends the lines under the table.
fn summary(text: &mut String, heat: &Heat) {
    if !text.is_empty() {
        text.push('\n');
    }
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<9} {value}");
    };
    let name = printable(&heat.process.name);
    line("process", format!("{} ({name})", heat.process.pid));
    line("watched", how(heat));
    line(
        "tracker",
        format!("{}: {}", heat.tracker.name, heat.tracker.why),
    );
    line("hot set", hot_set(&heat.hot_set));
    if let Some(cost) = &heat.cost {
        line(
            "cost",
            format!(
                "{:.2} % of a CPU; the process slowed by {:.2} % (estimated)",
                cost.own_cpu_share * 100.0,
                cost.target_slowdown * 100.0
            ),
        );
    }
}

fn hot_set(hot: &HotSet) -> String {
    let (Some(half), Some(most), Some(nearly_all)) = (hot.bytes_50, hot.bytes_90, hot.bytes_99)
    else {
        return format!("no access was seen; {} resident", size(hot.resident_bytes));
    };
    format!(
        "50 % of the sampled accesses go to {}, 90 % to {}, 99 % to {}; {} resident",
        size(half),
        size(most),
        size(nearly_all),
        size(hot.resident_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use superhue_plot::{Cost, Observation, Process, Run, SCHEMA, Series, Target};

    fn run(start: u64, end: u64, count: u64) -> Run {
        Run { start, end, count }
    }

    #[test]
    fn the_table_reads_like_the_papers() {
        let heat = Heat {
            schema: SCHEMA.to_owned(),
            process: Process {
                pid: 4711,
                name: "evil\u{1b}[31m".to_owned(),
                command: Vec::new(),
            },
            tracker: Target {
                name: "ptwalk".to_owned(),
                why: "exact".to_owned(),
                scope: "all".to_owned(),
            },
            watched: Observation {
                samples: 12,
                seconds: 1.2,
                shortest_interval_seconds: 0.1,
                longest_interval_seconds: 0.1,
                ..Observation::default()
            },
            hot_set: HotSet {
                resident_bytes: 6 << 20,
                bytes_50: Some(4096),
                bytes_90: Some(2 << 20),
                bytes_99: Some(3 << 20),
                points: Vec::new(),
            },
            cost: Some(Cost {
                own_cpu_seconds: 0.01,
                own_cpu_share: 0.0083,
                target_slowdown: 0.004,
            }),
            mappings: vec![
                Mapping {
                    start: 0x1000,
                    end: 0x9000,
                    name: Some("[heap]\n".to_owned()),
                    permissions: "rw-p".to_owned(),
                    base_bytes: 0x8000,
                    huge_bytes: 0,
                    runs: vec![run(0x1000, 0x3000, 12), run(0x3000, 0x9000, 0)],
                },
                Mapping {
                    start: 0x20_0000,
                    end: 0x40_0000,
                    name: None,
                    permissions: "rw-p".to_owned(),
                    base_bytes: 0,
                    huge_bytes: 2 << 20,
                    runs: vec![run(0x20_0000, 0x40_0000, 3)],
                },
            ],
            series: Series::default(),
        };
        let expected = "\
1000-9000 rw-p [heap]\u{fffd}  (32 KiB in 4 KiB pages)
  1000-3000 : 12
  3000-9000 : 0
200000-400000 rw-p  (2.00 MiB in 2 MiB pages)
  200000-400000 : 3

process   4711 (evil\u{fffd}[31m)
watched   all memory, tracker ptwalk: 12 samples of 100 ms, 1.2 s watched
tracker   ptwalk: exact
hot set   50 % of the sampled accesses go to 4 KiB, 90 % to 2.00 MiB, 99 % to 3.00 MiB; 6.00 MiB resident
cost      0.83 % of a CPU; the process slowed by 0.40 % (estimated)
";
        assert_eq!(by_page(&heat), expected);
        let expected = concat!(
            " ACCESSED   RESIDENT  SAMPLES  MAPPING\n",
            " 2.00 MiB   2.00 MiB        3  200000-400000 rw-p\n",
            "    8 KiB     32 KiB       12  1000-9000 rw-p [heap]\u{fffd}\n",
            "ACCESSED: "
        );
        let said = by_mapping(&heat);
        assert!(said.starts_with(expected), "{said}");
        assert!(said.contains("\nhot set   50 %"), "{said}");
    }
}

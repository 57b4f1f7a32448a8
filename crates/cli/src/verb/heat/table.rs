//! Accesses as text: a line for each mapping, the most accessed first. Or counts per page, in the format of the
//! `page_acs` file of the paper on HPS:
//!
//! ```text
//!   5617f00d8000-5617f0102000 rw-p [heap]  (168 KiB in 4 KiB pages)
//!     5617f00d8000-5617f00de000 : 12
//!     5617f00de000-5617f0102000 : 0
//! ```

use std::fmt::Write;

use superhue::model::counted;
use superhue_plot::{Heat, HotSet, Mapping, Observation, how, size};

use crate::paint::Paint;
use crate::sheet::{Column, Sheet, left, right, wrapped};
use crate::terminal::printable;

/// Mappings that have a line; the others share one.
const SHOWN: usize = 20;

/// Columns before the text of a line below the table.
const INDENT: usize = 10;

/// A share of accesses to unseen memory that matters to the figures shown.
const UNSEEN: f64 = 0.01;

const COLUMNS: [Column; 4] = [
    right("ACCESSED"),
    right("RESIDENT"),
    right("SAMPLES").rank(1),
    left("MAPPING").cut(),
];

/// Returns a line for each mapping with pages in memory, and the sum of all. Without a width nothing is cut.
pub(super) fn by_mapping(heat: &Heat, width: Option<usize>, wide: bool) -> String {
    let mut mappings: Vec<&Mapping> = heat
        .mappings
        .iter()
        .filter(|mapping| !mapping.runs.is_empty())
        .collect();
    mappings.sort_by_key(|mapping| std::cmp::Reverse(accesses(mapping)));
    let mut table = Sheet::new(&COLUMNS);
    let (shown, others) = mappings.split_at(mappings.len().min(SHOWN));
    for mapping in shown {
        let most = mapping.runs.iter().map(|run| run.count).max();
        let most = most.unwrap_or(0).to_string();
        table.row(row(&[mapping], most, named(mapping)));
    }
    if !others.is_empty() {
        let others_are = counted(others.len() as u64, "more mapping");
        table.row(row(others, String::new(), others_are));
    }
    let fitted = table.fitted(width.filter(|_| !wide), Paint::Plain);
    let mut text = fitted.text.clone() + &fitted.note();
    let legend = "ACCESSED: pages that some sample saw accessed. SAMPLES: how many saw the hottest of them. --list-pages shows each.";
    for line in lines_of(legend, width, 0) {
        text += &format!("{line}\n");
    }
    summary(&mut text, heat, width);
    text
}

fn row(mappings: &[&Mapping], samples: String, name: String) -> [String; 4] {
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
    [size(accessed), size(resident), samples, name]
}

/// Breaks a text into lines for the room right of an indent.
fn lines_of(text: &str, width: Option<usize>, indent: usize) -> Vec<String> {
    match width {
        Some(width) => wrapped(text, width.saturating_sub(indent)),
        None => vec![text.to_owned()],
    }
}

/// Returns the bytes that were seen accessed, each counted once per access.
fn accesses(mapping: &Mapping) -> u128 {
    let of_run = |run: &superhue_plot::Run| u128::from(run.end - run.start) * u128::from(run.count);
    mapping.runs.iter().map(of_run).sum()
}

/// Returns every run of pages with the same count, by mapping, and the sums.
pub(super) fn by_page(heat: &Heat, width: Option<usize>) -> String {
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
    summary(&mut text, heat, width);
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
fn summary(text: &mut String, heat: &Heat, width: Option<usize>) {
    if !text.is_empty() {
        text.push('\n');
    }
    let mut line = |name: &str, value: String| {
        // A kept document may hold anything.
        let value = printable(&value);
        for (number, part) in lines_of(&value, width, INDENT).iter().enumerate() {
            let name = if number == 0 { name } else { "" };
            let _ = writeln!(text, "{name:<9} {part}");
        }
    };
    let name = printable(&heat.process.name);
    line("process", format!("{} ({name})", heat.process.pid));
    line("watched", how(heat));
    line(
        "tracker",
        format!("{}: {}", heat.tracker.name, heat.tracker.why),
    );
    line("hot set", hot_set(&heat.hot_set, &heat.watched));
    if let Some(why) = too_brief(heat) {
        line("too brief", why);
    }
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

/// Returns the hot set; a figure that unseen memory would change is a lower bound.
fn hot_set(hot: &HotSet, watched: &Observation) -> String {
    let (Some(half), Some(most), Some(nearly_all)) = (hot.bytes_50, hot.bytes_90, hot.bytes_99)
    else {
        return format!("no access was seen; {} resident", size(hot.resident_bytes));
    };
    let figure = |share: f64, bytes: u64| {
        let is_bound =
            is_single(watched) || watched.unseen_share.is_some_and(|it| it > 1.0 - share);
        let at_least = if is_bound { "at least " } else { "" };
        format!("{at_least}{}", size(bytes))
    };
    format!(
        "50 % of the sampled accesses go to {}, 90 % to {}, 99 % to {}; {} resident",
        figure(0.5, half),
        figure(0.9, most),
        figure(0.99, nearly_all),
        size(hot.resident_bytes)
    )
}

/// Returns true if one sample is all there is, which cannot tell hot memory from memory that happened to be accessed. Documents of DAMON, whose
/// samples are rates, have no estimate either.
fn is_single(watched: &Observation) -> bool {
    watched.samples == 1 && watched.unseen_share.is_none()
}

/// Returns the reason why the hot set is too small, and what to do; `None` if it is not.
fn too_brief(heat: &Heat) -> Option<String> {
    let (watched, remedy) = (
        &heat.watched,
        "watch for longer (--for), or allow more (--max-overhead)",
    );
    heat.hot_set.bytes_99?;
    if is_single(watched) {
        return Some(format!("one sample does not show what it missed: {remedy}"));
    }
    let unseen = watched.unseen_share.filter(|&share| share > UNSEEN)?;
    Some(format!(
        "about {:.0} % of the accesses go to memory that no sample saw: {remedy}",
        (unseen * 100.0).max(1.0)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use superhue_plot::{Cost, Process, Run, SCHEMA, Series, Target};

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
        assert_eq!(by_page(&heat, None), expected);
        let expected = concat!(
            " ACCESSED  RESIDENT  SAMPLES  MAPPING\n",
            " 2.00 MiB  2.00 MiB        3  200000-400000 rw-p\n",
            "    8 KiB    32 KiB       12  1000-9000 rw-p [heap]\u{fffd}\n",
            "ACCESSED: "
        );
        let said = by_mapping(&heat, None, false);
        assert!(said.starts_with(expected), "{said}");
        assert!(said.contains("\nhot set   50 %"), "{said}");
        for width in [40, 80] {
            let said = by_mapping(&heat, Some(width), false);
            let longest = said.lines().map(|line| line.chars().count()).max();
            assert!(longest <= Some(width), "{said}");
        }
    }

    #[test]
    fn a_hot_set_of_too_few_samples_says_so() {
        let mut heat = Heat {
            schema: SCHEMA.to_owned(),
            process: Process::default(),
            tracker: Target::default(),
            watched: Observation {
                samples: 2,
                unseen_share: Some(0.3),
                ..Observation::default()
            },
            hot_set: HotSet {
                bytes_50: Some(1 << 20),
                bytes_90: Some(2 << 20),
                bytes_99: Some(3 << 20),
                ..HotSet::default()
            },
            cost: None,
            mappings: Vec::new(),
            series: Series::default(),
        };
        let said = hot_set(&heat.hot_set, &heat.watched);
        assert_eq!(said.matches("at least").count(), 2, "{said}");
        assert!(too_brief(&heat).is_some_and(|why| why.contains("30 %")));
        for (samples, unseen_share, is_brief) in [
            (1, None, true),
            (8, Some(0.0), false),
            (8, Some(0.005), false),
            (8, None, false),
        ] {
            heat.watched.samples = samples;
            heat.watched.unseen_share = unseen_share;
            assert_eq!(too_brief(&heat).is_some(), is_brief, "{samples}");
        }
        heat.hot_set.bytes_99 = None;
        heat.watched.samples = 1;
        assert_eq!(too_brief(&heat), None, "nothing was accessed");
    }
}

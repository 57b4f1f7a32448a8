//! The result as text.

use superhue::procfs::hardware::{AssessedCache, Partition};
use superhue_plot::Latency;

use super::document::{Document, Oracle};
use crate::output::{self, table, text_of};

/// Returns the whole result as text.
pub(super) fn text(document: &Document) -> String {
    let mut text = caches(document);
    text += &format!("\n{}.\n", capitalised(&document.between_cpus));
    text += &oracles(&document.oracles);
    if let Some(kernel) = &document.kernel {
        text += &kernel.text();
    }
    text += &match document.used {
        Some(used) => format!(
            "\nUsed: {used}, for the colors of the {} of CPU {}.\n",
            document.cache, document.cpu
        ),
        None => format!(
            "\nNo oracle can be trusted with the colors of the {} of CPU {}.\n",
            document.cache, document.cpu
        ),
    };
    if let Some(latency) = &document.verification {
        text += &format!("\n{}", verification(latency));
    }
    text
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

fn caches(document: &Document) -> String {
    if let Some(reason) = &document.caches_reason {
        return format!("The caches are not known: {reason}\n");
    }
    let mut table = table(&[
        "CACHE",
        "SIZE",
        "WAYS",
        "COLORS",
        "USABLE",
        "FOR PARTITIONS",
    ]);
    for partition in &document.partitions {
        let cache = document
            .caches
            .iter()
            .find(|judged| is_of(judged, partition));
        let number = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |n| n.to_string());
        let size = cache.and_then(|judged| judged.cache.size);
        // `superhue check` prints the reason; the colors that are used are measured anyway.
        let doubt = partition.doubt.as_ref().map_or("", |_| " (doubtful)");
        table.add_row([
            partition.cache.clone(),
            output::size(size),
            number(cache.and_then(|judged| judged.cache.ways)),
            number(partition.colors),
            number(partition.usable_colors),
            format!("{}{doubt}", partition.explanation),
        ]);
    }
    wrap(&mut table, &[1, 2, 3, 4]);
    text_of(&table)
}

fn is_of(judged: &AssessedCache, partition: &Partition) -> bool {
    judged.cache.name() == partition.cache
        && (judged.cache.shared_by.as_ref())
            .is_none_or(|cpus| partition.domains.is_empty() || partition.domains.contains(cpus))
}

fn oracles(found: &[Oracle]) -> String {
    let mut table = table(&["ORACLE", "", "COLORS", "RIGHT", "95 % INTERVAL", "WHY"]);
    for oracle in found {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let (right, interval) = match &oracle.confidence {
            Some(found) => (
                percent(found.right),
                format!("{:.1} to {}", found.low * 100.0, percent(found.high)),
            ),
            None => ("-".to_owned(), "-".to_owned()),
        };
        table.add_row([
            oracle.name.to_owned(),
            oracle.trust.to_owned(),
            oracle
                .colors
                .map_or_else(|| "-".to_owned(), |colors| colors.to_string()),
            right,
            interval,
            why(oracle),
        ]);
    }
    wrap(&mut table, &[2, 3, 4]);
    format!("\n{}", text_of(&table))
}

fn why(oracle: &Oracle) -> String {
    let (own, foreign) = (
        &oracle.predicted_to_conflict,
        &oracle.predicted_not_to_conflict,
    );
    oracle.reason.clone().unwrap_or_else(|| {
        format!(
            "of {} pages predicted to conflict {} did, of {} others {}",
            own.tried, own.evicted, foreign.tried, foreign.evicted
        )
    })
}

fn wrap(table: &mut comfy_table::Table, right: &[usize]) {
    /// Width for terminals that do not report one, and for files.
    const WIDTH: u16 = 120;
    table.set_width(output::terminal_width().unwrap_or(WIDTH));
    table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
    output::right(table, right);
}

/// Latency by number of pages: a row for each size that any placement has.
pub(super) fn verification(latency: &Latency) -> String {
    let mut header = vec!["PAGES".to_owned()];
    header.extend(latency.arms.iter().map(|arm| arm.name.to_uppercase()));
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut table = table(&header);
    let mut sizes: Vec<u64> = (latency.arms.iter())
        .flat_map(|arm| arm.points.iter().map(|point| point.pages))
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    for pages in sizes {
        let mut row = vec![pages.to_string()];
        row.extend(latency.arms.iter().map(|arm| {
            let point = arm.points.iter().find(|point| point.pages == pages);
            let ticks = point.and_then(superhue_plot::Point::median_ticks);
            ticks.map_or_else(String::new, |ticks| {
                format!("{:.1} ns", latency.nanoseconds(ticks))
            })
        }));
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(comfy_table::CellAlignment::Right);
    }
    let cliff = &latency.cliff;
    let found = match cliff.found_pages {
        Some(found) if cliff.holds() => format!(
            "The cliff of one color stands at {found} pages, as it must: the {} ways of the {}, and one more.",
            latency.ways, latency.cache
        ),
        Some(found) => format!(
            "The cliff of one color stands at {found} pages instead of {}: these are not the colors of the {}.",
            cliff.expected_pages, latency.cache
        ),
        None => format!(
            "There is no cliff: these are not the colors of the {}.",
            latency.cache
        ),
    };
    format!("{}\n{found}\n", text_of(&table))
}

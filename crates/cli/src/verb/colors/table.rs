//! The result as text.

use superhue::procfs::hardware::{AssessedCache, Partition};
use superhue_plot::Latency;

use super::document::{Document, Oracle};
use crate::output::{self, fitted, prose, table, text_of};
use crate::sheet::{Column, Sheet, left, right};

/// Returns the whole result as text, ready to be printed.
pub(super) fn text(document: &Document, wide: bool) -> String {
    let mut text = caches(document, wide);
    text += &prose(&format!("\n{}.\n", capitalised(&document.between_cpus)));
    text += &oracles(&document.oracles, wide);
    text += &prose(&conclusion(document));
    if let Some(latency) = &document.verification {
        text += &prose(&format!("\n{}", verification(latency)));
    }
    text
}

fn conclusion(document: &Document) -> String {
    let kernel = document.kernel.as_ref();
    let kernel = kernel.map_or_else(String::new, |kernel| kernel.text());
    let (cache, cpu) = (&document.cache, document.cpu);
    match document.used {
        Some(used) => {
            format!("{kernel}\nUsed: {used}, for the colors of the {cache} of CPU {cpu}.\n")
        }
        None => format!(
            "{kernel}\nNo oracle can be trusted with the colors of the {cache} of CPU {cpu}.\n"
        ),
    }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

const CACHES: [Column; 6] = [
    left("CACHE"),
    right("SIZE"),
    right("WAYS").rank(1),
    right("COLORS"),
    right("USABLE"),
    left("FOR PARTITIONS").wrapped().rank(2),
];

fn caches(document: &Document, wide: bool) -> String {
    if let Some(reason) = &document.caches_reason {
        return prose(&format!("The caches are not known: {reason}\n"));
    }
    let mut table = Sheet::new(&CACHES);
    for partition in &document.partitions {
        let cache = document
            .caches
            .iter()
            .find(|judged| is_of(judged, partition));
        let number = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |n| n.to_string());
        let size = cache.and_then(|judged| judged.cache.size);
        // `superhue check` prints the reason; the colors that are used are measured anyway.
        let doubt = partition.doubt.as_ref().map_or("", |_| " (doubtful)");
        table.row([
            partition.cache.clone(),
            output::size(size),
            number(cache.and_then(|judged| judged.cache.ways)),
            number(partition.colors),
            number(partition.usable_colors),
            format!("{}{doubt}", partition.explanation),
        ]);
    }
    fitted(&table, wide)
}

fn is_of(judged: &AssessedCache, partition: &Partition) -> bool {
    judged.cache.name() == partition.cache
        && (judged.cache.shared_by.as_ref())
            .is_none_or(|cpus| partition.domains.is_empty() || partition.domains.contains(cpus))
}

const ORACLES: [Column; 6] = [
    left("ORACLE"),
    left(""),
    right("COLORS"),
    right("RIGHT").rank(1),
    right("95 % INTERVAL").rank(2),
    left("WHY").wrapped(),
];

fn oracles(found: &[Oracle], wide: bool) -> String {
    let mut table = Sheet::new(&ORACLES);
    for oracle in found {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let (right, interval) = match &oracle.confidence {
            Some(found) => (
                percent(found.right),
                format!("{:.1} to {}", found.low * 100.0, percent(found.high)),
            ),
            None => ("-".to_owned(), "-".to_owned()),
        };
        table.row([
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
    format!("\n{}", fitted(&table, wide))
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

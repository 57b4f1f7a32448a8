//! Text of the reasons why the memory of a process is not in huge pages.

use superhue::ProcessStatus;
use superhue::model::{ByteCount, PageCount, counted};
use superhue::why::{Amount, Machine, MappingWhy, Reason, Why};

use crate::output::{fitted, prose};
use crate::sheet::{Column, Sheet, left, right};

/// Most lines of mappings and reasons shown of a process; JSON has all.
const LINES_SHOWN: usize = 16;

/// Lines with less than this part of the resident memory are not shown.
const LEAST_SHOWN: u64 = 100;

/// Returns the machine's settings.
pub fn machine(machine: &Machine) -> String {
    let mode = |mode: Option<String>| mode.unwrap_or_else(|| "?".to_owned());
    let free = machine.free_huge_pages.map_or_else(
        || "an unknown number of free 2 MiB blocks".to_owned(),
        |free| match free {
            0 => "no free 2 MiB blocks".to_owned(),
            free => counted(free, "free 2 MiB block"),
        },
    );
    let mut text = format!(
        "Kernel: enabled={}, shmem_enabled={}; {free}\n",
        mode(machine.enabled.map(|mode| mode.to_string())),
        mode(machine.shmem_enabled.map(|mode| mode.to_string())),
    );
    if let Some(limits) = &machine.khugepaged {
        let limit = |limit: Option<u64>| limit.map_or_else(|| "?".to_owned(), |n| n.to_string());
        text += &format!(
            "khugepaged takes regions with at most {} pages missing, {} swapped out, {} shared (max_ptes_*)\n",
            limit(limits.max_ptes_none),
            limit(limits.max_ptes_swap),
            limit(limits.max_ptes_shared),
        );
    }
    text
}

/// Returns the reasons why one process's memory is not in huge pages: by mapping, in total, and the remedies.
pub fn process(process: &ProcessStatus, why: &Why, wide: bool) -> String {
    let mut text = prose(&headline(process, why));
    text += &by_mapping(why, wide);
    text += &in_total(why, wide);
    text + &prose(&advice(why))
}

fn headline(process: &ProcessStatus, why: &Why) -> String {
    format!(
        "\nProcess {} ({}): {} resident, {} of it huge{}\n",
        process.pid,
        process.name,
        why.resident_bytes,
        why.huge_bytes,
        match process.huge_pages_allowed {
            Some(false) => "; huge pages are switched off for it (PR_SET_THP_DISABLE)",
            Some(true) => "; huge pages are allowed for it",
            None => "",
        },
    )
}

fn advice(why: &Why) -> String {
    let mut text = String::from("\nWhat can be done:\n");
    for advice in &why.advice {
        text += &format!(
            "  {} ({}): {}\n",
            advice.reason.describe(),
            advice.bytes,
            advice.text
        );
    }
    if why.reasons.is_empty() {
        text += "  nothing: all of it is huge\n";
    }
    if why.sharing_unknown > 0 {
        text += &format!(
            "  Of {} it was not looked up whether other processes share them: there are too many.\n",
            counted(why.sharing_unknown, "region")
        );
    }
    text
}

const BY_MAPPING: [Column; 6] = [
    left("MAPPING").rank(3),
    right("HUGE").rank(2),
    right("NOT HUGE"),
    right("REGIONS").rank(1),
    left("WHY").wrapped(),
    left("NAME").cut().rank(4),
];

fn by_mapping(why: &Why, wide: bool) -> String {
    let mut lines: Vec<(&MappingWhy, Option<&Amount>)> = Vec::new();
    for mapping in &why.mappings {
        lines.extend(mapping.reasons.iter().map(|amount| (mapping, Some(amount))));
        if mapping.reasons.is_empty() {
            lines.push((mapping, None));
        }
    }
    let not_huge = |amount: Option<&Amount>| amount.map_or(ByteCount(0), |amount| amount.bytes);
    lines.sort_by_key(|(mapping, amount)| {
        (
            std::cmp::Reverse(not_huge(*amount)),
            std::cmp::Reverse(mapping.huge_bytes),
            mapping.range.start,
        )
    });
    let is_large = |(mapping, amount): &(&MappingWhy, Option<&Amount>)| {
        let again = mapping.mapped_again_bytes.unwrap_or_default();
        let bytes = amount.map_or(mapping.huge_bytes.max(again), |amount| amount.bytes);
        bytes.0 >= why.resident_bytes.0 / LEAST_SHOWN
    };
    let (large, mut rest): (Vec<_>, Vec<_>) = lines.into_iter().partition(is_large);
    let shown = &large[..large.len().min(LINES_SHOWN)];
    rest.extend(&large[shown.len()..]);
    let mut table = Sheet::new(&BY_MAPPING);
    for (mapping, amount) in shown {
        table.row([
            mapping.range.to_string(),
            mapping.huge_bytes.to_string(),
            not_huge(*amount).to_string(),
            amount.map_or(0, |amount| amount.regions).to_string(),
            amount.map_or_else(|| without_reason(mapping), |amount| said(mapping, amount)),
            mapping.name.clone().unwrap_or_default(),
        ]);
    }
    let mut text = fitted(&table, wide);
    if !rest.is_empty() {
        let bytes: ByteCount = rest.iter().map(|(_, amount)| not_huge(*amount)).sum();
        let lines = counted(rest.len() as u64, "smaller line");
        text += &prose(&format!(" and {lines} with {bytes} not huge\n"));
    }
    text
}

/// Returns the text for a mapping that is all in huge pages, or counted elsewhere.
fn without_reason(mapping: &MappingWhy) -> String {
    match mapping.mapped_again_bytes {
        Some(bytes) => format!("{bytes} of another mapping, mapped again"),
        None => "huge already".to_owned(),
    }
}

/// Returns the text of a reason, with facts about the mapping.
fn said(mapping: &MappingWhy, amount: &Amount) -> String {
    let swapped = amount.swapped_bytes;
    match amount.reason {
        Reason::Misaligned => format!(
            "misaligned by {:#x}",
            mapping.misaligned_by.unwrap_or_default().0
        ),
        Reason::CopyOnWrite => {
            let others = match mapping.shared_with {
                Some(others) if others < 1.05 => "1 other".to_owned(),
                Some(others) if (others - others.round()).abs() < 0.05 => {
                    format!("{others:.0} others")
                }
                Some(others) => format!("about {others:.1} others"),
                None => "others".to_owned(),
            };
            format!(
                "shared with {others} since a fork: {} to copy",
                amount.copied_bytes
            )
        }
        Reason::Sparse => format!("too sparse: a collapse adds {}", amount.growth_bytes),
        Reason::Swapped => format!("{swapped} of it are swapped out"),
        Reason::Possible if amount.growth_bytes.0 > 0 => {
            format!("could be huge now: adds {}", amount.growth_bytes)
        }
        reason => reason.describe().to_owned(),
    }
}

const IN_TOTAL: [Column; 4] = [
    left("IN TOTAL").wrapped(),
    right("BYTES"),
    right("SHARE"),
    right("REGIONS").rank(1),
];

fn in_total(why: &Why, wide: bool) -> String {
    let mut table = Sheet::new(&IN_TOTAL);
    let huge = PageCount(superhue::model::PAGES_PER_REGION).bytes();
    let huge_row = ("huge already", why.huge_bytes, why.huge_bytes.0 / huge.0);
    let reasons = why
        .reasons
        .iter()
        .map(|one| (one.reason.describe(), one.bytes, one.regions));
    for (name, bytes, regions) in std::iter::once(huge_row).chain(reasons) {
        table.row([
            name.to_owned(),
            bytes.to_string(),
            share(bytes, why.resident_bytes),
            regions.to_string(),
        ]);
    }
    table.row([
        "resident".to_owned(),
        why.resident_bytes.to_string(),
        share(why.resident_bytes, why.resident_bytes),
        String::new(),
    ]);
    format!("\n{}", fitted(&table, wide))
}

#[allow(
    clippy::cast_precision_loss,
    reason = "a share of byte counts below 2^52"
)]
fn share(part: ByteCount, whole: ByteCount) -> String {
    if whole.0 == 0 {
        return "-".to_owned();
    }
    format!("{:.1} %", part.0 as f64 / whole.0 as f64 * 100.0)
}

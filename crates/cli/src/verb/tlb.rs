//! Facts on the TLB in words.

use superhue::model::{BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE};
use superhue::tlb::{TlbEntries, TlbReport, TlbSource};

/// Returns the source of facts, for the end of a clause; empty for the processor, the usual source.
pub(super) const fn source(tlb: &TlbReport) -> &'static str {
    match tlb.source {
        Some(TlbSource::Measured) => " (measured by timing)",
        Some(TlbSource::Given) => " (given by --tlb)",
        Some(TlbSource::Cpuid) | None => "",
    }
}

/// Returns a sentence for a machine where a huge page takes many entries; empty for others.
pub(super) fn remark(tlb: &TlbReport) -> &'static str {
    match tlb.huge_pages_whole {
        Some(false) => {
            "The host maps huge pages by smaller pages, each of which takes a TLB entry: here huge pages make misses cheaper, not rarer.\n"
        }
        Some(true) | None => "",
    }
}

/// Returns names and values of all that is known.
pub(super) fn lines(tlb: &TlbReport) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    let mut levels = |entries: TlbEntries, page: u64| {
        let page = ByteCount(page);
        for (level, entries) in [("L1", entries.first), ("last", entries.last)] {
            let Some(entries) = entries else { continue };
            let reach = ByteCount(page.0.saturating_mul(entries.into()));
            let value = format!("{entries} entries reach {reach}{}", source(tlb));
            lines.push((format!("TLB {level} {page}"), value));
        }
    };
    levels(tlb.base, BASE_PAGE_SIZE);
    levels(tlb.huge, HUGE_PAGE_SIZE);
    let costs = &tlb.costs;
    let parts = [
        (costs.second_hit_seconds, "a hit in the last level"),
        (costs.walk_seconds, "a miss there"),
        (costs.full_walk_seconds, "a miss that walks all page tables"),
    ];
    let told = parts
        .into_iter()
        .filter_map(|(seconds, what)| Some(format!("{what} {:.1} ns", seconds? * 1e9)));
    let told: Vec<String> = told.collect();
    if !told.is_empty() {
        lines.push(("TLB costs".to_owned(), told.join(", ")));
    }
    let remark = remark(tlb).trim_end();
    if !remark.is_empty() {
        lines.push(("TLB 2.0 MiB".to_owned(), remark.to_owned()));
    }
    if let Some(why) = &tlb.unknown_because {
        lines.push(("TLB".to_owned(), format!("not known: {why}")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use superhue::tlb::TlbCosts;

    use super::*;

    #[test]
    fn all_that_is_known_is_told_and_nothing_else() {
        let none = TlbEntries::default();
        let mut tlb = TlbReport {
            source: None,
            base: none,
            huge: none,
            huge_pages_whole: None,
            costs: TlbCosts::default(),
            unknown_because: Some("nobody says".to_owned()),
        };
        let told = |tlb: &TlbReport| {
            lines(tlb)
                .into_iter()
                .map(|(name, value)| format!("{name}: {value}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(told(&tlb), ["TLB: not known: nobody says"]);
        tlb.unknown_because = None;
        tlb.source = Some(TlbSource::Measured);
        tlb.base = TlbEntries {
            first: Some(64),
            last: Some(1536),
        };
        tlb.huge_pages_whole = Some(false);
        tlb.costs.walk_seconds = Some(1.15e-8);
        let remark = remark(&tlb).trim_end();
        assert_eq!(
            told(&tlb),
            [
                "TLB L1 4 KiB: 64 entries reach 256 KiB (measured by timing)",
                "TLB last 4 KiB: 1536 entries reach 6.0 MiB (measured by timing)",
                "TLB costs: a miss there 11.5 ns",
                &format!("TLB 2.0 MiB: {remark}"),
            ]
        );
    }
}

//! End of the machine's memory, from `/proc/zoneinfo`.

use std::fs;

use superhue_model::BASE_PAGE_SHIFT;
use superhue_procfs::Roots;

/// Returns the first physical address behind all memory the kernel manages. Page tables lie below it.
pub(super) fn end_of_memory(roots: &Roots) -> Result<u64, String> {
    let path = roots.proc.join("zoneinfo");
    let text = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    parse(&String::from_utf8_lossy(&text))
        .ok_or_else(|| format!("{} names no memory", path.display()))
}

/// Returns the largest `start_pfn` + `spanned` of any zone (`zoneinfo_show_print` in `mm/vmstat.c`), in bytes.
fn parse(text: &str) -> Option<u64> {
    let mut spanned = None;
    let mut end = None;
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next()) {
            (Some("Node"), _) => spanned = None,
            (Some("spanned"), Some(pages)) => spanned = pages.parse::<u64>().ok(),
            (Some("start_pfn:"), Some(first)) => {
                let first = first.parse::<u64>().ok();
                let pages = spanned.take().filter(|&pages| pages > 0);
                let last = first.zip(pages).and_then(|(a, b)| a.checked_add(b));
                end = end.max(last);
            }
            _ => {}
        }
    }
    end?.checked_mul(1 << BASE_PAGE_SHIFT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_zone_counts() {
        let text = "Node 0, zone      DMA\n  pages free     2816\n        spanned  4095\n\
            \x20 start_pfn:           1\nNode 0, zone   Normal\n        spanned  100\n\
            \x20 start_pfn:           1048576\nNode 0, zone  Movable\n        spanned  0\n\
            \x20 start_pfn:           0\nNode 0, zone   Device\n        spanned  0\n\
            \x20 start_pfn:           99999999\n";
        assert_eq!(parse(text), Some((1_048_576 + 100) << 12));
        assert_eq!(parse(""), None);
        assert_eq!(parse("spanned x\nstart_pfn: 5\n"), None);
        assert_eq!(
            parse("Node\nspanned 1\nstart_pfn: 18446744073709551615\n"),
            None
        );
    }

    #[test]
    fn this_machine_has_at_least_what_it_says_it_has() {
        let roots = Roots::default();
        let total = superhue_procfs::system::MemInfo::read(&roots)
            .unwrap()
            .total
            .unwrap();
        assert!(end_of_memory(&roots).unwrap() >= total.0);
    }
}

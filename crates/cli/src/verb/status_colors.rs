//! Report of `superhue status` on a kernel with page coloring.

use superhue::model::{PageCount, counted};
use superhue::{CacheAllocationAdvice, ColoringStatus, ProcessColoring};

/// Number of named colors: those with the most fallbacks.
const NAMED: usize = 4;
/// Width of the longest bar.
const BAR: u64 = 40;
/// Most colors that are shown one by one; of more, neighbors are shown together.
const ROWS: usize = 32;

/// Returns the machine's coloring in a few lines, and in one the hardware's means to divide caches.
pub(super) fn machine(coloring: &ColoringStatus, allocation: &CacheAllocationAdvice) -> String {
    format!("{}{}\n", state(coloring), allocation.line())
}

/// Returns the machine's coloring.
fn state(coloring: &ColoringStatus) -> String {
    let switch = if coloring.enabled { "on" } else { "off" };
    let mut text = format!(
        "Page coloring: {switch}; {}, geometry {}\n",
        counted(coloring.colors as u64, "color"),
        coloring.geometry
    );
    if !coloring.enabled {
        let geometry = if coloring.colors < 2 {
            "vm.page_color_geometry=L2 "
        } else {
            ""
        };
        text += &format!("  to switch it on, as root: sysctl {geometry}vm.page_coloring=1\n");
        return text;
    }
    let spread = match coloring.spread_for_all {
        Some(true) => "take all colors in turn",
        Some(false) => "are not colored",
        None => "?",
    };
    text += &format!("  tasks without colors of their own {spread}");
    if let Some(unassigned) = &coloring.unassigned {
        text += &format!("; they and the kernel's own memory have {unassigned}");
    }
    text.push('\n');
    if coloring.by_color.is_empty() {
        return text + "  the kernel shows free and allocated pages by color only to root\n";
    }
    let free = summary(coloring.by_color.iter().map(|color| color.free));
    if let Some((least, median, most)) = free {
        text += &format!("  free pages by color: {least} to {most}, median {median}\n");
    }
    let sum = |of: fn(&superhue::procfs::system::page_color::ColorCounts) -> PageCount| {
        let counts = coloring.by_color.iter().map(of);
        counts.fold(0_u64, |sum, count| sum.saturating_add(count.0))
    };
    let (hits, fallbacks) = (sum(|color| color.hits), sum(|color| color.fallbacks));
    text += &format!("  allocations that got their color: {hits}, another: {fallbacks}");
    let mut worst: Vec<(usize, u64)> = (coloring.by_color.iter())
        .map(|color| color.fallbacks.0)
        .enumerate()
        .filter(|(_, fallbacks)| *fallbacks > 0)
        .collect();
    worst.sort_by_key(|(color, fallbacks)| (std::cmp::Reverse(*fallbacks), *color));
    let named = worst.iter().take(NAMED);
    let named: Vec<String> = named
        .map(|(color, pages)| format!("{color} ({pages})"))
        .collect();
    if !named.is_empty() {
        text += &format!(", most for colors {}", named.join(", "));
    }
    if let Some(strayed) = coloring.strayed.filter(|strayed| strayed.0 > 0) {
        text += &format!("; moved off their color: {}", strayed.0);
    }
    text + "\n"
}

/// Least, median and most.
fn summary(counts: impl Iterator<Item = PageCount>) -> Option<(u64, u64, u64)> {
    let mut counts: Vec<u64> = counts.map(|count| count.0).collect();
    counts.sort_unstable();
    let median = counts.get(counts.len() / 2)?;
    Some((*counts.first()?, *median, *counts.last()?))
}

/// Returns a number of pages, or `?` where the kernel does not show it to the caller.
fn or_unknown(pages: Option<PageCount>) -> String {
    pages.map_or_else(|| "?".to_owned(), |pages| pages.0.to_string())
}

/// Returns a process's colors, with a bar for each.
pub(super) fn process(pid: u32, coloring: &ProcessColoring) -> String {
    let strict = if coloring.strict { ", strict" } else { "" };
    let mut text = format!("\nColors of process {pid}: ");
    text += &match &coloring.set {
        Some(set) => format!(
            "{set} of {}{strict}; pages inside: {}, outside: {}\n",
            coloring.colors,
            or_unknown(coloring.inside),
            or_unknown(coloring.outside)
        ),
        None => format!(
            "any of {}; pages: {}\n",
            coloring.colors,
            or_unknown(coloring.inside)
        ),
    };
    if let Some(group) = &coloring.group {
        let strict = if group.strict == Some(true) {
            ", strict"
        } else {
            ""
        };
        text += &format!(
            "  its control group {} has {}{strict}",
            group.group, group.effective
        );
        let outcomes: Vec<String> = (group.pages.iter())
            .filter(|(_, pages)| **pages > 0)
            .map(|(name, pages)| format!("{name} {pages}"))
            .collect();
        if !outcomes.is_empty() {
            text += &format!("; pages: {}", outcomes.join(", "));
        }
        text.push('\n');
    }
    text + &bars(coloring)
}

fn bars(coloring: &ProcessColoring) -> String {
    let together = coloring.by_color.len().div_ceil(ROWS).max(1);
    let rows: Vec<(usize, usize, u64)> = (coloring.by_color.chunks(together).enumerate())
        .map(|(row, colors)| {
            let pages = colors.iter().fold(0_u64, |sum, color| {
                sum.saturating_add(color.base.0)
                    .saturating_add(color.large.0)
            });
            (row * together, row * together + colors.len() - 1, pages)
        })
        .collect();
    let most = rows.iter().map(|row| row.2).max().unwrap_or(0).max(1);
    let mut text = String::new();
    for (first, last, pages) in rows {
        let name = if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        };
        let length = u128::from(pages) * u128::from(BAR) / u128::from(most);
        let bar = "#".repeat(usize::try_from(length).unwrap_or(0));
        text += format!("  {name:>9} {pages:>9} {bar}").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use superhue::procfs::Roots;
    use superhue::procfs::process::{GroupColors, ResidentColor};
    use superhue::procfs::system::page_color::ColorCounts;

    use super::*;

    fn coloring() -> ColoringStatus {
        let counts = |free, fallbacks| ColorCounts {
            free: PageCount(free),
            hits: PageCount(10),
            fallbacks: PageCount(fallbacks),
            ..ColorCounts::default()
        };
        ColoringStatus {
            enabled: true,
            geometry: "masks:0x1000,0x2000".to_owned(),
            colors: 4,
            spread_for_all: Some(false),
            unassigned: Some("0".to_owned()),
            strayed: Some(PageCount(2)),
            by_color: vec![counts(5, 0), counts(1, 3), counts(9, 7), counts(7, 0)],
        }
    }

    #[test]
    fn the_machine_is_summed_up() {
        let text = state(&coloring());
        for part in [
            "on; 4 colors, geometry masks:0x1000,0x2000",
            "1 to 9, median 7",
            "got their color: 40, another: 10, most for colors 2 (7), 1 (3)",
            "own memory have 0",
            "off their color: 2",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let user = ColoringStatus {
            by_color: Vec::new(),
            ..coloring()
        };
        assert!(state(&user).contains("only to root"));
        assert!(!state(&user).contains("got their color"));
        let off = ColoringStatus {
            enabled: false,
            by_color: Vec::new(),
            ..coloring()
        };
        assert!(state(&off).contains("sysctl vm.page_coloring=1"));
        let unknown = ColoringStatus { colors: 1, ..off };
        assert!(state(&unknown).contains("sysctl vm.page_color_geometry=L2"));
    }

    #[test]
    fn one_line_is_on_the_means_of_the_hardware() {
        let nowhere = Roots::under("/nonexistent".as_ref());
        let allocation = CacheAllocationAdvice::read(&nowhere);
        let text = machine(&coloring(), &allocation);
        let last = text.strip_prefix(&state(&coloring())).unwrap();
        assert_eq!(last, format!("{}\n", allocation.line()));
        assert!(last.starts_with("Cache allocation (resctrl): not known: "));
        assert_eq!(last.lines().count(), 1, "{last}");
    }

    #[test]
    fn a_process_is_shown_with_its_group_and_bars() {
        let pages = |pages| ResidentColor {
            base: PageCount(pages),
            large: PageCount(0),
        };
        let group = GroupColors {
            group: "/a".to_owned(),
            effective: "0-1".to_owned(),
            strict: Some(true),
            pages: [("hit".to_owned(), 9), ("outside".to_owned(), 0)].into(),
        };
        let mut coloring = ProcessColoring {
            set: Some("0-1".to_owned()),
            strict: true,
            colors: 4,
            geometry: String::new(),
            inside: Some(PageCount(30)),
            outside: Some(PageCount(1)),
            by_color: vec![pages(20), pages(10), pages(0), pages(1)],
            group: Some(group),
        };
        let text = process(7, &coloring);
        assert!(
            text.contains("0-1 of 4, strict; pages inside: 30, outside: 1"),
            "{text}"
        );
        assert!(
            text.contains("/a has 0-1, strict; pages: hit 9\n"),
            "{text}"
        );
        let bars = text.lines().filter(|line| line.ends_with('#')).count();
        assert_eq!(bars, 3, "{text}");
        coloring.by_color = vec![pages(1); 128];
        assert!(process(7, &coloring).contains("124-127"));
        coloring.by_color.clear();
        coloring.set = None;
        assert!(process(7, &coloring).contains("any of 4"));
    }
}

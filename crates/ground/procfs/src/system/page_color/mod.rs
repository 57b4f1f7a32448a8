//! `/proc/page_color`: colors of a kernel with the project's patch series (`kernel/`).
//!
//! ```text
//!   enabled 1
//!   geometry masks:0x1000,0x2000        address bits whose parity is a bit of the color
//!   colors 4
//!   usable 2                            colors that do not partition the private caches as well
//!   origin assumed, in doubt            source of the geometry: given, or taken from the cache's size
//!   strayed 0                           pages that left their color when they were moved
//!   yielded 0                           those of strict sets that had to, for offlining and the like
//!
//!   zone 0 Normal
//!   buddy 251019                        free pages by the ordinary lists and by color:
//!   listed 251019                       read at one moment, so they are equal
//!   ready 61
//!   color free allocated hits fallbacks
//!   0 62756 1802 4012 0
//! ```

use std::ops::AddAssign;

use serde::Serialize;
use superhue_model::{BASE_PAGE_SIZE, ColorIndex, PageCount};

pub(crate) mod lines;
mod settings;

pub use settings::ColorSettings;

use super::{ParseError, file, number, switch};
use crate::{ReadError, Roots};
use lines::Lines;

/// Meaning of the absence of the file.
pub(crate) const WITHOUT: &str =
    "this kernel has no page coloring: it takes the patch series in kernel/";

/// Counts of one color in one zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ColorCounts {
    /// Free pages.
    pub free: PageCount,
    /// Allocated pages.
    pub allocated: PageCount,
    /// Pages that were allocated for their color.
    pub hits: PageCount,
    /// Allocations that requested the color and got another one.
    pub fallbacks: PageCount,
}

impl AddAssign for ColorCounts {
    /// Adds with saturation, because a file may hold nonsense.
    fn add_assign(&mut self, other: Self) {
        let add = |one: &mut PageCount, more: PageCount| one.0 = one.0.saturating_add(more.0);
        add(&mut self.free, other.free);
        add(&mut self.allocated, other.allocated);
        add(&mut self.hits, other.hits);
        add(&mut self.fallbacks, other.fallbacks);
    }
}

/// One zone (a range of page frames managed together) of one NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ColoredZone {
    /// NUMA node.
    pub node: u32,
    /// The kernel's name for the zone.
    pub name: String,
    /// Free pages by the kernel's ordinary free lists.
    pub buddy: PageCount,
    /// Free pages by the lists of colors.
    pub listed: PageCount,
    /// Counts of each color.
    pub colors: Vec<ColorCounts>,
}

/// One reading of `/proc/page_color`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PageColors {
    /// True if free pages are listed by color; without that no task can request a color.
    pub enabled: bool,
    /// Definition of a color; `None` if the kernel knows no cache with colors and has no configured geometry.
    pub index: Option<ColorIndex>,
    /// Pages that left their color when they were moved; `None` on a kernel that does not report it.
    pub strayed: Option<PageCount>,
    /// Zones that have memory; empty unless enabled, and for callers without `CAP_SYS_ADMIN`.
    pub zones: Vec<ColoredZone>,
}

impl PageColors {
    /// Reads `/proc/page_color`.
    ///
    /// # Errors
    /// [`ReadError::Missing`] on a kernel without the patch series; when the file may not be read or is
    /// malformed.
    pub fn read(roots: &Roots) -> Result<Self, ReadError> {
        file::read(&roots.proc.join("page_color"), WITHOUT, Self::parse)
    }

    /// Returns the number of colors; 1 if no cache with colors is known.
    #[must_use]
    pub fn colors(&self) -> usize {
        self.index.as_ref().map_or(1, ColorIndex::colors)
    }

    /// Returns the geometry in the kernel's words, as `page_color=` and `vm.page_color_geometry` take them.
    #[must_use]
    pub fn geometry(&self) -> String {
        geometry(self.index.as_ref())
    }

    /// Returns the command with which the administrator enables page colors.
    #[must_use]
    pub fn how_to_enable(&self) -> String {
        let geometry = if self.colors() < 2 {
            "vm.page_color_geometry=L2 "
        } else {
            ""
        };
        format!("sysctl {geometry}vm.page_coloring=1")
    }

    /// Returns the counts of each color, over all zones; empty unless enabled.
    #[must_use]
    pub fn by_color(&self) -> Vec<ColorCounts> {
        let colors = if self.zones.is_empty() {
            0
        } else {
            self.colors()
        };
        let mut sums = vec![ColorCounts::default(); colors];
        for zone in &self.zones {
            for (sum, counts) in sums.iter_mut().zip(&zone.colors) {
                *sum += *counts;
            }
        }
        sums
    }

    /// Parses the file's text.
    ///
    /// # Errors
    /// If the text does not have the format above.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut lines = Lines::of(text);
        let enabled = switch(lines.named("enabled")?)?;
        let (index, colors) = lines::colors(&mut lines)?;
        // Lines of the later patches of the series. Unused lines have to be well-formed all the same.
        lines.named_if("usable").map(number).transpose()?;
        lines.named_if("origin");
        let strayed = lines.named_if("strayed").map(number).transpose()?;
        lines.named_if("yielded").map(number).transpose()?;
        let mut zones = Vec::new();
        while let Some(line) = lines.next() {
            zones.push(zone(line, &mut lines, colors)?);
        }
        Ok(Self {
            enabled,
            index,
            strayed: strayed.map(PageCount),
            zones,
        })
    }
}

/// Describes a color in the kernel's words.
#[must_use]
pub fn geometry(index: Option<&ColorIndex>) -> String {
    let masks = index.map(|index| index.masks().map(|mask| format!("{mask:#x}")));
    match masks.map(|masks| masks.collect::<Vec<_>>().join(",")) {
        None => "none".to_owned(),
        Some(masks) if masks.is_empty() => (BASE_PAGE_SIZE / 1024).to_string(),
        Some(masks) => format!("masks:{masks}"),
    }
}

/// Parses a zone whose first line has been read.
fn zone(first: &str, lines: &mut Lines<'_>, colors: usize) -> Result<ColoredZone, ParseError> {
    let words: Vec<&str> = first.split_whitespace().collect();
    let ["zone", node, name] = words[..] else {
        return Err(ParseError::no(first, "zone"));
    };
    let node = node
        .parse()
        .map_err(|_| ParseError::no(node, "NUMA node"))?;
    let buddy = PageCount(number(lines.named("buddy")?)?);
    let listed = PageCount(number(lines.named("listed")?)?);
    lines.named("ready")?;
    lines.named("color")?;
    let counts = |color: usize| -> Result<ColorCounts, ParseError> {
        let rest = lines.named(&color.to_string())?;
        let counts: Vec<u64> = rest.split(' ').map(number).collect::<Result<_, _>>()?;
        let [free, allocated, hits, fallbacks] = counts[..] else {
            return Err(ParseError::no(rest, "row of four counts"));
        };
        Ok(ColorCounts {
            free: PageCount(free),
            allocated: PageCount(allocated),
            hits: PageCount(hits),
            fallbacks: PageCount(fallbacks),
        })
    };
    Ok(ColoredZone {
        node,
        name: name.to_owned(),
        buddy,
        listed,
        colors: (0..colors).map(counts).collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use superhue_model::{Color, Pfn};

    const TEXT: &str = "enabled 1\ngeometry masks:0x1000,0x42000\ncolors 4\nstrayed 5\n\nzone 0 DMA32\n\
        buddy 100\nlisted 100\nready 3\ncolor free allocated hits fallbacks\n\
        0 25 7 3 0\n1 26 6 2 1\n2 24 8 0 0\n3 25 7 0 0\n\nzone 1 Normal\nbuddy 4\nlisted 4\nready 0\n\
        color free allocated hits fallbacks\n0 1 0 0 0\n1 1 0 0 0\n2 1 0 0 0\n3 1 0 0 0\n";

    #[test]
    fn what_the_kernel_says_is_read() {
        let read = PageColors::parse(TEXT).unwrap();
        let index = read.index.clone().unwrap();
        assert!(read.enabled);
        assert_eq!((index.colors(), index.color_of(Pfn(0x43))), (4, Color(1)));
        assert_eq!(read.zones.len(), 2);
        let zone = &read.zones[0];
        assert_eq!(
            (zone.node, zone.name.as_str(), zone.buddy),
            (0, "DMA32", PageCount(100))
        );
        assert_eq!(zone.colors[1].fallbacks, PageCount(1));
        assert_eq!(read.zones[1].colors[3].free, PageCount(1));
        assert_eq!(read.strayed, Some(PageCount(5)));
        assert_eq!(read.geometry(), "masks:0x1000,0x42000");
        let sums = read.by_color();
        assert_eq!(
            (sums.len(), sums[1].free, sums[1].hits),
            (4, PageCount(27), PageCount(2))
        );
        let without = PageColors::parse(&TEXT.replace("strayed 5\n", "")).unwrap();
        assert_eq!((without.strayed, &without.zones), (None, &read.zones));
        let more = "usable 2\norigin assumed, in doubt\nstrayed 5\nyielded 7\n";
        let more = PageColors::parse(&TEXT.replace("strayed 5\n", more)).unwrap();
        assert_eq!(more, read);
        assert!(PageColors::parse(&TEXT.replace("strayed 5\n", "usable two\n")).is_err());
    }

    #[test]
    fn a_kernel_may_know_no_colors_or_one() {
        let none = PageColors::parse("enabled 0\ngeometry none\ncolors 1\n").unwrap();
        assert!(!none.enabled && none.index.is_none() && none.zones.is_empty());
        let one = PageColors::parse("enabled 0\ngeometry 4\ncolors 1\n").unwrap();
        assert_eq!(one.colors(), 1);
        assert_eq!(
            (none.geometry(), one.geometry()),
            ("none".to_owned(), "4".to_owned())
        );
    }

    #[test]
    fn what_is_cut_or_garbled_is_refused() {
        for (index, _) in TEXT.match_indices('\n').take(TEXT.lines().count() - 1) {
            let cut = &TEXT[..index];
            // A file may end between zones, and between the head and the first zone.
            let whole = cut.ends_with("colors 4")
                || cut.ends_with("strayed 5")
                || cut.ends_with("3 25 7 0 0")
                || cut.ends_with('\n');
            assert_eq!(PageColors::parse(cut).is_ok(), whole, "{cut:?}");
        }
        for (from, to) in [
            ("enabled 1", "enabled 2"),
            ("colors 4", "colors 8"),
            ("masks:0x1000", "masks:0x1800"),
            ("masks:0x1000", "masks:"),
            ("zone 1 Normal", "zone x Normal"),
            ("1 26 6 2 1", "1 26 6 2"),
            ("2 24 8 0 0", "5 24 8 0 0"),
        ] {
            let garbled = TEXT.replace(from, to);
            assert_ne!(garbled, TEXT);
            PageColors::parse(&garbled).unwrap_err();
        }
    }
}

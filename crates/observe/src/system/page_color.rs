//! `/proc/page_color`: colors of a kernel with the project's patch series (`kernel/`).
//!
//! ```text
//!   enabled 1
//!   geometry masks:0x1000,0x2000        address bits whose parity is a bit of the color
//!   colors 4
//!
//!   zone 0 Normal
//!   buddy 251019                        free pages by the ordinary lists and by color:
//!   listed 251019                       read at one moment, so they are equal
//!   ready 61
//!   color free allocated hits fallbacks
//!   0 62756 1802 4012 0
//! ```

use serde::Serialize;
use superhue_model::{ColorIndex, PageCount};

use super::parse::quote;
use super::{ParseError, file, number, switch};
use crate::{ReadError, Roots};

/// What a color has in one zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ColorCounts {
    /// Pages that are free.
    pub free: PageCount,
    /// Pages that are not.
    pub allocated: PageCount,
    /// Pages that were taken for their color.
    pub hits: PageCount,
    /// Allocations that should have had the color and got another.
    pub fallbacks: PageCount,
}

/// One zone (a range of frames managed together) of one NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ColoredZone {
    /// NUMA node.
    pub node: u32,
    /// The kernel's name.
    pub name: String,
    /// Free pages by the kernel's ordinary free lists.
    pub buddy: PageCount,
    /// Free pages by the lists of colors.
    pub listed: PageCount,
    /// By color.
    pub colors: Vec<ColorCounts>,
}

/// One reading of `/proc/page_color`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PageColors {
    /// Whether free pages are listed by color; without that no color can be asked for.
    pub enabled: bool,
    /// What a color is; `None` if the kernel knows no cache with colors and was told of none.
    pub index: Option<ColorIndex>,
    /// Zones that have memory; none unless enabled.
    pub zones: Vec<ColoredZone>,
}

impl PageColors {
    /// Reads `/proc/page_color`.
    ///
    /// # Errors
    /// [`ReadError::Missing`] on a kernel without the patch series; when the file may not be read or is
    /// malformed.
    pub fn read(roots: &Roots) -> Result<Self, ReadError> {
        file::read(
            &roots.proc.join("page_color"),
            "this kernel has no page coloring: it takes the patch series in kernel/",
            Self::parse,
        )
    }

    /// Reads the file's text.
    ///
    /// # Errors
    /// When it is not as above.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut lines = Lines::of(text);
        let enabled = switch(lines.named("enabled")?)?;
        let geometry = lines.named("geometry")?;
        let colors = lines.named("colors")?;
        let colors = usize::try_from(number(colors)?).unwrap_or(usize::MAX);
        let index = index(geometry)?;
        if let Some(index) = &index
            && index.colors() != colors
        {
            let text = format!("{geometry} makes {} colors, not {colors}", index.colors());
            return Err(ParseError::new(text));
        }
        let mut zones = Vec::new();
        while let Some(line) = lines.next() {
            zones.push(zone(line, &mut lines, colors)?);
        }
        Ok(Self {
            enabled,
            index,
            zones,
        })
    }
}

/// The lines that are not empty.
struct Lines<'a>(Vec<(usize, &'a str)>);

impl<'a> Lines<'a> {
    fn of(text: &'a str) -> Self {
        let lines = text.lines().enumerate();
        let mut lines: Vec<_> = lines.filter(|(_, line)| !line.trim().is_empty()).collect();
        lines.reverse();
        Self(lines)
    }

    fn next(&mut self) -> Option<&'a str> {
        self.0.pop().map(|(_, line)| line)
    }

    /// What follows the name that the next line must begin with.
    fn named(&mut self, name: &str) -> Result<&'a str, ParseError> {
        let Some((index, line)) = self.0.pop() else {
            return Err(ParseError::new(format!("it ends before `{name}`")));
        };
        let rest = line.trim().strip_prefix(name);
        let rest = rest.and_then(|rest| rest.strip_prefix(' '));
        rest.map(str::trim).ok_or_else(|| {
            ParseError::in_line(index, format!("{} is not `{name} ...`", quote(line)))
        })
    }
}

/// The index that the kernel's words describe: `none`, `4` (a cache of one page), `masks:0x1000,...`.
fn index(geometry: &str) -> Result<Option<ColorIndex>, ParseError> {
    let masks = match geometry.strip_prefix("masks:") {
        _ if geometry == "none" => return Ok(None),
        Some(list) => list.split(',').map(mask).collect::<Result<Vec<_>, _>>()?,
        None => {
            number(geometry)?;
            Vec::new()
        }
    };
    let index = ColorIndex::from_masks(&masks);
    index
        .map(Some)
        .map_err(|error| ParseError::new(error.to_string()))
}

fn mask(text: &str) -> Result<u64, ParseError> {
    let digits = text
        .strip_prefix("0x")
        .filter(|digits| !digits.starts_with('+'));
    digits
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .ok_or_else(|| ParseError::no(text, "mask"))
}

/// A zone, of which the first line has been read.
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

    const TEXT: &str = "enabled 1\ngeometry masks:0x1000,0x42000\ncolors 4\n\nzone 0 DMA32\n\
        buddy 100\nlisted 100\nready 3\ncolor free allocated hits fallbacks\n\
        0 25 7 3 0\n1 26 6 2 1\n2 24 8 0 0\n3 25 7 0 0\n\nzone 1 Normal\nbuddy 4\nlisted 4\nready 0\n\
        color free allocated hits fallbacks\n0 1 0 0 0\n1 1 0 0 0\n2 1 0 0 0\n3 1 0 0 0\n";

    #[test]
    fn what_the_kernel_says_is_read() {
        let read = PageColors::parse(TEXT).unwrap();
        let index = read.index.unwrap();
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
    }

    #[test]
    fn a_kernel_may_know_no_colors_or_one() {
        let none = PageColors::parse("enabled 0\ngeometry none\ncolors 1\n").unwrap();
        assert_eq!(
            (none.enabled, none.index, none.zones.len()),
            (false, None, 0)
        );
        let one = PageColors::parse("enabled 0\ngeometry 4\ncolors 1\n").unwrap();
        assert_eq!(one.index.unwrap().colors(), 1);
    }

    #[test]
    fn what_is_cut_or_garbled_is_refused() {
        for (index, _) in TEXT.match_indices('\n').take(TEXT.lines().count() - 1) {
            let cut = &TEXT[..index];
            // Between zones, and between the head and the first, a file may end.
            let whole =
                cut.ends_with("colors 4") || cut.ends_with("3 25 7 0 0") || cut.ends_with('\n');
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

//! Common parts of the kernel's files about page colors: named lines, a geometry, sets.

use superhue_model::{ColorIndex, ColorRequest, ColorSet};

use super::super::parse::quote;
use super::super::{ParseError, number};

/// Maximum number of colors in the kernel.
const MOST_COLORS: usize = 1024;

/// Lines of a text that are not empty.
pub(crate) struct Lines<'a>(Vec<(usize, &'a str)>);

impl<'a> Lines<'a> {
    pub(crate) fn of(text: &'a str) -> Self {
        let lines = text.lines().enumerate();
        let mut lines: Vec<_> = lines.filter(|(_, line)| !line.trim().is_empty()).collect();
        lines.reverse();
        Self(lines)
    }

    pub(crate) fn next(&mut self) -> Option<&'a str> {
        self.0.pop().map(|(_, line)| line)
    }

    /// Takes the next line if it begins with `name`, and returns the rest of it.
    pub(crate) fn named_if(&mut self, name: &str) -> Option<&'a str> {
        let (_, line) = self.0.last()?;
        let rest = line.trim().strip_prefix(name)?.strip_prefix(' ')?;
        self.0.pop();
        Some(rest.trim())
    }

    /// Takes the next line, which must begin with the name, and returns the rest of it.
    pub(crate) fn named(&mut self, name: &str) -> Result<&'a str, ParseError> {
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

/// Parses the kernel's description of an index: `none`, `4` (a cache of one page), `masks:0x1000,...`.
pub(crate) fn index(geometry: &str) -> Result<Option<ColorIndex>, ParseError> {
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

/// Parses the geometry and the number of colors, which must agree.
pub(crate) fn colors(lines: &mut Lines<'_>) -> Result<(Option<ColorIndex>, usize), ParseError> {
    let geometry = lines.named("geometry")?;
    let colors = lines.named("colors")?;
    let colors = usize::try_from(number(colors)?).unwrap_or(usize::MAX);
    let index = index(geometry)?;
    let made = index.as_ref().map_or(1, ColorIndex::colors);
    if made != colors || colors > MOST_COLORS {
        let text = format!("{geometry} makes {made} colors, not {colors}");
        return Err(ParseError::new(text));
    }
    Ok((index, colors))
}

/// Parses a set as the kernel prints it, `0-7,16`, out of `colors` colors.
pub(crate) fn set(text: &str, colors: usize) -> Result<ColorSet, ParseError> {
    let no = || ParseError::no(text, "set of colors");
    let request = text.parse::<ColorRequest>().map_err(|_| no())?;
    if !matches!(request, ColorRequest::List(_)) {
        return Err(no());
    }
    let set = request.of(colors);
    set.map_err(|error| ParseError::new(error.to_string()))?
        .ok_or_else(no)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_as_the_kernel_prints_them() {
        for text in ["0", "0-63", "0-7,16,62-63"] {
            assert_eq!(set(text, 64).unwrap().to_string(), text);
        }
        for text in [
            "", "all", "none", "spread", "off", "50%", "64", "0-64", "3-1", "0,,1",
        ] {
            assert!(set(text, 64).is_err(), "{text}");
        }
    }

    #[test]
    fn the_geometry_and_the_number_of_colors_agree() {
        let read = |text: &str| colors(&mut Lines::of(text));
        assert_eq!(read("geometry none\ncolors 1\n").unwrap(), (None, 1));
        let two = read("geometry masks:0x1000\ncolors 2\n").unwrap();
        assert_eq!(two.0.unwrap().colors(), 2);
        for text in [
            "geometry none\ncolors 2\n",
            "geometry masks:0x1000\ncolors 4\n",
            "colors 1\n",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}

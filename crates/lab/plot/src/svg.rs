//! Writes text and marks of an SVG document, in pixels, for all pictures.

use std::fmt::Write;

/// Color of a mark. The accents are from the palette of Okabe & Ito.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ink {
    /// Names and numbers.
    Text,
    /// Text and marks of less importance.
    Faint,
    /// Grid lines.
    Grid,
    /// Background of every second row.
    Band,
    /// Most important mark.
    Accent,
    /// Background of the picture.
    Paper,
    /// One of several lines.
    Line(u8),
    /// Marks of an arm. Black marks medians and yellow is hard to see on white, so arms have neither.
    Arm(usize),
}

/// The reference is mostly the first arm.
const ARMS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
];

impl Ink {
    /// Returns the color in the form of SVG: `#rrggbb`.
    #[must_use]
    pub const fn hex(self) -> &'static str {
        match self {
            Self::Text => "#1a1a1a",
            Self::Faint => "#626262",
            Self::Grid => "#dadada",
            Self::Band => "#f6f6f6",
            Self::Accent => "#d55e00",
            Self::Paper => "#ffffff",
            Self::Line(0) => "#d55e00",
            Self::Line(1) => "#e69f00",
            Self::Line(2) => "#009e73",
            Self::Line(3) => "#0072b2",
            Self::Line(_) => "#1a1a1a",
            Self::Arm(index) => ARMS[index % ARMS.len()],
        }
    }
}

/// Point of a text that its position gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// Left end.
    Left,
    /// Middle.
    Middle,
    /// Right end.
    Right,
}

/// SVG document under construction.
#[derive(Debug)]
pub struct Svg {
    text: String,
}

impl Svg {
    /// Makes a white document of `width` x `height` pixels.
    #[must_use]
    pub fn new(width: i32, height: i32, title: &str) -> Self {
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"'DejaVu Sans', Verdana, Helvetica, \
             Arial, sans-serif\">\n<title>"
        );
        escape(&mut text, title);
        text.push_str("</title>\n");
        let mut svg = Self { text };
        svg.rectangle(0, 0, width, height, Ink::Paper.hex());
        svg
    }

    /// Returns the text of the finished document.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }

    /// Draws text with its baseline at `y`.
    pub fn text(&mut self, x: i32, y: i32, size: i32, anchor: Anchor, ink: Ink, text: &str) {
        self.styled(x, y, size, anchor, ink, "", text);
    }

    /// Draws text whose top is at `y`.
    pub fn text_below(&mut self, x: i32, y: i32, size: i32, anchor: Anchor, ink: Ink, text: &str) {
        self.text(x, baseline(y, size), size, anchor, ink, text);
    }

    /// Draws bold text whose top left corner is at `x`, `y`.
    pub fn bold_below(&mut self, x: i32, y: i32, size: i32, ink: Ink, text: &str) {
        self.bold(x, baseline(y, size), size, ink, text);
    }

    /// Draws bold text that begins at `x`.
    pub fn bold(&mut self, x: i32, y: i32, size: i32, ink: Ink, text: &str) {
        self.styled(x, y, size, Anchor::Left, ink, " font-weight=\"bold\"", text);
    }

    /// Draws text over lines, with a white outline that keeps the lines at a distance.
    pub fn over(&mut self, x: i32, y: i32, size: i32, anchor: Anchor, text: &str) {
        let halo = " stroke=\"#ffffff\" stroke-width=\"4\" paint-order=\"stroke\"";
        self.styled(x, y, size, anchor, Ink::Text, halo, text);
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "private; its callers name what they fix"
    )]
    fn styled(
        &mut self,
        x: i32,
        y: i32,
        size: i32,
        anchor: Anchor,
        ink: Ink,
        style: &str,
        text: &str,
    ) {
        let anchor = match anchor {
            Anchor::Left => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::Right => " text-anchor=\"end\"",
        };
        let ink = ink.hex();
        self.raw(format_args!(
            "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" fill=\"{ink}\"{anchor}{style}>"
        ));
        escape(&mut self.text, text);
        self.text.push_str("</text>\n");
    }

    /// Draws a filled rectangle; `fill` is a color or a pattern.
    pub fn rectangle(&mut self, x: i32, y: i32, width: i32, height: i32, fill: &str) {
        self.raw(format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\"/>\n"
        ));
    }

    /// Draws a straight line.
    pub fn line(&mut self, from: (i32, i32), to: (i32, i32), ink: Ink, width: f32) {
        self.stroke(&[from, to], ink, width, "");
    }

    /// Draws a faint dashed line.
    pub fn dashed(&mut self, from: (i32, i32), to: (i32, i32)) {
        self.stroke(&[from, to], Ink::Faint, 1.0, " stroke-dasharray=\"3 3\"");
    }

    /// Draws straight lines from point to point.
    pub fn polyline(&mut self, points: &[(i32, i32)], ink: Ink, width: f32) {
        self.stroke(points, ink, width, " stroke-linejoin=\"round\"");
    }

    fn stroke(&mut self, points: &[(i32, i32)], ink: Ink, width: f32, style: &str) {
        self.text.push_str("<path d=\"");
        for (index, (x, y)) in points.iter().enumerate() {
            let letter = if index == 0 { 'M' } else { 'L' };
            // Lines of one pixel lie on pixels, not between them.
            self.raw(format_args!("{letter}{x}.5 {y}.5"));
        }
        let ink = ink.hex();
        self.raw(format_args!(
            "\" fill=\"none\" stroke=\"{ink}\" stroke-width=\"{width}\"{style}/>\n"
        ));
    }

    /// Draws a filled circle of the given `opacity` (0 to 1), because many circles may overlap.
    pub fn dot(&mut self, x: i32, y: i32, radius: i32, ink: Ink, opacity: f32) {
        let ink = ink.hex();
        self.raw(format_args!(
            "<circle cx=\"{x}.5\" cy=\"{y}.5\" r=\"{radius}\" fill=\"{ink}\""
        ));
        if opacity < 1.0 {
            self.raw(format_args!(" fill-opacity=\"{opacity}\""));
        }
        self.text.push_str("/>\n");
    }

    /// Draws a filled triangle whose tip is at `(x, y)`: a value beyond the upper end of an axis, or the lower one.
    pub fn beyond(&mut self, (x, y): (i32, i32), is_above: bool, ink: Ink, opacity: f32) {
        const HALF: i32 = 4;
        let base = if is_above { y + 2 * HALF } else { y - 2 * HALF };
        let (left, right) = (x - HALF, x + HALF);
        let ink = ink.hex();
        self.raw(format_args!(
            "<path d=\"M{x}.5 {y}.5L{left}.5 {base}.5L{right}.5 {base}.5Z\" fill=\"{ink}\" fill-opacity=\"{opacity}\"/>\n"
        ));
    }

    /// Appends markup that needs no escaping.
    pub fn raw(&mut self, markup: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(markup);
    }
}

/// Returns the baseline of text whose top is at `y`.
const fn baseline(y: i32, size: i32) -> i32 {
    y + (size * 76 + 50) / 100
}

/// Escapes text: names of processes and mappings are arbitrary, and characters that XML does not allow become U+FFFD.
fn escape(to: &mut String, text: &str) {
    for letter in text.chars() {
        match letter {
            '&' => to.push_str("&amp;"),
            '<' => to.push_str("&lt;"),
            '>' => to.push_str("&gt;"),
            // Marks of direction would reverse the rest of the line.
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                to.push('\u{fffd}');
            }
            '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}' => {
                to.push('\u{fffd}');
            }
            letter => to.push(letter),
        }
    }
}

/// Returns the approximate width of a text in DejaVu Sans; other fonts are mostly narrower.
#[allow(clippy::cast_possible_truncation, reason = "pixels of a picture")]
#[must_use]
pub fn text_width(text: &str, size: i32) -> i32 {
    let ems: f64 = text.chars().map(ems).sum();
    (ems * f64::from(size)).ceil().min(1e6) as i32
}

fn ems(letter: char) -> f64 {
    match letter {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '\'' | ' ' | '/' | '|' => 0.34,
        'f' | 't' | 'r' | '-' | '[' | ']' | '(' | ')' => 0.41,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '\u{2026}' => 0.99,
        'A'..='Z' => 0.72,
        // Chinese, Japanese, Korean, emoji.
        '\u{1100}'.. => 1.0,
        _ => 0.64,
    }
}

/// Breaks a text at blanks into lines of at most `room` pixels; a longer word is shortened.
#[must_use]
pub fn wrap(text: &str, size: i32, room: i32) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        if let Some(line) = lines.last_mut() {
            let longer = format!("{line} {word}");
            if text_width(&longer, size) <= room {
                *line = longer;
                continue;
            }
        }
        lines.push(fit(word, size, room));
    }
    lines
}

/// Returns the text, shortened in the middle if it would be wider than `room`.
#[must_use]
pub fn fit(text: &str, size: i32, room: i32) -> String {
    // No picture has room for more, and names may be very long.
    let letters: Vec<char> = text.chars().take(1000).collect();
    let mut short: String = letters.iter().collect();
    let mut kept = letters.len();
    while text_width(&short, size) > room && kept > 1 {
        kept -= 1;
        let head = kept.div_ceil(2);
        let tail = &letters[letters.len() - (kept - head)..];
        short = letters[..head]
            .iter()
            .chain(&['\u{2026}'])
            .chain(tail)
            .collect();
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_broken_at_blanks() {
        let text = "huge pages are worth it for this program";
        let lines = wrap(text, 10, 100);
        assert!(lines.len() > 1);
        assert!(
            lines.iter().all(|line| text_width(line, 10) <= 100),
            "{lines:?}"
        );
        assert_eq!(lines.join(" "), text);
        let long = wrap(
            "a-word-that-is-longer-than-there-is-room-for and more",
            10,
            100,
        );
        assert!(long[0].contains('\u{2026}') && text_width(&long[0], 10) <= 100);
        assert_eq!(long[1], "and more");
        assert_eq!(wrap("  ", 10, 100), Vec::<String>::new());
    }

    #[test]
    fn names_cannot_break_the_document() {
        let mut svg = Svg::new(10, 10, "<a&b>\u{0}");
        svg.text(
            0,
            0,
            10,
            Anchor::Left,
            Ink::Text,
            "</text>\u{1b}[0m\u{ffff}",
        );
        let text = svg.finish();
        assert!(text.contains("&lt;a&amp;b&gt;\u{fffd}"));
        assert!(text.contains("&lt;/text&gt;\u{fffd}[0m\u{fffd}"));
    }

    #[test]
    fn long_names_are_shortened_in_the_middle() {
        assert_eq!(fit("short", 12, 200), "short");
        let long = fit(&"libverylongname".repeat(200), 12, 150);
        assert!(
            text_width(&long, 12) <= 150 && long.contains('\u{2026}'),
            "{long}"
        );
        assert!(long.starts_with("libv"), "{long}");
        assert_eq!(fit("", 12, 0), "");
    }
}

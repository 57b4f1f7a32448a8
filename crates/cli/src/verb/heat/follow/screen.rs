//! Contents of the terminal.
//!
//! ```text
//!   redis-server (4711)  redis-server *:6379
//!   all memory, tracker ptwalk: 52 samples of 50 to 400 ms, 12 s watched
//!   hot set  50 %: 3.1 MiB  90 %: 20 MiB  99 %: 31 MiB  of 120 MiB resident
//!   cost     0.4 % of a CPU, process slowed by 0.2 % (estimated)
//!
//!                 [heap]  ..::##::..::##:##   12.0 MiB  4 KiB
//!                         oldest  ->  newest
//! ```

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use superhue_measure::human::shorten;
use superhue_plot::{Band, Cell, Heat, color, decode, how, size};

use crate::terminal::printable;

/// Number of lines above the bands, and below.
const HEAD: u16 = 5;
const FOOT: u16 = 1;
/// Least size at which bands are drawn.
const MIN_SCREEN_SIZE: (u16, u16) = (30, 8);
/// Upper and lower half of a character cell in two colors.
const HALVES: &str = "\u{2580}";
const LOWER: &str = "\u{2584}";

/// Colors of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Colors {
    /// All colors.
    Full,
    /// The 256 colors of nearly all terminals.
    Few,
}

impl Colors {
    /// Reads `COLORTERM`, in which terminals with all colors announce them.
    pub(super) fn of_terminal() -> Self {
        match std::env::var("COLORTERM") {
            Ok(said) if said == "truecolor" || said == "24bit" => Self::Full,
            _ => Self::Few,
        }
    }

    fn of(self, cell: Cell) -> Option<Color> {
        let [red, green, blue] = color(cell)?;
        Some(match self {
            Self::Full => Color::Rgb(red, green, blue),
            Self::Few => {
                // The cube of 6 x 6 x 6 colors begins at 16.
                let step = |part: u8| (u16::from(part) * 5 + 127) / 255;
                let index = 16 + 36 * step(red) + 6 * step(green) + step(blue);
                Color::Indexed(u8::try_from(index).unwrap_or(16))
            }
        })
    }
}

/// Draws everything.
pub(super) fn draw(buffer: &mut Buffer, area: Rect, heat: &Heat, hint: &str, colors: Colors) {
    let plain = Style::new();
    let bold = plain.add_modifier(Modifier::BOLD);
    let faint = plain.add_modifier(Modifier::DIM);
    let title = format!("{} ({})", heat.process.name, heat.process.pid);
    write(buffer, area, 0, 0, &title, bold);
    let after = u16::try_from(title.chars().count() + 2).unwrap_or(u16::MAX);
    write(
        buffer,
        area,
        after,
        0,
        &heat.process.command.join(" "),
        faint,
    );
    write(buffer, area, 0, 1, &how(heat), plain);
    write(buffer, area, 0, 2, &hot_set(heat), plain);
    write(buffer, area, 0, 3, &cost(heat), plain);
    let foot = area.height.saturating_sub(FOOT);
    if area.width >= MIN_SCREEN_SIZE.0 && area.height >= MIN_SCREEN_SIZE.1 {
        let body = Rect {
            y: area.y + HEAD,
            height: area.height - HEAD - FOOT,
            ..area
        };
        draw_bands(buffer, body, heat, colors);
    }
    if area.height > HEAD {
        write(buffer, area, 0, foot, hint, faint);
    }
}

fn hot_set(heat: &Heat) -> String {
    let hot = &heat.hot_set;
    let resident = size(hot.resident_bytes);
    match (hot.bytes_50, hot.bytes_90, hot.bytes_99) {
        (Some(half), Some(most), Some(nearly_all)) => format!(
            "hot set  50 %: {}  90 %: {}  99 %: {}  of {resident} resident",
            size(half),
            size(most),
            size(nearly_all)
        ),
        _ => format!("hot set  none seen so far, {resident} resident"),
    }
}

fn cost(heat: &Heat) -> String {
    heat.cost.map_or_else(String::new, |cost| {
        format!(
            "cost     {:.2} % of a CPU, process slowed by {:.2} % (estimated)",
            cost.own_cpu_share * 100.0,
            cost.target_slowdown * 100.0
        )
    })
}

/// Writes a line as far as there is room; control characters do not reach the terminal.
fn write(buffer: &mut Buffer, area: Rect, x: u16, y: u16, text: &str, style: Style) {
    if x >= area.width || y >= area.height {
        return;
    }
    let room = usize::from(area.width - x);
    buffer.set_stringn(area.x + x, area.y + y, printable(text), room, style);
}

fn draw_bands(buffer: &mut Buffer, area: Rect, heat: &Heat, colors: Colors) {
    let names = if area.width >= 80 { 22 } else { 12 };
    let sizes = if area.width >= 60 { 22 } else { 0 };
    let field = Rect {
        x: area.x + names,
        width: area.width - names - sizes,
        ..area
    };
    let lines = lines(&heat.series.bands, area.height);
    let mut y = 0;
    for (band, lines) in heat.series.bands.iter().zip(lines) {
        if lines == 0 {
            continue;
        }
        let label: String = shorten(&band.label, usize::from(names - 2));
        let indent = usize::from(names - 1).saturating_sub(label.chars().count() + 1);
        let middle = y + lines / 2;
        let style = Style::new();
        write(
            buffer,
            area,
            u16::try_from(indent).unwrap_or(0),
            middle,
            &label,
            style,
        );
        if sizes > 0 {
            let text = format!("{:>11}  {}", size(band.bytes), pages(band));
            write(buffer, area, area.width - sizes, middle, &text, style);
        }
        let place = Rect {
            y: area.y + y,
            height: lines,
            ..field
        };
        draw_band(buffer, place, band, colors);
        y += lines;
    }
    let hidden = lines_hidden(&heat.series.bands, area.height);
    if hidden > 0 {
        let text = format!("and {hidden} smaller");
        let style = Style::new().add_modifier(Modifier::DIM);
        write(buffer, area, 0, area.height - 1, &text, style);
    }
}

fn lines_hidden(bands: &[Band], height: u16) -> usize {
    lines(bands, height)
        .into_iter()
        .filter(|&lines| lines == 0)
        .count()
}

/// Returns the number of lines of each band: one, and more for large ones. If there are too few lines, the smallest
/// bands get none, and the last line reports that.
fn lines(bands: &[Band], height: u16) -> Vec<u16> {
    let height = usize::from(height);
    let mut lines = vec![0u16; bands.len()];
    let mut by_size: Vec<usize> = (0..bands.len()).collect();
    by_size.sort_by_key(|&index| std::cmp::Reverse(bands[index].bytes));
    let shown = if bands.len() > height {
        height.saturating_sub(1)
    } else {
        bands.len()
    };
    by_size.truncate(shown);
    let total: u64 = by_size.iter().map(|&index| bands[index].bytes).sum();
    let free = height.saturating_sub(shown.max(usize::from(bands.len() > height)));
    let mut left = free;
    for &index in &by_size {
        let share = u128::from(bands[index].bytes) * free as u128 / u128::from(total.max(1));
        let more = usize::try_from(share).unwrap_or(free).min(left);
        left -= more;
        lines[index] = u16::try_from(1 + more).unwrap_or(u16::MAX);
    }
    lines
}

/// The newest columns, one character wide each (wider while there are few), newest at the right.
fn draw_band(buffer: &mut Buffer, place: Rect, band: &Band, colors: Colors) {
    let room = usize::from(place.width);
    let wide = (room / band.cells.len().max(1)).clamp(1, 3);
    let fits = (room / wide).min(band.cells.len());
    let newest = &band.cells[band.cells.len() - fits..];
    let halves = usize::from(place.height) * 2;
    for (column, cells) in newest.iter().enumerate() {
        for line in 0..place.height {
            let half = |index: usize| {
                let start = index * band.rows as usize / halves;
                let end = ((index + 1) * band.rows as usize / halves).max(start + 1);
                let letters = cells.as_bytes().get(start..end).unwrap_or_default();
                colors.of(hottest(letters))
            };
            let (upper, lower) = (half(usize::from(line) * 2), half(usize::from(line) * 2 + 1));
            let (symbol, style) = match (upper, lower) {
                (None, None) => (" ", Style::new()),
                (Some(upper), None) => (HALVES, Style::new().fg(upper)),
                (None, Some(lower)) => (LOWER, Style::new().fg(lower)),
                (Some(upper), Some(lower)) => (HALVES, Style::new().fg(upper).bg(lower)),
            };
            for part in 0..wide {
                let x = place.x + u16::try_from(column * wide + part).unwrap_or(u16::MAX);
                if let Some(cell) = buffer.cell_mut((x, place.y + line)) {
                    cell.set_symbol(symbol).set_style(style);
                }
            }
        }
    }
}

fn hottest(letters: &[u8]) -> Cell {
    let heat = |cell: &Cell| match cell {
        Cell::Absent => -1.0,
        Cell::Heat(heat) => *heat,
    };
    (letters.iter())
        .filter_map(|&letter| decode(letter))
        .max_by(|a, b| heat(a).total_cmp(&heat(b)))
        .unwrap_or(Cell::Absent)
}

fn pages(band: &Band) -> String {
    match band.huge_bytes {
        0 => "4 KiB".to_owned(),
        huge if huge >= band.bytes => "2 MiB".to_owned(),
        huge => format!(
            "{} % 2M",
            (huge.saturating_mul(100) / band.bytes.max(1)).clamp(1, 99)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use superhue_plot::{Column, EndReason, HotSet, Observation, Process, SCHEMA, Series, Target};

    fn band(label: &str, bytes: u64, cells: &[&str]) -> Band {
        Band {
            label: label.to_owned(),
            mappings: 1,
            bytes,
            huge_bytes: 0,
            segments: vec![[0x1000, 0x1000 + bytes]],
            rows: u32::try_from(cells[0].len()).unwrap(),
            cells: cells.iter().map(|&cells| cells.to_owned()).collect(),
        }
    }

    fn heat(bands: Vec<Band>) -> Heat {
        let column = |n: u32| Column {
            from_seconds: f64::from(n),
            to_seconds: f64::from(n + 1),
            samples: 1,
        };
        Heat {
            schema: SCHEMA.to_owned(),
            process: Process {
                pid: 7,
                name: "evil\u{1b}[2J".to_owned(),
                command: vec!["evil".to_owned(), "\n".to_owned()],
            },
            tracker: Target::default(),
            watched: Observation {
                ended: EndReason::Duration,
                ..Observation::default()
            },
            hot_set: HotSet::default(),
            cost: None,
            mappings: Vec::new(),
            series: Series {
                columns: (0..2).map(column).collect(),
                bands,
            },
        }
    }

    fn screen(width: u16, height: u16, heat: &Heat) -> Buffer {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        draw(&mut buffer, area, heat, "q ends", Colors::Full);
        buffer
    }

    fn line(buffer: &Buffer, y: u16) -> String {
        (0..buffer.area.width)
            .map(|x| buffer[(x, y)].symbol())
            .collect()
    }

    #[test]
    fn bands_are_drawn_with_names_sizes_and_colors() {
        let bands = vec![
            band("[heap]", 1 << 20, &["0z", "z."]),
            band("anonymous", 20 << 20, &["00", "zz"]),
        ];
        let buffer = screen(100, 24, &heat(bands));
        let text: Vec<String> = (0..24).map(|y| line(&buffer, y)).collect();
        let all = text.join("\n");
        assert!(!all.contains('\u{1b}'), "{all:?}");
        assert!(
            text[5].contains("[heap]") && text[5].contains("1.00 MiB"),
            "{all}"
        );
        assert!(
            all.contains("anonymous") && text[23].starts_with("q ends"),
            "{all}"
        );
        // First column of the heap: idle above, always touched below.
        let cell = &buffer[(22, 5)];
        let of = |heat| Colors::Full.of(Cell::Heat(heat)).unwrap();
        assert_eq!((cell.fg, cell.bg), (of(0.0), of(1.0)));
        // Second: touched above, nothing below.
        let cell = &buffer[(25, 5)];
        assert_eq!((cell.symbol(), cell.fg), (HALVES, of(1.0)));
    }

    #[test]
    fn every_size_can_be_drawn() {
        let bands: Vec<Band> = (0..26).map(|n| band("x", n << 12, &["0", "z"])).collect();
        let heat = heat(bands);
        for width in [0, 1, 5, 30, 59, 60, 79, 80, 300] {
            for height in [0, 1, 4, 5, 6, 7, 8, 9, 30, 100] {
                screen(width, height, &heat);
            }
        }
        let text: Vec<String> = (0..12).map(|y| line(&screen(80, 12, &heat), y)).collect();
        assert!(text[10].contains("and 21 smaller"), "{text:?}");
    }

    #[test]
    fn terminals_with_few_colors_get_the_nearest() {
        for heat in [0.0, 0.3, 1.0] {
            let Some(Color::Indexed(index)) = Colors::Few.of(Cell::Heat(heat)) else {
                panic!("no color of the cube");
            };
            assert!((16..=231).contains(&index));
        }
        assert_eq!(Colors::Few.of(Cell::Absent), None);
    }
}

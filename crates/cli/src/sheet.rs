//! Tables that fit the terminal.
//!
//! ```text
//!   natural width of all columns <= room?            as it is
//!   else cut names and wrap sentences to their least width
//!   still too wide?                                  leave out the column with the greatest rank, and so on
//!   room to spare?                                   give it back to names and sentences, from left to right
//! ```
//!
//! Without a terminal nothing is cut: another program may read the table.

use ratatui::text::Span;
use superhue::model::words;
use superhue_measure::human::shorten;

use crate::paint::{Paint, Shade};

/// Least width of a name that is cut in its middle.
const LEAST_NAME: usize = 12;

/// Least width of a column whose text is wrapped at spaces.
const LEAST_TEXT: usize = 18;

/// Width of such a column without a terminal: longer lines are hard to read.
const READABLE: usize = 60;

/// Width to which names shrink where there is room for nothing else.
const SHORTEST_NAME: usize = 4;

/// Width to which sentences are wrapped where there is room for nothing else.
const SHORTEST_LINE: usize = 8;

/// Blanks around a cell.
const PADDING: usize = 2;

/// Treatment of a column's text that is wider than the room for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// The text keeps its width.
    Whole,
    /// The text loses its middle.
    Cut,
    /// The text continues on the next line.
    Wrap,
}

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    title: &'static str,
    is_right: bool,
    rank: u8,
    fit: Fit,
    shade: Option<fn(&str) -> Option<Shade>>,
}

/// A column of words.
pub const fn left(title: &'static str) -> Column {
    Column {
        title,
        is_right: false,
        rank: 0,
        fit: Fit::Whole,
        shade: None,
    }
}

/// A column of numbers.
pub const fn right(title: &'static str) -> Column {
    let column = left(title);
    Column {
        is_right: true,
        ..column
    }
}

impl Column {
    /// Lets the column be left out for lack of room; those with the greatest rank go first. Rank 0 stays.
    #[must_use]
    pub const fn rank(self, rank: u8) -> Self {
        Self { rank, ..self }
    }

    /// Lets names in the column lose their middle.
    #[must_use]
    pub const fn cut(self) -> Self {
        Self {
            fit: Fit::Cut,
            ..self
        }
    }

    /// Lets sentences in the column continue on the next line.
    #[must_use]
    pub const fn wrapped(self) -> Self {
        Self {
            fit: Fit::Wrap,
            ..self
        }
    }

    /// Chooses a color by the text of a cell.
    #[must_use]
    pub const fn shaded(self, shade: fn(&str) -> Option<Shade>) -> Self {
        Self {
            shade: Some(shade),
            ..self
        }
    }

    fn least(self, natural: usize) -> usize {
        match self.fit {
            Fit::Whole => natural,
            Fit::Cut => natural.min(LEAST_NAME.max(self.title.len())),
            Fit::Wrap => natural.min(LEAST_TEXT),
        }
    }
}

/// A table with a line of titles.
#[derive(Debug, Clone)]
pub struct Sheet {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

/// A table as text, with the titles of the columns for which there was no room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FittedSheet {
    /// Lines, each with its end. Foreign characters in it are harmless.
    pub text: String,
    /// Titles of the columns that were left out.
    pub left_out: Vec<&'static str>,
}

impl FittedSheet {
    /// Returns a line that names the columns that were left out, and the option that shows them; empty if there are none.
    pub fn note(&self) -> String {
        match self.left_out.is_empty() {
            true => String::new(),
            false => format!(
                "not shown: {} (--wide shows all)\n",
                self.left_out.join(", ")
            ),
        }
    }
}

impl Sheet {
    /// Makes a table without rows.
    #[must_use]
    pub fn new(columns: &[Column]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; missing cells are empty.
    pub fn row<T: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let harmless = |cell: T| words::harmless(cell.as_ref()).into_owned();
        self.rows.push(cells.into_iter().map(harmless).collect());
    }

    /// Formats the table for a terminal of `room` columns; in full without one.
    #[must_use]
    pub fn fitted(&self, room: Option<usize>, paint: Paint) -> FittedSheet {
        let natural: Vec<usize> = (self.columns.iter().enumerate())
            .map(|(at, column)| {
                let cells = self.rows.iter().map(|row| width(cell(row, at)));
                cells.max().unwrap_or(0).max(width(column.title))
            })
            .collect();
        let kept = self.kept(&natural, room);
        let widths = self.widths(&natural, &kept, room);
        let titles: Vec<String> = (self.columns.iter())
            .map(|column| column.title.to_owned())
            .collect();
        let mut text = self.lines(&titles, &kept, &widths, Paint::Plain);
        for row in &self.rows {
            text += &self.lines(row, &kept, &widths, paint);
        }
        let is_out = |(at, _): &(usize, &Column)| !kept.contains(at);
        let left_out = self.columns.iter().enumerate().filter(is_out);
        FittedSheet {
            text,
            left_out: left_out.map(|(_, column)| column.title).collect(),
        }
    }

    /// Returns the columns for which there is room, if names and sentences are as narrow as can be.
    fn kept(&self, natural: &[usize], room: Option<usize>) -> Vec<usize> {
        let mut kept: Vec<usize> = (0..self.columns.len()).collect();
        let Some(room) = room else { return kept };
        let least = |kept: &[usize]| -> usize {
            let of = |&at: &usize| self.columns[at].least(natural[at]) + PADDING;
            kept.iter().map(of).sum()
        };
        while least(&kept) > room + 1 {
            let worst = kept.iter().map(|&at| self.columns[at].rank).max();
            let Some(worst) = worst.filter(|&rank| rank > 0) else {
                break;
            };
            kept.retain(|&at| self.columns[at].rank != worst);
        }
        kept
    }

    /// Returns the width of each kept column; names and sentences share what the others leave.
    fn widths(&self, natural: &[usize], kept: &[usize], room: Option<usize>) -> Vec<usize> {
        let Some(room) = room else {
            let whole = |&at: &usize| match self.columns[at].fit {
                Fit::Wrap => natural[at].min(READABLE),
                Fit::Whole | Fit::Cut => natural[at],
            };
            return kept.iter().map(whole).collect();
        };
        let least = kept.iter().map(|&at| self.columns[at].least(natural[at]));
        let mut widths: Vec<usize> = least.collect();
        // The last blank needs no column.
        let used: usize = widths.iter().map(|width| width + PADDING).sum();
        let mut spare = (room + 1).saturating_sub(used);
        let mut excess = used.saturating_sub(room + 1);
        for (fit, shortest) in [(Fit::Cut, SHORTEST_NAME), (Fit::Wrap, SHORTEST_LINE)] {
            for (width, &at) in widths.iter_mut().zip(kept) {
                if self.columns[at].fit == fit {
                    let less = excess.min(width.saturating_sub(shortest));
                    *width -= less;
                    excess -= less;
                }
            }
        }
        for (width, &at) in widths.iter_mut().zip(kept) {
            let more = (natural[at] - *width).min(spare);
            *width += more;
            spare -= more;
        }
        widths
    }

    /// Formats one row, as several lines if a sentence is wrapped.
    fn lines(&self, row: &[String], kept: &[usize], widths: &[usize], paint: Paint) -> String {
        let cells: Vec<Vec<String>> = (kept.iter().zip(widths))
            .map(|(&at, &room)| {
                let text = cell(row, at);
                match self.columns[at].fit {
                    Fit::Wrap => wrapped(text, room),
                    Fit::Cut => vec![shorten(text, room)],
                    Fit::Whole => vec![text.to_owned()],
                }
            })
            .collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(1);
        let mut text = String::new();
        for number in 0..height {
            let mut line = String::new();
            for ((&at, &room), parts) in kept.iter().zip(widths).zip(&cells) {
                let part = parts.get(number).map_or("", String::as_str);
                let blanks = " ".repeat(room.saturating_sub(width(part)));
                let column = &self.columns[at];
                let shade = column.shade.and_then(|shade| shade(cell(row, at)));
                let part = paint.text(part, shade);
                line += &match column.is_right {
                    true => format!(" {blanks}{part} "),
                    false => format!(" {part}{blanks} "),
                };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

/// Returns the text of a cell; nothing if the row is shorter.
fn cell(row: &[String], column: usize) -> &str {
    row.get(column).map_or("", String::as_str)
}

/// Returns the columns that a text takes in a terminal.
fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Breaks a text at spaces into lines of at most `room` columns; a longer word is cut into pieces.
pub fn wrapped(text: &str, room: usize) -> Vec<String> {
    let room = room.max(1);
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        let gap = usize::from(!line.is_empty());
        if width(&line) + gap + width(word) > room && !line.is_empty() {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        let mut word = word;
        while width(word) > room {
            let letters = word.char_indices().map(|(at, _)| at);
            let end = letters.take(room + 1).last().unwrap_or(word.len());
            let (piece, rest) = word.split_at(end);
            lines.push(piece.to_owned());
            word = rest;
        }
        line += word;
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        left("NAME").cut(),
        right("SIZE"),
        left("WHY").wrapped(),
        right("MORE").rank(1),
    ];

    fn sheet() -> Sheet {
        let mut sheet = Sheet::new(&COLUMNS);
        let why = "the kernel refuses it, as it does everywhere";
        sheet.row(["a-service-with-a-long-name.service", "12 MiB", why, "9"]);
        sheet.row(["b\u{1b}[2J", "1 KiB", "", ""]);
        sheet
    }

    #[test]
    fn nothing_is_cut_without_a_terminal() {
        let fitted = sheet().fitted(None, Paint::Plain);
        assert!(fitted.text.contains("a-service-with-a-long-name.service"));
        assert!(fitted.text.contains("refuses it, as it does everywhere"));
        assert_eq!(fitted.text.lines().count(), 3);
        assert!(!fitted.text.contains('\u{1b}'));
        assert!(fitted.left_out.is_empty());
    }

    #[test]
    fn every_line_fits_and_the_least_important_column_goes_first() {
        for room in [36, 40, 44, 50, 80, 200] {
            let fitted = sheet().fitted(Some(room), Paint::Plain);
            let longest = fitted.text.lines().map(width).max().unwrap();
            assert!(longest <= room, "{room}: {}", fitted.text);
            assert_eq!(fitted.left_out.is_empty(), room > 48, "{room}");
        }
        let fitted = sheet().fitted(Some(44), Paint::Plain);
        assert_eq!(fitted.left_out, ["MORE"]);
        assert!(fitted.note().contains("MORE"));
        let words: Vec<&str> = fitted.text.split_whitespace().collect();
        assert!(words.contains(&"everywhere"), "no word is lost: {words:?}");
    }

    #[test]
    fn colors_do_not_change_the_width() {
        let shade: fn(&str) -> Option<Shade> = |text| (text == "no").then_some(Shade::Bad);
        let mut sheet = Sheet::new(&[left("A").shaded(shade), right("B")]);
        sheet.row(["no", "1"]);
        let plain = sheet.fitted(Some(80), Paint::Plain).text;
        let painted = sheet.fitted(Some(80), Paint::Ansi).text;
        assert!(painted.contains("\u{1b}[31mno\u{1b}[0m"));
        let stripped = painted.replace("\u{1b}[31m", "").replace("\u{1b}[0m", "");
        assert_eq!(stripped, plain);
    }

    #[test]
    fn texts_are_broken_at_spaces_and_long_words_in_pieces() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("abcdefgh i", 3), ["abc", "def", "gh", "i"]);
        assert_eq!(wrapped("", 5), [""]);
    }
}

//! Columns of a text table, fitted to a width.
//!
//! ```text
//!   all columns fit                     a line for each row; long names lose their middle
//!   else                                the number of the greatest rank is left out, and so on
//!   still too wide                      two lines for each row: its words, and its numbers below them
//!     always      better
//!         0.787  0.781 to 0.793
//! ```
//!
//! Words and the numbers of rank 0 are never left out.

use std::fmt::Write as _;

use superhue_measure::human::shorten;

/// Text of a cell without a value.
pub(crate) const NOTHING: &str = "-";

/// Least width of a name in a table that has one line for each row.
const LEAST_NAME: usize = 8;

/// Blanks before each column.
const GAP: usize = 2;

/// Further blanks before the numbers of a row with two lines.
const INDENT: usize = 2;

/// Least rank of the numbers that are left out before rows have two lines.
const FIRST_TO_GO: u8 = 2;

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    heading: &'static str,
    is_text: bool,
    rank: u8,
}

/// Makes a column of words, which stand at its left.
pub(crate) const fn text(heading: &'static str) -> Column {
    Column {
        heading,
        is_text: true,
        rank: 0,
    }
}

/// Makes a column of numbers, which stand at its right.
pub(crate) const fn number(heading: &'static str) -> Column {
    let column = text(heading);
    Column {
        is_text: false,
        ..column
    }
}

impl Column {
    /// Lets the column be left out for lack of room: the greatest rank goes first, rank 1 only from rows with two lines.
    pub(crate) const fn rank(self, rank: u8) -> Self {
        Self { rank, ..self }
    }
}

/// Columns of a table as they fit a width. The first column has the names.
#[derive(Debug, Clone)]
pub(crate) struct FittedColumns<const N: usize> {
    columns: &'static [Column; N],
    widths: [usize; N],
    is_shown: [bool; N],
    /// True if each row has two lines.
    is_stacked: bool,
}

impl<const N: usize> FittedColumns<N> {
    /// Fits columns with these rows into `room` characters; in full without a limit. `names` has the least and the greatest width of names where there
    /// is room.
    pub(crate) fn new<'a>(
        columns: &'static [Column; N],
        rows: impl Iterator<Item = &'a [String; N]>,
        names: [usize; 2],
        room: Option<usize>,
    ) -> Self {
        let mut widths = columns.map(|column| column.heading.chars().count());
        for row in rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths[0] = widths[0].clamp(names[0], names[1]);
        let mut fitted = Self {
            columns,
            widths,
            is_shown: [true; N],
            is_stacked: false,
        };
        if let Some(room) = room {
            fitted.narrow(room);
        }
        fitted
    }

    /// Returns the width of names.
    pub(crate) const fn name_width(&self) -> usize {
        self.widths[0]
    }

    /// Returns the headings of the columns that were left out.
    pub(crate) fn left_out(&self) -> Vec<String> {
        let columns = self.columns.iter().zip(self.is_shown);
        let left_out = columns.filter(|(_, is_shown)| !is_shown);
        left_out
            .map(|(column, _)| column.heading.to_owned())
            .collect()
    }

    /// Formats the headings, with the end of their line.
    pub(crate) fn headings(&self) -> String {
        self.row(&self.columns.map(|column| column.heading))
    }

    /// Formats a row, with the ends of its lines.
    pub(crate) fn row(&self, cells: &[&str; N]) -> String {
        if !self.is_stacked {
            return self.line(cells, 0, |_| true);
        }
        let words = self.line(cells, 0, |column| column.is_text);
        let mut numbers = (cells.iter().enumerate())
            .filter(|(at, _)| self.is_shown[*at] && !self.columns[*at].is_text);
        if numbers.all(|(_, cell)| *cell == NOTHING) {
            return words;
        }
        words + &self.line(cells, INDENT, |column| !column.is_text)
    }

    fn line(&self, cells: &[&str; N], indent: usize, is_in: impl Fn(&Column) -> bool) -> String {
        let mut out = " ".repeat(indent);
        for (at, cell) in cells.iter().enumerate() {
            let (column, width) = (&self.columns[at], self.widths[at]);
            if !self.is_shown[at] || !is_in(column) {
                continue;
            }
            let (gap, cell) = (" ".repeat(GAP), shorten(cell, width));
            let _ = match column.is_text {
                true => write!(out, "{gap}{cell:width$}"),
                false => write!(out, "{gap}{cell:>width$}"),
            };
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
        out
    }

    fn narrow(&mut self, room: usize) {
        let name = self.widths[0];
        let beside = room.saturating_sub(name.min(LEAST_NAME) + GAP);
        self.is_stacked = !self.leave_out(FIRST_TO_GO, beside, |at, _| at > 0);
        let others = if self.is_stacked {
            self.is_shown = [true; N];
            self.leave_out(1, room.saturating_sub(INDENT), |_, column| !column.is_text);
            let most = room.saturating_sub(INDENT + GAP);
            self.widths = self.widths.map(|width| width.min(most));
            self.used(|at, column| at > 0 && column.is_text)
        } else {
            self.used(|at, _| at > 0)
        };
        self.widths[0] = name.min(room.saturating_sub(others + GAP)).max(1);
    }

    /// Leaves out columns of at least this rank until the counted columns fit into `room`; returns false if they do not.
    fn leave_out(
        &mut self,
        least_rank: u8,
        room: usize,
        is_counted: impl Fn(usize, &Column) -> bool,
    ) -> bool {
        while self.used(&is_counted) > room {
            let shown = self.columns.iter().zip(self.is_shown);
            let ranks = shown.filter(|(_, is_shown)| *is_shown);
            let worst = ranks.map(|(column, _)| column.rank).max();
            let Some(worst) = worst.filter(|&rank| rank >= least_rank) else {
                return false;
            };
            for (is_shown, column) in self.is_shown.iter_mut().zip(self.columns) {
                *is_shown &= column.rank != worst;
            }
        }
        true
    }

    /// Returns the width of the counted columns that are shown, with the blanks before them.
    fn used(&self, is_counted: impl Fn(usize, &Column) -> bool) -> usize {
        let columns = self.columns.iter().enumerate();
        let counted = columns.filter(|(at, column)| self.is_shown[*at] && is_counted(*at, column));
        counted.map(|(at, _)| self.widths[at] + GAP).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 5] = [
        text("arm"),
        number("median").rank(2),
        number("ratio").rank(1),
        number("interval"),
        text("verdict"),
    ];

    fn rows() -> Vec<[String; 5]> {
        let row = |cells: [&str; 5]| cells.map(str::to_owned);
        vec![
            row(["never", "206.0 MiB", "-", "-", "reference"]),
            row([
                "--pages hot --budget 5%",
                "207.0 MiB",
                "1.005",
                "0.997 to 1.013",
                "no difference shown",
            ]),
        ]
    }

    fn table(room: Option<usize>) -> (String, FittedColumns<5>) {
        let rows = rows();
        let fitted = FittedColumns::new(&COLUMNS, rows.iter(), [8, usize::MAX], room);
        let lines = rows
            .iter()
            .map(|row| fitted.row(&row.each_ref().map(String::as_str)));
        (fitted.headings() + &lines.collect::<String>(), fitted)
    }

    #[test]
    fn nothing_is_cut_without_a_limit() {
        let (text, fitted) = table(None);
        assert!(text.contains("--pages hot --budget 5%  207.0 MiB  1.005"));
        assert_eq!((text.lines().count(), fitted.left_out().len()), (3, 0));
    }

    #[test]
    fn numbers_of_a_high_rank_go_before_names_are_too_short() {
        let (text, fitted) = table(Some(60));
        let name = "  --pages…get 5%  1.005  0.997 to 1.013  no difference shown\n";
        assert!(text.ends_with(name), "{text}");
        assert_eq!(fitted.left_out(), ["median"]);
    }

    #[test]
    fn a_row_has_two_lines_where_one_is_too_long() {
        let (text, fitted) = table(Some(45));
        let expected = "  arm                     verdict
       median  ratio        interval
  never                   reference
    206.0 MiB      -               -
  --pages hot…-budget 5%  no difference shown
    207.0 MiB  1.005  0.997 to 1.013
";
        assert_eq!(text, expected);
        assert!(fitted.left_out().is_empty());
    }

    #[test]
    fn every_line_fits_and_says_what_matters() {
        for room in 36..90 {
            let (text, _) = table(Some(room));
            let longest = text.lines().map(|line| line.chars().count()).max();
            assert!(longest <= Some(room), "{room}: {text}");
            for shown in ["no difference shown", "0.997 to 1.013", "1.005", "never"] {
                assert!(text.contains(shown), "{room}: {text}");
            }
        }
    }
}

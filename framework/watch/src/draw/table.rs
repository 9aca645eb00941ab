//! Tables, their cells, and their plain text: columns are two spaces apart, numbers on the right.

use std::cmp::Ordering;
use std::fmt::Write;

use serde::Serialize;

use super::bytes;

/// A cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Cell {
    /// The text.
    pub text: String,
    /// The number that it stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<f64>,
    /// The share that the number is of its bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
}

impl Cell {
    /// Makes a cell of a figure, or a dash where it is not known.
    pub fn figure(value: Option<f64>, text: impl FnOnce(f64) -> String) -> Cell {
        Cell { text: value.map_or_else(|| "-".to_owned(), text), number: value, share: None }
    }

    /// Makes a cell of a count.
    pub fn count(value: Option<u64>) -> Cell {
        Cell::whole(value, |count| count.to_string())
    }

    /// Makes a cell of a size in bytes.
    pub fn size(value: Option<u64>) -> Cell {
        Cell::whole(value, bytes)
    }

    fn whole(value: Option<u64>, text: impl FnOnce(u64) -> String) -> Cell {
        let number = value.map(|value| value as f64);
        Cell { text: value.map_or_else(|| "-".to_owned(), text), number, share: None }
    }

    /// Adds the share that a number is of its bound; a bound of 0 has none.
    pub fn of(self, bound: f64) -> Cell {
        let share = self.number.filter(|_| bound > 0.0).map(|number| (number / bound).min(1.0));
        Cell { share, ..self }
    }

    /// Compares cells: numbers by size, unknown ones first; texts by letters.
    pub fn order(&self, other: &Cell) -> Ordering {
        match (self.number, other.number) {
            (None, None) => self.text.cmp(&other.text),
            (one, another) => {
                one.unwrap_or(f64::NEG_INFINITY).total_cmp(&another.unwrap_or(f64::NEG_INFINITY))
            }
        }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Cell { text, ..Cell::default() }
    }
}

/// A table. A column whose title begins with `>` is aligned to the right.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// The titles of its columns.
    pub titles: Vec<&'static str>,
    /// Its rows.
    pub rows: Vec<Vec<Cell>>,
    /// The columns that are left out first where room is short.
    #[serde(skip)]
    pub dispensable: &'static [usize],
}

/// Returns whether a column is aligned to the right.
pub fn is_right(title: &str) -> bool {
    title.starts_with('>')
}

/// Returns a title without the mark of its column.
pub fn plain_title(title: &str) -> &str {
    title.trim_start_matches('>')
}

/// A column of a table of `T`s: its title, and the cell that each of them has there.
pub type Column<T> = (&'static str, fn(&T) -> Cell);

impl Table {
    /// Makes a table with a row for each of `all`. Where room is short, the columns of these numbers are left
    /// out first.
    pub fn of<T>(all: &[T], dispensable: &'static [usize], columns: &[Column<T>]) -> Table {
        let row = |of: &T| -> Vec<Cell> { columns.iter().map(|(_, cell)| cell(of)).collect() };
        let titles = columns.iter().map(|(title, _)| *title).collect();
        Table { titles, rows: all.iter().map(row).collect(), dispensable }
    }

    /// Returns the width of each column.
    pub fn widths(&self) -> Vec<usize> {
        let width = |(column, title): (usize, &&str)| {
            let cells =
                self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.text.chars().count());
            cells.max().unwrap_or(0).max(plain_title(title).chars().count())
        };
        self.titles.iter().enumerate().map(width).collect()
    }

    /// Returns the table as text, with the titles.
    pub fn plain(&self) -> String {
        let widths = self.widths();
        let titles: Vec<_> = self.titles.iter().map(|title| Cell::from(plain_title(title))).collect();
        let mut text = String::new();
        for row in std::iter::once(&titles).chain(&self.rows) {
            let mut line = String::new();
            for ((Cell { text: cell, .. }, width), title) in row.iter().zip(&widths).zip(&self.titles) {
                // Formatting into a string does not fail.
                let _ = match is_right(title) {
                    true => write!(line, "{cell:>width$}  "),
                    false => write!(line, "{cell:<width$}  "),
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_have_to_be() {
        let rows = [("größer", 7_u64), ("x", 1000)];
        let table =
            Table::of(&rows, &[], &[("NAME", |of| of.0.into()), (">MSG/S", |of| Cell::count(Some(of.1)))]);
        assert_eq!(table.plain(), "NAME    MSG/S\ngrößer      7\nx        1000\n");
    }

    #[test]
    fn numbers_are_ordered_by_size_and_texts_by_letters() {
        let mut cells = [Cell::count(Some(10)), Cell::count(None), Cell::count(Some(9))];
        cells.sort_by(Cell::order);
        assert_eq!(cells.map(|cell| cell.text), ["-", "9", "10"]);
        assert_eq!(Cell::from("a").order(&"b".into()), Ordering::Less);
        assert_eq!([4.0, 0.0].map(|bound| Cell::count(Some(6)).of(bound).share), [Some(1.0), None]);
        assert_eq!(Cell::count(None).of(4.0), Cell::count(None));
    }
}

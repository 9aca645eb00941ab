//! Tables, their cells, and their plain text: columns are two spaces apart, numbers on the right.

use std::cmp::Ordering;
use std::fmt::Write;

/// A cell: its text, and the number that it stands for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) number: Option<f64>,
}

impl Cell {
    /// Makes a cell of a figure, or a dash where it is not known.
    pub(crate) fn figure(value: Option<f64>, text: impl FnOnce(f64) -> String) -> Cell {
        Cell { text: value.map_or_else(|| "-".to_owned(), text), number: value }
    }

    /// Makes a cell of a count.
    pub(crate) fn count(value: Option<u64>) -> Cell {
        let text = value.map_or_else(|| "-".to_owned(), |count| count.to_string());
        Cell { text, number: value.map(|count| count as f64) }
    }

    /// Compares cells: numbers by size, unknown ones first; texts by letters.
    pub(crate) fn order(&self, other: &Cell) -> Ordering {
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
        Cell { text: text.to_owned(), number: None }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Cell { text, number: None }
    }
}

/// A table. A column whose title begins with `>` is aligned to the right.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) titles: &'static [&'static str],
    pub(crate) rows: Vec<Vec<Cell>>,
    /// The columns that are left out first where room is short.
    pub(crate) dispensable: &'static [usize],
}

pub(crate) fn is_right(title: &str) -> bool {
    title.starts_with('>')
}

pub(crate) fn plain_title(title: &str) -> &str {
    title.trim_start_matches('>')
}

impl Table {
    /// Returns the width of each column.
    pub(crate) fn widths(&self) -> Vec<usize> {
        let width = |(column, title): (usize, &&str)| {
            let cells =
                self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.text.chars().count());
            cells.max().unwrap_or(0).max(plain_title(title).chars().count())
        };
        self.titles.iter().enumerate().map(width).collect()
    }

    /// Returns the table as text, with the titles.
    pub(crate) fn plain(&self) -> String {
        let widths = self.widths();
        let titles: Vec<_> = self.titles.iter().map(|title| Cell::from(plain_title(title))).collect();
        let mut text = String::new();
        for row in std::iter::once(&titles).chain(&self.rows) {
            let mut line = String::new();
            for ((Cell { text: cell, .. }, width), title) in row.iter().zip(&widths).zip(self.titles) {
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
        let rows =
            vec![vec!["größer".into(), Cell::count(Some(7))], vec!["x".into(), Cell::count(Some(1000))]];
        let table = Table { titles: &["NAME", ">MSG/S"], rows, dispensable: &[] };
        assert_eq!(table.plain(), "NAME    MSG/S\ngrößer      7\nx        1000\n");
    }

    #[test]
    fn numbers_are_ordered_by_size_and_texts_by_letters() {
        let mut cells = [Cell::count(Some(10)), Cell::count(None), Cell::count(Some(9))];
        cells.sort_by(Cell::order);
        assert_eq!(cells.map(|cell| cell.text), ["-", "9", "10"]);
        assert_eq!(Cell::from("a").order(&"b".into()), Ordering::Less);
    }
}

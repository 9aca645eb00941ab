//! Plain tables: a header, columns two spaces apart, numbers to the right.

use std::fmt::Write;

/// Rows under a header. A column whose header begins with `>` is aligned to the right.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let widths: Vec<usize> = header
        .iter()
        .enumerate()
        .map(|(column, title)| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.max().unwrap_or(0).max(title.trim_start_matches('>').chars().count())
        })
        .collect();
    let mut text = String::new();
    let titles: Vec<_> = header.iter().map(|title| title.trim_start_matches('>').to_owned()).collect();
    for row in std::iter::once(&titles).chain(rows) {
        let mut line = String::new();
        for ((cell, width), title) in row.iter().zip(&widths).zip(header) {
            // Formatting into a string does not fail.
            let _ = match title.starts_with('>') {
                true => write!(line, "{cell:>width$}  "),
                false => write!(line, "{cell:<width$}  "),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_have_to_be() {
        let rows = vec![vec!["größer".to_owned(), "7".to_owned()], vec!["x".to_owned(), "1000".to_owned()]];
        assert_eq!(table(&["NAME", ">MSG/S"], &rows), "NAME    MSG/S\ngrößer      7\nx        1000\n");
        assert_eq!(table(&["A", ">B"], &[]), "A  B\n");
    }
}

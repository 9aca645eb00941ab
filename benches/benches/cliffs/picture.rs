//! Draws the rows as a picture: how far each is from its bound.

use std::fmt::Write as _;

use super::Row;

const WIDTH: f64 = 1_100.0;
const HEIGHT: f64 = 22.0;
/// The place of the bound, and the distance of a factor of two.
const BOUND: f64 = 850.0;
const DOUBLE: f64 = 110.0;
/// The most doublings that are shown.
const MOST: f64 = 2.0;

/// Returns an SVG with a bar for each row that has a bound, on a scale of logarithms. A bar ends before the
/// line where the bound is met, and past it where it is not.
pub(super) fn svg(rows: &[Row]) -> String {
    let rows: Vec<_> = rows.iter().filter_map(|row| Some((row, row.bound?))).collect();
    let height = HEIGHT * (rows.len() as f64 + 2.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{BOUND}\" y=\"14\" text-anchor=\"middle\">the bound</text>\n"
    );
    let left = BOUND - MOST * DOUBLE;
    for (at, (row, bound)) in rows.iter().enumerate() {
        let top = HEIGHT * (at as f64 + 1.0);
        let past = bound.past(row.value).log2().clamp(-MOST, MOST);
        let color = if bound.is_met(row.value) { "#4a90c2" } else { "#c24a4a" };
        let what = row.what.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{what}: {value:.3} ({bound})</text>\n\
             <rect x=\"{left}\" y=\"{bar}\" width=\"{width:.1}\" height=\"{thick}\" fill=\"{color}\"/>",
            x = left - 6.0,
            y = top + 15.0,
            value = row.value,
            bound = bound.text().replace('<', "&lt;").replace('>', "&gt;"),
            bar = top + 4.0,
            width = (past + MOST) * DOUBLE + 1.0,
            thick = HEIGHT - 8.0,
        );
    }
    let _ = writeln!(
        svg,
        "<line x1=\"{BOUND}\" y1=\"20\" x2=\"{BOUND}\" y2=\"{end}\" stroke=\"black\"/>\n\
         <text x=\"{BOUND}\" y=\"{label}\" text-anchor=\"middle\">a bar's length: a factor of two is {DOUBLE}</text>\n</svg>",
        end = height - HEIGHT,
        label = height - 6.0,
    );
    svg
}

//! The table of a bench: the measurements, over all runs, and whether each is within its bound.

use comfy_table::Table as Cells;
use comfy_table::presets::ASCII_MARKDOWN;

/// The results of all runs of one measurement.
#[derive(Debug, Default)]
pub struct Samples(pub Vec<f64>);

impl Samples {
    /// Returns the middle one; of an even number, the lower of the two. Returns not a number if there is
    /// none.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
    }

    /// Formats the median and the range.
    fn shown(&self) -> String {
        let least = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        format!("{} ({} to {})", number(self.median()), number(least), number(most))
    }
}

/// The bound of a row.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// No bound: the row is a baseline.
    None,
    /// This many times the baseline, or more.
    RatioAtLeast(f64),
    /// This many times the baseline, or less.
    RatioAtMost(f64),
    /// This much, or more.
    AtLeast(f64),
    /// This much, or less.
    AtMost(f64),
    /// Less than this much.
    Below(f64),
}

/// See the module. It prints Markdown.
#[derive(Debug)]
pub struct Table {
    cells: Cells,
    cores: usize,
    missed: bool,
}

impl Table {
    /// Makes an empty one, for a machine with this many cores.
    pub fn new(cores: usize) -> Self {
        let mut cells = Cells::new();
        cells.load_preset(ASCII_MARKDOWN);
        cells.set_header(["what", "median (range)", "against", "ratio", "bound", "met"]);
        Table { cells, cores, missed: false }
    }

    /// Adds a measurement that keeps this many cores busy, against another or nothing.
    pub fn row(&mut self, what: &str, samples: &Samples, against: Option<f64>, bound: Bound, needs: usize) {
        let ratio = against.map_or(f64::NAN, |against| samples.median() / against);
        let (shown, met) = match bound {
            Bound::None => (String::new(), None),
            Bound::RatioAtLeast(least) => (format!(">= {least} x"), Some(ratio >= least)),
            Bound::RatioAtMost(most) => (format!("<= {most} x"), Some(ratio <= most)),
            Bound::AtLeast(least) => (format!(">= {least}"), Some(samples.median() >= least)),
            Bound::AtMost(most) => (format!("<= {most}"), Some(samples.median() <= most)),
            Bound::Below(most) => (format!("< {most}"), Some(samples.median() < most)),
        };
        self.missed |= met == Some(false);
        let mut verdict = match met {
            None => String::new(),
            Some(true) => "met".to_owned(),
            Some(false) => "NOT MET".to_owned(),
        };
        if met.is_some() && self.cores < needs {
            verdict += &format!(" (too few cores: {}, needs {needs})", self.cores);
        }
        let ratio = if ratio.is_nan() { String::new() } else { format!("{ratio:.3}") };
        let against = against.map(number).unwrap_or_default();
        self.cells.add_row([what.to_owned(), samples.shown(), against, ratio, shown, verdict]);
    }

    /// Returns whether a bound was missed.
    pub fn missed(&self) -> bool {
        self.missed
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.cells.fmt(f)
    }
}

/// Formats three or more digits that count.
fn number(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.3}"),
        value if value < 1000.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

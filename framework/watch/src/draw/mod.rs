//! Figures and names in words, for progress, tables, the live page, the doctor and the command.

mod table;

use std::time::Duration;

pub use self::table::{Cell, Column, Table, is_right, plain_title};
pub use tensorpost_core::api::watch::{is_odd, printable, time};

/// Draws a rate or a count, in three or four characters if it is large.
pub fn number(value: f64) -> String {
    match value {
        value if value >= 10_000_000.0 => format!("{:.0}M", value / 1e6),
        value if value >= 10_000.0 => format!("{:.0}k", value / 1e3),
        value if value >= 10.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

/// Draws a time in seconds, as [`time`] does. Times of another process may be any numbers.
pub fn seconds(value: f64) -> String {
    time(Duration::try_from_secs_f64(value.max(0.0)).unwrap_or(Duration::MAX))
}

/// Draws a share from 0 to 1.
pub fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// Draws a size in bytes.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (bytes.max(1).ilog2() / 10).min(4);
    let value = bytes as f64 / (1u64 << (10 * unit)) as f64;
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit as usize]) }
}

/// Returns `text` if it has at most `most` characters, and otherwise its beginning and an ellipsis.
pub fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_unit_that_fits() {
        assert_eq!([9.94, 10.0, 9_999.0, 12_345.0, 2.5e7].map(number), ["9.9", "10", "9999", "12k", "25M"]);
        assert_eq!(
            [0_u64, 1023, 1024, 3 << 19, 5 << 40].map(bytes),
            ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "5.0 TiB"]
        );
        assert_eq!([1.5, 0.0123, 2e-6, -1.0].map(seconds), ["1.5 s", "12.3 ms", "2 us", "0 us"]);
        assert_eq!((percent(0.256), shortened("größer", 4)), ("26%".to_owned(), "grö…".to_owned()));
        // WIRE-1.
        assert!(seconds(f64::INFINITY).ends_with(" s") && seconds(f64::NAN) == "0 us");
    }
}

//! Texts for people: numbers, times and sizes in the one form that progress, reports and the console share; and texts of
//! other processes, cut and escaped before anybody is shown them.
//!
//! A worker chose the text that says why it fails, and what its log has. The text could be of any length, begin a line
//! that looks like the node's, or move the cursor of a terminal. So it is cut and made plain once, where it comes in,
//! and whoever shows it later need not think of that.

use std::fmt::Write;
use std::time::Duration;

/// Begins each line of such a text but the first, so that none of them can pass for a line of anybody else's.
pub(crate) const CONTINUED: &str = "\n    | ";

/// `text` as it can be shown, in at most `limit` bytes: no control character is left, nor one that changes the direction of
/// writing, and a line break shows that the text goes on. One that was made so before, on another host, stays as it is.
pub(crate) fn shown(mut text: String, limit: usize) -> String {
    text.truncate(text.floor_char_boundary(limit));
    if !text.contains(is_odd) {
        return text;
    }
    let mut plain = String::with_capacity(text.len() + 16);
    for (at, character) in text.char_indices() {
        match character {
            '\n' if text[at..].starts_with(CONTINUED) => plain.push('\n'),
            '\n' => plain.push_str(CONTINUED),
            '\t' => plain.push(' '),
            // Formatting into a string does not fail.
            odd if is_odd(odd) => drop(write!(plain, "{}", odd.escape_unicode())),
            plain_one => plain.push(plain_one),
        }
    }
    plain.truncate(plain.floor_char_boundary(limit));
    plain
}

/// A name cannot move the cursor.
pub fn printable(name: &str) -> String {
    name.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// A rate or a count, in three or four characters where it is large.
pub fn number(value: f64) -> String {
    match value {
        value if value >= 10_000_000.0 => format!("{:.0}M", value / 1e6),
        value if value >= 10_000.0 => format!("{:.0}k", value / 1e3),
        value if value >= 10.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

/// A time.
pub fn time(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds >= 1.0 => format!("{seconds:.1} s"),
        seconds if seconds >= 1e-3 => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{:.0} us", seconds * 1e6),
    }
}

/// As [`time`], for the texts of errors.
pub(crate) fn time_of(duration: &Duration) -> String {
    time(*duration)
}

/// A size in bytes.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (bytes.max(1).ilog2() / 10).min(4);
    let value = bytes as f64 / (1u64 << (10 * unit)) as f64;
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit as usize]) }
}

/// Control characters, the separators of lines and paragraphs, and the marks of direction.
fn is_odd(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_text_stays_as_it_is() {
        assert_eq!(shown("out of {memory}: größer".to_owned(), 100), "out of {memory}: größer");
    }

    #[test]
    fn no_line_of_a_text_passes_for_anothers() {
        let text = shown("boom\nERROR node: all is lost\r\x1b[2J\u{2028}x\u{9b}31m\u{202e}".to_owned(), 1000);
        assert_eq!(text, "boom\n    | ERROR node: all is lost\\u{d}\\u{1b}[2J\\u{2028}x\\u{9b}31m\\u{202e}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("    | ")));
        assert_eq!(shown(text.clone(), 1000), text, "once more");
    }

    #[test]
    fn a_text_is_cut_whatever_is_in_it() {
        assert_eq!(shown("ä".repeat(100), 9), "ä".repeat(4));
        assert!(shown("\n".repeat(1 << 20), 1000).len() <= 1000);
    }
}

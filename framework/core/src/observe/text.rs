//! Texts for people: times, and texts of other processes, which are cut and escaped before anybody is shown
//! them.
//!
//! A worker chooses the text of its failure and of its log. Such a text could be of any length, begin a line
//! that looks like the node's, or move the cursor of a terminal. So it is cut and made plain once, where it
//! comes in, and code that shows it later need not escape it again.

use std::fmt::Write;
use std::time::Duration;

/// Begins each line of such a text but the first, so that none of them looks like a line of another source.
pub const CONTINUED: &str = "\n    | ";

/// Returns `text`, cut to at most `limit` bytes at a character's boundary.
pub(crate) fn cut(mut text: String, limit: usize) -> String {
    text.truncate(text.floor_char_boundary(limit));
    text
}

/// Returns `text` in a form that can be shown, in at most `limit` bytes. No control character is left, nor
/// one that changes the direction of writing, and a line break shows that the text goes on. A text that was
/// made plain before, on another host, stays as it is.
pub fn shown(text: String, limit: usize) -> String {
    let text = cut(text, limit);
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
    cut(plain, limit)
}

/// Returns a name that cannot move the cursor or change the direction of the text beside it.
pub fn printable(name: &str) -> String {
    name.chars().map(|letter| if is_odd(letter) { ' ' } else { letter }).collect()
}

/// Formats a time.
pub fn time(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds >= 1.0 => format!("{seconds:.1} s"),
        seconds if seconds >= 1e-3 => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{:.0} us", seconds * 1e6),
    }
}

/// Returns whether a character changes the look of the text around it, or is invisible itself: control
/// characters, the separators of lines and paragraphs, and Unicode's format characters (Cf), which include
/// the marks of direction.
pub fn is_odd(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}' | '\u{891}' | '\u{8e2}' | '\u{180e}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0001}' | '\u{e0020}'..='\u{e007f}')
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
    fn a_name_moves_nothing_and_turns_nothing() {
        assert_eq!(
            printable("größer \u{1b}[2J\u{9b}\u{202e}evil\u{61c}\u{2066}\u{200b}\u{feff}\u{e0041}x\n"),
            "größer  [2J  evil     x "
        );
    }

    #[test]
    fn a_text_is_cut_whatever_is_in_it() {
        assert_eq!(shown("ä".repeat(100), 9), "ä".repeat(4));
        assert!(shown("\n".repeat(1 << 20), 1000).len() <= 1000);
    }
}

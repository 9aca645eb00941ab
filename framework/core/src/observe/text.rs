//! Cuts and escapes texts of other processes before anybody is shown them.
//!
//! A worker chose the text that says why it fails, and what its log has. The text could be of any length, begin a line
//! that looks like the node's, or move the cursor of a terminal. So it is cut and made plain once, where it comes in,
//! and whoever shows it later need not think of that.

use std::fmt::Write;

/// Begins each line of such a text but the first, so that none of them can pass for a line of anybody else's.
pub(crate) const CONTINUED: &str = "\n    | ";

/// `text` as it can be shown, in at most `limit` bytes: no control character is left, nor one that changes the direction of
/// writing, and a line break shows that the text goes on.
pub(crate) fn shown(mut text: String, limit: usize) -> String {
    text.truncate(text.floor_char_boundary(limit));
    if !text.contains(is_odd) {
        return text;
    }
    let mut plain = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
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
    }

    #[test]
    fn a_text_is_cut_whatever_is_in_it() {
        assert_eq!(shown("ä".repeat(100), 9), "ä".repeat(4));
        assert!(shown("\n".repeat(1 << 20), 1000).len() <= 1000);
    }
}

//! Texts of a process that only claims to be a node.

use tensorpost_core::api::watch::CONTINUED;

use crate::draw::is_odd;

/// Returns the same JSON with each text in it as [`shown`](tensorpost_core::api::watch::shown) makes it, for
/// JSON of a process that nobody has checked before.
pub(crate) fn shown_in_json(json: &str) -> String {
    let mut plain = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find(|letter| letter == '\\' || is_odd(letter) && !letter.is_ascii()) {
        plain.push_str(&rest[..at]);
        rest = &rest[at..];
        let (letter, bytes) = escaped(rest);
        let (now, behind) = rest.split_at(bytes);
        match letter {
            Some('\n') if behind.starts_with(&CONTINUED[1..]) => plain.push_str(now),
            Some('\n') => plain.push_str(&format!("\\n{}", &CONTINUED[1..])),
            Some('\t') => plain.push(' '),
            Some(odd) if is_odd(odd) => plain.push_str(&format!("\\{}", odd.escape_unicode())),
            _ => plain.push_str(now),
        }
        rest = behind;
    }
    plain + rest
}

/// Returns the first letter of a text in JSON, unescaped, and its length in bytes. The JSON parser refuses a
/// wrong escape later.
fn escaped(text: &str) -> (Option<char>, usize) {
    let unit = |text: &str| {
        let digits = text.strip_prefix("\\u")?.get(..4)?;
        u16::from_str_radix(digits, 16).ok()
    };
    let mut letters = text.chars();
    match (letters.next(), letters.next()) {
        (Some('\\'), Some('u')) => {
            let units = [unit(text), text.get(6..).and_then(unit)];
            let decoded = char::decode_utf16(units.into_iter().flatten()).next().and_then(Result::ok);
            match decoded {
                Some(letter) => (Some(letter), 6 * letter.len_utf16()),
                None => (None, 2),
            }
        }
        (Some('\\'), Some(short)) => {
            let letter = match short {
                'n' => Some('\n'),
                't' => Some('\t'),
                'r' => Some('\r'),
                'b' => Some('\u{8}'),
                'f' => Some('\u{c}'),
                _ => None,
            };
            (letter, 1 + short.len_utf8())
        }
        (letter, _) => (letter, letter.map_or(0, char::len_utf8)),
    }
}

#[cfg(test)]
mod tests {
    use tensorpost_core::api::watch::shown;

    use super::*;

    #[test]
    fn texts_in_json_are_plain_however_they_are_written() {
        let says = |json: &str| serde_json::from_str::<String>(&shown_in_json(json)).unwrap();
        let text = "boom\nERROR node: lost\r\u{1b}[2J\u{2028}\u{9b}31m\u{202e} \"\\ größer \u{1f600} \u{e0041}\n    | x\t";
        let expected = shown(text.to_owned(), 1000);
        assert_eq!(says(&serde_json::to_string(text).unwrap()), expected);
        // Every letter is escaped, which no honest node does.
        let units = text.encode_utf16().map(|unit| format!("\\u{unit:04x}"));
        let all_escaped = says(&format!("\"{}\"", units.collect::<String>()));
        assert_eq!(all_escaped, expected.replace("\n    | x", "\n    |     | x"));
        assert!(!all_escaped.contains(|letter| is_odd(letter) && letter != '\n'));
        // Invalid JSON stays invalid, and plain JSON stays as it is.
        for json in ["\\", "\\u", "\"\\u12", "\"\\ud83d\"", "\"\\ud83d\\u0041\"", "\"\\é\""] {
            assert!(serde_json::from_str::<String>(&shown_in_json(json)).is_err(), "{json}");
        }
        let plain = r#"{"a": [1, "x\"\\n", {"b": null}]}"#;
        assert_eq!(shown_in_json(plain), plain);
    }
}

//! Holds comments and documents to rules of plain English that a program can check: see `STYLE.md`.
//!
//! A sentence is flagged if it begins with a relative clause ("What is left over goes back.", "Of two, one is
//! kept."), if it has a "who" without a noun before it ("by who", "whoever asks"), or if it counts before it
//! says what ("So many wait."). A flagged sentence may be good English, so a hundredth of all may be flagged.

use std::fs;
use std::path::Path;

/// As rustfmt has it, for comments too.
const WIDTH: usize = 110;
const BEGINNINGS: &[&str] = &["What", "Who", "Whoever", "Whom", "Whose", "Whatever", "Which"];
/// Behind "Of", at the beginning of a sentence.
const OF: &[&str] =
    &["a", "an", "the", "one", "two", "those", "these", "each", "several", "many", "all", "it", "such"];
/// Behind "So", at the beginning of a sentence.
const SO: &[&str] = &["many", "much", "long", "often", "far"];
/// Before a "who" that has no noun.
const BEFORE_WHO: &[&str] = &[
    "by", "for", "to", "from", "of", "with", "and", "or", "that", "than", "if", "as", "but", "where", "when",
    "because",
];

/// Whether a reader is likely to read this sentence twice.
fn is_flagged(sentence: &str) -> bool {
    let words: Vec<&str> = sentence
        .split_whitespace()
        .map(|word| word.trim_matches(|character: char| !character.is_alphanumeric()))
        .collect();
    let begins = match &words[..] {
        [first, ..] if BEGINNINGS.contains(first) => !sentence.ends_with('?'),
        ["Of", second, ..] => OF.contains(second),
        ["So", second, ..] => SO.contains(second),
        _ => false,
    };
    let asks = |next: Option<&&str>| matches!(next, Some(&("I" | "you" | "we")));
    let is_nounless = |(at, word): (usize, &&str)| {
        let before = at.checked_sub(1).is_some_and(|before| BEFORE_WHO.contains(&words[before]));
        word.eq_ignore_ascii_case("whoever")
            || before && matches!(*word, "who" | "whom") && !asks(words.get(at + 1))
    };
    begins || words.iter().enumerate().any(is_nounless)
}

/// Code and links' targets are no words.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    for (at, part) in text.split('`').enumerate() {
        plain.push_str(if at % 2 == 0 { part } else { "X" });
    }
    plain.replace(['*', '[', ']'], "")
}

fn sentences(paragraph: &str) -> Vec<String> {
    let text = plain(paragraph);
    let mut sentences = vec![String::new()];
    for word in text.split_whitespace() {
        let last = sentences.last_mut().expect("there is one");
        let ends = last.ends_with(['.', '!', '?', ':']);
        if ends && word.starts_with(|first: char| first.is_uppercase() || "\"'(".contains(first)) {
            sentences.push(word.to_owned());
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    sentences.retain(|sentence| sentence.split(' ').count() > 2);
    sentences
}

/// The paragraphs of a file with the number of their first line. In sources those are of comments.
fn paragraphs(text: &str, is_source: bool) -> Vec<(usize, String)> {
    let (mut paragraphs, mut run, mut is_code) = (Vec::new(), None::<(usize, String)>, false);
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        let said = match line.strip_prefix("//") {
            Some(said) if is_source => Some(said.strip_prefix(['/', '!']).unwrap_or(said)),
            None if is_source => None,
            _ => Some(line),
        };
        is_code &= said.is_some();
        let said = said.unwrap_or_default();
        let is_fence = said.trim_start().starts_with("```");
        is_code ^= is_fence;
        let is_other =
            is_fence || is_code || said.trim().is_empty() || said.trim_start().starts_with(['|', '#', '<']);
        let item = said.trim_start().strip_prefix("- ");
        if is_other || item.is_some() {
            paragraphs.extend(run.take());
        }
        if !is_other {
            let (_, paragraph) = run.get_or_insert_with(|| (at + 1, String::new()));
            paragraph.push_str(item.unwrap_or(said).trim());
            paragraph.push(' ');
        }
    }
    paragraphs.extend(run);
    paragraphs
}

/// Calls `look` with each source and document below a folder.
fn each(folder: &Path, look: &mut impl FnMut(&Path, &str)) {
    let entries = fs::read_dir(folder).expect("a folder of the repository");
    for entry in entries.map(|entry| entry.expect("an entry").path()) {
        let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if entry.is_dir() {
            // Built, hidden, or wrong on purpose.
            if !["target", "node_modules", "refused", "log"].contains(&&*name) && !name.starts_with('.') {
                each(&entry, look);
            }
        } else if name != "CHANGELOG.md" && [".rs", ".md"].iter().any(|end| name.ends_with(end)) {
            look(&entry, &fs::read_to_string(&entry).expect("text"));
        }
    }
}

#[test]
fn comments_and_documents_are_read_once() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut count, mut flagged, mut wide) = (0, Vec::new(), Vec::new());
    each(&root, &mut |path, text| {
        let is_source = path.extension().is_some_and(|extension| extension == "rs");
        for (line, paragraph) in paragraphs(text, is_source) {
            for sentence in sentences(&paragraph) {
                count += 1;
                if is_flagged(&sentence) {
                    flagged.push(format!("{}:{line}: {sentence}", path.display()));
                }
            }
        }
        let mut is_code = false;
        for (at, line) in text.lines().enumerate().filter(|_| is_source) {
            let comment = line.trim_start().strip_prefix("//");
            let said = comment.map_or("", |comment| comment.trim_start_matches(['/', '!']).trim_start());
            is_code = comment.is_some() && (is_code ^ said.starts_with("```"));
            // A table, an address, one long word, or a line of a string that holds a program.
            let is_other =
                said.starts_with('|') || said.contains("://") || !said.contains(' ') || said.contains("\\n");
            if comment.is_some() && line.chars().count() > WIDTH && !is_code && !is_other {
                wide.push(format!("{}:{}", path.display(), at + 1));
            }
        }
    });
    assert!(count > 10_000, "the repository is there: {count}");
    assert!(flagged.len() * 100 <= count, "{} of {count} sentences:\n{}", flagged.len(), flagged.join("\n"));
    assert!(wide.is_empty(), "comments wider than {WIDTH} columns:\n{}", wide.join("\n"));
}

#[test]
fn riddles_are_flagged_and_plain_sentences_are_not() {
    for riddle in [
        "What is left over goes back.",
        "Of two, one is kept.",
        "It is given to whoever asks.",
        "The lock of who waits is free.",
        "So many wait.",
    ] {
        assert!(is_flagged(riddle), "{riddle}");
    }
    for plain in
        ["What goes over the socket?", "The sender, who waits, is woken.", "Senders wait.", "So it waits."]
    {
        assert!(!is_flagged(plain), "{plain}");
    }
    let text = "/// What `a` does.\n/// ```\n/// // What is code is code.\n/// ```\nfn a() {}\n// It waits. Who\n// asks waits.\n";
    let found = paragraphs(text, true);
    assert_eq!(found, [(1, "What `a` does. ".to_owned()), (6, "It waits. Who asks waits. ".to_owned())]);
    assert_eq!(sentences(&found[1].1), ["Who asks waits."]);
}

//! No struct of the shipping crates has so many fields that nobody knows which of them change together. The
//! test counts them in the sources. Plain data may have more: values to read, without an invariant between
//! them.
//!
//! A struct that grows past the bound is split: fields that change together become a part with methods of its
//! own.

use std::fs;
use std::path::Path;

use crate::methods::past_visibility;
use crate::wall_clock::sources;

/// The most fields of a struct.
const MOST: usize = 20;

/// Plain data with more: what an actor counts, what is written down of a stage, and what a report says of it.
const PLAIN: [&str; 3] = ["Counts", "StagePlan", "StageReport"];

/// The sources of the shipping crates, from the folder above this crate's.
const FOLDERS: [&str; 10] = [
    "src",
    "core/src",
    "pipeline/src",
    "derive/src",
    "hosts/src",
    "watch/src",
    "cli/src",
    "python/src",
    "python/peer/src",
    "../actors/src",
];

#[test]
fn no_struct_has_too_many_fields() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut large = Vec::new();
    for path in FOLDERS.iter().flat_map(|folder| sources(&root.join(folder))) {
        let source = fs::read_to_string(path).expect("a source can be read");
        large.extend(structs(&source).into_iter().filter(|(_, fields)| *fields > MOST));
    }
    large.sort();
    let names: Vec<_> = large.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, PLAIN, "more than {MOST} fields: {large:?}");
}

/// A struct whose end was not read yet.
struct Unfinished {
    name: String,
    indent: usize,
    /// Whether its brace has come: bounds of its parameters stand before it.
    is_open: bool,
    fields: usize,
}

/// Returns the structs with named fields in a source, each with the number of its fields. A struct on one
/// line is left out.
fn structs(source: &str) -> Vec<(String, usize)> {
    let (mut found, mut unfinished) = (Vec::new(), None);
    for line in source.lines() {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        match unfinished.take() {
            None => unfinished = begun(text, indent),
            Some(Unfinished { name, indent: own, is_open, fields }) => {
                if indent == own && text == "}" {
                    found.push((name, fields));
                    continue;
                }
                let is_one = is_open && indent == own + 4 && is_field(text);
                let is_open = is_open || (indent == own && text.ends_with('{'));
                let fields = fields + usize::from(is_one);
                unfinished = Some(Unfinished { name, indent: own, is_open, fields });
            }
        }
    }
    found
}

/// Returns the struct that begins with this line.
fn begun(text: &str, indent: usize) -> Option<Unfinished> {
    let rest = past_visibility(text).strip_prefix("struct ")?;
    if rest.ends_with([';', '}', '(']) {
        return None;
    }
    let name = rest.split(['<', ' ']).next().unwrap_or_default().to_owned();
    Some(Unfinished { name, indent, is_open: rest.ends_with('{'), fields: 0 })
}

fn is_field(text: &str) -> bool {
    let Some((name, rest)) = past_visibility(text).split_once(':') else { return false };
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '#';
    !name.is_empty() && name.chars().all(is_name) && !rest.starts_with(':')
}

#[test]
fn fields_are_counted_by_struct() {
    let source = [
        "pub(crate) struct One<T: Into<u8>> {",
        "    /// Text: it is no field.",
        "    #[serde(default)]",
        "    pub(in crate::node) a: Vec<",
        "        u8,",
        "    >,",
        "    public: T,",
        "}",
        "struct Unit;",
        "struct Pair(u8, u8);",
        "struct Short { a: u8 }",
        "pub struct Two<T>",
        "where",
        "    T: Copy,",
        "{",
        "    pub r#type: T,",
        "}",
        "fn f() {",
        "    struct Three {",
        "        a: u8,",
        "        b: u8,",
        "        c: crate::One<u8>,",
        "    }",
        "    let a: u8 = 0;",
        "}",
    ];
    let expected = [("One", 2), ("Two", 1), ("Three", 3)].map(|(name, fields)| (name.to_owned(), fields));
    assert_eq!(structs(&source.join("\n")), expected);
}

//! No type of this crate has so many methods that nobody reads them all. The test counts them in the sources:
//! those of all `impl` blocks of a type, in all files. Methods of a trait do not count.
//!
//! A type that grows past the bound is split: each part owns its state, and its methods stand beside it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::wall_clock::sources;

/// The most methods of a type.
const MOST: usize = 60;

/// Types that have more, each with its number. A number only falls.
const LARGER: &[(&str, usize)] = &[("Link", 120), ("Pool", 61), ("Transport", 92)];

/// The broker, and the parts that the supervisor was split into, stay smaller than the bound, too.
const PARTS: &[(&str, usize)] =
    &[("Broker", 33), ("Hosts", 59), ("NodeState", 47), ("Supervisor", 46), ("SupervisorState", 44)];

#[test]
fn no_type_has_too_many_methods() {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for path in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        count(&fs::read_to_string(path).expect("a source can be read"), &mut counts);
    }
    for (name, most) in LARGER.iter().chain(PARTS) {
        let has = counts.remove(*name).unwrap_or_default();
        assert!((1..=*most).contains(&has), "{name} has {has} methods, and had {most}");
    }
    let large: Vec<_> = counts.into_iter().filter(|(_, count)| *count > MOST).collect();
    assert!(large.is_empty(), "more than {MOST} methods: {large:?}");
}

/// Adds the methods in a source to those of their types.
fn count(source: &str, counts: &mut BTreeMap<String, usize>) {
    let (mut of, mut indent) = (None, 4);
    for line in source.lines() {
        match line {
            "}" => of = None,
            "    inside! {" => indent = 8,
            "    }" => indent = 4,
            line if line.starts_with("impl") || line.starts_with("unsafe impl") => of = type_of(line),
            line if is_method(line, indent) => {
                of.into_iter().for_each(|name: &str| *counts.entry(name.to_owned()).or_default() += 1);
            }
            _ => {}
        }
    }
}

/// Returns the type of an `impl` block that is not of a trait.
fn type_of(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl").filter(|_| !line.contains(" for "))?;
    // Past the generic parameters.
    let mut depth = 0;
    let begins = rest.char_indices().find(|(at, letter)| {
        depth += i32::from(*letter == '<');
        // The arrow of a function's type closes nothing.
        depth -= i32::from(*letter == '>' && !rest[..*at].ends_with('-'));
        depth == 0 && *letter == ' '
    });
    let name = &rest[begins?.0 + 1..];
    let name = name.split(['<', ' ']).next().unwrap_or_default();
    name.rsplit("::").next().filter(|name| !name.is_empty())
}

/// Whether a method begins in this line, at this indent.
fn is_method(line: &str, indent: usize) -> bool {
    let text = past_visibility(line.trim_start());
    let text = ["const ", "async ", "unsafe "].iter().fold(text, |text, word| text.trim_start_matches(word));
    line.len() - line.trim_start().len() == indent && text.starts_with("fn ")
}

/// Returns an item or a field without its visibility.
pub(super) fn past_visibility(text: &str) -> &str {
    match text.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ").map_or("", |(_, item)| item),
        Some(rest) if rest.starts_with(' ') => rest.trim_start(),
        _ => text,
    }
}

#[test]
fn methods_are_counted_by_type() {
    let source = [
        "impl<T: Fn() -> u8> Held<T> {",
        "    pub(in crate::node) fn a() {}",
        "    inside! {",
        "        pub fn b() {}",
        "    }",
        "    const C: u8 = 0;",
        "}",
        "impl Drop for Held<()> {",
        "    fn drop(&mut self) {}",
        "}",
        "impl super::Held<u8> {",
        "    async fn c() {",
        "        fn of_it() {}",
        "    }",
        "}",
    ];
    let mut counts = BTreeMap::new();
    count(&source.join("\n"), &mut counts);
    assert_eq!(counts, BTreeMap::from([("Held".to_owned(), 3)]));
}

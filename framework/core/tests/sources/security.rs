//! `SECURITY.md` has a table with the worst that a worker can do with each message. The test reads the
//! sources for the messages that a worker can send to the node.

use std::fs;
use std::path::Path;

/// The messages, by file.
const MESSAGES: [(&str, &str); 2] = [("node/control", "Up"), ("transport/control_channel", "ToNode")];

#[test]
fn each_message_to_the_node_is_in_the_table() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(core.join("../../SECURITY.md")).expect("it is in the repository");
    let table = text.lines().skip_while(|line| !line.starts_with("|message|"));
    let named: Vec<_> = table
        .take_while(|line| line.starts_with('|'))
        .filter_map(|row| row.split('|').nth(1))
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    for (file, name) in MESSAGES {
        let path = core.join("src").join(file).with_extension("rs");
        let source = fs::read_to_string(path).expect("a source can be read");
        let variants = variants(&source, name);
        assert!(variants.len() > 10, "{name} in {file}: {variants:?}");
        let missing: Vec<_> = variants.iter().filter(|variant| !named.contains(variant)).collect();
        assert!(missing.is_empty(), "no row of the table says what a worker can do with {name}: {missing:?}");
    }
}

/// Returns the variants of an enum: the names at the beginnings of lines that are indented once.
fn variants<'s>(source: &'s str, name: &str) -> Vec<&'s str> {
    let head = format!("enum {name} {{");
    let lines = source.lines().skip_while(|line| !line.ends_with(&head)).skip(1);
    let lines = lines.take_while(|line| *line != "}").filter_map(|line| line.strip_prefix("    "));
    let variants = lines.filter(|line| line.starts_with(|first: char| first.is_ascii_uppercase()));
    variants.filter_map(|line| line.split(|c: char| !c.is_alphanumeric()).next()).collect()
}

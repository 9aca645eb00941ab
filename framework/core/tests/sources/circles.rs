//! Files name each other in small circles only: a reader of one file of a circle has to read all of it.
//! The test reads the sources for the paths in imports and in code, and takes each for a use of the file that
//! defines the item. A module that only passes on an item of its children does not use them. Tests do not
//! count.
//!
//! A circle that is too large is cut where a file names something above it: what both sides need moves into
//! a file below both, a message apart from the machine that handles it, or a callback takes the place of a
//! call.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::dependencies::{skip_item, sources};

/// The most files of a circle.
const MOST: usize = 10;

/// Folders with larger circles, each with the size of its largest. A number only falls.
const LARGER: &[(&str, usize)] =
    &[("core/actor", 14), ("core/device", 12), ("core/message", 14), ("watch/doctor", 16)];

#[test]
fn circles_of_files_are_small() {
    for name in ["core", "pipeline", "watch", "hosts"] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
        let read = |path: std::path::PathBuf| {
            let file = path.strip_prefix(&root).expect("below it").with_extension("");
            let file = file.to_str().expect("our names are text").to_owned();
            let text = fs::read_to_string(&path).expect("a source can be read");
            (!file.split('/').any(|part| part == "testing" || part == "api"))
                .then(|| File::read(&file, &text))
        };
        let files = Files::of(sources(&root).into_iter().filter_map(read).collect());
        for circle in files.circles() {
            let folder = circle[0].split('/').next().unwrap_or_default();
            let folder = format!("{name}/{folder}");
            let most = LARGER.iter().find(|(larger, _)| *larger == folder).map_or(MOST, |(_, most)| *most);
            assert!(
                circle.len() <= most,
                "{folder}: a circle of {}, of at most {most}: {circle:?}",
                circle.len()
            );
        }
    }
}

/// A file, as the test reads it.
#[derive(Default)]
struct File {
    name: String,
    module: Vec<String>,
    /// The items that it defines.
    defines: BTreeSet<String>,
    imports: Vec<Import>,
    /// Paths in its code.
    paths: Vec<Vec<String>>,
    /// The first names of all paths in its code, and names without a path.
    words: BTreeSet<String>,
}

struct Import {
    path: Vec<String>,
    /// Its name in the file; `*` for all of a module.
    name: String,
    public: bool,
}

impl File {
    fn read(name: &str, text: &str) -> Self {
        let mut module: Vec<String> = name.split('/').map(str::to_owned).collect();
        module.pop_if(|last| ["mod", "lib", "main"].contains(&last.as_str()));
        let code = code(text);
        let file = File { name: name.to_owned(), module, ..File::default() };
        Reader { tokens: tokens(&code), at: 0, depth: 0, inline: Vec::new(), file }.read()
    }
}

/// Returns the lines of a source without comments, and without what only tests compile.
fn code(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if line.starts_with("#[cfg(") && line.contains("test") && !line.contains("not(") {
            skip_item(&mut lines);
        } else if !line.starts_with("//") {
            code.push_str(line.split(" //").next().unwrap_or_default());
            code.push('\n');
        }
    }
    code
}

/// Returns the names and signs of code, without texts, numbers and lifetimes.
fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c: char| !is_of_word(c)).unwrap_or(rest.len());
        let length = if let Some(raw) = rest.strip_prefix("r#\"") {
            raw.find("\"#").map_or(rest.len(), |end| end + 5)
        } else if word > 0 {
            if !first.is_ascii_digit() {
                tokens.push(&rest[..word]);
            }
            word
        } else if first == '"' {
            1 + end_of_text(&rest[1..])
        } else if first == '\'' {
            end_of_quote(rest)
        } else {
            let length = if rest.starts_with("::") { 2 } else { first.len_utf8() };
            tokens.push(&rest[..length]);
            length
        };
        rest = rest[length..].trim_start();
    }
    tokens
}

fn is_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn is_word(token: &str) -> bool {
    token.starts_with(is_of_word)
}

/// Returns the length of the rest of a text, with its quote.
fn end_of_text(rest: &str) -> usize {
    let mut escaped = false;
    for (at, letter) in rest.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Returns the length of a character or a lifetime, which begin with the same quote.
fn end_of_quote(quoted: &str) -> usize {
    let mut letters = quoted.char_indices().skip(1);
    let Some((_, first)) = letters.next() else { return 1 };
    match letters.next() {
        // The letter after the backslash is no closing quote.
        Some((at, _)) if first == '\\' => {
            quoted[at + 1..].find('\'').map_or(quoted.len(), |end| at + 1 + end + 1)
        }
        Some((at, '\'')) => at + 1,
        _ => quoted[1..].find(|c: char| !is_of_word(c)).map_or(quoted.len(), |end| 1 + end),
    }
}

/// Reads the tokens of a file.
struct Reader<'c> {
    tokens: Vec<&'c str>,
    at: usize,
    depth: usize,
    /// The depths of the modules inside the file that are open.
    inline: Vec<usize>,
    file: File,
}

impl<'c> Reader<'c> {
    fn token(&self, offset: usize) -> &'c str {
        self.tokens.get(self.at + offset).copied().unwrap_or_default()
    }

    fn read(mut self) -> File {
        const DEFINING: [&str; 8] = ["struct", "enum", "union", "trait", "type", "fn", "const", "static"];
        while self.at < self.tokens.len() {
            let before = self.at.checked_sub(1).map_or(";", |before| self.tokens[before]);
            match (self.token(0), self.token(1)) {
                ("use", _) if [";", "{", "}", ")", "]", "pub"].contains(&before) => {
                    self.at += 1;
                    self.import(&[], ["pub", ")"].contains(&before));
                }
                ("mod", _) if self.token(2) == ";" => self.at += 3,
                ("mod", _) if self.token(2) == "{" => {
                    self.inline.push(self.depth);
                    self.at += 2;
                }
                ("{", _) => {
                    self.depth += 1;
                    self.at += 1;
                }
                ("}", _) => {
                    self.depth = self.depth.saturating_sub(1);
                    self.inline.pop_if(|depth| *depth == self.depth);
                    self.at += 1;
                }
                ("macro_rules", _) => {
                    self.file.defines.insert(self.token(2).to_owned());
                    self.at += 3;
                }
                (kind, name) if self.depth == 0 && DEFINING.contains(&kind) && is_word(name) => {
                    self.file.defines.insert(name.to_owned());
                    self.at += 2;
                }
                (word, _) if is_word(word) && before != "." && before != "::" => self.path(word),
                _ => self.at += 1,
            }
        }
        self.file
    }

    /// Reads a path in the code.
    fn path(&mut self, first: &'c str) {
        let mut path = vec![first];
        self.at += 1;
        while self.token(0) == "::" && is_word(self.token(1)) {
            path.push(self.token(1));
            self.at += 2;
        }
        self.file.words.insert(first.to_owned());
        if path.len() > 1 {
            let path = self.outside(&path);
            self.file.paths.push(path);
        }
    }

    /// Reads an import, behind the parts of its path that it shares with others.
    fn import(&mut self, shared: &[&'c str], public: bool) {
        let mut path = shared.to_vec();
        let name = loop {
            match self.token(0) {
                "" => return,
                "{" => {
                    self.at += 1;
                    while !["}", ""].contains(&self.token(0)) {
                        self.import(&path, public);
                        self.at += usize::from(self.token(0) == ",");
                    }
                    self.at += 1;
                    return;
                }
                "::" => self.at += 1,
                "*" => {
                    self.at += 1;
                    break "*";
                }
                part => {
                    path.push(part);
                    self.at += 1;
                    if self.token(0) == "::" {
                        continue;
                    }
                    path.pop_if(|last| *last == "self");
                    let name = path.last().copied().unwrap_or_default();
                    if self.token(0) != "as" {
                        break name;
                    }
                    self.at += 2;
                    break self.tokens[self.at - 1];
                }
            }
        };
        if !path.is_empty() {
            let path = self.outside(&path);
            self.file.imports.push(Import { path, name: name.to_owned(), public });
        }
    }

    /// Returns a path as it is from the file, where it stands in a module inside it.
    fn outside(&self, path: &[&str]) -> Vec<String> {
        let up = path.iter().take(self.inline.len()).take_while(|part| **part == "super").count();
        let own = (up > 0 && path.get(up) != Some(&"super")).then_some("self");
        own.into_iter().chain(path[up..].iter().copied()).map(str::to_owned).collect()
    }
}

/// The files of a crate.
struct Files {
    files: Vec<File>,
    by_module: BTreeMap<Vec<String>, usize>,
}

/// The file that a path leads to.
#[derive(Clone, Copy)]
struct Found {
    file: usize,
    /// Whether it leads to the file's module, and to no item in it.
    is_module: bool,
}

impl Files {
    fn of(files: Vec<File>) -> Self {
        let by_module = files.iter().enumerate().map(|(at, file)| (file.module.clone(), at)).collect();
        Files { files, by_module }
    }

    /// Finds what a path in a file names; `None` if it is not of this crate. `steps` bounds the search.
    fn find(&self, from: usize, path: &[String], steps: usize) -> Option<Found> {
        let file = &self.files[from];
        let mut module = file.module.clone();
        let rest = match path.first()?.as_str() {
            _ if steps > 12 => return None,
            "crate" => {
                module.clear();
                &path[1..]
            }
            "self" => &path[1..],
            "super" => {
                let up = path.iter().take_while(|part| *part == "super").count();
                module.truncate(module.len().saturating_sub(up));
                &path[up..]
            }
            _ if self.by_module.contains_key(&[&module[..], &path[..1]].concat()) => path,
            first => {
                let import =
                    file.imports.iter().find(|import| import.name == first && import.path != path)?;
                return self.follow(self.find(from, &import.path, steps + 1)?, &path[1..], steps);
            }
        };
        module.extend_from_slice(rest);
        self.walk(*self.by_module.get(&Vec::<String>::new())?, &module, steps + 1)
    }

    /// Goes on behind what the first part of a path names.
    fn follow(&self, found: Found, rest: &[String], steps: usize) -> Option<Found> {
        if found.is_module && !rest.is_empty() { self.walk(found.file, rest, steps + 1) } else { Some(found) }
    }

    /// Finds what a path names that begins in a file's module.
    fn walk(&self, from: usize, path: &[String], steps: usize) -> Option<Found> {
        let mut at = from;
        for (index, name) in path.iter().enumerate() {
            let file = &self.files[at];
            let child = [&file.module[..], &path[index..=index]].concat();
            if let Some(child) = self.by_module.get(&child) {
                at = *child;
                continue;
            }
            if !file.defines.contains(name) {
                if let Some(import) = file.imports.iter().find(|import| import.name == *name) {
                    let found = self.find(at, &import.path, steps + 1)?;
                    return self.follow(found, &path[index + 1..], steps);
                }
                let all = file.imports.iter().filter(|import| import.name == "*" && steps < 8);
                let mut all = all.filter_map(|import| self.find(at, &import.path, steps + 1));
                let in_all = all.find_map(|found| {
                    let item = self.walk(found.file, &path[index..], steps + 1)?;
                    let is_there = item.file != found.file || self.files[found.file].defines.contains(name);
                    (found.is_module && found.file != at && is_there).then_some(item)
                });
                if in_all.is_some() {
                    return in_all;
                }
            }
            return Some(Found { file: at, is_module: false });
        }
        Some(Found { file: at, is_module: true })
    }

    /// Returns the files that a file uses.
    fn used_by(&self, at: usize) -> BTreeSet<usize> {
        let file = &self.files[at];
        let imported = file.imports.iter().filter_map(|import| {
            let found = self.find(at, &import.path, 0)?;
            let target = &self.files[found.file];
            let uses = match import.name.as_str() {
                "*" => found.is_module && !file.words.is_disjoint(&target.defines),
                name => {
                    let passes_on = import.public && target.module.starts_with(&file.module);
                    !found.is_module && (!passes_on || file.words.contains(name))
                }
            };
            uses.then_some(found.file)
        });
        let named = file.paths.iter().filter_map(|path| self.find(at, path, 0));
        let named = named.filter(|found| !found.is_module).map(|found| found.file);
        let is_other = |used: &usize| *used != at && self.files[*used].name != "lib";
        imported.chain(named).filter(is_other).collect()
    }

    /// Returns the circles, each as the names of its files.
    fn circles(&self) -> Vec<Vec<&str>> {
        let used: Vec<_> = (0..self.files.len()).map(|at| self.used_by(at)).collect();
        let reached: Vec<_> = (0..used.len())
            .map(|from| {
                let mut reached = BTreeSet::new();
                let mut next: Vec<usize> = used[from].iter().copied().collect();
                while let Some(at) = next.pop() {
                    if reached.insert(at) {
                        next.extend(&used[at]);
                    }
                }
                reached
            })
            .collect();
        let circle = |from: usize| -> Vec<usize> {
            reached[from].iter().copied().filter(|to| reached[*to].contains(&from)).collect()
        };
        // Each circle once: at its first file.
        let first = |from: &usize| circle(*from).first() == Some(from);
        let names =
            |from| circle(from).into_iter().map(|at| self.files[at].name.as_str()).collect::<Vec<_>>();
        (0..used.len()).filter(first).map(names).collect()
    }
}

#[test]
fn uses_are_found_in_imports_and_in_code() {
    let files = [
        ("lib", "mod a;\nmod b;"),
        // It passes on `Below`, and uses `Above` by a path.
        ("a/mod", "mod above;\nmod below;\npub use below::Below;\nfn a() -> above::Above<'static> {}"),
        // An item that the parent passes on is its child's.
        ("a/above", "use super::Below as Other;\npub struct Above;"),
        (
            "a/below",
            "use crate::b::*;\nconst C: &str = \"super::Above\"; // super::above::Above\npub struct Below(B);",
        ),
        // `super` is this file there, and a test is not read.
        ("b", "pub struct B;\nmod inner {\n    use super::super::a::a;\n}\n#[cfg(test)]\nmod tests {\n}\n"),
        ("c", "#[cfg(test)]\nuse crate::d::D;\npub struct C;"),
        ("d", "use crate::c::C;\npub struct D;"),
    ];
    let files = Files::of(files.iter().map(|(name, text)| File::read(name, text)).collect());
    let used = |name: &str| -> Vec<&str> {
        let at = files.files.iter().position(|file| file.name == name).expect("it is there");
        files.used_by(at).into_iter().map(|at| files.files[at].name.as_str()).collect()
    };
    assert_eq!(used("a/mod"), ["a/above"]);
    assert_eq!(used("a/above"), ["a/below"]);
    assert_eq!(used("a/below"), ["b"]);
    assert_eq!(used("b"), ["a/mod"]);
    assert_eq!(used("c"), Vec::<&str>::new());
    assert_eq!(used("d"), ["c"]);
    assert_eq!(files.circles(), [["a/mod", "a/above", "a/below", "b"]]);
}

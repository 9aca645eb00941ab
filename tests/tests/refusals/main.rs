//! Programs that must not compile (`refused/*.rs`), each with the compiler's output (`*.stderr`). After a
//! change of that output, `TENSORPOST_WRITE_REFUSALS=1` writes the files again; read them. In the programs of
//! `closures/` the compiler has to refuse each marked line.
//!
//! The compiler is called for each program against the library that was built for these tests. The usual
//! crates for such tests check the framework and all its dependencies once more, which takes most of their
//! time.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::SystemTime;

/// The path is relative to this package, as the compiler then names the files.
const REFUSED: &str = "tests/refusals/refused";

/// The crates that the programs name, which begin the names of cargo's files.
const CRATES: [&str; 3] = ["tensorpost", "serde", "anyhow"];

/// A program that has to compile.
const ACCEPTED: &str = "
use tensorpost::prelude::*;

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Frame;

struct Pass;

#[stage]
impl Pass {
    fn create() -> anyhow::Result<Self> {
        Ok(Pass)
    }

    fn process(&mut self, frame: Frame) -> Frame {
        frame
    }
}

fn main() {}
";

/// The compiler with the framework at hand.
struct Compiler {
    /// The folder of cargo's test builds.
    dependencies: PathBuf,
    libraries: [PathBuf; CRATES.len()],
    /// A folder for the few files that are written; it goes with the test.
    scratch: tempfile::TempDir,
}

impl Compiler {
    /// Takes the newest libraries beside this program that fit. Builds with other features leave theirs there
    /// too, all of the same sources, as cargo builds changed code before it starts a test.
    fn new() -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let dependencies = program.parent().expect("it is in a folder").to_owned();
        let [frameworks, serdes, anyhows] = CRATES.map(|name| newest(&dependencies, name));
        let scratch = tempfile::tempdir().expect("a folder");
        let accepted = scratch.path().join("accepted.rs");
        fs::write(&accepted, ACCEPTED).expect("the folder can be written to");
        let mut compiler = Self { dependencies, libraries: Default::default(), scratch };
        let mut said = String::new();
        for framework in &frameworks {
            for serde in &serdes {
                for anyhow in &anyhows {
                    compiler.libraries = [framework, serde, anyhow].map(PathBuf::clone);
                    match compiler.refusal(&accepted) {
                        None => return compiler,
                        Some(words) => said = words,
                    }
                }
            }
        }
        panic!("nothing compiles with what is in {}: {said}", compiler.dependencies.display());
    }

    /// Returns the compiler's errors for a program as a `.stderr` file has them, or `None` if it accepts the
    /// program.
    fn refusal(&self, program: &Path) -> Option<String> {
        self.errors(program).map(|said| normal(&said))
    }

    /// Returns the compiler's output for a program, or `None` if it accepts the program.
    fn errors(&self, program: &Path) -> Option<String> {
        let name = program.file_stem().expect("a program has a name");
        let output = Command::new("rustc")
            .args([
                "--edition=2024",
                "--crate-type=bin",
                "--emit=obj",
                "--crate-name=refused",
                "-Awarnings",
                "-o",
            ])
            .arg(self.scratch.path().join(name))
            .arg("-L")
            .arg(format!("dependency={}", self.dependencies.display()))
            .args(
                CRATES
                    .iter()
                    .zip(&self.libraries)
                    .map(|(name, path)| format!("--extern={name}={}", path.display())),
            )
            .arg(program)
            .env_remove("RUST_LOG")
            .output()
            .expect("rustc is in the PATH");
        (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Returns the libraries of a crate, the newest first.
fn newest(folder: &Path, name: &str) -> Vec<PathBuf> {
    let prefix = format!("lib{name}-");
    let of_it =
        |path: &PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&prefix));
    let mut libraries: Vec<(SystemTime, PathBuf)> = fs::read_dir(folder)
        .expect("the folder of this program can be read")
        .map(|entry| entry.expect("its entries can be read").path())
        .filter(|path| path.extension() == Some(OsStr::new("rlib")) && of_it(path))
        .map(|path| (path.metadata().and_then(|about| about.modified()).expect("it has a time"), path))
        .collect();
    libraries.sort();
    libraries.into_iter().rev().map(|(_, path)| path).collect()
}

/// Lines that end the compiler's output, or say where to find more.
const ABOUT_ITSELF: [&str; 5] = [
    "error: aborting due to",
    "Some errors have detailed",
    "For more information about",
    "the full name for the type has been written to",
    "consider using `--verbose`",
];

/// Removes text that depends on the machine, on features, or on the sources of the framework.
fn normal(said: &str) -> String {
    let mut lines = Vec::new();
    let mut in_a_list = false;
    let mut elsewhere = false;
    for line in said.lines() {
        // The types that have a trait.
        if in_a_list && (line.starts_with("            ") || line.ends_with(" others")) {
            continue;
        }
        in_a_list = line.contains("the following other types implement")
            || line.contains("the following type implements");
        let place = line.split_once("--> ").or(line.split_once("::: ")).map(|(_, place)| place);
        let of_a_place = line.trim_start_matches([' ', '.']).trim_start_matches(|c: char| c.is_ascii_digit());
        elsewhere = match place {
            Some(place) => !place.starts_with(REFUSED),
            None => elsewhere && (of_a_place.is_empty() || of_a_place.trim_start().starts_with('|')),
        };
        if !in_a_list && !elsewhere && !ABOUT_ITSELF.iter().any(|words| line.contains(words)) {
            lines.push(line);
        }
    }
    format!("{}\n", lines.join("\n").trim_end())
}

#[test]
fn what_cannot_be_is_refused_in_words_that_help() {
    let compiler = Compiler::new();
    let mut programs: Vec<PathBuf> =
        fs::read_dir(REFUSED).expect("the programs").map(|entry| entry.expect("an entry").path()).collect();
    programs.retain(|path| path.extension() == Some(OsStr::new("rs")));
    assert!(programs.len() >= 38, "{} programs", programs.len());
    let write = std::env::var_os("TENSORPOST_WRITE_REFUSALS").is_some();
    let programs = Mutex::new(programs);
    let wrong = Mutex::new(Vec::new());
    let work = || {
        loop {
            let Some(program) = programs.lock().expect("no thread has panicked").pop() else { break };
            let expected = program.with_extension("stderr");
            let said = compiler.refusal(&program);
            if let (true, Some(said)) = (write, &said) {
                fs::write(&expected, said).expect("the words can be written");
                continue;
            }
            let expected = fs::read_to_string(&expected).unwrap_or_else(|error| error.to_string());
            let said = said.unwrap_or_else(|| "it compiles\n".to_owned());
            if said != expected {
                let text = format!("{}: the compiler says\n{said}\nand not\n{expected}", program.display());
                wrong.lock().expect("no thread has panicked").push(text);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let wrong = wrong.into_inner().expect("no thread has panicked");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// How the compiler's output names a closure that the constant assertion refuses, before its place.
const OF_CLOSURE: &str = "captures_nothing::<{closure@";

/// Compiles a program of `closures/`, and checks that the compiler refuses each marked line; in `copies` the
/// constant assertion does. Returns the compiler's output and the number of marked lines.
fn refused_where_marked(compiler: &Compiler, name: &str) -> (String, usize) {
    let path = format!("tests/refusals/closures/{name}.rs");
    let before = if name == "copies" { OF_CLOSURE } else { "--> " };
    let text = fs::read_to_string(&path).expect("the program");
    let said = compiler.errors(Path::new(&path)).expect("it does not compile");
    let mut marked = 0;
    for (number, line) in (1..).zip(text.lines()) {
        let place = format!("{before}{path}:{number}:");
        if line.ends_with("//~") {
            assert!(said.contains(&place), "{place}: {line}\n{said}");
            marked += 1;
        }
        assert!(!(line.contains("map(\"accepted") && said.contains(&place)), "{place}: {line}\n{said}");
    }
    (said, marked)
}

#[test]
fn a_closure_for_another_process_that_captures_is_refused_by_every_method() {
    const WHY: &str = "this closure runs in another process, so it must capture nothing";
    const REMEDY: &str = "pass what it needs with `.with(args)`";
    let compiler = &Compiler::new();
    let [copies, values, borrows, arguments] = std::thread::scope(|scope| {
        let programs = ["copies", "values", "borrows", "arguments"];
        let threads = programs.map(|name| scope.spawn(move || refused_where_marked(compiler, name)));
        threads.map(|thread| thread.join().expect("its lines are refused"))
    });
    let (said, marked) = copies;
    assert!(marked >= 30 && said.matches(&format!("{WHY}: {REMEDY}")).count() >= marked, "{marked}: {said}");
    let (said, marked) = values;
    assert!(marked >= 9 && said.contains(REMEDY), "{marked}: {said}");
    assert!(said.matches(&format!("error[E0277]: {WHY}")).count() >= marked, "{marked}: {said}");
    assert_eq!((borrows.1, arguments.1), (2, 5));
}

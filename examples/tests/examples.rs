//! Runs every example, and compares the output of the numbered ones with the README.

use std::fs;
use std::io::{BufRead as _, BufReader, Lines};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::tempdir;

const README: &str = include_str!("../README.md");
const PIPELINE: &str = env!("CARGO_BIN_EXE_10-image-pipeline");
const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data");

/// Returns the block below the title `name`.
fn expected(name: &str) -> &'static str {
    let section = README.split_once(&format!("\n## {name}\n")).expect("the README has the example").1;
    let section = section.split("\n## ").next().expect("a section");
    let block = section.split_once("```text\n").expect("the README says what it prints").1;
    block.split_once("```").expect("the block ends").0
}

fn check(name: &str, program: &str) {
    let output = Command::new(program).output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} ended with {}: {errors}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected(name), "{name} says also: {errors}");
}

macro_rules! examples {
    ($($test:ident $name:literal),+ $(,)?) => {
        $(#[test]
        fn $test() {
            check($name, env!(concat!("CARGO_BIN_EXE_", $name)));
        })+

        #[test]
        fn every_example_is_in_the_readme_and_tested() {
            let mut programs: Vec<String> = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin"))
                .expect("listed")
                .map(|entry| entry.expect("an entry").path().file_stem().expect("a name").to_string_lossy().into_owned())
                .collect();
            programs.sort();
            let mut tested = vec![$($name,)+ "09-cuda-kernel", "10-image-pipeline", "12-shared-weights", "16-torch-stage", "17-python-trainer", "18-two-hosts", "20-service"];
            tested.sort_unstable();
            assert_eq!(programs, tested, "09, 10, 12, 16 to 18 and 20 have tests of their own");
            // The package's `test_train.py` tests the Python examples.
            let mut in_python: Vec<String> = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/python"))
                .expect("listed")
                .map(|entry| format!("python/{}", entry.expect("an entry").file_name().to_string_lossy()))
                .collect();
            in_python.sort();
            programs.append(&mut in_python);
            let titles: Vec<&str> = README.lines().filter_map(|line| line.strip_prefix("## ")).collect();
            assert_eq!(titles, programs);
        }
    };
}

examples! {
    two_processes "01-two-processes",
    nested_tensors "02-nested-tensors",
    ask_and_reply "03-ask-and-reply",
    backpressure "04-backpressure",
    forward_in_place "05-forward-in-place",
    broadcast "06-broadcast",
    addresses "07-addresses",
    one_worker "08-one-worker",
    scatter_gather "11-scatter-gather",
    a_pipeline "13-pipeline",
    crash_and_restart "14-crash-and-restart",
    task_queue "15-task-queue",
}

/// The program at the beginning of the repository's README; it is compiled, and run, with the documentation
/// of the framework.
#[test]
fn a_pipeline_with_a_message_and_a_stage_of_ones_own_takes_at_most_25_lines() {
    let readme = include_str!("../../README.md");
    let program =
        readme.split_once("\n```rust").expect("a program").1.split_once("\n```").expect("its end").0;
    let lines: Vec<&str> = program.lines().skip(1).collect();
    for part in
        ["derive(Clone, Serialize, Deserialize, GpuMessage)", "#[stage]", ".items(", ".for_each(\"print\""]
    {
        assert_eq!(lines.iter().filter(|line| line.contains(part)).count(), 1, "{part}: {program}");
    }
    assert!(lines.len() <= 25, "{} lines", lines.len());
}

#[test]
fn a_device_that_is_not_there_and_a_way_to_share_that_is_none_are_said() {
    let run = |arguments: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_15-task-queue")).args(arguments).output().expect("it runs");
        assert!(!output.status.success() && output.stdout.is_empty(), "{}", text(&output.stdout));
        text(&output.stderr)
    };
    assert!(run(&["--device", "tpu"]).contains("write `host`, `cuda:0`"));
    assert!(run(&["--sharing", "some"]).contains("[possible values: isolated, mps]"));
}

#[cfg(feature = "candle")]
#[test]
fn shared_weights() {
    check("12-shared-weights", env!("CARGO_BIN_EXE_12-shared-weights"));
}

#[test]
fn cuda_kernel() {
    let output = Command::new(env!("CARGO_BIN_EXE_09-cuda-kernel")).output().expect("it runs");
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "it ended with {}: {said}{errors}", output.status);
    if std::env::var_os("REQUIRE_GPU").is_some_and(|required| required == "1")
        || !said.starts_with("no kernel was run: ")
    {
        assert_eq!(said, expected("09-cuda-kernel"), "it says also: {errors}");
    }
}

/// Checks an example with a part in Python: its first line says if Python's part is missing.
fn check_python(name: &str, program: &str) {
    let output = Command::new(program).output().expect("it runs");
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{name} ended with {}: {said}{errors}", output.status);
    if std::env::var_os("TENSORPOST_TORCH").is_some() || !said.starts_with("left out: ") {
        assert_eq!(said, expected(name), "{name} says also: {errors}");
    }
}

#[test]
fn torch_stage() {
    check_python("16-torch-stage", env!("CARGO_BIN_EXE_16-torch-stage"));
}

#[test]
fn python_trainer() {
    check_python("17-python-trainer", env!("CARGO_BIN_EXE_17-python-trainer"));
}

fn pipeline(images: impl AsRef<Path>, out: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(PIPELINE);
    // Use a small size, because a build without optimisation takes most of a second for the largest
    // photograph.
    command.args(["--size", "96x64", "--device", "host"]).arg("--images").arg(images.as_ref());
    command.arg("--out").arg(out).args(more).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn failure(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stderr)
}

fn pictures(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("listed")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".png"))
        .collect();
    names.sort();
    names
}

#[test]
fn the_pipeline_agrees_with_one_process() {
    let out = tempdir().expect("a folder");
    let output = pipeline(DATA, out.path(), &["--frames", "20"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    let last = expected("10-image-pipeline").replace("200", "20");
    assert_eq!(said.lines().last(), Some(last.trim_end()), "{said}");

    for row in ["decode     ", "resize     ", "normalise  ", "edges      ", "write      "] {
        let row =
            said.lines().find(|line| line.starts_with(row)).unwrap_or_else(|| panic!("no {row}: {said}"));
        assert!(row.split_whitespace().nth(1) == Some("1") && row.contains("  20  "), "{said}");
    }
    // Three processes hand data on. The third hands on 20 images of 3 planes of 96 x 64 floats, as they came:
    // every edge image lies in the memory of the image that it was made from.
    assert!(
        said.contains("without being copied: decode ") && said.contains("the first image was there after"),
        "{said}"
    );
    assert!(said.contains(", resize 1474560 bytes, edges 1474560 bytes\n"), "{said}");

    let names = pictures(out.path());
    assert_eq!(
        (names.len(), names[0].as_str(), names[19].as_str()),
        (20, "00000-camera.png", "00019-retina.png")
    );
}

#[test]
fn a_folder_that_is_missing_or_empty_is_named() {
    let folder = tempdir().expect("a folder");
    let said = failure(&pipeline(folder.path().join("nowhere"), folder.path(), &[]));
    assert!(said.contains("nowhere") && said.contains("give a folder that exists"), "{said}");
    let said = failure(&pipeline(folder.path(), folder.path(), &[]));
    assert!(said.contains("no image in") && said.contains(&folder.path().display().to_string()), "{said}");
}

#[test]
fn a_file_that_cannot_be_decoded_is_named_or_left_out() {
    let (images, out) = (tempdir().expect("a folder"), tempdir().expect("a folder"));
    fs::copy(Path::new(DATA).join("chelsea.png"), images.path().join("good.png")).expect("copied");
    fs::write(images.path().join("bad.png"), "no picture").expect("written");
    let said = failure(&pipeline(images.path(), out.path(), &["--frames", "6"]));
    assert!(said.contains("stage `decode` failed") && said.contains("bad.png"), "{said}");

    let output = pipeline(images.path(), out.path(), &["--frames", "6", "--skip-bad"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    assert!(said.contains("3 frames were left out") && said.contains("all 3 frames are equal"), "{said}");
    assert_eq!(pictures(out.path()), ["00001-good.png", "00003-good.png", "00005-good.png"]);

    fs::remove_file(images.path().join("good.png")).expect("removed");
    let said = failure(&pipeline(images.path(), out.path(), &["--frames", "6", "--skip-bad"]));
    assert!(said.contains("stage `decode` failed") && said.contains("bad.png"), "{said}");
}

#[test]
fn a_place_that_cannot_be_written_to_is_named() {
    let folder = tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "in the way").expect("written");
    let said = failure(&pipeline(DATA, &file, &[]));
    assert!(said.contains(&file.display().to_string()), "{said}");
}

/// Starts an endless pipeline, and returns once a line of progress says that frames are written.
fn endless(out: &Path) -> (Child, Lines<BufReader<ChildStderr>>) {
    let mut child = Command::new(PIPELINE)
        .args(["--frames", "1000000", "--size", "96x64", "--progress", "--out"])
        .arg(out)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut errors = BufReader::new(child.stderr.take().expect("piped")).lines();
    let busy = errors.by_ref().map_while(Result::ok).any(|line| !line.contains(" write 0 "));
    assert!(busy, "it ended before it wrote an image");
    (child, errors)
}

/// Returns the child processes of a process.
fn children(pid: u32) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
    let of_each = threads.map(|thread| fs::read_to_string(thread.expect("a thread").path().join("children")));
    let pids = of_each.flat_map(|pids| {
        let pids = pids.unwrap_or_default(); // a thread that has ended in between
        pids.split_whitespace().map(|pid| pid.parse().expect("a number")).collect::<Vec<i32>>()
    });
    pids.filter_map(Pid::from_raw).collect()
}

#[test]
fn the_death_of_a_stage_ends_the_program_with_an_error() {
    let out = tempdir().expect("a folder");
    let (child, errors) = endless(out.path());
    let stages = children(child.id());
    assert_eq!(stages.len(), 4);
    kill_process(stages[0], Signal::KILL).expect("killed");
    let said: Vec<String> = errors.map(|line| line.expect("text")).collect();
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{}{said:?}", text(&output.stdout));
    assert!(
        // The order of the listing decides which stage it is.
        said.iter().any(|line| {
            ["error: source `", "error: stage `"].iter().any(|begin| line.starts_with(begin))
                && line.contains("` (replica 0) died")
        }),
        "{said:?}"
    );
}

#[test]
fn ctrl_c_lets_what_is_under_way_finish() {
    what_is_under_way_is_finished(Signal::INT, false);
}

/// A service manager, or a scheduler, sends such signals.
#[test]
fn a_signal_to_all_processes_lets_what_is_under_way_finish() {
    what_is_under_way_is_finished(Signal::TERM, true);
}

fn what_is_under_way_is_finished(signal: Signal, to_all: bool) {
    let out = tempdir().expect("a folder");
    let (child, errors) = endless(out.path());
    let others = if to_all { children(child.id()) } else { Vec::new() };
    for process in others.into_iter().chain([Pid::from_child(&child)]) {
        kill_process(process, signal).expect("signalled");
    }
    let said: Vec<String> = errors.map(|line| line.expect("text")).collect();
    let output = child.wait_with_output().expect("it ends");
    let text = text(&output.stdout);
    assert_eq!(output.status.code(), Some(130), "{text}{said:?}");
    assert!(text.contains("edges cancelled after"), "{text}");
    assert!(
        text.contains(&format!("checked: all {} frames are equal", pictures(out.path()).len())),
        "{text}"
    );
}

/// The signal comes as from a terminal: it goes to the workers too, and they finish everything under way.
#[test]
fn ctrl_c_lets_a_pipeline_finish_what_is_under_way() {
    let out = tempdir().expect("a folder");
    let mut child = Command::new(env!("CARGO_BIN_EXE_13-pipeline"))
        .args(["--images", "1000000", "--progress", "--report", "--out"])
        .arg(out.path())
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut told = BufReader::new(child.stderr.take().expect("piped")).lines();
    let busy = told.by_ref().map_while(Result::ok).any(|line| !line.contains("SavePng 0 "));
    assert!(busy, "it ended before it wrote an image");
    kill_process_group(Pid::from_child(&child), Signal::INT).expect("signalled");
    // Read on, or its workers could write no more than the pipe holds.
    told.for_each(drop);
    let output = child.wait_with_output().expect("it ends");
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains("edges cancelled after"), "{said}");
    let written = pictures(out.path()).len();
    assert!(said.ends_with(&format!("{written} images of edges written\n")), "{written}: {said}");
}

//! Random pipelines (see `tensorpost_tests::random`). First come fresh seeds, which are printed, for six
//! seconds, or for as many seconds as `TENSORPOST_RANDOM_SECONDS` says (60 in CI). Then comes every spec that
//! has once found something: once, or where that variable is set as often as it takes to find it again. They
//! are specs and not seeds, so that they stay the same when the drawing changes. A failure says how to play
//! it again.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use tensorpost_tests::random::build::build;
use tensorpost_tests::random::draw::{Faults, draw};
use tensorpost_tests::random::plan::Plan;

const RANDOM_RUN: &str = env!("CARGO_BIN_EXE_random_run");

/// A spec that failed once, how often it is played to find that again, and the failure.
struct Found {
    name: &'static str,
    spec: &'static str,
    times: u32,
    what: &'static str,
}

macro_rules! found {
    ($($name:literal, $times:literal, $what:literal;)*) => {
        &[$(Found { name: $name, spec: include_str!(concat!("random/", $name, ".json")), times: $times, what: $what }),*]
    };
}

/// Specs that failed once.
const FOUND: &[Found] = found! {
    "views-without-elements", 1, "views without elements were refused by whoever got them";
    "a-tensor-around-a-loop", 3, "a tensor that came back to its owner was refused";
    "a-tensor-around-a-loop-again", 3, "the same, at least once";
    "batch-behind-a-loop", 1, "the batch kept what the loop had to have back, for ever";
    "batch-behind-a-loop-again", 1, "the same, at least once; it is refused";
    "window-behind-a-loop", 1, "the window kept what the loop had to have back, for ever";
    "bytes-before-a-batch", 1, "the batch kept the bytes that it waited for; it is refused";
    "bytes-before-a-window", 1, "the window kept the bytes that it waited for; it is refused";
    "join-of-two-branches-again", 1, "both halves of all that the source could send waited for others, for ever";
    "death-behind-a-loop", 3, "what was for the dead went around the loop for ever";
    "death-behind-a-loop-of-several", 3, "the same, behind several replicas";
    "source-gone-then-stage", 2, "the stage's next life waited for the end of a source that was gone";
    "source-gone-then-sink", 2, "the sink's next life waited for the end of a source that was gone";
    "branch-of-a-split-gone", 3, "what was for the dead went to the other branch";
    "branch-of-a-split-gone-again", 3, "the same, at least once";
    "branch-of-a-key-gone", 3, "the same with keys";
    "cancelled-at-once", 5, "the order to stop waited behind one that nobody drove, and so did the order to kill";
    "dead-letters-and-results-meet", 1, "the end of the dead letters waited for the end of the results, and that for it";
    "two-branches-and-a-mailbox-of-one", 1, "the end of one branch took the place that the other's needed";
    "batch-in-the-worker-of-a-zip", 1, "halves without partners filled the mailbox of their zip";
    "bytes-in-a-loop", 1, "the next round waited for bytes that the last one held; it is refused";
    "batches-of-batches", 1, "the second batch kept more items than the first one's mailbox had room for";
    "zip-behind-a-loop-again", 1, "fewer halves than a full side came out of the loop; it is refused";
    "neighbours-gone-at-the-last-item", 10, "the sink's next life did not hear of the end";
    "pair-beside-its-zip", 2, "a pair that had not left the worker of its zip was lost without a name";
    "source-gone-unwritten-again", 3, "what a dead source had not written was lost without a name";
    "window-in-the-worker-of-a-zip", 1, "the pair in the window kept the end of its zip's sides away";
    "numberer-and-replica-gone", 3, "an order waited for numbers of a life that was over";
    "panic-behind-a-cancelled-timer", 8, "an actor that panicked was looked at for ever, and its process did nothing else";
    "halves-of-a-batch-again", 1, "a half that was let go stayed under way, because others of its batch did";
    "dead-letters-and-results-join-again", 1, "no fork tells results from dead letters; it is refused";
    "last-words-out-of-a-loop", 10, "the word of a death came before the last items of the dead, and closed the next stage";
    "last-words-of-the-dead", 10, "the same, out of another place";
    "lost-and-in-an-inner-loop", 6, "an item that was named as lost went round on, and waited for its own place";
    "round-after-the-end", 5, "a stage whose end had begun took nothing more of what still went round";
    "round-after-the-end-too", 5, "the same, in another loop";
    "held-in-an-order", 6, "what a replica had held had no place in the order when no item was at hand";
    "another-branch-when-sent-again", 3, "no defect: sent again, an item takes another branch of a fork in turn";
    "batches-made-anew", 3, "no defect: sent again, items go into other batches";
    "who-named-it-died", 3, "no defect: who had named what was lost for good died before it could tell";
    "gone-when-it-was-done", 10, "a stage that came back after its end was waited for";
    "window-behind-the-end", 10, "a window dropped each item of a source that had said its end and begun anew";
    "unwritten-behind-the-end", 10, "nobody waited for what came of such a source's items, nor for what was lost of them";
    "sides-of-a-zip-gone-with-their-source-again", 10, "what the sides of a zip had sent was lost without a name, if they went with their source";
    "another-branch-than-the-filtered-one", 3, "no defect: sent again, an item took the branch without the filter";
    "other-partners-when-sent-again", 2, "no defect: sent again, halves found other partners in a join";
    "sent-before-a-panic", 10, "the end of a stage that panicked was heard before what it had sent, where its process went on";
    "panic-then-gone-with-what-it-knew", 3, "no defect: who knew what a panic had lost died before it could tell";
    "packs-of-packs-around-a-loop", 2, "no defect: what holds an older pack in each round gets too deep to be sent";
    "panic-then-process-gone", 3, "no defect: who had named what a panic lost died before it could tell";
    "back-when-all-had-ended", 10, "what a source was asked when all had ended came behind an order that nobody drove";
    "two-numberings-and-bytes", 4, "replicas had no room for the items that two orders waited for, nor for more";
    "two-numberings-and-drops", 4, "the same, in front of a stage that drops what it has no room for";
    "back-at-the-end-of-its-pipeline", 4, "a stage that came back as its pipeline ended was not told, and its worker stayed (once in 5,000 runs)";
    "results-in-front-of-a-drop", 6, "the place of an item was closed when its last result was dropped, before the others that waited";
    "stage-and-its-dead-letters-gone", 3, "no defect: the stage that named what its dead letters' worker lost died before it could tell";
    "gap-around-a-loop", 3, "a gap went on behind the stage that restores the order, and around the loop there for ever";
    "stopped-before-it-had-made-all-again", 5, "what a dead source had not written was not named, if its next life was stopped before it made that again";
    "kept-by-a-stage-that-panicked", 10, "what a stage that had panicked kept for one that drops came behind its next life's items";
    "sent-again-to-one-that-had-failed", 5, "no defect: what a dead replica had came again to others, which had failed the pipeline";
    "parts-that-a-batch-keeps", 2, "parts of a batch that a fork had spread kept its other parts unacknowledged, for ever; one more may be";
    "two-lost-by-one-kernel", 5, "of two items at hand that were lost together the second counted as a failure of the stage";
    "replicas-asked-for-when-all-had-ended", 2, "processes for replicas were started while the dead were counted again, and stayed";
    "first-gone-beside-one-that-leaves", 10, "a run was fine whose stage had lost its last replica that takes anything";
    "last-item-in-front-of-ends", 2, "ends of replicas that left took the room of the last item, without which they could not be answered";
};

fn play(arguments: &[&str]) -> String {
    let mut command = Command::new(RANDOM_RUN);
    command.args(arguments).env_remove("RUST_LOG").stdin(Stdio::null());
    let output = command.output().expect("the program of the runs starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{said}");
    assert!(output.status.success(), "{}:\n{said}{}", output.status, String::from_utf8_lossy(&output.stderr));
    said
}

/// Returns for how long fresh seeds are played, where the variable is set.
fn seconds() -> Option<f64> {
    std::env::var("TENSORPOST_RANDOM_SECONDS").ok().and_then(|text| text.parse().ok())
}

/// Returns the minutes for each of the two kinds of fresh seeds.
fn minutes() -> String {
    (seconds().unwrap_or(6.0) / 2.0 / 60.0).to_string()
}

#[test]
fn nearly_all_are_accepted() {
    let refused = (0..300).filter(|&seed| {
        let spec = draw(seed, Faults::Mixed);
        build(&Plan::new(&spec), Path::new(""), "host").check().is_err()
    });
    let refused = refused.count();
    assert!(refused < 45, "{refused} of 300 are refused");
}

#[test]
fn fresh_seeds_without_faults() {
    let said = play(&["--faults", "none", "--minutes", &minutes()]);
    assert!(said.contains("seeds from"), "{said}");
}

#[test]
fn fresh_seeds_with_faults() {
    let said = play(&["--faults", "some", "--minutes", &minutes()]);
    assert!(said.contains("seeds from"), "{said}");
}

#[test]
fn specs_that_found_something() {
    let folder = tempfile::tempdir().expect("a folder");
    let next = AtomicUsize::new(0);
    // Each waits for processes that start and end.
    let played = || {
        while let Some(Found { name, spec, times, what }) = FOUND.get(next.fetch_add(1, Ordering::Relaxed)) {
            println!("{name}: {what}");
            let file = folder.path().join(format!("{name}.json"));
            std::fs::write(&file, spec).expect("a file");
            let times = if seconds().is_some() { *times } else { 1 };
            play(&["--times", &times.to_string(), "--replay", path(&file)]);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(played))));
}

#[test]
fn a_spec_that_cannot_be_read_fails() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("no.json");
    std::fs::write(&file, "{}").expect("a file");
    let output = Command::new(RANDOM_RUN).args(["--replay", path(&file)]).output().expect("it starts");
    assert!(!output.status.success());
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a name in ASCII")
}

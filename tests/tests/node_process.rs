//! The effects that the processes of a node have on each other: start, refusal, death, logs, shutdown. Each
//! test plays one scene of the `node_probe` program and reads what it and its workers print.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use futures_util::future::join_all;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tensorpost::prelude::*;
use tensorpost_core::os::PidFd;
use tokio::sync::oneshot;

const PROBE: &str = env!("CARGO_BIN_EXE_node_probe");
/// For steps that should take milliseconds, on a machine that is busy.
const LONG: Duration = Duration::from_secs(60);

fn probe(arguments: &[&str]) -> Command {
    let mut command = Command::new(PROBE);
    command.args(arguments).env_remove("RUST_LOG").env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    command
}

/// Returns everything that the scene printed, to either stream.
fn play(arguments: &[&str]) -> (ExitStatus, String) {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = probe(arguments);
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut child = command.spawn().unwrap();
    drop(command);
    // The pipe ends when the last process has exited that has it, so a worker left behind would hang this.
    let mut text = Vec::new();
    reader.read_to_end(&mut text).unwrap();
    (child.wait().unwrap(), String::from_utf8_lossy(&text).into_owned())
}

fn play_well(arguments: &[&str]) -> String {
    let (status, text) = play(arguments);
    assert!(status.success(), "{status}:\n{text}");
    text
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing in:\n{text}");
    }
}

/// A scene that waits, and its output line by line.
struct Running {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Running { child, lines }
    }

    fn line(&mut self, with: &str) -> String {
        self.lines.by_ref().map(Result::unwrap).find(|line| line.contains(with)).expect("the line")
    }

    fn workers(&mut self) -> Vec<PidFd> {
        let line = self.line("pids ");
        line.split(' ').skip(1).map(|pid| PidFd::open(pid.parse().unwrap()).unwrap()).collect()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

/// DEATH-2: under MPS a death costs the others the memory that it took from them, and no more.
#[test]
fn who_shares_a_gpu_ends_with_one_that_was_killed_where_the_gpu_went_with_it() {
    let text = play_well(&["shared-gpu"]);
    has(&text, &["b ended: ", "c ended: ", "clean shutdown of 5"]);
    let is_of_a_death = |line: &&str| {
        line.contains(" ended: ")
            && (line.contains("worker `a` failed") || line.contains("worker `d` failed"))
    };
    let with = text.lines().filter(is_of_a_death).count();
    assert_eq!(with, 2, "the first to say so ends with the others:\n{text}");
}

#[test]
fn actors_start_in_workers_and_errors_say_why() {
    let text = play_well(&["actors"]);
    has(
        &text,
        &[
            "3000001 bytes, last Some(77)",
            "error: an actor of type `fail` could not be created in worker `two`: no memory\n    | \n    | Caused by:\n    |     disk on fire",
            "it panicked: create panicked on purpose",
            "error: the name `a` belongs to actor#1",
            "error: the arguments of an actor of type `length` do not fit",
            "clean shutdown of 2",
            "error: the node has shut down",
        ],
    );
}

// DEATH-2.
#[test]
fn a_worker_that_ends_costs_only_itself() {
    let text = play_well(&["deaths"]);
    has(
        &text,
        &[
            "error: worker `one` ended (exit status: 5) before the actor of type `exit` ran",
            "error: worker `one` ended (exit status: 5) before the actor of type `quiet` ran",
            "killed: signal: 9 (SIGKILL): the node was asked to kill it",
            "clean shutdown of 1",
        ],
    );
}

// LEASE-4, WIRE-1.
#[test]
fn every_question_for_a_chunk_is_answered() {
    let text = play_well(&["chunks"]);
    // The other worker was killed before the shutdown began.
    has(&text, &["asker has the chunk: true", "asker has the chunk: false", "clean shutdown of 1"]);
}

/// Returns a program that is another file. A process of its own copies it. A process that another test starts
/// meanwhile would have this process's descriptor until it runs its program, and Linux starts no program that
/// somebody may write to.
fn of_another_build(folder: &Path) -> PathBuf {
    let other = folder.join("node_probe_of_another_build");
    assert!(Command::new("cp").arg(PROBE).arg(&other).status().unwrap().success());
    other
}

#[test]
fn another_build_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let other = of_another_build(folder.path());
    let text = play_well(&["refused", other.to_str().unwrap()]);
    has(
        &text,
        &[
            "error: worker `other` was refused: the worker runs another build",
            "expected: tensorpost ",
            "worker:   tensorpost ",
            "They differ in the registered actor and message types; rebuild the program",
            ": the node refused this worker: the worker runs another build",
        ],
    );
}

/// Others write to the same stderr at the same moment, so a line that is written in pieces is torn.
#[test]
fn a_worker_writes_its_last_words_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let other = of_another_build(folder.path());
    // Each write is a packet.
    let (reader, writer) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let mut command = probe(&["refused", other.to_str().unwrap()]);
    let mut child = command.stdout(Stdio::null()).stderr(writer).spawn().unwrap();
    drop(command);
    let (mut reader, mut packet, mut texts) = (File::from(reader), vec![0; 4096], Vec::new());
    loop {
        let length = reader.read(&mut packet).unwrap();
        if length == 0 {
            break;
        }
        texts.push(String::from_utf8_lossy(&packet[..length]).into_owned());
    }
    assert!(child.wait().unwrap().success());
    let whole = |text: &&String| text.starts_with("tensorpost worker ") && text.ends_with('\n');
    let words = texts.iter().filter(whole).find(|text| text.contains(": the node refused this worker: "));
    assert!(words.is_some(), "{texts:#?}");
}

#[test]
fn a_worker_that_ends_before_it_is_ready_is_reported_with_its_status() {
    has(
        &play_well(&["exits-early"]),
        &[
            "error: worker `exits-early` ended before it was ready (exit status: 7); its last words:\na library is missing\n",
            "; it ended in its program's own `main`, where nothing took it over as a worker: put `#[tensorpost::main]` there",
        ],
    );
    has(
        &play_well(&["cannot-open"]),
        &["error: worker `cannot-open` ended before it was ready (exit status: 78): no GPU 7 here"],
    );
    has(
        &play_well(&["cannot-stage"]),
        &["error: worker `cannot-stage` ended before it was ready (exit status: 78): no stage today"],
    );
    has(
        &play_well(&["never-says-hello"]),
        &["error: worker `mute` was not ready after 300.0 ms (it has not said hello) and was killed"],
    );
}

/// The loader does not take over workers of this node. The first line of a `main` with the attribute does,
/// and knows only the types that the program links, so the node refuses it. Without that line the probe's own
/// types would be welcome.
#[test]
fn the_attribute_takes_a_worker_over_where_the_loader_does_not() {
    has(
        &play_well(&["taken-late"]),
        &[
            "error: worker `taken-late` was refused: the worker runs another build",
            "They differ in the registered actor and message types",
        ],
    );
}

/// The keeper of the MPS daemon is this program again too.
#[test]
fn nothing_of_main_runs_in_a_keeper() {
    let mut command = probe(&["keeper"]);
    // There is no daemon's program.
    let output = command.env("PATH", "/").output().unwrap();
    let (said, begun) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{begun}");
    has(&said, &["error: the MPS daemon did not start: nvidia-cuda-mps-control: "]);
    assert_eq!(begun.matches("main has begun").count(), 1, "{begun}");
}

#[test]
fn killing_the_node_leaves_no_worker_and_nothing_in_the_file_system() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = probe(&["waits"]);
    command.env("TMPDIR", folder.path());
    let mut node = Running::start(command);
    let workers = node.workers();
    assert_eq!(workers.len(), 3);
    assert!(workers.iter().all(|worker| !worker.has_exited().unwrap()));
    node.child.kill().unwrap();
    for worker in workers {
        assert!(worker.wait(Some(LONG)).unwrap(), "a worker outlived its node");
    }
    node.child.wait().unwrap();
    let names = |path: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(path).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    };
    assert_eq!(names(folder.path()), Vec::<String>::new());
    assert!(names(Path::new("/dev/shm")).iter().all(|name| !name.contains("tensorpost")));
}

#[test]
fn dropping_the_node_ends_its_workers() {
    let mut node = Running::start(probe(&["dropped"]));
    let workers = node.workers();
    node.line("dropped");
    assert!(workers.iter().all(|worker| worker.has_exited().unwrap()));
    drop(node.child.stdin.take());
    assert!(node.child.wait().unwrap().success());
}

#[test]
fn logs_arrive_under_their_workers_name_and_what_was_dropped_is_counted() {
    let text = play_well(&["logs"]);
    let line = |with: &str| {
        text.lines().find(|line| line.contains(with)).unwrap_or_else(|| panic!("{with}:\n{text}"))
    };
    has(
        line("it is warm"),
        &[
            "WARN",
            "worker=\"talker\"",
            "demo::blur",
            "count=2",
            "frame{id=3}",
            "tensorpost::worker",
            "fake.rs:",
        ],
    );
    has(line("panicked: boom"), &["ERROR", "worker=\"talker\"", "thread=\"aside\"", "fake.rs:"]);
    assert!(!text.contains("nobody asked for this"));
    let number = |with: &str| line(with).rsplit(' ').next().unwrap().parse::<usize>().unwrap();
    let in_node: usize = text
        .lines()
        .filter_map(|line| {
            line.split_once(" events of the log were dropped")?.0.rsplit(' ').next()?.parse::<usize>().ok()
        })
        .sum();
    let came = text.lines().filter(|line| line.contains(": flood ")).count();
    assert_eq!(came + in_node + number("the worker dropped"), 200_000);
}

#[test]
fn a_shutdown_lets_everything_under_way_finish() {
    let text = play_well(&["drains"]);
    has(&text, &["to handled 2", "from is told that the node is stopping", "clean shutdown of 2"]);
}

#[test]
fn a_shutdown_kills_and_names_who_is_late() {
    has(&play_well(&["late"]), &["slow: killed Some(StoppingActors)", "good: killed Some(StoppingActors)"]);
}

// MBX-2.
#[test]
fn a_worker_that_does_not_read_is_killed_at_the_bound_and_the_others_go_on() {
    has(
        &play_well(&["stuck"]),
        &["stuck: the other side does not read its control socket: 8192 packets", "clean shutdown of 1"],
    );
}

#[test]
fn a_signal_drains_and_a_second_one_kills_at_once() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut node = Running::start(probe(&["signals"]));
        node.line("running; press Ctrl-C");
        node.signal(signal);
        node.line("clean: true, killed: None");
        assert!(node.child.wait().unwrap().success());
    }
    let mut node = Running::start(probe(&["signals", "busy"]));
    node.line("running; press Ctrl-C");
    node.signal(Signal::INT);
    node.line("worker is told that the node is stopping");
    node.signal(Signal::INT);
    node.line("clean: false, killed: Some(Draining)");
    assert!(node.child.wait().unwrap().success());
}

/// A service manager sends a signal to all processes of a service at once: only the node acts on it.
#[test]
fn a_signal_to_all_processes_lets_the_workers_finish() {
    for number in [Signal::TERM, Signal::INT] {
        let mut node = Running::start(probe(&["signals", "busy"]));
        node.line("running; press Ctrl-C");
        let workers = children(node.child.id());
        assert_eq!(workers.len(), 1, "{workers:?}");
        for worker in &workers {
            for number in [Signal::HUP, number] {
                kill_process(*worker, number).unwrap();
            }
        }
        node.signal(number);
        // The worker prints this, after it was sent the signal.
        node.line("worker is told that the node is stopping");
        node.signal(number);
        node.line("clean: false, killed: Some(Draining)");
        assert!(node.child.wait().unwrap().success());
    }
}

/// The variable that makes the next test a program; without it, that test does nothing.
const PROGRAM: &str = "TENSORPOST_TEST_PROGRAM";

/// The programs that the tests behind it start.
#[test]
fn a_program_that_a_signal_ends() {
    match std::env::var(PROGRAM).as_deref() {
        Ok("pipeline") => pipeline(),
        Ok("service") => service(),
        _ => {}
    }
}

fn pipeline() {
    let numbers = Pipeline::new("endless").require_complete().items("numbers", |_| (0..).map(Number));
    let passed = numbers.map("pass", Ok).replicas(2).ordered();
    let counted = passed.for_each("count", |Number(number)| {
        if number == 100 {
            println!("at work");
        }
        Ok(())
    });
    let report = counted.run().unwrap();
    let made = report.stage("numbers").map(|stage| stage.items_out);
    let are_all = made == report.stage("count").map(|stage| stage.items_in);
    println!("ended: cancelled {}, all {are_all}", report.cancelled);
}

fn service() {
    let node = &Node::builder().start().unwrap();
    let late = node.spawn::<Late>(()).start().unwrap().address::<Question>();
    let (accepted, are_accepted) = oneshot::channel();
    let (report, answers) = std::thread::scope(|scope| {
        let asking = scope.spawn(move || {
            node.block_on(async {
                let mut asks: Vec<_> = (0..3).map(|number| late.ask(Question(number))).collect();
                for ask in &mut asks {
                    ask.accepted().await.unwrap();
                }
                accepted.send(()).unwrap();
                join_all(asks).await.into_iter().collect::<Result<Vec<_>, _>>()
            })
        });
        let never = async {
            are_accepted.await.unwrap();
            println!("at work");
            std::future::pending().await
        };
        (node.run_until_ctrl_c_or(never, LONG).unwrap(), asking.join().unwrap().unwrap())
    });
    println!("ended: clean {}, answers {answers:?}", report.is_clean());
}

/// Answers only when the node is stopping.
struct Late(Env);

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct Question(u64);

impl Actor for Late {
    type Context = Context<Self>;
}

impl RemoteActor for Late {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Late(env.clone()))
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Question>();
    }
}

impl Handler<Question> for Late {
    type Result = ResponseFuture<u64>;

    fn handle(&mut self, Question(number): Question, _: &mut Context<Self>) -> Self::Result {
        let stopping = self.0.stopping();
        Box::pin(async move {
            stopping.await;
            number
        })
    }
}

/// Starts a program of this file and signals all of its processes, one by one or as a group; its last line
/// has to end as given.
fn ends_in_order(program: &str, last: &str) {
    for (number, as_a_group) in [(Signal::TERM, true), (Signal::INT, true), (Signal::TERM, false)] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_program_that_a_signal_ends", "--nocapture"]).env(PROGRAM, program);
        command.process_group(0);
        let mut node = Running::start(command);
        node.line("at work");
        if as_a_group {
            kill_process_group(Pid::from_child(&node.child), number).unwrap();
        } else {
            let workers = children(node.child.id());
            assert!(!workers.is_empty());
            for worker in workers {
                for number in [Signal::HUP, number] {
                    kill_process(worker, number).unwrap();
                }
            }
            node.signal(number);
        }
        let line = node.line("ended: ");
        assert!(line.ends_with(last), "{number:?}: {line}");
        assert!(node.child.wait().unwrap().success());
    }
}

#[test]
fn a_signal_to_all_processes_lets_a_pipeline_finish() {
    ends_in_order("pipeline", "ended: cancelled true, all true");
}

#[test]
fn a_signal_to_all_processes_lets_a_service_answer() {
    ends_in_order("service", "ended: clean true, answers [0, 1, 2]");
}

/// Returns the children of a process.
fn children(process: u32) -> Vec<Pid> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let of_thread = |thread: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(thread.unwrap().path().join("children")).unwrap();
        text.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap()).collect::<Vec<_>>()
    };
    threads.flat_map(of_thread).collect()
}

#[test]
fn a_program_that_a_worker_starts_is_no_worker() {
    has(&play_well(&["runs-itself"]), &["the child of a worker: exit status: 0", "clean shutdown of 1"]);
}

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Number(u64);

/// A worker never gets to the harness, which would run all tests in it.
#[test]
fn a_plain_test_has_workers_and_more_than_one_node() {
    for round in 0..2_u64 {
        let numbers = Pipeline::new("plain").items("numbers", |_| (0..20).map(Number));
        let added = numbers.with(round).map("add", |round, Number(number)| Ok(Number(number + *round)));
        let checked = added.with(round).for_each("check", |round, Number(number)| {
            anyhow::ensure!((*round..20 + *round).contains(&number));
            Ok(())
        });
        assert!(checked.run().unwrap().is_complete());
    }
}

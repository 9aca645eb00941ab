//! A trace that a watcher asks for, of a node that does not trace: its contents, and that the node is as
//! before afterwards.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tensorpost::node::{Console, Spawned};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::chrome::{Trace, text};
use tensorpost_tests::harness::{self, Builder, Case};
use tensorpost_tests::holder::{Check, Hold, Holder, LetGo};
use tensorpost_tests::wait::{ask, numbers, stop, until};
use tensorpost_watch::console::{self, ConsoleError, NodeSnapshot, Request, Traced};

/// A node with its console at a path of its own, and a holder.
struct Scene {
    node: Node,
    holder: Spawned<Holder>,
    folder: tempfile::TempDir,
}

/// How long a trace runs that something else ends.
const LONG: Duration = Duration::from_secs(300);

impl Scene {
    fn new(builder: Builder) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let node = builder.console(Console::At(folder.path().join("console"))).start().unwrap();
        let holder = node.spawn::<Holder>(()).name("held").start().unwrap();
        Scene { node, holder, folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("console")
    }

    fn attach(&self) -> console::Console {
        console::Console::at(self.path()).unwrap()
    }

    /// Waits until the node traces, or no longer does. A snapshot that all processes have answered comes
    /// behind the orders that they got before it. Returns the time of that snapshot.
    fn until_tracing(&self, tracing: bool) -> u64 {
        let mut seen = None;
        until("tracing is switched", || {
            // On a busy machine an answer may be late, and come before the next question.
            let Ok(snapshot) = console::Console::at(self.path()).and_then(|mut console| console.snapshot())
            else {
                return false;
            };
            seen = (snapshot.node.tracing == tracing && all_answered(&snapshot)).then_some(snapshot.at);
            seen.is_some()
        });
        seen.unwrap()
    }

    /// Sends a message with a tensor to the holder, and waits until it was handled.
    fn works(&self) {
        let stream = self.node.host_stream().unwrap();
        ask(&self.node, &self.holder.address(), Hold::with(1, numbers(&stream, 0, 16)));
        // Otherwise it would have all leases before the interval is over.
        ask(&self.node, &self.holder.address(), LetGo);
    }

    fn written(&self, traced: &Traced) -> Trace {
        let file = self.folder.path().join("t.json");
        traced.write_to(&file).unwrap();
        Trace::read(&file)
    }

    /// Starts a trace and calls `done`, whose actions are in it; the end of the node ends the trace.
    fn traced_while(&self, done: impl FnOnce()) -> std::thread::JoinHandle<Result<Traced, ConsoleError>> {
        let mut console = self.attach();
        let tracing = std::thread::spawn(move || console.trace(LONG));
        self.until_tracing(true);
        done();
        tracing
    }
}

fn all_answered(snapshot: &NodeSnapshot) -> bool {
    snapshot.processes.iter().all(|process| process.metrics.is_some())
}

fn handled(trace: &Trace, process: &str) -> usize {
    let pid = trace.pid(process);
    trace
        .slices("handler")
        .filter(|slice| slice["pid"] == pid && text(slice, "name").ends_with("Hold"))
        .count()
}

/// Returns whether a process has memory for a trace.
fn has_a_ring(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap().contains("tensorpost-trace")
}

fn end(node: Node) {
    assert!(node.shutdown(Duration::from_secs(20)).unwrap().is_clean());
}

fn an_interval_has_all_names_and_events_and_nothing_is_traced_afterwards(builder: Builder) {
    let scene = Scene::new(builder);
    let worker = ask(&scene.node, &scene.holder.address(), Check).pid;
    (0..50).for_each(|_| scene.works());
    assert!(!scene.attach().snapshot().unwrap().node.tracing && !has_a_ring(worker));

    let mut console = scene.attach();
    // The second trace has all names again, and nothing of the first.
    let mut rounds = 0;
    while rounds < 2 {
        let mut tracer = scene.attach();
        let tracing = std::thread::spawn(move || tracer.trace(Duration::from_secs(1)).unwrap());
        let (mut surely, mut all, mut last) = (0, 0, scene.until_tracing(true));
        loop {
            scene.works();
            all += 1;
            let Ok(snapshot) = console.snapshot() else {
                console = scene.attach();
                continue;
            };
            if !snapshot.node.tracing {
                break;
            }
            // A snapshot is shown again for a while; a new one is younger than the message.
            if snapshot.at != last {
                (surely, last) = (all, snapshot.at);
            }
        }
        let traced = tracing.join().unwrap();
        assert!(traced.took() >= Duration::from_secs(1));
        let trace = scene.written(&traced);
        let seen = handled(&trace, "held");
        assert!((surely..=all).contains(&seen), "{surely} <= {seen} <= {all}");
        // On a busy machine the time may be up before anything was done.
        rounds += usize::from(surely > 0);
        let flows = trace.flows();
        assert!(flows.len() >= surely, "a send is linked to its handler in the other process");
        let rows: Vec<_> = trace.phase("M").map(|event| Trace::arg(event, "name")).collect();
        assert!(seen == 0 || rows.contains(&"actor held"), "{rows:?}");
        let begins = trace.phase("i").filter(|event| text(event, "name") == "the trace begins").count();
        assert!(begins == 2 || seen == 0, "both processes were there before");
        assert_eq!(trace.about["damaged"], 0);
        drop(traced);
        scene.until_tracing(false);
        until("the memory is given back", || !has_a_ring(worker) && !has_a_ring(std::process::id()));
    }
    scene.works();
    end(scene.node);
}

fn a_second_asker_is_told_and_one_that_goes_away_ends_its_trace(builder: Builder) {
    let scene = Scene::new(builder);
    let worker = ask(&scene.node, &scene.holder.address(), Check).pid;
    // `ask` waits for five seconds and gives up, and its connection ends with it.
    let mut first = scene.attach();
    let asking = std::thread::spawn(move || drop(first.ask(&Request::Trace { long: LONG })));
    scene.until_tracing(true);
    assert!(has_a_ring(worker), "all have answered behind it");
    let refused = scene.attach().trace(Duration::from_millis(1)).unwrap_err().to_string();
    let own = format!("traced already, for process {}", std::process::id());
    assert!(refused.contains(&own) && refused.contains("try again"), "{refused}");
    let long = scene.attach().trace(Duration::from_secs(3600)).unwrap_err().to_string();
    assert!(long.contains("600.0 s at most"), "{long}");
    asking.join().unwrap();
    scene.until_tracing(false);
    until("the memory is given back", || !has_a_ring(worker) && !has_a_ring(std::process::id()));
    scene.works();
    assert!(scene.attach().trace(Duration::from_millis(1)).is_ok());
    end(scene.node);
}

fn a_worker_that_begins_and_one_that_ends_meanwhile_are_in_it(builder: Builder) {
    let scene = Scene::new(builder);
    let tracing = scene.traced_while(|| {
        let late = scene.node.spawn::<Holder>(()).name("late").start().unwrap();
        ask(&scene.node, &late.address(), Hold::label(1));
        scene.works();
        scene.node.supervisor().kill_worker(scene.holder.worker());
        scene.node.supervisor().await_end(scene.holder.worker());
    });
    let folder = scene.folder;
    // The end of the node ends the trace, and the watcher gets the trace so far.
    drop(scene.node);
    let traced = tracing.join().unwrap().unwrap();
    let file = folder.path().join("t.json");
    traced.write_to(&file).unwrap();
    let trace = Trace::read(&file);
    assert_eq!((handled(&trace, "late"), handled(&trace, "held")), (1, 1));
    let pid = trace.pid("held");
    assert!(trace.phase("i").any(|event| event["pid"] == pid && text(event, "name").starts_with("ended: ")));
}

fn a_node_that_traces_anyway_gives_the_interval_and_goes_on(builder: Builder) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.json");
    let scene = Scene::new(builder.trace(&file));
    (0..20).for_each(|_| scene.works());
    let traced = scene.attach().trace(Duration::from_millis(1)).unwrap();
    (0..20).for_each(|_| scene.works());
    let trace = scene.written(&traced);
    assert_eq!(trace.slices("handler").count(), 0, "nothing was handled in that time");
    assert!(scene.attach().snapshot().unwrap().node.tracing);
    let node = scene.node;
    end(node);
    assert_eq!(handled(&Trace::read(&file), "held"), 40);
}

// CON-1: a worker that is stopped keeps nobody waiting.
fn a_stopped_worker_is_named(builder: Builder) {
    let scene = Scene::new(builder);
    let pid = ask(&scene.node, &scene.holder.address(), Check).pid;
    stop(pid);
    let traced = scene.attach().trace(Duration::from_millis(100)).unwrap();
    assert!(traced.silent().contains(&"held".to_owned()));
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::CONT).unwrap();
    // It has been told to begin and to end.
    scene.until_tracing(false);
    scene.works();
    until("the memory is given back", || !has_a_ring(pid));
    end(scene.node);
}

fn a_file_that_cannot_be_written_is_named(builder: Builder) {
    let scene = Scene::new(builder);
    let traced = scene.attach().trace(Duration::from_millis(1)).unwrap();
    let error = traced.write_to(Path::new("/there/is/none/t.json")).unwrap_err().to_string();
    assert!(error.contains("/there/is/none/t.json"), "{error}");
    end(scene.node);
}

pub(crate) fn cases() -> Vec<Case> {
    // One after the other, because each looks at the memory of this process.
    harness::alone(cases![
        an_interval_has_all_names_and_events_and_nothing_is_traced_afterwards,
        a_second_asker_is_told_and_one_that_goes_away_ends_its_trace,
        a_worker_that_begins_and_one_that_ends_meanwhile_are_in_it,
        a_node_that_traces_anyway_gives_the_interval_and_goes_on,
        a_stopped_worker_is_named,
        a_file_that_cannot_be_written_is_named,
    ])
}

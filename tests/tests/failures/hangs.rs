//! A process that stands still past the node's limit is reported, with the waits between processes, and
//! killed if the node was told so.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tensorpost::actor::EndReason;
use tensorpost::device::DeviceId;
use tensorpost::node::{Hang, HangReport, ProcessId, Spawned, WaitsIn};
use tensorpost::prelude::*;
use tensorpost::published::{Subscriber, Topic};
use tensorpost_core::observe::hang_probe::notes;
use tensorpost_tests::cases;
use tensorpost_tests::gate::{Door, Gate};
use tensorpost_tests::harness::{self, Builder, Case};
use tensorpost_tests::holder::{Check, Hold, Holder, Seen};
use tensorpost_tests::pipes::{Count, CountArgs, Numbered, Obey, Orders, WriteDown, WriteDownArgs};
use tensorpost_tests::wait::{ask, deliver, until};

const LIMIT: Duration = Duration::from_millis(300);
const SOON: Restart = Restart::on_failure(50).backoff(Duration::from_millis(1), Duration::from_millis(5));

/// Has its stream wait at doors, or for tensors of other actors.
struct Streamer {
    stream: DeviceStream,
    held: Vec<Tensor>,
}

impl Actor for Streamer {
    type Context = Context<Self>;
}

impl RemoteActor for Streamer {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Streamer { stream: env.stream(), held: Vec::new() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Late>().message::<Copy>().message::<Notes>();
    }
}

/// "Make a tensor that is ready when the door opens."
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Tensor)]
struct Late(Door);

impl Handler<Late> for Streamer {
    type Result = MessageResult<Late>;

    fn handle(&mut self, Late(door): Late, _: &mut Context<Self>) -> Self::Result {
        let mut late = self.stream.zeros(DType::F32, &[4]).unwrap();
        self.stream
            .run((late.of_mut::<f32>(),), move |(late,)| {
                let _ = door.pass();
                late.fill(1.0);
            })
            .unwrap();
        MessageResult(late.freeze())
    }
}

/// "Copy this on your stream, and do not wait for it." The reply is its process.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u32)]
struct Copy(Tensor);

impl Handler<Copy> for Streamer {
    type Result = u32;

    fn handle(&mut self, Copy(tensor): Copy, _: &mut Context<Self>) -> u32 {
        self.held.push(self.stream.copy(&tensor).unwrap().freeze());
        std::process::id()
    }
}

/// "How many notes have you made for hang reports?"
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct Notes;

impl Handler<Notes> for Streamer {
    type Result = u64;

    fn handle(&mut self, _: Notes, _: &mut Context<Self>) -> u64 {
        notes()
    }
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// Waits for the first report.
fn report(node: &Node) -> HangReport {
    let mut first = None;
    until("something is reported", || {
        first = node.report().unwrap().hangs.into_iter().next();
        first.is_some()
    });
    first.unwrap()
}

fn comes_back(node: &Node, holder: &Spawned<Holder>, before: u32) {
    loop {
        match node.block_on(holder.address().ask(Check)) {
            Ok(health) if health.pid != before => break,
            Ok(_) => {}
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
    let why = node.supervisor().worker(holder.worker()).unwrap().last_end.unwrap();
    assert!(matches!(why, EndReason::Hung(_)), "{why}");
}

fn a_stopped_worker_does_not_answer_and_is_restarted(builder: Builder) {
    let node = builder.hang_limit(LIMIT, OnHang::Restart).start().unwrap();
    let holder = node.spawn::<Holder>(()).name("frozen").restart(SOON).start().unwrap();
    let pid = ask(&node, &holder.address(), Check).pid;
    signal(pid, Signal::STOP);
    comes_back(&node, &holder, pid);
    let report = report(&node);
    assert_eq!((report.hang.clone(), report.killed), (Hang::Silent { stopped: true }, true));
    assert!(report.worker == Some(holder.worker()) && report.lasted >= LIMIT, "{report}");
    assert!(report.to_string().contains("`frozen` (p1.0) is stopped and has not answered for"), "{report}");
}

fn a_worker_that_goes_on_after_a_report_is_the_same(builder: Builder) {
    let node = builder.hang_limit(LIMIT, OnHang::Report).start().unwrap();
    let holder = node.spawn::<Holder>(()).start().unwrap();
    let pid = ask(&node, &holder.address(), Check).pid;
    signal(pid, Signal::STOP);
    let first = report(&node);
    assert!(!first.killed && first.hang == Hang::Silent { stopped: true }, "{first}");
    signal(pid, Signal::CONT);
    assert_eq!(ask(&node, &holder.address(), Check).pid, pid);
    assert_eq!(node.report().unwrap().hangs, [first], "it is said once");
}

fn an_actor_stuck_in_its_handler_is_named(builder: Builder) {
    let node = builder.hang_limit(LIMIT, OnHang::Report).start().unwrap();
    let holder = node.spawn::<Holder>(()).name("stuck").start().unwrap();
    let gate = Gate::new();
    deliver(&node, &holder.address(), Hold::at(1, &gate.door()));
    let arrival = gate.arrival();
    deliver(&node, &holder.address(), Hold::label(2));
    let first = report(&node);
    let Hang::Mailbox { actor, name, open, handling: true } = &first.hang else { panic!("{first}") };
    assert_eq!((*actor, name.as_str()), (holder.actor(), "stuck"));
    assert!((1..=2).contains(open) && !first.killed, "{first}");
    arrival.open();
    assert_eq!(ask(&node, &holder.address(), Seen), [1, 2]);
}

fn an_actor_stuck_in_its_handler_is_restarted_if_asked_for(builder: Builder) {
    let node = builder.hang_limit(LIMIT, OnHang::Restart).start().unwrap();
    let holder = node.spawn::<Holder>(()).restart(SOON).start().unwrap();
    let pid = ask(&node, &holder.address(), Check).pid;
    let gate = Gate::new();
    deliver(&node, &holder.address(), Hold::at(1, &gate.door()));
    let _arrival = gate.arrival();
    comes_back(&node, &holder, pid);
    let report = report(&node);
    assert!(matches!(report.hang, Hang::Mailbox { .. }) && report.killed, "{report}");
}

fn a_wait_names_the_stream_the_clock_the_value_and_who_is_to_blame(builder: Builder) {
    let node = builder.hang_limit(LIMIT, OnHang::Report).start().unwrap();
    let slow = node.spawn::<Streamer>(()).name("slow").start().unwrap();
    let waits = node.spawn::<Streamer>(()).name("waits").start().unwrap();
    let gate = Gate::new();
    let late = ask(&node, &slow.address(), Late(gate.door()));
    let arrival = gate.arrival();
    ask(&node, &waits.address(), Copy(late));
    let first = report(&node);
    let Hang::Clock { waiter_name, waits_in, value, now, .. } = &first.hang else { panic!("{first}") };
    assert_eq!((first.name.as_str(), first.worker), ("slow", Some(slow.worker())));
    let is_stream = matches!(waits_in, WaitsIn::Stream { device: DeviceId::HOST, .. });
    assert!(waiter_name == "waits" && is_stream && now < value, "{first}");
    assert!(first.to_string().contains("in its stream") && first.lasted >= LIMIT, "{first}");
    assert!(!first.killed);
    arrival.open();
}

/// A thread that waits is named too: the test's own, which waits for a tensor of the slow one's stream.
fn a_thread_that_waits_is_named(builder: Builder) {
    let node = builder.hang_limit(LIMIT, OnHang::Report).start().unwrap();
    let slow = node.spawn::<Streamer>(()).name("slow").start().unwrap();
    let gate = Gate::new();
    let late = ask(&node, &slow.address(), Late(gate.door()));
    let arrival = gate.arrival();
    let waiting =
        std::thread::Builder::new().name("impatient".into()).spawn(move || late.wait(None)).unwrap();
    let first = report(&node);
    let Hang::Clock { waiter, waits_in, .. } = &first.hang else { panic!("{first}") };
    assert_eq!((*waiter, waits_in), (ProcessId::NODE, &WaitsIn::Thread("impatient".into())), "{first}");
    assert_eq!(first.name, "slow");
    arrival.open();
    waiting.join().unwrap().unwrap();
}

/// In a row of three, the middle one waits as well.
fn only_the_last_in_a_row_is_to_blame(builder: Builder) {
    let node = builder.hang_limit(LIMIT, OnHang::Restart).start().unwrap();
    let spawn = |name: &str| node.spawn::<Streamer>(()).name(name).restart(SOON).start().unwrap();
    let (slow, middle) = (spawn("slow"), spawn("middle"));
    let gate = Gate::new();
    let late = ask(&node, &slow.address(), Late(gate.door()));
    let arrival = gate.arrival();
    ask(&node, &middle.address(), Copy(late.clone()));
    // This gate is behind that copy on the middle one's stream; this process waits for it.
    let behind = Gate::new();
    let later = ask(&node, &middle.address(), Late(behind.door()));
    let waiting = std::thread::spawn(move || later.wait(Some(std::time::Instant::now() + 10 * LIMIT)));
    until("the slow one is killed", || node.supervisor().worker(slow.worker()).unwrap().restarts > 0);
    let reports = node.report().unwrap().hangs;
    assert!(reports.iter().all(|report| report.killed == (report.name == "slow")), "{reports:?}");
    assert_eq!(node.supervisor().worker(middle.worker()).unwrap().restarts, 0);
    drop(arrival);
    drop(behind);
    let _ = waiting.join().unwrap();
    node.supervisor().kill_all();
}

fn who_moves_or_has_nothing_to_do_is_not_reported(builder: Builder) {
    let node = builder.hang_limit(Duration::from_secs(2), OnHang::Restart).start().unwrap();
    let busy = node.spawn::<Holder>(()).restart(SOON).start().unwrap();
    let idle = node.spawn::<Holder>(()).restart(SOON).start().unwrap();
    let pids = [&busy, &idle].map(|holder| ask(&node, &holder.address(), Check).pid);
    let start = std::time::Instant::now();
    while start.elapsed() < Duration::from_secs(5) {
        let gate = Gate::new();
        let sent = busy.address().ask(Hold::at(1, &gate.door()));
        let arrival = gate.arrival();
        // Each of its handlers takes a while, and always another message waits.
        deliver(&node, &busy.address(), Hold::label(2));
        std::thread::sleep(Duration::from_millis(50));
        arrival.open();
        node.block_on(sent).unwrap();
    }
    assert_eq!([&busy, &idle].map(|holder| ask(&node, &holder.address(), Check).pid), pids);
    assert_eq!(node.report().unwrap().hangs, []);
}

/// A source's order to run is open for as long as it runs, and a reader's question until there is a newer
/// version.
fn sources_stages_and_topics_that_wait_are_not_reported(builder: Builder) {
    let node = builder.hang_limit(Duration::from_secs(2), OnHang::Restart).start().unwrap();
    let topic = node.spawn::<Topic<Numbered>>(()).name("numbers").restart(SOON).start().unwrap();
    let reader = Subscriber::<Numbered>::follow(&node, "numbers");
    // The items come further apart than the limit.
    let source = Pipeline::new("slow").source::<Count>(CountArgs::to(2)).every(Duration::from_secs(4));
    let folder = tempfile::tempdir().unwrap();
    let stage = source.stage::<Obey>(Orders::default());
    let sink = stage.sink::<WriteDown>(WriteDownArgs::to(folder.path().join("out")));
    let report = node.run_pipeline(&sink.pipeline()).unwrap().wait().unwrap();
    assert!(report.deaths.is_empty() && report.is_complete(), "{report}");
    assert_eq!(node.report().unwrap().hangs, []);
    assert_eq!(node.supervisor().worker(topic.worker()).unwrap().restarts, 0);
    drop(reader);
}

/// Handles messages while a stream waits for another process's, and so does a thread.
fn what_is_noted(builder: Builder) -> (u64, u64) {
    let node = builder.start().unwrap();
    let slow = node.spawn::<Streamer>(()).start().unwrap();
    let waits = node.spawn::<Streamer>(()).start().unwrap();
    let before = notes();
    let gate = Gate::new();
    let late = ask(&node, &slow.address(), Late(gate.door()));
    let arrival = gate.arrival();
    ask(&node, &waits.address(), Copy(late.clone()));
    let soon = std::time::Instant::now() + Duration::from_millis(50);
    assert!(late.wait(Some(soon)).is_err(), "its door is shut");
    let in_worker = ask(&node, &waits.address(), Notes);
    arrival.open();
    (notes() - before, in_worker)
}

fn nothing_is_noted_without_a_limit(builder: Builder) {
    assert_eq!(what_is_noted(builder), (0, 0));
}

fn with_a_limit_waits_and_handlers_are_noted(builder: Builder) {
    let (in_node, in_worker) = what_is_noted(builder.hang_limit(Duration::from_secs(60), OnHang::Report));
    assert!(in_node > 0 && in_worker > 0, "{in_node} in the node, {in_worker} in a worker");
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = cases![
        a_stopped_worker_does_not_answer_and_is_restarted,
        a_worker_that_goes_on_after_a_report_is_the_same,
        an_actor_stuck_in_its_handler_is_named,
        an_actor_stuck_in_its_handler_is_restarted_if_asked_for,
        a_wait_names_the_stream_the_clock_the_value_and_who_is_to_blame,
        a_thread_that_waits_is_named,
        only_the_last_in_a_row_is_to_blame,
        who_moves_or_has_nothing_to_do_is_not_reported,
        sources_stages_and_topics_that_wait_are_not_reported,
        with_a_limit_waits_and_handlers_are_noted,
    ];
    // The notes of its process are those of all nodes in it.
    cases.extend(harness::alone(cases![nothing_is_noted_without_a_limit]));
    cases
}

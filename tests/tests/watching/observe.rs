//! Traces and metrics of real processes: the contents of the file, and that viewers can open it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use tensorpost::node::{Spawned, WorkerState};
use tensorpost::observe::ActorMetrics;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::chrome::{Event, Trace, text};
use tensorpost_tests::gate::Gate;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::holder::{Check, Hold, Holder, LetGo};
use tensorpost_tests::wait::{ask, deliver, numbers, stop, until};

/// An item that workers pass on.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
struct Item {
    number: u64,
    tensor: Tensor,
}

/// Passes items on.
struct Relay {
    next: Option<Address<Item>>,
}

impl Actor for Relay {
    type Context = Context<Self>;
}

impl RemoteActor for Relay {
    type Args = Option<Address<Item>>;

    fn create(next: Self::Args, _: &Env) -> anyhow::Result<Self> {
        Ok(Relay { next })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Item>();
    }
}

impl Handler<Item> for Relay {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, item: Item, _: &mut Context<Self>) -> Self::Result {
        let sent = self.next.as_ref().map(|next| next.send(item));
        Box::pin(async move {
            if let Some(sent) = sent {
                sent.await.expect("the next one takes it");
            }
        })
    }
}

const ITEMS: usize = 100;

/// Two relays in two workers, and items through both of them. Everything has been handled when this returns.
fn relay_items(node: &Node) {
    let last = node.spawn::<Relay>(None).name("last").start().unwrap();
    let first = node.spawn::<Relay>(Some(last.address())).name("first").mailbox(8).start().unwrap();
    let stream = node.host_stream().unwrap();
    let address = first.address();
    let sends = (0..ITEMS).map(|number| {
        address.send(Item { number: number as u64, tensor: numbers(&stream, number as u32, 16) })
    });
    node.block_on(join_all(sends.collect::<Vec<_>>())).into_iter().for_each(|sent| sent.unwrap());
}

fn end(node: Node) {
    assert!(node.shutdown(Duration::from_secs(20)).unwrap().is_clean());
}

fn handlers<'a>(trace: &'a Trace, pid: u64, name: &'a str) -> impl Iterator<Item = &'a Event> {
    trace.slices("handler").filter(move |slice| slice["pid"] == pid && text(slice, "name").ends_with(name))
}

fn a_trace_links_every_send_to_its_handler_in_the_other_process(builder: Builder) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let node = builder.trace(&file).start().unwrap();
    relay_items(&node);
    end(node);

    let trace = Trace::read(&file);
    let pids = ["node", "first", "last"].map(|name| trace.pid(name));
    for pid in &pids[1..] {
        assert_eq!(handlers(&trace, *pid, "Item").count(), ITEMS);
    }
    let flows = trace.flows();
    for (from, to) in [(pids[0], pids[1]), (pids[1], pids[2])] {
        let between: Vec<_> =
            flows.iter().filter(|flow| flow.from["pid"] == from && flow.to["pid"] == to).collect();
        assert_eq!(between.len(), ITEMS, "every item has an arrow");
        for flow in between {
            assert_eq!((text(&flow.from, "cat"), text(&flow.to, "cat")), ("send", "handler"));
            assert_eq!(flow.through.len(), 1, "through its delivery");
            assert_eq!(text(&flow.through[0], "cat"), "deliver");
            assert!(text(&flow.from, "name").ends_with("Item"), "{:?}", flow.from);
        }
    }
    let actor = |event: &&Event| event["args"]["name"] == "actor first";
    assert!(trace.phase("M").any(|event| actor(&event)), "rows are called as their actors");
    // The items' memory is the node's, and all of it came back.
    let leases: Vec<_> = trace.phase("e").filter(|event| event["pid"] == pids[0]).collect();
    assert!(leases.len() >= ITEMS, "{} leases", leases.len());
    assert!(leases.iter().all(|event| event["args"].get("ended").is_none()), "{leases:?}");
    let granted = trace.phase("n").filter(|event| text(event, "name") == "granted").count();
    let returned = trace.phase("n").filter(|event| text(event, "name") == "returned").count();
    assert!(granted >= ITEMS && granted == returned, "{granted} granted, {returned} returned");
    assert_eq!((&trace.about["dropped"], &trace.about["damaged"]), (&0.into(), &0.into()));
}

// DEATH-2: the file also shows the dead worker's last actions.
fn a_killed_workers_last_handler_is_in_the_file(builder: Builder) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let node = builder.trace(&file).start().unwrap();
    let victim = node.spawn::<Holder>(()).name("victim").start().unwrap();
    ask(&node, &victim.address(), Hold::label(1));
    let gate = Gate::new();
    let tensor = numbers(&node.host_stream().unwrap(), 0, 16);
    deliver(&node, &victim.address(), Hold { tensors: vec![tensor], ..Hold::at(2, &gate.door()) });
    let arrival = gate.arrival(); // it is in its handler now
    node.supervisor().kill_worker(victim.worker());
    assert!(matches!(node.supervisor().await_end(victim.worker()), Some(WorkerState::Exited { .. })));
    arrival.open();
    drop(node);

    let trace = Trace::read(&file);
    let pid = trace.pid("victim");
    let held: Vec<_> = handlers(&trace, pid, "Hold").collect();
    assert_eq!(held.len(), 2);
    assert_eq!((Trace::arg(held[0], "ended"), Trace::arg(held[1], "ended")), ("", "no"));
    let death =
        trace.phase("i").find(|event| event["pid"] == pid && text(event, "name").starts_with("ended:"));
    let death = death.expect("its end is in the file");
    assert!(text(death, "name").contains("SIGKILL"), "{death:?}");
    let end = held[1]["ts"].as_f64().unwrap() + held[1]["dur"].as_f64().unwrap();
    assert!((end - death["ts"].as_f64().unwrap()).abs() < 0.01, "it lasts until its process's end");
    let last = trace.flows().into_iter().find(|flow| flow.to == *held[1]);
    assert_eq!(last.expect("the arrow to it").from["pid"], trace.pid("node"));
}

// DEATH-2.
fn every_life_of_a_restarted_worker_is_in_the_file(builder: Builder) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let node = builder.trace(&file).start().unwrap();
    let holder = node.spawn::<Holder>(()).name("phoenix").restart(Restart::on_failure(3)).start().unwrap();
    let first = ask(&node, &holder.address(), Check).pid;
    node.supervisor().kill_worker(holder.worker());
    until("it is back", || {
        node.block_on(holder.address().ask(Check)).is_ok_and(|health| health.pid != first)
    });
    end(node);

    let trace = Trace::read(&file);
    let lives = ["phoenix (p1.0)", "phoenix (p1.1)"].map(|life| trace.pid(life));
    let life = |pid: u64| -> Vec<&str> {
        let instants = trace.phase("i").filter(|event| text(event, "cat") == "life" && event["pid"] == pid);
        instants.map(|event| text(event, "name")).collect()
    };
    assert_eq!(life(lives[0]), ["started", "ended: signal: 9 (SIGKILL)"]);
    assert_eq!(life(lives[1])[0], "restarted");
    for pid in lives {
        assert!(handlers(&trace, pid, "Check").count() > 0);
    }
}

// MBX-2.
fn what_a_full_ring_drops_is_counted_and_the_rest_is_whole(builder: Builder) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let node = builder.trace(&file).trace_records(64).start().unwrap();
    relay_items(&node);
    end(node);
    let trace = Trace::read(&file);
    let dropped = trace.about["dropped"].as_u64().unwrap();
    let kept = trace.about["records"].as_u64().unwrap();
    // Three processes; each item leaves two records of a handler, one of a delivery or a send, and more, in
    // each.
    assert!(dropped > ITEMS as u64 && kept <= 3 * 64, "{dropped} dropped, {kept} kept");
    let says = |event: &&Event| Trace::arg(event, "name").ends_with("records dropped");
    assert_eq!(trace.phase("M").filter(says).count(), 3);
    assert!(trace.phase("M").any(|event| event["args"]["name"] == "actor last"), "names are kept");
}

/// Sends on a tensor whose writing waits at a door.
fn send_unfinished(node: &Node, to: &Spawned<Holder>, gate: &Gate) {
    let stream = node.host_stream().unwrap();
    let mut tensor = stream.zeros(DType::U32, &[4]).unwrap();
    let door = gate.door();
    stream.run((tensor.of_mut::<u32>(),), move |_| door.pass().expect("the gate is there")).unwrap();
    ask(node, &to.address(), Hold::with(1, tensor.freeze()));
}

// CLOCK-1, made visible.
fn a_stream_that_waits_is_in_the_trace_and_in_the_metrics(builder: Builder) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let node = builder.trace(&file).start().unwrap();
    let holder = node.spawn::<Holder>(()).name("waits").start().unwrap();
    let gate = Gate::new();
    send_unfinished(&node, &holder, &gate);
    assert_eq!(actor(&node, &holder).waits, 1);
    gate.pass_one();
    until("its stream has gone on", || actor(&node, &holder).waited.is_some_and(|waited| !waited.is_zero()));
    ask(&node, &holder.address(), LetGo);
    end(node);
    let trace = Trace::read(&file);
    let pid = trace.pid("waits");
    let enqueued: Vec<_> = trace.phase("i").filter(|event| text(event, "cat") == "wait").collect();
    assert_eq!(enqueued.iter().filter(|event| event["pid"] == pid).count(), 1, "{enqueued:?}");
    assert!(enqueued[0]["args"]["value"].is_u64() && enqueued[0]["args"]["clock"].is_u64());
    let waits: Vec<_> = trace.slices("wait").filter(|slice| slice["pid"] == pid).collect();
    assert_eq!(waits.len(), 1);
    assert!(Trace::arg(waits[0], "process").starts_with("node"), "{:?}", waits[0]);
    assert!(waits[0]["ts"].as_f64() >= enqueued[0]["ts"].as_f64());
}

fn actor(node: &Node, of: &Spawned<Holder>) -> ActorMetrics {
    node.metrics().unwrap().actor(of.actor()).expect("it is there").clone()
}

fn metrics_say_what_is_queued_handled_and_in_flight(builder: Builder) {
    let node = builder.start().unwrap();
    let holder = node.spawn::<Holder>(()).name("held").start().unwrap();
    let before = node.metrics().unwrap();
    let stream = node.host_stream().unwrap();
    for label in 0..10 {
        ask(&node, &holder.address(), Hold::label(label));
    }
    let gate = Gate::new();
    deliver(
        &node,
        &holder.address(),
        Hold { tensors: vec![numbers(&stream, 0, 4096)], ..Hold::at(10, &gate.door()) },
    );
    let arrival = gate.arrival();
    // The worker's one thread waits in the handler, so these stay where they are; the control thread answers.
    let now = node.metrics().unwrap();
    let metrics = now.actor(holder.actor()).unwrap();
    assert_eq!((metrics.name.as_str(), metrics.handled, metrics.handler.count()), ("held", 10, 10));
    assert!(metrics.busy > Duration::ZERO && metrics.longest <= metrics.busy);
    assert!(now.bytes_in_flight() >= 4096 * 4, "{now:?}");
    assert!(now.silent.is_empty() && now.processes.len() == 2);
    assert_eq!(now.processes[1].metrics.open, 1);
    let rows = now.rows(&before);
    assert!(rows[0].rate > 0.0 && rows[0].p50 <= rows[0].p99 && rows[0].process == "held", "{rows:?}");
    arrival.open();
    ask(&node, &holder.address(), LetGo);
    until("the memory is back", || node.metrics().unwrap().bytes_in_flight() == 0);
    assert_eq!(actor(&node, &holder).handled, 12);

    // The messages behind one in whose handler a separate thread waits are counted.
    let worker = holder.worker();
    let alone = node.spawn::<Holder>(()).worker(worker).own_thread().start().unwrap();
    deliver(&node, &alone.address(), Hold::at(0, &gate.door()));
    let arrival = gate.arrival();
    for label in 0..3 {
        deliver(&node, &alone.address(), Hold::label(label));
    }
    until("three are queued", || actor(&node, &alone).queued == 3);
    arrival.open();
    until("all are handled", || actor(&node, &alone).handled == 4);
}

fn a_process_that_does_not_answer_is_named_and_one_that_ends_is_left_out(builder: Builder) {
    let node = builder.start().unwrap();
    let silent = node.spawn::<Holder>(()).name("silent").start().unwrap();
    let other = node.spawn::<Holder>(()).name("other").start().unwrap();
    let pid = ask(&node, &silent.address(), Check).pid;
    stop(pid);
    // On a busy machine the other one may be late once.
    until("only the stopped one is silent", || {
        let metrics = node.metrics().unwrap();
        assert!(metrics.silent.contains(&"silent".to_owned()), "{:?}", metrics.silent);
        assert!(metrics.actor(silent.actor()).is_none());
        metrics.silent.len() == 1 && metrics.actor(other.actor()).is_some()
    });
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
    node.supervisor().await_end(silent.worker());
    until("the others answer", || {
        let metrics = node.metrics().unwrap();
        assert!(!metrics.silent.contains(&"silent".to_owned()), "{:?}", metrics.silent);
        metrics.processes.len() == 2
    });
    drop(node.shutdown(Duration::from_secs(20)));
    assert!(node.metrics().is_err());
}

fn a_trace_can_be_written_while_everything_goes_on(builder: Builder) {
    let folder = tempfile::tempdir().unwrap();
    let (file, early) = (folder.path().join("end.json"), folder.path().join("early.json"));
    let node = builder.trace(&file).start().unwrap();
    relay_items(&node);
    let gate = Gate::new();
    let holder = node.spawn::<Holder>(()).name("busy").start().unwrap();
    deliver(&node, &holder.address(), Hold::at(1, &gate.door()));
    let arrival = gate.arrival();
    let summary = node.write_trace(&early).unwrap().unwrap();
    assert!(summary.processes == 4 && summary.dropped == 0, "{summary:?}");
    let trace = Trace::read(&early);
    let open: Vec<_> = handlers(&trace, trace.pid("busy"), "Hold").collect();
    assert_eq!((open.len(), Trace::arg(open[0], "ended")), (1, "no"));
    assert!(!file.exists());
    arrival.open();
    end(node);
    let trace = Trace::read(&file);
    assert_eq!(Trace::arg(handlers(&trace, trace.pid("busy"), "Hold").next().unwrap(), "ended"), "");
}

fn a_file_that_cannot_be_written_costs_the_run_nothing(builder: Builder) {
    let node = builder.trace("/nowhere/trace.json").start().unwrap();
    relay_items(&node);
    let error = node.write_trace("/nowhere/trace.json").unwrap().unwrap_err().to_string();
    assert!(error.contains("/nowhere/trace.json"), "{error}");
    end(node);
}

/// Runs without a trace of its own, for the case below.
fn a_run_that_asks_for_no_trace(builder: Builder) {
    let node = builder.start().unwrap();
    relay_items(&node);
    let asked = std::env::var_os("TENSORPOST_TRACE").is_some_and(|file| !file.is_empty());
    assert_eq!(node.write_trace("/dev/null").is_some(), asked);
    end(node);
}

fn the_environment_can_ask_for_a_trace(_: Builder) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let run = |file: &Path| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "observe::a_run_that_asks_for_no_trace"]).env("TENSORPOST_TRACE", file);
        assert!(command.output().unwrap().status.success());
    };
    run(Path::new(""));
    assert!(!file.exists(), "an empty name is none");
    run(&file);
    assert_eq!(handlers(&Trace::read(&file), Trace::read(&file).pid("last"), "Item").count(), ITEMS);
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_trace_links_every_send_to_its_handler_in_the_other_process,
        a_killed_workers_last_handler_is_in_the_file,
        every_life_of_a_restarted_worker_is_in_the_file,
        what_a_full_ring_drops_is_counted_and_the_rest_is_whole,
        a_stream_that_waits_is_in_the_trace_and_in_the_metrics,
        metrics_say_what_is_queued_handled_and_in_flight,
        a_process_that_does_not_answer_is_named_and_one_that_ends_is_left_out,
        a_trace_can_be_written_while_everything_goes_on,
        a_file_that_cannot_be_written_costs_the_run_nothing,
        a_run_that_asks_for_no_trace,
        the_environment_can_ask_for_a_trace,
    ]
}

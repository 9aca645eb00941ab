//! The head's figures include those of all hosts.

use std::time::{Duration, Instant};

use tensorpost::node::{Console, WorkerStatus};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, deliver, until};
use tensorpost_watch::console::{self, Figures, Graph, NodeSnapshot, ProcessState};

use crate::actors::{Bounce, Echo, Echoer, Fail, Item};
use crate::{Other, find, head};

const OTHER: Option<&str> = Some("1 other");

fn is_there(worker: &&WorkerStatus) -> bool {
    worker.worker.to_string().ends_with(" of host 1")
}

/// Starts a head with a console. Also returns the console's folder.
fn with_console(builder: Builder) -> (Node, tempfile::TempDir, impl Fn() -> NodeSnapshot) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("console");
    let node = head(builder.console(Console::At(path.clone())));
    let snapshot =
        move || console::Console::at(&path).and_then(|mut console| console.snapshot()).expect("a look");
    (node, folder, snapshot)
}

fn the_heads_figures_have_those_of_all_hosts(builder: Builder) {
    let (node, _folder, snapshot) = with_console(builder);
    let here = node.spawn::<Echoer>(()).name("here").start().expect("an actor");
    let other = Other::start(&node);
    let echo = find::<Echo>(&node, "echo");
    let earlier = snapshot();
    (0..10).for_each(|_| drop(ask(&node, &echo, Echo::empty())));
    (0..3).for_each(|_| drop(ask(&node, &here.address(), Echo::empty())));
    deliver(&node, &find::<Fail>(&node, "again"), Fail);

    let metrics = node.metrics().expect("figures");
    assert!(metrics.silent.is_empty(), "{:?}", metrics.silent);
    let rows = metrics.rows(&Default::default());
    let row = |name: &str| rows.iter().find(|row| row.name == name).expect("it is there");
    assert_eq!((row("echo").host.as_deref(), row("echo").handled), (OTHER, 10));
    assert_eq!((row("here").host.as_deref(), row("here").handled), (None, 3));
    let of_host: Vec<_> = metrics.processes.iter().filter(|of| of.host.as_deref() == OTHER).collect();
    let names: Vec<_> = of_host.iter().map(|of| of.name.as_str()).collect();
    assert!(names[0] == "node" && names.contains(&"echo") && names.contains(&"counter"), "{names:?}");

    until("its restart is reported", || {
        let report = node.report().expect("a report");
        report.restarts.iter().any(|of| of.name == "again" && of.restarts == 1)
    });
    let report = node.report().expect("a report");
    assert!(report.silent.is_empty(), "{:?}", report.silent);
    assert!(report.workers.iter().filter(is_there).any(|worker| worker.name == "echo"));
    assert!(report.workers.iter().any(|worker| worker.name == "here" && !is_there(&worker)));
    let restarted = report.restarts.iter().find(|of| of.name == "again").expect("it was restarted");
    assert!(restarted.worker.to_string().ends_with(" of host 1"));

    let mut now = snapshot();
    until("a new look, for which all have answered in time", || {
        now = snapshot();
        let there = now.hosts[0].snapshot.iter().flat_map(|snapshot| &snapshot.processes);
        let mut all = now.processes.iter().chain(there).map(|of| of.state);
        let is_new = now.at > earlier.at && restarts_of(&now, "again") == 1;
        is_new && now.hosts[0].snapshot.is_some() && all.all(|state| state == ProcessState::Running)
    });
    let figures = Figures::between(&earlier, &now);
    assert_eq!(
        (figures.hosts.as_slice(), figures.silent_hosts.len()),
        (["1 other".to_owned()].as_slice(), 0)
    );
    let actor = |name: &str| figures.actors.iter().find(|actor| actor.name == name).expect("it is there");
    assert_eq!((actor("echo").host.as_deref(), actor("echo").handled), (OTHER, Some(10)));
    assert_eq!(actor("here").host, None);
    // Its mailbox here is none of its figures.
    let echoes = now.actors.iter().filter(|actor| actor.actor == row_actor(&now, "echo")).count();
    let shown = figures.actors.iter().filter(|actor| actor.process == "gateway").count();
    assert_eq!((echoes, shown), (1, 0));
    let of_host = |host: &Option<String>| host.as_deref() == OTHER;
    assert!(figures.processes.iter().any(|of| of_host(&of.host) && of.name == "counter"));
    assert!(
        figures.memory.iter().any(|of| of_host(&of.host)) && figures.links.iter().any(|of| of_host(&of.host))
    );

    // A console at the other host's own node shows that node.
    let found = console::nodes().expect("nodes").into_iter().find(|node| node.pid == other.id());
    let there = found.expect("the other node").connect().and_then(|mut console| console.snapshot());
    let there = there.expect("a look");
    assert!(there.hosts.is_empty() && there.processes.iter().all(|of| of.name != "here"));
    other.end();
    until("it is gone", || snapshot().hosts.is_empty());
}

/// The graph shows messages from actor to actor, in both directions, and none of the gateways'.
fn the_graph_has_what_goes_between_hosts(builder: Builder) {
    let (node, _folder, snapshot) = with_console(builder);
    let here = node.spawn::<Echoer>(()).name("here").start().expect("an actor");
    let other = Other::start(&node);
    let echo = find::<Bounce>(&node, "echo");
    let (last, mut items) = node.channel::<Item>().expect("a channel");
    let earlier = snapshot();
    // Two messages go from here, and three from there, of which one goes to the channel.
    let bounce = Bounce { left: 4, next: here.address(), after: echo.clone(), last };
    deliver(&node, &echo, bounce);
    items.blocking_recv().expect("it comes");
    let mut graph = Graph::default();
    let sent = |graph: &Graph, from: &str, to: &str| {
        let id = |name: &str| graph.nodes.iter().find(|node| node.name == name).map(|node| node.id.clone());
        let (from, to) = (id(from)?, id(to)?);
        let found: Vec<_> =
            graph.edges.iter().filter(|edge| (&edge.from, &edge.to) == (&from, &to)).collect();
        assert!(found.len() <= 1, "{found:?}");
        found.first().map(|edge| (edge.messages, edge.capacity, edge.messages_per_second > Some(0.0)))
    };
    until("both ways are in it", || {
        graph = Graph::of(Some(&earlier), &snapshot());
        let is_whole = |way: Option<(u64, u32, bool)>| way == Some((2, 128, true));
        is_whole(sent(&graph, "echo", "here")) && is_whole(sent(&graph, "here", "echo"))
    });
    let node_of = |name: &str| graph.nodes.iter().find(|node| node.name == name).expect("it is there");
    assert_eq!((node_of("echo").host.as_deref(), node_of("here").host.as_deref()), (OTHER, None));
    assert!(graph.nodes.iter().all(|node| node.process != "gateway"), "{:?}", graph.nodes);
    assert!(graph.mermaid().contains("<br/>host 1 other: echo, host"), "{}", graph.mermaid());
    assert_eq!(graph.left_out, 0);
    drop(node);
    drop(other);
}

/// Returns how often a worker of the other host was restarted.
fn restarts_of(snapshot: &NodeSnapshot, name: &str) -> u32 {
    let there = snapshot.hosts[0].snapshot.iter().flat_map(|snapshot| &snapshot.processes);
    there.filter(|of| of.name == name).map(|of| of.restarts).sum()
}

/// Returns the identity of an actor of the other host.
fn row_actor(snapshot: &NodeSnapshot, name: &str) -> tensorpost::actor::ActorId {
    let there = snapshot.hosts[0].snapshot.as_ref().expect("it has answered");
    there.actors.iter().find(|actor| actor.name == name).expect("it is there").actor
}

fn a_host_that_does_not_answer_is_named_and_holds_up_no_look(builder: Builder) {
    let (node, _folder, snapshot) = with_console(builder);
    let here = node.spawn::<Echoer>(()).name("here").start().expect("an actor");
    let other = Other::start(&node);
    ask(&node, &find::<Echo>(&node, "echo"), Echo::empty());
    assert!(snapshot().hosts[0].snapshot.is_some());
    other.stop();
    let timed = |what: &str, most: u64, snapshot: &mut dyn FnMut()| {
        let began = Instant::now();
        snapshot();
        assert!(began.elapsed() < Duration::from_millis(most), "{what} took {:?}", began.elapsed());
    };
    timed("figures", 4000, &mut || {
        let metrics = node.metrics().expect("figures");
        assert_eq!(metrics.silent, ["host 1 other"]);
        assert!(metrics.rows(&Default::default()).iter().any(|row| row.name == "here"));
    });
    timed("a report", 3000, &mut || {
        assert_eq!(node.report().expect("a report").silent, ["host 1 other"]);
    });
    let silent = || {
        let snapshot = snapshot();
        assert!(snapshot.hosts.len() == 1 && snapshot.hosts[0].snapshot.is_none());
        let figures = Figures::between(&snapshot, &snapshot);
        assert_eq!(figures.silent_hosts, ["1 other"]);
        assert!(
            figures.actors.iter().any(|actor| actor.name == "here" && actor.state == ProcessState::Running)
        );
    };
    silent();
    // It is not asked again at once: ten snapshots take less time than two waits for it.
    timed("ten looks", 1200, &mut || (0..10).for_each(|_| silent()));
    assert_eq!(ask(&node, &here.address(), Echo::empty()).number, 1);
    other.go_on();
    until("it is heard again", || snapshot().hosts[0].snapshot.is_some());
    other.end();
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        the_heads_figures_have_those_of_all_hosts,
        the_graph_has_what_goes_between_hosts,
        a_host_that_does_not_answer_is_named_and_holds_up_no_look
    ]
}

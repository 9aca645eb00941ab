//! Workers that lie to the node about others, or send extreme numbers (WIRE-1): the node compares a worker's
//! statements with its own observations, and the liar pays.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tensorpost::actor::EndReason;
use tensorpost::device::DeviceId;
use tensorpost::node::WorkerState;
use tensorpost::prelude::*;
use tensorpost_core::clock::taint::TaintRange;
use tensorpost_core::ids::{ActorId, ChunkId, ProcessId};
use tensorpost_core::observe::hang_probe::{ActorProbe, HangProbe, WaitProbe, WaitsIn};
use tensorpost_core::observe::log::{LogRecord, Severity};
use tensorpost_core::observe::metrics::ProcessMetrics;
use tensorpost_core::transport::WhyRefused;
use tensorpost_core::transport::control_channel::{LinkMessage, ToNode};
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::intruder::{Deed, Intruder, as_a_gateway, start_request};
use tensorpost_tests::log::{listen, message_of};
use tensorpost_tests::wait::{ask, until};

use crate::hostile::{Break, Up};

fn wait(on: ProcessId, clock: u16, value: u64) -> WaitProbe {
    WaitProbe { waits_in: WaitsIn::Thread("main".into()), on, clock, value }
}

/// The worker sends hang reports that accuse others, in answer to the node's looks and to looks that never
/// were.
fn who_says_that_others_keep_it_waiting_ends_nobody_else(builder: Builder) {
    let scene = Break::new(builder.hang_limit(Duration::from_millis(200), OnHang::Restart));
    let innocent = scene.node.supervisor().worker(scene.innocent.worker()).unwrap().process;
    let never = ProcessId::new(200, 3).unwrap();
    let waits = [(innocent, 0), (innocent, 29), (innocent, u16::MAX), (ProcessId::NODE, 0), (never, 0)];
    let waits =
        waits.iter().flat_map(|(on, clock)| [1, 1 << 40, u64::MAX >> 1].map(|at| wait(*on, *clock, at)));
    let waits: Vec<_> = waits.collect();
    let looks = (0..100).chain([u64::MAX]).map(|round| {
        let hang_probe = HangProbe { actors: Vec::new(), waits: waits.clone() };
        Up::HangProbe { round, hang_probe }.bytes()
    });
    scene.does(Deed::KeepSaying(looks.collect()));
    let why = scene.end_of_the_evil();
    assert!(why.contains("it must not say"), "{why}");
    scene.goes_on();
    let hangs = scene.node.report().unwrap().hangs;
    assert!(hangs.iter().all(|hang| hang.worker == Some(scene.evil.worker())), "{hangs:?}");
}

/// Nor does it speak for the actors of others.
fn what_stands_still_in_others_is_not_a_workers_to_say(builder: Builder) {
    let scene = Break::new(builder.hang_limit(Duration::from_millis(200), OnHang::Report));
    let actor = scene.innocent.actor();
    let stuck = ActorProbe { actor, name: "innocent".into(), open: u64::MAX, moved: 0, handling: true };
    let looks = (0..100).map(|round| {
        let hang_probe = HangProbe { actors: vec![stuck.clone()], waits: Vec::new() };
        Up::HangProbe { round, hang_probe }.bytes()
    });
    scene.does(Deed::KeepSaying(looks.collect()));
    assert!(scene.end_of_the_evil().contains("it must not say"));
    scene.goes_on();
    assert_eq!(scene.node.report().unwrap().hangs, []);
}

/// Every number at its largest.
fn at_the_end(value: Value) -> Value {
    match value {
        Value::Number(_) => json!(u64::MAX),
        Value::Array(all) => all.into_iter().map(at_the_end).collect(),
        Value::Object(all) => all.into_iter().map(|(name, value)| (name, at_the_end(value))).collect(),
        other => other,
    }
}

/// Sends impossible counts and figures: the results are wrong, and nobody ends for it.
fn numbers_at_their_ends_cost_nobody_else(builder: Builder) {
    let scene = Break::new(builder.hang_limit(Duration::from_millis(200), OnHang::Restart));
    let metrics = at_the_end(serde_json::to_value(ProcessMetrics::default()).unwrap());
    let change = |change: Value| json!([{ "actor": null, "name": "lies", "labels": [], "change": change }]);
    let updates = [
        change(json!({ "Counter": { "added": u64::MAX, "at_least": u64::MAX } })),
        change(json!({ "Gauge": f64::MAX })),
        change(json!({ "Histogram": [[f64::MAX, u64::MAX], [-0.0, u64::MAX]] })),
    ];
    let updates = updates.map(|updates| Up::UserMetrics { updates, dropped: u64::MAX });
    let mut said = vec![Up::LogsDropped { count: u64::MAX }];
    said.extend((0..50).map(|round| Up::Metrics { round, metrics: metrics.clone(), survey: None }));
    said.extend(updates);
    let activity = json!({ "sent": u64::MAX, "received": 0, "busy": true, "leaves_unread": false });
    said.extend((0..50).map(|round| Up::Activity { round, activity: activity.clone() }));
    scene.does(Deed::KeepSaying(said.iter().map(Up::bytes).collect()));
    let mut before = scene.node.metrics().unwrap();
    for _ in 0..20 {
        let metrics = scene.node.metrics().unwrap();
        drop(metrics.rows(&before));
        before = metrics;
        scene.goes_on();
    }
    // Its claim to be busy keeps a shutdown waiting until it ends, or is ended.
    scene.node.supervisor().kill_worker(scene.evil.worker());
    scene.end_of_the_evil();
    scene.goes_on();
    assert!(scene.node.shutdown(Duration::from_secs(20)).unwrap().drained);
}

/// It speaks for others, and sends answers that nobody has asked for, each until it is too much.
fn who_speaks_for_others_or_out_of_turn_is_given_up(builder: Builder) {
    let all = |innocent: ProcessId, actor: ActorId| {
        let range = TaintRange { process: innocent, slot: 0, from: 0, to: u64::MAX, by: innocent };
        let chunk = ChunkId { owner: innocent, index: 0 };
        let stopped = |why| Up::ActorStopped { actor, why, away: true };
        let own_range = TaintRange { process: ProcessId::NODE, slot: u16::MAX, ..range };
        vec![
            Up::Started { actor, result: Ok(()) },
            Up::Started { actor: ActorId(u64::MAX), result: Err("it has failed".into()) },
            stopped(Some(EndReason::Normal)),
            stopped(Some(EndReason::Hung("it hangs".into()))),
            Up::Pong { number: u64::MAX },
            Up::Trace { interval: Some(u64::MAX) },
            Up::Node(ToNode::Tainted { round: u64::MAX, ranges: vec![range] }),
            Up::Node(ToNode::Tainted { round: 0, ranges: vec![own_range] }),
            Up::Node(ToNode::PublishChunk { chunk, device: DeviceId::HOST, bytes: u64::MAX }),
            Up::Node(ToNode::WithdrawChunk { chunk }),
            Up::Node(ToNode::Unmapped { chunk, access: tensorpost_core::device::Access::ReadWrite }),
            Up::Node(ToNode::RefuseLink { peer: innocent, number: u64::MAX, why: WhyRefused::System(24) }),
            Up::Node(ToNode::Register { ticket: u64::MAX, name: "x".into(), actor: ActorId(u64::MAX) }),
        ]
    };
    let count = all(ProcessId::NODE, ActorId(0)).len();
    for index in 0..count {
        let scene = Break::new(Node::builder());
        let innocent = scene.node.supervisor().worker(scene.innocent.worker()).unwrap();
        let said = all(innocent.process, scene.innocent.actor()).swap_remove(index);
        scene.does(Deed::KeepSaying(vec![said.bytes()]));
        let why = scene.end_of_the_evil();
        assert!(why.contains("it must not say"), "{index}: {why}");
        scene.goes_on();
    }
    drop(builder);
}

/// These messages change nothing, however often they are sent; each costs the node the time of reading it.
fn answers_to_what_nobody_asked_change_nothing(builder: Builder) {
    let scene = Break::new(builder);
    let innocent = scene.node.supervisor().worker(scene.innocent.worker()).unwrap().process;
    let said = [
        Up::GpusLookedAt { number: u64::MAX },
        Up::ActorsStopped,
        Up::Node(ToNode::Fenced { ticket: u64::MAX }),
        Up::Node(ToNode::Drained { process: innocent }),
        Up::Node(ToNode::Drained { process: ProcessId::NODE }),
        Up::Node(ToNode::Tainted { round: u64::MAX, ranges: Vec::new() }),
        Up::Node(ToNode::Unwatch { actor: scene.innocent.actor() }),
    ];
    scene.does(Deed::KeepSaying(said.iter().map(Up::bytes).collect()));
    for _ in 0..20 {
        scene.goes_on();
    }
    // Workers that die and start meanwhile are announced, and forgotten, as ever.
    let short = scene.node.spawn::<Intruder>(()).start().unwrap();
    ask(&scene.node, &short.address(), Deed::Nothing);
    scene.node.supervisor().kill_worker(short.worker());
    scene.node.supervisor().await_end(short.worker());
    scene.goes_on();
}

/// A record of the log is cut before it is sent: a longer one is not even decoded.
fn records_that_are_too_long_cost_their_sender(builder: Builder) {
    let scene = Break::new(builder);
    let fields = vec![(String::new(), String::new()); 30_000];
    let (target, message) = ("x".into(), "y".into());
    let record =
        LogRecord { severity: Severity::Info, target, message, fields, spans: vec![], location: None };
    scene.does(Deed::KeepSaying(vec![Up::Log(record).bytes()]));
    let why = scene.end_of_the_evil();
    assert!(why.contains("none that may be so long"), "{why}");
    scene.goes_on();
}

/// Complaints that end nobody, because others may be to blame for them, and counts of records that were
/// dropped: the log of the node mentions either once a second.
fn what_a_worker_may_say_without_end_fills_no_log(builder: Builder) {
    const TIMES: u32 = 2000;
    let lines = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&lines);
    let listening = listen(move |event| {
        let text = message_of(event);
        if text.contains("which was never a process of this node") || text.contains("its log were dropped") {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let scene = Break::new(builder);
    let to = ProcessId::new(200, 3).unwrap();
    let route = ToNode::Route { to, link_message: LinkMessage::RingsAnswer { number: 1, is_taken: true } };
    scene.does(Deed::Say(Up::Node(route).bytes(), TIMES));
    scene.does(Deed::Say(Up::LogsDropped { count: 1 }.bytes(), TIMES));
    until("the node has heard all of it", || {
        let evil = scene.node.supervisor().worker(scene.evil.worker()).unwrap();
        assert_eq!(evil.state, WorkerState::Running);
        (evil.complaints, evil.logs_dropped) == (u64::from(TIMES), u64::from(TIMES))
    });
    scene.goes_on();
    scene.node.supervisor().kill_worker(scene.evil.worker());
    scene.end_of_the_evil();
    let lines = lines.load(Ordering::Relaxed);
    assert!(lines < u64::from(TIMES) / 4 && (lines > 0 || listening.is_none()), "{lines} lines");
}

/// A message that nobody can read.
#[derive(GpuMessage)]
struct Bad(u64);

impl Serialize for Bad {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Bad {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        u64::deserialize(from)?;
        Err(serde::de::Error::custom("x".repeat(2000)))
    }
}

/// "Send them until they are no longer taken." The reply, if it can be sent, is how many were taken.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct Flood(Address<Bad>);

struct Flooder;

impl Actor for Flooder {
    type Context = Context<Self>;
}

impl RemoteActor for Flooder {
    type Args = ();

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Flooder)
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Flood>();
    }
}

impl Handler<Flood> for Flooder {
    type Result = ResponseFuture<u64>;

    fn handle(&mut self, Flood(to): Flood, _: &mut Context<Self>) -> Self::Result {
        Box::pin(async move {
            let mut sent = 0;
            while to.send(Bad(sent)).await.is_ok() {
                sent += 1;
            }
            sent
        })
    }
}

/// The log mentions messages that cannot be read once a second, and a worker that sends nothing else is
/// ended.
fn a_flood_of_messages_that_nobody_can_read_is_told_of_once_a_second(builder: Builder) {
    let lines = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&lines);
    let listening = listen(move |event| {
        if message_of(event) == "a message was not delivered" {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let node = builder.worker_log("off").start().unwrap();
    let (to, _channel) = node.channel::<Bad>().unwrap();
    let flooder = node.spawn::<Flooder>(()).name("flooder").start().unwrap();
    let other = node.spawn::<Intruder>(()).start().unwrap();
    let began = std::time::Instant::now();
    // The way of its reply is given up with the rest.
    let flood = node.block_on(flooder.address().ask(Flood(to)).timeout(Duration::from_secs(60)));
    assert!(matches!(flood, Err(AskError::NoReply(_))), "{flood:?}");
    if listening.is_some() {
        let lines = lines.load(Ordering::Relaxed);
        assert!(lines > 0 && lines <= 2 + began.elapsed().as_secs(), "{lines} lines");
    }
    ask(&node, &other.address(), Deed::Nothing);
    let other = node.supervisor().worker(other.worker()).unwrap();
    assert_eq!((other.state, other.complaints), (WorkerState::Running, 0));
}

fn start_in(place: Value, capacity: u32) -> Vec<u8> {
    Up::Node(ToNode::StartActor { ticket: 1, request: start_request(place, capacity) }).bytes()
}

/// A worker that is no gateway sends messages of one: that the node is over, and such as nobody can read. The
/// node opens none of them.
fn who_speaks_as_the_gateway_is_given_up(builder: Builder) {
    let node_gone = json!({ "NodeGone": { "why": "x", "cut_off": true } });
    let contents = [rmp_serde::to_vec_named(&node_gone).unwrap(), vec![0xc1; 4096], Vec::new()];
    for content in contents {
        let scene = Break::new(Node::builder());
        scene.does(Deed::KeepSaying(vec![as_a_gateway(&content)]));
        let why = scene.end_of_the_evil();
        assert!(why.contains("it speaks as the gateway to other hosts, which it is not"), "{why}");
        scene.goes_on();
    }
    drop(builder);
}

/// An actor is started in workers of its own starts alone, and a request that no worker of ours sends is a
/// lie.
fn who_starts_actors_with_others_or_out_of_bounds_pays_alone(builder: Builder) {
    let scene = Break::new(builder);
    let complaints = || {
        let evil = scene.node.supervisor().worker(scene.evil.worker()).unwrap();
        (evil.state, evil.complaints)
    };
    // The node refuses this, as an honest actor could ask it by mistake.
    let others = serde_json::to_value(scene.innocent.worker()).unwrap();
    scene.does(Deed::Say(start_in(json!({ "In": others }), 9), 100));
    // A type that the program does not have.
    scene.does(Deed::Say(start_in(json!("Here"), 9), 100));
    scene.does(Deed::Nothing);
    let innocent = scene.node.supervisor().worker(scene.innocent.worker()).unwrap();
    assert_eq!(innocent.actors, 1);
    assert_eq!(complaints(), (WorkerState::Running, 0));
    scene.goes_on();

    let long = Up::Node(ToNode::StartActor { ticket: 2, request: vec![0x93; 2 << 20] }).bytes();
    let garbage = Up::Node(ToNode::StartActor { ticket: 3, request: vec![0x93; 1 << 12] }).bytes();
    let no_room = start_in(json!("Here"), 0);
    scene.does(Deed::KeepSaying(vec![long, garbage, no_room]));
    let why = scene.end_of_the_evil();
    assert!(
        why.contains("it must not say") && (why.contains("mailbox") || why.contains("start an actor")),
        "{why}"
    );
    scene.goes_on();
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        who_says_that_others_keep_it_waiting_ends_nobody_else,
        what_stands_still_in_others_is_not_a_workers_to_say,
        numbers_at_their_ends_cost_nobody_else,
        who_speaks_for_others_or_out_of_turn_is_given_up,
        who_speaks_as_the_gateway_is_given_up,
        answers_to_what_nobody_asked_change_nothing,
        who_starts_actors_with_others_or_out_of_bounds_pays_alone,
        records_that_are_too_long_cost_their_sender,
        what_a_worker_may_say_without_end_fills_no_log,
        a_flood_of_messages_that_nobody_can_read_is_told_of_once_a_second,
    ]
}

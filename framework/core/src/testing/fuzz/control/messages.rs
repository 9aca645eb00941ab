//! Messages of workers, drawn from an input. Processes, chunks, actors and names are few, so that what is
//! said meets; all other numbers may be at their ends, and texts and lists may be longer than they may be.

use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::Control;
use crate::actor::NewActor;
use crate::clock::taint::TaintRange;
use crate::device::Access;
use crate::ids::{ActorId, ChunkId, DeviceId, ProcessId};
use crate::node::Restart;
use crate::node::control::Up;
use crate::node::process_runtime::Activity;
use crate::observe::hang_probe::{ActorProbe, HangProbe, WaitProbe, WaitsIn};
use crate::observe::log::{LogRecord, Severity};
use crate::observe::metrics::user::{Change, Kind, Update};
use crate::observe::metrics::{ActorMetrics, ProcessMetrics};
use crate::observe::survey::{HolderReport, LinkReport, PoolReport, SentReport, Survey};
use crate::testing::fuzz::draws::Draws;
use crate::transport::WhyRefused;
use crate::transport::control_channel::{LinkMessage, ToNode};
#[cfg(feature = "hosts")]
use crate::transport::gateway_messages::FromGateway;
use crate::transport::lifecycle::EndReason;

/// Returns the kinds of all messages.
#[cfg(all(test, feature = "testing"))]
pub(super) fn kinds() -> std::collections::BTreeSet<&'static str> {
    let of_up = [
        "Hello",
        "Ready",
        "OpenFailed",
        "Failing",
        "Started",
        "ActorStopped",
        "Activity",
        "Trace",
        "Metrics",
        "HangProbe",
        "Pong",
        "GpusLookedAt",
        "ActorsStopped",
        "Log",
        "LogsDropped",
        "UserMetrics",
    ];
    let of_node = [
        "Route",
        "RefuseLink",
        "PublishChunk",
        "WantChunk",
        "Unmapped",
        "WithdrawChunk",
        "Drained",
        "Tainted",
        "WantActor",
        "Watch",
        "Unwatch",
        "Register",
        "Lookup",
        "StartActor",
        "Fenced",
    ];
    let of_hosts = cfg!(feature = "hosts").then_some("Neighbours");
    of_up.into_iter().chain(of_node).chain(of_hosts).collect()
}

/// Returns the kind of a message. A kind that is added does not compile before it has a name here, and fails
/// the test before it is drawn below and listed above.
pub(super) fn kind_of(said: &Up) -> &'static str {
    match said {
        Up::Hello { .. } => "Hello",
        Up::Ready => "Ready",
        Up::OpenFailed { .. } => "OpenFailed",
        Up::Failing { .. } => "Failing",
        Up::Node(message) => kind_of_node(message),
        Up::Started { .. } => "Started",
        Up::ActorStopped { .. } => "ActorStopped",
        Up::Activity { .. } => "Activity",
        Up::Trace { .. } => "Trace",
        Up::Metrics { .. } => "Metrics",
        Up::HangProbe { .. } => "HangProbe",
        Up::Pong { .. } => "Pong",
        Up::GpusLookedAt { .. } => "GpusLookedAt",
        Up::ActorsStopped => "ActorsStopped",
        Up::Log(_) => "Log",
        Up::LogsDropped { .. } => "LogsDropped",
        Up::UserMetrics { .. } => "UserMetrics",
    }
}

/// As [`kind_of`].
pub(super) fn kind_of_node(message: &ToNode) -> &'static str {
    match message {
        ToNode::Route { .. } => "Route",
        ToNode::RefuseLink { .. } => "RefuseLink",
        ToNode::PublishChunk { .. } => "PublishChunk",
        ToNode::WantChunk { .. } => "WantChunk",
        ToNode::Unmapped { .. } => "Unmapped",
        ToNode::WithdrawChunk { .. } => "WithdrawChunk",
        ToNode::Drained { .. } => "Drained",
        ToNode::Tainted { .. } => "Tainted",
        ToNode::WantActor { .. } => "WantActor",
        ToNode::Watch { .. } => "Watch",
        ToNode::Unwatch { .. } => "Unwatch",
        ToNode::Register { .. } => "Register",
        ToNode::Lookup { .. } => "Lookup",
        ToNode::StartActor { .. } => "StartActor",
        ToNode::Fenced { .. } => "Fenced",
        ToNode::Neighbours(_) => "Neighbours",
    }
}

/// Draws a message for the broker, and how many descriptors it has to have.
pub(super) fn to_node(control: &Control<'_>, slot: u16, draws: &mut Draws<'_>) -> (ToNode, usize) {
    let plain = |message| (message, 0);
    match draws.below(20) {
        0 | 1 => {
            let (to, number) = (process(draws), draws.number());
            let (link_message, descriptors) = match draws.below(3) {
                0 => (LinkMessage::Link { number }, 5),
                1 => (LinkMessage::Rings { number }, 1),
                _ => (LinkMessage::RingsAnswer { number, is_taken: draws.whether() }, 0),
            };
            (ToNode::Route { to, link_message }, descriptors)
        }
        2 => {
            let (peer, number) = (process(draws), draws.number());
            let why = match draws.whether() {
                true => WhyRefused::BadHalf,
                false => WhyRefused::System(draws.number() as i32),
            };
            plain(ToNode::RefuseLink { peer, number, why })
        }
        3 | 4 => {
            // Mostly its own.
            let own = control.process(slot).unwrap_or(ProcessId::NODE);
            let owner = if draws.below(4) == 0 { process(draws) } else { own };
            let chunk = ChunkId { owner, index: draws.below(8) as u32 };
            (ToNode::PublishChunk { chunk, device: device(draws), bytes: draws.number() }, 2)
        }
        5 | 6 => plain(ToNode::WantChunk { chunk: chunk(draws), access: access(draws) }),
        7 => plain(ToNode::Unmapped { chunk: chunk(draws), access: access(draws) }),
        8 => plain(ToNode::WithdrawChunk { chunk: chunk(draws) }),
        9 => plain(ToNode::Drained { process: process(draws) }),
        10 => {
            let own = control.process(slot).unwrap_or(ProcessId::NODE);
            let range = |draws: &mut Draws<'_>| TaintRange {
                process: if draws.below(4) == 0 { process(draws) } else { own },
                slot: u16::from(draws.byte() % 40),
                from: draws.number(),
                to: draws.number(),
                by: process(draws),
            };
            let ranges = (0..draws.below(4)).map(|_| range(draws)).collect();
            plain(ToNode::Tainted { round: draws.number(), ranges })
        }
        11 => plain(ToNode::WantActor { actor: actor(draws) }),
        12 => plain(ToNode::Watch { ticket: draws.number(), actor: actor(draws) }),
        13 => plain(ToNode::Unwatch { actor: actor(draws) }),
        14 => plain(ToNode::Register { ticket: draws.number(), name: name(draws), actor: actor(draws) }),
        15 => plain(ToNode::Lookup { ticket: draws.number(), name: name(draws) }),
        16 => plain(ToNode::StartActor { ticket: draws.number(), request: start(draws) }),
        #[cfg(feature = "hosts")]
        17 => plain(gateway(draws).sealed()),
        _ => plain(ToNode::Fenced { ticket: draws.number() }),
    }
}

/// Draws a message.
pub(super) fn up(control: &Control<'_>, slot: u16, draws: &mut Draws<'_>) -> Up {
    match draws.below(18) {
        0 => Up::Hello {
            build: serde_json::from_value(json!({
                "protocol": draws.number() as u32,
                "version": text(draws),
                "fingerprint": draws.number(),
                "interfaces": (0..draws.below(4)).map(|_| text(draws)).collect::<Vec<_>>(),
                "executable": {
                    "path": text(draws),
                    "device": draws.number(),
                    "inode": draws.number(),
                    "size": draws.number(),
                    "modified": [draws.number() as i64, draws.number() as i64],
                },
            }))
            .expect("the fields of a build"),
            pid: draws.number() as u32,
        },
        1 => Up::Ready,
        2 => Up::OpenFailed { why: text(draws) },
        3 => Up::Failing { why: text(draws), lost_gpu: draws.whether() },
        4 => Up::Started {
            actor: actor(draws),
            result: if draws.whether() { Ok(()) } else { Err(text(draws)) },
        },
        5 => Up::ActorStopped {
            actor: actor(draws),
            why: draws.whether().then(|| reason(draws)),
            away: draws.whether(),
        },
        6 => {
            let (sent, received) = (draws.number(), draws.number());
            let activity = Activity { sent, received, busy: draws.whether(), leaves_unread: draws.whether() };
            Up::Activity { round: draws.number(), activity }
        }
        7 => Up::Trace { interval: draws.whether().then(|| draws.number()) },
        8 | 9 => {
            let survey = draws.whether().then(|| survey(draws));
            Up::Metrics { round: draws.number(), metrics: metrics(draws), survey }
        }
        10 => Up::HangProbe { round: draws.number(), hang_probe: hang_probe(draws) },
        11 => Up::Pong { number: draws.number() },
        12 => Up::GpusLookedAt { number: draws.number() },
        13 => Up::ActorsStopped,
        14 => Up::Log(record(draws)),
        15 => Up::LogsDropped { count: draws.number() },
        16 => {
            let updates = (0..draws.below(4)).map(|_| update(draws)).collect();
            Up::UserMetrics { updates, dropped: draws.number() }
        }
        _ => Up::Node(to_node(control, slot, draws).0),
    }
}

/// Changes some bytes of a message, every other time.
pub(super) fn garble(bytes: &mut Vec<u8>, draws: &mut Draws<'_>) {
    if draws.whether() {
        return;
    }
    for _ in 0..=draws.below(3) {
        let at = usize::from(draws.pair()) % (bytes.len() + 1);
        match draws.below(4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, draws.byte()),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = draws.byte();
                }
            }
        }
    }
}

fn process(draws: &mut Draws<'_>) -> ProcessId {
    // One slot more than there is, and sometimes one that is far from all.
    let slot = if draws.below(16) == 0 { 200 } else { draws.below(5) as u16 };
    let life = if draws.below(16) == 0 { draws.number() as u32 } else { draws.below(4) as u32 };
    ProcessId::new(slot, life).unwrap_or(ProcessId::NODE)
}

fn chunk(draws: &mut Draws<'_>) -> ChunkId {
    ChunkId { owner: process(draws), index: draws.below(8) as u32 }
}

fn access(draws: &mut Draws<'_>) -> Access {
    if draws.whether() { Access::ReadWrite } else { Access::ReadOnly }
}

fn device(draws: &mut Draws<'_>) -> DeviceId {
    if draws.below(4) == 0 { DeviceId([draws.byte(); 16]) } else { DeviceId::HOST }
}

fn actor(draws: &mut Draws<'_>) -> ActorId {
    ActorId(if draws.below(8) == 0 { draws.number() } else { draws.below(16) as u64 })
}

/// A name that others use too, or one that may not be.
fn name(draws: &mut Draws<'_>) -> String {
    let letter = char::from(draws.byte() % 8 + b'a').to_string();
    letter.repeat(if draws.below(4) == 0 { usize::from(draws.pair() % 300) } else { 1 })
}

/// A text, with characters that nobody should be shown, and sometimes longer than one may be.
fn text(draws: &mut Draws<'_>) -> String {
    const PIECES: [&str; 8] = ["a", "ß", "\n", "\n    | ", "\t", "\u{1b}[2J", "\u{202e}", "\0"];
    let count = match draws.below(16) {
        0 => usize::from(draws.pair() % 3_000),
        _ => draws.below(30),
    };
    let (one, other) = (PIECES[draws.below(8)], PIECES[draws.below(8)]);
    one.repeat(count) + other
}

/// Entries of a list that may not have so many.
const MANY: usize = 700;

/// How many entries a list has: mostly few.
fn count(draws: &mut Draws<'_>) -> usize {
    if draws.below(16) == 0 { MANY } else { draws.below(3) }
}

/// A text in each of so many entries.
fn text_of(count: usize, draws: &mut Draws<'_>) -> String {
    if count == MANY { name(draws) } else { text(draws) }
}

fn duration(draws: &mut Draws<'_>) -> Duration {
    Duration::new(draws.number(), draws.pair().into())
}

fn reason(draws: &mut Draws<'_>) -> EndReason {
    match draws.below(8) {
        0 => EndReason::HandlerPanic(text(draws)),
        1 => EndReason::CreateFailed(text(draws)),
        2 => EndReason::Exit(draws.number() as i32),
        3 => EndReason::Hung(text(draws)),
        4 => EndReason::Linked(text(draws)),
        5 => EndReason::OutOfReach(text(draws)),
        6 => EndReason::Forgotten,
        _ => EndReason::Normal,
    }
}

fn metrics(draws: &mut Draws<'_>) -> ProcessMetrics {
    let count = count(draws);
    let actors = vec![actor_metrics(count, draws); count];
    ProcessMetrics {
        sent: draws.number(),
        received: draws.number(),
        bytes_in_flight: draws.number(),
        bytes_held: draws.number(),
        pool_bytes: draws.number(),
        actors,
        ..ProcessMetrics::default()
    }
}

fn actor_metrics(count: usize, draws: &mut Draws<'_>) -> ActorMetrics {
    let buckets: Vec<(u8, u64)> = (0..draws.below(4)).map(|_| (draws.byte(), draws.number())).collect();
    // Sorted or not: the node must see the difference.
    let handler = serde_json::from_value(json!({ "counts": buckets })).expect("the fields of a histogram");
    ActorMetrics {
        actor: actor(draws),
        name: text_of(count, draws),
        device: device(draws),
        capacity: draws.number() as u32,
        handled: draws.number(),
        emitted: draws.number(),
        dropped: draws.number(),
        missed: draws.number(),
        queued: draws.number() as usize,
        busy: duration(draws),
        longest: duration(draws),
        handler,
        waits: draws.number(),
        waited: draws.whether().then(|| duration(draws)),
        counted: [draws.whether(); 3],
        may_wait: draws.whether(),
    }
}

fn survey(draws: &mut Draws<'_>) -> Survey {
    let (bytes, tensors) = (draws.number(), draws.number());
    let holder = HolderReport { process: process(draws), bytes, tensors, oldest: duration(draws) };
    let pool = PoolReport {
        device: device(draws),
        budget: bytes,
        chunks: draws.number(),
        held: draws.number(),
        tensors,
        in_flight: draws.number(),
        quarantined: draws.number(),
        holders: vec![holder; count(draws)],
        more_holders: draws.number(),
    };
    let sent = SentReport { index: draws.pair(), sent: draws.number(), done: draws.number() };
    // Many of one kind, or of the other.
    let (links, of_link) = if draws.whether() { (count(draws), 1) } else { (1, count(draws)) };
    let link = LinkReport {
        peer: process(draws),
        open: draws.whether(),
        sent: draws.whether().then(|| vec![sent; of_link]),
        replies_waiting: draws.whether().then(|| draws.number()),
        lent: draws.number(),
        granted: draws.number(),
    };
    Survey { pools: vec![pool; draws.below(3)], links: vec![link; links] }
}

fn hang_probe(draws: &mut Draws<'_>) -> HangProbe {
    let (actors, waits) = (count(draws), count(draws));
    let (name, open, moved) = (text_of(actors, draws), draws.number(), draws.number());
    let stuck = ActorProbe { actor: actor(draws), name, open, moved, handling: draws.whether() };
    let waits_in = match draws.whether() {
        true => WaitsIn::Thread(text_of(waits, draws)),
        false => WaitsIn::Stream { clock: draws.pair(), device: device(draws) },
    };
    let wait = WaitProbe { waits_in, on: process(draws), clock: draws.pair(), value: draws.number() };
    HangProbe { actors: vec![stuck; actors], waits: vec![wait; waits] }
}

fn record(draws: &mut Draws<'_>) -> LogRecord {
    let severity = match draws.below(3) {
        0 => Severity::Error,
        1 => Severity::Info,
        _ => Severity::Trace,
    };
    let field = (text(draws), text(draws));
    LogRecord {
        severity,
        target: text(draws),
        message: text(draws),
        fields: vec![field; draws.below(40)],
        spans: vec![text(draws); draws.below(20)],
        location: draws.whether().then(|| (text(draws), draws.number() as u32)),
    }
}

fn update(draws: &mut Draws<'_>) -> Update {
    let value = f64::from_bits(draws.number());
    let change = match draws.below(4) {
        0 => Change::Counter { added: draws.number(), at_least: draws.number() },
        1 => Change::Gauge(value),
        2 => Change::Histogram(vec![(value, draws.number()); draws.below(3)]),
        _ => {
            let unit = draws.whether().then(|| text(draws));
            Change::Description { kind: Kind::Gauge, unit, text: text(draws) }
        }
    };
    let labels = vec![(name(draws), text(draws)); draws.below(18)];
    let of = draws.whether().then(|| text(draws));
    let name = if draws.whether() { name(draws) } else { text(draws) };
    Update { actor: of, name, labels, change }
}

/// A request to start an actor, as [`Env::spawn`](crate::actor::Env::spawn) sends it.
#[derive(Serialize)]
struct Request {
    place: serde_json::Value,
    actor: NewActor,
    restart: Restart,
    spares: u32,
}

fn start(draws: &mut Draws<'_>) -> Vec<u8> {
    let place = match draws.below(3) {
        0 => json!("Here"),
        1 => json!({ "In": draws.number() }),
        _ => json!({ "New": { "name": name(draws), "streams": draws.number(), "gpu_budget": null } }),
    };
    let actor = NewActor {
        name: draws.whether().then(|| name(draws)),
        label: draws.whether().then(|| text(draws)),
        type_name: text(draws),
        type_key: draws.number(),
        args: draws.bytes(64).to_vec(),
        device: device(draws),
        receive_on: draws.whether().then(|| device(draws)),
        own_thread: draws.whether(),
        capacity: draws.number() as u32,
        takes: draws.whether().then(|| vec![draws.number(); draws.below(4)]),
    };
    let restart = match draws.below(3) {
        0 => Restart::never(),
        1 => Restart::on_failure(draws.number() as u32),
        _ => Restart::always(draws.number() as u32),
    };
    let request = Request { place, actor, restart, spares: draws.below(12) as u32 };
    let mut bytes = rmp_serde::to_vec_named(&request).expect("plain values");
    garble(&mut bytes, draws);
    bytes
}

/// Something that only a gateway may say.
#[cfg(feature = "hosts")]
fn gateway(draws: &mut Draws<'_>) -> FromGateway {
    match draws.below(8) {
        0 => FromGateway::Began { result: Ok((draws.pair(), draws.number())) },
        1 => FromGateway::Began { result: Err(text(draws)) },
        2 => FromGateway::Renewed { host: draws.pair() },
        3 => FromGateway::Names { host: draws.pair(), names: vec![name(draws)], is_last: draws.whether() },
        4 => FromGateway::Reached { actor: actor(draws), capacity: draws.number() as u32 },
        5 => FromGateway::Rests { actor: actor(draws) },
        6 => FromGateway::OutOfReach { actor: actor(draws), why: Some(reason(draws)) },
        _ => FromGateway::Claim { host: draws.pair(), ticket: draws.number(), name: name(draws) },
    }
}

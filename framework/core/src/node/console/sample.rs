//! A snapshot of an invented node, for tests.

use std::time::Duration;

use super::protocol::{ActorFacts, LinkFacts, NodeFacts, NodeSnapshot, PoolFacts, ProcessFacts};
use crate::ids::{ActorId, DeviceId, ProcessId};
use crate::observe::metrics::{ActorMetrics, Histogram, ProcessMetrics, ProcessState};
use crate::observe::survey::{HolderReport, LinkReport, PoolReport, SentReport};

fn process(slot: u16) -> ProcessId {
    ProcessId::new(slot, 0).expect("there is such a slot")
}

/// Makes a snapshot of a node with two workers, whose actors have handled these numbers of messages.
pub fn snapshot(at: u64, handled: [u64; 2]) -> NodeSnapshot {
    let names = ["camera.0", "a-stage-with-a-name-that-is-longer-than-others"];
    let actor = |index: usize| {
        let mut handler = Histogram::default();
        (0..handled[index]).for_each(|_| handler.note(Duration::from_micros(150)));
        let metrics = ActorMetrics {
            actor: ActorId(index as u64 + 1),
            name: names[index].to_owned(),
            device: DeviceId::HOST,
            capacity: 16,
            handled: handled[index],
            emitted: 0,
            dropped: 0,
            missed: 0,
            queued: 3 * index,
            busy: Duration::from_micros(150 * handled[index]),
            longest: Duration::from_micros(150),
            handler,
            waits: 0,
            waited: Some(Duration::ZERO),
            counted: [false; 3],
            may_wait: false,
        };
        ActorFacts {
            actor: metrics.actor,
            name: metrics.name.clone(),
            process: process(index as u16 + 1),
            index: 0,
            capacity: 16,
            state: ProcessState::Running,
            metrics: Some(metrics),
        }
    };
    let of = |slot: u16, name: &str| ProcessFacts {
        process: process(slot),
        name: name.to_owned(),
        pid: 100 + u32::from(slot),
        state: ProcessState::Running,
        restarts: u32::from(slot),
        last_end: None,
        metrics: Some(ProcessMetrics { open: 3 * usize::from(slot / 2), ..ProcessMetrics::default() }),
        gpu: None,
    };
    let holder =
        HolderReport { process: process(2), bytes: 1 << 20, tensors: 2, oldest: Duration::from_millis(1500) };
    let pool = PoolReport {
        device: DeviceId::HOST,
        budget: 1 << 30,
        chunks: 32 << 20,
        held: 1 << 20,
        tensors: 2,
        in_flight: 1 << 20,
        quarantined: 0,
        holders: vec![holder],
        more_holders: 0,
    };
    let sent = Some(vec![SentReport { index: 0, sent: handled[1] + 3, done: handled[1] }]);
    let link =
        LinkReport { peer: process(2), open: true, sent, replies_waiting: Some(0), lent: 2, granted: 2 };
    NodeSnapshot {
        at,
        node: NodeFacts {
            pid: 100,
            program: "demo".to_owned(),
            up: Duration::from_secs(75),
            stopping: false,
            hang_limit: None,
            tracing: false,
        },
        processes: vec![of(0, "node"), of(1, "camera.0"), of(2, "stage")],
        actors: vec![actor(0), actor(1)],
        pools: vec![PoolFacts { owner: process(1), pool }],
        links: vec![LinkFacts { from: process(1), link }],
        hangs: Vec::new(),
        left_out: 0,
        hosts: Vec::new(),
        ways: Vec::new(),
        standing: Vec::new(),
    }
}

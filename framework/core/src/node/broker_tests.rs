use std::io::{Read, Write};
use std::sync::Arc;

use super::*;
use crate::device::Access;
use crate::ids::DeviceId;
use crate::node::limits::MAX_NAME;
use crate::transport::control_channel::LinkMessage;
use crate::transport::lifecycle::Whereabouts;

const NODE: ProcessId = ProcessId::NODE;

fn process(slot: u16) -> ProcessId {
    ProcessId::new(slot, 0).unwrap()
}

/// Makes a node with the workers 1 and 2.
fn broker() -> Broker {
    let mut broker = Broker::default();
    for slot in 0..3 {
        broker.joined(process(slot));
    }
    broker
}

/// Processes that look for messages rely on it.
#[test]
fn the_page_says_how_many_processes_there_are() {
    let pages = ProcessPages::of_the_node().unwrap();
    let page = Arc::clone(&pages.epoch_page);
    let mut broker = Broker::with_pages(pages);
    for slot in 0..3 {
        broker.joined(process(slot));
    }
    assert_eq!(page.processes(), 3);
    broker.left(process(2), &mut Vec::new());
    assert_eq!(page.processes(), 2);
}

fn descriptors(count: usize) -> Vec<OwnedFd> {
    (0..count).map(|_| std::fs::File::open("/dev/null").unwrap().into()).collect()
}

fn ask(
    broker: &mut Broker,
    from: u16,
    message: ToNode,
    fds: usize,
) -> (Vec<Delivery>, Result<(), Complaint>) {
    let mut out = Vec::new();
    let result = broker.handle(process(from), message, descriptors(fds), &mut out);
    (out, result)
}

#[test]
fn link_messages_go_to_the_life_that_they_name() {
    let mut broker = broker();
    let link = |to| ToNode::Route { to, link_message: LinkMessage::Link { number: 1 } };
    let (out, result) = ask(&mut broker, 1, link(process(2)), 5);
    result.unwrap();
    assert_eq!((out[0].to, out[0].descriptors.len()), (process(2), 5));
    assert!(
        matches!(out[0].message, FromNode::LinkMessage { from, link_message: LinkMessage::Link { number: 1 } } if from == process(1))
    );

    let mut told = Vec::new();
    broker.left(process(2), &mut told);
    let is_exited = |delivery: &&Delivery| matches!(delivery.message, FromNode::Exited { .. });
    let told: Vec<_> = told.iter().filter(is_exited).map(|delivery| delivery.to).collect();
    assert_eq!(told, [NODE, process(1)]);
    // The next life of the slot does not get messages for the last.
    broker.joined(ProcessId::new(2, 1).unwrap());
    let (out, result) = ask(&mut broker, 1, link(process(2)), 5);
    result.unwrap();
    assert_eq!(out[0].to, process(1));
    assert!(matches!(out[0].message, FromNode::Exited { process: exited } if exited == process(2)));
}

// WIRE-1.
#[test]
fn nothing_is_believed() {
    let mut broker = broker();
    let link = |to| ToNode::Route { to, link_message: LinkMessage::Link { number: 1 } };
    let stranger = ProcessId::new(200, 7).unwrap();
    let chunk =
        |owner| ToNode::PublishChunk { chunk: ChunkId { owner, index: 0 }, device: DeviceId::HOST, bytes: 1 };
    assert!(matches!(ask(&mut broker, 1, link(process(2)), 4).1, Err(Complaint::Descriptors { got: 4, .. })));
    assert!(matches!(ask(&mut broker, 1, link(process(1)), 5).1, Err(Complaint::ToItself)));
    let (out, result) = ask(&mut broker, 1, link(stranger), 5);
    assert!(matches!(result, Err(Complaint::UnknownProcess(p)) if p == stranger));
    assert!(matches!(out[0].message, FromNode::Nobody { .. }), "the sender is answered all the same");
    assert!(matches!(ask(&mut broker, 1, chunk(process(2)), 2).1, Err(Complaint::ChunkOfOther(_))));
    assert!(matches!(ask(&mut broker, 1, chunk(process(1)), 1).1, Err(Complaint::Descriptors { .. })));
    ask(&mut broker, 1, chunk(process(1)), 2).1.unwrap();
    assert!(matches!(ask(&mut broker, 1, chunk(process(1)), 2).1, Err(Complaint::ChunkAgain(_))));

    let register = ToNode::Register { ticket: 5, name: "x".into(), actor: ActorId(99) };
    let (out, result) = ask(&mut broker, 1, register, 0);
    assert!(matches!(result, Err(Complaint::UnknownActor(ActorId(99)))));
    assert!(matches!(out[0].message, FromNode::Registered { ticket: 5, result: Err(NO_ACTOR) }));

    let lookup = ToNode::Lookup { ticket: 6, name: "y".repeat(MAX_NAME + 1) };
    let (out, result) = ask(&mut broker, 1, lookup, 0);
    assert!(matches!(result, Err(Complaint::Name(_))));
    assert!(matches!(out[0].message, FromNode::Found { ticket: 6, found: None }));
}

// LEASE-4.
#[test]
fn a_chunk_outlives_its_owner_and_each_access_has_its_descriptor() {
    let mut broker = broker();
    let chunk = ChunkId { owner: process(1), index: 4 };
    let (mut read_end, write_end) = std::io::pipe().unwrap();
    let publish = ToNode::PublishChunk { chunk, device: DeviceId::HOST, bytes: 4096 };
    let mut out = Vec::new();
    let pair = vec![read_end.try_clone().unwrap().into(), write_end.into()];
    broker.handle(process(1), publish, pair, &mut out).unwrap();
    broker.left(process(1), &mut out);

    let (mut out, result) = ask(&mut broker, 2, ToNode::WantChunk { chunk, access: Access::ReadWrite }, 0);
    result.unwrap();
    let delivery = out.pop().unwrap();
    assert!(matches!(delivery.message, FromNode::Chunk { bytes: 4096, access: Access::ReadWrite, .. }));
    let mut writable = std::fs::File::from(delivery.descriptors.into_iter().next().unwrap());
    writable.write_all(b"w").unwrap();
    let mut byte = [0];
    read_end.read_exact(&mut byte).unwrap();

    let none = ChunkId { owner: process(1), index: 5 };
    let (out, result) = ask(&mut broker, 2, ToNode::WantChunk { chunk: none, access: Access::ReadOnly }, 0);
    result.unwrap();
    assert!(matches!(out[0].message, FromNode::NoChunk { .. }));
}

#[test]
fn names_are_found_once_the_actor_runs_and_freed_when_it_ends() {
    let mut broker = broker();
    let (actor, location) = broker.roster.reserve(process(1), 16).unwrap();
    broker.registry.register("sink".into(), actor).unwrap();
    let lookup = || ToNode::Lookup { ticket: 1, name: "sink".into() };
    let found = |out: &[Delivery]| match &out[0].message {
        FromNode::Found { found, .. } => {
            found.clone().map(|named| (named.actor, named.location, named.takes))
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(found(&ask(&mut broker, 2, lookup(), 0).0), None);
    broker.roster.started(actor);
    assert_eq!(found(&ask(&mut broker, 2, lookup(), 0).0), Some((actor, location, None)));
    broker.roster.takes(actor, Some(vec![3, 7]));
    assert_eq!(found(&ask(&mut broker, 2, lookup(), 0).0), Some((actor, location, Some(vec![3, 7]))));

    let (other, _) = broker.roster.reserve(process(2), 16).unwrap();
    let register = || ToNode::Register { ticket: 2, name: "sink".into(), actor: other };
    let (out, _) = ask(&mut broker, 2, register(), 0);
    assert!(matches!(out[0].message, FromNode::Registered { result: Err(holder), .. } if holder == actor));

    broker.left(process(1), &mut Vec::new());
    let (out, _) = ask(&mut broker, 2, ToNode::WantActor { actor }, 0);
    assert!(matches!(out[0].message, FromNode::Actor { at: Whereabouts::Nowhere, .. }));
    let (out, _) = ask(&mut broker, 2, register(), 0);
    assert!(matches!(out[0].message, FromNode::Registered { result: Ok(()), .. }));
}

/// Questions for a chunk of worker 1, or of the node, and their answers.
mod parked {
    use super::*;
    use crate::node::questions::Ping;

    fn chunk_of(owner: ProcessId, index: u32) -> ChunkId {
        ChunkId { owner, index }
    }

    fn want(broker: &mut Broker, from: u16, chunk: ChunkId) -> Vec<Delivery> {
        let (out, result) = ask(broker, from, ToNode::WantChunk { chunk, access: Access::ReadOnly }, 0);
        result.unwrap();
        out
    }

    fn publish(broker: &mut Broker, chunk: ChunkId) -> Vec<Delivery> {
        let publish = ToNode::PublishChunk { chunk, device: DeviceId::HOST, bytes: 1 };
        let mut out = Vec::new();
        broker.handle(chunk.owner, publish, descriptors(2), &mut out).unwrap();
        out
    }

    fn ping(broker: &mut Broker) -> Ping {
        let pings = broker.take_pings();
        assert_eq!(pings.len(), 1);
        pings[0]
    }

    fn pong(broker: &mut Broker, ping: Ping) -> Vec<Delivery> {
        let mut out = Vec::new();
        broker.pong(ping.to, ping.number, &mut out).unwrap();
        out
    }

    fn left(broker: &mut Broker, process: ProcessId) -> Vec<Delivery> {
        let mut out = Vec::new();
        broker.left(process, &mut out);
        out
    }

    #[track_caller]
    fn answers(out: &[Delivery]) -> Vec<(ProcessId, ChunkId, bool)> {
        let answers = out.iter().filter_map(|delivery| match delivery.message {
            FromNode::Chunk { chunk, .. } => Some((delivery.to, chunk, delivery.descriptors.len() == 1)),
            FromNode::NoChunk { chunk, .. } => Some((delivery.to, chunk, false)),
            _ => None,
        });
        answers.collect()
    }

    // The frame overtook the publication: worker 2's socket was read before its owner's.
    #[test]
    fn a_question_that_is_read_before_the_publication_is_answered_by_it() {
        for owner in [process(1), NODE] {
            let mut broker = broker();
            let chunk = chunk_of(owner, 3);
            assert!(want(&mut broker, 2, chunk).is_empty());
            let ping = ping(&mut broker);
            assert_eq!(ping.to, owner);
            assert!(answers(&publish(&mut broker, chunk_of(owner, 2))).is_empty(), "another chunk");
            assert_eq!(answers(&publish(&mut broker, chunk)), [(process(2), chunk, true)]);
            assert!(pong(&mut broker, ping).is_empty());
            assert!(broker.take_pings().is_empty());
            assert_eq!(broker.questions.parked(process(2)), 0);
        }
    }

    // The node's own process asks like any other.
    #[test]
    fn the_node_waits_for_a_worker_too() {
        let mut broker = broker();
        let chunk = chunk_of(process(1), 0);
        assert!(want(&mut broker, 0, chunk).is_empty());
        assert_eq!(ping(&mut broker).to, process(1));
        assert_eq!(answers(&publish(&mut broker, chunk)), [(NODE, chunk, true)]);
    }

    // WIRE-1.
    #[test]
    fn a_forged_index_is_refused_when_the_owner_has_answered() {
        for owner in [process(1), NODE] {
            let mut broker = broker();
            let chunk = chunk_of(owner, 99);
            assert!(want(&mut broker, 2, chunk).is_empty());
            let ping = ping(&mut broker);
            assert_eq!(answers(&pong(&mut broker, ping)), [(process(2), chunk, false)]);
            assert!(broker.take_pings().is_empty(), "nobody waits any more");
        }
    }

    // The first pong may have been sent before the second chunk was published and named.
    #[test]
    fn a_pong_answers_only_what_was_asked_before_its_ping() {
        let mut broker = broker();
        let (early, late) = (chunk_of(process(1), 0), chunk_of(process(1), 1));
        assert!(want(&mut broker, 2, early).is_empty());
        let first = ping(&mut broker);
        assert!(want(&mut broker, 2, late).is_empty());
        assert!(broker.take_pings().is_empty(), "one ping at a time");
        assert_eq!(answers(&pong(&mut broker, first)), [(process(2), early, false)]);
        let second = ping(&mut broker);
        assert_eq!(answers(&publish(&mut broker, late)), [(process(2), late, true)]);
        assert!(pong(&mut broker, second).is_empty());
    }

    // LEASE-4: the node reads the chunks that a dead process published before it reclaims it.
    #[test]
    fn a_death_ends_the_wait() {
        let mut broker = broker();
        let (known, unknown) = (chunk_of(process(1), 0), chunk_of(process(1), 1));
        want(&mut broker, 2, known);
        want(&mut broker, 2, unknown);
        assert_eq!(answers(&publish(&mut broker, known)), [(process(2), known, true)]);
        assert_eq!(answers(&left(&mut broker, process(1))), [(process(2), unknown, false)]);
        assert!(broker.take_pings().is_empty(), "the dead are asked nothing");
        assert_eq!(answers(&want(&mut broker, 2, unknown)), [(process(2), unknown, false)]);

        // Nor is a question kept for an asker that is gone.
        let chunk = chunk_of(NODE, 0);
        want(&mut broker, 2, chunk);
        left(&mut broker, process(2));
        assert!(publish(&mut broker, chunk).is_empty());
        let ping = ping(&mut broker);
        assert!(pong(&mut broker, ping).is_empty());
    }

    // WIRE-1.
    #[test]
    fn a_pong_that_nobody_waits_for_is_a_complaint() {
        let mut broker = broker();
        let no = |broker: &mut Broker, number| {
            let result = broker.pong(process(1), number, &mut Vec::new());
            assert!(matches!(result, Err(Complaint::NotPinged(n)) if n == number));
        };
        no(&mut broker, 0);
        want(&mut broker, 2, chunk_of(process(1), 0));
        let first = ping(&mut broker);
        no(&mut broker, first.number + 1);
        assert_eq!(pong(&mut broker, first).len(), 1);
        no(&mut broker, first.number);
    }

    #[test]
    fn what_the_asker_would_have_published_itself_is_known_at_once() {
        let mut broker = broker();
        let chunk = chunk_of(process(1), 0);
        assert_eq!(answers(&want(&mut broker, 1, chunk)), [(process(1), chunk, false)]);
        assert!(broker.take_pings().is_empty());
    }

    // MBX-2.
    #[test]
    fn one_process_parks_a_bounded_number_of_questions() {
        let mut broker = broker();
        let index = |i: usize| u32::try_from(i).unwrap();
        for i in 0..MAX_PARKED {
            assert!(want(&mut broker, 2, chunk_of(process(1), index(i))).is_empty());
        }
        let over = chunk_of(NODE, 0);
        let (out, result) =
            ask(&mut broker, 2, ToNode::WantChunk { chunk: over, access: Access::ReadOnly }, 0);
        assert!(matches!(result, Err(Complaint::TooManyQuestions)));
        assert_eq!(answers(&out), [(process(2), over, false)]);
        // The others are not held up by it, and room comes back.
        assert!(want(&mut broker, 0, chunk_of(process(1), 0)).is_empty());
        let first = ping(&mut broker);
        assert_eq!(pong(&mut broker, first).len(), 1);
        let second = ping(&mut broker);
        assert_eq!(pong(&mut broker, second).len(), MAX_PARKED);
        assert_eq!(broker.questions.parked(process(2)), 0);
        assert!(want(&mut broker, 2, over).is_empty());
    }
}

/// LEASE-4: chunks that dead processes leave behind, and how long they stay.
mod retirement {
    use super::*;

    fn of_1() -> ChunkId {
        ChunkId { owner: process(1), index: 0 }
    }

    fn drained(broker: &mut Broker, by: u16, dead: u16) {
        ask(broker, by, ToNode::Drained { process: process(dead) }, 0).1.unwrap();
    }

    fn drained_by_all(broker: &mut Broker, all: [u16; 3], dead: u16) {
        all.into_iter().for_each(|by| drained(broker, by, dead));
    }

    fn unmapped(broker: &mut Broker, by: u16, access: Access) -> Result<(), Complaint> {
        ask(broker, by, ToNode::Unmapped { chunk: of_1(), access }, 0).1
    }

    /// Makes the node and the workers 1 to 3. Worker 1 has a chunk, and those in `holders` have it mapped.
    fn scene(holders: &[u16]) -> Broker {
        let mut broker = broker();
        broker.joined(process(3));
        let publish = ToNode::PublishChunk { chunk: of_1(), device: DeviceId::HOST, bytes: 1 };
        ask(&mut broker, 1, publish, 2).1.unwrap();
        for holder in holders {
            let want = ToNode::WantChunk { chunk: of_1(), access: Access::ReadOnly };
            ask(&mut broker, *holder, want, 0).1.unwrap();
        }
        broker
    }

    fn left(broker: &mut Broker, slot: u16) {
        broker.left(process(slot), &mut Vec::new());
    }

    #[test]
    fn a_chunk_goes_when_its_owner_is_reclaimed_and_nobody_has_it_mapped() {
        let mut broker = scene(&[2, 3]);
        left(&mut broker, 1);
        unmapped(&mut broker, 2, Access::ReadOnly).unwrap();
        unmapped(&mut broker, 3, Access::ReadOnly).unwrap();
        drained(&mut broker, 0, 1);
        drained(&mut broker, 2, 1);
        assert_eq!(broker.chunks_kept(), 1, "a frame of the dead may have a lease in it for 3");
        drained(&mut broker, 3, 1);
        assert_eq!(broker.chunks_kept(), 0);

        let mut broker = scene(&[2]);
        left(&mut broker, 1);
        drained_by_all(&mut broker, [0, 2, 3], 1);
        // Worker 2 forwards the lease to 3, and lets go of it.
        let want = ToNode::WantChunk { chunk: of_1(), access: Access::ReadOnly };
        ask(&mut broker, 3, want, 0).1.unwrap();
        unmapped(&mut broker, 2, Access::ReadOnly).unwrap();
        assert_eq!(broker.chunks_kept(), 1);
        unmapped(&mut broker, 3, Access::ReadOnly).unwrap();
        assert_eq!(broker.chunks_kept(), 0);
        assert!(broker.chunks.is_forgotten(process(1)));
    }

    #[test]
    fn both_kinds_of_mapping_count() {
        let mut broker = scene(&[2]);
        let want = ToNode::WantChunk { chunk: of_1(), access: Access::ReadWrite };
        ask(&mut broker, 2, want, 0).1.unwrap();
        left(&mut broker, 1);
        drained_by_all(&mut broker, [0, 2, 3], 1);
        unmapped(&mut broker, 2, Access::ReadOnly).unwrap();
        assert_eq!(broker.chunks_kept(), 1);
        unmapped(&mut broker, 2, Access::ReadWrite).unwrap();
        assert_eq!(broker.chunks_kept(), 0);
    }

    #[test]
    fn what_the_living_own_is_kept() {
        let mut broker = scene(&[2]);
        unmapped(&mut broker, 2, Access::ReadOnly).unwrap();
        left(&mut broker, 2);
        drained_by_all(&mut broker, [0, 1, 3], 2);
        assert_eq!(broker.chunks_kept(), 1);
    }

    // A frame of the dead holder may carry the last lease to a process that has not read it.
    #[test]
    fn a_holder_that_dies_too_counts_until_it_is_reclaimed() {
        let mut broker = scene(&[2]);
        left(&mut broker, 1);
        drained_by_all(&mut broker, [0, 2, 3], 1);
        left(&mut broker, 2);
        drained(&mut broker, 0, 2);
        assert_eq!(broker.chunks_kept(), 1);
        // Worker 3 finds the lease in that frame.
        let want = ToNode::WantChunk { chunk: of_1(), access: Access::ReadOnly };
        ask(&mut broker, 3, want, 0).1.unwrap();
        drained(&mut broker, 3, 2);
        assert_eq!(broker.chunks_kept(), 1);
        unmapped(&mut broker, 3, Access::ReadOnly).unwrap();
        assert_eq!(broker.chunks_kept(), 0);
    }

    #[test]
    fn the_last_of_the_living_takes_everything_along() {
        let mut broker = scene(&[2, 3]);
        left(&mut broker, 1);
        left(&mut broker, 2);
        left(&mut broker, 3);
        left(&mut broker, 0);
        assert_eq!(broker.chunks_kept(), 0);
    }

    // WIRE-1.
    #[test]
    fn nobody_unmaps_for_another_or_twice() {
        let mut broker = scene(&[2]);
        for by in [0, 1, 3] {
            let refused = unmapped(&mut broker, by, Access::ReadOnly);
            assert!(matches!(refused, Err(Complaint::NotMapped(_))), "{by}");
        }
        unmapped(&mut broker, 2, Access::ReadOnly).unwrap();
        assert!(matches!(unmapped(&mut broker, 2, Access::ReadOnly), Err(Complaint::NotMapped(_))));
    }
}

#[path = "link_messages_tests.rs"]
mod link_messages;

/// Chunks that their owner gives back while it lives.
mod withdrawal {
    use super::*;

    #[test]
    fn who_has_it_mapped_is_told_and_nobody_else_gets_it() {
        let mut broker = broker();
        broker.joined(process(3));
        let chunk = ChunkId { owner: process(1), index: 0 };
        let publish = ToNode::PublishChunk { chunk, device: DeviceId::HOST, bytes: 1 };
        let want = |access| ToNode::WantChunk { chunk, access };
        let withdraw = || ToNode::WithdrawChunk { chunk };
        assert!(matches!(ask(&mut broker, 1, withdraw(), 0).1, Err(Complaint::NotPublished(_))));
        ask(&mut broker, 1, publish, 2).1.unwrap();
        ask(&mut broker, 2, want(Access::ReadOnly), 0).1.unwrap();
        ask(&mut broker, 2, want(Access::ReadWrite), 0).1.unwrap();
        // WIRE-1: only the owner may withdraw it.
        let (out, refused) = ask(&mut broker, 2, withdraw(), 0);
        assert!(matches!(refused, Err(Complaint::NotPublished(_))) && out.is_empty());
        let (out, result) = ask(&mut broker, 1, withdraw(), 0);
        result.unwrap();
        assert_eq!(out.len(), 1, "each is told once: {out:?}");
        assert!(out[0].to == process(2));
        assert!(matches!(out[0].message, FromNode::ChunkWithdrawn { chunk: of } if of == chunk));
        assert!(matches!(ask(&mut broker, 1, withdraw(), 0).1, Err(Complaint::NotPublished(_))));
        let (out, result) = ask(&mut broker, 3, want(Access::ReadOnly), 0);
        result.unwrap();
        assert!(matches!(out[0].message, FromNode::NoChunk { .. }));
        // It is forgotten when all have let go.
        let unmapped = |access| ToNode::Unmapped { chunk, access };
        ask(&mut broker, 2, unmapped(Access::ReadOnly), 0).1.unwrap();
        assert_eq!(broker.chunks_kept(), 1);
        ask(&mut broker, 2, unmapped(Access::ReadWrite), 0).1.unwrap();
        assert_eq!(broker.chunks_kept(), 0);
    }

    #[test]
    fn who_ends_has_let_go() {
        let mut broker = broker();
        let chunk = ChunkId { owner: process(1), index: 0 };
        let publish = ToNode::PublishChunk { chunk, device: DeviceId::HOST, bytes: 1 };
        ask(&mut broker, 1, publish, 2).1.unwrap();
        let want = ToNode::WantChunk { chunk, access: Access::ReadOnly };
        ask(&mut broker, 2, want, 0).1.unwrap();
        ask(&mut broker, 1, ToNode::WithdrawChunk { chunk }, 0).1.unwrap();
        broker.left(process(2), &mut Vec::new());
        for by in [0, 1] {
            ask(&mut broker, by, ToNode::Drained { process: process(2) }, 0).1.unwrap();
        }
        assert_eq!(broker.chunks_kept(), 0);
    }
}

//! MBX-2 against a peer that ignores every bound: it can make another process's memory grow only up to a
//! limit.

use tensorpost_core::ids::{ActorId, ChunkId, ProcessId};
use tensorpost_core::lease::LeaseId;
use tensorpost_core::limits::{DEFAULT_MAILBOX, MAX_BROADCAST_BYTES, MAX_TENSORS};
use tensorpost_core::message::wire::{self, Header, Kind, LeaseEntry};
use tensorpost_core::tensor::Tensor;
use tensorpost_core::testing::{Asked, Cluster, forge};

const LIAR: usize = 0;
const B: usize = 1;

fn header(kind: Kind, index: u16, actor: u64, correlation: u64) -> Header {
    Header {
        kind,
        body_in_lease: false,
        has_context: false,
        index,
        actor: ActorId(actor),
        correlation,
        key: 0,
        body_bytes: 0,
    }
}

/// Makes a frame that names as many chunks as a frame can, none of which exists.
fn names(owner: ProcessId, frame: u32, in_parts: bool) -> Vec<u8> {
    let count = MAX_TENSORS as u32;
    let entries: Vec<_> = (0..count)
        .map(|n| LeaseEntry {
            id: LeaseId { chunk: ChunkId { owner, index: frame * count + n }, entry: 0, generation: 1 },
            offset: 0,
            bytes: 1,
            ready: None,
            sole: false,
            in_parts,
        })
        .collect();
    let mut bytes = Vec::new();
    wire::write_head(&mut bytes, &header(Kind::Send, 0, 1, 0), &entries, &[], 0);
    forge::reseal(&mut bytes);
    bytes
}

#[test]
fn chunks_that_there_never_were_leave_nothing_behind() {
    let cluster = Cluster::new(3);
    let (to, inbox) = cluster.inbox::<u32>(B, 8);
    cluster.connect();
    let nobody = ProcessId::new(200, 0).expect("in range");
    // The owners are a process that does not exist, the liar, and another process; the chunks are to read and
    // to write.
    for (round, owner) in [nobody, cluster.process(LIAR), cluster.process(2)].into_iter().enumerate() {
        for frame in 0..40 {
            assert!(cluster.forge_frame(LIAR, B, &names(owner, 1000 + frame, round % 2 == 1)));
            cluster.run_until_idle();
            assert!(cluster.chunks_known(B) <= 8, "{} after frame {frame}", cluster.chunks_known(B));
        }
    }
    cluster.send(2, &to, 7);
    cluster.run_until_idle();
    assert_eq!(inbox.take_one().message, 7);
}

#[test]
fn asks_to_actors_that_there_are_not_fill_no_outbox() {
    let cluster = Cluster::new(3);
    let (to, inbox) = cluster.inbox::<u32>(B, DEFAULT_MAILBOX);
    cluster.connect();
    let (mut bytes, mut asked) = (Vec::new(), 0_u64);
    // The liar reads no answer.
    while !cluster.gave_up(B, LIAR) {
        wire::write_head(&mut bytes, &header(Kind::Ask, 3, 99, asked), &[], &[], 0);
        forge::reseal(&mut bytes);
        if cluster.forge_frame(LIAR, B, &bytes) {
            asked += 1;
        }
        if asked.is_multiple_of(64) {
            cluster.poll(B);
        }
        assert!(asked < 100_000, "it is never given up");
    }
    cluster.send(2, &to, 7);
    cluster.run_until_idle();
    assert_eq!(inbox.take_one().message, 7);
}

// An honest peer that asks for as much as it may and reads late loses nothing.
#[test]
fn as_many_answers_as_credits_allow_are_kept() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<u32>(B, 1 << 14);
    cluster.connect();
    let answers: Vec<Asked<u32>> = (0..1_u32 << 14)
        .map(|n| {
            if n.is_multiple_of(64) {
                cluster.poll(B);
            }
            cluster.ask(LIAR, &to, n)
        })
        .collect();
    while cluster.poll(B) {}
    for received in inbox.take() {
        let answer = received.message + 1;
        received.receipt.reply(answer);
    }
    assert!(!cluster.gave_up(B, LIAR));
    cluster.run_until_idle();
    for (n, answer) in answers.into_iter().enumerate() {
        assert!(matches!(answer.take(), Some(Ok(got)) if got == n as u32 + 1), "ask {n}");
    }
}

// One byte, with a shape that repeats it as often as a peer likes.
#[test]
fn a_layout_that_shows_one_element_often_is_not_copied_without_bound() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<Tensor>(B, 8);
    cluster.connect();
    let byte = || cluster.stream(LIAR).from_slice(&[1], &[7_u8]).expect("memory").freeze();
    for shape in [&[1_usize << 46][..], &[1 << 20, 1 << 20], &[MAX_BROADCAST_BYTES as usize + 1]] {
        cluster.send(LIAR, &to, byte().broadcast_to(shape).expect("a view"));
        cluster.run_until_idle();
        let tensor = inbox.take_one().message;
        let stream = cluster.stream(B);
        let refused = [tensor.to_vec::<u8>().err(), stream.download::<u8>(&tensor).err()];
        for error in refused {
            let text = error.expect("no room").to_string();
            let bytes = shape.iter().product::<usize>().to_string();
            assert!(text.contains(&bytes) && text.contains(&format!("{shape:?}")), "{text}");
        }
        assert!(stream.contiguous(&tensor).is_err() || shape.len() == 1 && shape[0] < 1 << 32);
    }
    cluster.send(LIAR, &to, byte().broadcast_to(&[3, 5]).expect("a view"));
    cluster.run_until_idle();
    let tensor = inbox.take_one().message;
    assert_eq!(tensor.to_vec::<u8>().expect("fifteen bytes"), [7; 15]);
    assert_eq!(cluster.stream(B).download::<u8>(&tensor).expect("the same"), [7; 15]);
}

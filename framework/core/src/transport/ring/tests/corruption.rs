//! Tests a peer that writes anything, anywhere it can (WIRE-1). The result is an error or a record, never a
//! panic, an access out of bounds, or an endless loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use crate::os::thorough;
use crate::transport::ring::*;

const CAPACITY: usize = 128;

/// A ring whose shared memory the test can write as a broken peer would.
struct Exposed {
    tail: NativeWord,
    head: NativeWord,
    bytes: Arc<[AtomicU64]>,
    producer: Producer,
    consumer: Consumer,
}

fn exposed() -> Exposed {
    let (tail, head) = (NativeWord::in_memory(), NativeWord::in_memory());
    let bytes: Arc<[AtomicU64]> = (0..CAPACITY / 8).map(|_| AtomicU64::new(0)).collect();
    let view = || NativeBytes::of_words(&bytes, CAPACITY);
    let producer = Producer::new(tail.clone(), head.clone(), view()).expect("a power of two");
    let consumer = Consumer::new(tail.clone(), head.clone(), view()).expect("a power of two");
    Exposed { tail, head, producer, consumer, bytes }
}

impl Exposed {
    fn send(&mut self, payload: &[u8]) {
        if let Ok(mut reservation) = self.producer.reserve(payload.len()) {
            reservation.write(0, payload);
            reservation.commit();
            self.producer.publish();
        }
    }

    fn receive(&mut self) -> Result<Option<Vec<u8>>, RingCorrupt> {
        let mut out = Vec::new();
        let end = self.consumer.peek(&mut out)?;
        self.consumer.consume();
        self.consumer.publish_head();
        Ok(end.map(|_| out))
    }

    fn header(&self, at: usize, length: u32, marker: u32) {
        self.bytes[at / 8].store((u64::from(marker) << 32) | u64::from(length), Ordering::Relaxed);
    }
}

const RECORD: u32 = 0xB10C_DA7A;
const PAD: u32 = 0xB10C_0FAD;
const MOVED: u32 = 0xB10C_60E5;

/// Generates numbers that are often nearly right.
fn number() -> impl Strategy<Value = u64> {
    let marker = prop_oneof![Just(RECORD), Just(PAD), Just(MOVED), any::<u32>()];
    prop_oneof![
        (0..=2 * CAPACITY as u64),
        (0..=CAPACITY as u64 / 4).prop_map(|n| n * 8),
        (marker, 0..=CAPACITY as u64).prop_map(|(marker, length)| (u64::from(marker) << 32) | length),
        (0..=32u64).prop_map(|n| u64::MAX - n),
        any::<u64>(),
    ]
}

#[derive(Clone, Debug)]
enum Op {
    Send(usize),
    Receive,
    Tail(u64),
    Head(u64),
    Bytes(usize, u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..64usize).prop_map(Op::Send),
        4 => Just(Op::Receive),
        1 => number().prop_map(Op::Tail),
        1 => number().prop_map(Op::Head),
        2 => (0..CAPACITY / 8, number()).prop_map(|(at, value)| Op::Bytes(at, value)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if thorough() { 4096 } else { 512 }))]

    #[test]
    fn a_broken_peer_breaks_nothing(ops in prop::collection::vec(op(), 1..60)) {
        let mut ring = exposed();
        for op in ops {
            match op {
                Op::Send(len) => ring.send(&vec![7; len]),
                Op::Receive => {
                    let before = ring.consumer.position();
                    if let Ok(Some(record)) = ring.receive() {
                        prop_assert!(record.len() <= data::max_payload(CAPACITY));
                        let moved = ring.consumer.position() - before;
                        prop_assert!(moved >= 8 && moved <= CAPACITY as u64);
                    } else {
                        prop_assert_eq!(ring.consumer.position(), before);
                    }
                }
                Op::Tail(value) => ring.tail.store(value, Ordering::Relaxed),
                Op::Head(value) => ring.head.store(value, Ordering::Relaxed),
                Op::Bytes(at, value) => ring.bytes[at].store(value, Ordering::Relaxed),
            }
            if let Ok(free) = ring.producer.free() {
                prop_assert!(free <= CAPACITY);
            }
        }
    }

    #[test]
    fn broken_cursors_break_no_return_ring(steps in prop::collection::vec((0..5u8, number()), 1..60)) {
        let (tail, head) = (NativeWord::in_memory(), NativeWord::in_memory());
        let bytes: Arc<[AtomicU64]> = (0..32).map(|_| AtomicU64::new(0)).collect();
        let view = || NativeBytes::of_words(&bytes, 4 * entries::ENTRY_BYTES);
        let front = NativeWord::in_memory();
        let mut producer: EntryProducer =
            EntryProducer::new(tail.clone(), head.clone(), front.clone(), view()).expect("4 slots");
        let mut consumer: EntryConsumer =
            EntryConsumer::new(tail.clone(), head.clone(), front.clone(), view()).expect("4 slots");
        for (step, value) in steps {
            match step {
                0 => { let _ = producer.push([value; 8]); producer.publish(); }
                1 => { let _ = consumer.pop(); consumer.publish_head(); }
                2 => tail.store(value, Ordering::Relaxed),
                3 => front.store(value, Ordering::Relaxed),
                _ => head.store(value, Ordering::Relaxed),
            }
            if let Ok(len) = producer.unconsumed() {
                prop_assert!(len <= 4);
            }
        }
    }
}

#[test]
fn a_tail_is_checked_before_it_is_believed() {
    let cases = [
        (u64::MAX - 7, RingCorrupt::Beyond { cursor: Cursor::Tail, at: u64::MAX - 7, limit: 128 }),
        (136, RingCorrupt::Beyond { cursor: Cursor::Tail, at: 136, limit: 128 }),
        (17, RingCorrupt::Misaligned { cursor: Cursor::Tail, at: 17 }),
    ];
    for (tail, expected) in cases {
        let mut ring = exposed();
        ring.tail.store(tail, Ordering::Relaxed);
        assert_eq!(ring.receive(), Err(expected));
        assert_eq!(ring.consumer.is_empty(), Err(expected));
    }
    let mut ring = exposed();
    ring.send(b"one");
    assert_eq!(ring.receive(), Ok(Some(b"one".to_vec())));
    ring.tail.store(8, Ordering::Relaxed);
    assert_eq!(ring.receive(), Err(RingCorrupt::Backwards { cursor: Cursor::Tail, from: 16, to: 8 }));
}

#[test]
fn a_tail_counts_from_the_head_that_the_producer_knew() {
    let mut ring = exposed();
    ring.send(b"one");
    ring.consumer.peek(&mut Vec::new()).expect("it is sound");
    ring.consumer.consume();
    // The head is not published, so a sound producer cannot have used the room.
    ring.tail.store(136, Ordering::Relaxed);
    let beyond = RingCorrupt::Beyond { cursor: Cursor::Tail, at: 136, limit: 128 };
    assert_eq!(ring.consumer.is_empty(), Err(beyond));
}

#[test]
fn a_head_is_checked_before_it_is_believed() {
    let mut ring = exposed();
    ring.send(&[1; 24]);
    // Committed, but the consumer cannot know.
    ring.producer.reserve(0).expect("there is room").commit();
    ring.head.store(40, Ordering::Relaxed);
    let beyond = RingCorrupt::Beyond { cursor: Cursor::Head, at: 40, limit: 32 };
    assert_eq!(ring.producer.consumed(), Err(beyond));
    ring.head.store(9, Ordering::Relaxed);
    assert_eq!(ring.producer.free(), Err(RingCorrupt::Misaligned { cursor: Cursor::Head, at: 9 }));
    ring.head.store(32, Ordering::Relaxed);
    assert_eq!(ring.producer.consumed(), Ok(32));
    ring.head.store(16, Ordering::Relaxed);
    let backwards = RingCorrupt::Backwards { cursor: Cursor::Head, from: 32, to: 16 };
    assert_eq!(ring.producer.consumed(), Err(backwards));
    ring.producer.reserve(56).expect("by the last good head there is room").commit();
    // 104 of 128 bytes are taken, and now the head is needed again.
    assert_eq!(ring.producer.reserve(56).err(), Some(RingError::Corrupt(backwards)));
}

#[test]
fn a_header_is_checked_before_it_is_believed() {
    // The content of the header at 0, the tail, and the expected error.
    let cases = [
        (0, 0, 16, RingCorrupt::Marker { at: 0, marker: 0 }),
        (9, RECORD, 16, RingCorrupt::Length { at: 0, length: 9, limit: 8 }),
        (u32::MAX, RECORD, 16, RingCorrupt::Length { at: 0, length: u32::MAX, limit: 8 }),
        (57, RECORD, 128, RingCorrupt::Length { at: 0, length: 57, limit: 56 }),
        (120, PAD, 128, RingCorrupt::Pad { at: 0, length: 120 }),
        (0, MOVED, 8, RingCorrupt::Moved { at: 0 }),
        (8, MOVED, 16, RingCorrupt::Marker { at: 0, marker: MOVED }),
    ];
    for (length, marker, tail, expected) in cases {
        let mut ring = exposed();
        ring.header(0, length, marker);
        ring.tail.store(tail, Ordering::Relaxed);
        assert_eq!(ring.receive(), Err(expected));
        assert_eq!(ring.consumer.position(), 0);
    }
}

#[test]
fn a_record_and_a_pad_at_the_end_are_checked_too() {
    // The same for a header at 96 of 128.
    let cases = [
        (32, RECORD, 256 - 32, RingCorrupt::Length { at: 96, length: 32, limit: 24 }),
        (16, PAD, 256 - 32, RingCorrupt::Pad { at: 96, length: 16 }),
        (32, PAD, 256 - 32, RingCorrupt::Pad { at: 96, length: 32 }),
        (u32::MAX, PAD, 256 - 32, RingCorrupt::Pad { at: 96, length: u32::MAX }),
        // Pads with nothing after them, and with another pad after them.
        (24, PAD, 128, RingCorrupt::Pad { at: 96, length: 24 }),
        (24, PAD, 256 - 32, RingCorrupt::Marker { at: 128, marker: PAD }),
    ];
    for (length, marker, tail, expected) in cases {
        let mut ring = exposed();
        for _ in 0..2 {
            ring.send(&[3; 40]);
            assert_eq!(ring.receive(), Ok(Some(vec![3; 40])));
        }
        ring.header(0, 24, PAD);
        ring.header(96, length, marker);
        ring.tail.store(tail, Ordering::Relaxed);
        assert_eq!(ring.receive(), Err(expected));
        assert_eq!(ring.consumer.position(), 96);
    }
}

//! Tests that the rings behave like a queue.

use std::collections::VecDeque;

use proptest::prelude::*;

use crate::limits::RETURN_LAP;
use crate::transport::ring::entries::PushError;
use crate::transport::ring::{data, entries, *};

const CAPACITY: usize = 256;

#[derive(Clone, Debug)]
enum Op {
    /// A record of this length, written in two pieces.
    Send(usize),
    /// A reservation that is dropped.
    Abandon(usize),
    Publish,
    /// A look without consuming.
    Look,
    Receive,
    PublishHead,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..=data::max_payload(CAPACITY) + 1).prop_map(Op::Send),
        1 => (0..=data::max_payload(CAPACITY)).prop_map(Op::Abandon),
        2 => Just(Op::Publish),
        1 => Just(Op::Look),
        4 => Just(Op::Receive),
        2 => Just(Op::PublishHead),
    ]
}

/// A ring and its expected content: the committed records not yet consumed, each with its end.
struct Pair {
    producer: Producer,
    consumer: Consumer,
    queue: VecDeque<(Vec<u8>, u64)>,
    visible: usize,
    sent: u8,
    out: Vec<u8>,
}

impl Pair {
    fn send(&mut self, len: usize) {
        self.sent = self.sent.wrapping_add(1);
        let payload: Vec<u8> = (0..len).map(|i| self.sent ^ i as u8).collect();
        let before = self.producer.position();
        match self.producer.reserve(len) {
            Ok(mut reservation) => {
                let half = len / 2;
                reservation.write(half, &payload[half..]);
                reservation.write(0, &payload[..half]);
                let end = reservation.commit();
                assert!(end > before && end == self.producer.position());
                self.queue.push_back((payload, end));
            }
            Err(RingError::TooLarge { .. }) => assert!(len > data::max_payload(CAPACITY)),
            Err(RingError::Full) => {
                // The end of the ring can split the free bytes, but never a record. So there is less than
                // twice the record's room.
                let free = self.producer.free().expect("the consumer is sound");
                assert!(free < 2 * (8 + len.next_multiple_of(8)), "{free} free bytes are enough for {len}");
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn look(&mut self) -> bool {
        let end = self.consumer.peek(&mut self.out).expect("the producer is sound");
        assert_eq!(end.is_none(), self.consumer.is_empty().expect("the producer is sound"));
        match (end, self.queue.front()) {
            (Some(end), Some((payload, expected))) if self.visible > 0 => {
                assert_eq!((&self.out, end), (payload, *expected));
                true
            }
            (None, _) if self.visible == 0 => false,
            (end, expected) => panic!("peeked {end:?} where {expected:?} was due"),
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Send(len) => self.send(*len),
            Op::Abandon(len) => {
                let before = self.producer.position();
                if let Ok(mut reservation) = self.producer.reserve(*len) {
                    reservation.write(0, &vec![0xAA; *len]);
                }
                assert_eq!(self.producer.position(), before);
            }
            Op::Publish => {
                assert_eq!(self.producer.has_unpublished(), self.visible < self.queue.len());
                assert_eq!(self.producer.publish(), self.visible < self.queue.len());
                self.visible = self.queue.len();
            }
            Op::Look => drop(self.look()),
            Op::Receive => {
                if self.look() {
                    let (_, end) = self.queue.pop_front().expect("the look saw it");
                    self.visible -= 1;
                    assert_eq!(self.consumer.consume(), end);
                }
            }
            Op::PublishHead => {
                self.consumer.publish_head();
                assert!(!self.consumer.has_unpublished());
                assert_eq!(self.producer.consumed(), Ok(self.consumer.position()));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_data_ring_is_a_queue(ops in prop::collection::vec(op(), 1..200)) {
        let (producer, consumer) = data::in_memory(CAPACITY).expect("a power of two");
        let mut pair =
            Pair { producer, consumer, queue: VecDeque::new(), visible: 0, sent: 0, out: Vec::new() };
        for op in &ops {
            pair.apply(op);
        }
    }

    #[test]
    fn a_return_ring_is_a_queue(ops in prop::collection::vec(0..4u8, 1..200)) {
        let (mut producer, mut consumer) = entries::in_memory(4).expect("a power of two");
        let (mut queue, mut visible, mut unreturned, mut sent) = (VecDeque::new(), 0, 0, 0);
        for op in ops {
            match op {
                0 => match producer.push([sent; 8]) {
                    Ok(()) => { queue.push_back(sent); sent += 1 }
                    Err(error) => {
                        prop_assert_eq!(error, PushError::Full);
                        prop_assert_eq!(queue.len() + unreturned, 4);
                    }
                },
                1 => { producer.publish(); visible = queue.len() }
                2 => match consumer.pop().expect("the producer is sound") {
                    Some(entry) => {
                        prop_assert_eq!(entry, [queue.pop_front().expect("it was pushed"); 8]);
                        visible -= 1;
                        unreturned += 1;
                    }
                    None => prop_assert_eq!(visible, 0),
                },
                _ => { consumer.publish_head(); unreturned = 0 }
            }
            let unconsumed = producer.unconsumed().expect("the consumer is sound");
            prop_assert_eq!(unconsumed as usize, queue.len() + unreturned);
        }
    }
}

/// Memory for many entries is touched only if there are many.
#[test]
fn a_return_ring_begins_again_where_all_was_taken() {
    const SLOTS: usize = 8 * RETURN_LAP;
    let (mut producer, mut consumer) = entries::in_memory(SLOTS).expect("a power of two");
    let (mut pushed, mut taken) = (0, 0);
    let mut pass = |producer: &mut EntryProducer, push: usize, take: usize| {
        for _ in 0..push {
            producer.push([pushed; 8]).expect("there is room");
            pushed += 1;
        }
        producer.publish();
        for _ in 0..take {
            assert_eq!(consumer.pop(), Ok(Some([taken; 8])));
            taken += 1;
        }
        consumer.publish_head();
        (consumer.is_empty() == Ok(true)) == (pushed == taken)
    };
    for _ in 0..5 * SLOTS {
        assert!(pass(&mut producer, 3, 3));
    }
    let lap = (RETURN_LAP + 3) * entries::ENTRY_BYTES;
    assert!(producer.touched() <= lap, "{} bytes", producer.touched());
    // With a consumer that is always behind, it goes round all of the memory, and the last slot works like
    // the first.
    assert!(pass(&mut producer, 1, 0));
    for _ in 0..3 * SLOTS {
        assert!(pass(&mut producer, 1, 1));
    }
    assert_eq!(producer.touched(), SLOTS * entries::ENTRY_BYTES);
    assert!(pass(&mut producer, SLOTS - 1, 0));
    assert_eq!(producer.push([0; 8]), Err(PushError::Full));
    assert!(pass(&mut producer, 0, SLOTS));
    assert!(pass(&mut producer, RETURN_LAP, RETURN_LAP) && pass(&mut producer, 1, 1));
}

#[test]
fn the_largest_record_always_fits_an_empty_ring() {
    for offset in (0..CAPACITY).step_by(8) {
        let (mut producer, mut consumer) = data::in_memory(CAPACITY).expect("a power of two");
        let mut out = Vec::new();
        for len in (0..offset / 8).map(|_| 0).chain([data::max_payload(CAPACITY)]) {
            producer.reserve(len).expect("it is empty").commit();
            assert!(producer.publish());
            assert_eq!(consumer.peek(&mut out), Ok(Some(producer.position())));
            assert_eq!((out.len(), consumer.consume()), (len, producer.position()));
            assert!(consumer.publish_head());
        }
        assert_eq!(producer.free(), Ok(CAPACITY));
    }
}

#[test]
fn consuming_what_was_not_peeked_moves_nothing() {
    let (mut producer, mut consumer) = data::in_memory(CAPACITY).expect("a power of two");
    producer.reserve(3).expect("it is empty").commit();
    producer.publish();
    assert_eq!(consumer.consume(), 0);
    consumer.peek(&mut Vec::new()).expect("the producer is sound");
    assert_eq!((consumer.consume(), consumer.consume()), (16, 16));
    assert!(consumer.is_empty().expect("the producer is sound"));
}

#[test]
fn no_ring_is_made_of_an_odd_capacity() {
    for capacity in [0, 16, 48, usize::MAX, 1 << 31] {
        assert_eq!(data::in_memory(capacity).err().map(|e| e.len), Some(capacity));
    }
    assert!(
        entries::in_memory(0).is_err() && entries::in_memory(3).is_err() && entries::in_memory(1).is_ok()
    );
}

#[test]
#[should_panic(expected = "outside a reservation of 4")]
fn a_reservation_takes_no_more_than_was_reserved() {
    let (mut producer, _consumer) = data::in_memory(CAPACITY).expect("a power of two");
    producer.reserve(4).expect("it is empty").write(1, &[0; 4]);
}

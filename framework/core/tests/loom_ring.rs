//! Loom on the rings: every interleaving of a small run, and the proof that each of the orders is needed.
//!
//! The producer tries a bounded number of times and stops at a full ring. The consumer looks a bounded number
//! of times, and the main thread drains the rest. No loop waits, so the models are finite without a bound on
//! spinning.

mod loom_platform;

use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use loom::thread;
use loom_platform::{Loom, LoomBytes, LoomWord, explore, failure_of};
use tensorpost_core::transport::ring::entries::ENTRY_BYTES;
use tensorpost_core::transport::ring::{
    Consumer, EntryConsumer, EntryProducer, Orders, Producer, RingError, Sound,
};

/// There is no limit of switches away from a runnable thread: two threads need none.
const PREEMPTIONS: Option<usize> = None;

fn data_ring<O: Orders>(capacity: usize) -> (Producer<Loom, O>, Consumer<Loom, O>) {
    let (tail, head, bytes) = (LoomWord::zero(), LoomWord::zero(), LoomBytes::zeroed(capacity));
    let producer = Producer::new(tail.clone(), head.clone(), bytes.clone()).expect("a power of two");
    (producer, Consumer::new(tail, head, bytes).expect("a power of two"))
}

fn entry_ring<O: Orders>(slots: usize) -> (EntryProducer<Loom, O>, EntryConsumer<Loom, O>) {
    let [tail, head, front] = [(); 3].map(|()| LoomWord::zero());
    let bytes = LoomBytes::zeroed(slots * ENTRY_BYTES);
    let producer =
        EntryProducer::new(tail.clone(), head.clone(), front.clone(), bytes.clone()).expect("a power of two");
    (producer, EntryConsumer::new(tail, head, front, bytes).expect("a power of two"))
}

/// Takes the next record. It must be record number `due`, with all of its bytes.
fn receive<O: Orders>(ring: &mut Consumer<Loom, O>, due: &mut u8) -> bool {
    let mut out = Vec::new();
    if ring.peek(&mut out).expect("the producer is sound").is_none() {
        return false;
    }
    assert!(out.iter().all(|b| b == due), "record {due} came as {out:?}");
    *due += 1;
    ring.consume();
    ring.publish_head();
    true
}

/// Sends up to `attempts` records of `len` bytes through a ring of `capacity`, which is so small that the
/// records have to wrap.
fn data_model<O: Orders>(capacity: usize, len: usize, attempts: u8) {
    let (mut producer, mut consumer) = data_ring::<O>(capacity);
    let sending = thread::spawn(move || {
        let mut sent = 0;
        for _ in 0..attempts {
            match producer.reserve(len) {
                Ok(mut reservation) => {
                    reservation.write(0, &vec![sent; len]);
                    reservation.commit();
                    producer.publish();
                    sent += 1;
                }
                Err(error) => assert_eq!(error, RingError::Full),
            }
        }
        sent
    });
    let mut received = 0;
    for _ in 0..2 {
        receive(&mut consumer, &mut received);
    }
    let sent = sending.join().expect("the producer finishes");
    while receive(&mut consumer, &mut received) {}
    assert_eq!(received, sent);
}

/// Does the same for entries. A ring of one slot has to wrap. A ring of two begins again at the front
/// whenever it has been emptied.
fn entry_model<O: Orders>(slots: usize) {
    let (mut producer, mut consumer) = entry_ring::<O>(slots);
    let sending = thread::spawn(move || {
        let mut sent = 0;
        for _ in 0..3 {
            if producer.push([sent; 8]).is_ok() {
                producer.publish();
                sent += 1;
            }
        }
        sent
    });
    let mut received = 0;
    let mut receive = || match consumer.pop().expect("the producer is sound") {
        Some(entry) => {
            assert_eq!(entry, [received; 8]);
            received += 1;
            consumer.publish_head();
            true
        }
        None => false,
    };
    for _ in 0..2 {
        receive();
    }
    let sent = sending.join().expect("the producer finishes");
    while receive() {}
    assert_eq!(received, sent);
}

/// Publishes two records at once, of which the consumer sees both or none.
fn batch_model<O: Orders>() {
    let (mut producer, mut consumer) = data_ring::<O>(64);
    let sending = thread::spawn(move || {
        for number in 0..2 {
            let mut reservation = producer.reserve(8).expect("there is room for both");
            reservation.write(0, &[number; 8]);
            reservation.commit();
        }
        producer.publish();
    });
    let mut received = 0;
    if receive(&mut consumer, &mut received) {
        assert!(receive(&mut consumer, &mut received), "only the first of two was there");
    }
    sending.join().expect("the producer finishes");
    while receive(&mut consumer, &mut received) {}
    assert_eq!(received, 2);
}

#[test]
fn records_arrive_whole_and_in_order() {
    explore(PREEMPTIONS, || data_model::<Sound>(32, 8, 4));
}

#[test]
fn records_arrive_whole_and_in_order_over_a_pad() {
    // Each takes 24 bytes with its header, so the third does not fit behind the second.
    explore(PREEMPTIONS, || data_model::<Sound>(64, 13, 4));
}

#[test]
fn records_published_together_are_seen_together() {
    explore(PREEMPTIONS, batch_model::<Sound>);
}

#[test]
fn entries_arrive_whole_and_in_order() {
    explore(PREEMPTIONS, || entry_model::<Sound>(1));
    explore(PREEMPTIONS, || entry_model::<Sound>(2));
}

/// [`Sound`] with one order taken away.
macro_rules! without {
    ($($name:ident: $order:ident;)*) => {$(
        struct $name(PhantomData<()>);
        impl Orders for $name {
            const $order: Ordering = Ordering::Relaxed;
        }
    )*};
}

without! {
    NoTailRelease: TAIL_RELEASE;
    NoTailAcquire: TAIL_ACQUIRE;
    NoHeadRelease: HEAD_RELEASE;
    NoHeadAcquire: HEAD_ACQUIRE;
}

/// Checks that both rings race on their bytes without this order.
fn both_race_without<O: Orders>() {
    for failure in [
        failure_of(PREEMPTIONS, || data_model::<O>(32, 8, 4)),
        failure_of(PREEMPTIONS, || data_model::<O>(64, 13, 4)),
        failure_of(PREEMPTIONS, || entry_model::<O>(1)),
    ] {
        assert!(failure.contains("Causality violation"), "another failure: {failure}");
    }
}

#[test]
fn tail_needs_its_release() {
    both_race_without::<NoTailRelease>();
}

#[test]
fn tail_needs_its_acquire() {
    both_race_without::<NoTailAcquire>();
}

#[test]
fn head_needs_its_release() {
    both_race_without::<NoHeadRelease>();
}

#[test]
fn head_needs_its_acquire() {
    both_race_without::<NoHeadAcquire>();
}

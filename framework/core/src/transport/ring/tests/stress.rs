//! Tests with two real threads.

use std::hint;
use std::thread;

use crate::transport::doorbell::{Ringer, Sleeper};
use crate::transport::ring::entries::PushError;
use crate::transport::ring::{data, entries, *};

const RECORDS: u64 = 1_000_000;

/// Returns lengths that wrap the ring at every place.
fn length(i: u64) -> usize {
    8 + (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 57) as usize
}

/// Gives the other thread, which may share the core, a moment.
fn pause(tries: &mut u32) {
    *tries += 1;
    if tries.is_multiple_of(64) { thread::yield_now() } else { hint::spin_loop() }
}

#[test]
fn a_million_records_arrive_whole_and_in_order() {
    let (mut producer, mut consumer) = data::in_memory(4096).expect("a power of two");
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut tries = 0;
            for i in 0..RECORDS {
                let mut reservation = loop {
                    match producer.reserve(length(i)) {
                        Ok(_) => break producer.reserve(length(i)).expect("it fitted just now"),
                        Err(RingError::Full) => drop(producer.publish()),
                        Err(error) => panic!("{error}"),
                    }
                    pause(&mut tries);
                };
                reservation.write(0, &i.to_ne_bytes());
                reservation.write(8, &[i as u8; 128][..length(i) - 8]);
                reservation.commit();
                if i % 8 == 7 {
                    producer.publish();
                }
            }
            producer.publish();
        });
        let (mut out, mut tries) = (Vec::new(), 0);
        for i in 0..RECORDS {
            while consumer.peek(&mut out).expect("the producer is sound").is_none() {
                consumer.publish_head();
                pause(&mut tries);
            }
            assert_eq!((out.len(), &out[..8]), (length(i), &i.to_ne_bytes()[..]));
            assert!(out[8..].iter().all(|b| *b == i as u8), "record {i} has bytes of another");
            consumer.consume();
            if i % 8 == 0 {
                consumer.publish_head();
            }
        }
    });
}

#[test]
fn a_million_entries_arrive_and_no_wake_up_is_lost() {
    let (mut producer, mut consumer) = entries::in_memory(64).expect("a power of two");
    let (asleep, waiting) = (NativeWord::in_memory(), NativeWord::in_memory());
    let (mut sleeper, ringer): (Sleeper, Ringer) = (Sleeper::new(asleep.clone()), Ringer::new(asleep));
    let (mut waiter, freer): (Sleeper, Ringer) = (Sleeper::new(waiting.clone()), Ringer::new(waiting));
    let consuming = thread::current();
    // A thread's parking is the eventfd of this test: a lost wake-up hangs it.
    let sending = thread::spawn(move || {
        for i in 0..RECORDS {
            while let Err(error) = producer.push([i; 8]) {
                assert_eq!(error, PushError::Full);
                if producer.publish() && ringer.should_ring() {
                    consuming.unpark();
                }
                waiter.prepare();
                if producer.unconsumed().expect("the consumer is sound") == 64 {
                    thread::park();
                }
                waiter.awake();
            }
            if i % 4 == 3 && producer.publish() && ringer.should_ring() {
                consuming.unpark();
            }
        }
    });
    for i in 0..RECORDS {
        let entry = loop {
            if let Some(entry) = consumer.pop().expect("the producer is sound") {
                break entry;
            }
            if consumer.publish_head() && freer.should_ring() {
                sending.thread().unpark();
            }
            sleeper.prepare();
            if consumer.is_empty().expect("the producer is sound") {
                thread::park();
            }
            sleeper.awake();
        };
        assert_eq!(entry, [i; 8]);
    }
    sending.join().expect("the producer finishes");
}

/// Now and then the ring continues in other memory, which the consumer has by then.
#[test]
fn records_and_entries_arrive_in_order_from_rings_that_move() {
    const MOVES: u64 = 300;
    const BETWEEN: u64 = 100;
    let (mut producer, mut consumer) = data::in_memory(1024).expect("a power of two");
    let (mut pushes, mut pops) = entries::in_memory(8).expect("a power of two");
    let mark = [u64::MAX; 8];
    let (offers, fresh) = std::sync::mpsc::channel();
    let (more, fresh_entries) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut tries = 0;
            for i in 0..MOVES * BETWEEN {
                while producer.reserve(length(i)).is_err() {
                    producer.publish();
                    pause(&mut tries);
                }
                let mut reservation = producer.reserve(length(i)).expect("it fitted just now");
                reservation.write(0, &i.to_ne_bytes());
                reservation.commit();
                while pushes.push([i; 8]).is_err() {
                    pushes.publish();
                    producer.publish();
                    pause(&mut tries);
                }
                if i % BETWEEN != 0 {
                    continue;
                }
                let (bytes, theirs) = NativeBytes::in_memory(1024);
                assert!(producer.move_to(bytes).is_err(), "not before all is read");
                producer.publish();
                pushes.publish();
                while producer.unconsumed().expect("sound") > 0 || pushes.unconsumed().expect("sound") > 0 {
                    pause(&mut tries);
                }
                drop(theirs);
                let (bytes, theirs) = NativeBytes::in_memory(1024);
                offers.send(theirs).expect("it reads on");
                producer.move_to(bytes).expect("all is read");
                let (bytes, theirs) = NativeBytes::in_memory(8 * entries::ENTRY_BYTES);
                more.send(theirs).expect("it reads on");
                pushes.move_to(mark, bytes).expect("all is read");
            }
            producer.publish();
            pushes.publish();
        });
        let (mut out, mut tries, mut moves) = (Vec::new(), 0, 0);
        for i in 0..MOVES * BETWEEN {
            loop {
                match consumer.peek(&mut out) {
                    Ok(Some(_)) => break,
                    Ok(None) => {}
                    Err(RingCorrupt::Moved { .. }) => {
                        consumer.follow(fresh.recv().expect("offered before"));
                        moves += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
                consumer.publish_head();
                pause(&mut tries);
            }
            assert_eq!((out.len(), &out[..8]), (length(i), &i.to_ne_bytes()[..]));
            consumer.consume();
            consumer.publish_head();
            let entry = loop {
                match pops.pop().expect("sound") {
                    Some(entry) if entry == mark => {
                        drop(pops.follow(fresh_entries.recv().expect("offered before")))
                    }
                    Some(entry) => break entry,
                    None => pause(&mut tries),
                }
                pops.publish_head();
            };
            assert_eq!(entry, [i; 8]);
            pops.publish_head();
        }
        assert_eq!(moves, MOVES);
    });
}

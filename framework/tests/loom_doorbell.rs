//! Loom on sleeping and waking: no wake-up is lost, and one is without any of the three steps that prevent it.
//!
//! The sources are the real return rings. A lost wake-up is a sleeper that nobody will wake, which loom reports as
//! a deadlock.

mod loom_platform;

use std::sync::Arc;

use loom::sync::atomic::AtomicBool;
use loom::sync::atomic::Ordering::{AcqRel, Relaxed};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use loom_platform::{Loom, LoomBytes, LoomWord, explore, failure_of};
use tensorpost::transport::doorbell::{Ringer, Sleeper};
use tensorpost::transport::ring::entries::ENTRY_BYTES;
use tensorpost::transport::ring::{EntryConsumer, EntryProducer, Orders, Platform as _, Sound};

/// Switches away from a runnable thread: three threads are too many to explore without a bound.
const PREEMPTIONS: Option<usize> = Some(3);

/// The eventfd: a ring before the sleep is kept, and several are as one. (Loom's parking is no good for this: its
/// `unpark` also ends a `join`.)
#[derive(Clone)]
struct Bell(Arc<(Mutex<bool>, Condvar)>);

impl Bell {
    fn new() -> Self {
        Bell(Arc::new((Mutex::new(false), Condvar::new())))
    }

    fn ring(&self) {
        *self.0.0.lock().expect("no thread panicked") = true;
        self.0.1.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.0.0.lock().expect("no thread panicked");
        while !*rung {
            rung = self.0.1.wait(rung).expect("no thread panicked");
        }
        *rung = false;
    }
}

fn ring<O: Orders>(slots: usize) -> (EntryProducer<Loom, O>, EntryConsumer<Loom, O>) {
    let (tail, head, bytes) = (LoomWord::zero(), LoomWord::zero(), LoomBytes::zeroed(slots * ENTRY_BYTES));
    let producer = EntryProducer::new(tail.clone(), head.clone(), bytes.clone()).expect("a power of two");
    (producer, EntryConsumer::new(tail, head, bytes).expect("a power of two"))
}

fn produce<O: Orders>(
    mut ring: EntryProducer<Loom, O>,
    mut ringer: Ringer<Loom, O>,
    entries: u64,
    bell: Bell,
) -> impl FnOnce() {
    move || {
        for i in 0..entries {
            ring.push([i; 8]).expect("there is room for all");
            ring.publish();
            if ringer.should_ring() {
                bell.ring();
            }
        }
    }
}

/// Each of `producers` sends `entries` to one consumer, which sleeps whenever there is nothing.
fn model<O: Orders>(producers: usize, entries: u64, look_again: bool) {
    let (word, bell) = (LoomWord::zero(), Bell::new());
    let mut sleeper: Sleeper<Loom, O> = Sleeper::new(word.clone());
    let mut sources = Vec::new();
    let mut threads = Vec::new();
    for _ in 0..producers {
        let (producer, consumer) = ring::<O>(entries.next_power_of_two() as usize);
        let ringer = Ringer::new(word.clone());
        threads.push(thread::spawn(produce(producer, ringer, entries, bell.clone())));
        sources.push(consumer);
    }
    let mut due = producers as u64 * entries;
    loop {
        for source in &mut sources {
            while source.pop().expect("the producer is sound").is_some() {
                due -= 1;
            }
        }
        if due == 0 {
            break;
        }
        sleeper.prepare();
        let mut empty = true;
        if look_again {
            for source in &mut sources {
                empty &= source.is_empty().expect("the producer is sound");
            }
        }
        if empty {
            bell.wait();
        }
        sleeper.awake();
    }
    for thread in threads {
        thread.join().expect("the producers finish");
    }
}

/// [`Sound`] without the fence of one side.
struct NoSleeperFence;

impl Orders for NoSleeperFence {
    const SLEEPER_FENCE: bool = false;
}

struct NoRingerFence;

impl Orders for NoRingerFence {
    const RINGER_FENCE: bool = false;
}

fn assert_deadlock(failure: &str) {
    assert!(failure.contains("deadlock"), "another failure: {failure}");
}

#[test]
fn no_wake_up_of_two_producers_is_lost() {
    explore(PREEMPTIONS, || model::<Sound>(2, 1, true));
}

#[test]
fn no_wake_up_is_lost_over_several_sleeps() {
    explore(PREEMPTIONS, || model::<Sound>(1, 3, true));
}

#[test]
fn bell_needs_the_sleepers_fence() {
    assert_deadlock(&failure_of(PREEMPTIONS, || model::<NoSleeperFence>(2, 1, true)));
    assert_deadlock(&failure_of(PREEMPTIONS, || model::<NoSleeperFence>(1, 1, true)));
}

#[test]
fn bell_needs_the_ringers_fence() {
    assert_deadlock(&failure_of(PREEMPTIONS, || model::<NoRingerFence>(2, 1, true)));
    assert_deadlock(&failure_of(PREEMPTIONS, || model::<NoRingerFence>(1, 1, true)));
}

#[test]
fn bell_needs_the_second_look() {
    assert_deadlock(&failure_of(PREEMPTIONS, || model::<Sound>(2, 1, false)));
    assert_deadlock(&failure_of(PREEMPTIONS, || model::<Sound>(1, 1, false)));
}

/// What a process does that has published something and not rung for it (`transport/wake_reasons.rs`): one thread
/// publishes and keeps quiet, the reader's thread rings when it finds nothing to do, parked or not. `last_look` is the
/// reader's look after it has said that it is parked, `wake` what the publisher does when it finds it parked.
fn deferred_model(last_look: bool, wake: bool) {
    let (word, bell) = (LoomWord::zero(), Bell::new());
    let mut sleeper: Sleeper<Loom> = Sleeper::new(word.clone());
    let (mut producer, mut consumer) = ring::<Sound>(1);
    let deferred = Arc::new(AtomicBool::new(false));
    let parked = Arc::new(AtomicBool::new(false));
    let came = Bell::new();

    let publish = {
        let (deferred, parked, came) = (Arc::clone(&deferred), Arc::clone(&parked), came.clone());
        thread::spawn(move || {
            producer.push([7; 8]).expect("there is room");
            producer.publish();
            deferred.swap(true, AcqRel);
            Loom::fence_seq_cst();
            if wake && parked.load(Relaxed) {
                came.ring();
            }
        })
    };
    let reader = {
        let (bell, mut ringer) = (bell.clone(), Ringer::<Loom>::new(word));
        let mut ring_deferred = move || {
            let due = deferred.load(Relaxed) && deferred.swap(false, AcqRel);
            if due && ringer.should_ring() {
                bell.ring();
            }
            due
        };
        thread::spawn(move || {
            // Until it has rung, or seen that nobody sleeps.
            loop {
                if ring_deferred() {
                    break;
                }
                parked.store(true, Relaxed);
                Loom::fence_seq_cst();
                if last_look && ring_deferred() {
                    break;
                }
                came.wait();
                parked.store(false, Relaxed);
            }
        })
    };
    while consumer.pop().expect("the producer is sound").is_none() {
        sleeper.prepare();
        if consumer.is_empty().expect("the producer is sound") {
            bell.wait();
        }
        sleeper.awake();
    }
    publish.join().expect("it finishes");
    reader.join().expect("it finishes");
}

#[test]
fn a_deferred_wakeup_is_rung_for_in_the_end() {
    explore(PREEMPTIONS, || deferred_model(true, true));
}

#[test]
fn a_deferred_wakeup_needs_the_readers_last_look() {
    assert_deadlock(&failure_of(PREEMPTIONS, || deferred_model(false, true)));
}

#[test]
fn a_deferred_wakeup_needs_a_parked_reader_to_be_woken() {
    assert_deadlock(&failure_of(PREEMPTIONS, || deferred_model(true, false)));
}

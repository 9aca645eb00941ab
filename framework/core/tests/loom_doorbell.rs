//! Loom on sleeping and waking: no wake-up is lost, and leaving out any of the three steps that prevent it
//! loses one.
//!
//! The sources are the real return rings. A lost wake-up is a sleeper that nobody will wake, which loom
//! reports as a deadlock.

mod loom_platform;

#[allow(dead_code, reason = "as the crate has it")]
#[path = "../src/transport/deferred.rs"]
mod deferred;
#[allow(dead_code, reason = "as the crate has it")]
#[path = "../src/transport/wake_reasons.rs"]
mod wake_reasons;

/// The names of the crate that those files use.
mod transport {
    pub(crate) use tensorpost_core::transport::ring;
}

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use deferred::{Deferred, DeferredFor};
use loom::thread;
use loom_platform::sync::{self, Weaker, weaken};
use loom_platform::{Bell, Loom, LoomBytes, LoomWord, explore, failure_of};
use tensorpost_core::transport::doorbell::{Ringer, Sleeper};
use tensorpost_core::transport::ring::entries::ENTRY_BYTES;
use tensorpost_core::transport::ring::{EntryConsumer, EntryProducer, Orders, Sound, Word};
use wake_reasons::{CREDIT, is_wanted};

/// Limit of switches away from a runnable thread: three threads are too many to explore without a bound.
const PREEMPTIONS: Option<usize> = Some(3);

fn ring<O: Orders>(slots: usize) -> (EntryProducer<Loom, O>, EntryConsumer<Loom, O>) {
    let [tail, head, front] = [(); 3].map(|()| LoomWord::zero());
    let bytes = LoomBytes::zeroed(slots * ENTRY_BYTES);
    let producer =
        EntryProducer::new(tail.clone(), head.clone(), front.clone(), bytes.clone()).expect("a power of two");
    (producer, EntryConsumer::new(tail, head, front, bytes).expect("a power of two"))
}

fn produce<O: Orders>(
    mut ring: EntryProducer<Loom, O>,
    ringer: Arc<Ringer<Loom, O>>,
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

/// Lets each of `producers` send `entries` to one consumer, which sleeps whenever there is nothing to read.
fn model<O: Orders>(producers: usize, entries: u64, look_again: bool) {
    model_of::<O>(producers, entries, look_again, false);
}

/// As [`model`]. With `share`, the producers are threads of one process and share one ringer.
fn model_of<O: Orders>(producers: usize, entries: u64, look_again: bool, share: bool) {
    let (word, bell) = (LoomWord::zero(), Bell::new());
    let mut sleeper: Sleeper<Loom, O> = Sleeper::new(word.clone());
    let mut sources = Vec::new();
    let mut threads = Vec::new();
    let shared = Arc::new(Ringer::new(word.clone()));
    for _ in 0..producers {
        let (producer, consumer) = ring::<O>(entries.next_power_of_two() as usize);
        let ringer = if share { Arc::clone(&shared) } else { Arc::new(Ringer::new(word.clone())) };
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

/// [`Sound`] without the sleeper's fence or without the ringer's.
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

/// The producer that is told to ring rings for both.
#[test]
fn no_wake_up_of_threads_that_share_a_ringer_is_lost() {
    explore(PREEMPTIONS, || model_of::<Sound>(2, 1, true, true));
    assert_deadlock(&failure_of(PREEMPTIONS, || model_of::<NoRingerFence>(2, 1, true, true)));
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

/// A process has published something and put off the doorbell, with the production code's marks. One thread
/// publishes without ringing. The reader's thread rings when it finds nothing to do, whether it is parked or
/// not. `last_look` says whether the reader looks again after it has said that it is parked. `wake` says
/// whether the publisher wakes a reader that it finds parked.
fn deferred_model(last_look: bool, wake: bool, weaker: Weaker) {
    weaken(weaker);
    let (word, wants, bell) = (LoomWord::zero(), LoomWord::zero(), Bell::new());
    let mut sleeper: Sleeper<Loom> = Sleeper::new(word.clone());
    let (mut producer, mut consumer) = ring::<Sound>(1);
    let (marks, mark) = (Arc::new(Deferred::new()), Arc::new(DeferredFor::new()));
    let came = Bell::new();

    let publish = {
        let (marks, mark, came) = (Arc::clone(&marks), Arc::clone(&mark), came.clone());
        thread::spawn(move || {
            producer.push([7; 8]).expect("there is room");
            producer.publish();
            mark.mark(CREDIT);
            if marks.mark() && wake {
                came.ring();
            }
        })
    };
    let reader = {
        let (bell, wants, ringer) = (bell.clone(), wants.clone(), Ringer::<Loom>::new(word));
        // As `Wakeups::ring_deferred` does, with a single link.
        let ring_deferred = move || {
            let due = marks.take();
            if due {
                let what = mark.take();
                if is_wanted::<Loom, Sound>(what, &wants) && ringer.should_ring() {
                    bell.ring();
                }
            }
            (due, Arc::clone(&marks))
        };
        thread::spawn(move || {
            // Loops until the reader has rung, or has seen that nobody sleeps.
            loop {
                let (due, marks) = ring_deferred();
                if due {
                    break;
                }
                marks.park();
                if last_look && ring_deferred().0 {
                    break;
                }
                came.wait();
                marks.unpark();
            }
        })
    };
    while consumer.pop().expect("the producer is sound").is_none() {
        wants.store(CREDIT.into(), Relaxed);
        sleeper.prepare();
        if consumer.is_empty().expect("the producer is sound") {
            bell.wait();
        }
        sleeper.awake();
    }
    publish.join().expect("it finishes");
    reader.join().expect("it finishes");
}

/// A peer says for which reasons it wants to be woken. The reader does so before it says that it sleeps.
fn wants_model<O: Orders>(wants_first: bool) {
    let (word, wants, bell) = (LoomWord::zero(), LoomWord::zero(), Bell::new());
    let mut sleeper: Sleeper<Loom> = Sleeper::new(word.clone());
    let (mut producer, mut consumer) = ring::<Sound>(1);
    let publish = {
        let (bell, wants, ringer) = (bell.clone(), wants.clone(), Ringer::<Loom>::new(word));
        thread::spawn(move || {
            producer.push([7; 8]).expect("there is room");
            producer.publish();
            if is_wanted::<Loom, O>(CREDIT, &wants) && ringer.should_ring() {
                bell.ring();
            }
        })
    };
    while consumer.pop().expect("the producer is sound").is_none() {
        if wants_first {
            wants.store(CREDIT.into(), Relaxed);
        }
        sleeper.prepare();
        let is_empty = consumer.is_empty().expect("the producer is sound");
        if !wants_first {
            wants.store(CREDIT.into(), Relaxed);
        }
        if is_empty {
            bell.wait();
        }
        sleeper.awake();
    }
    publish.join().expect("it finishes");
}

/// [`Sound`] without the publisher's fence before it reads the peer's wake reasons.
struct NoWantsFence;

impl Orders for NoWantsFence {
    const WANTS_FENCE: bool = false;
}

#[test]
fn what_a_peer_wants_wakes_it() {
    explore(PREEMPTIONS, || wants_model::<Sound>(true));
}

#[test]
fn what_is_wanted_needs_the_publishers_fence() {
    assert_deadlock(&failure_of(PREEMPTIONS, || wants_model::<NoWantsFence>(true)));
}

#[test]
fn what_is_wanted_is_said_before_the_sleep() {
    assert_deadlock(&failure_of(PREEMPTIONS, || wants_model::<Sound>(false)));
}

#[test]
fn a_deferred_wakeup_is_rung_for_in_the_end() {
    explore(PREEMPTIONS, || deferred_model(true, true, Weaker::Nothing));
}

#[test]
fn a_deferred_wakeup_needs_the_readers_last_look() {
    assert_deadlock(&failure_of(PREEMPTIONS, || deferred_model(false, true, Weaker::Nothing)));
}

#[test]
fn a_deferred_wakeup_needs_a_parked_reader_to_be_woken() {
    assert_deadlock(&failure_of(PREEMPTIONS, || deferred_model(true, false, Weaker::Nothing)));
}

#[test]
fn a_deferred_wakeup_needs_its_fences() {
    assert_deadlock(&failure_of(PREEMPTIONS, || deferred_model(true, true, Weaker::Fences)));
}

//! Loom on waiting senders and on credits, with the crate's own files. No wake-up of a sender is lost, and no
//! more credits are out than there are. A sender that sees a message counted may put another one into its
//! place.

mod loom_platform;

#[allow(dead_code, unreachable_pub, reason = "as the crate has it")]
#[path = "../src/transport/link/granted.rs"]
mod granted;
#[allow(dead_code, unreachable_pub, reason = "as the crate has it")]
#[path = "../src/transport/local_credits.rs"]
mod local_credits;
#[allow(dead_code, unreachable_pub, reason = "as the crate has it")]
#[path = "../src/transport/waiting.rs"]
mod waiting;

/// The names of the crate that those files use.
mod limits {
    pub(crate) const MAX_ACTORS: usize = 1;
}
mod os {
    pub(crate) fn monotonic_ns() -> u64 {
        0
    }
}
mod transport {
    pub(crate) mod ring {
        use crate::sync::{Arc, AtomicU64, Ordering};

        /// One word.
        #[derive(Clone, Debug)]
        pub(crate) struct NativeWords(pub(crate) Arc<AtomicU64>);

        impl NativeWords {
            pub(crate) fn store(&self, _index: usize, value: u64, order: Ordering) {
                self.0.store(value, order);
            }
        }
    }
    pub(crate) mod wake_reasons {
        pub(crate) const LEAST_GATHERED: u32 = 4;
        pub(crate) const TELL_EVERY: std::time::Duration = std::time::Duration::from_millis(1);
    }
}

use std::mem::ManuallyDrop;
use std::task::{Wake, Waker};

use granted::{Credit, Granted};
use local_credits::LocalCredits;
use loom::thread;
use loom_platform::sync::{self, Arc, AtomicU64, Ordering, Weaker, weaken};
use loom_platform::{Bell, Loom, LoomBytes, LoomWord, explore, failure_of};
use tensorpost_core::transport::ring::entries::ENTRY_BYTES;
use tensorpost_core::transport::ring::{Bytes, EntryConsumer, EntryProducer, Word};
use transport::ring::NativeWords;

/// Limit of switches away from a runnable thread.
const PREEMPTIONS: Option<usize> = Some(3);

/// The same limit for the path of two messages, which needs more.
const FOR_CREDITS: Option<usize> = Some(5);

/// The step that a sender gets wrong.
#[derive(Clone, Copy, PartialEq)]
enum Flaw {
    None,
    /// It does not try again after it has joined the queue.
    NoSecondLook,
    /// It leaves the queue without telling anybody.
    LeavesInSilence,
}

struct Ring(Bell);

impl Wake for Ring {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.ring();
    }
}

/// Sends as `actor/sending.rs` does, and handles the message at once. Between the two steps the mailbox
/// belongs to this thread.
fn send(credits: &LocalCredits, mailbox: &LoomBytes, flaw: Flaw) {
    if !credits.queue().is_empty() || !credits.take() {
        let bell = Bell::new();
        let waker = Waker::from(std::sync::Arc::new(Ring(bell.clone())));
        // When loom finds a failure it unwinds, and none of loom's own objects may be used then.
        let place = ManuallyDrop::new(credits.queue().join());
        let mut looks = flaw != Flaw::NoSecondLook;
        loop {
            let stamp = credits.stamp();
            place.remember(&waker, stamp);
            if looks && place.is_front() {
                if credits.take() {
                    break;
                }
                if credits.stamp() != stamp {
                    continue;
                }
            }
            bell.wait();
            looks = true;
        }
        if flaw != Flaw::LeavesInSilence {
            drop(ManuallyDrop::into_inner(place));
        }
    }
    // MBX-2: a single credit is held by one thread at a time.
    mailbox.write_word(0, 1 + mailbox.read_word(0));
    credits.hand_back();
}

/// Two senders send to a mailbox of one, which already holds a message.
fn senders(flaw: Flaw, weaker: Weaker) {
    weaken(weaker);
    let credits = LocalCredits::new(1);
    assert!(credits.take());
    let mailbox = LoomBytes::zeroed(8);
    let sending: Vec<_> = (0..2)
        .map(|_| {
            let (credits, mailbox) = (Arc::clone(&credits), mailbox.clone());
            thread::spawn(move || send(&credits, &mailbox, flaw))
        })
        .collect();
    credits.hand_back();
    sending.into_iter().for_each(|sender| sender.join().expect("it sends"));
    assert_eq!(mailbox.read_word(0), 2);
    assert!(credits.queue().is_empty(), "somebody is left in the queue");
}

fn assert_deadlock(failure: &str) {
    assert!(failure.contains("deadlock"), "another failure: {failure}");
}

#[test]
fn every_sender_that_waits_is_woken() {
    explore(PREEMPTIONS, || senders(Flaw::None, Weaker::Nothing));
}

#[test]
fn a_sender_has_to_try_again_after_it_joined() {
    assert_deadlock(&failure_of(PREEMPTIONS, || senders(Flaw::NoSecondLook, Weaker::Nothing)));
}

#[test]
fn a_sender_that_leaves_has_to_wake_the_next() {
    let failure = failure_of(PREEMPTIONS, || senders(Flaw::LeavesInSilence, Weaker::Nothing));
    assert!(
        failure.contains("left in the queue") || failure.contains("deadlock"),
        "another failure: {failure}"
    );
}

#[test]
fn the_queue_needs_its_total_order() {
    assert_deadlock(&failure_of(PREEMPTIONS, || senders(Flaw::None, Weaker::SeqCst)));
}

/// A sender, a reader that puts each message into a mailbox of one, and the actor that handles the message
/// and counts it.
fn credits(weaker: Weaker) {
    weaken(weaker);
    let counts = NativeWords(Arc::new(AtomicU64::new(0)));
    let states = NativeWords(Arc::new(AtomicU64::new(0)));
    let [tail, head, front] = [(); 3].map(|()| LoomWord::zero());
    let bytes = LoomBytes::zeroed(2 * ENTRY_BYTES);
    let mut ring = EntryProducer::<Loom>::new(tail.clone(), head.clone(), front.clone(), bytes.clone())
        .expect("two slots");
    let mut incoming = EntryConsumer::<Loom>::new(tail, head, front, bytes).expect("two slots");
    let (mailbox, filled) = (LoomBytes::zeroed(8), LoomWord::zero());

    let sender = {
        let counts = counts.clone();
        thread::spawn(move || {
            let mut sent = 0;
            for _ in 0..2 {
                // CREDIT acquire, as in `Link::handled`. Each message takes a credit, as in
                // `Link::check_credit`.
                if sent - counts.0.load(Ordering::Acquire) < 1 {
                    ring.push([sent; 8]).expect("there is room for all");
                    ring.publish();
                    sent += 1;
                }
            }
        })
    };
    let actor = {
        let (mailbox, filled) = (mailbox.clone(), filled.clone());
        thread::spawn(move || {
            let mut granted = Granted::new(counts, states);
            if filled.load(Ordering::Acquire) == 1 {
                mailbox.read_word(0);
                granted.one_more(Credit { index: 0, capacity: 1 }, 0);
            }
        })
    };
    let mut taken = 0;
    for _ in 0..2 {
        if let Some(entry) = incoming.pop().expect("the producer is sound") {
            mailbox.write_word(0, entry[0]);
            taken += 1;
            filled.store(taken, Ordering::Release);
        }
    }
    sender.join().expect("it ends");
    actor.join().expect("it ends");
}

#[test]
fn a_message_that_is_counted_has_left_its_place() {
    explore(FOR_CREDITS, || credits(Weaker::Nothing));
}

#[test]
fn credits_need_their_release_and_their_acquire() {
    for weaker in [Weaker::Release, Weaker::Acquire] {
        let failure = failure_of(FOR_CREDITS, move || credits(weaker));
        assert!(failure.contains("Causality violation"), "another failure: {failure}");
    }
}

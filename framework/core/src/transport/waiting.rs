//! Queues of waiting senders, first come first served.
//!
//! One queue per mailbox. A sender that found no credit or room takes a place. Only the front sender may try
//! again, and newcomers queue behind it, so messages of one process to one mailbox keep the order of their
//! sending (MBX-1). A place is given up when its value drops, so a cancelled send holds up no other.
//!
//! `actor/sending.rs` waits here; a link and [`LocalCredits`](super::local_credits::LocalCredits) wake the
//! waiters.
//!
//! **Invariants.** A thread that hands back credit or room checks whether any sender waits. A sender checks
//! once more for what it lacks after it has joined (WAITING). So one of the two sees the other. A queue is
//! counted in one counter at a time.
//!
//! `tests/loom_senders.rs` explores this file.
//!
//! **Locks.** `places`, and no other lock inside it. A waker is called without it.
//!
//! **On a crash** of the receiver the front sender is woken, and finds out. **On cancellation** the next one
//! is woken.

use std::collections::VecDeque;
use std::task::Waker;

use crate::sync::{Arc, AtomicUsize, Mutex, Ordering};

/// The queue of one mailbox. It follows its actor from one life to the next, with all senders that wait in
/// it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// How many senders wait; changed under the lock. Nearly always none does, and each message checks.
    waiting: AtomicUsize,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    /// The number of senders that wait in this queue and in those that it is counted with. Only senders that
    /// were polled count, because only those can be woken.
    counted: Arc<AtomicUsize>,
    /// The stamp that the front sender saw before it last tried.
    seen: u64,
    next: u64,
    waiting: VecDeque<(u64, Option<Waker>)>,
}

/// A place in a queue.
#[derive(Debug)]
pub(crate) struct PlaceInQueue {
    queue: Queue,
    number: u64,
}

impl Queue {
    /// Makes a queue whose waiting senders are counted in `waiting` too, so that a reader need not check each
    /// queue.
    pub(crate) fn counted_in(waiting: &Arc<AtomicUsize>) -> Self {
        let queue = Queue::default();
        queue.count_in(waiting);
        queue
    }

    /// Counts its waiting senders in `waiting` from now on, and nowhere else.
    pub(crate) fn count_in(&self, waiting: &Arc<AtomicUsize>) {
        let mut places = self.0.places.lock();
        let count = places.waiting.iter().filter(|(_, waker)| waker.is_some()).count();
        places.counted.fetch_sub(count, Ordering::Release);
        waiting.fetch_add(count, Ordering::Release);
        places.counted = Arc::clone(waiting);
    }

    /// Returns whether both are the same queue.
    pub(crate) fn is(&self, other: &Queue) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns whether there is no other handle on it. Then no sender waits in it, nor will.
    pub(crate) fn is_unshared(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Returns whether no sender waits.
    pub(crate) fn is_empty(&self) -> bool {
        // WAITING: pairs with `join`. A sender that joined before this call is seen. A sender that joins now
        // checks once more for what it lacks after it has joined, and finds what the caller has published
        // before.
        self.0.waiting.load(Ordering::SeqCst) == 0
    }

    /// Returns whether a sender waits that has been polled. A sender that was never polled may never be.
    pub(crate) fn is_waited_in(&self) -> bool {
        !self.is_empty() && self.0.places.lock().waiting.iter().any(|(_, waker)| waker.is_some())
    }

    /// Takes the last place in the queue.
    pub(crate) fn join(&self) -> PlaceInQueue {
        let mut places = self.0.places.lock();
        let number = places.next;
        places.next += 1;
        places.waiting.push_back((number, None));
        // WAITING: pairs with `is_empty`.
        self.0.waiting.fetch_add(1, Ordering::SeqCst);
        PlaceInQueue { queue: self.clone(), number }
    }

    /// Returns whether something has changed since the front sender last tried.
    pub(crate) fn has_moved(&self, stamp: u64) -> bool {
        self.0.places.lock().seen != stamp
    }

    /// Wakes the front sender because something changed.
    pub(crate) fn wake_front(&self) {
        if self.is_empty() {
            return;
        }
        let waker = self.0.places.lock().waiting.front().and_then(|(_, waker)| waker.clone());
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl PlaceInQueue {
    /// Returns the queue that it is in.
    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Returns whether it is this one's turn to try.
    pub(crate) fn is_front(&self) -> bool {
        self.queue.0.places.lock().waiting.front().is_some_and(|(number, _)| *number == self.number)
    }

    /// Remembers the waker to call when the mailbox has moved from `stamp`, which was read before the last
    /// try.
    pub(crate) fn remember(&self, waker: &Waker, stamp: u64) {
        let mut places = self.queue.0.places.lock();
        if places.waiting.front().is_some_and(|(number, _)| *number == self.number) {
            places.seen = stamp;
        }
        let Places { counted, waiting, .. } = &mut *places;
        if let Some((_, place)) = waiting.iter_mut().find(|(number, _)| *number == self.number) {
            match place {
                Some(known) if known.will_wake(waker) => {}
                Some(known) => known.clone_from(waker),
                None => {
                    *place = Some(waker.clone());
                    // Counted before this sender checks again for what it lacks, and then wakes the reader if
                    // necessary.
                    counted.fetch_add(1, Ordering::Release);
                }
            }
        }
    }
}

impl Drop for PlaceInQueue {
    fn drop(&mut self) {
        let was_front = {
            let mut places = self.queue.0.places.lock();
            let front = places.waiting.front().map(|(number, _)| *number);
            let at = places.waiting.iter().position(|(number, _)| *number == self.number);
            if at.and_then(|at| places.waiting.remove(at)).is_some_and(|(_, waker)| waker.is_some()) {
                places.counted.fetch_sub(1, Ordering::Release);
            }
            self.queue.0.waiting.fetch_sub(1, Ordering::SeqCst);
            front == Some(self.number)
        };
        if was_front {
            self.queue.wake_front();
        }
    }
}

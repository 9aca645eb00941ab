//! Senders of this process that wait for room at the peer: one queue per mailbox there.
//!
//! Senders join a queue here. The directory takes a queue along from an actor's last location. The reader
//! wakes the front sender when something has moved.
//!
//! **Invariants.** Every queue in which a sender waits is either one of these, or a guest, because the reader
//! checks only those. A queue is counted with one link at a time.
//!
//! **Locks.** `guests`, `lacks`, and a queue's own, one after the other; inside `lacks`, the `notices_out` of
//! other links. No sender is woken under any of them.
//!
//! **On a crash** of the peer all senders are woken, and look up where their actor is. **On cancellation** a
//! place is given up.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::Link;
use crate::limits::MAX_ACTORS;
use crate::transport::waiting::Queue;

/// The links of owners, and how much room is needed on each.
type Lacks = SmallVec<[(Weak<Link>, usize); 1]>;

/// See the module.
#[derive(Debug)]
pub(super) struct Senders {
    /// Senders that wait, by the index of the peer's actor.
    queues: Vec<OnceLock<Queue>>,
    /// An upper limit of the indices in use.
    queues_used: AtomicUsize,
    /// Queues of actors that were elsewhere before, with the senders that waited for them to come back.
    guests: Mutex<Vec<(u16, Queue)>>,
    /// The number of senders in all of them.
    waiting: Arc<AtomicUsize>,
    /// Owners on whose rings a sender lacked room for this many forwards.
    lacks: Mutex<Lacks>,
    /// Whether there are any.
    has_lacks: AtomicBool,
}

impl Senders {
    pub(super) fn new() -> Self {
        Senders {
            queues: vec![OnceLock::new(); MAX_ACTORS],
            queues_used: AtomicUsize::new(0),
            guests: Mutex::default(),
            waiting: Arc::default(),
            lacks: Mutex::default(),
            has_lacks: AtomicBool::new(false),
        }
    }
}

impl Link {
    /// Returns the queue of senders to the peer's actor `index`; `None` if the index is out of range.
    pub(crate) fn queue(&self, index: u16) -> Option<&Queue> {
        let queue = self.senders.queues.get(usize::from(index))?;
        Some(queue.get_or_init(|| {
            self.senders.queues_used.fetch_max(usize::from(index) + 1, Ordering::Release);
            Queue::counted_in(&self.senders.waiting)
        }))
    }

    /// Takes in the `queue` of senders that wait for the peer's actor `index`, which was elsewhere before.
    pub(crate) fn take_in(&self, index: u16, queue: &Queue) {
        queue.count_in(&self.senders.waiting);
        let mut guests = self.senders.guests.lock();
        guests.retain(|(_, guest)| !guest.is(queue));
        guests.push((index, queue.clone()));
    }

    /// Removes `queue`, whose senders no longer wait for this link.
    pub(crate) fn let_go(&self, queue: &Queue) {
        self.senders.guests.lock().retain(|(_, guest)| !guest.is(queue));
    }

    /// Returns whether a sender waits for the peer.
    pub(crate) fn has_waiting(&self) -> bool {
        self.senders.waiting.load(Ordering::Acquire) > 0
    }

    /// Notes that a frame to the peer found no room to announce its forwards to `owner`.
    pub(crate) fn lack_forwards(&self, owner: &Arc<Link>, count: usize) {
        let mut lacks = self.senders.lacks.lock();
        let owner = Arc::downgrade(owner);
        match lacks.iter_mut().find(|(known, _)| known.ptr_eq(&owner)) {
            Some((_, least)) => *least = count.min(*least),
            None => lacks.push((owner, count)),
        }
        self.senders.has_lacks.store(true, Ordering::Release);
        self.lack_room();
    }

    /// Returns whether one of those owners has made room, or is gone. Then the waiting senders try again.
    fn found_forwards(&self) -> bool {
        if !self.senders.has_lacks.load(Ordering::Acquire) {
            return false;
        }
        let mut lacks = self.senders.lacks.lock();
        let before = lacks.len();
        lacks.retain(|(owner, count)| {
            owner.upgrade().is_some_and(|owner| !owner.has_room_for_forwards(*count))
        });
        self.senders.has_lacks.store(!lacks.is_empty(), Ordering::Release);
        lacks.len() < before
    }

    /// Wakes the front sender of every queue, whether or not anything has moved here.
    pub(crate) fn wake_all_fronts(&self) {
        let used = self.senders.queues_used.load(Ordering::Acquire);
        self.senders.queues.iter().take(used).filter_map(OnceLock::get).for_each(Queue::wake_front);
    }

    /// Wakes the front sender of every queue whose mailbox has moved since that sender last tried.
    pub(crate) fn wake_senders(&self) {
        if self.found_forwards() {
            self.wake_all_fronts();
        }
        let guests = self.senders.guests.lock().clone();
        // A sender that waits in a queue has made it before.
        let used = self.senders.queues_used.load(Ordering::Acquire);
        for (index, queue) in self.senders.queues.iter().enumerate().take(used) {
            let Some(queue) = queue.get().filter(|queue| !queue.is_empty()) else { continue };
            let index = index as u16; // there are MAX_ACTORS
            if guests.iter().any(|(_, guest)| guest.is(queue)) {
                continue; // its actor lives under another index now
            }
            if queue.has_moved(self.stamp(index)) {
                queue.wake_front();
            }
        }
        for (index, queue) in guests {
            if !queue.is_empty() && queue.has_moved(self.stamp(index)) {
                queue.wake_front();
            }
        }
    }
}

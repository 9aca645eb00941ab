//! Credits: how many of the peer's messages this process's actors are done with.
//!
//! The receiver of messages grants credits: it counts on its half the messages that its actors are done with,
//! and the sender compares that with the messages that it has sent. A message's receipt calls this when it
//! drops, and so does an actor that comes or goes.
//!
//! **Invariants.** The mailbox's own process says on the link how many messages the mailbox takes, and an
//! address has no say in it. So an address that lies about it costs no process a link (WIRE-1). A count is
//! published before a peer is rung for it. A word has one writer, the process that grants (ONE-WRITER). A
//! peer has no more messages in a mailbox than its capacity (MBX-2).
//!
//! **Locks.** One, and no other lock inside it. The reader, which holds a peer to its credits, reads the
//! counts without it. It is taken inside the receiving end's lock, by the reader and when an actor comes.
//!
//! **On a crash** of the peer the counts are of no more use, and go with the link. **On cancellation** of a
//! handler its receipt drops, and counts.

use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::Link;
use super::granted::Granted;
pub(crate) use super::granted::{AWAY, CLOSED, Credit, NOBODY};
use crate::stream::turn;
use crate::transport::pages::LinkMemory;
use crate::transport::ring::NativeWords;

/// The credits granted to the peer. See the module.
#[derive(Debug)]
pub(super) struct Credits {
    granted: Mutex<Granted>,
    /// The words that it writes and no other process can write (ONE-WRITER); reading them takes no lock.
    counts: NativeWords,
    mailbox_states: NativeWords,
}

impl Credits {
    pub(super) fn new(memory: &LinkMemory) -> Self {
        let (counts, mailbox_states) = (memory.credits(), memory.mailbox_states());
        let granted = Mutex::new(Granted::new(counts.clone(), mailbox_states.clone()));
        Credits { granted, counts, mailbox_states }
    }
}

impl Link {
    /// Counts the peer's message with this credit as done with. Returns whether to wake the peer for it, if
    /// it waits; false while it has most of the mailbox under way (see [`wake_reasons`]).
    pub(crate) fn hand_back(&self, credit: Credit) -> bool {
        self.credits.granted.lock().one_more(credit, turn::about_now())
    }

    /// Returns how many messages of the peer this process's actor `index` is done with.
    pub(crate) fn handed_back(&self, index: u16) -> u64 {
        let Credits { granted, counts, mailbox_states } = &self.credits;
        // While the mailbox is open the word is the count (`Granted`). If the mailbox is being closed at this
        // moment, the word is the count of a moment before. The word never goes back, and an honest sender
        // saw it before it wrote the frame that is checked here. This thread sees a value at least as high,
        // so no such sender is found beyond its credits. While the mailbox is not open, or is paused, only
        // the state under the lock is right.
        match mailbox_states.load(index.into(), Ordering::Acquire) {
            Some(state) if !matches!(state, CLOSED | AWAY | NOBODY) => {
                counts.load(index.into(), Ordering::Acquire).unwrap_or(CLOSED)
            }
            _ => granted.lock().count(index).unwrap_or(CLOSED),
        }
    }

    /// Opens the mailbox of an actor that has come to the location `index`, which takes this many messages of
    /// the peer at a time. This process, which holds the peer to the number, announces it here, because
    /// anybody may have written the number in an address (WIRE-1).
    pub(crate) fn open_mailbox(&self, index: u16, capacity: u32) {
        // If another actor was there before, the credits continue at the number of messages taken. No frame
        // for the location is taken during this call: a late one that was counted before is done with, and a
        // later one gets its credit back by itself (MBX-2).
        let inbound = self.inbound();
        let received = inbound.as_ref().and_then(|inbound| inbound.received.get(usize::from(index)));
        self.open_mailbox_at(index, capacity, received.copied().unwrap_or(0));
    }

    /// Does the same as [`open_mailbox`](Self::open_mailbox), for the reader, which knows how many messages
    /// it has `received` for the place.
    pub(crate) fn open_mailbox_at(&self, index: u16, capacity: u32, received: u64) {
        self.credits.granted.lock().open(index, capacity, received);
    }

    /// Pauses this process's actor `index`, so that its senders look up where it is. Messages on their way
    /// are taken, and counted.
    #[cfg(feature = "hosts")]
    pub(crate) fn pause(&self, index: u16) {
        self.credits.granted.lock().pause(index);
    }

    /// Closes the mailbox of this process's actor `index`. If the actor is `away`, its senders wait for its
    /// next life.
    pub(crate) fn close(&self, index: u16, away: bool) {
        self.credits.granted.lock().close(index, if away { AWAY } else { CLOSED });
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::testing::Cluster;

    /// MBX-2: no credit is lost, and there is none too many.
    #[test]
    fn late_frames_keep_their_credits_while_an_actor_comes() {
        let cluster = Cluster::new(2);
        cluster.connect();
        let link = cluster.transport(0).link(cluster.process(1)).expect("connected");
        let (index, frames) = (7, 2_000_000);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Does what the reader does with a frame for an actor that is not there.
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let mut inbound = link.inbound();
                    inbound.as_mut().expect("connected").received[usize::from(index)] += 1;
                    link.hand_back(Credit { index, capacity: 0 });
                }
            });
            let differs = loop {
                link.close(index, false);
                link.open_mailbox(index, 4);
                let inbound = link.inbound();
                let received = inbound.as_ref().expect("connected").received[usize::from(index)];
                let back = link.handed_back(index);
                if received != back || received >= frames {
                    break (received != back).then_some((received, back));
                }
            };
            over.store(true, Ordering::Relaxed);
            assert_eq!(differs, None, "frames that were taken, and credits that were given back");
        });
    }

    /// The word and the count under the lock agree in every state of a mailbox, also when a message is done
    /// with in it.
    #[test]
    fn what_is_looked_at_without_the_lock_is_what_the_lock_says() {
        let cluster = Cluster::new(2);
        cluster.connect();
        let link = cluster.transport(0).link(cluster.process(1)).expect("connected");
        let (index, capacity) = (7, 4);
        let one_more = |link: &Link| _ = link.hand_back(Credit { index, capacity });
        let look = |link: &Link| {
            let locked = link.credits.granted.lock().count(index);
            assert_eq!(Some(link.handed_back(index)), locked);
            link.handed_back(index)
        };
        assert_eq!(look(&link), 0, "nobody was there");
        link.open_mailbox(index, capacity);
        one_more(&link);
        assert_eq!(look(&link), 1);
        #[cfg(feature = "hosts")]
        {
            link.pause(index);
            one_more(&link);
            assert_eq!(look(&link), 2, "what is on its way is counted");
            link.open_mailbox(index, capacity);
            assert_eq!(look(&link), 2);
        }
        link.close(index, true);
        one_more(&link);
        assert_eq!(look(&link), AWAY);
        link.close(index, false);
        assert_eq!(look(&link), CLOSED);
        link.open_mailbox_at(index, capacity, 9);
        assert_eq!(look(&link), 9);
        one_more(&link);
        assert_eq!(look(&link), 10);
    }
}

//! Credits: how many of the peer's messages this process's actors are done with.
//!
//! The receiver of messages grants: it counts on its half what its actors are done with, and the sender
//! compares that with what it has sent. Used when a message's receipt drops, and when an actor comes or goes.
//!
//! **Invariants.** How many messages a mailbox takes is what its own process says on the link, and not what
//! an address says: so an address that lies about it costs nobody a link (WIRE-1). A count is published
//! before anybody is rung for it. A word has one writer, the process that grants (ONE-WRITER). A peer has no
//! more messages in a mailbox than its capacity (MBX-2).
//!
//! **Locks.** One, and nothing inside of it; the reader, which holds a peer to its credits, looks without it.
//! It is taken inside of the receiving end's, by the reader and where an actor comes.
//!
//! **On a crash** of the peer the counts are of no use to anybody, and go with the link. **On cancellation**
//! of a handler its receipt drops, and counts.

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
    /// The words that it writes, which nobody else can (ONE-WRITER): to look at them takes no lock.
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
    /// The message of the peer that has this credit is done with. Whether the peer is to be woken for it, if
    /// it waits: not while it has most of the mailbox under way (see [`wake_reasons`]).
    pub(crate) fn hand_back(&self, credit: Credit) -> bool {
        self.credits.granted.lock().one_more(credit, turn::about_now())
    }

    /// Returns how many messages of the peer this process's actor `index` is done with.
    pub(crate) fn handed_back(&self, index: u16) -> u64 {
        let Credits { granted, counts, mailbox_states } = &self.credits;
        // While the mailbox is open the word is the count (`Granted`), also where the mailbox is closed just
        // now: then the count is that of a moment before. The word never goes back, and a sender that keeps
        // to it saw it before it wrote the frame for which this looks: what is seen here is as high, so no
        // such sender is found beyond its credits. What holds while the mailbox is not open, and what a pause
        // is, the lock knows.
        match mailbox_states.load(index.into(), Ordering::Acquire) {
            Some(state) if !matches!(state, CLOSED | AWAY | NOBODY) => {
                counts.load(index.into(), Ordering::Acquire).unwrap_or(CLOSED)
            }
            _ => granted.lock().count(index).unwrap_or(CLOSED),
        }
    }

    /// An actor has come to the location `index`, and takes so many messages of the peer at a time. That is
    /// said here, by the one who holds the peer to it: what an address says of it was written by anybody
    /// (WIRE-1).
    pub(crate) fn open_mailbox(&self, index: u16, capacity: u32) {
        // Where one was before, its credits go on where the messages taken stand. No frame for the place is
        // taken meanwhile: a late one that was counted before is done with, and one that comes behind gets
        // its credit back by itself (MBX-2).
        let inbound = self.inbound();
        let received = inbound.as_ref().and_then(|inbound| inbound.received.get(usize::from(index)));
        self.open_mailbox_at(index, capacity, received.copied().unwrap_or(0));
    }

    /// Does the same as [`open_mailbox`](Self::open_mailbox), for the reader, which knows how many messages
    /// it has `received` for the place.
    pub(crate) fn open_mailbox_at(&self, index: u16, capacity: u32, received: u64) {
        self.credits.granted.lock().open(index, capacity, received);
    }

    /// This process's actor `index` takes none for now: its senders look where it is. What is on its way is
    /// taken, and counted.
    #[cfg(feature = "hosts")]
    pub(crate) fn pause(&self, index: u16) {
        self.credits.granted.lock().pause(index);
    }

    /// No more messages for this process's actor `index`; where it is `away`, its senders wait for its next
    /// life.
    pub(crate) fn close(&self, index: u16, away: bool) {
        self.credits.granted.lock().close(index, if away { AWAY } else { CLOSED });
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::testing::Cluster;

    /// MBX-2: none is lost, and there is none too many.
    #[test]
    fn late_frames_keep_their_credits_while_an_actor_comes() {
        let cluster = Cluster::new(2);
        cluster.connect();
        let link = cluster.transport(0).link(cluster.process(1)).expect("connected");
        let (index, frames) = (7, 2_000_000);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // As the reader does with a frame for an actor that is not there.
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

    /// In every state of a mailbox, and where a message is done with in it.
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

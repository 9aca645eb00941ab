//! A link: everything between this process and one peer.
//!
//! **Made** on first use by either side, in three link messages through the node: each sends its half (a descriptor of
//! what it writes), and acknowledges the other's when it has mapped it. A process sends frames and posts holds only
//! over a link whose acknowledgement it has: only then is what it writes seen by a peer that drains its rings
//! (LEASE-3).
//!
//! **Locks**, in the order in which they may nest: `out`, `returns_out`; `returns_in`; a pool's own. Nothing of the
//! user's runs under any of them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::connect::BadHalf;
use super::pages::{LinkMemory, WakePage};
use super::waiting::Queue;
use super::wake_reasons;
use crate::clock::turn;
use crate::ids::ProcessId;
use crate::lease::{Lease, LeaseId};
use crate::limits::MAX_ACTORS;
use crate::message::codec::Encoded;
use crate::message::wire::Header;
use crate::os::{Bell, Ear, Ears, monotonic_ns};
use crate::transport::doorbell::Ringer;
use crate::transport::ring::{
    Consumer, EntryConsumer, EntryProducer, NativeWord, NativeWords, Producer, Word,
};

/// In a mailbox-state word: the actor is gone, or never was.
pub(crate) const CLOSED: u64 = u64::MAX;

/// In a mailbox-state word: the actor failed and is started anew, somewhere.
pub(crate) const AWAY: u64 = u64::MAX - 1;

/// This process's side of a link.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: ProcessId,
    /// What this process writes for the peer.
    memory: LinkMemory,
    /// What the peer rings here.
    _ear: Ear,
    /// The peer's end of it, until it is sent.
    bell: Mutex<Option<Bell>>,
    /// What the peer writes for this process, once it came.
    half: OnceLock<Half>,
    /// The peer has mapped `memory`.
    acknowledged: AtomicBool,
    /// The peer broke the protocol or ended; nothing is sent or read any more.
    broken: AtomicBool,
    /// The peer has ended; what it had posted is still read.
    exited: AtomicBool,
    /// And what waited for it was told.
    pub(crate) given_up: AtomicBool,
    pub(crate) out: Mutex<Option<Outbound>>,
    pub(crate) returns_out: Mutex<Option<EntryProducer>>,
    pub(crate) inbound: Mutex<Option<Inbound>>,
    pub(crate) returns_in: Mutex<Option<EntryConsumer>>,
    /// Senders that wait, by the index of the peer's actor.
    queues: Vec<OnceLock<Queue>>,
    /// How many of them there may be.
    queues_used: AtomicUsize,
    /// Queues of actors that were elsewhere before, with those who waited for them to come back.
    guests: Mutex<Vec<(u16, Queue)>>,
    /// Senders in all of them.
    waiting: Arc<AtomicUsize>,
    /// The credits granted.
    handled: Mutex<Granted>,
    /// Leases on this process's memory that the peer was granted.
    pub(crate) granted: AtomicUsize,
    /// Those that it took because others forwarded them to it. They leave room for what it is granted.
    pub(crate) forwarded: AtomicUsize,
    /// Leases on the peer's memory that this process holds.
    pub(crate) held: AtomicUsize,
    /// Leases that the peer has given back.
    pub(crate) released: AtomicU64,
    /// What was committed and is not published yet, see [`wake_reasons`].
    pub(crate) due: AtomicU8,
    /// What was published and not rung for.
    deferred: AtomicU8,
    /// A frame found no room in the ring, or no lease to be had, once: senders that wait may lack that.
    pub(crate) lacks_room: AtomicBool,
    /// How often the peer's doorbell was rung.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) rung: AtomicU64,
    /// A frame of the peer lies unread until something comes that it needs.
    pub(crate) stuck: AtomicBool,
    /// Something is left to do for the reader of which no word of the peer's will tell: frames that it did not take yet.
    pub(super) unfinished: AtomicBool,
    /// Replies wait in the outbox.
    pub(super) backlog: AtomicBool,
    /// Frames with leases of others are under way, and those are to be let go once the peer has passed them.
    pub(super) forwards: AtomicBool,
    /// What the peer moves: the tails of its two rings, and its head in the data ring to it. There once all is connected.
    cursors: OnceLock<[NativeWord; 3]>,
    /// They as the reader last found them.
    looked_at: [AtomicU64; 3],
}

#[derive(Debug)]
struct Half {
    credits: NativeWords,
    mailbox_states: NativeWords,
    wants: NativeWord,
    bell: Bell,
    ringer: Mutex<Ringer>,
}

/// A credit that a message has: it goes back when the message is done with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credit {
    /// Of the actor.
    pub(crate) index: u16,
    /// Of its mailbox, per sending process.
    pub(crate) capacity: u32,
}

/// Messages of the peer that this process's actors are done with, by index.
#[derive(Debug)]
struct Granted {
    actors: Vec<Handled>,
    credits: NativeWords,
    mailbox_states: NativeWords,
}

/// The credits of one of this process's actors.
#[derive(Clone, Copy, Debug)]
struct Handled {
    /// Messages that it is done with; [`CLOSED`] or [`AWAY`] where there will be no more.
    count: u64,
    /// Those of them that the peer was told of, at least; and when.
    told: u64,
    /// Nanoseconds on the monotonic clock.
    told_at: u64,
}

impl Granted {
    fn new(credits: NativeWords, mailbox_states: NativeWords) -> Self {
        let none = Handled { count: 0, told: 0, told_at: monotonic_ns() };
        Granted { actors: vec![none; MAX_ACTORS], credits, mailbox_states }
    }

    fn count(&self, index: u16) -> Option<u64> {
        self.actors.get(usize::from(index)).map(|handled| handled.count)
    }

    fn set(&mut self, index: u16, count: u64) {
        let index = usize::from(index);
        let Some(handled) = self.actors.get_mut(index) else { return };
        (handled.count, handled.told) = (count, count);
        // CREDIT release, all: pair with `Link::handled` and `Link::mailbox_state`.
        if count < AWAY {
            self.credits.store(index, count, Ordering::Release);
            self.mailbox_states.store(index, 0, Ordering::Release);
        } else {
            self.mailbox_states.store(index, count, Ordering::Release);
        }
    }

    /// One more is done with; whether the peer is to be woken for it. The last two of the three ends of the delay in
    /// [`wake_reasons`] are others' to see to.
    fn one_more(&mut self, credit: Credit, now: u64) -> bool {
        let index = usize::from(credit.index);
        let Some(handled) = self.actors.get_mut(index).filter(|handled| handled.count < AWAY) else {
            return false;
        };
        handled.count += 1;
        // CREDIT release: pairs with `Link::handled`.
        self.credits.store(index, handled.count, Ordering::Release);
        let tell = credit.capacity < wake_reasons::LEAST_GATHERED
            || handled.count - handled.told >= u64::from(credit.capacity / 2)
            || now.saturating_sub(handled.told_at) >= wake_reasons::TELL_EVERY.as_nanos() as u64;
        if tell {
            (handled.told, handled.told_at) = (handled.count, now);
        }
        tell
    }
}

/// The sending end of the data ring, with what it must remember.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) ring: Producer,
    /// Bytes promised to frames that are not in the ring yet.
    pub(crate) claimed: usize,
    /// Messages sent or promised, by the index of the peer's actor.
    pub(crate) sent: Vec<u64>,
    /// Of them, those that it is done with, as far as it was looked.
    pub(crate) handled: Vec<u64>,
    /// Frames with leases that the peer has not passed yet.
    pub(crate) in_flight: VecDeque<InFlight>,
    /// How many of them keep leases of others.
    pub(crate) forwards: usize,
    /// Replies that found no room. Each still has the credit of its ask, so there are no more than the peer may ask
    /// (MBX-2).
    pub(crate) outbox: VecDeque<(Header, Encoded, Option<Credit>)>,
    pub(crate) head: Vec<u8>,
    /// What a test does to the next frame.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) tamper: Option<crate::testing::forge::Tamper>,
}

/// The leases of a frame on its way.
#[derive(Debug)]
pub(crate) struct InFlight {
    /// The position at which the peer has passed it.
    pub(crate) end: u64,
    /// Grants on this process's memory, to take back should the peer reject the frame.
    pub(crate) granted: SmallVec<[LeaseId; 2]>,
    /// Leases on others' memory, kept until the peer has posted its own hold (LEASE-3).
    pub(crate) kept: SmallVec<[Lease; 2]>,
}

/// The receiving end of the data ring.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) data: Consumer,
    /// Where the frame that is being taken ends.
    pub(crate) taking: u64,
    /// Messages taken, by the index of this process's actor.
    pub(crate) received: Vec<u64>,
}

impl Link {
    pub(crate) fn new(peer: ProcessId, ears: &Ears) -> io::Result<Self> {
        let (ear, bell) = ears.doorbell()?;
        let memory = LinkMemory::create()?;
        let handled = Granted::new(memory.credits(), memory.mailbox_states());
        Ok(Link {
            peer,
            memory,
            _ear: ear,
            bell: Mutex::new(Some(bell)),
            half: OnceLock::new(),
            acknowledged: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            exited: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            out: Mutex::new(None),
            returns_out: Mutex::new(None),
            inbound: Mutex::new(None),
            returns_in: Mutex::new(None),
            queues: vec![OnceLock::new(); MAX_ACTORS],
            queues_used: AtomicUsize::new(0),
            guests: Mutex::default(),
            waiting: Arc::default(),
            handled: Mutex::new(handled),
            granted: AtomicUsize::new(0),
            forwarded: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            released: AtomicU64::new(0),
            due: AtomicU8::new(0),
            deferred: AtomicU8::new(0),
            lacks_room: AtomicBool::new(false),
            #[cfg(any(test, feature = "testing"))]
            rung: AtomicU64::new(0),
            stuck: AtomicBool::new(false),
            unfinished: AtomicBool::new(false),
            backlog: AtomicBool::new(false),
            forwards: AtomicBool::new(false),
            cursors: OnceLock::new(),
            looked_at: Default::default(),
        })
    }

    /// A descriptor of this process's half.
    pub(crate) fn export(&self) -> io::Result<OwnedFd> {
        self.memory.export()
    }

    /// The descriptor with which the peer rings here. There once: the peer alone has it.
    pub(crate) fn take_bell(&self) -> Option<OwnedFd> {
        self.bell.lock().take().map(OwnedFd::from)
    }

    /// Connects the peer's half.
    pub(crate) fn connect(&self, wake_page: OwnedFd, memory: OwnedFd, bell: OwnedFd) -> Result<(), BadHalf> {
        let wake_page = WakePage::open(wake_page)?;
        let memory = LinkMemory::open(memory)?;
        let half = Half {
            credits: memory.credits(),
            mailbox_states: memory.mailbox_states(),
            wants: wake_page.wants(),
            bell: Bell::from_fd(bell)?,
            ringer: Mutex::new(Ringer::new(wake_page.sleep())),
        };
        if self.half.set(half).is_err() {
            return Err(BadHalf::Twice);
        }
        let (data_head, return_head) = memory.heads();
        let (own_data_head, own_return_head) = self.memory.heads();
        let (tail, bytes) = self.memory.data();
        *self.out.lock() = Some(Outbound {
            ring: Producer::new(tail, data_head, bytes)?,
            claimed: 0,
            sent: vec![0; MAX_ACTORS],
            handled: vec![0; MAX_ACTORS],
            in_flight: VecDeque::new(),
            forwards: 0,
            outbox: VecDeque::new(),
            head: Vec::new(),
            #[cfg(any(test, feature = "testing"))]
            tamper: None,
        });
        let (tail, bytes) = self.memory.returns();
        *self.returns_out.lock() = Some(EntryProducer::new(tail, return_head, bytes)?);
        let (tail, bytes) = memory.data();
        let data = Consumer::new(tail, own_data_head, bytes)?;
        *self.inbound.lock() = Some(Inbound { data, taking: 0, received: vec![0; MAX_ACTORS] });
        let (tail, bytes) = memory.returns();
        *self.returns_in.lock() = Some(EntryConsumer::new(tail, own_return_head, bytes)?);
        // Last: who finds a cursor moved reads what it tells of.
        let _ = self.cursors.set([memory.data().0, memory.returns().0, memory.heads().0]);
        Ok(())
    }

    pub(crate) fn acknowledge(&self) {
        self.acknowledged.store(true, Ordering::Release);
    }

    /// Whether frames and holds can go out.
    pub(crate) fn is_open(&self) -> bool {
        self.half.get().is_some()
            && self.acknowledged.load(Ordering::Acquire)
            && !self.is_broken()
            && !self.has_exited()
    }

    /// Whether the peer's half is here.
    pub(super) fn is_connected(&self) -> bool {
        self.half.get().is_some()
    }

    /// The peer has ended: nothing is sent to it any more.
    pub(crate) fn end(&self) {
        self.exited.store(true, Ordering::Release);
    }

    pub(crate) fn has_exited(&self) -> bool {
        self.exited.load(Ordering::Acquire)
    }

    /// Whether everything that the peer had posted was read.
    pub(crate) fn is_drained(&self) -> bool {
        self.inbound.lock().as_mut().is_none_or(|inbound| inbound.data.is_empty().unwrap_or(true))
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    pub(crate) fn break_off(&self) {
        self.broken.store(true, Ordering::Release);
    }

    /// How many messages to its actor `index` the peer is done with.
    pub(crate) fn handled(&self, index: u16) -> u64 {
        // CREDIT acquire: pairs with `hand_back`.
        let load = |half: &Half| half.credits.load(usize::from(index), Ordering::Acquire);
        self.half.get().and_then(load).unwrap_or(0)
    }

    /// [`CLOSED`] when the peer has no actor `index`, [`AWAY`] when it is started anew, or else another number.
    pub(crate) fn mailbox_state(&self, index: u16) -> u64 {
        // CREDIT acquire: pairs with `close` and `reopen`.
        let load = |half: &Half| half.mailbox_states.load(usize::from(index), Ordering::Acquire);
        self.half.get().and_then(load).unwrap_or(0)
    }

    /// The message of the peer that has this credit is done with. Whether the peer is to be woken for it, if it waits: not
    /// while it has most of the mailbox under way (see [`wake_reasons`]).
    pub(crate) fn hand_back(&self, credit: Credit) -> bool {
        self.handled.lock().one_more(credit, turn::about_now())
    }

    /// How many messages of the peer this process's actor `index` is done with.
    pub(crate) fn handed_back(&self, index: u16) -> u64 {
        self.handled.lock().count(index).unwrap_or(CLOSED)
    }

    /// Another actor has come to the location `index`: the credits go on where the messages taken stand.
    pub(crate) fn reopen(&self, index: u16) {
        let received = self
            .inbound
            .lock()
            .as_ref()
            .and_then(|inbound| inbound.received.get(usize::from(index)).copied());
        let mut handled = self.handled.lock();
        if handled.count(index).is_some_and(|count| count >= AWAY) {
            // Those of the last actor are done with: they were handled, or dropped when it stopped.
            handled.set(index, received.unwrap_or(0));
        }
    }

    /// No more messages for this process's actor `index`; where it is `away`, its senders wait for its next life.
    pub(crate) fn close(&self, index: u16, away: bool) {
        self.handled.lock().set(index, if away { AWAY } else { CLOSED });
    }

    /// Rings the peer's doorbell if it sleeps: for frames always, for other [reasons](wake_reasons) only if
    /// it wants to know of such.
    pub(crate) fn ring(&self, what: u8) {
        let Some(half) = self.half.get() else { return };
        if what & wake_reasons::FRAMES == 0 {
            // WANTS: pairs with the fence in the reader's `Sleeper::prepare`, which comes after it has written the word.
            fence(Ordering::SeqCst);
            if half.wants.load(Ordering::Relaxed) & u64::from(what) == 0 {
                return;
            }
        }
        // One ring for both. Acquire: what was published with a deferred wake-up, by whichever thread, comes before the
        // fence in `should_ring`.
        if self.deferred.load(Ordering::Relaxed) != 0 {
            self.deferred.swap(0, Ordering::AcqRel);
        }
        if !half.ringer.lock().should_ring() {
            return;
        }
        #[cfg(any(test, feature = "testing"))]
        self.rung.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = half.bell.ring() {
            tracing::warn!(peer = %self.peer, %error, "a doorbell could not be rung");
        }
    }

    /// Something was published that the peer is not woken for now.
    pub(super) fn defer_wakeup(&self, what: u8) {
        // After it was published: pairs with the swaps in `ring` and `ring_deferred`.
        self.deferred.fetch_or(what, Ordering::AcqRel);
    }

    /// Rings for what the peer was not woken for.
    pub(super) fn ring_deferred(&self) {
        let what = self.deferred.swap(0, Ordering::AcqRel);
        if what != 0 {
            self.ring(what);
        }
    }

    /// The queue of senders to the peer's actor `index`; `None` for an actor that there cannot be.
    pub(crate) fn queue(&self, index: u16) -> Option<&Queue> {
        let queue = self.queues.get(usize::from(index))?;
        Some(queue.get_or_init(|| {
            self.queues_used.fetch_max(usize::from(index) + 1, Ordering::Release);
            Queue::counted_in(&self.waiting)
        }))
    }

    /// The peer's actor `index` was elsewhere before, and those who wait for it are in `queue`.
    pub(crate) fn take_in(&self, index: u16, queue: &Queue) {
        queue.count_in(&self.waiting);
        let mut guests = self.guests.lock();
        guests.retain(|(_, guest)| !guest.is(queue));
        guests.push((index, queue.clone()));
    }

    /// Whether there is more for the reader to do than to look at this again: the peer has moved a cursor since the last
    /// time that this was asked, or something is left over. For the reader alone, which then does all of it.
    ///
    /// Its head in the data ring counts only if `heads` or where a frame waits for it: each look takes the cache line away
    /// from the peer, which moves it with every batch of frames.
    pub(super) fn has_moved(&self, heads: bool) -> bool {
        let Some(cursors) = self.cursors.get() else { return false };
        let mut moved = self.stuck.load(Ordering::Relaxed) || self.backlog.load(Ordering::Acquire);
        moved |= self.unfinished.load(Ordering::Relaxed);
        let heads = heads || self.forwards.load(Ordering::Acquire);
        let count = if heads { cursors.len() } else { cursors.len() - 1 };
        for (cursor, looked_at) in cursors.iter().zip(&self.looked_at).take(count) {
            // Before anything is read: what comes later moves it once more. Acquire as in the rings, though each looks again.
            let at = cursor.load(Ordering::Acquire);
            if at != looked_at.load(Ordering::Relaxed) {
                looked_at.store(at, Ordering::Relaxed);
                moved = true;
            }
        }
        moved
    }

    /// Whether a sender waits for the peer.
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Whether a frame lies unread, or something waits to go out.
    pub(crate) fn is_busy(&self) -> bool {
        // Who holds the lock is taking frames just now.
        let unread = self.inbound.try_lock().is_none_or(|mut inbound| {
            inbound.as_mut().is_some_and(|inbound| !inbound.data.is_empty().unwrap_or(true))
        });
        unread || self.has_waiting() || self.out.lock().as_ref().is_some_and(|out| !out.outbox.is_empty())
    }

    /// A number that changes whenever a sender to the peer's actor `index` might find what it lacked.
    pub(crate) fn stamp(&self, index: u16) -> u64 {
        let head = self.out.lock().as_mut().and_then(|out| out.ring.consumed().ok()).unwrap_or(0);
        let opened = u64::from(self.is_open()) + 2 * u64::from(self.is_broken());
        // Its last two bits are all that it says, and where they go no count comes.
        let mailbox_state = self.mailbox_state(index) << 62;
        self.handled(index)
            .wrapping_add(mailbox_state)
            .wrapping_add(head)
            .wrapping_add(self.released.load(Ordering::Relaxed))
            .wrapping_add(opened)
    }

    /// Tells the sender in front of every queue, whether or not anything has moved here.
    pub(crate) fn wake_all_fronts(&self) {
        let used = self.queues_used.load(Ordering::Acquire);
        self.queues.iter().take(used).filter_map(OnceLock::get).for_each(Queue::wake_front);
    }

    /// Tells the sender in front of every queue whose mailbox has moved since it last tried.
    pub(crate) fn wake_senders(&self) {
        let guests = self.guests.lock().clone();
        // Who waits in one has made it before.
        let used = self.queues_used.load(Ordering::Acquire);
        for (index, queue) in self.queues.iter().enumerate().take(used) {
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

#[cfg(test)]
mod tests;

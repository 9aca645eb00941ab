//! A link: everything between this process and one peer.
//!
//! **Made** on first use by either side, in three letters through the node: each sends its half (a descriptor of what it
//! writes), and acknowledges the other's when it has mapped it. A process sends frames and posts holds only over a link
//! whose acknowledgement it has: only then is what it writes seen by a peer that drains its rings (LEASE-3).
//!
//! **Locks**, in the order in which they may nest: `out`, `returns_out`; `returns_in`; a pool's own. Nothing of the
//! user's runs under any of them.

mod connection;
mod credits;
mod senders;

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;

use self::connection::Connection;
use self::credits::Credits;
pub(crate) use self::credits::{AWAY, CLOSED, Credit};
use self::senders::Senders;
use super::connect::BadHalf;
use super::pages::{LinkMemory, MailPage};
use crate::ids::ProcessId;
use crate::lease::{Lease, LeaseId};
use crate::limits::MAX_ACTORS;
use crate::mailbox::ring::{Consumer, EntryConsumer, EntryProducer, NativeWord, Producer, Word};
use crate::message::codec::Encoded;
use crate::message::wire::Header;
use crate::os::Ears;

/// This process's side of a link.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: ProcessId,
    /// Both halves, and whether they are connected.
    connection: Connection,
    pub(crate) out: Mutex<Option<Outbound>>,
    pub(crate) returns_out: Mutex<Option<EntryProducer>>,
    pub(crate) inbound: Mutex<Option<Inbound>>,
    pub(crate) returns_in: Mutex<Option<EntryConsumer>>,
    /// Senders of this process that wait for room at the peer.
    senders: Senders,
    /// The credits granted to the peer.
    credits: Credits,
    /// Leases on this process's memory that the peer was granted.
    pub(crate) granted: AtomicUsize,
    /// Those that it took because others forwarded them to it. They leave room for what it is granted.
    pub(crate) forwarded: AtomicUsize,
    /// Leases on the peer's memory that this process holds.
    pub(crate) held: AtomicUsize,
    /// Leases that the peer has given back.
    pub(crate) released: AtomicU64,
    /// What was committed and is not published yet, see [`news`].
    pub(crate) due: AtomicU8,
    /// A frame found no room in the ring, or no lease to be had, once: senders that wait may lack that.
    pub(crate) lacks_room: AtomicBool,
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
        let connection = Connection::new(ears)?;
        let credits = Credits::new(&connection.memory);
        Ok(Link {
            peer,
            connection,
            out: Mutex::new(None),
            returns_out: Mutex::new(None),
            inbound: Mutex::new(None),
            returns_in: Mutex::new(None),
            senders: Senders::new(),
            credits,
            granted: AtomicUsize::new(0),
            forwarded: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            released: AtomicU64::new(0),
            due: AtomicU8::new(0),
            lacks_room: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
            unfinished: AtomicBool::new(false),
            backlog: AtomicBool::new(false),
            forwards: AtomicBool::new(false),
            cursors: OnceLock::new(),
            looked_at: Default::default(),
        })
    }

    /// Connects the peer's half.
    pub(crate) fn connect(&self, mail: OwnedFd, memory: OwnedFd, bell: OwnedFd) -> Result<(), BadHalf> {
        let mail = MailPage::open(mail)?;
        let memory = LinkMemory::open(memory)?;
        self.connection.take_half(&mail, &memory, bell)?;
        let (data_head, return_head) = memory.heads();
        let (own_data_head, own_return_head) = self.connection.memory.heads();
        let (tail, bytes) = self.connection.memory.data();
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
        let (tail, bytes) = self.connection.memory.returns();
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

    /// Whether everything that the peer had posted was read.
    pub(crate) fn is_drained(&self) -> bool {
        self.inbound.lock().as_mut().is_none_or(|inbound| inbound.data.is_empty().unwrap_or(true))
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

    /// Whether a frame lies unread, or something waits to go out.
    pub(crate) fn is_busy(&self) -> bool {
        // Who holds the lock is taking frames just now.
        let unread = self.inbound.try_lock().is_none_or(|mut inbound| {
            inbound.as_mut().is_some_and(|inbound| !inbound.data.is_empty().unwrap_or(true))
        });
        unread || self.has_waiting() || self.out.lock().as_ref().is_some_and(|out| !out.outbox.is_empty())
    }

    /// Leases on this process's memory that the peer was granted.
    pub(crate) fn granted(&self) -> usize {
        self.granted.load(Ordering::Relaxed)
    }

    /// A number that changes whenever a sender to the peer's actor `index` might find what it lacked.
    pub(crate) fn stamp(&self, index: u16) -> u64 {
        let head = self.out.lock().as_mut().and_then(|out| out.ring.consumed().ok()).unwrap_or(0);
        let opened = u64::from(self.is_open()) + 2 * u64::from(self.is_broken());
        // Its last two bits are all that it says, and where they go no count comes.
        let standing = self.standing(index) << 62;
        self.handled(index)
            .wrapping_add(standing)
            .wrapping_add(head)
            .wrapping_add(self.released.load(Ordering::Relaxed))
            .wrapping_add(opened)
    }
}

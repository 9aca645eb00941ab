//! A link: everything between this process and one peer.
//!
//! **Made** on first use by either side, in two link messages through the node. Each side sends its half (a
//! descriptor of the memory that it writes), and says in it which half of the other's it has mapped. A
//! process sends frames and posts holds only over a link whose peer has said that. Only then does a peer that
//! drains its rings see the notices (LEASE-3). A process that cannot take a half does not say so, and refuses
//! it. A link of which one half was refused has never been open on either side; both sides remove it, and the
//! next use makes another.
//!
//! A link has parts, each with its state and its locks in its file:
//!
//! | part | owns |
//! |---|---|
//! | `connection` | both halves, whether they are connected, the peer's doorbell |
//! | `sender` | the data ring out: claims, frames under way, replies that wait for room |
//! | `receiver` | the data ring in, and the last values of the peer's words that the reader has seen |
//! | `leases` | both return rings, and how many leases each side has of the other's memory |
//! | `credits` | the counts of messages that this process's actors are done with |
//! | `senders` | the senders here that wait for room there |
//! | `renewal` | fresh memory for idle rings, to the peer and from it |
//!
//! **Locks**, in the order in which they may nest: `inbound` (receiver); `notices_in` (leases); then, none of
//! them inside another, `out` (sender), `notices_out` (leases), credits, `guests` (senders), the two of
//! renewal, and a pool's own. User code runs under none of them but `inbound`, under which messages are
//! decoded. The lock of the refusals is a leaf.
//!
//! **On a crash** of the peer see `endings`. **On cancellation** of a send its claim gives everything back.

mod connection;
mod credits;
mod due;
mod granted;
#[cfg(test)]
mod granted_tests;
mod leases;
mod receiver;
mod refusals;
mod renewal;
mod sender;
mod senders;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use self::connection::Connection;
use self::credits::Credits;
pub(crate) use self::credits::{AWAY, CLOSED, Credit, NOBODY};
pub(crate) use self::leases::Forwards;
use self::leases::Leases;
pub(crate) use self::receiver::Inbound;
use self::receiver::ReceiverSide;
pub(super) use self::refusals::Fault;
use self::refusals::Refusals;
use self::renewal::Renewal;
pub(crate) use self::renewal::RingUse;
use self::sender::SenderSide;
pub(crate) use self::sender::{Claim, Draft, claimed_bytes, wants_credit};
use self::senders::Senders;
use super::bad_half::BadHalf;
use super::pages::{LinkMemory, RingMemory, WakePage};
use crate::ids::ProcessId;
use crate::os::Ears;
use crate::transport::ring::{Consumer, EntryConsumer, EntryProducer, Producer};

/// This process's side of a link.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: ProcessId,
    /// Both halves, and whether they are connected.
    connection: Connection,
    /// The data ring out.
    sender: SenderSide,
    /// The data ring in.
    receiver: ReceiverSide,
    /// The return rings, and how many leases each side has.
    leases: Leases,
    /// Senders of this process that wait for room at the peer.
    senders: Senders,
    /// The credits granted to the peer.
    credits: Credits,
    /// Fresh memory for idle rings.
    renewal: Renewal,
    /// Counts frames and notices of the peer that could not be taken.
    pub(super) refusals: Refusals,
}

impl Link {
    /// Makes a link. `number` is the number of this process's half. `with_unpublished` counts the process's
    /// links with unpublished notices, and `with_due` those with anything due.
    pub(crate) fn new(
        peer: ProcessId,
        number: u64,
        ears: &Ears,
        with_unpublished: Arc<AtomicUsize>,
        with_due: Arc<AtomicUsize>,
    ) -> io::Result<Self> {
        let connection = Connection::new(number, ears)?;
        let credits = Credits::new(&connection.memory);
        Ok(Link {
            peer,
            connection,
            sender: SenderSide::new(with_due),
            receiver: ReceiverSide::new(),
            leases: Leases::new(with_unpublished),
            senders: Senders::new(),
            credits,
            renewal: Renewal::default(),
            refusals: Refusals::default(),
        })
    }

    /// Connects the peer's half.
    pub(crate) fn connect(
        &self,
        wake_page: OwnedFd,
        memory: OwnedFd,
        rings: OwnedFd,
        bell: OwnedFd,
    ) -> Result<(), BadHalf> {
        let wake_page = WakePage::open(wake_page)?;
        let memory = LinkMemory::open(memory)?;
        let (data, returns) = RingMemory::open(rings)?.into_bytes();
        self.connection.take_half(&wake_page, &memory, bell)?;
        let (own_data, own_returns) = self.connection.take_rings().ok_or(BadHalf::Twice)?;
        let (data_tail, return_tail) = memory.tails();
        let (data_head, return_head) = memory.heads();
        let (own_data_tail, own_return_tail) = self.connection.memory.tails();
        let (own_data_head, own_return_head) = self.connection.memory.heads();
        self.sender.open(Producer::new(own_data_tail, data_head.clone(), own_data)?);
        let own_front = self.connection.memory.return_front();
        self.leases.open_out(EntryProducer::new(own_return_tail, return_head, own_front, own_returns)?);
        self.receiver.open(Consumer::new(data_tail.clone(), own_data_head, data)?);
        let front = memory.return_front();
        self.leases.open_in(EntryConsumer::new(return_tail.clone(), own_return_head, front, returns)?);
        // Last, because a reader that sees a cursor move reads the ring.
        self.receiver.watch([data_tail, return_tail, data_head]);
        Ok(())
    }

    /// Returns whether a frame is unread, or something waits to go out.
    pub(crate) fn is_busy(&self) -> bool {
        self.receiver.has_unread() || self.has_waiting() || self.has_backlog()
    }

    /// Returns a number that changes whenever a sender to the peer's actor `index` might find what it lacked.
    pub(crate) fn stamp(&self, index: u16) -> u64 {
        let head = self.sender.consumed();
        let opened = u64::from(self.is_open()) + 2 * u64::from(self.is_broken());
        // In the top two bits, which no count reaches.
        let mailbox_state = match self.mailbox_state(index) {
            NOBODY => 0,
            CLOSED => 3,
            AWAY => 2,
            _ => 1,
        } << 62;
        self.handled(index)
            .wrapping_add(mailbox_state)
            .wrapping_add(head)
            .wrapping_add(self.leases.released())
            .wrapping_add(opened)
    }
}

//! Fresh memory for rings that were busy and no longer are.
//!
//! A ring has touched all of its memory after one lap, and keeps it. The kernel punches no hole into memory
//! that is sealed against other writers (ONE-WRITER), not even for the writer itself. So the rings of a link
//! move, and the old memory goes as a whole:
//!
//! 1. The reader of the writing process finds rings that have touched more than [`IDLE_RING_BYTES`], and into
//!    which nothing was written since its last such look. It makes fresh memory and offers it to the peer,
//!    through the node.
//! 2. The peer maps it, keeps it here, and answers. Until then everything continues in the old memory.
//! 3. When the peer has read a ring to its end, the reader of the writing process writes a mark into the ring
//!    and continues in the fresh memory. From then on it no longer uses the old memory, and unmaps it when
//!    both rings have moved.
//! 4. The peer finds the mark among the entries, continues in the fresh memory too, and unmaps the old one.
//!
//! So no memory goes that a process still reads, and no other word than the cursors has to say which memory
//! is meant.
//!
//! `transport/renewal.rs` uses it, and so do `incoming` and `returns`, which find the marks.
//!
//! **Invariants.** ONE-WRITER: the fresh memory is sealed before it is offered. WIRE-1: the memory is checked
//! like that of a half. A peer that marks a ring without an offer, or offers again before both rings have
//! moved, is given up. LEASE-2: a mark in the return ring takes room that is not reserved for a release.
//! MBX-2: there is one offer at a time, which the node holds too.
//!
//! **Locks.** Two: inside `state` those of the rings out, inside `fresh` no other.
//!
//! **On a crash** of the peer all of it goes with the link. On a crash of this process the peer reads marked
//! rings to the end, because it has the fresh memory by then. **On cancellation** nothing happens.

#[cfg(any(test, feature = "testing"))]
use std::{any::Any, sync::Weak};

use parking_lot::Mutex;

use super::Link;
use crate::limits::IDLE_RING_BYTES;
use crate::transport::bad_half::BadHalf;
use crate::transport::pages::RingMemory;
use crate::transport::ring::NativeBytes;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Renewal {
    /// The state of the rings to the peer.
    state: Mutex<RenewalState>,
    /// For the rings from the peer: memory that it has offered and not moved to yet.
    fresh: Mutex<Fresh>,
}

#[derive(Debug, Default)]
struct RenewalState {
    stage: Stage,
    /// The number of the last offer.
    number: u64,
    /// How far the rings were written at the last look.
    seen: (u64, u64),
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Settled,
    /// The peer has not answered.
    Offered(Fresh),
    /// The peer has mapped it; these rings have not moved yet.
    Moving(Fresh),
}

/// Fresh memory of both rings, until they move to it.
#[derive(Debug, Default)]
struct Fresh {
    data: Option<NativeBytes>,
    returns: Option<NativeBytes>,
}

impl Fresh {
    fn of(rings: RingMemory) -> Self {
        let (data, returns) = rings.into_bytes();
        Fresh { data: Some(data), returns: Some(returns) }
    }

    fn is_used_up(&self) -> bool {
        self.data.is_none() && self.returns.is_none()
    }
}

/// The result of a look at the rings to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingUse {
    /// There is nothing to give back.
    Small,
    /// There is memory to give back, but something was written since the last look, or is still unread, or an
    /// offer is under way.
    Busy,
    /// There is memory to give back, and the rings were silent.
    Idle,
}

impl Renewal {
    /// Takes the memory in which the peer's return ring continues; works once.
    pub(super) fn fresh_returns(&self) -> Option<NativeBytes> {
        self.fresh.lock().returns.take()
    }
}

impl Link {
    /// Checks how much the rings to the peer hold. If nothing was written since the last look, it also
    /// shrinks the tables and buffers here.
    pub(crate) fn poll_rings(&self) -> RingUse {
        if !self.is_open() {
            return RingUse::Small;
        }
        let mut state = self.renewal.state.lock();
        let (Some((data, touched)), Some((returns, also_touched))) =
            (self.sender.written(), self.notices_written())
        else {
            return RingUse::Small;
        };
        let was = std::mem::replace(&mut state.seen, (data, returns));
        let is_silent = was == state.seen;
        if is_silent {
            self.sender.shrink();
        }
        match state.stage {
            Stage::Settled if touched + also_touched <= IDLE_RING_BYTES => RingUse::Small,
            Stage::Settled if is_silent && self.sender.is_read() && self.notices_are_taken() => RingUse::Idle,
            _ => RingUse::Busy,
        }
    }

    /// Notes an offer that is about to be sent, and returns its number.
    pub(crate) fn offer(&self, rings: RingMemory) -> u64 {
        let mut state = self.renewal.state.lock();
        state.stage = Stage::Offered(Fresh::of(rings));
        state.number += 1;
        state.number
    }

    /// Notes the peer's answer to an offer. Returns whether it is taken, so that the rings can move.
    pub(crate) fn answered(&self, number: u64, is_taken: bool) -> bool {
        let mut state = self.renewal.state.lock();
        if number != state.number || !matches!(state.stage, Stage::Offered(_)) {
            return false;
        }
        // An offer for which the peer has no room is dropped, and a later look makes another.
        if let Stage::Offered(fresh) = std::mem::take(&mut state.stage)
            && is_taken
        {
            state.stage = Stage::Moving(fresh);
        }
        is_taken
    }

    /// Makes the rings that the peer has read to the end continue in the memory that it has taken. Returns
    /// whether there is something to publish. Only the reader calls it: it posts holds, and so knows how much
    /// room there is.
    pub(crate) fn move_rings(&self) -> bool {
        // Unmapped without a lock.
        let mut left = Vec::new();
        let mut state = self.renewal.state.lock();
        let Stage::Moving(fresh) = &mut state.stage else { return false };
        if self.sender.is_read()
            && let Some(bytes) = fresh.data.take()
        {
            match self.sender.move_ring(bytes) {
                Ok(before) => left.push(before),
                Err(bytes) => fresh.data = Some(bytes),
            }
        }
        if self.notices_are_taken()
            && let Some(bytes) = fresh.returns.take()
        {
            match self.move_notices(bytes) {
                Ok(before) => left.push(before),
                Err(bytes) => fresh.returns = Some(bytes),
            }
        }
        if fresh.is_used_up() {
            state.stage = Stage::Settled;
        }
        drop(state);
        !left.is_empty()
    }

    /// Takes memory that the peer offers for its rings.
    ///
    /// # Errors
    /// The peer has offered memory before, and has not moved to it yet.
    pub(crate) fn take_offer(&self, rings: RingMemory) -> Result<(), BadHalf> {
        let mut fresh = self.renewal.fresh.lock();
        if !fresh.is_used_up() {
            return Err(BadHalf::Twice);
        }
        *fresh = Fresh::of(rings);
        Ok(())
    }

    /// Takes the memory in which the peer's data ring continues; works once.
    pub(crate) fn fresh_data(&self) -> Option<NativeBytes> {
        self.renewal.fresh.lock().data.take()
    }
}

/// Methods for tests.
#[cfg(any(test, feature = "testing"))]
impl Link {
    /// Returns the bytes that the rings to the peer have touched, and weak handles on their memory.
    pub(crate) fn rings_out(&self) -> (usize, Vec<Weak<dyn Any + Send + Sync>>) {
        let (data, returns) = (self.sender.memory(), self.notices_memory());
        let touched = self.sender.written().map_or(0, |(_, bytes)| bytes);
        let also_touched = self.notices_written().map_or(0, |(_, bytes)| bytes);
        (touched + also_touched, data.into_iter().chain(returns).collect())
    }

    /// Returns weak handles on the memory of the rings from the peer.
    pub(crate) fn rings_in(&self) -> Vec<Weak<dyn Any + Send + Sync>> {
        let data = self.inbound().as_ref().map(|inbound| inbound.data.memory());
        data.into_iter().chain(self.notices_in_memory()).collect()
    }

    /// Marks a ring to the peer as continued in memory that was never offered.
    pub(crate) fn move_unoffered(&self, data: bool) {
        let (fresh_data, fresh_returns) = RingMemory::create().expect("memory").into_bytes();
        let is_moved = match data {
            true => self.sender.is_read() && self.sender.move_ring(fresh_data).is_ok(),
            false => self.notices_are_taken() && self.move_notices(fresh_returns).is_ok(),
        };
        assert!(is_moved, "the peer has read everything");
        self.publish_notices();
        if let Some(end) = self.unpublished_frames() {
            self.publish_frames(end);
        }
    }
}

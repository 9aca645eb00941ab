//! Fresh memory for rings that were busy and are not any more.
//!
//! A ring has touched all of its memory after one lap, and keeps it. The kernel punches no hole into memory
//! that is sealed against other writers (ONE-WRITER), for the writer neither; so the rings of a link move,
//! and the memory before goes as a whole:
//!
//! 1. The reader of the writing process finds rings that have touched more than [`IDLE_RING_BYTES`], and into
//!    which nothing was written since its last such look. It makes fresh memory and offers it to the peer, by
//!    way of the node.
//! 2. The peer maps it, keeps it here, and answers. Until then all goes on in the memory before.
//! 3. The reader of the writing process, when the peer has read a ring to its end, writes a mark into it and
//!    goes on in the fresh memory. From there on it has no more to do with the memory before, and unmaps it
//!    when both rings have moved.
//! 4. The peer finds the mark where it finds all else, goes on there too, and unmaps.
//!
//! So nothing is given up that anybody still reads, and no word beside the cursors says which memory is
//! meant.
//!
//! Used by `transport/renewal.rs`; by `incoming` and `returns`, which find the marks.
//!
//! **Invariants.** ONE-WRITER: the fresh memory is sealed before it is offered. WIRE-1: memory is believed as
//! that of a half is; who marks a ring and has offered nothing, or offers again before both rings have moved,
//! is given up. LEASE-2: a mark in the return ring takes room that no release was promised. MBX-2: there is
//! one offer at a time, which the node holds too.
//!
//! **Locks.** Two, and inside of `state` those of the rings out; inside of `fresh` nothing.
//!
//! **On a crash** of the peer all of it goes with the link; of this process, what it had marked is read to
//! the end: the peer has the memory by then. **On cancellation** nothing happens.

#[cfg(any(test, feature = "testing"))]
use std::{any::Any, sync::Weak};

use parking_lot::Mutex;

use super::Link;
use crate::limits::IDLE_RING_BYTES;
use crate::transport::connect::BadHalf;
use crate::transport::pages::RingMemory;
use crate::transport::ring::NativeBytes;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Renewal {
    /// Of the rings to the peer.
    state: Mutex<State>,
    /// Of the rings from the peer: what it has offered and not gone over to.
    fresh: Mutex<Fresh>,
}

#[derive(Debug, Default)]
struct State {
    stage: Stage,
    /// Of the last offer.
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

/// The memory of both rings, until they go over to it.
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

/// What a look at the rings to a peer has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingUse {
    /// There is nothing to give back.
    Small,
    /// There is, and something was written since the last look, or is still to be read, or an offer is under
    /// way.
    Busy,
    /// There is, and nothing was.
    Idle,
}

impl Renewal {
    /// Memory for the return ring, in which the peer goes on; once.
    pub(super) fn fresh_returns(&self) -> Option<NativeBytes> {
        self.fresh.lock().returns.take()
    }
}

impl Link {
    /// Looks what the rings to the peer hold. Gives back what else has grown here, where nothing was written
    /// since the last look.
    pub(crate) fn look_at_rings(&self) -> RingUse {
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

    /// The peer has answered an offer: whether it is taken, and the rings are to move.
    pub(crate) fn answered(&self, number: u64, is_taken: bool) -> bool {
        let mut state = self.renewal.state.lock();
        if number != state.number || !matches!(state.stage, Stage::Offered(_)) {
            return false;
        }
        // An offer that the peer has no room for goes, and a later look makes another.
        if let Stage::Offered(fresh) = std::mem::take(&mut state.stage)
            && is_taken
        {
            state.stage = Stage::Moving(fresh);
        }
        is_taken
    }

    /// Has the rings that the peer has read to the end go on in the memory that it has taken. Whether there
    /// is something to be published. For the reader alone: it posts holds, and so knows what room there is.
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

    /// The peer offers memory for its rings.
    ///
    /// # Errors
    /// It has done so before, and not gone over to that.
    pub(crate) fn take_offer(&self, rings: RingMemory) -> Result<(), BadHalf> {
        let mut fresh = self.renewal.fresh.lock();
        if !fresh.is_used_up() {
            return Err(BadHalf::Twice);
        }
        *fresh = Fresh::of(rings);
        Ok(())
    }

    /// Memory for the data ring, in which the peer goes on; once.
    pub(crate) fn fresh_data(&self) -> Option<NativeBytes> {
        self.renewal.fresh.lock().data.take()
    }
}

/// What tests look at and do.
#[cfg(any(test, feature = "testing"))]
impl Link {
    /// Bytes that the rings to the peer have touched, and what keeps them here.
    pub(crate) fn rings_out(&self) -> (usize, Vec<Weak<dyn Any + Send + Sync>>) {
        let (data, returns) = (self.sender.memory(), self.notices_memory());
        let touched = self.sender.written().map_or(0, |(_, bytes)| bytes);
        let also_touched = self.notices_written().map_or(0, |(_, bytes)| bytes);
        (touched + also_touched, data.into_iter().chain(returns).collect())
    }

    /// What keeps the rings from the peer here.
    pub(crate) fn rings_in(&self) -> Vec<Weak<dyn Any + Send + Sync>> {
        let data = self.inbound().as_ref().map(|inbound| inbound.data.memory());
        data.into_iter().chain(self.notices_in_memory()).collect()
    }

    /// Marks the rings to the peer as going on in memory that nobody has offered it.
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

//! A frame of a body alone: claimed and written in one step, because nothing of its value can be handed over,
//! and outside of a turn seen with it.
//!
//! Used by `outgoing`. Invariants and locks are those of the [sender's side](super): a frame is written only
//! into room that nobody else was promised, a message only for a credit, and where one of the two lacks
//! nothing was taken. Returns that other threads have posted before their frames are seen first: the lock,
//! under which those frames were written, says whether there are any.

use std::sync::atomic::Ordering;

use super::{claimed_bytes, wants_credit};
use crate::message::wire::{self, Header};
use crate::transport::link::Link;
use crate::transport::outgoing::{Destination, NotNow, TransmitError};
use crate::transport::ring::RingCorrupt;

impl Link {
    /// Takes credit and room for a frame of a body alone and writes it, all or nothing. Where it ends in the
    /// ring, and whether it is published: if `now` says so, once it is written. `corrupt` as for
    /// [`claim`](Self::claim).
    pub(crate) fn send_plain(
        &self,
        destination: &Destination,
        header: &Header,
        body: &[u8],
        now: impl FnOnce() -> bool,
        corrupt: impl FnOnce(&RingCorrupt) -> TransmitError,
    ) -> Result<(u64, bool), TransmitError> {
        let mut guard = self.sender.out.lock();
        let Some(out) = guard.as_mut() else { return Err(TransmitError::NotNow(NotNow::Connecting)) };
        self.check_credit(destination)?;
        let bytes = claimed_bytes(0, 0, body.len());
        // What was claimed by others is theirs.
        if !out.ring.has_free(out.claimed + bytes).map_err(|error| corrupt(&error))? {
            self.lack_room();
            return Err(TransmitError::NotNow(NotNow::RingFull));
        }
        let head = wire::plain_head(header, out.number);
        let Some(end) = out.put(&head, body) else {
            // Only where it was not as free as it said: then its cursor went back, and the next look finds
            // that.
            self.lack_room();
            return Err(TransmitError::NotNow(NotNow::RingFull));
        };
        if wants_credit(destination.kind)
            && let Some(window) = self.window(destination.index)
        {
            // No other writer has the lock: no read-modify-write is needed.
            window.sent.store(window.sent.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        // Release: see `Claim::write`.
        self.sender.written.store(end, Ordering::Release);
        // Under the lock: of whoever has written a frame before this one, the returns that are not published
        // are seen.
        let is_published = now();
        if is_published {
            let published = out.ring.publish_to(end);
            self.sender.published.store(published, Ordering::Release);
        }
        Ok((end, is_published))
    }
}

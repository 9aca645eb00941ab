//! Frames that have only a body. They are claimed and written in one step, because their value has no tensor
//! to hand over. Outside of a turn that step also publishes them.
//!
//! `outgoing` uses it. Invariants and locks are those of the [sender's side](super): a frame is written only
//! into room that no other frame was promised, and a message only for a credit. If one of the two is missing,
//! nothing is taken. Returns that other threads have posted before their frames become visible first. Those
//! frames were written under the same lock, so this thread sees whether there are any.

use std::sync::atomic::Ordering;

use super::{claimed_bytes, wants_credit};
use crate::message::wire::{self, Header};
use crate::transport::destination::Destination;
use crate::transport::link::Link;
use crate::transport::ring::RingCorrupt;
use crate::transport::transmit_error::{NotNow, TransmitError};

impl Link {
    /// Takes credit and room for a frame that has only a body and writes it, all or nothing. Returns its end
    /// in the ring, and whether it is published, which `now` decides after it is written. `corrupt` is as for
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
        // Room that others have claimed is not free.
        if !out.ring.has_free(out.claimed + bytes).map_err(|error| corrupt(&error))? {
            self.lack_room();
            return Err(TransmitError::NotNow(NotNow::RingFull));
        }
        let head = wire::plain_head(header, out.number);
        let Some(end) = out.put(&head, body) else {
            // This happens only if the peer's cursor went back since; the next check finds that.
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
        // Under the lock: this thread sees the unpublished returns of every thread that has written a frame
        // before this one.
        let is_published = now();
        if is_published {
            let published = out.ring.publish_to(end);
            self.sender.published.store(published, Ordering::Release);
        }
        Ok((end, is_published))
    }
}

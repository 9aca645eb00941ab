//! Spans that go over a bulk lane in runs of pieces, for each of which the other side makes room.
//!
//! The sender says which spans are to go over the lane, and from which of its devices. The receiver makes
//! room, run by run, in order. If a lane breaks, runs that are not under way at that moment go as pieces
//! again, and each side decides that for itself. A run counts as arrived only if the receiver has claimed it,
//! and a piece is claimed once, so data that comes both ways is written once.

use std::ops::Range;

use super::{Link, Session, Violation};
use crate::frame::Run;
use crate::ids::Seq;

/// A span that is to go over the bulk lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    pub(crate) post: Seq,
    pub(crate) span: u16,
    /// The sender's number of the device that holds it.
    pub(crate) device: u8,
}

/// A span of a message that is sent from memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnDevice {
    /// The index of the span in its message.
    pub span: u16,
    /// Any number that identifies one of this host's devices.
    pub device: u8,
    /// The bytes of the span.
    pub bytes: u64,
}

impl Run {
    /// Returns the indices of its pieces.
    pub(super) fn pieces(&self, piece: u64) -> Range<u64> {
        self.offset / piece..(self.offset + self.bytes).div_ceil(piece)
    }
}

impl Session {
    /// Sets whether this connection has a bulk lane. Without one, everything goes as pieces. A new connection
    /// begins without one.
    pub fn bulk(&mut self, link: Link, there: bool) {
        if self.link == Some(link) {
            self.outbound.bulk(there);
        }
    }

    /// Sets how many bytes may be on their way here, because this host has a lane that allows it.
    pub(crate) fn takes_window(&mut self, bytes: u64) {
        self.inbound.takes_window(bytes);
    }

    /// Sets whether the bulk lane carries spans. While it does, outgoing messages have the wide window. The
    /// other side, which has the lane too, [accepts](Self::takes_window) that.
    pub(crate) fn bulk_carries(&mut self, carries: bool) {
        let event = self.outbound.widen_window(carries);
        self.events.extend(event);
    }

    /// Has a span of a message that was just taken go over the bulk lane, from this device. Returns whether
    /// there is such a lane.
    pub(crate) fn widen(&mut self, post: Seq, span: u16, device: u8) -> bool {
        self.link.is_some() && self.outbound.widen(post, span, device)
    }

    /// Returns the next span for which the other side is to be asked for room.
    pub(crate) fn next_want(&mut self, link: Link) -> Option<Want> {
        if self.link != Some(link) {
            return None;
        }
        self.outbound.next_want()
    }

    /// Handles the other side's word that it has room for a run. Returns whether the run goes there.
    ///
    /// # Errors
    /// There is no such run, or it is not the next.
    pub(crate) fn take_run(&mut self, link: Link, run: &Run, device: u8) -> Result<bool, Violation> {
        if self.link != Some(link) {
            return Ok(false);
        }
        self.outbound.take_run(run, device)
    }

    /// Takes back a run of this connection that is not on its way any more.
    pub(crate) fn unsend(&mut self, link: Link, run: &Run) {
        // With a new connection its pieces were listed anew.
        if self.link == Some(link) {
            self.outbound.unsend(run);
        }
    }

    /// Handles the other side's word that it makes no room for a span. Returns the device from which the span
    /// was to go.
    pub(crate) fn narrow(&mut self, link: Link, post: Seq, span: u16) -> Option<u8> {
        if self.link != Some(link) {
            return None;
        }
        self.outbound.narrow(post, span)
    }

    /// The same for all later spans from this device over this connection.
    pub(crate) fn widen_no_more(&mut self, link: Link, device: u8) {
        if self.link == Some(link) {
            self.outbound.widen_no_more(device);
        }
    }

    /// The same for all present spans from this device.
    pub(crate) fn narrow_all(&mut self, link: Link, device: u8) {
        if self.link == Some(link) {
            self.outbound.narrow_all(Some(device));
        }
    }

    /// Returns the bytes of an arriving span; `None` if its message is complete, was aborted, or has no such
    /// span.
    pub(crate) fn arriving(&self, post: Seq, span: u16) -> Option<u64> {
        self.inbound.span(post, span)
    }

    /// Claims a run that came over a connection. If this returns `true`, the run has to be written to its
    /// place, and [`landed_run`](Self::landed_run) called then, even if the connection ends.
    pub(crate) fn claim_run(&mut self, link: Link, run: &Run) -> bool {
        self.is_up(link) && self.ended.is_none() && self.inbound.claim_run(run)
    }

    /// Records that a claimed run is in its place, as [`landed`](Self::landed) does.
    pub(crate) fn landed_run(&mut self, run: &Run) {
        let follows = self.inbound.landed_run(run);
        self.follow(follows);
    }
}

//! Spans that go over a lane for bulk: in runs of pieces, each of which the other side makes room for.
//!
//! The sender says which spans are to go there, and of which of its devices; the receiver makes room, run by
//! run, in order. What is not under way in that moment goes by pieces again where a lane breaks, and each
//! side says so for itself: a run counts as come only where the receiver has claimed it, and a piece is
//! claimed once, so what comes both ways is written once.

use std::ops::Range;

use super::{Link, Session, Violation};
use crate::frame::Run;
use crate::ids::Seq;

/// A span that is to go over the lane for bulk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    pub(crate) post: Seq,
    pub(crate) span: u16,
    /// Where it lies, by the sender's count.
    pub(crate) device: u8,
}

/// A span of a message that is sent from memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnDevice {
    /// Which of the message's.
    pub span: u16,
    /// Any number that says which of this host's devices it is.
    pub device: u8,
    /// As many as the span has.
    pub bytes: u64,
}

impl Run {
    /// The indices of its pieces.
    pub(super) fn pieces(&self, piece: u64) -> Range<u64> {
        self.offset / piece..(self.offset + self.bytes).div_ceil(piece)
    }
}

impl Session {
    /// This connection has a lane for bulk, or none any more: then all goes by pieces. A new connection
    /// begins without one.
    pub fn bulk(&mut self, link: Link, there: bool) {
        if self.link == Some(link) {
            self.outbound.bulk(there);
        }
    }

    /// So many bytes of what comes may be on their way, because this host has a lane for which that is so.
    pub(crate) fn takes_window(&mut self, bytes: u64) {
        self.inbound.takes_window(bytes);
    }

    /// The lane for bulk carries spans, or none any more: while it does, what goes has the wide window. The
    /// other side, which has the lane too, [takes](Self::takes_window) that.
    pub(crate) fn bulk_carries(&mut self, carries: bool) {
        let event = self.outbound.widen_window(carries);
        self.events.extend(event);
    }

    /// Has a span of a message that was just taken go over the lane for bulk, from this device. Whether there
    /// is such a lane.
    pub(crate) fn widen(&mut self, post: Seq, span: u16, device: u8) -> bool {
        self.link.is_some() && self.outbound.widen(post, span, device)
    }

    /// The next span to ask the other side to make room for.
    pub(crate) fn next_want(&mut self, link: Link) -> Option<Want> {
        if self.link != Some(link) {
            return None;
        }
        self.outbound.next_want()
    }

    /// The other side has room for a run. Whether it goes there.
    ///
    /// # Errors
    /// There is no such run, or it is not the next.
    pub(crate) fn take_run(&mut self, link: Link, run: &Run, device: u8) -> Result<bool, Violation> {
        if self.link != Some(link) {
            return Ok(false);
        }
        self.outbound.take_run(run, device)
    }

    /// A run that was taken over this connection is not on its way any more.
    pub(crate) fn unsend(&mut self, link: Link, run: &Run) {
        // With another connection it was named anew.
        if self.link == Some(link) {
            self.outbound.unsend(run);
        }
    }

    /// The other side makes no room for a span. From which device it was to go.
    pub(crate) fn narrow(&mut self, link: Link, post: Seq, span: u16) -> Option<u8> {
        if self.link != Some(link) {
            return None;
        }
        self.outbound.narrow(post, span)
    }

    /// Nor for any that will come from this device over this connection.
    pub(crate) fn widen_no_more(&mut self, link: Link, device: u8) {
        if self.link == Some(link) {
            self.outbound.widen_no_more(device);
        }
    }

    /// Nor for any that was to go from this device.
    pub(crate) fn narrow_all(&mut self, link: Link, device: u8) {
        if self.link == Some(link) {
            self.outbound.narrow_all(Some(device));
        }
    }

    /// The bytes of a span that comes; nothing where its message is whole, or was aborted, or has no such
    /// span.
    pub(crate) fn arriving(&self, post: Seq, span: u16) -> Option<u64> {
        self.inbound.span(post, span)
    }

    /// A run came over a connection. Whether it has to be put where it belongs, and
    /// [`landed_run`](Self::landed_run) be called then, whatever becomes of the connection.
    pub(crate) fn claim_run(&mut self, link: Link, run: &Run) -> bool {
        self.is_up(link) && self.ended.is_none() && self.inbound.claim_run(run)
    }

    /// A claimed run is where it belongs, as [`landed`](Self::landed).
    pub(crate) fn landed_run(&mut self, run: &Run) {
        let follows = self.inbound.landed_run(run);
        self.follow(follows);
    }
}

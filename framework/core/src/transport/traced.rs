//! The transport's notes for a trace: frames out and frames in. The position at which a frame ends in its
//! ring names it. Both sides know it, so a trace can link a send to its delivery without another word on the
//! wire.
//!
//! Used by `outgoing` and `incoming`. **Locks.** None: notes go into a ring of this process. **On a crash**
//! the notes are still there, in memory that the node has mapped.

use super::link::Link;
use crate::clock::ClockDomain;
use crate::message::wire::{Header, Kind};
use crate::observe::trace::{Form, FrameId, What};

/// A frame that is being taken in. It is noted when this drops.
pub(super) struct Taking<'a> {
    domain: &'a ClockDomain,
    since: u64,
    form: Form,
    frame: FrameId,
    header: Header,
}

/// Notes that a frame begun at `since` is in the ring to `link`'s peer, up to `end`.
pub(super) fn note_sent(
    domain: &ClockDomain,
    since: Option<u64>,
    link: &Link,
    header: &Header,
    end: u64,
    leases: u64,
) {
    domain.tracer().note_since(since, |took| What::Sent {
        form: form(header.kind),
        key: header.key,
        frame: FrameId { peer: link.peer, end },
        bytes: u64::from(header.body_bytes) + leases,
        took,
    });
}

impl<'a> Taking<'a> {
    /// Notes that the frame ending at `end` is taken in until the returned value drops.
    pub(super) fn begin(domain: &'a ClockDomain, link: &Link, header: &Header, end: u64) -> Option<Self> {
        let since = domain.tracer().begin()?;
        let frame = FrameId { peer: link.peer, end };
        Some(Taking { domain, since, form: form(header.kind), frame, header: *header })
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        let Taking { form, frame, .. } = *self;
        let (key, actor) = (self.header.key, self.header.actor);
        let what = |took| What::Delivered { form, key, frame, actor, took };
        self.domain.tracer().note_since(Some(self.since), what);
    }
}

fn form(kind: Kind) -> Form {
    match kind {
        Kind::Send => Form::Send,
        Kind::Ask | Kind::Follow => Form::Ask,
        Kind::Reply => Form::Reply,
        Kind::Refusal => Form::Refusal,
    }
}

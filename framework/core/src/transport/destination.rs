//! The destination of a frame, as its header says it.

use crate::ids::ActorId;
use crate::message::wire::{Header, Kind};

/// The destination of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    pub(crate) kind: Kind,
    pub(crate) index: u16,
    pub(crate) actor: ActorId,
    pub(crate) correlation: u64,
    pub(crate) key: u64,
    /// Whether the body ends with the context of a span.
    pub(crate) has_context: bool,
}

impl Destination {
    /// Returns the destination of a reply or a refusal.
    pub(super) fn of_reply(kind: Kind, correlation: u64) -> Self {
        Destination { kind, index: 0, actor: ActorId(0), correlation, key: 0, has_context: false }
    }

    /// Returns the header of a frame that goes there.
    pub(super) fn header(&self, body_in_lease: bool, body: usize) -> Header {
        let Destination { kind, index, actor, correlation, key, has_context } = *self;
        // Longer ones are not encoded (MAX_BODY).
        let body_bytes = body as u32;
        Header { kind, body_in_lease, has_context, index, actor, correlation, key, body_bytes }
    }
}

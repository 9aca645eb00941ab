//! Notes what is not taken from a peer, and gives up a peer that sends too much of it (WIRE-1, MBX-2). The
//! [counts](super::link) are the link's.

use std::fmt::Display;
use std::time::Instant;

use super::Transport;
use super::link::{Fault, Link};
use crate::limits::MAX_LOG_TEXT;
use crate::observe::text::shown;

impl Transport {
    /// Notes that something from the link's peer is not taken: `what` that is, and why.
    pub(super) fn note_refused(&self, link: &Link, fault: Fault, what: &str, why: &dyn Display) {
        let peer = link.peer;
        if let Some(left_out) = link.refusals.tell(Instant::now()) {
            // The reason may quote the message.
            let why = shown(why.to_string(), MAX_LOG_TEXT);
            tracing::warn!(%peer, why, left_out, "{what}");
        }
        if fault == Fault::ItsOwn {
            self.blame(link);
        }
    }

    /// Counts something for which only the link's peer can be to blame, and that was logged where it is. Past
    /// the bound the peer is given up.
    pub(super) fn blame(&self, link: &Link) {
        let peer = link.peer;
        let is_too_much = link.refusals.blame(Instant::now());
        // The gateway is not to blame for messages from other hosts.
        if is_too_much && !link.is_broken() && self.domain.gateway() != Some(peer) {
            tracing::error!(%peer, "a process sends too much that cannot be taken, and is given up");
            link.break_off();
            self.wakeups.wake_reader();
        }
    }
}

//! Counts everything from a peer that cannot be taken: wrong frames and notices, and unreadable messages
//! (WIRE-1).
//!
//! Code that takes in frames and notices uses it. The log gets one line a second, with the number of those
//! left out ([`Pace`]). If a peer sends more items that only it can be to blame for than any process sends by
//! mistake, it is given up (MBX-2).
//!
//! **Locks.** One, for a few comparisons; messages of honest peers do not reach it.

use std::fmt::Display;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Link;
use crate::limits::{FORGIVEN_A_SECOND, MAX_LOG_TEXT, MAX_REFUSED};
use crate::observe::pace::Pace;
use crate::observe::text::shown;
use crate::transport::Transport;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    lines: Pace,
    /// How many were the peer's own fault and are not forgiven yet.
    open: u32,
    forgiven: Option<Instant>,
}

/// The process that can be to blame for an item that cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum Fault {
    /// Only the process that sent it: it is not a frame, or not a message of its type.
    ItsOwn,
    /// Perhaps another process, which gave the sender wrong information.
    Anybodys,
}

impl Counts {
    /// Counts one more of the peer's own fault, and returns whether it is one too many.
    fn blame(&mut self, now: Instant) -> bool {
        let forgiven = self.forgiven.get_or_insert(now);
        let seconds = now.saturating_duration_since(*forgiven).as_secs();
        *forgiven += Duration::from_secs(seconds);
        let forgives = u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(FORGIVEN_A_SECOND);
        self.open = self.open.saturating_sub(forgives).saturating_add(1);
        self.open > MAX_REFUSED
    }
}

impl Transport {
    /// Notes that something from the link's peer is not taken: `what` that is, and why.
    pub(in crate::transport) fn note_refused(
        &self,
        link: &Link,
        fault: Fault,
        what: &str,
        why: &dyn Display,
    ) {
        let (peer, now) = (link.peer, Instant::now());
        let left_out = link.refusals.0.lock().lines.tell(now);
        if let Some(left_out) = left_out {
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
    pub(in crate::transport) fn blame(&self, link: &Link) {
        let peer = link.peer;
        let is_too_much = link.refusals.0.lock().blame(Instant::now());
        // The gateway is not to blame for messages from other hosts.
        if is_too_much && !link.is_broken() && self.domain.gateway() != Some(peer) {
            tracing::error!(%peer, "a process sends too much that cannot be taken, and is given up");
            link.break_off();
            self.wakeups.wake_reader();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_ends_its_sender() {
        let mut counts = Counts::default();
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        // A peer that sends as many as are forgiven goes on for ever.
        let mut goes_on = |second: u64| (0..FORGIVEN_A_SECOND).all(|_| !counts.blame(at(1000 * second)));
        assert!((0..1000).all(&mut goes_on));
        let mut counts = Counts::default();
        assert_eq!((0..2 * MAX_REFUSED).filter(|_| !counts.blame(at(0))).count(), MAX_REFUSED as usize);
        assert!(!counts.blame(at(3_600_000)), "an hour later that is forgiven");
    }
}

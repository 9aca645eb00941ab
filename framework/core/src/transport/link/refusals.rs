//! Counts what a peer sends and cannot be taken: frames and notices that are wrong, messages that nobody can
//! read (WIRE-1).
//!
//! Used by whoever takes in what a peer has sent. The log has one a second, with the number of those that it
//! has not. A peer that sends more than anybody sends by mistake, of what can only be its own fault, is given
//! up (MBX-2).
//!
//! **Locks.** One, for a few comparisons; no honest peer's message comes to it.

use std::fmt::Display;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Link;
use crate::limits::{FORGIVEN_A_SECOND, MAX_LOG_TEXT, MAX_REFUSED};
use crate::observe::text::shown;
use crate::transport::Transport;

/// The shortest time between two lines of the log about one peer.
const PAUSE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// Since the log had one.
    left_out: u64,
    told: Option<Instant>,
    /// The peer's own, not forgiven yet.
    open: u32,
    forgiven: Option<Instant>,
}

/// Who can be to blame for what cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum Fault {
    /// Nobody but the process that sent it: it is no frame, or no message of its type.
    ItsOwn,
    /// Perhaps somebody who has told that process what is not so.
    Anybodys,
}

impl Counts {
    /// One more. The number of those before it that the log has not, if it is to have this one.
    fn tell(&mut self, now: Instant) -> Option<u64> {
        if self.told.is_some_and(|told| now.saturating_duration_since(told) < PAUSE) {
            self.left_out += 1;
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }

    /// One more of the peer's own fault; whether it is one too many.
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
    /// Something of the link's peer is not taken: `what` that is, and why.
    pub(in crate::transport) fn note_refused(
        &self,
        link: &Link,
        fault: Fault,
        what: &str,
        why: &dyn Display,
    ) {
        let (peer, now) = (link.peer, Instant::now());
        let (left_out, is_too_much) = {
            let mut counts = link.refusals.0.lock();
            (counts.tell(now), fault == Fault::ItsOwn && counts.blame(now))
        };
        if let Some(left_out) = left_out {
            // What is wrong with a message may quote it.
            let why = shown(why.to_string(), MAX_LOG_TEXT);
            tracing::warn!(%peer, why, left_out, "{what}");
        }
        // What comes from other hosts is not the gateway's.
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
    fn the_log_has_one_a_second_and_a_flood_ends_its_sender() {
        let mut counts = Counts::default();
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        assert_eq!(counts.tell(at(0)), Some(0));
        let told: Vec<_> = (1..=3000).filter_map(|millis| counts.tell(at(millis))).collect();
        assert_eq!(told, [999, 999, 999]);
        // As many as are forgiven go on for ever.
        let mut goes_on = |second: u64| (0..FORGIVEN_A_SECOND).all(|_| !counts.blame(at(1000 * second)));
        assert!((0..1000).all(&mut goes_on));
        let mut counts = Counts::default();
        assert_eq!((0..2 * MAX_REFUSED).filter(|_| !counts.blame(at(0))).count(), MAX_REFUSED as usize);
        assert!(!counts.blame(at(3_600_000)), "an hour later that is forgiven");
    }
}

//! Counts everything from a peer that cannot be taken: wrong frames and notices, and unreadable messages
//! (WIRE-1).
//!
//! `blame` uses it for code that takes in frames and notices. The log gets one line a second, with the number
//! of those left out ([`Pace`]). If a peer sends more items that only it can be to blame for than any process
//! sends by mistake, it is given up (MBX-2).
//!
//! **Locks.** One, for a few comparisons; messages of honest peers do not reach it.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::limits::{FORGIVEN_A_SECOND, MAX_REFUSED};
use crate::observe::pace::Pace;

/// See the module.
#[derive(Debug, Default)]
pub(in crate::transport) struct Refusals(Mutex<Counts>);

impl Refusals {
    /// Returns, if a line of the log is due, how many were left out since the last one.
    pub(in crate::transport) fn tell(&self, now: Instant) -> Option<u64> {
        self.0.lock().lines.tell(now)
    }

    /// Counts one more of the peer's own fault, and returns whether it is one too many.
    pub(in crate::transport) fn blame(&self, now: Instant) -> bool {
        self.0.lock().blame(now)
    }
}

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

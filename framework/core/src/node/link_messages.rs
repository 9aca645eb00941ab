//! Counts the link messages from one process to another through the node.
//!
//! The node's queue for a worker has a bound, past which the node kills that worker because it does not read.
//! So a worker must not be able to fill another worker's queue by repetition, or one process could have
//! another killed. The sender pays, not the receiver. A pair of processes has one link, so the node passes on
//! the half of each once, and one refusal of it. Another half goes through only after the receiver, or the
//! node, has refused the last one. The node does not track whether the receiver took a half: a process that
//! refuses a half after it took it has lied to its peer, which notices that with the next half. A question
//! that needs a chunk's owner leads to one ping at a time. Every message that is none of the framework's
//! counts against its sender.
//!
//! A refusal voids both halves: a process that refuses a half, or loses it, has no use for its own. So a
//! process may refuse a half that is already void, because it had not heard of that. Such a refusal is
//! dropped, once for each half.
//!
//! Over a link that stands a process may offer fresh memory for its rings, and again once that offer was
//! answered. So at most one offer waits for the receiver, which paces the offers itself.

use std::collections::HashMap;

use crate::ids::ProcessId;

/// The halves that were passed on, by sender and receiver.
#[derive(Default)]
pub(crate) struct LinkMessages(HashMap<(ProcessId, ProcessId), Halves>);

/// The halves of one process to another.
#[derive(Default)]
struct Halves {
    /// The number of the last half, from 1 on.
    last: u64,
    /// Whether it was passed on and not refused since.
    stands: bool,
    /// The last half that was refused.
    refused: u64,
    /// The last offer of fresh rings behind the half.
    offered: u64,
    /// The last offer that was answered.
    offer_answered: u64,
}

/// The node's judgement of the refusal of a half, or of an offer of rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Pass it on: the first refusal of the half that stands, or rings for a link that stands.
    Due,
    /// Drop it: the half is void by now, and its sender may not have heard of that.
    Late,
    /// There is no such half, or it was refused before; or there was no link, or the last rings were not
    /// answered.
    Forged,
}

impl LinkMessages {
    /// Returns whether `from` may send this half, which then is the one that stands.
    pub(crate) fn half(&mut self, from: ProcessId, to: ProcessId, number: u64) -> bool {
        let halves = self.0.entry((from, to)).or_default();
        if halves.stands || number <= halves.last {
            return false;
        }
        (halves.last, halves.stands) = (number, true);
        true
    }

    /// Judges a refusal by `from` of a half of `to`.
    pub(crate) fn refuse(&mut self, from: ProcessId, to: ProcessId, number: u64) -> Verdict {
        let Some(halves) = self.0.get_mut(&(to, from)) else { return Verdict::Forged };
        if number <= halves.refused || number > halves.last {
            return Verdict::Forged;
        }
        halves.refused = number;
        if halves.stands && number == halves.last { Verdict::Due } else { Verdict::Late }
    }

    /// Judges an offer of rings by `from`. If it is passed on, it is the one to be answered.
    pub(crate) fn offer(&mut self, from: ProcessId, to: ProcessId, number: u64) -> Verdict {
        // Without the other half the link is not open.
        let Some(other_stands) = self.0.get(&(to, from)).map(|halves| halves.stands) else {
            return Verdict::Forged;
        };
        let Some(halves) = self.0.get_mut(&(from, to)) else { return Verdict::Forged };
        if !(other_stands && halves.stands) {
            return Verdict::Late;
        }
        if halves.offered != halves.offer_answered || number <= halves.offered {
            return Verdict::Forged;
        }
        halves.offered = number;
        Verdict::Due
    }

    /// Takes the answer of `from` to rings that `to` has offered. Returns whether there is such an offer.
    pub(crate) fn offer_answered(&mut self, from: ProcessId, to: ProcessId, number: u64) -> bool {
        let Some(halves) = self.0.get_mut(&(to, from)) else { return false };
        if halves.offered == halves.offer_answered || number != halves.offered {
            return false;
        }
        halves.offer_answered = number;
        true
    }

    /// Voids both halves of a link, and returns the number of the half that `other` had sent.
    pub(crate) fn void(&mut self, one: ProcessId, other: ProcessId) -> Option<u64> {
        if let Some(halves) = self.0.get_mut(&(one, other)) {
            halves.stands = false;
        }
        let others = self.0.get_mut(&(other, one))?;
        std::mem::take(&mut others.stands).then_some(others.last)
    }

    /// Forgets a process that has ended.
    pub(crate) fn left(&mut self, process: ProcessId) {
        self.0.retain(|(from, to), _| *from != process && *to != process);
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

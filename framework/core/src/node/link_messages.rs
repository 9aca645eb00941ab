//! How often a process has written to another by way of the node.
//!
//! What the node queues for a worker has a bound, past which the node kills that worker because it does not
//! read. So nothing that another worker can repeat may go into that queue, or one process could have another
//! killed. The sender pays, not the receiver: a pair of processes has one link, so the node passes the half
//! of each on once, and one refusal of it; another half goes through only after the receiver, or the node,
//! has refused the last one. Whether it was taken instead is between the two. Who refuses what it has taken
//! has lied to its peer, which finds that with the next half. A question that needs a chunk's owner leads to
//! one ping at a time; everything that is no message of ours counts against its sender.
//!
//! A refusal is for both halves: whoever refuses a half, or loses it, has no use for its own. So a process
//! may refuse a half that is void by then, because it had not heard of that. Such a refusal is dropped, once
//! for each half.
//!
//! Over a link that stands a process offers fresh memory for its rings, and again when that was answered:
//! what waits for the receiver is one offer at most, which it paces itself.

use std::collections::HashMap;

use crate::ids::ProcessId;

/// The halves that were passed on, by who wrote them and to whom.
#[derive(Default)]
pub(crate) struct LinkMessages(HashMap<(ProcessId, ProcessId), Halves>);

/// The halves of one process to another.
#[derive(Default)]
struct Halves {
    /// The number of the last, from 1 on.
    last: u64,
    /// It was passed on, and not refused since.
    stands: bool,
    /// The last that was refused.
    refused: u64,
    /// The last offer of fresh rings behind the half.
    offered: u64,
    /// The last of them that was answered.
    offer_answered: u64,
}

/// What the node makes of the refusal of a half, or of an offer of rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is passed on: the first refusal of the half that stands, or rings for a link that does.
    Due,
    /// The half is void by now, of which its sender may not have heard. It is dropped.
    Late,
    /// There is no such half, or it was refused before; there was no link, or the last rings were not
    /// answered.
    Forged,
}

impl LinkMessages {
    /// Whether `from` may send this half. It is the one that stands then.
    pub(crate) fn half(&mut self, from: ProcessId, to: ProcessId, number: u64) -> bool {
        let halves = self.0.entry((from, to)).or_default();
        if halves.stands || number <= halves.last {
            return false;
        }
        (halves.last, halves.stands) = (number, true);
        true
    }

    /// `from` refuses a half of `to`.
    pub(crate) fn refuse(&mut self, from: ProcessId, to: ProcessId, number: u64) -> Verdict {
        let Some(halves) = self.0.get_mut(&(to, from)) else { return Verdict::Forged };
        if number <= halves.refused || number > halves.last {
            return Verdict::Forged;
        }
        halves.refused = number;
        if halves.stands && number == halves.last { Verdict::Due } else { Verdict::Late }
    }

    /// `from` offers rings, which are the ones to be answered if they are passed on.
    pub(crate) fn offer(&mut self, from: ProcessId, to: ProcessId, number: u64) -> Verdict {
        // Without the other half it is not open.
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

    /// `from` answers the rings that `to` has offered: whether there are such.
    pub(crate) fn offer_answered(&mut self, from: ProcessId, to: ProcessId, number: u64) -> bool {
        let Some(halves) = self.0.get_mut(&(to, from)) else { return false };
        if halves.offered == halves.offer_answered || number != halves.offered {
            return false;
        }
        halves.offer_answered = number;
        true
    }

    /// Both halves of a link are void: that of `one`, and the one that the other has sent, whose number is
    /// returned.
    pub(crate) fn void(&mut self, one: ProcessId, other: ProcessId) -> Option<u64> {
        if let Some(halves) = self.0.get_mut(&(one, other)) {
            halves.stands = false;
        }
        let others = self.0.get_mut(&(other, one))?;
        std::mem::take(&mut others.stands).then_some(others.last)
    }

    /// A process has ended: it writes no more, and nobody to it.
    pub(crate) fn left(&mut self, process: ProcessId) {
        self.0.retain(|(from, to), _| *from != process && *to != process);
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

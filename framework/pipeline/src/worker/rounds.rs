//! Bounds the items in a loop, at its beginning.
//!
//! An item that comes from outside is answered when it has left the loop, and that bounds the items in it.
//! All rounds of the item share the answer: each holds it until everything that came of the item in that
//! round was answered. An item that comes around is answered at once, and by then its next round holds the
//! shared answer too; so no sender in the loop waits for more than one round.
//!
//! Under at-most-once delivery an item has left when the next stage has accepted it. Items that a batch
//! behind the loop keeps must not keep others out of the loop, because its end waits until it is empty.
//!
//! After a death an item may come around although its sender from outside was told that it is lost: the dead
//! actor had passed it on and not answered it. No sender waits for such an item. It is answered at once too,
//! and not taken for one that comes from outside: in an inner loop it would wait for its own place.

use std::collections::HashMap;

use super::ack_guard::{AckGuard, Faint};
use crate::item::Tag;

/// The items in a loop.
#[derive(Default)]
pub(super) struct Rounds {
    next: u64,
    inside: HashMap<u64, Faint>,
    depth: usize,
}

impl Rounds {
    /// Makes the tracker of a loop inside `depth` others.
    pub(super) fn new(depth: usize) -> Self {
        Rounds { depth, ..Rounds::default() }
    }

    /// Begins a round of an item. Returns the ack guard to hold until the round is over.
    pub(super) fn begin(&mut self, tag: &mut Tag, ack_guard: AckGuard) -> AckGuard {
        if let Some(name) = tag.rounds.get(self.depth) {
            return self.inside.get(name).and_then(Faint::ack_guard).unwrap_or_default();
        }
        self.inside.retain(|_, inside| inside.ack_guard().is_some());
        tag.rounds.truncate(self.depth);
        tag.rounds.push(self.next);
        self.inside.insert(self.next, ack_guard.faint());
        self.next += 1;
        ack_guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::ItemId;

    fn tag(rounds: &[u64]) -> Tag {
        Tag { rounds: rounds.to_vec(), ..Tag::of(ItemId { source: 0, number: 0 }) }
    }

    #[test]
    fn an_item_is_answered_when_it_has_left_the_loop_and_each_round_at_once() {
        let mut rounds = Rounds::new(1);
        let mut inside = tag(&[5]);
        let first = AckGuard::default();
        let held = rounds.begin(&mut inside, first.clone());
        assert!(held.is(&first), "the item that came in");
        let mut around = inside.clone();
        let second = AckGuard::default();
        let held_again = rounds.begin(&mut around, second.clone());
        assert!(held_again.is(&first) && !held_again.is(&second), "the next round holds the same");
    }

    /// Otherwise it would wait in an inner loop for its own place.
    #[test]
    fn an_item_that_comes_around_after_its_sender_was_told_that_it_is_lost_is_answered_at_once() {
        let mut rounds = Rounds::new(1);
        let mut inside = tag(&[5]);
        drop(rounds.begin(&mut inside, AckGuard::default()));
        let around = AckGuard::default();
        let held = rounds.begin(&mut inside, around.clone());
        assert!(!held.is(&around), "nobody waits for it");
        assert_eq!(inside.rounds.len(), 2, "and it keeps its name");
    }
}

//! Where a loop begins: bounds the items in the loop.
//!
//! An item that comes from outside is answered when it has left the loop, and that bounds the items in there. All its
//! rounds share the answer: each holds it until everything that came of the item in that round was answered. An item
//! that comes around is answered at once, and by then its next round holds the answer too; so no sender in the loop
//! waits for more than one round.
//!
//! At most once, an item has left when the next stage has accepted it: what a batch keeps must not keep others out of
//! the loop, whose end waits until it is empty.

use std::collections::HashMap;

use super::cargo::{Cargo, Faint};
use crate::pipeline::item::Tag;

/// The items in a loop.
#[derive(Default)]
pub(super) struct Rounds {
    next: u64,
    inside: HashMap<u64, Faint>,
    depth: usize,
}

impl Rounds {
    /// For a loop in so many others.
    pub(super) fn new(depth: usize) -> Self {
        Rounds { depth, ..Rounds::default() }
    }

    /// Begins a round of an item. Returns the cargo to hold until the round is over.
    pub(super) fn begin(&mut self, tag: &mut Tag, cargo: Cargo) -> Cargo {
        if let Some(name) = tag.rounds.get(self.depth)
            && let Some(inside) = self.inside.get(name).and_then(Faint::cargo)
        {
            return inside;
        }
        self.inside.retain(|_, inside| inside.cargo().is_some());
        tag.rounds.truncate(self.depth);
        tag.rounds.push(self.next);
        self.inside.insert(self.next, cargo.faint());
        self.next += 1;
        cargo
    }
}

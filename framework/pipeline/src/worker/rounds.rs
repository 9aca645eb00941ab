//! Where a loop begins: which items are in it.
//!
//! An item that comes from outside is not answered before it has left the loop, which bounds the items in there. The
//! answer is shared by all its rounds: each holds it until everything that came of the item in that round was answered.
//! One that comes around is answered at once, and by then its next round holds the answer too; so no sender in the loop
//! waits for more than one round.

use std::collections::HashMap;

use super::cargo::{Cargo, Faint};
use crate::item::Tag;

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

    /// An item begins a round: what is to be held until the round is over.
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

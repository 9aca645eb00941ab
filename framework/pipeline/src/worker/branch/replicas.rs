//! Handles replicas of the receiver that come and go while the pipeline runs.
//!
//! Used by [`Branch`], on the actor's thread. The conductor says which places of the receiver have a replica;
//! a place without one gets no items and no ends. A replica that leaves gets an end behind all items that
//! went there, and no item after that: nothing waits between the choice of a replica and the ask, and asks to
//! one mailbox arrive in order (MBX-1).
//!
//! **A later life** of this actor knows from its arguments only the first place, which never leaves. The
//! conductor tells it of the others, and of those that are leaving. It sends these the end again, because its
//! earlier life may not have sent it.

use std::rc::Rc;

use super::{Branch, To, with_key};
use crate::item::{EndOf, Item};
use crate::worker::args::ReplicaPlace;

impl<T: Item> To<T> {
    /// Whether no items go to this replica.
    pub(super) fn takes_nothing(&self) -> bool {
        self.exited.get() || !self.open.get()
    }
}

impl<T: Item> Branch<T> {
    /// Whether the branch leads to this stage.
    pub(in crate::worker) fn leads_to(&self, stage: u16) -> bool {
        self.index == stage
    }

    /// Returns how many items may be unanswered. If the receiver drops items when it has no room, the bound
    /// is proportional to its open replicas.
    pub(super) fn most_items(&self) -> Option<u32> {
        let most = self.room.max_items?;
        if self.overflow.is_none() || self.to.is_empty() {
            return Some(most);
        }
        let open = self.to.iter().filter(|to| to.open.get()).count() as u32;
        Some(most / self.to.len() as u32 * open.max(1))
    }

    /// Sets the places of the receiver's replicas. A replica that leaves, or that has come after the end,
    /// gets its end from another task.
    pub(in crate::worker) fn places(self: &Rc<Self>, places: &[ReplicaPlace]) {
        for (at, place) in places.iter().enumerate().take(self.to.len()) {
            let to = &self.to[at];
            match place {
                ReplicaPlace::Open(address) => {
                    let address = with_key(address.cast(), self.key);
                    let is_new = !to.open.replace(true)
                        || to.address.borrow().as_ref().is_none_or(|known| known.actor() != address.actor());
                    if is_new {
                        to.exited.set(false);
                        to.address.replace(Some(address));
                        if let Some(of) = self.said_end.get() {
                            self.tell_end_beside(at, of);
                        }
                    }
                }
                ReplicaPlace::Leaving(address) => {
                    to.open.set(false);
                    let told = to.leaving.replace(Some(address.clone()));
                    if told.is_none_or(|told| told.actor() != address.actor()) {
                        to.address.replace(Some(with_key(address.cast(), self.key)));
                        self.tell_end_beside(at, EndOf::Receiver);
                    }
                }
                ReplicaPlace::Empty => to.open.set(false),
            }
        }
        // There may be more room now.
        self.room.changes();
    }

    /// Sends a replica the end from another task. `idle` waits for its answer too.
    fn tell_end_beside(self: &Rc<Self>, at: usize, of: EndOf) {
        self.begin_end();
        let branch = Rc::clone(self);
        crate::worker::spawn(async move {
            branch.tell_end(at, of).await;
            branch.end_answered();
        });
    }
}

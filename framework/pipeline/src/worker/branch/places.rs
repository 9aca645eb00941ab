//! Replicas of the receiver that come and go while everything runs.
//!
//! Used by [`Branch`], on the actor's thread. The conductor says which places of the receiver have a replica;
//! a place that has none takes nothing and is told nothing. One that leaves gets an end from here behind
//! everything that went there, and no item after that: nothing waits between the choice of a replica and the
//! ask, and asks to one mailbox arrive in order (MBX-1).
//!
//! **A later life** of this actor begins with what its arguments say: the first place, which never leaves.
//! The conductor tells it of the others, and of those that are leaving, whom it tells the end again: its
//! earlier life may not have.

use std::rc::Rc;

use super::{Branch, To, with_key};
use crate::item::{EndOf, Item};
use crate::worker::args::Place;

impl<T: Item> To<T> {
    /// Whether no item goes there.
    pub(super) fn takes_nothing(&self) -> bool {
        self.exited.get() || !self.open.get()
    }
}

impl<T: Item> Branch<T> {
    /// Whether it leads to this stage.
    pub(in crate::worker) fn leads_to(&self, stage: u16) -> bool {
        self.index == stage
    }

    /// Items that may be unanswered. A receiver that drops what it has no room for has so many for each
    /// replica.
    pub(super) fn most_items(&self) -> Option<u32> {
        let most = self.max_items?;
        if self.overflow.is_none() || self.to.is_empty() {
            return Some(most);
        }
        let open = self.to.iter().filter(|to| to.open.get()).count() as u32;
        Some(most / self.to.len() as u32 * open.max(1))
    }

    /// The replicas are these. The end of one that leaves, and of one that has come after the end, goes
    /// beside what the actor does.
    pub(in crate::worker) fn places(self: &Rc<Self>, places: &[Place]) {
        for (at, place) in places.iter().enumerate().take(self.to.len()) {
            let to = &self.to[at];
            match place {
                Place::Open(address) => {
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
                Place::Leaving(address) => {
                    to.open.set(false);
                    let told = to.leaving.replace(Some(address.clone()));
                    if told.is_none_or(|told| told.actor() != address.actor()) {
                        to.address.replace(Some(with_key(address.cast(), self.key)));
                        self.tell_end_beside(at, EndOf::Receiver);
                    }
                }
                Place::Empty => to.open.set(false),
            }
        }
        // There may be more room now.
        self.changed.notify_one();
    }

    /// Tells a replica the end; who waits until all is answered waits for that too.
    fn tell_end_beside(self: &Rc<Self>, at: usize, of: EndOf) {
        self.begin_end();
        let branch = Rc::clone(self);
        crate::worker::spawn(async move {
            branch.tell_end(at, of).await;
            branch.end_answered();
        });
    }
}

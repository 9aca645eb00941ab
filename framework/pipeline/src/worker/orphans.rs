//! Items whose data was lost with a process (DEATH-3), under at-least-once delivery. They are left to their
//! sender: the answer tells it, and it sends them again. A source that has died for good does not, nor does a
//! stage that has, if those before it are gone like that too. One that began anew makes its items again under
//! the same ids; if it was stopped before it had got so far, it does not either. Nobody else knows what they
//! had sent; so what they leave is named here.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::core::Part;
use super::meter::Cause;
use crate::item::{ItemId, Tag};
use crate::limits::MAX_NAMED;

/// Why an item is named that nobody sends again.
const WHY: &str = "its source died before its data was written";

/// See the module. Clones share it.
#[derive(Clone)]
pub(super) struct Orphans(Rc<Inner>);

struct Inner {
    part: Rc<Part>,
    /// By lane. A source has no more of its items under way than are named.
    left: RefCell<HashMap<u32, Vec<Tag>>>,
    /// Lanes of senders that have died, and of which nobody sends anything again.
    exited: RefCell<HashSet<u32>>,
}

/// An item that its sender may have to send again.
pub(super) struct Orphan {
    of: Orphans,
    tag: Tag,
}

impl Orphans {
    pub(super) fn new(part: &Rc<Part>) -> Self {
        Orphans(Rc::new(Inner {
            part: Rc::clone(part),
            left: RefCell::default(),
            exited: RefCell::default(),
        }))
    }

    /// An item came, perhaps for the second time.
    pub(super) fn came(&self, tag: &Tag) -> Orphan {
        let mut left = self.0.left.borrow_mut();
        if let Some(left) = tag.lane.filter(|_| !left.is_empty()).and_then(|lane| left.get_mut(&lane)) {
            left.retain(|other| other.id != tag.id);
        }
        Orphan { of: self.clone(), tag: tag.clone() }
    }

    /// An item was lost here.
    pub(super) fn left(&self, tag: &Tag) {
        let Some(lane) = tag.lane else { return };
        if self.0.exited.borrow().contains(&lane) {
            return self.name(tag.ids());
        }
        let mut left = self.0.left.borrow_mut();
        let left = left.entry(lane).or_default();
        if left.len() < MAX_NAMED && left.iter().all(|other| other.id != tag.id) {
            left.push(tag.clone());
        }
    }

    /// The senders behind these lanes have died, do not come back, and nobody sends again what they had sent.
    pub(super) fn exited(&self, lanes: &[u32]) {
        self.0.exited.borrow_mut().extend(lanes);
        for lane in lanes {
            let left = self.0.left.borrow_mut().remove(lane);
            left.iter().flatten().for_each(|tag| self.name(tag.ids()));
        }
    }

    /// All is over. Of the items that earlier lives of these senders had sent, each source's last life has
    /// made so many again.
    pub(super) fn not_made_again(&self, lanes: &[u32], made: &[(u16, u64)]) {
        for lane in lanes {
            let left = self.0.left.borrow_mut().remove(lane);
            for tag in left.iter().flatten() {
                let is_missing = |id: &ItemId| {
                    made.iter().any(|(source, made)| id.source == *source && id.number >= *made)
                };
                self.name(tag.ids().filter(is_missing));
            }
        }
    }

    fn name(&self, ids: impl Iterator<Item = ItemId>) {
        self.0.part.meter.lost(&self.0.part.config.stage, ids, Cause::Tainted, WHY);
    }
}

impl Orphan {
    /// Something that came of it was lost.
    pub(super) fn leave(self) {
        self.of.left(&self.tag);
    }
}

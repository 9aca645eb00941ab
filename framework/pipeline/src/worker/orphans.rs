//! Names items whose data was lost with a process (DEATH-3) and that are not sent again, under at-least-once
//! delivery. Normally such items are left to their sender: the answer tells it, and it sends them again. A
//! source that has died for good does not send again. Nor does a stage that has died for good, if its senders
//! are gone for good too. A source that began anew makes its items again under the same ids, but not those
//! that it had not reached when it was stopped. No other actor knows what these senders had sent, so their
//! orphans are named here.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::core::Part;
use super::meter::Cause;
use crate::item::{ItemId, Tag};
use crate::limits::MAX_NAMED;

/// The reason given for an item that is not sent again.
const WHY: &str = "its source died before its data was written";

/// See the module. Clones share it.
#[derive(Clone)]
pub(super) struct Orphans(Rc<Inner>);

struct Inner {
    part: Rc<Part>,
    /// Items that were left to their senders, by lane. A source has no more items under way than can be
    /// named.
    left: RefCell<HashMap<u32, Vec<Tag>>>,
    /// Lanes of senders that have died, and whose items are not sent again.
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

    /// Notes that an item came, perhaps for the second time.
    pub(super) fn came(&self, tag: &Tag) -> Orphan {
        let mut left = self.0.left.borrow_mut();
        if let Some(left) = tag.lane.filter(|_| !left.is_empty()).and_then(|lane| left.get_mut(&lane)) {
            left.retain(|other| other.id != tag.id);
        }
        Orphan { of: self.clone(), tag: tag.clone() }
    }

    /// Notes that an item was lost here.
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

    /// Notes that the senders behind these lanes have died for good, and that their items are not sent again.
    /// Names those that were lost.
    pub(super) fn exited(&self, lanes: &[u32]) {
        self.0.exited.borrow_mut().extend(lanes);
        for lane in lanes {
            let left = self.0.left.borrow_mut().remove(lane);
            left.iter().flatten().for_each(|tag| self.name(tag.ids()));
        }
    }

    /// Names, when all is over, the lost items that the sources' last lives have not made again. `made` says
    /// for each source how many items its last life has made.
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
    /// Notes that something that came of it was lost.
    pub(super) fn leave(self) {
        self.of.left(&self.tag);
    }
}

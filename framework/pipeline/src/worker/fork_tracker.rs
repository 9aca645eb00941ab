//! At a fork: tracks which branches still have something of an item, for the stages that wait for it to come
//! by another branch. At a source: tracks which items are under way at all.
//!
//! Under at-least-once delivery a half in a [`zip`](crate::Flow::zip) is not answered before it has its
//! partner. If nothing of the item is left on the partner's branch, no partner comes, and only the fork
//! knows. It tells the zip, and repeats this for as long as something of the item is left on another branch:
//! the half may still be on its way, or be sent again to the zip's next life. So the zip has nothing to
//! remember, and ignores news about a half that it does not have.
//!
//! A [`join`](crate::Flow::join) pairs by keys, and no fork knows whether a key still comes. It lets a half
//! go only at a standstill. Then each source that could bring a partner makes nothing more before something
//! is acknowledged, and reports that with all items that it has under way. And each of these items waits in
//! the join on both sides, or a fork has reported that nothing of it comes on the other side. If an item
//! comes as several, only the fork's report shows that all have come. When the half is let go, the standstill
//! is over: the source may go on, and repeats its report while it does not.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::ack_guard::AckGuard;
use super::args::{Control, Pairer, PartnerArgs};
use crate::item::{ItemId, Tag};

/// The time between two rounds of notices. The halves of nearly all items are settled together, well within
/// it, and then no notice is sent. A half whose partner does not come waits about so long.
const PAUSE: Duration = Duration::from_millis(20);

/// A source that has stood still for so long reports it. After each half that a join lets go, the next one
/// waits for such a report.
const STANDS: Duration = Duration::from_millis(10);

/// Ids in one message.
const MOST: usize = 1024;

/// The items of a fork that are not settled on all branches.
pub(super) struct ForkTracker {
    tell: Vec<PartnerArgs>,
    /// The first part of the ids of the actor's own items.
    source: u16,
    /// For a source: the joins to tell that it makes nothing more (`tell_still`), and since when it does not
    /// (`still`).
    tell_still: Vec<Pairer>,
    still: RefCell<Option<Still>>,
    branches: usize,
    open: RefCell<HashMap<ItemId, Open>>,
    telling: Cell<bool>,
}

/// An actor that may make nothing more before something is acknowledged.
struct Still {
    since: Instant,
    next: Option<ItemId>,
    /// Whether an acknowledgement is what it waits for.
    is_full: Box<dyn Fn() -> bool>,
}

/// An item that is not settled on all branches.
#[derive(Default)]
struct Open {
    /// By branch: how many items of this id were sent there and are not settled.
    unsettled: SmallVec<[u32; 4]>,
    /// Whether something of it was lost, and comes again.
    lost: bool,
}

/// An item on its way on one branch: settled there when this drops.
pub(super) struct ForkMark {
    of: Rc<ForkTracker>,
    ids: SmallVec<[ItemId; 1]>,
    branch: usize,
    pub(super) lost: Cell<bool>,
}

impl ForkTracker {
    /// Returns `None` if no stage wants to be told.
    pub(super) fn new(
        tell: Vec<PartnerArgs>,
        tell_still: Vec<Pairer>,
        source: u16,
        branches: usize,
    ) -> Option<Rc<Self>> {
        let wanted = !(tell.is_empty() && tell_still.is_empty());
        wanted.then(|| {
            let (open, telling) = (RefCell::default(), Cell::new(false));
            Rc::new(ForkTracker {
                tell,
                source,
                tell_still,
                still: RefCell::default(),
                branches,
                open,
                telling,
            })
        })
    }

    /// Notes that from now on, for as long as `is_full` holds, the actor makes nothing more before something
    /// is acknowledged; `next` is the item that waits for that.
    pub(super) fn stand(self: &Rc<Self>, next: Option<ItemId>, is_full: impl Fn() -> bool + 'static) {
        if self.tell_still.is_empty() {
            return;
        }
        *self.still.borrow_mut() = Some(Still { since: Instant::now(), next, is_full: Box::new(is_full) });
        self.begin_telling();
    }

    /// Notes that the actor goes on.
    pub(super) fn go_on(&self) {
        *self.still.borrow_mut() = None;
    }

    /// Notes that an item is about to be sent on these branches. Returns the ack guard that goes with it on
    /// each.
    pub(super) fn mark(self: &Rc<Self>, tag: &Tag, branches: impl Iterator<Item = usize>) -> Vec<AckGuard> {
        let ids: SmallVec<[ItemId; 1]> = tag.ids().collect();
        let marks = branches.map(|branch| {
            let mut open = self.open.borrow_mut();
            for id in &ids {
                let open = open.entry(*id).or_default();
                open.unsettled.resize(self.branches, 0);
                open.unsettled[branch] += 1;
            }
            AckGuard::marking(ForkMark {
                of: Rc::clone(self),
                ids: ids.clone(),
                branch,
                lost: Cell::new(false),
            })
        });
        let marks = marks.collect();
        self.begin_telling();
        marks
    }

    fn begin_telling(self: &Rc<Self>) {
        if !self.telling.replace(true) {
            crate::worker::spawn(tell(Rc::downgrade(self)));
        }
    }

    fn settled(&self, fork_mark: &ForkMark) {
        let mut open = self.open.borrow_mut();
        for id in &fork_mark.ids {
            let Some(item) = open.get_mut(id) else { continue };
            item.lost |= fork_mark.lost.get();
            if let Some(unsettled) = item.unsettled.get_mut(fork_mark.branch) {
                *unsettled = unsettled.saturating_sub(1);
            }
            if item.unsettled.iter().all(|unsettled| *unsettled == 0) {
                open.remove(id);
            }
        }
    }

    /// Returns the items of which nothing will come by any of these branches, although something of them is
    /// left on others: first those of which something was lost, then the rest.
    fn alone(&self, branches: &[u16]) -> [Vec<ItemId>; 2] {
        let mut alone = [Vec::new(), Vec::new()];
        for (id, item) in &*self.open.borrow() {
            let settled =
                |branch: &u16| item.unsettled.get(usize::from(*branch)).is_none_or(|left| *left == 0);
            if branches.iter().all(settled) {
                alone[usize::from(!item.lost)].push(*id);
            }
        }
        alone
    }

    fn tell_all(&self) {
        if let Some(Still { since, next, is_full }) = &*self.still.borrow()
            && since.elapsed() >= STANDS
            && is_full()
        {
            let open = self.open.borrow();
            let ids: Vec<_> = open.keys().copied().filter(|id| Some(*id) != *next).collect();
            for join in &self.tell_still {
                let notice = Control::Still { key: join.key, source: self.source, ids: ids.clone() };
                let _ = join.at.try_send(notice);
            }
        }
        for PartnerArgs { to, left, branches } in &self.tell {
            for (again, ids) in [true, false].into_iter().zip(self.alone(branches)) {
                for ids in ids.chunks(MOST) {
                    for zip in to {
                        let notice = Control::Alone { key: zip.key, left: *left, ids: ids.to_vec(), again };
                        // A stage that has no room for the notice, or is between two lives, is told the next
                        // time.
                        let _ = zip.at.try_send(notice);
                    }
                }
            }
        }
    }
}

/// Sends the notices, for as long as there is anything to report.
async fn tell(fork_tracker: Weak<ForkTracker>) {
    loop {
        tokio::time::sleep(PAUSE).await;
        let Some(fork_tracker) = fork_tracker.upgrade() else { return };
        if fork_tracker.open.borrow().is_empty() && fork_tracker.still.borrow().is_none() {
            fork_tracker.telling.set(false);
            return;
        }
        fork_tracker.tell_all();
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        self.of.settled(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fork_tracker(branches: usize) -> Rc<ForkTracker> {
        let (tell, tell_still, open) = (Vec::new(), Vec::new(), RefCell::default());
        Rc::new(ForkTracker {
            tell,
            source: 0,
            tell_still,
            still: RefCell::default(),
            branches,
            open,
            telling: Cell::new(true),
        })
    }

    fn id(number: u64) -> ItemId {
        ItemId { source: 0, number }
    }

    #[test]
    fn an_item_is_alone_when_it_is_settled_on_the_other_branches_only() {
        let fork_tracker = fork_tracker(3);
        let mut marks = fork_tracker.mark(&Tag::of(id(7)), 0..3);
        assert_eq!(fork_tracker.alone(&[0, 1]), [vec![], vec![]]);
        drop(marks.remove(0));
        assert_eq!(fork_tracker.alone(&[0, 1]), [vec![], vec![]]);
        assert_eq!(fork_tracker.alone(&[0]), [vec![], vec![id(7)]]);
        drop(marks.remove(0));
        assert_eq!(fork_tracker.alone(&[0, 1]), [vec![], vec![id(7)]]);
        assert_eq!(fork_tracker.alone(&[2]), [vec![], vec![]]);
        drop(marks);
        assert!(fork_tracker.open.borrow().is_empty(), "what is settled everywhere is forgotten");
    }

    #[test]
    fn several_of_one_id_are_settled_when_all_are() {
        let fork_tracker = fork_tracker(2);
        let mut first = fork_tracker.mark(&Tag::of(id(1)), 0..2);
        // Sent to one branch only, as a split does it.
        let second = fork_tracker.mark(&Tag::of(id(1)), 0..1);
        drop(first.remove(0));
        assert_eq!(fork_tracker.alone(&[0]), [vec![], vec![]]);
        drop(second);
        assert_eq!(fork_tracker.alone(&[0]), [vec![], vec![id(1)]]);
        first[0].lose();
        let again = fork_tracker.mark(&Tag::of(id(1)), 1..2);
        drop(first);
        assert_eq!(fork_tracker.alone(&[0]), [vec![id(1)], vec![]], "it comes again");
        drop(again);
        assert!(fork_tracker.open.borrow().is_empty());
    }
}

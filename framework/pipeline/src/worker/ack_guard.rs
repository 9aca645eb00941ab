//! When an item is done with: what its sender waits for before it counts the item as handled.
//!
//! Everything that an item is still part of shares an [`AckGuard`]. When the last clone drops, the sender is
//! answered. On a panic the clones unwind, and the sender is told that there is no answer. The same goes for
//! an item that is [lost](AckGuard::lose).

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use actix::dev::OneshotSender;
use smallvec::SmallVec;

use super::fork_tracker::ForkMark;
use super::orphans::Orphan;

/// All that a result is part of; nearly always one, which then costs no allocation.
pub(crate) type AckGuards = SmallVec<[AckGuard; 1]>;

/// An item that is being worked on.
#[derive(Clone, Default)]
pub(crate) struct AckGuard(Rc<Slot>);

#[derive(Default)]
struct Slot {
    answer: RefCell<Option<OneshotSender<()>>>,
    lost: Cell<bool>,
    /// Where items are sent again: whose it is if that does not happen.
    orphan: Cell<Option<Box<Orphan>>>,
    /// At a fork: what to settle when this is done with.
    fork_mark: Option<ForkMark>,
}

/// An item that may be done with.
pub(super) struct Faint(Weak<Slot>);

impl Faint {
    /// The item, if it is not done with.
    pub(super) fn ack_guard(&self) -> Option<AckGuard> {
        self.0.upgrade().map(AckGuard)
    }
}

impl AckGuard {
    /// Nobody's answer: it tells a fork when it is done with.
    pub(super) fn marking(fork_mark: ForkMark) -> Self {
        let (answer, lost, orphan) = (RefCell::default(), Cell::default(), Cell::default());
        AckGuard(Rc::new(Slot { answer, lost, orphan, fork_mark: Some(fork_mark) }))
    }

    /// What becomes of the item if something of it is lost, and its sender is gone.
    pub(super) fn left_by(&self, orphan: Orphan) {
        self.0.orphan.set(Some(Box::new(orphan)));
    }

    pub(super) fn faint(&self) -> Faint {
        Faint(Rc::downgrade(&self.0))
    }

    /// Whether both are the same item.
    #[cfg(test)]
    pub(super) fn is(&self, other: &AckGuard) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// Whom to tell.
    pub(super) fn answer_to(&self, sender: Option<OneshotSender<()>>) {
        *self.0.answer.borrow_mut() = sender;
    }

    /// Something that came of the item was lost, and whoever still has the item can send it again.
    pub(super) fn lose(&self) {
        self.0.lost.set(true);
        if let Some(fork_mark) = &self.0.fork_mark {
            fork_mark.lost.set(true);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.lost.get()
            && let Some(orphan) = self.orphan.take()
        {
            orphan.leave();
        }
        if let Some(answer) = self.answer.get_mut().take()
            && !self.lost.get()
            && !std::thread::panicking()
        {
            // Whoever sent the item may have ended.
            let _ = answer.send(());
        }
    }
}

//! Guards that answer an item's sender when the item was handled.
//!
//! Everything that an item is still part of shares an [`AckGuard`]. When the last clone drops, the sender
//! gets its answer. On a panic the clones unwind, and the sender learns that there is no answer. The same
//! goes for an item that is [lost](AckGuard::lose).

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use actix::dev::OneshotSender;
use smallvec::SmallVec;

use super::fork_tracker::ForkMark;
use super::orphans::Orphan;

/// The guards of all items that a result came from; nearly always one, which then costs no allocation.
pub(crate) type AckGuards = SmallVec<[AckGuard; 1]>;

/// An item that is being worked on.
#[derive(Clone, Default)]
pub(crate) struct AckGuard(Rc<Slot>);

#[derive(Default)]
struct Slot {
    answer: RefCell<Option<OneshotSender<()>>>,
    lost: Cell<bool>,
    /// If items are sent again: the record that names the item if it is not.
    orphan: Cell<Option<Box<Orphan>>>,
    /// At a fork: the mark to settle when this drops.
    fork_mark: Option<ForkMark>,
}

/// A weak reference to a guard, whose item may have been answered.
pub(super) struct Faint(Weak<Slot>);

impl Faint {
    /// Returns the guard, if its item was not answered yet.
    pub(super) fn ack_guard(&self) -> Option<AckGuard> {
        self.0.upgrade().map(AckGuard)
    }
}

impl AckGuard {
    /// Makes a guard without an answer: it tells a fork when it drops.
    pub(super) fn marking(fork_mark: ForkMark) -> Self {
        let (answer, lost, orphan) = (RefCell::default(), Cell::default(), Cell::default());
        AckGuard(Rc::new(Slot { answer, lost, orphan, fork_mark: Some(fork_mark) }))
    }

    /// Sets the record that names the item if something of it is lost and its sender is gone.
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

    /// Sets the sender to answer.
    pub(super) fn answer_to(&self, sender: Option<OneshotSender<()>>) {
        *self.0.answer.borrow_mut() = sender;
    }

    /// Notes that something that came of the item was lost. The sender that still has the item can send it
    /// again.
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
            // The sender of the item may have ended.
            let _ = answer.send(());
        }
    }
}

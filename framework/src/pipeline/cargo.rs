//! When an item is done with: what its sender waits for before it counts the item as handled.
//!
//! A [`Cargo`] is shared by everything that an item is still part of. The last clone to go answers the sender. On a panic
//! the clones unwind, and the sender is told that there is no answer.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use actix::dev::OneshotSender;

/// An item that is being worked on.
#[derive(Clone)]
pub(super) struct Cargo(Rc<Slot>);

struct Slot {
    answer: RefCell<Option<OneshotSender<()>>>,
    failed: Cell<bool>,
}

impl Cargo {
    pub(super) fn new() -> Self {
        Cargo(Rc::new(Slot { answer: RefCell::new(None), failed: Cell::new(false) }))
    }

    /// Whom to tell.
    pub(super) fn answer_to(&self, sender: Option<OneshotSender<()>>) {
        *self.0.answer.borrow_mut() = sender;
    }

    /// The sender is told that there is no answer: the item, or what came of it, is lost.
    pub(super) fn fail(&self) {
        self.0.failed.set(true);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.get_mut().take()
            && !self.failed.get()
            && !std::thread::panicking()
        {
            // Whoever sent the item may have ended.
            let _ = answer.send(());
        }
    }
}

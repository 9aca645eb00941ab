//! Waiting for memory to come back.

use std::sync::{Arc, Weak};
use std::task::Waker;

use super::{Allocation, Pool};
use crate::lease::PoolError;

impl Pool {
    /// Does the same as [`allocate`](Self::allocate). If the pool is full, it also registers `waker`, which
    /// is woken when memory comes back.
    pub fn poll_allocate(self: &Arc<Self>, bytes: u64, waker: &Waker) -> Result<Allocation, PoolError> {
        match self.allocate(bytes) {
            Err(PoolError::Full { .. }) => {
                self.wake_on_return(waker);
                // Memory that came back between the two steps woke no waiter.
                self.allocate(bytes)
            }
            result => result,
        }
    }

    /// Returns the error for a request of more bytes than the pool can ever have.
    pub(crate) fn never_has(&self, bytes: u64) -> Option<PoolError> {
        let budget = self.options.budget;
        let error = || PoolError::TooLarge { device: self.backend.name(), asked: bytes, budget };
        (bytes > budget).then(error)
    }

    /// Returns a count that grows whenever memory comes back: by 1 for each allocation, and by 1 for anything
    /// else that makes room.
    pub(crate) fn returned(&self) -> u64 {
        self.state.lock().returned
    }

    /// Has `waker` woken once when memory comes back. A task that asks several times is registered once.
    pub(crate) fn wake_on_return(&self, waker: &Waker) {
        {
            let waiters = &mut self.state.lock().waiters;
            if !waiters.iter().any(|known| known.will_wake(waker)) {
                waiters.push(waker.clone());
            }
        }
        if let Some(surroundings) = self.surroundings.get().and_then(Weak::upgrade) {
            surroundings.wanted();
        }
    }

    /// Removes `waker` until it is registered again, so that memory which its own task takes and gives back
    /// does not wake it. Returns whether it was registered.
    pub(crate) fn waits_no_more(&self, waker: &Waker) -> bool {
        let waiters = &mut self.state.lock().waiters;
        let before = waiters.len();
        waiters.retain(|known| !known.will_wake(waker));
        waiters.len() < before
    }

    /// Returns whether any task waits for memory.
    pub(crate) fn has_waiters(&self) -> bool {
        !self.state.lock().waiters.is_empty()
    }
}

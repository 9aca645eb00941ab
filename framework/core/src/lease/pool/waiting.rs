//! Waiting for memory to come back.

use std::sync::{Arc, Weak};
use std::task::Waker;

use super::{Allocation, Pool};
use crate::lease::PoolError;

impl Pool {
    /// [`allocate`](Self::allocate) that remembers `waker` and wakes it when memory comes back, where the
    /// pool is full.
    pub fn poll_allocate(self: &Arc<Self>, bytes: u64, waker: &Waker) -> Result<Allocation, PoolError> {
        match self.allocate(bytes) {
            Err(PoolError::Full { .. }) => {
                self.wake_on_return(waker);
                // Memory that came back between the two steps has woken nobody.
                self.allocate(bytes)
            }
            result => result,
        }
    }

    /// The error of asking for more than there can ever be.
    pub(crate) fn never_has(&self, bytes: u64) -> Option<PoolError> {
        let budget = self.options.budget;
        let error = || PoolError::TooLarge { device: self.backend.name(), asked: bytes, budget };
        (bytes > budget).then(error)
    }

    /// Grows whenever memory comes back: by each allocation, and by 1 for what else makes room.
    pub(crate) fn returned(&self) -> u64 {
        self.state.lock().returned
    }

    /// Wakes `waker` once when memory comes back. A task that looks often has one place.
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

    /// `waker` waits no longer, until it is noted again: what its task takes and gives back by itself is not
    /// to wake it. Whether it did wait.
    pub(crate) fn waits_no_more(&self, waker: &Waker) -> bool {
        let waiters = &mut self.state.lock().waiters;
        let before = waiters.len();
        waiters.retain(|known| !known.will_wake(waker));
        waiters.len() < before
    }

    /// Whether somebody waits for memory.
    pub(crate) fn has_waiters(&self) -> bool {
        !self.state.lock().waiters.is_empty()
    }
}

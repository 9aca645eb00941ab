//! Waiting for memory to come back.

use std::sync::{Arc, Weak};
use std::task::Waker;

use super::{Allocation, Pool, State};
use crate::lease::PoolError;

impl Pool {
    /// [`allocate`](Self::allocate) that remembers `waker` and wakes it when memory comes back, where the pool is full.
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

    /// Begins a look of a task at whether there is memory for several allocations at once.
    pub(crate) fn attempt<'a>(&'a self, waker: &'a Waker) -> Attempt<'a> {
        let mut state = self.state.lock();
        let mut others = std::mem::take(&mut state.waiters);
        others.retain(|known| !known.will_wake(waker));
        state.attempts += 1;
        Attempt { pool: self, waker, others, before: state.returned, own: 0 }
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
        self.say_wanted();
    }

    /// `waker` waits no longer, until it is noted again: what its task takes and gives back by itself is not to wake it.
    #[cfg(feature = "hosts")]
    pub(crate) fn waits_no_more(&self, waker: &Waker) {
        self.state.lock().waiters.retain(|known| !known.will_wake(waker));
    }

    fn say_wanted(&self) {
        if let Some(surroundings) = self.surroundings.get().and_then(Weak::upgrade) {
            surroundings.wanted();
        }
    }

    /// Whether somebody waits for memory.
    pub(crate) fn has_waiters(&self) -> bool {
        self.state.lock().has_waiters()
    }
}

impl State {
    pub(super) fn has_waiters(&self) -> bool {
        !self.waiters.is_empty() || self.attempts > 0
    }
}

/// A look at whether there is memory for several allocations at once. What it takes and gives back wakes neither its own task nor those
/// that waited before it began: they have looked where there was as much. Who asks meanwhile, and finds less, is woken by what is given back.
pub(crate) struct Attempt<'a> {
    pool: &'a Pool,
    waker: &'a Waker,
    /// Who waited before.
    others: Vec<Waker>,
    before: u64,
    /// What it has given back itself.
    own: u64,
}

impl Attempt<'_> {
    /// There was not enough, and `own` allocations were given back: its task is woken when memory comes back, at once where others' has since it
    /// began.
    pub(crate) fn wait(mut self, own: u64) {
        self.others.push(self.waker.clone());
        self.own = own;
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let others = std::mem::take(&mut self.others);
        let mut state = self.pool.state.lock();
        state.attempts -= 1;
        // What of its own is still to be closed, by a thread that has taken it, wakes them then.
        if state.returned - self.before > self.own {
            drop(state);
            // Nobody was woken for that.
            return others.into_iter().for_each(Waker::wake);
        }
        let are_any = !others.is_empty();
        for waker in others {
            if !state.waiters.iter().any(|known| known.will_wake(&waker)) {
                state.waiters.push(waker);
            }
        }
        drop(state);
        if are_any {
            self.pool.say_wanted();
        }
    }
}

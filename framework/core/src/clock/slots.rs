//! The clocks that a process gives to its streams: the free ones, and the right to advance one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{ClockDomain, ClockError, ClockPage, Ticket, passed};
use crate::ids::ProcessId;
use crate::limits::MAX_STREAMS;

/// The free clocks of this process. A bit per clock.
#[derive(Debug)]
pub(super) struct Slots {
    free: Mutex<u64>,
    /// Per clock, the largest value that a waiter was told.
    promised: [AtomicU64; MAX_STREAMS],
}

impl Default for Slots {
    fn default() -> Self {
        let free = if MAX_STREAMS == 64 { u64::MAX } else { (1 << MAX_STREAMS) - 1 };
        Slots { free: Mutex::new(free), promised: [const { AtomicU64::new(0) }; MAX_STREAMS] }
    }
}

impl Slots {
    fn promised(&self, slot: u16) -> u64 {
        self.promised[usize::from(slot)].load(Ordering::Relaxed)
    }
}

const _: () = assert!(MAX_STREAMS <= u64::BITS as usize);

/// The right to advance one clock of this process; one per stream.
#[derive(Debug)]
pub struct OwnClock {
    page: Arc<ClockPage>,
    slots: Arc<Slots>,
    #[cfg_attr(not(feature = "inside"), allow(dead_code, reason = "a GPU, or tests, use it"))]
    process: ProcessId,
    slot: u16,
}

impl ClockDomain {
    /// Takes a free clock of this process. It goes on from where its last user left it.
    ///
    /// # Errors
    /// [`ClockError::Exhausted`] where all [`MAX_STREAMS`] are in use.
    pub fn allocate_slot(&self) -> Result<OwnClock, ClockError> {
        let mut free = self.slots.free.lock();
        if *free == 0 {
            return Err(ClockError::Exhausted);
        }
        let slot = free.trailing_zeros() as u16;
        *free &= !(1 << slot);
        drop(free);
        // The last user has reached the value that it promised, or the clock would not be free.
        self.slots.promised[usize::from(slot)]
            .store(self.own_page.load(slot).unwrap_or(0), Ordering::Relaxed);
        self.own_page.leave_to_device(slot, false)?;
        Ok(OwnClock {
            page: Arc::clone(&self.own_page),
            slots: Arc::clone(&self.slots),
            process: self.own,
            slot,
        })
    }

    /// Waits until every clock of this process has reached its promised value, also the clocks of dropped
    /// streams.
    pub(crate) fn await_promised(&self) {
        for slot in 0..MAX_STREAMS as u16 {
            let ticket = Ticket { process: self.own, slot, value: self.slots.promised(slot) };
            if let Err(error) = self.wait(&ticket, None) {
                tracing::error!(%error, clock = slot, "what is on a stream cannot be waited for");
            }
        }
    }
}

impl OwnClock {
    /// Returns the clock's number within its process.
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// Returns the clock's value. Its first user starts at zero, a later one where the last one stopped.
    pub fn value(&self) -> u64 {
        self.page.load(self.slot).unwrap_or(0)
    }

    /// Returns the page it is on.
    pub fn page(&self) -> &Arc<ClockPage> {
        &self.page
    }

    /// Notes that a device advances it from now on. A device wakes nobody, so waiters poll it in short steps.
    ///
    /// # Errors
    /// [`ClockError::NotWriter`] where this process does not write the page.
    #[cfg_attr(not(feature = "inside"), allow(dead_code, reason = "a GPU, or tests, use it"))]
    pub fn leave_to_device(&self) -> Result<(), ClockError> {
        self.page.leave_to_device(self.slot, true)
    }

    /// Notes that the clock will reach `value`: others may wait for that from now on.
    pub fn promise(&self, value: u64) {
        // The promise is only ever raised, and compared like the clock itself.
        let raise = |old| (!passed(old, value)).then_some(value);
        let promised = &self.slots.promised[usize::from(self.slot)];
        let _ = promised.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise);
        self.page.promise(self.slot, value);
    }

    /// Returns the largest value promised so far.
    pub fn promised(&self) -> u64 {
        self.slots.promised(self.slot)
    }

    /// The ticket of one of its values.
    #[cfg_attr(not(feature = "inside"), allow(dead_code, reason = "a GPU, or tests, use it"))]
    pub fn ticket(&self, value: u64) -> Ticket {
        Ticket { process: self.process, slot: self.slot, value }
    }
}

impl Drop for OwnClock {
    fn drop(&mut self) {
        // Another stream must not continue a clock that still owes a promised value: reaching that value
        // would then mean something else. The process never uses the clock again instead, and its waiters are
        // released when the process ends.
        if passed(self.value(), self.promised()) {
            *self.slots.free.lock() |= 1 << self.slot;
        } else {
            tracing::debug!(slot = self.slot, "a clock was dropped before it reached what it had promised");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::waiting::tests::domain;
    use super::*;

    #[test]
    fn clocks_are_bounded_and_never_go_back() {
        let a = domain(1);
        let mut clocks: Vec<_> = (0..MAX_STREAMS).map(|_| a.allocate_slot().unwrap()).collect();
        assert!(matches!(a.allocate_slot(), Err(ClockError::Exhausted)));
        let done = clocks.pop().unwrap();
        a.advance(&done, 7).unwrap();
        a.advance(&done, 6).unwrap();
        assert_eq!(done.value(), 7);
        let slot = done.slot();
        drop(done);
        let next = a.allocate_slot().unwrap();
        assert_eq!((next.slot(), next.value()), (slot, 7));
        // A clock that owes a value is not given to another stream.
        next.promise(8);
        drop(next);
        assert!(matches!(a.allocate_slot(), Err(ClockError::Exhausted)));
    }
}

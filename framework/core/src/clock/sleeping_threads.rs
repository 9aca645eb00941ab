//! The threads of this process that sleep until a clock passes a value, those of host streams included. Hang
//! reports read the list. A thread enters itself only when it is about to sleep in the kernel, so a wait that
//! does not sleep costs nothing. In a node without a limit for hangs no thread enters itself.

use parking_lot::Mutex;

use super::Ticket;
use crate::observe::hang_probe::count_note;

/// The most sleepers that are noted; a process that works properly has no more threads than that.
const MOST: usize = 256;

#[derive(Debug, Default)]
pub(super) struct SleepingThreads {
    all: Mutex<Vec<ClockSleeper>>,
}

/// A thread that waits for a clock.
#[derive(Clone, Debug)]
pub(crate) struct ClockSleeper {
    /// The ticket that it waits for.
    pub(crate) ticket: Ticket,
    /// The thread's name; a host stream's thread is named after it.
    pub(crate) thread: String,
    number: u64,
}

/// A guard: as long as it lives, the thread is noted.
pub(super) struct Noted<'a> {
    asleep: &'a SleepingThreads,
    number: Option<u64>,
}

impl ClockSleeper {
    /// Returns whether it is the thread of the host stream with clock `slot`.
    pub(crate) fn is_stream(&self, slot: u16) -> bool {
        self.thread.strip_prefix("tp-stream-").is_some_and(|number| number.parse() == Ok(slot))
    }
}

impl SleepingThreads {
    /// Notes that the calling thread is about to wait.
    pub(super) fn note(&self, ticket: &Ticket) -> Noted<'_> {
        count_note();
        let thread = std::thread::current().name().unwrap_or("a thread").to_owned();
        let mut all = self.all.lock();
        if all.len() >= MOST {
            return Noted { asleep: self, number: None };
        }
        let number = all.iter().map(|sleeper| sleeper.number + 1).max().unwrap_or(0);
        all.push(ClockSleeper { ticket: *ticket, thread, number });
        Noted { asleep: self, number: Some(number) }
    }

    /// Returns the threads that wait now.
    pub(super) fn all(&self) -> Vec<ClockSleeper> {
        self.all.lock().clone()
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.asleep.all.lock().retain(|sleeper| sleeper.number != number);
        }
    }
}

//! Decides whether a host is lost (HOST-10), without I/O: its caller reports events with their times, and it
//! says what to do when.
//!
//! An [`Agent`] sends the head a beat each second, and the head answers. An agent whose beats were not
//! answered for [`AGENT_GRACE`](crate::limits::AGENT_GRACE) ends its workers. The [`Head`] gives its verdict
//! on a host that it has not heard for [`HEAD_GRACE`](crate::limits::HEAD_GRACE), and only then may next
//! lives of its actors begin elsewhere. Two lives of one actor never work at once, because:
//!
//! * the agent counts from the moment in which it *sent* the last beat that was answered. The head cannot
//!   have heard that beat earlier, so the agent's time is over first, however long beats and answers travel;
//! * both count by `CLOCK_BOOTTIME`, which goes on while a machine is suspended;
//! * each worker knows [until when](Agent::works_until) it may work, and ends by itself after that, because
//!   an agent that is stopped cannot end it. The same moment bounds what leaves the host, because a machine
//!   that wakes may run a worker before its timer;
//! * the difference between the two graces covers the time that the end of a worker may take, and the drift
//!   between clocks;
//! * the verdict is final: a host on which it was given gets no answer, and joins again as another life. An
//!   agent whose time is over sends no beats, so that the verdict comes.
//!
//! The model (`model.rs`) has partitions in either direction, delays, suspended machines and stopped
//! processes on both sides, and takes out each of these rules in turn.

mod agent;
mod head;
#[cfg(test)]
mod model;
mod steps;

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

pub use self::agent::{Agent, NeverSent};
pub use self::head::{Head, Lost};

/// A moment of one machine's `CLOCK_BOOTTIME`: the time since it was started, suspended or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// Makes the moment at this time after the start of the machine.
    pub fn since_boot(since: Duration) -> Self {
        Moment(since)
    }

    /// Returns the present moment.
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        // Neither is ever negative.
        Moment(Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned() as u32))
    }

    /// Returns the time since the start of the machine.
    pub fn after_boot(self) -> Duration {
        self.0
    }

    /// Returns the moment at this time after this one.
    #[must_use]
    pub fn after(self, time: Duration) -> Self {
        Moment(self.0.saturating_add(time))
    }

    /// Returns the time from `earlier` to this moment; zero if `earlier` is later.
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

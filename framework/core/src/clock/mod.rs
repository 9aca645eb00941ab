//! Clocks: one 64-bit counter per stream, of which one question is asked: has it passed a value?
//!
//! Each process has one page of clocks that only it writes (ONE-WRITER) and every peer maps read-only. A
//! sender puts a [`Ticket`] on a tensor. The receiver's stream, never its host thread, waits until the clock
//! has passed the ticket (CLOCK-1). The owner does the same in the other direction before it reuses the
//! memory (CLOCK-2). The driver's interprocess events would order streams too, but they cost a time slice of
//! the GPU even where there is nothing to compute.
//!
//! Its users are the streams of devices, which advance clocks and wait for them, [`stream`](crate::stream),
//! which gives out the tickets, and all code that asks whether data is there. A clock knows no device and no
//! stream.
//!
//! **On a crash.** When a process dies, and only then, the node writes that process's clocks. It reads their
//! last values (the death certificate) with [`ClockPage::values`]. After every process has marked the work
//! that depends on the missing values (DEATH-3, see [`taint`]), the node calls `ClockPage::release_all`, so
//! that no wait lasts for ever (DEATH-1). A released clock has passed every value that anyone can ask for;
//! [`is_released`] tells it apart. From then on "passed" proves nothing by itself: only data that
//! [`ClockDomain::status`] calls ready may be read.
//!
//! **Locks.** The list of peers, the free clocks and the sleepers have a lock each, and nothing else is
//! locked under it. For the locks of the knowledge about deaths see `marking`.
//!
//! **On cancellation** (deadline, dropped caller) a wait leaves nothing behind.

mod domain;
mod handshake;
mod marking;
mod page;
mod sleeping_threads;
mod slots;
pub mod taint;
mod waiting;

use std::io;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use thiserror::Error;

#[cfg(test)]
pub(crate) use self::waiting::sleepers;
pub use domain::ClockDomain;
pub(crate) use domain::NodeNumber;
pub use page::{BadClockPage, ClockPage};
pub use slots::OwnClock;
pub use waiting::Waited;

use crate::ids::ProcessId;
use crate::os::fork::INHERITED;
use taint::EpochPage;

/// The pages that the node gives a process.
#[derive(Clone, Debug)]
pub struct ProcessPages {
    /// The process's clocks. The node keeps a writable mapping of a worker's page, to release the clocks
    /// after its death (DEATH-1).
    pub clocks: Arc<ClockPage>,
    /// The page on which the node says which round of deaths every process must know.
    pub epoch_page: Arc<EpochPage>,
}

impl ProcessPages {
    /// Returns the pages of the node's own process. Nobody needs to release its clocks, and its epoch page is
    /// the one that all processes read.
    ///
    /// # Errors
    /// No memory or descriptor is left.
    pub fn of_the_node() -> io::Result<Self> {
        Ok(ProcessPages { clocks: ClockPage::create()?, epoch_page: EpochPage::create()? })
    }
}

/// When to stop waiting.
pub type Deadline = Instant;

/// The node released a clock at or beyond this value, because the clock's process died (DEATH-1).
///
/// Comparison is cyclic, on the GPU and here, so the largest number would release nobody: a wait for `value`
/// ends for values up to `1 << 63` ahead of it. A clock that advances a billion times a second reaches this
/// value in 146 years.
pub const RELEASED: u64 = 1 << 62;

/// Returns whether a clock at `clock` has passed `value`: the comparison that `cuStreamWaitValue64` makes
/// with `GEQ`.
#[inline]
pub const fn passed(clock: u64, value: u64) -> bool {
    clock.wrapping_sub(value) as i64 >= 0
}

/// Returns whether a clock at this value was released after its process's death, so that having passed proves
/// nothing.
#[inline]
pub const fn is_released(clock: u64) -> bool {
    clock >= RELEASED
}

/// Returns the value that releases a clock which stood at `last`.
///
/// Host threads sleep on the low half of a clock; [`RELEASED`] alone could leave that half as it was, and a
/// thread that is about to sleep would not notice. So the low half moves on by one.
pub const fn release_value(last: u64) -> u64 {
    RELEASED | (last.wrapping_add(1) & 0xffff_ffff)
}

/// A point in a stream of some process: "when clock `slot` of `process` has passed `value`".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ticket {
    /// The process whose clock it is.
    pub process: ProcessId,
    /// The number of the clock within the process.
    pub slot: u16,
    /// The value that is waited for.
    pub value: u64,
}

/// A ticket that names no clock known to this process.
#[derive(Debug, Error)]
#[error(
    "no clock {} of process {} is known here; its page must be added before its tickets are used",
    .0.slot, .0.process
)]
pub struct UnknownClock(pub Ticket);

/// The errors of clocks.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClockError {
    /// See [`UnknownClock`].
    #[error(transparent)]
    Unknown(#[from] UnknownClock),
    /// See [`Tainted`](taint::Tainted).
    #[error(transparent)]
    Tainted(#[from] taint::Tainted),
    /// Every clock of this process is in use.
    #[error(
        "all {} clocks of this process are in use; drop a stream first, or start some of its actors in another worker",
        crate::limits::MAX_STREAMS
    )]
    Exhausted,
    /// A store to a page that this process maps read-only (ONE-WRITER).
    #[error("this process does not write that clock page")]
    NotWriter,
    /// The kernel refused a sleep.
    #[error("could not sleep on a clock")]
    Os(#[from] io::Error),
    /// The clock belongs to a node, and this process was forked from that node's process.
    #[error("{INHERITED}")]
    Forked,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_comparison_is_cyclic() {
        assert!(passed(5, 5) && passed(6, 5) && !passed(4, 5));
        assert!(passed(0, u64::MAX) && !passed(u64::MAX, 0));
        assert!(passed(RELEASED, 0) && passed(RELEASED, RELEASED - 1) && passed(RELEASED, 1 << 61));
        assert!(!passed(u64::MAX, 1 << 61), "the largest number releases nobody");
    }

    #[test]
    fn a_release_passes_everything_and_moves_the_low_half() {
        for last in [0, 1, 77, u64::from(u32::MAX), (1 << 40) + 5, RELEASED - 1] {
            let released = release_value(last);
            assert!(is_released(released) && !is_released(last));
            assert!(passed(released, last + 1_000_000.min(RELEASED - 1 - last)));
            assert_ne!(released as u32, last as u32);
        }
    }
}

//! A bound on the bytes of a pool that are out: with other processes, or on their way back to the library
//! that made them.
//!
//! An allocation never waits. A Rust program that is ahead of its receivers gets an error from a full pool,
//! and may wait with `empty_when_free`. A library such as PyTorch does neither: it raises out of memory. It
//! also holds a lock of its own while it asks for memory, so it cannot wait there. So a process that runs
//! such libraries waits when it sends: a message whose tensors would take the pool past its bound waits as
//! for room in a mailbox (MBX-2). That leaves memory for the next tensors.
//!
//! Only *fresh* memory of a message counts: memory of this pool that no other process was given yet. A
//! process that forwards memory it was given, or sends on memory that came back, never waits here, so a ring
//! of actors does not stall on it. If a message has more than half of the bound, only that half counts,
//! because otherwise it might never be sent.
//!
//! **Used** by a claim (`transport/outgoing.rs`), and by senders that wait. **Locks.** The pool's. **On a
//! crash** of a holder its leases are evicted, which wakes the waiting senders (LEASE-4).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::{Pool, PoolState};
use crate::device::pool::Block;
use crate::lease::LeaseId;
use crate::lease::external::Collector;

/// The state of a pool's bound.
#[derive(Default)]
pub(super) struct Lending {
    /// Most bytes that may be out. `None`: no bound.
    most: Option<u64>,
    /// Bytes of closed pieces that have not gone back to their library yet, because their last uses have to
    /// pass first.
    letting_go: u64,
    /// Since when messages have been refused; `None` if none was refused since memory last came back.
    refused: Option<Instant>,
    /// The collector checks whether last uses have passed, and for how long messages have waited.
    watched: bool,
}

/// Time between two looks of the collector while uses have to pass on a GPU.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// The same while only other processes can give memory back: they announce it.
const LOOK_LATER: Duration = Duration::from_millis(200);
/// After this long without any byte back, the log names the holders.
const TELL_AFTER: Duration = Duration::from_secs(10);

impl Lending {
    /// Counts a block on which nobody has a lease any more.
    pub(super) fn closed(&mut self, block: &Block) {
        self.letting_go += block.close_lent();
    }

    pub(super) fn came_back(&mut self) {
        self.refused = None;
    }
}

/// A guard that is dropped when a library gets a piece back.
pub(crate) struct LetGo {
    pool: Weak<Pool>,
    bytes: u64,
    /// Whether the piece's entry was closed, and so its bytes are counted.
    closed: Arc<AtomicBool>,
}

impl LetGo {
    pub(crate) fn new(pool: &Arc<Pool>, bytes: u64) -> Self {
        LetGo { pool: Arc::downgrade(pool), bytes, closed: Arc::default() }
    }

    /// Returns the flag for the block to set.
    pub(crate) fn closed(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.closed)
    }
}

impl Drop for LetGo {
    fn drop(&mut self) {
        if !self.closed.load(Ordering::Acquire) {
            return;
        }
        let Some(pool) = self.pool.upgrade() else { return };
        let waiters = {
            let mut state = pool.state.lock();
            state.lending.letting_go = state.lending.letting_go.saturating_sub(self.bytes);
            state.came_back(0)
        };
        waiters.into_iter().for_each(Waker::wake);
    }
}

impl Pool {
    /// Sets the bound: messages that would bring the bytes that are out past `most` wait from now on.
    pub(crate) fn bound_lending(&self, most: u64) {
        self.state.lock().lending.most = Some(most);
    }

    /// Returns its budget in bytes.
    pub(crate) fn budget(&self) -> u64 {
        self.options.budget
    }

    /// Returns whether a message may go that has these leases of this pool, and `more` bytes of it besides.
    pub(crate) fn may_lend(&self, leases: impl Iterator<Item = LeaseId> + Clone, more: u64) -> bool {
        let fits = |state: &PoolState| {
            let Some(most) = state.lending.most else { return true };
            let fresh: u64 = leases.clone().map(|id| state.fresh_bytes(id)).sum();
            fresh + more == 0 || state.out() + (fresh + more).min(most / 2) <= most
        };
        if fits(&self.state.lock()) {
            return true;
        }
        // Peers may have posted releases that no thread has read yet, and blocks in quarantine may be free by
        // now.
        self.reclaim();
        let mut state = self.state.lock();
        state.sweep(&self.domain, usize::MAX);
        let fits = fits(&state);
        if !fits {
            state.lending.refused.get_or_insert_with(Instant::now);
        }
        fits
    }

    /// Has `waker` woken when memory comes back, if a message was refused since it last did.
    pub(crate) fn wake_if_refused(self: &Arc<Self>, waker: &Waker) {
        if self.state.lock().lending.refused.is_none() {
            return;
        }
        self.wake_on_return(waker);
        // After the waker is registered: the collector stops watching a pool without waiters. It has to look
        // again and again, because a GPU that passes a last use wakes no thread.
        let watches = std::mem::replace(&mut self.state.lock().lending.watched, true);
        if !watches && let Ok(collector) = Collector::get() {
            collector.watch(Arc::clone(self));
        }
    }

    /// Gives pieces whose last uses have passed back to their libraries; the collector calls it. Returns when
    /// to call it again, if at all.
    pub(crate) fn look_again(&self) -> Option<Duration> {
        let refusal = {
            let mut state = self.state.lock();
            state.sweep(&self.domain, usize::MAX);
            if state.waiters.is_empty() {
                state.lending.watched = false;
                return None;
            }
            let is_long = state.lending.refused.is_some_and(|since| since.elapsed() > TELL_AFTER);
            if !is_long {
                return Some(if has_lent(&state.quarantine) { LOOK_AGAIN } else { LOOK_LATER });
            }
            // The log gets one line for each such period.
            state.lending.refused = Some(Instant::now());
            self.refusal_of(&state)
        };
        if let Some(refusal) = refusal {
            tracing::warn!("messages have waited {TELL_AFTER:?} for tensors to come back: {refusal}");
        }
        Some(LOOK_AGAIN)
    }

    /// Returns, if messages wait for this pool's bound, a text that says how much is out and which processes
    /// have it.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.refusal_of(&self.state.lock())
    }

    fn refusal_of(&self, state: &PoolState) -> Option<String> {
        let most = state.lending.most.filter(|_| state.lending.refused.is_some())?;
        let (out, device) = (state.out(), self.backend.name());
        let holders = state.holders(self.process);
        Some(format!(
            "{out} bytes of this process's tensors on {device} are out, of {most} that may be. {holders}"
        ))
    }

    /// Returns the bytes that are out, and whether messages wait for some to come back.
    #[cfg(any(test, feature = "testing"))]
    pub fn lending(&self) -> (u64, bool) {
        let state = self.state.lock();
        (state.out(), state.lending.refused.is_some())
    }
}

impl PoolState {
    /// Returns the bytes that are out.
    fn out(&self) -> u64 {
        self.table.lent_sum().bytes + self.lending.letting_go
    }

    /// Returns the bytes of a lease, or 0 if another process was given the memory before.
    fn fresh_bytes(&self, LeaseId { entry, generation, .. }: LeaseId) -> u64 {
        if self.table.was_shared(entry, generation) {
            return 0;
        }
        self.table.block(entry, generation).map_or(0, |block| block.bytes)
    }
}

fn has_lent<U>(quarantine: &VecDeque<(Block, U)>) -> bool {
    quarantine.iter().any(|(block, _)| block.is_lent())
}

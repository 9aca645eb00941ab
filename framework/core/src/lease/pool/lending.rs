//! A bound for the bytes of a pool that are out: with other processes, or on their way back to the library
//! that made them.
//!
//! An allocation never waits. A program in Rust that is ahead of its receivers is told by a full pool, and
//! may wait with `empty_when_free`. A library such as PyTorch does neither: it raises out of memory, and it
//! holds a lock of its own while it asks for memory, so nothing can be waited for there. So a process that
//! runs such libraries waits where it sends: a message whose tensors would take the pool past its bound waits
//! as for room in a mailbox (MBX-2), and memory is left for what is made next.
//!
//! Only *fresh* memory counts for a message: this pool's, that no other process was given yet. Who forwards
//! what it was given, or sends on what came back, never waits here, so a ring of actors does not stand still
//! for it. Of a message with more than half of the bound only that half counts, or it might never go.
//!
//! **Used** by a claim (`transport/outgoing.rs`), and by senders that wait. **Locks.** The pool's. **On a
//! crash** of a holder its leases are evicted, which wakes who waits (LEASE-4).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::{Pool, State};
use crate::device::pool::Block;
use crate::lease::LeaseId;
use crate::lease::foreign::Collector;

/// What a pool knows of its bound.
#[derive(Default)]
pub(super) struct Lending {
    /// Most bytes that may be out. None: as many as there are.
    most: Option<u64>,
    /// Bytes of closed pieces that their library has not taken back yet: their last uses have to pass first.
    letting_go: u64,
    /// Since when messages are refused: none was before memory came back last.
    refused: Option<Instant>,
    /// The collector looks whether last uses have passed, and how long this takes.
    watched: bool,
}

/// Between two looks of the collector, where uses are to pass on a GPU.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// The same where only others can give memory back: they say so.
const LOOK_LATER: Duration = Duration::from_millis(200);
/// After so long without a byte that came back, the log says who holds what.
const TELL_AFTER: Duration = Duration::from_secs(10);

impl Lending {
    /// Nobody has a lease any more on this block.
    pub(super) fn closed(&mut self, block: &Block) {
        self.letting_go += block.close_lent();
    }

    pub(super) fn came_back(&mut self) {
        self.refused = None;
    }
}

/// Dropped when a library has a piece back.
pub(crate) struct LetGo {
    pool: Weak<Pool>,
    bytes: u64,
    /// Whether the piece's entry was closed, and so is counted.
    closed: Arc<AtomicBool>,
}

impl LetGo {
    pub(crate) fn new(pool: &Arc<Pool>, bytes: u64) -> Self {
        LetGo { pool: Arc::downgrade(pool), bytes, closed: Arc::default() }
    }

    /// For the block.
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
    /// From now on messages wait that would take it past `most` bytes that are out.
    pub(crate) fn bound_lending(&self, most: u64) {
        self.state.lock().lending.most = Some(most);
    }

    /// Its budget in bytes.
    pub(crate) fn budget(&self) -> u64 {
        self.options.budget
    }

    /// Whether a message may go with these leases of this pool, and `more` bytes of it besides.
    pub(crate) fn may_lend(&self, leases: impl Iterator<Item = LeaseId> + Clone, more: u64) -> bool {
        let fits = |state: &State| {
            let Some(most) = state.lending.most else { return true };
            let fresh: u64 = leases.clone().map(|id| state.fresh_bytes(id)).sum();
            fresh + more == 0 || state.out() + (fresh + more).min(most / 2) <= most
        };
        if fits(&self.state.lock()) {
            return true;
        }
        // Peers may have given back what nobody has read yet, and what was in quarantine may be free by now.
        self.reclaim();
        let mut state = self.state.lock();
        state.sweep(&self.domain, usize::MAX);
        let fits = fits(&state);
        if !fits {
            state.lending.refused.get_or_insert_with(Instant::now);
        }
        fits
    }

    /// Wakes `waker` when memory comes back, where a message was refused since it last did.
    pub(crate) fn wake_if_refused(self: &Arc<Self>, waker: &Waker) {
        if self.state.lock().lending.refused.is_none() {
            return;
        }
        self.wake_on_return(waker);
        // Behind the waker, without which the collector goes again. It looks because nobody is woken when a
        // GPU has passed a last use.
        let watches = std::mem::replace(&mut self.state.lock().lending.watched, true);
        if !watches && let Ok(collector) = Collector::get() {
            collector.watch(Arc::clone(self));
        }
    }

    /// For the collector: gives what has been passed back to its libraries. When it is to be called again, if
    /// it is.
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
            // Once for each time that long.
            state.lending.refused = Some(Instant::now());
            self.refusal_of(&state)
        };
        if let Some(refusal) = refusal {
            tracing::warn!("messages have waited {TELL_AFTER:?} for tensors to come back: {refusal}");
        }
        Some(LOOK_AGAIN)
    }

    /// Where messages wait for this pool's bound: how much is out, and who has it, in words.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.refusal_of(&self.state.lock())
    }

    fn refusal_of(&self, state: &State) -> Option<String> {
        let most = state.lending.most.filter(|_| state.lending.refused.is_some())?;
        let (out, device) = (state.out(), self.backend.name());
        let holders = state.holders(self.process);
        Some(format!(
            "{out} bytes of this process's tensors on {device} are out, of {most} that may be. {holders}"
        ))
    }

    /// Bytes that are out, and whether messages wait for some to come back.
    #[cfg(any(test, feature = "testing"))]
    pub fn lending(&self) -> (u64, bool) {
        let state = self.state.lock();
        (state.out(), state.lending.refused.is_some())
    }
}

impl State {
    /// Bytes that are out.
    fn out(&self) -> u64 {
        self.table.lent_sum().bytes + self.lending.letting_go
    }

    /// Bytes of a lease that no other process was given.
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

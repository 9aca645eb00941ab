//! Gives memory that was empty for a while back to the system, chunk by chunk.
//!
//! **On the host** the chunk itself stays, with its name, its descriptors and its mappings in all processes;
//! only its pages go, and they come back as zeros when they are written. So no process has to be told, and no
//! message waits for it. A process that still has the chunk mapped but holds no lease in it has no right to
//! read there, and reads zeros.
//!
//! **On a GPU**, memory comes and goes only with whole mappings, so the chunk goes: the pool forgets it, and
//! tells the node and every process that has it mapped. Its memory is free when the last of them has unmapped
//! it. Its name is not used again, so that no process mistakes its old mapping for another chunk. The next
//! allocation that finds no room makes a new chunk, which takes about a millisecond.
//!
//! The reader uses it when it looks for idle memory (`transport/renewal.rs`).
//!
//! **Invariants.** LEASE-1: pages go under the same conditions under which memory is reused: the lease table
//! has no holder, and every recorded last use has passed. An allocation waits for one step of [`STEP`] bytes
//! at most, and its cut ends the giving back: the rest of the chunk stays.
//!
//! **Locks.** The pool's, for each step; no lock while the driver frees a chunk. **On a crash** the memory
//! goes with its last mapping. **On cancellation** nothing happens.

use std::sync::{Arc, Weak};
use std::task::Waker;

use super::{Pool, PoolState, has_passed};
use crate::device::pool::{Idle, IdleChunk};
use crate::ids::ChunkId;
use crate::limits::POOL_CHUNK_NAMES;

/// Bytes given back under one hold of the lock: some 20 us.
const STEP: u64 = 256 << 10;

/// When another look is worthwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NextIdleCheck {
    /// Not before something has changed.
    Never,
    /// Later: a process holds memory, and may release it without telling this one.
    Late,
    /// Soon: a chunk is empty, and may be idle by then.
    Soon,
}

impl Pool {
    /// Gives back the memory of chunks that were empty at the last look and are empty now. It does so on a
    /// thread of its own, because the reader has messages to read.
    pub(crate) fn check_idle(self: &Arc<Self>) -> NextIdleCheck {
        self.backend.check_idle();
        let Idle { chunks, lately, in_use } = self.idle();
        if !chunks.is_empty() {
            let this = Arc::clone(self);
            let name = "tp-give-back".to_owned();
            let spawned =
                std::thread::Builder::new().name(name).spawn(move || match this.backend.gives_back() {
                    true => this.give_back(&chunks),
                    false => this.withdraw(&chunks),
                });
            if let Err(error) = spawned {
                tracing::debug!(%error, "no thread to give idle memory back");
                return NextIdleCheck::Late;
            }
        }
        match (lately, in_use) {
            (true, _) => NextIdleCheck::Soon,
            (false, true) => NextIdleCheck::Late,
            (false, false) => NextIdleCheck::Never,
        }
    }

    /// Returns the chunks that are empty and were empty at the last look. The caller has already taken in
    /// everything that peers gave back.
    pub(super) fn idle(&self) -> Idle {
        let mut state = self.state.lock();
        state.sweep(&self.domain, usize::MAX);
        state.allocator.idle()
    }

    /// Gives the memory of these chunks back, unless an allocation is cut out of them in the meantime.
    pub(super) fn give_back(&self, chunks: &[IdleChunk]) {
        for found in chunks {
            let mut offset = 0;
            while offset < found.bytes {
                let bytes = STEP.min(found.bytes - offset);
                // No allocation can be cut out of the chunk under the lock, which is released after each
                // step.
                let mut state = self.state.lock();
                if !state.allocator.is_idle(found) || state.is_waited_for(self, found.index) {
                    break;
                }
                let Some(mapping) = state.chunks.get(&found.index) else { break };
                if let Err(error) = self.backend.give_back(mapping, offset, bytes) {
                    tracing::debug!(%error, "idle memory stays");
                    break;
                }
                offset += bytes;
                if offset == found.bytes {
                    state.allocator.note_given_back(found);
                }
            }
        }
    }
}

impl Pool {
    /// Removes these chunks, unless an allocation is cut out of them in the meantime.
    pub(super) fn withdraw(&self, chunks: &[IdleChunk]) {
        for found in chunks {
            let mapping = {
                let mut state = self.state.lock();
                if state.next_chunk >= POOL_CHUNK_NAMES / 2
                    || state.is_waited_for(self, found.index)
                    || !state.allocator.remove_chunk(found)
                {
                    continue;
                }
                state.chunk_bytes -= found.bytes;
                state.chunks.remove(&found.index)
            };
            if let Some(surroundings) = self.surroundings.get().and_then(Weak::upgrade) {
                surroundings
                    .withdraw_chunk(ChunkId { owner: self.process, index: self.chunk_base + found.index });
            }
            // The drop calls the driver, so it does not happen under the lock.
            drop(mapping);
            // There is room for a chunk of another size now, so every waiter for memory tries again.
            let waiters = self.state.lock().came_back(0);
            waiters.into_iter().for_each(Waker::wake);
        }
    }
}

impl PoolState {
    /// Returns whether uses of a range that left quarantine early still run in a chunk.
    fn is_waited_for(&mut self, pool: &Pool, chunk: u32) -> bool {
        self.pending.retain_mut(|pending| {
            pending.uses.retain(|ticket| !has_passed(&pool.domain, ticket));
            !pending.uses.is_empty()
        });
        self.pending.iter().any(|pending| pending.chunk == chunk)
    }
}

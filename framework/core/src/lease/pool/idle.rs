//! Memory that nothing was in for a while goes back to the system, chunk by chunk.
//!
//! **On the host** the chunk itself stays, with its name, its descriptors and its mappings in all processes;
//! only its pages go, and come again, as zeros, when they are written. So nobody has to be told, and no
//! message waits for it: who still has the chunk mapped and holds no lease in it has no business there, and
//! reads zeros.
//!
//! **On a GPU**, whose memory comes and goes with whole mappings alone, the chunk goes: the pool forgets it,
//! and the node and all who have it mapped are told. Its memory is free when the last of them has let go. Its
//! name is not used again, so that nobody takes what it has still mapped for another chunk. The next
//! allocation that finds no room makes a new one, which takes about a millisecond.
//!
//! Used by the reader's look for what is idle (`transport/renewal.rs`).
//!
//! **Invariants.** LEASE-1: pages go under the same conditions under which memory is used again: nobody is in
//! the lease table, and every recorded last use has passed. An allocation waits for one step of [`STEP`]
//! bytes at most, and ends it: the rest of the chunk stays.
//!
//! **Locks.** The pool's, for each step, and none for what the driver does. **On a crash** the memory goes
//! with its last mapping. **On cancellation** nothing happens.

use std::sync::{Arc, Weak};
use std::task::Waker;

use super::{Pool, State, has_passed};
use crate::device::pool::{Idle, IdleChunk};
use crate::ids::ChunkId;
use crate::limits::POOL_CHUNK_NAMES;

/// So many bytes go under one lock: some 20 us.
const STEP: u64 = 256 << 10;

/// When it is worth to look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LookAgain {
    /// When something has moved.
    Never,
    /// Somebody holds memory, and may let go of it without a word.
    Late,
    /// Something is empty, and may be idle by then.
    Soon,
}

impl Pool {
    /// Gives the memory of chunks back that had nothing in them at the last look, and have nothing now: on a
    /// thread of its own, for the reader has messages to read.
    pub(crate) fn look_for_idle(self: &Arc<Self>) -> LookAgain {
        self.backend.look_for_idle();
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
                return LookAgain::Late;
            }
        }
        match (lately, in_use) {
            (true, _) => LookAgain::Soon,
            (false, true) => LookAgain::Late,
            (false, false) => LookAgain::Never,
        }
    }

    /// Chunks that nothing is in, and nothing was at the last look. What peers have given back was taken in
    /// before.
    pub(super) fn idle(&self) -> Idle {
        let mut state = self.state.lock();
        state.sweep(&self.domain, usize::MAX);
        state.allocator.idle()
    }

    /// Gives the memory of these chunks back, as far as nothing is cut out of them meanwhile.
    pub(super) fn give_back(&self, chunks: &[IdleChunk]) {
        for found in chunks {
            let mut offset = 0;
            while offset < found.bytes {
                let bytes = STEP.min(found.bytes - offset);
                // Nothing is cut out of the chunk under the lock, and it is let go of after each step.
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
    /// Lets go of these chunks, as far as nothing is cut out of them meanwhile.
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
            // A call of the driver's, so not under the lock.
            drop(mapping);
            // There is room for a chunk of another size: whoever waits for memory tries again.
            let waiters = self.state.lock().came_back(0);
            waiters.into_iter().for_each(Waker::wake);
        }
    }
}

impl State {
    /// Whether something that was let go of early still uses memory of a chunk.
    fn is_waited_for(&mut self, pool: &Pool, chunk: u32) -> bool {
        self.pending.retain_mut(|pending| {
            pending.uses.retain(|ticket| !has_passed(&pool.domain, ticket));
            !pending.uses.is_empty()
        });
        self.pending.iter().any(|pending| pending.chunk == chunk)
    }
}

//! Memory of other processes that is mapped here. Each chunk is mapped once for reading, and once more for
//! writing if a tensor in it was handed over.
//!
//! Chunks of live processes stay mapped until their owners withdraw them, so that a message costs no mapping.
//! If a chunk's owner has ended and no more of its frames can come, only the leases on the chunk keep it
//! mapped. It is unmapped when the last of them goes, and the node is told. The node closes its descriptors
//! when no process has the chunk mapped (see `node/chunks.rs`). A lease that is forwarded here later maps it
//! again.
//!
//! `incoming` uses it, for the chunks that a frame's leases need, and so does a lease that is to be written.
//! The node's answers arrive here. The reader drops chunks of ended processes.
//!
//! **Invariants.** A question to the node is open as long as its entry is `Wanted`, so each question is asked
//! once. The node hears that a mapping is gone before it is asked for the chunk again.
//!
//! **Locks.** `came`, then a shard of the table, then the lock of [`Links`] (in [`Chunks::loosen_if_due`]).
//! Messages to the node are sent under a shard's lock if their order matters. No mapping is dropped under a
//! shard's lock, because the drop looks into the same table.
//!
//! **On a crash** of the node no chunk can be asked for any more, and missing chunks stay missing. **On
//! cancellation** of [`Chunks::map_now`], which has a deadline, a later answer is kept for the next request.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dashmap::{DashMap, Entry};
use foldhash::quality::RandomState;

use super::Transport;
use super::links::Links;
use super::memory::Memory;
use super::process::ProcessLifecycle;
use super::wakeups::Wakeups;
use crate::device::{Access, ChunkMapping, DeviceError};
use crate::fault;
use crate::ids::{ChunkId, DeviceId};
use crate::os::PeerFd;
use crate::os::lock::{Condvar, Mutex};
use crate::transport::control_channel::{ControlChannel, ToNode};

/// How long [`Chunks::map_now`] waits for the node's answer.
const WAIT_FOR_NODE: Duration = Duration::from_secs(5);

/// The answer to a question for a chunk.
#[derive(Clone, Debug)]
pub(super) enum Chunk {
    /// Asked for.
    Wanted,
    /// Mapped.
    Mapped(Arc<ChunkMapping>),
    /// There is none, or it cannot be mapped here, as this says.
    Missing(Arc<str>),
}

/// The state of a chunk in this process.
#[derive(Debug)]
enum Known {
    /// Asked for.
    Wanted,
    /// Asked for by a frame that was rejected in the meantime: nobody needs an answer that there is none.
    Unwanted,
    /// Mapped, and kept so.
    Mapped(Arc<ChunkMapping>),
    /// Mapped only as long as there are leases on it.
    Left(Weak<ChunkMapping>),
    /// There is none, or it cannot be mapped here, as this says.
    Missing(Arc<str>),
}

/// A guard that is dropped with a mapping, and tells the transport that the mapping is gone.
struct Unmapping {
    transport: Weak<Transport>,
    chunk: ChunkId,
    access: Access,
}

impl Drop for Unmapping {
    fn drop(&mut self) {
        if let Some(transport) = self.transport.upgrade() {
            transport.memory.chunks.unmapped(self.chunk, self.access, &*transport.control);
        }
    }
}

/// A chunk of another process, as the node sends it.
pub(super) struct ChunkCame {
    pub(super) chunk: ChunkId,
    pub(super) device: DeviceId,
    pub(super) bytes: u64,
    pub(super) access: Access,
    pub(super) descriptors: Vec<OwnedFd>,
}

/// See the module.
pub(crate) struct Chunks {
    /// By chunk, and whether it is to be written. A peer chooses the keys, so they are hashed with random
    /// numbers of this process, which the peer cannot know.
    known: DashMap<(ChunkId, bool), Known, RandomState>,
    /// Notified under the lock whenever an answer has come.
    came: (Mutex<()>, Condvar),
    /// Threads that wait for a chunk.
    mapping: AtomicUsize,
    /// Set when chunks of a process that ended are due to be left to the leases on them.
    loosen: AtomicBool,
}

impl Chunks {
    pub(super) fn new() -> Self {
        Chunks {
            known: DashMap::default(),
            came: (Mutex::new(()), Condvar::new()),
            mapping: AtomicUsize::new(0),
            loosen: AtomicBool::new(false),
        }
    }

    /// Returns a chunk's mapping if it is here; asks the node for it otherwise.
    pub(super) fn get(&self, chunk: ChunkId, access: Access, control: &dyn ControlChannel) -> Chunk {
        let key = (chunk, access == Access::ReadWrite);
        match self.known.entry(key) {
            Entry::Occupied(entry) => match entry.get() {
                Known::Wanted => return Chunk::Wanted,
                Known::Unwanted => {
                    // The answer that is on its way serves this question too.
                    entry.replace_entry(Known::Wanted);
                    return Chunk::Wanted;
                }
                Known::Mapped(mapping) => return Chunk::Mapped(Arc::clone(mapping)),
                // An answer that there is none serves one question only: a forged frame may have asked for a
                // chunk before its owner made it (WIRE-1).
                Known::Missing(why) => {
                    let why = Arc::clone(why);
                    entry.remove();
                    return Chunk::Missing(why);
                }
                Known::Left(mapping) => {
                    if let Some(mapping) = mapping.upgrade() {
                        return Chunk::Mapped(mapping);
                    }
                    // It is being unmapped. The new question also tells the node of that mapping's end (see
                    // `unmapped`).
                    entry.replace_entry(Known::Wanted);
                }
            },
            Entry::Vacant(entry) => {
                entry.insert(Known::Wanted);
            }
        }
        if control.send(ToNode::WantChunk { chunk, access }, Vec::new()).is_err() {
            self.known.remove(&key);
            return Chunk::Missing("cannot be asked for, because the node has ended".into());
        }
        Chunk::Wanted
    }

    /// Returns a chunk's mapping, and waits for it. Never called on the path of a message.
    pub(super) fn map_now(
        &self,
        chunk: ChunkId,
        access: Access,
        control: &dyn ControlChannel,
        wakeups: &Wakeups,
    ) -> Result<Arc<ChunkMapping>, DeviceError> {
        let deadline = Instant::now() + WAIT_FOR_NODE;
        let _mapping = Mapping::begin(self, wakeups);
        // Taken before the question: answers notify under this lock, so none can come between the check and
        // the wait.
        let mut came = self.came.0.lock();
        loop {
            match self.get(chunk, access, control) {
                Chunk::Mapped(mapping) => return Ok(mapping),
                Chunk::Missing(why) => {
                    return Err(DeviceError::Refused {
                        what: format!("chunk {} of {} {why}", chunk.index, chunk.owner),
                    });
                }
                Chunk::Wanted => {
                    if self.came.1.wait_until(&mut came, deadline).timed_out() {
                        return Err(DeviceError::Refused {
                            what: format!(
                                "the node did not answer for chunk {} of {}",
                                chunk.index, chunk.owner
                            ),
                        });
                    }
                }
            }
        }
    }

    /// Notes the node's answer that there is no such chunk.
    pub(super) fn no_chunk(&self, chunk: ChunkId, access: Access) {
        {
            let _came = self.came.0.lock();
            if let Entry::Occupied(mut entry) = self.known.entry((chunk, access == Access::ReadWrite)) {
                match entry.get() {
                    Known::Unwanted => drop(entry.remove()),
                    Known::Wanted => drop(entry.insert(Known::Missing("does not exist (any more)".into()))),
                    // The question has been answered in another way since.
                    Known::Mapped(_) | Known::Left(_) | Known::Missing(_) => {}
                }
            }
            self.came.1.notify_all();
        }
    }

    /// Forgets the question that only a rejected frame asked about `chunk` (MBX-2). Otherwise a peer could
    /// fill the table with names of chunks that never existed.
    pub(super) fn forget_missing(&self, chunk: ChunkId) {
        for writable in [false, true] {
            if let Entry::Occupied(mut entry) = self.known.entry((chunk, writable)) {
                match entry.get() {
                    Known::Missing(_) => drop(entry.remove()),
                    // Another frame that waits for it asks again when the answer has come.
                    Known::Wanted => drop(entry.insert(Known::Unwanted)),
                    Known::Unwanted | Known::Mapped(_) | Known::Left(_) => {}
                }
            }
        }
    }

    fn set(&self, chunk: ChunkId, access: Access, state: Known) {
        let before = {
            let _came = self.came.0.lock();
            let before = self.known.insert((chunk, access == Access::ReadWrite), state);
            self.came.1.notify_all();
            before
        };
        // Without the lock: if it is the last handle of a mapping, it is unmapped here.
        drop(before);
    }

    /// Leaves a chunk to the leases on it, because its owner says that nobody holds anything in it. Usually
    /// there are none. If the owner lies, they stay valid as long as they are here.
    pub(super) fn withdrawn(&self, chunk: ChunkId) {
        let mut loose = Vec::new();
        for writable in [false, true] {
            if let Entry::Occupied(mut entry) = self.known.entry((chunk, writable))
                && let Known::Mapped(mapping) = entry.get()
            {
                let left = Known::Left(Arc::downgrade(mapping));
                loose.push(entry.insert(left));
            }
        }
        // Dropped here, for the reason given in `loosen_if_due`.
        drop(loose);
    }

    /// Makes the reader leave the chunks of a process that ended to the leases on them, once no frame on its
    /// way needs them.
    pub(super) fn loosen(&self) {
        self.loosen.store(true, Ordering::Release);
    }

    /// Does so if it is due. It waits for frames that are stuck, because they are about to take leases on
    /// chunks mapped for them.
    pub(super) fn loosen_if_due(&self, links: &Links, lifecycle: &ProcessLifecycle) {
        if !self.loosen.load(Ordering::Acquire)
            || self.mapping.load(Ordering::Acquire) > 0
            || links.all().iter().any(|link| link.is_stuck() && !link.is_broken())
        {
            return;
        }
        self.loosen.store(false, Ordering::Release);
        let mut loose = Vec::new();
        for mut entry in self.known.iter_mut() {
            let owner = entry.key().0.owner;
            // While there is a link, frames of the owner may still be unread.
            if links.to(owner).is_some() || !lifecycle.exited.contains(owner) {
                continue;
            }
            if let Known::Mapped(mapping) = entry.value() {
                let left = Known::Left(Arc::downgrade(mapping));
                loose.push(std::mem::replace(entry.value_mut(), left));
            }
        }
        // Dropped here: chunks without a lease are unmapped now, and that looks into the same table.
        drop(loose);
    }

    /// Tells the node that a mapping of a chunk is gone, unless the chunk is mapped again or asked for. In
    /// that case the node hears of the end of the new mapping.
    fn unmapped(&self, chunk: ChunkId, access: Access, control: &dyn ControlChannel) {
        let key = (chunk, access == Access::ReadWrite);
        if let Entry::Occupied(entry) = self.known.entry(key)
            && matches!(entry.get(), Known::Left(mapping) if mapping.strong_count() == 0)
        {
            // Sent under the lock of the entry, so before the chunk is asked for again.
            say_unmapped(chunk, access, control);
            entry.remove();
        }
    }

    /// Returns the number of known chunks.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn known(&self) -> usize {
        self.known.len()
    }

    /// Returns the number of mapped chunks. A chunk that is mapped twice counts twice.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn mapped(&self) -> usize {
        let mapped = |known: &Known| match known {
            Known::Mapped(_) => true,
            Known::Left(mapping) => mapping.strong_count() > 0,
            Known::Wanted | Known::Unwanted | Known::Missing(_) => false,
        };
        self.known.iter().filter(|entry| mapped(entry.value())).count()
    }
}

impl Memory {
    /// Maps a chunk that was asked for, and that the node has sent.
    pub(super) fn chunk_came(
        &self,
        came: ChunkCame,
        transport: &Weak<Transport>,
        control: &dyn ControlChannel,
        lifecycle: &ProcessLifecycle,
    ) {
        let ChunkCame { chunk, device, bytes, access, descriptors } = came;
        // The descriptors are untrusted: the node cannot know what the owner gave it.
        let descriptors: Vec<_> = descriptors.into_iter().map(PeerFd::from).collect();
        // A process that never used the device opens it now, because a process must map a tensor to hold it.
        let mapped = self.pool_for(device).and_then(|pool| match descriptors.first().and_then(PeerFd::fd) {
            Some(descriptor) => pool.backend().import_chunk(descriptor, bytes, access),
            None => Err(DeviceError::Refused { what: "it came without a descriptor".into() }),
        });
        fault::point("transport.chunk.came");
        match mapped {
            Ok(mapping) => {
                // Set before any thread can take the mapping, and so drop its last handle.
                mapping.drop_afterwards(Box::new(Unmapping {
                    transport: Weak::clone(transport),
                    chunk,
                    access,
                }));
                self.chunks.set(chunk, access, Known::Mapped(mapping));
                // Checked after the mapping is in the table: an end that comes later finds it there.
                if lifecycle.exited.contains(chunk.owner) {
                    self.chunks.loosen();
                }
            }
            Err(error) => {
                tracing::error!(?chunk, %device, %error, "a peer's memory could not be mapped");
                // Sent first, so that the next question comes after it.
                say_unmapped(chunk, access, control);
                self.chunks.set(chunk, access, Known::Missing(format!("cannot be mapped: {error}").into()));
            }
        }
    }
}

fn say_unmapped(chunk: ChunkId, access: Access, control: &dyn ControlChannel) {
    if control.send(ToNode::Unmapped { chunk, access }, Vec::new()).is_err() {
        tracing::debug!(?chunk, "the node has ended before it heard that a chunk is unmapped");
    }
}

/// Marks a thread that waits for a mapping. Chunks that arrive are kept mapped until it has its own.
struct Mapping<'a> {
    chunks: &'a Chunks,
    wakeups: &'a Wakeups,
}

impl<'a> Mapping<'a> {
    fn begin(chunks: &'a Chunks, wakeups: &'a Wakeups) -> Self {
        chunks.mapping.fetch_add(1, Ordering::AcqRel);
        Mapping { chunks, wakeups }
    }
}

impl Drop for Mapping<'_> {
    fn drop(&mut self) {
        self.chunks.mapping.fetch_sub(1, Ordering::AcqRel);
        // The reader deferred that while this thread waited.
        if self.chunks.loosen.load(Ordering::Acquire) {
            self.wakeups.wake_reader();
        }
    }
}

#[cfg(test)]
mod tests;

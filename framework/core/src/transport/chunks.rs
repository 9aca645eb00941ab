//! Memory of other processes, mapped here: each chunk once to read, and once more to write where a tensor in
//! it was handed over.
//!
//! What the living own stays mapped, so that a message costs no mapping, until they withdraw it. A chunk
//! whose owner has ended, and from which no more frames come, is left to the leases on it: it is unmapped
//! when the last of them goes, and the node is told, which closes its descriptors when nobody has the chunk
//! mapped (see `node/chunks.rs`). A lease that is forwarded here later maps it again.
//!
//! Used by `incoming`, which asks for what a frame's leases need; by a lease that is to be written; by what
//! the node answers; and by the reader, which lets go.
//!
//! **Invariants.** A question to the node stands as long as its entry says `Wanted`, so it is asked once. The
//! node hears "unmapped" of a mapping before it is asked for the chunk again.
//!
//! **Locks.** `came`, then a shard of the table, then the lock of [`Links`] (in [`Chunks::loosen_if_due`]).
//! Messages to the node go under a shard where their order is part of what they say. No mapping is dropped
//! under a shard: that looks into the same table.
//!
//! **On a crash** of the node nothing more can be asked for, and what is missing stays so. **On
//! cancellation** of [`Chunks::map_now`], which has a deadline, the answer that comes later is kept for
//! whoever asks next.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dashmap::{DashMap, Entry};
use foldhash::quality::RandomState;
use parking_lot::{Condvar, Mutex};

use super::Transport;
use super::links::Links;
use super::memory::Memory;
use super::process::ProcessLifecycle;
use super::wakeups::Wakeups;
use crate::device::{Access, ChunkMapping, DeviceError};
use crate::fault;
use crate::ids::{ChunkId, DeviceId};
use crate::os::Foreign;
use crate::transport::control_channel::{ControlChannel, ToNode};

/// How long [`Chunks::map_now`] waits for the node's answer.
const PATIENCE: Duration = Duration::from_secs(5);

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

/// What is known of a chunk.
#[derive(Debug)]
enum Known {
    /// Asked for.
    Wanted,
    /// Asked for by a frame that was rejected meanwhile: an answer "there is none" is for nobody.
    Unwanted,
    /// Mapped, and kept so.
    Mapped(Arc<ChunkMapping>),
    /// Mapped for as long as there are leases on it.
    Left(Weak<ChunkMapping>),
    /// There is none, or it cannot be mapped here, as this says.
    Missing(Arc<str>),
}

/// Goes with a mapping, and tells the transport when it has gone.
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
pub(super) struct Chunks {
    /// By chunk, and whether it is to be written.
    /// A peer chooses the keys, and cannot know how they are spread: by numbers of this process's own.
    known: DashMap<(ChunkId, bool), Known, RandomState>,
    /// Notified under the lock whenever an answer has come.
    came: (Mutex<()>, Condvar),
    /// Threads that wait for a chunk.
    mapping: AtomicUsize,
    /// A chunk of a process that ended is to be left to the leases on it.
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

    /// A chunk's mapping if it is here; asks the node for it otherwise.
    pub(super) fn get(&self, chunk: ChunkId, access: Access, control: &dyn ControlChannel) -> Chunk {
        let key = (chunk, access == Access::ReadWrite);
        match self.known.entry(key) {
            Entry::Occupied(entry) => match entry.get() {
                Known::Wanted => return Chunk::Wanted,
                Known::Unwanted => {
                    // The answer that is on its way is as good for this question.
                    entry.replace_entry(Known::Wanted);
                    return Chunk::Wanted;
                }
                Known::Mapped(mapping) => return Chunk::Mapped(Arc::clone(mapping)),
                // An answer "there is none" is good for one question: a forged frame may have asked for a
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
                    // It is being unmapped. The new question stands for that mapping's end too (see
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

    /// A chunk's mapping, waited for. Not on the path of any message.
    pub(super) fn map_now(
        &self,
        chunk: ChunkId,
        access: Access,
        control: &dyn ControlChannel,
        wakeups: &Wakeups,
    ) -> Result<Arc<ChunkMapping>, DeviceError> {
        let deadline = Instant::now() + PATIENCE;
        let _mapping = Mapping::begin(self, wakeups);
        // Before the question: an answer is told under this lock, so none comes between the look and the
        // wait.
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

    /// The node has no such chunk.
    pub(super) fn no_chunk(&self, chunk: ChunkId, access: Access) {
        {
            let _came = self.came.0.lock();
            if let Entry::Occupied(mut entry) = self.known.entry((chunk, access == Access::ReadWrite)) {
                match entry.get() {
                    Known::Unwanted => drop(entry.remove()),
                    Known::Wanted => drop(entry.insert(Known::Missing("does not exist (any more)".into()))),
                    // An answer to a question that was answered otherwise since.
                    Known::Mapped(_) | Known::Left(_) | Known::Missing(_) => {}
                }
            }
            self.came.1.notify_all();
        }
    }

    /// A frame that named `chunk` was rejected: what was asked for it alone is forgotten (MBX-2), or a peer
    /// could fill the table with names of chunks that there never were.
    pub(super) fn forget_missing(&self, chunk: ChunkId) {
        for writable in [false, true] {
            if let Entry::Occupied(mut entry) = self.known.entry((chunk, writable)) {
                match entry.get() {
                    Known::Missing(_) => drop(entry.remove()),
                    // Whoever else waits for it asks again when the answer has come.
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
        // Without the lock: should it be a mapping, and the last of it, then that is unmapped here.
        drop(before);
    }

    /// The owner of a chunk says that nobody holds anything in it. It is left to the leases on it: none, or
    /// the owner lies, and they are good as long as they are here.
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
        // Dropped here, for the reason that `loosen_if_due` has.
        drop(loose);
    }

    /// A process ended: when nothing is on its way that needs them, its chunks are left to the leases on
    /// them.
    pub(super) fn loosen(&self) {
        self.loosen.store(true, Ordering::Release);
    }

    /// Does so. A frame that waits for something is about to take leases on what was mapped for it.
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
            // While there is a link, frames of the owner are still to be read.
            if links.to(owner).is_some() || !lifecycle.exited.contains(owner) {
                continue;
            }
            if let Known::Mapped(mapping) = entry.value() {
                let left = Known::Left(Arc::downgrade(mapping));
                loose.push(std::mem::replace(entry.value_mut(), left));
            }
        }
        // Dropped here: what nobody has a lease on is unmapped, and that looks into the same table.
        drop(loose);
    }

    /// A mapping of a chunk has gone. The node hears of it unless the chunk is mapped again or asked for:
    /// then it is that mapping whose end it hears of.
    fn unmapped(&self, chunk: ChunkId, access: Access, control: &dyn ControlChannel) {
        let key = (chunk, access == Access::ReadWrite);
        if let Entry::Occupied(entry) = self.known.entry(key)
            && matches!(entry.get(), Known::Left(mapping) if mapping.strong_count() == 0)
        {
            // Under the lock of the entry, so that it is said before the chunk is asked for again.
            say_unmapped(chunk, access, control);
            entry.remove();
        }
    }

    /// Chunks that anything is known of.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn known(&self) -> usize {
        self.known.len()
    }

    /// Chunks that are mapped, those that are mapped twice counted twice.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn mapped(&self) -> usize {
        let mapped = |known: &Known| match known {
            Known::Mapped(_) => true,
            Known::Left(mapping) => mapping.strong_count() > 0,
            Known::Wanted | Known::Unwanted | Known::Missing(_) => false,
        };
        self.known.iter().filter(|entry| mapped(entry.value())).count()
    }
}

impl Memory {
    /// The node has sent a chunk that was asked for: maps it.
    pub(super) fn chunk_came(
        &self,
        came: ChunkCame,
        transport: &Weak<Transport>,
        control: &dyn ControlChannel,
        lifecycle: &ProcessLifecycle,
    ) {
        let ChunkCame { chunk, device, bytes, access, descriptors } = came;
        // The node cannot know what its owner gave it.
        let descriptors: Vec<_> = descriptors.into_iter().map(Foreign::from).collect();
        // A process that never used the device opens it now: to hold a tensor is to map it.
        let mapped = self.pool_for(device).and_then(|pool| match descriptors.first().and_then(Foreign::fd) {
            Some(descriptor) => pool.backend().import_chunk(descriptor, bytes, access),
            None => Err(DeviceError::Refused { what: "it came without a descriptor".into() }),
        });
        fault::point("transport.chunk.came");
        match mapped {
            Ok(mapping) => {
                // Before anybody can take the mapping, and so drop the last of it.
                mapping.drop_afterwards(Box::new(Unmapping {
                    transport: Weak::clone(transport),
                    chunk,
                    access,
                }));
                self.chunks.set(chunk, access, Known::Mapped(mapping));
                // It is looked for after the mapping is in the table: an end that comes later finds it there.
                if lifecycle.exited.contains(chunk.owner) {
                    self.chunks.loosen();
                }
            }
            Err(error) => {
                tracing::error!(?chunk, %device, %error, "a peer's memory could not be mapped");
                // First this, so that the next question comes after it.
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

/// Somebody waits for a mapping: what comes for them is kept until they have it.
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
        // The reader has put it off while somebody waited here.
        if self.chunks.loosen.load(Ordering::Acquire) {
            self.wakeups.wake_reader();
        }
    }
}

#[cfg(test)]
mod tests;

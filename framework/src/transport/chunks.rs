//! Memory of other processes, mapped here: each chunk once to read, and once more to write where a tensor in it was
//! handed over.
//!
//! What the living own stays mapped, so that a message costs no mapping. A chunk whose owner has ended, and from which no
//! more frames come, is left to the leases on it: it is unmapped when the last of them goes, and the node is told, which
//! closes its descriptors when nobody has the chunk mapped (see `node/chunks.rs`). A lease that is forwarded here later
//! maps it again.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dashmap::Entry;

use super::Transport;
use crate::device::{Access, ChunkMapping, DeviceError};
use crate::fault;
use crate::ids::{ChunkId, DeviceId};
use crate::os::Foreign;
use crate::transport::control_channel::ToNode;

/// How long [`Transport::map_now`] waits for the node's answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The answer to a question for a chunk.
#[derive(Clone, Debug)]
pub(super) enum Chunk {
    /// Asked for.
    Wanted,
    /// Mapped.
    Mapped(Arc<ChunkMapping>),
    /// There is none, or it cannot be mapped here.
    Missing,
}

/// What is known of a chunk.
#[derive(Debug)]
pub(super) enum Known {
    /// Asked for.
    Wanted,
    /// Asked for by a frame that was rejected meanwhile: an answer "there is none" is for nobody.
    Unwanted,
    /// Mapped, and kept so.
    Mapped(Arc<ChunkMapping>),
    /// Mapped for as long as there are leases on it.
    Left(Weak<ChunkMapping>),
    /// There is none, or it cannot be mapped here.
    Missing,
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
            transport.unmapped(self.chunk, self.access);
        }
    }
}

impl Transport {
    /// A chunk's mapping if it is here; asks the node for it otherwise.
    pub(super) fn chunk(&self, chunk: ChunkId, access: Access) -> Chunk {
        let key = (chunk, access == Access::ReadWrite);
        match self.chunks.entry(key) {
            Entry::Occupied(entry) => match entry.get() {
                Known::Wanted => return Chunk::Wanted,
                Known::Unwanted => {
                    // The answer that is on its way is as good for this question.
                    entry.replace_entry(Known::Wanted);
                    return Chunk::Wanted;
                }
                Known::Mapped(mapping) => return Chunk::Mapped(Arc::clone(mapping)),
                // An answer "there is none" is good for one question: a forged frame may have asked for a chunk before
                // its owner made it (WIRE-1).
                Known::Missing => {
                    entry.remove();
                    return Chunk::Missing;
                }
                Known::Left(mapping) => {
                    if let Some(mapping) = mapping.upgrade() {
                        return Chunk::Mapped(mapping);
                    }
                    // It is being unmapped. The new question stands for that mapping's end too (see `unmapped`).
                    entry.replace_entry(Known::Wanted);
                }
            },
            Entry::Vacant(entry) => {
                entry.insert(Known::Wanted);
            }
        }
        if self.control.send(ToNode::WantChunk { chunk, access }, Vec::new()).is_err() {
            self.chunks.remove(&key);
            return Chunk::Missing;
        }
        Chunk::Wanted
    }

    /// A chunk's mapping, waited for. Not on the path of any message.
    pub(super) fn map_now(&self, chunk: ChunkId, access: Access) -> Result<Arc<ChunkMapping>, DeviceError> {
        let deadline = Instant::now() + PATIENCE;
        let _mapping = Mapping::begin(self);
        let mut came = self.chunk_came.0.lock();
        loop {
            match self.chunk(chunk, access) {
                Chunk::Mapped(mapping) => return Ok(mapping),
                Chunk::Missing => {
                    return Err(DeviceError::Refused {
                        what: format!("chunk {} of {} does not exist (any more)", chunk.index, chunk.owner),
                    });
                }
                Chunk::Wanted => {
                    if self.chunk_came.1.wait_until(&mut came, deadline).timed_out() {
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
            let _came = self.chunk_came.0.lock();
            if let Entry::Occupied(mut entry) = self.chunks.entry((chunk, access == Access::ReadWrite)) {
                match entry.get() {
                    Known::Unwanted => drop(entry.remove()),
                    Known::Wanted => drop(entry.insert(Known::Missing)),
                    // An answer to a question that was answered otherwise since.
                    Known::Mapped(_) | Known::Left(_) | Known::Missing => {}
                }
            }
            self.chunk_came.1.notify_all();
        }
    }

    /// A frame that named `chunk` was rejected: what was asked for it alone is forgotten (MBX-2), or a peer could fill the
    /// table with names of chunks that there never were.
    pub(super) fn forget_missing(&self, chunk: ChunkId) {
        for writable in [false, true] {
            if let Entry::Occupied(mut entry) = self.chunks.entry((chunk, writable)) {
                match entry.get() {
                    Known::Missing => drop(entry.remove()),
                    // Whoever else waits for it asks again when the answer has come.
                    Known::Wanted => drop(entry.insert(Known::Unwanted)),
                    Known::Unwanted | Known::Mapped(_) | Known::Left(_) => {}
                }
            }
        }
    }

    fn set_chunk(&self, chunk: ChunkId, access: Access, state: Known) {
        let before = {
            let _came = self.chunk_came.0.lock();
            let before = self.chunks.insert((chunk, access == Access::ReadWrite), state);
            self.chunk_came.1.notify_all();
            before
        };
        // Without the lock: should it be a mapping, and the last of it, then that is unmapped here.
        drop(before);
    }

    pub(super) fn chunk_came(
        &self,
        chunk: ChunkId,
        device: DeviceId,
        bytes: u64,
        access: Access,
        descriptors: Vec<OwnedFd>,
    ) {
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
                mapping.drop_afterwards(Box::new(Unmapping { transport: self.this.clone(), chunk, access }));
                self.set_chunk(chunk, access, Known::Mapped(mapping));
                if self.has_exited(chunk.owner) {
                    self.loosen_chunks();
                }
            }
            Err(error) => {
                tracing::error!(?chunk, %device, %error, "a peer's memory could not be mapped");
                // First this, so that the next question comes after it.
                self.say_unmapped(chunk, access);
                self.set_chunk(chunk, access, Known::Missing);
            }
        }
    }

    /// A process ended: when nothing is on its way that needs them, its chunks are left to the leases on them.
    pub(super) fn loosen_chunks(&self) {
        self.loosen.store(true, Ordering::Release);
    }

    /// Does so. A frame that waits for something is about to take leases on what was mapped for it.
    pub(super) fn loosen_if_due(&self) {
        if !self.loosen.load(Ordering::Acquire)
            || self.mapping.load(Ordering::Acquire) > 0
            || self.links.all().iter().any(|link| link.stuck.load(Ordering::Relaxed) && !link.is_broken())
        {
            return;
        }
        self.loosen.store(false, Ordering::Release);
        let mut loose = Vec::new();
        for mut entry in self.chunks.iter_mut() {
            let owner = entry.key().0.owner;
            // While there is a link, frames of the owner are still to be read.
            if self.links.to(owner).is_some() || !self.has_exited(owner) {
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

    /// A mapping of a chunk has gone. The node hears of it unless the chunk is mapped again or asked for: then it is that
    /// mapping whose end it hears of.
    fn unmapped(&self, chunk: ChunkId, access: Access) {
        let key = (chunk, access == Access::ReadWrite);
        if let Entry::Occupied(entry) = self.chunks.entry(key)
            && matches!(entry.get(), Known::Left(mapping) if mapping.strong_count() == 0)
        {
            // Under the lock of the entry, so that it is said before the chunk is asked for again.
            self.say_unmapped(chunk, access);
            entry.remove();
        }
    }

    fn say_unmapped(&self, chunk: ChunkId, access: Access) {
        if self.control.send(ToNode::Unmapped { chunk, access }, Vec::new()).is_err() {
            tracing::debug!(?chunk, "the node has ended before it heard that a chunk is unmapped");
        }
    }
}

/// Somebody waits for a mapping: what comes for them is kept until they have it.
struct Mapping<'a>(&'a Transport);

impl<'a> Mapping<'a> {
    fn begin(transport: &'a Transport) -> Self {
        transport.mapping.fetch_add(1, Ordering::AcqRel);
        Mapping(transport)
    }
}

impl Drop for Mapping<'_> {
    fn drop(&mut self) {
        self.0.mapping.fetch_sub(1, Ordering::AcqRel);
        if self.0.loosen.load(Ordering::Acquire) {
            self.0.wake_reader();
        }
    }
}

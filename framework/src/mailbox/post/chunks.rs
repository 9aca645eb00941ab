//! Memory of other processes, mapped here: each chunk once to read, and once more to write where a tensor in it was
//! handed over.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Office;
use crate::device::{Access, ChunkMapping, DeviceError};
use crate::ids::{ChunkId, DeviceId};
use crate::mailbox::port::ToNode;

/// How long [`Office::map_now`] waits for the node's answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is known of a chunk.
#[derive(Clone, Debug)]
pub(super) enum Chunk {
    /// Asked for.
    Wanted,
    /// Mapped.
    Mapped(Arc<ChunkMapping>),
    /// There is none, or it cannot be mapped here.
    Missing,
}

impl Office {
    /// A chunk's mapping if it is here; asks the node for it otherwise.
    pub(super) fn chunk(&self, chunk: ChunkId, access: Access) -> Chunk {
        let key = (chunk, access == Access::ReadWrite);
        // An answer "there is none" is good for one question: a forged frame may have asked for a chunk before its owner
        // made it (WIRE-1).
        if self.chunks.remove_if(&key, |_, known| matches!(known, Chunk::Missing)).is_some() {
            return Chunk::Missing;
        }
        if let Some(known) = self.chunks.get(&key) {
            return known.clone();
        }
        self.chunks.insert(key, Chunk::Wanted);
        if self.port.send(ToNode::WantChunk { chunk, access }, Vec::new()).is_err() {
            self.chunks.insert(key, Chunk::Missing);
            return Chunk::Missing;
        }
        Chunk::Wanted
    }

    /// A chunk's mapping, waited for. Not on the path of any message.
    pub(super) fn map_now(&self, chunk: ChunkId, access: Access) -> Result<Arc<ChunkMapping>, DeviceError> {
        let deadline = Instant::now() + PATIENCE;
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

    pub(super) fn set_chunk(&self, chunk: ChunkId, access: Access, state: Chunk) {
        let _came = self.chunk_came.0.lock();
        self.chunks.insert((chunk, access == Access::ReadWrite), state);
        self.chunk_came.1.notify_all();
    }

    pub(super) fn chunk_came(
        &self,
        chunk: ChunkId,
        device: DeviceId,
        bytes: u64,
        access: Access,
        descriptors: Vec<OwnedFd>,
    ) {
        // A process that never used the device opens it now: to hold a tensor is to map it.
        let mapped = self.pool_for(device).and_then(|pool| match descriptors.first() {
            Some(descriptor) => pool.backend().import_chunk(descriptor.as_fd(), bytes, access),
            None => Err(DeviceError::Refused { what: "it came without a descriptor".into() }),
        });
        let state = match mapped {
            Ok(mapping) => Chunk::Mapped(mapping),
            Err(error) => {
                tracing::error!(?chunk, %device, %error, "a peer's memory could not be mapped");
                Chunk::Missing
            }
        };
        self.set_chunk(chunk, access, state);
    }
}

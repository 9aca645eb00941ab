//! Arenas of NIXL lanes on the devices of this host, and copies between them and the tensors of messages on
//! the copiers' streams.
//!
//! **Invariants.** HOST-6 and HOST-8 hold as for slots: outgoing data is checked when its copy has completed,
//! and incoming data counts as landed when its copy is submitted. HOST-11: one copy at a time uses a part of
//! an arena. The lane decides which, and has the part back when that copy has completed.

use std::any::Any;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tensorpost_hosts::frame::{Piece, Run};
use tensorpost_hosts::ids::Seq;
use tensorpost_hosts::nixl::{Arena, Arenas, MemoryPlace, Passing, Region};

use super::copier::Copier;
use super::copiers::{Copiers, Direction};
use super::store::{Source, Store};
use crate::device::{Backend, ChunkMapping};
use crate::tensor::TensorError;

/// The arenas for one other host.
pub(super) struct DeviceArenas {
    pub(super) store: Arc<Store>,
    pub(super) copiers: Arc<Copiers>,
}

/// Plain memory of a device.
struct DeviceArena {
    memory: Arc<ChunkMapping>,
    place: MemoryPlace,
    /// The copier on whose stream probes are read and written.
    copier: Arc<Copier>,
}

impl DeviceArena {
    fn backend(&self) -> &Arc<dyn Backend> {
        self.copier.stream().pool().backend()
    }
}

impl Arena for DeviceArena {
    fn memory(&self) -> Region {
        Region { place: self.place, address: self.memory.addr(), bytes: self.memory.len() }
    }

    fn enter(&self) -> Result<(), String> {
        self.backend().enter().map_err(|error| error.to_string())
    }

    fn fill(&self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        self.copier.fill_arena(&self.memory, offset, bytes).map_err(|error| error.to_string())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), String> {
        self.copier.read_arena(&self.memory, offset, bytes).map_err(|error| error.to_string())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Returns the memory of an arena of this host.
fn memory_of(arena: &Arc<dyn Arena>) -> Option<&Arc<ChunkMapping>> {
    arena.as_any().downcast_ref::<DeviceArena>().map(|arena| &arena.memory)
}

/// Returns the first piece of a run, with which its span is named in reports.
fn piece_of(run: &Run) -> Piece {
    Piece { post: run.post, span: run.span, offset: run.offset, bytes: 0 }
}

impl Arenas for DeviceArenas {
    fn lands(&self, post: Seq, span: u16) -> BoxFuture<'_, Option<u8>> {
        async move {
            let device = self.store.lands(post, span).await?;
            self.copiers.number(device)
        }
        .boxed()
    }

    fn reserve(&self, device: u8, bytes: u64) -> Result<Arc<dyn Arena>, String> {
        let copiers = &self.copiers;
        let device = copiers.numbered(device).ok_or("there is no such device")?;
        let known = copiers.known(device, Direction::In).or_else(|| copiers.known(device, Direction::Out));
        let copier = known.map_or_else(|| copiers.get(device, Direction::In), Ok);
        let copier = copier.map_err(|error| error.to_string())?;
        let backend = copier.stream().pool().backend();
        let place = backend.cuda_number().map_or(MemoryPlace::Host, MemoryPlace::Gpu);
        let memory = backend.plain(bytes).map_err(|error| error.to_string())?;
        Ok(Arc::new(DeviceArena { memory, place, copier }))
    }

    fn export<'a>(&'a self, run: Run, arena: &'a Arc<dyn Arena>, offset: u64) -> BoxFuture<'a, bool> {
        async move {
            let (Some(Source::Staged(tensor, copier)), Some(memory)) =
                (self.store.source(run.post, run.span), memory_of(arena))
            else {
                return false;
            };
            match copier.export(&tensor, run.offset, run.bytes, memory, offset).await {
                Ok(()) => true,
                Err(error) => {
                    let why = match error {
                        TensorError::Tainted { .. } => None,
                        other => Some(other.to_string()),
                    };
                    self.store.spoilt(&piece_of(&run), why);
                    false
                }
            }
        }
        .boxed()
    }

    fn import<'a>(&'a self, run: Run, arena: &'a Arc<dyn Arena>, offset: u64) -> BoxFuture<'a, Passing> {
        async move {
            let begun = match (self.store.landing(run.post, run.span), memory_of(arena)) {
                (Some(landing), Some(memory)) => landing.import(run.offset, run.bytes, memory, offset),
                // The message was aborted.
                _ => return Passing(std::future::ready(()).boxed()),
            };
            match begun {
                Ok(passed) => Passing(
                    async move {
                        // If the copy never reports, the part is never used again.
                        if passed.await.is_err() {
                            std::future::pending::<()>().await;
                        }
                    }
                    .boxed(),
                ),
                Err(error) => {
                    self.store.lose(&piece_of(&run), &error);
                    Passing(std::future::ready(()).boxed())
                }
            }
        }
        .boxed()
    }
}

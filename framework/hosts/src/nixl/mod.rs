//! A lane for GPU memory, by [NIXL](https://github.com/ai-dynamo/nixl): from an arena of one host into an
//! arena of another.
//!
//! NIXL is found at run time ([`Library`]), and never required. It writes from registered memory to
//! registered memory, over whatever UCX finds: NVLink, a network card. It cannot use the pool's memory at
//! speed. So each *route*, from a device of one host to a device of the other, has an arena of slots on
//! either side. A run is copied into a slot, written, and copied out.
//!
//! 1. The sender says which spans it *wants* to send so. The receiver finds out where they land. For a new
//!    route it makes an arena there, and *offers* it to the sender, with the metadata of an agent that knows
//!    this arena and nothing else.
//! 2. The sender writes a slot twice, and the receiver checks whether the bytes are there. Then the same
//!    number of bytes goes by gRPC. The route is used if the second write was faster than all gRPC lanes
//!    together would be; NIXL's own "supported" is not trusted.
//! 3. From then on the receiver *grants* slots, each for one run of pieces. The sender copies and writes.
//!    When NIXL says that the write is complete at the other end, the sender says *wrote* by gRPC, in the
//!    order of that stream. Nothing is read from the other side's memory.
//! 4. A write that takes longer than [`NIXL_DEADLINE`](crate::limits::NIXL_DEADLINE), or fails, *breaks* the
//!    route: runs that had not arrived go by gRPC.
//!
//! **HOST-11.** A slot whose write was given up may still be written. It is not used before two things are
//! true. The receiver has deregistered the arena and ended its agent, so nothing of this process puts late
//! bytes there. And the sender has ended its agent, after its writes, because an agent that ends gives them
//! up while its devices copy all the same. Writes that take longer than the deadline are not waited for. If
//! they still arrive, they are for keys that are not valid any more. An arena is never shared with another
//! peer. Both have to end because UCX was seen to go on writing to deregistered memory, over TCP and between
//! processes of one machine. NIXL's code shows that it waits for no write when an agent ends.
//!
//! **Distrust.** The metadata of the other side is bounded and checked (`blob.rs`) before NIXL reads it, in
//! an agent that has only this route's arena. A violation ends the connection as with any other frame. NIXL
//! handles a peer's bytes in C++ that was not written for attackers, and does not encrypt what it sends. So
//! it is off unless the user turns it on.
//!
//! **On a broken connection** all routes break, and begin again with the next. **On the end of a session**
//! arenas go when their agents have ended. If the other side has another gateway, the agents of the old one
//! have ended with its process. The session with the next one has a lane of its own, which knows nothing of
//! this one's arenas and agents.
//!
//! `Lane` does no I/O and calls no NIXL. Its model (`model.rs`) has lost connections, writes that never end
//! and writes that come late. It also takes out each step of `steps.rs`, and some seed has to fail then.

mod blob;
mod lane;
mod library;
#[cfg(test)]
mod model;
mod reader;
mod steps;
mod times;
mod wire;
mod writer;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

pub use self::blob::BadMetadata;
pub(crate) use self::lane::{Do, Heard, Lane, Lie, Sizes};
pub use self::library::Library;
pub(crate) use self::wire::{At, Say, decode, encode};
use crate::frame::Run;
use crate::ids::Seq;

/// The place of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryPlace {
    /// Host memory.
    Host,
    /// Memory of this GPU, by its CUDA number in the process.
    Gpu(u32),
}

/// A range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// Its place.
    pub place: MemoryPlace,
    /// The address of its first byte.
    pub address: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

impl Region {
    /// Returns a part of it.
    pub fn part(&self, offset: u64, bytes: u64) -> Region {
        Region { place: self.place, address: self.address + offset, bytes }
    }

    fn contains(&self, part: &Region) -> bool {
        let end = |region: &Region| region.address.checked_add(region.bytes);
        part.place == self.place
            && part.address >= self.address
            && end(part).is_some()
            && end(part) <= end(self)
    }
}

/// Why NIXL fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts of the errors name their fields")]
pub enum NixlError {
    /// The library cannot be loaded.
    #[error(
        "libnixl_capi.so cannot be loaded: {why}; install the wheel `nixl` and name the library in TENSORPOST_NIXL"
    )]
    NoLibrary { why: String },
    /// A call failed.
    #[error("{call} of NIXL failed with {status}")]
    Call { call: &'static str, status: i32 },
    /// The other side's metadata is not valid.
    #[error("the other host's metadata was refused: {0}")]
    Metadata(#[from] BadMetadata),
    /// A value that cannot be passed to NIXL.
    #[error("{what} cannot be passed to NIXL")]
    Argument { what: &'static str },
}

/// NIXL, or a replacement for it in a test.
pub trait Nixl: Send + Sync + fmt::Debug {
    /// Makes an agent of this name.
    ///
    /// # Errors
    /// NIXL refuses.
    fn agent(&self, name: &str, part: Part) -> Result<Box<dyn Agent>, NixlError>;
}

/// The part that an agent plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It writes, and makes progress only when it is asked whether a write is done.
    Writer,
    /// It is written to, and makes progress by itself.
    Written,
}

/// One end of a route. One thread uses it, and may block in it.
///
/// When it is dropped its memory is deregistered and its writes have ended.
pub trait Agent {
    /// Registers memory, which outlives this.
    ///
    /// # Errors
    /// NIXL refuses.
    fn register(&mut self, memory: Region) -> Result<(), NixlError>;

    /// Returns the metadata that another agent needs to write to the registered memory.
    ///
    /// # Errors
    /// NIXL refuses.
    fn metadata(&mut self) -> Result<Bytes, NixlError>;

    /// Loads the metadata of another agent, which has this name and this memory.
    ///
    /// # Errors
    /// It is not the metadata of such an agent, or NIXL refuses.
    fn connect(&mut self, name: &str, metadata: &[u8], memory: Region) -> Result<(), NixlError>;

    /// Begins to write registered memory of this agent to memory of the other agent. Returns the number of
    /// the write.
    ///
    /// # Errors
    /// NIXL refuses.
    fn begin(&mut self, from: Region, to: Region) -> Result<u64, NixlError>;

    /// Returns whether a write is complete, so that its bytes are in the other side's memory. A write that
    /// was complete, or failed, is forgotten.
    ///
    /// # Errors
    /// The write failed.
    fn is_done(&mut self, write: u64) -> Result<bool, NixlError>;
}

/// Memory of one device, which holds slots. It is given back when it is dropped.
pub trait Arena: Send + Sync {
    /// Returns its range of memory.
    fn memory(&self) -> Region;

    /// Prepares the calling thread to use it: for a GPU, makes its context the thread's.
    ///
    /// # Errors
    /// The thread cannot use it.
    fn enter(&self) -> Result<(), String>;

    /// Writes bytes at `offset`, and waits until they are there. For a probe.
    ///
    /// # Errors
    /// The device refuses.
    fn fill(&self, offset: u64, bytes: &[u8]) -> Result<(), String>;

    /// Reads bytes at `offset`. For a probe.
    ///
    /// # Errors
    /// The device refuses.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), String>;

    /// Returns the concrete type to its maker.
    fn as_any(&self) -> &dyn Any;
}

/// The second half of a copy: resolves when the copy has completed.
pub struct Passing(pub BoxFuture<'static, ()>);

/// Memory of messages between this host and another that goes by NIXL, into arenas and out of them. The
/// numbers of devices mean something only here.
pub trait Arenas: Send + Sync {
    /// Returns the device on which a span lands, of a message that has come or will come; `None` if it goes
    /// by gRPC. Waits until that is known.
    fn lands(&self, post: Seq, span: u16) -> BoxFuture<'_, Option<u8>>;

    /// Makes an arena. Called on a thread that may wait for the driver.
    ///
    /// # Errors
    /// There is no such device, or it has no memory left.
    fn reserve(&self, device: u8, bytes: u64) -> Result<Arc<dyn Arena>, String>;

    /// Copies a run of an outgoing message into an arena. Resolves when the bytes are there. Resolves to
    /// `false` if they are not good any more (HOST-6), or the message is not sent any more.
    fn export<'a>(&'a self, run: Run, arena: &'a Arc<dyn Arena>, offset: u64) -> BoxFuture<'a, bool>;

    /// Copies a run of an arriving message out of an arena to its place. Resolves when the copy was
    /// submitted: code that uses the memory after that finds the bytes there (HOST-8).
    fn import<'a>(&'a self, run: Run, arena: &'a Arc<dyn Arena>, offset: u64) -> BoxFuture<'a, Passing>;
}

/// Says that a host uses NIXL with another, and holds what it needs for that.
#[derive(Clone)]
pub struct NixlUse {
    /// NIXL.
    pub nixl: Arc<dyn Nixl>,
    /// The memory that it uses.
    pub arenas: Arc<dyn Arenas>,
    /// The number of gRPC lanes that NIXL has to beat. 0: it is used if its bytes arrive.
    pub lanes: u16,
}

/// An offered arena, as the sender has to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// The arena, in the receiver's addresses.
    pub(crate) memory: Region,
    /// The name of the receiver's agent.
    pub(crate) name: String,
    pub(crate) metadata: Bytes,
}

/// The time of a probe: one slot over NIXL.
pub(crate) type Took = Duration;

/// The times of a write by NIXL.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wrote {
    /// The call that began it.
    pub(crate) begin: Duration,
    /// From the end of that call until the write was seen to be complete.
    pub(crate) took: Duration,
}

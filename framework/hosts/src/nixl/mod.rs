//! A lane for GPU memory, by [NIXL](https://github.com/ai-dynamo/nixl): from an arena of one host into an
//! arena of another.
//!
//! NIXL is found at run time ([`Library`]), and never needed. It writes from registered memory to registered
//! memory, over whatever UCX finds: NVLink, a network card. The pool's memory is none that it can use at
//! speed, so each *route*, from a device of one host to a device of the other, has an arena of slots on
//! either side; what goes is copied into a slot, written, and copied out.
//!
//! 1. The sender says which spans it *wants* to send so. The receiver looks where they land; a route that is
//!    new gets an arena there, which is *offered* to the sender, with the metadata of an agent that knows
//!    this arena and nothing else.
//! 2. The sender writes a slot twice, and the receiver looks whether the bytes are there. Then as many go by
//!    gRPC. The route is used where the second write was faster than all lanes together would be; "supported"
//!    is not believed.
//! 3. From then on the receiver *grants* slots, each for one run of pieces. The sender copies, writes, and
//!    when NIXL says that the write is complete at the other end it says *wrote* by gRPC, in the order of
//!    that stream. Nothing is read from the other side's memory.
//! 4. A write that takes longer than [`NIXL_DEADLINE`](crate::limits::NIXL_DEADLINE), or fails, *breaks* the
//!    route: what had not arrived goes by gRPC.
//!
//! **HOST-11.** A slot whose write was given up may still be written. It is not used before both are true:
//! the receiver has deregistered the arena and ended its agent, so nothing of this process puts late bytes
//! there; and the sender has ended its own, behind its writes, because an agent that ends gives them up, and
//! its devices copy all the same. What takes longer than the deadline is not waited for. What comes in spite
//! of that is for keys that are not valid any more. An arena is never another peer's. That both have to end
//! was seen: UCX goes on writing to deregistered memory over TCP and between processes of one machine. That
//! NIXL waits for no write when an agent ends was read in its code.
//!
//! **Distrust.** The metadata of the other side is bounded and looked at (`blob.rs`) before NIXL reads it, by
//! an agent that has nothing but this route's arena. Who says what it must not ends the connection as with
//! any other frame. What NIXL does with a peer's bytes is C++ that was not written for enemies, and what it
//! sends is not encrypted: so it is off unless somebody says that it may be used.
//!
//! **On a broken connection** all routes break, and begin again with the next. **On the end of a session**
//! arenas go when their agents have. Where the other side has another gateway, the agents of the last have
//! ended with its process; the session with the next has a lane of its own, which knows nothing of this one's
//! arenas and agents.
//!
//! `Lane` does no I/O and calls no NIXL. Its model (`model.rs`) has lost connections, writes that never end
//! and writes that come late, and takes each step of `steps.rs` out, which has to be noticed.

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

pub use self::blob::BadMetadata;
pub(crate) use self::lane::{Do, Heard, Lane, Lie, Sizes};
pub use self::library::Library;
pub(crate) use self::wire::{At, Say, decode, encode};
use crate::frame::Run;
use crate::ids::Seq;

/// Where memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the host.
    Host,
    /// On this GPU, by the number that CUDA has for it in the process.
    Gpu(u32),
}

/// A range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Where.
    pub place: Place,
    /// Of its first byte.
    pub address: u64,
    /// How many.
    pub bytes: u64,
}

impl Region {
    /// So many bytes of it.
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

/// Why NIXL does not do what it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NixlError {
    /// It is not there.
    #[error(
        "libnixl_capi.so cannot be loaded: {why}; install the wheel `nixl` and name the library in TENSORPOST_NIXL"
    )]
    NoLibrary {
        /// What the loader says.
        why: String,
    },
    /// A call failed.
    #[error("{call} of NIXL failed with {status}")]
    Call {
        /// Which.
        call: &'static str,
        /// What it returned.
        status: i32,
    },
    /// What the other side says of itself cannot be its metadata.
    #[error("the other host's metadata was refused: {0}")]
    Metadata(#[from] BadMetadata),
    /// Something that cannot be passed to it.
    #[error("{what} cannot be passed to NIXL")]
    Argument {
        /// What.
        what: &'static str,
    },
}

/// NIXL, or what stands in for it in a test.
pub trait Nixl: Send + Sync + fmt::Debug {
    /// Makes an agent of this name.
    ///
    /// # Errors
    /// NIXL says why not.
    fn agent(&self, name: &str, part: Part) -> Result<Box<dyn Agent>, NixlError>;
}

/// What an agent does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It writes, and goes on when it is asked whether a write is done: at no other time.
    Writer,
    /// It is written to, and goes on by itself.
    Written,
}

/// One end of a route. Used by one thread, which may wait in it.
///
/// When it is dropped its memory is deregistered and its writes have ended.
pub trait Agent {
    /// Has memory be used, which outlives this.
    ///
    /// # Errors
    /// NIXL says why not.
    fn register(&mut self, memory: Region) -> Result<(), NixlError>;

    /// What another agent needs to write to the memory that was registered.
    ///
    /// # Errors
    /// NIXL says why not.
    fn metadata(&mut self) -> Result<Bytes, NixlError>;

    /// Knows another agent, by its metadata, which has this name and this memory.
    ///
    /// # Errors
    /// It is no metadata of such an agent, or NIXL says why not.
    fn connect(&mut self, name: &str, metadata: &[u8], memory: Region) -> Result<(), NixlError>;

    /// Begins to write registered memory of this agent to memory of the one that it knows. What the write is
    /// called.
    ///
    /// # Errors
    /// NIXL says why not.
    fn begin(&mut self, from: Region, to: Region) -> Result<u64, NixlError>;

    /// Whether a write is complete: its bytes are in the other's memory. Once it was, or failed, it is
    /// forgotten.
    ///
    /// # Errors
    /// It failed.
    fn is_done(&mut self, write: u64) -> Result<bool, NixlError>;
}

/// Memory of one device, in which slots are. When it is dropped it is given back.
pub trait Arena: Send + Sync {
    /// Where it is.
    fn memory(&self) -> Region;

    /// Has the calling thread use it: for a GPU, its context is the thread's from here on.
    ///
    /// # Errors
    /// It cannot.
    fn enter(&self) -> Result<(), String>;

    /// Writes bytes from `offset` on, and waits until they are there. For a probe.
    ///
    /// # Errors
    /// The device refuses.
    fn fill(&self, offset: u64, bytes: &[u8]) -> Result<(), String>;

    /// Reads bytes from `offset` on. For a probe.
    ///
    /// # Errors
    /// The device refuses.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), String>;

    /// For whoever made it.
    fn as_any(&self) -> &dyn Any;
}

/// The other half of a copy: resolves when it has passed.
pub struct Passing(pub BoxFuture<'static, ()>);

/// Memory of messages between this host and another that goes by NIXL: into arenas, and out of them. Devices
/// have numbers that mean something only here.
pub trait Arenas: Send + Sync {
    /// The device where a span of a message lands that comes, or will: waits until that is known. `None`
    /// where it goes by gRPC.
    fn lands(&self, post: Seq, span: u16) -> BoxFuture<'_, Option<u8>>;

    /// Makes an arena. Called on a thread that may wait for the driver.
    ///
    /// # Errors
    /// The device has no memory, or is none.
    fn reserve(&self, device: u8, bytes: u64) -> Result<Arc<dyn Arena>, String>;

    /// Copies a run of a message that is sent into an arena. Resolves when the bytes are there; to `false`
    /// where they are not good any more (HOST-6), or nobody sends the message any more.
    fn export<'a>(&'a self, run: Run, arena: &'a Arc<dyn Arena>, offset: u64) -> BoxFuture<'a, bool>;

    /// Copies a run of a message that comes out of an arena to where it belongs. Resolves when the copy was
    /// submitted: whoever uses the memory after that finds the bytes there (HOST-8).
    fn import<'a>(&'a self, run: Run, arena: &'a Arc<dyn Arena>, offset: u64) -> BoxFuture<'a, Passing>;
}

/// That a host uses NIXL with another, and what it needs for that.
#[derive(Clone)]
pub struct NixlUse {
    /// NIXL.
    pub nixl: Arc<dyn Nixl>,
    /// Whose memory.
    pub arenas: Arc<dyn Arenas>,
    /// Lanes over gRPC, which NIXL has to be faster than. None: it is used if its bytes come.
    pub lanes: u16,
}

/// An arena is offered: what the sender has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// The arena, in the receiver's addresses.
    pub(crate) memory: Region,
    /// Of the receiver's agent.
    pub(crate) name: String,
    pub(crate) metadata: Bytes,
}

/// What a probe took: a slot, over NIXL.
pub(crate) type Took = Duration;

/// What NIXL took for a write.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wrote {
    /// The call that began it.
    pub(crate) begin: Duration,
    /// From then until it was seen to be complete.
    pub(crate) took: Duration,
}

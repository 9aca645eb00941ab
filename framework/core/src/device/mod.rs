//! Devices: memory that other processes can map, and streams whose work waits on clocks.
//!
//! A program names a device with [`Device`], which costs nothing and means the same device in every process:
//!
//! ```
//! use tensorpost::prelude::*;
//!
//! let host = Device::host();
//! assert_eq!(host.kind(), DeviceKind::Host);
//! assert_eq!("host".parse::<Device>()?.id(), host.id());
//! assert!(!Device::all().is_empty()); // the GPUs, then the host
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Backend`] is one device as one process sees it. It hands out *chunks*, whose descriptors travel to
//! peers once, and streams, each of which advances one clock of the process. Pools cut chunks into tensors
//! (see [`pool`]); no code here knows a tensor.
//!
//! On a crash: a chunk lives as long as any process has its descriptor or maps it, so the death of its
//! creator takes nothing from its holders (LEASE-4). A stream of a dead process stops advancing; the node
//! releases its clock (DEATH-1). Dropping a stream never blocks: submitted work is still done, in order.
//!
//! One suite checks the contract for every implementation: `device::conformance` (feature `testing`).

use std::any::Any;
use std::error;
use std::fmt::{self, Debug};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use thiserror::Error;

use crate::clock::{ClockDomain, ClockError, OwnClock, Ticket};
use crate::ids::{DeviceId, ProcessId};
use crate::limits::MAX_STREAMS;
use crate::os::{BadMemfd, remedy};

mod chunk;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(test)]
pub(crate) mod fake;
mod handle;
pub mod host;
#[doc(hidden)] // for `tensorpost-watch`
pub mod mps;
pub mod pool;

pub use crate::os::Access;
pub use chunk::{ChunkMapping, NewChunk};
pub use handle::Device;

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DeviceKind {
    /// Host memory; streams are threads.
    Host,
    /// An NVIDIA GPU.
    Cuda,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceKind::Host => "host",
            DeviceKind::Cuda => "cuda",
        })
    }
}

/// The mappings that an operation touches, kept until it is done.
pub type Keep = SmallVec<[Arc<ChunkMapping>; 2]>;

/// Seals the traits, because only this crate can uphold their promise: code that accesses memory on the word
/// of a [`Backend`] or a [`StreamBackend`] trusts that addresses, waits and clock writes are what they say
/// (SAFE-1).
pub(crate) mod sealed {
    /// A device or a stream of this crate.
    pub trait Sealed {}
}

/// A device, as this process uses it. Sealed: see [`StreamBackend`].
pub trait Backend: sealed::Sealed + Send + Sync + Debug + 'static {
    /// Returns the device's id, which is the same in every process.
    fn id(&self) -> DeviceId;

    /// Returns the kind of the device.
    fn kind(&self) -> DeviceKind;

    /// Returns the name for people.
    fn name(&self) -> String;

    /// Returns the bytes of memory that the device has.
    fn total_bytes(&self) -> u64;

    /// Returns the granularity: chunk sizes are multiples of this many bytes.
    fn granularity(&self) -> u64;

    /// Makes a chunk of at least `bytes` bytes, zeroed, rounded up to the granularity, and mapped writable
    /// here.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], or [`DeviceError::Refused`] for zero bytes.
    fn create_chunk(&self, bytes: u64) -> Result<NewChunk, DeviceError>;

    /// Returns whether [`give_back`](Self::give_back) does anything. A GPU's memory only comes and goes with
    /// whole mappings, so there a pool releases whole chunks.
    fn gives_back(&self) -> bool {
        false
    }

    /// Gives the memory of a range of a chunk that was made here back to the system. The bytes are zero from
    /// here on, for all processes that have the chunk mapped, and take memory again when they are written.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] if the device cannot do it; [`DeviceError::Refused`] for bytes outside of
    /// the chunk; the system's error.
    fn give_back(&self, chunk: &ChunkMapping, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        let what = format!("giving {bytes} bytes at {offset} of {chunk:?} back");
        Err(DeviceError::Unsupported { device: self.id(), what })
    }

    /// Drops the resources that it keeps for finished work, and for processes that have ended. Called now and
    /// then while a process has nothing else to do; never waits.
    fn check_idle(&self) {}

    /// Maps a chunk of a peer. `bytes` is its length as the peer's [`ChunkMapping::len`] says.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] or [`DeviceError::Memory`] if the descriptor is not such a chunk (WIRE-1).
    fn import_chunk(
        &self,
        fd: BorrowedFd<'_>,
        bytes: u64,
        access: Access,
    ) -> Result<Arc<ChunkMapping>, DeviceError>;

    /// Starts a stream that advances `clock` and waits on clocks of `domain`.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] if the clock is not one of the domain's own; [`DeviceError::NoStream`] if
    /// there are [`stream_limit`](Self::stream_limit) streams already.
    fn create_stream(
        &self,
        clock: OwnClock,
        domain: Arc<ClockDomain>,
    ) -> Result<Arc<dyn StreamBackend>, DeviceError>;

    /// Returns the largest number of streams that this process can have here at one time.
    #[cfg_attr(not(feature = "inside"), allow(dead_code, reason = "a GPU, or tests, use it"))]
    fn stream_limit(&self) -> usize {
        MAX_STREAMS
    }

    /// Returns whether streams of this device can use memory of `device` directly.
    fn can_reach(&self, device: DeviceId) -> bool {
        device == self.id()
    }

    /// Returns page-locked host memory of up to [`STAGING_BYTES`] bytes. Streams of this device and host
    /// threads can copy from it and to it without making anybody wait. Its contents are undefined.
    ///
    /// # Errors
    /// There is no memory.
    fn staging(&self, bytes: u64) -> Result<Arc<ChunkMapping>, DeviceError>;

    /// Returns memory of exactly `bytes` bytes for libraries that cannot use chunks; on a GPU that of
    /// `cuMemAlloc`. Its contents are undefined. Memory that is given back is kept for the next request for
    /// as much.
    ///
    /// # Errors
    /// There is no memory.
    #[cfg(feature = "hosts")]
    fn plain(&self, bytes: u64) -> Result<Arc<ChunkMapping>, DeviceError> {
        let what = format!("{bytes} bytes of plain memory");
        Err(DeviceError::Unsupported { device: self.id(), what })
    }

    /// Prepares the calling thread for passing this device's memory to libraries: on a GPU, the thread's
    /// current context is the device's from here on.
    ///
    /// # Errors
    /// The driver's error.
    #[cfg(feature = "hosts")]
    fn enter(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Returns CUDA's number for the device in this process, if it is a GPU.
    #[cfg(feature = "hosts")]
    fn cuda_number(&self) -> Option<u32> {
        None
    }

    /// For code that knows the implementation.
    #[cfg_attr(not(feature = "inside"), allow(dead_code, reason = "a GPU, or tests, use it"))]
    fn as_any(&self) -> &dyn Any;
}

/// The most bytes that [`Backend::staging`] gives in one piece.
pub const STAGING_BYTES: u64 = 8 << 20;

/// See [`testing_deny_reach`].
#[cfg(feature = "testing")]
static DENY_REACH: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Makes this process believe from here on, or no longer, that no GPU can reach the memory of another. It
/// only exists with the feature `testing`, for a test on a machine whose GPUs all can.
#[cfg(feature = "testing")]
pub fn testing_deny_reach(deny: bool) {
    DENY_REACH.store(deny, std::sync::atomic::Ordering::Relaxed);
}

/// An operation of a stream on a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamOp {
    /// Make later work wait until the ticket's clock has passed its value (CLOCK-1, CLOCK-2).
    Wait(Ticket),
    /// Advance this stream's clock to a value, once all work before is done and visible.
    Advance(u64),
}

/// Work in order, done apart from the threads that submit it.
///
/// Threads may share a stream; each call is one step in its order. The next fallible call that submits work
/// reports a failure of earlier work, and then has done nothing itself. Operations that only order work take
/// their place all the same.
///
/// Sealed, because code reads and writes memory on the word of a stream that its waits and clock writes are
/// what they say.
#[expect(
    unsafe_code,
    reason = "copies between raw addresses have a contract that only their callers can keep"
)]
pub trait StreamBackend: sealed::Sealed + Send + Sync + Debug + 'static {
    /// Returns the slot of the process's clock that the stream advances.
    fn clock_slot(&self) -> u16;

    /// Submits clock operations, in order, as one batch. Never waits for the clocks in them.
    ///
    /// # Errors
    /// [`DeviceError::Clock`] if a ticket's clock is unknown; nothing of the batch was submitted then.
    fn submit(&self, ops: &[StreamOp]) -> Result<(), DeviceError>;

    /// Returns whether there is so much room that clock operations submitted now cannot have to wait. Without
    /// room, a clock write that must not block (LEASE-2) is put off.
    fn has_room(&self) -> bool {
        true
    }

    /// Waits, while very many operations are ahead, until fewer are (MBX-2). Called with no lock held, before
    /// waits are submitted.
    ///
    /// # Errors
    /// Work on the stream failed.
    fn make_room(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Submits a copy of `bytes` bytes from address `src` to `dst`, and keeps `keep` until it is done.
    ///
    /// # Safety
    /// Until the copy is done (or an error was returned), `src..src + bytes` must be memory of this device,
    /// or pinned host memory, that this process may read. `dst..dst + bytes` must be the same that it may
    /// write. `keep` may hold their mappings for that, for example. The ranges do not overlap. Nobody else in
    /// this process accesses `dst`, or writes `src`, unordered with this stream; between processes, leases
    /// and tickets see to that.
    unsafe fn copy(&self, dst: u64, src: u64, bytes: u64, keep: Keep) -> Result<(), DeviceError>;

    /// Submits setting `bytes` bytes at `dst` to `value`, and keeps `keep` until it is done.
    ///
    /// # Safety
    /// As for the destination of [`copy`](Self::copy).
    unsafe fn fill(&self, dst: u64, bytes: u64, value: u8, keep: Keep) -> Result<(), DeviceError>;

    /// Submits a copy of `src` to `dst`; `src` may be reused when this returns.
    ///
    /// # Safety
    /// As for the destination of [`copy`](Self::copy).
    unsafe fn upload(&self, dst: u64, src: &[u8], keep: Keep) -> Result<(), DeviceError>;

    /// Copies from `src`, after all work submitted before, and waits until the copy is done.
    ///
    /// # Safety
    /// As for the source of [`copy`](Self::copy), until this returns.
    unsafe fn download(&self, dst: &mut [u8], src: u64) -> Result<(), DeviceError>;

    /// Waits until all work submitted before is done. For tests and shutdown: no handler waits like this.
    fn synchronize(&self) -> Result<(), DeviceError>;

    /// Returns how long the stream has stood in waits so far, if that can be told at no cost to it.
    fn waited(&self) -> Option<Duration> {
        None
    }

    /// For code that knows the implementation.
    fn as_any(&self) -> &dyn Any;
}

/// The errors of devices.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no CUDA driver that can be used.
    #[error("no CUDA driver: {reason}; install the NVIDIA driver or use Device::host()")]
    NoDriver {
        /// The missing part.
        reason: String,
    },
    /// There is no such device.
    #[error("there is no device {wanted}: {found} GPUs are visible here (see CUDA_VISIBLE_DEVICES)")]
    NoDevice {
        /// The device that was asked for.
        wanted: String,
        /// The number of GPUs that the process sees.
        found: usize,
    },
    /// The device has no room.
    #[error(
        "{device} has no room for {bytes} bytes; free tensors, lower the pool's budget{}",
        if *.device == DeviceId::HOST { ", or raise a limit of memory (ulimit -v, memory.max of the cgroup)" } else { "" }
    )]
    OutOfMemory {
        /// The device.
        device: DeviceId,
        /// The requested size in bytes.
        bytes: u64,
    },
    /// The process has as many streams on the device as can wait without stalling each other.
    #[error(
        "this process has {limit} streams on {device}, as many as can wait without stalling each other; share a `DeviceStream` \
         by cloning it, drop one, start the actor or the stage with `.streams(n)`, or set CUDA_DEVICE_MAX_CONNECTIONS (streams + 2, at \
         most 32) before the node starts"
    )]
    NoStream {
        /// The device.
        device: DeviceId,
        /// The number of streams that there are and can be.
        limit: usize,
    },
    /// The device takes no further process.
    #[error(
        "{device} has no room for another process: its memory is in use, or, under MPS, the connections of its server, which has \
         some 128 for all (this process asks for {connections}); start fewer processes on it, with fewer streams \
         (`.streams(n)`, CUDA_DEVICE_MAX_CONNECTIONS)"
    )]
    NoContext {
        /// The device.
        device: DeviceId,
        /// `CUDA_DEVICE_MAX_CONNECTIONS` of this process.
        connections: usize,
    },
    /// The device does not support the request.
    #[error("{device} does not support {what}")]
    Unsupported {
        /// The device.
        device: DeviceId,
        /// The request.
        what: String,
    },
    /// An argument, or a value from a peer, makes no sense (WIRE-1).
    #[error("refused: {what}")]
    Refused {
        /// The argument or value, and the reason.
        what: String,
    },
    /// A descriptor from a peer is not the memory it should be (WIRE-1).
    #[error("the descriptor of a chunk was refused")]
    Memory(#[source] Box<dyn error::Error + Send + Sync>),
    /// An operation of the operating system failed.
    #[error("could not {action}: {source}{}", remedy(.source))]
    Os {
        /// The attempted operation.
        action: &'static str,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// A call of the device's driver failed.
    #[error("{call} failed with {code}: {message}")]
    Driver {
        /// The name of the call.
        call: &'static str,
        /// The driver's number for the error.
        code: i32,
        /// The driver's words for it.
        message: String,
    },
    /// Work that was submitted to a stream earlier failed.
    #[error("earlier work on the stream of clock {slot} failed: {message}")]
    Stream {
        /// The clock of the stream.
        slot: u16,
        /// The failure.
        message: String,
    },
    /// The data that the work should wait for was lost with a process (DEATH-3).
    #[error("the data depends on work that {by} had not done when it died; make it again")]
    Tainted {
        /// The process that died.
        by: ProcessId,
    },
    /// A clock could not be used.
    #[error(transparent)]
    Clock(Box<dyn error::Error + Send + Sync>),
}

impl From<BadMemfd> for DeviceError {
    fn from(error: BadMemfd) -> Self {
        DeviceError::Memory(error.into())
    }
}

impl From<ClockError> for DeviceError {
    fn from(error: ClockError) -> Self {
        match error {
            ClockError::Tainted(tainted) => DeviceError::Tainted { by: tainted.by },
            error => DeviceError::Clock(error.into()),
        }
    }
}

impl DeviceError {
    /// Returns the process with which the data for the device was lost, if the error is about that (DEATH-3).
    pub fn lost_with(&self) -> Option<ProcessId> {
        match self {
            DeviceError::Tainted { by } => Some(*by),
            _ => None,
        }
    }

    /// Makes an error that names the attempted operation, for a failure of the operating system.
    pub fn os(action: &'static str) -> impl FnOnce(io::Error) -> DeviceError {
        move |source| DeviceError::Os { action, source }
    }
}

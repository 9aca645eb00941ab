//! The host as a device: chunks are sealed memory files, streams are threads.
//!
//! It follows the same protocol as a GPU, deaths included, and so serves wherever there is none. The tests of
//! all layers above run on it, and host tensors travel like any other.

#![expect(unsafe_code, reason = "vouches for the mappings it makes")]

use std::any::Any;
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::mm::{Advice, madvise};

use super::{Access, Backend, ChunkMapping, DeviceError, DeviceKind, NewChunk, StreamBackend};
use crate::clock::{ClockDomain, OwnClock};
use crate::ids::DeviceId;
use crate::os::{InForks, Mapping, Memfd, memfd};

mod queue;
mod stream;
mod work;

pub use stream::HostStream;

/// The bytes in a page, and so the granularity of chunks.
const PAGE: u64 = 4096;

/// Host memory and threads.
#[derive(Debug, Default)]
pub struct HostBackend {}

impl HostBackend {
    /// Returns the host, of which there is one.
    pub fn new() -> Arc<Self> {
        Arc::new(HostBackend {})
    }
}

impl crate::device::sealed::Sealed for HostBackend {}

impl Backend for HostBackend {
    fn id(&self) -> DeviceId {
        DeviceId::HOST
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Host
    }

    fn name(&self) -> String {
        "host memory".to_owned()
    }

    fn total_bytes(&self) -> u64 {
        let info = rustix::system::sysinfo();
        // Lossless: both are unsigned, and the product is the memory that the machine has.
        (info.totalram as u64).saturating_mul(u64::from(info.mem_unit))
    }

    fn granularity(&self) -> u64 {
        PAGE
    }

    fn create_chunk(&self, bytes: u64) -> Result<NewChunk, DeviceError> {
        let bytes = chunk_length(bytes)?;
        let memfd = Memfd::create("tensorpost-chunk", bytes).map_err(|error| no_room(error, bytes))?;
        let mapping = map(memfd.as_fd(), bytes, Access::ReadWrite)?;
        let read_only = memfd.read_only_fd().map_err(DeviceError::os("open a chunk again, read-only"))?;
        Ok(NewChunk { mapping, read_only, read_write: memfd.into_fd() })
    }

    fn gives_back(&self) -> bool {
        true
    }

    fn give_back(&self, chunk: &ChunkMapping, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        let range = chunk.range(offset, bytes).filter(|_| chunk.device() == self.id());
        let at = range.ok_or_else(|| DeviceError::Refused {
            what: format!("{bytes} bytes at {offset} are not inside of {chunk:?}"),
        })?;
        // SAFETY: the range is a part of the mapping, which is this process's own and shared. Its pages
        // become zero in the file, and nothing of this process but tensors is there. A thread that reads them
        // meanwhile reads the old bytes, or zeros.
        let given = unsafe { madvise(at as *mut c_void, bytes as usize, Advice::LinuxRemove) };
        given.map_err(|error| DeviceError::os("give memory of a chunk back")(error.into()))
    }

    fn import_chunk(
        &self,
        fd: BorrowedFd<'_>,
        bytes: u64,
        access: Access,
    ) -> Result<Arc<ChunkMapping>, DeviceError> {
        let bytes = chunk_length(bytes)?;
        let actual = memfd::check(fd, bytes)?;
        if actual != bytes {
            let what = format!("a chunk of {actual} bytes was announced with {bytes}");
            return Err(DeviceError::Refused { what });
        }
        map(fd, bytes, access)
    }

    fn create_stream(
        &self,
        clock: OwnClock,
        domain: Arc<ClockDomain>,
    ) -> Result<Arc<dyn StreamBackend>, DeviceError> {
        if !domain.owns(&clock) {
            let what = format!("clock {} for a stream of another process's domain", clock.slot());
            return Err(DeviceError::Refused { what });
        }
        Ok(HostStream::new(clock, domain))
    }

    fn staging(&self, bytes: u64) -> Result<Arc<ChunkMapping>, DeviceError> {
        Ok(self.create_chunk(bytes)?.mapping)
    }

    #[cfg(feature = "hosts")]
    fn plain(&self, bytes: u64) -> Result<Arc<ChunkMapping>, DeviceError> {
        Ok(self.create_chunk(bytes)?.mapping)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Rounds up to whole pages. An empty length, or one beyond the address space, is refused.
fn chunk_length(bytes: u64) -> Result<u64, DeviceError> {
    let rounded =
        bytes.checked_next_multiple_of(PAGE).filter(|&bytes| bytes > 0 && bytes <= isize::MAX as u64);
    rounded.ok_or_else(|| DeviceError::Refused { what: format!("a chunk of {bytes} bytes") })
}

fn map(fd: BorrowedFd<'_>, bytes: u64, access: Access) -> Result<Arc<ChunkMapping>, DeviceError> {
    // Lossless: `chunk_length` bounds it, and usize has 64 bits wherever memory files have these seals.
    let len = bytes as usize;
    let mapping = match access {
        Access::ReadOnly => Mapping::map(fd, len, access),
        // ONE-WRITER: this process is the one writer, and a forked child of it is another process.
        Access::ReadWrite => Mapping::map_own(fd, len, InForks::ReadOnly),
    };
    let mapping = mapping.map_err(|error| no_room(error, bytes))?;
    let (addr, len) = (mapping.addr() as u64, mapping.len() as u64);
    // SAFETY: the range is the one that `mapping` keeps until it is dropped, and a `Mapping` gives out
    // atomics only.
    Ok(unsafe { ChunkMapping::new(addr, len, access, DeviceId::HOST, Box::new(mapping)) })
}

fn no_room(error: io::Error, bytes: u64) -> DeviceError {
    match error.kind() {
        io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull | io::ErrorKind::FileTooLarge => {
            DeviceError::OutOfMemory { device: DeviceId::HOST, bytes }
        }
        _ => DeviceError::Os { action: "map a chunk of host memory", source: error },
    }
}

#[cfg(test)]
mod tests;

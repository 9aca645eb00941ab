//! NVIDIA GPUs as devices. Chunks are `cuMemCreate` memory shared by descriptor. Clocks are memory operations
//! of streams on pages of host memory.
//!
//! **On a crash** of another process, its chunks stay valid here (LEASE-4), and the node ends waits on its
//! clocks (DEATH-1). An illegal access of a kernel in *this* process loses the process's context: every call
//! fails from then on with the driver's number for it. A worker tells the node and ends (see `lost`). **On
//! close** of a stream nothing blocks: a thread sleeps until the stream is done, and then drops the things
//! that its work used. A [`CudaBackend`] lives as long as its process.
//!
//! These calls wait for a GPU, and no others here do:
//! * [`StreamBackend::download`] and [`StreamBackend::synchronize`];
//! * the zeroing of a new chunk (about 30 us for 64 MiB);
//! * copies and fills on a stream that has hundreds of operations ahead of it;
//! * uploads of more than 256 MiB.
//!
//! Some driver calls synchronise the device (`cuMemHostUnregister` does; `cuMemFree`, `cuCtxSynchronize` and
//! unloading a module may). Only `pages` makes such calls, while no stream has work. While a stream waits for
//! a clock, such a call blocks and delays every other call of the process, which can be a deadlock. User code
//! should make none.
//!
//! A process that uses a GPU should start with the variables in [`ENVIRONMENT`]; workers do. A process has
//! few streams on a GPU ([`cuda_streams`]), because a stream that waits for a clock stalls the other streams
//! of its hardware queue.
//!
//! | file | holds |
//! |---|---|
//! | `abi` | the driver's types and numbers |
//! | `driver` | the driver's functions, checked; the only file that names them |
//! | `devices` | which GPUs there are |
//! | `graph` | chains of kernels that are launched in one call |
//! | `memory` | chunks |
//! | `pages` | clock pages, registered with the driver |
//! | `lost` | what happens when a kernel's fault has lost the device to this process |
//! | `pinned` | page-locked memory for uploads, downloads and progress |
//! | `pending` | what a stream's unfinished work holds on to |
//! | `plain` | memory of `cuMemAlloc`, for NIXL |
//! | `probe` | what driver and GPUs say of themselves, for the doctor |
//! | `stream` | streams |
//! | `streams` | which of the driver's streams are in use, at most as many as can wait at once |

#![expect(unsafe_code, reason = "zeroes new chunks")]

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use cudarc::driver::{CudaContext, CudaStream};
use parking_lot::Mutex;

use super::{Access, Backend, ChunkMapping, DeviceError, DeviceKind, NewChunk, STAGING_BYTES, StreamBackend};
use crate::clock::{ClockDomain, OwnClock};
use crate::ids::DeviceId;
use crate::limits::{CUDA_CONNECTIONS, cuda_streams};
use crate::os::AdaptiveSpin;

mod abi;
mod devices;
mod driver;
#[cfg(feature = "graphs")]
pub(crate) mod graph;
mod lost;
mod memory;
mod pages;
mod pending;
mod pinned;
#[cfg(feature = "hosts")]
mod plain;
#[doc(hidden)] // for `tensorpost-watch`
pub mod probe;
mod stream;
mod streams;

pub use devices::{CudaDeviceInfo, devices};
pub(crate) use lost::probe as probe_all;
pub use stream::CudaStreamBackend;

use driver::{Driver, Event};
use memory::Handle;
use pinned::{Free, Pinned};
use streams::Streams;

/// Variables and values that a process should have from its start if its streams wait on clocks.
///
/// If the module of a kernel is loaded lazily, its first launch blocks until no stream waits. Under MPS, a
/// process has two hardware queues by default, see [`CUDA_CONNECTIONS`].
pub const ENVIRONMENT: [(&str, &str); 2] =
    [("CUDA_MODULE_LOADING", "EAGER"), ("CUDA_DEVICE_MAX_CONNECTIONS", "8")];

/// Returns the number of hardware queues that this process gets on a GPU.
fn connections() -> usize {
    let asked = std::env::var(ENVIRONMENT[1].0).ok().and_then(|text| text.trim().parse().ok());
    asked.unwrap_or(CUDA_CONNECTIONS).clamp(1, 32)
}

/// A GPU, as this process uses it.
pub struct CudaBackend {
    shared: Arc<Shared>,
}

/// The state that chunks and streams of one GPU share.
struct Shared {
    driver: &'static Driver,
    /// The driver's handle of the device.
    device: i32,
    id: DeviceId,
    name: String,
    total_bytes: u64,
    granularity: u64,
    /// The devices whose kernels can use this one's memory.
    peers: Vec<i32>,
    /// The devices whose memory this one's kernels can use.
    reaches: Vec<DeviceId>,
    context: Arc<CudaContext>,
    /// The stream for the backend's own work. It also is the context's first stream, before which cudarc
    /// synchronises the whole context. For any later stream that could mean to wait for a stream that waits.
    housekeeping: Arc<CudaStream>,
    free: Free,
    #[cfg(feature = "hosts")]
    plain: plain::Free,
    streams: Streams,
    spin: AdaptiveSpin,
}

/// The devices that this process has opened.
static BACKENDS: Mutex<BTreeMap<usize, Arc<CudaBackend>>> = Mutex::new(BTreeMap::new());

impl CudaBackend {
    /// Opens the GPU with this ordinal. The first call of the process makes its primary context (300 ms).
    ///
    /// # Errors
    /// [`DeviceError::NoDriver`], [`DeviceError::NoDevice`], [`DeviceError::Unsupported`] on a GPU that lacks
    /// an ability that the framework needs, or the driver's error.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, DeviceError> {
        let mut backends = BACKENDS.lock();
        if let Some(backend) = backends.get(&ordinal) {
            return Ok(Arc::clone(backend));
        }
        let backend = Arc::new(CudaBackend { shared: Shared::open(ordinal)? });
        backends.insert(ordinal, Arc::clone(&backend));
        Ok(backend)
    }

    /// Opens the GPU with this UUID.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn by_id(id: DeviceId) -> Result<Arc<Self>, DeviceError> {
        if let Some(backend) = BACKENDS.lock().values().find(|backend| backend.shared.id == id) {
            return Ok(Arc::clone(backend));
        }
        Self::open(devices::ordinal_of(id)?)
    }

    /// Returns the context that all work on this GPU shares. Modules that the user loads belong to it.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.shared.context
    }

    /// Makes memory that other machines could map, and releases it. `None` if the GPU does not report that
    /// ability.
    pub(crate) fn try_fabric(&self) -> Option<Result<(), DeviceError>> {
        let shared = &self.shared;
        let can = shared.driver.device_attribute(shared.device, abi::FABRIC_SUPPORTED);
        if !matches!(can, Ok(can) if can != 0) {
            return None;
        }
        let prop = abi::fabric_prop(shared.device);
        let made = shared.bind().and_then(|()| shared.driver.create(&prop, shared.granularity));
        Some(made.map(|handle| drop(Handle::new(shared.driver, handle))))
    }

    /// Returns the device's number in this process.
    #[cfg(any(test, feature = "inside", feature = "dlpack"))]
    pub fn ordinal(&self) -> usize {
        self.shared.context.ordinal()
    }

    /// Returns the size of the device's memory in bytes.
    #[cfg(any(test, feature = "inside"))]
    pub fn total_bytes(&self) -> u64 {
        self.shared.total_bytes
    }
}

impl Shared {
    fn open(ordinal: usize) -> Result<Arc<Self>, DeviceError> {
        let driver = match driver::get() {
            Err(error) if driver::is_no_device(&error) => return Err(no_such(ordinal, 0)),
            other => other?,
        };
        let handles = devices::handles(driver)?;
        let device = *handles.get(ordinal).ok_or_else(|| no_such(ordinal, handles.len()))?;
        let id = DeviceId(driver.device_uuid(device)?);
        // Checked before the context is made, which costs 300 ms and memory of the device.
        for (attribute, what) in abi::NEEDED {
            if driver.device_attribute(device, attribute)? == 0 {
                return Err(DeviceError::Unsupported { device: id, what: what.to_owned() });
            }
        }
        // One GPU may reach another that cannot reach it, so both directions are asked.
        let mut peers = Vec::new();
        let mut reaches = Vec::new();
        for peer in handles.into_iter().filter(|&peer| peer != device) {
            if driver.can_access_peer(peer, device)? {
                peers.push(peer);
            }
            if driver.can_access_peer(device, peer)? {
                reaches.push(DeviceId(driver.device_uuid(peer)?));
            }
        }
        for (variable, value) in ENVIRONMENT {
            if std::env::var_os(variable).is_none() {
                tracing::info!("{variable} is not set in this process; {value} will do");
            }
        }
        let context =
            driver.context(device, ordinal).map_err(|error| match driver::is_out_of_memory(&error) {
                true => DeviceError::NoContext { device: id, connections: connections() },
                false => error,
            })?;
        driver.bind(&context)?;
        // Must be the context's first stream, see `Shared::housekeeping`.
        let housekeeping = driver.stream(&context)?;
        let shared = Arc::new(Shared {
            driver,
            device,
            id,
            name: format!("{} (cuda:{ordinal})", driver.device_name(device)?),
            total_bytes: driver.device_bytes(device)?,
            granularity: driver.granularity(device)?,
            peers,
            reaches,
            context,
            housekeeping,
            free: Free::default(),
            #[cfg(feature = "hosts")]
            plain: plain::Free::default(),
            streams: Streams::new(cuda_streams(connections())),
            spin: AdaptiveSpin::default(),
        });
        lost::watch(&shared);
        Ok(shared)
    }

    /// Makes the context current on this thread.
    fn bind(&self) -> Result<(), DeviceError> {
        self.driver.bind(&self.context)
    }

    /// Sleeps until all work that is on a stream now is done. `before` enqueues work that belongs to it.
    fn finish(
        &self,
        stream: &CudaStream,
        before: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.bind()?;
        let event = match self.free.take_event() {
            Some(event) => event,
            None => Event::create(self.driver)?,
        };
        before()?;
        event.record(stream)?;
        let is_over = || !matches!(event.is_reached(), Ok(false));
        if !self.spin.until(is_over) {
            event.wait()?;
        }
        // An error that `is_over` met shows again here.
        event.is_reached()?;
        self.free.put_event(event);
        Ok(())
    }

    /// Sets new memory to zero, so that no process sees another's old data.
    fn zero(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        let stream = &self.housekeeping;
        self.finish(stream, || {
            // SAFETY: the range was just mapped writable, no other code knows it, and it stays until this is
            // done.
            unsafe { self.driver.fill(stream, address, bytes as usize, 0) }
        })
    }

    /// Returns the length of a chunk that `bytes` bytes fit in. An empty one, or one larger than the device,
    /// is refused.
    fn chunk_length(&self, bytes: u64) -> Result<u64, DeviceError> {
        if bytes == 0 {
            return Err(DeviceError::Refused { what: "a chunk of 0 bytes".to_owned() });
        }
        let rounded =
            bytes.checked_next_multiple_of(self.granularity).filter(|&bytes| bytes <= self.total_bytes);
        rounded.ok_or(DeviceError::OutOfMemory { device: self.id, bytes })
    }

    /// Turns an error into one that names the requested size, if the device has no room.
    fn no_room(&self, bytes: u64) -> impl FnOnce(DeviceError) -> DeviceError {
        let device = self.id;
        move |error| {
            if driver::is_out_of_memory(&error) { DeviceError::OutOfMemory { device, bytes } } else { error }
        }
    }
}

fn no_such(ordinal: usize, found: usize) -> DeviceError {
    DeviceError::NoDevice { wanted: format!("cuda:{ordinal}"), found }
}

impl crate::device::sealed::Sealed for CudaBackend {}

impl Backend for CudaBackend {
    fn id(&self) -> DeviceId {
        self.shared.id
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Cuda
    }

    fn name(&self) -> String {
        self.shared.name.clone()
    }

    fn total_bytes(&self) -> u64 {
        self.shared.total_bytes
    }

    fn granularity(&self) -> u64 {
        self.shared.granularity
    }

    fn create_chunk(&self, bytes: u64) -> Result<NewChunk, DeviceError> {
        let shared = &self.shared;
        let bytes = shared.chunk_length(bytes)?;
        shared.bind()?;
        let handle =
            shared.driver.create(&abi::chunk_prop(shared.device), bytes).map_err(shared.no_room(bytes))?;
        let handle = Handle::new(shared.driver, handle);
        let mapping =
            memory::map(shared, &handle, bytes, Access::ReadWrite).map_err(shared.no_room(bytes))?;
        shared.zero(mapping.addr(), bytes)?;
        // This is the only export of the chunk's life (700 us). The driver makes no descriptors that are
        // limited to reading.
        let read_write = shared.driver.export(handle.raw())?;
        let read_only = read_write.try_clone().map_err(DeviceError::os("duplicate a chunk's descriptor"))?;
        Ok(NewChunk { mapping, read_only, read_write })
    }

    fn import_chunk(
        &self,
        fd: BorrowedFd<'_>,
        bytes: u64,
        access: Access,
    ) -> Result<Arc<ChunkMapping>, DeviceError> {
        let shared = &self.shared;
        // WIRE-1: the length is a peer's claim. The driver refuses to map more memory than there is.
        if shared.chunk_length(bytes)? != bytes {
            return Err(DeviceError::Refused {
                what: format!("a chunk that was announced with {bytes} bytes"),
            });
        }
        shared.bind()?;
        let handle = Handle::new(shared.driver, shared.driver.import(fd)?);
        if shared.driver.location(handle.raw())? != Some(shared.device) {
            let what = format!("a chunk of another device than {}", shared.id);
            return Err(DeviceError::Refused { what });
        }
        memory::map(shared, &handle, bytes, access)
    }

    fn check_idle(&self) {
        let cores: Vec<_> = self.shared.streams.cores().iter().filter_map(Weak::upgrade).collect();
        cores.iter().for_each(|core| core.let_go_of_done());
        pages::look();
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
        Ok(CudaStreamBackend::new(&self.shared, clock, domain)?)
    }

    fn can_reach(&self, device: DeviceId) -> bool {
        #[cfg(feature = "testing")]
        if super::DENY_REACH.load(std::sync::atomic::Ordering::Relaxed) {
            return device == self.shared.id;
        }
        device == self.shared.id || self.shared.reaches.contains(&device)
    }

    fn staging(&self, bytes: u64) -> Result<Arc<ChunkMapping>, DeviceError> {
        if bytes > STAGING_BYTES {
            return Err(DeviceError::Refused {
                what: format!("{bytes} bytes of page-locked memory at once"),
            });
        }
        Ok(pinned::as_chunk(Pinned::take(&self.shared, bytes as usize)?))
    }

    #[cfg(feature = "hosts")]
    fn plain(&self, bytes: u64) -> Result<Arc<ChunkMapping>, DeviceError> {
        plain::take(&self.shared, bytes)
    }

    #[cfg(feature = "hosts")]
    fn enter(&self) -> Result<(), DeviceError> {
        self.shared.bind()
    }

    #[cfg(feature = "hosts")]
    fn cuda_number(&self) -> Option<u32> {
        u32::try_from(self.shared.context.ordinal()).ok()
    }

    fn stream_limit(&self) -> usize {
        self.shared.streams.limit()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl fmt::Debug for CudaBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaBackend({}, {})", self.shared.name, self.shared.id)
    }
}

#[cfg(test)]
mod tests;

//! The CUDA driver, with every return code checked. Only this file names the driver's symbols, and `graphs`
//! below it those of graphs.
//!
//! The functions are loaded from `libcuda.so.1` and typed here instead of called through cudarc's bindings.
//! There, a return code is a Rust enum, so a code that is newer than the bindings would be undefined
//! behaviour, and a missing library or symbol is a panic. Here a code is an `i32`, kept as it came
//! ([`DeviceError::Driver`]), and a missing library or symbol is an error. Contexts and streams are cudarc's,
//! so that user code works with the very same ones.
//!
//! This file keeps no state but the loaded library, which stays for the life of the process.

#![expect(unsafe_code, reason = "calls a C library")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaContext, CudaStream};
use libloading::Library;

use super::super::{Access, DeviceError};
use super::abi::*;
use super::lost;

/// The library that every Linux driver installs.
const LIBRARY: &str = "libcuda.so.1";

type Opaque = *mut c_void;

macro_rules! table {
    ($($(#[$only:meta])? $name:ident($($arg:ty),* $(,)?);)*) => {
        #[expect(non_snake_case, reason = "the driver's own names")]
        struct Table {
            $($(#[$only])? $name: unsafe extern "C" fn($($arg),*) -> i32,)*
        }

        impl Table {
            /// Looks every function up. The error names the first missing one.
            ///
            /// # Safety
            /// `look_up` returns null or the function of this name in a CUDA driver, which stays loaded.
            unsafe fn load(look_up: impl Fn(&'static [u8]) -> *const c_void) -> Result<Self, &'static str> {
                Ok(Table {
                    $($(#[$only])? $name: {
                        let at = look_up(concat!(stringify!($name), "\0").as_bytes());
                        if at.is_null() {
                            return Err(stringify!($name));
                        }
                        // SAFETY: the signature is the one of the driver's header, with its enums as integers
                        // of their size. The rest is the caller's contract.
                        unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn($($arg),*) -> i32>(at) }
                    },)*
                })
            }

            /// Returns a driver whose every function does nothing and returns `CODE`.
            #[cfg(test)]
            fn answering<const CODE: i32>() -> Self {
                Table {
                    $($(#[$only])? $name: {
                        unsafe extern "C" fn answer<const CODE: i32>($(_: $arg),*) -> i32 {
                            CODE
                        }
                        answer::<CODE>
                    },)*
                }
            }
        }
    };
}

#[cfg(feature = "graphs")]
pub(super) mod graphs;

table! {
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuGetErrorName(i32, *mut *const c_char);
    cuGetErrorString(i32, *mut *const c_char);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut c_int, c_int);
    cuDeviceGetName(*mut c_char, c_int, c_int);
    cuDeviceGetUuid_v2(*mut [u8; 16], c_int);
    cuDeviceTotalMem_v2(*mut usize, c_int);
    cuDeviceGetAttribute(*mut c_int, c_int, c_int);
    cuDeviceCanAccessPeer(*mut c_int, c_int, c_int);
    cuDevicePrimaryCtxRetain(*mut Opaque, c_int);
    cuDevicePrimaryCtxRelease_v2(c_int);
    cuCtxGetCurrent(*mut Opaque);
    cuCtxSetCurrent(Opaque);
    cuMemGetAllocationGranularity(*mut usize, *const AllocationProp, c_uint);
    cuMemCreate(*mut u64, usize, *const AllocationProp, u64);
    cuMemRelease(u64);
    cuMemExportToShareableHandle(*mut c_void, u64, c_uint, u64);
    cuMemImportFromShareableHandle(*mut u64, *mut c_void, c_uint);
    cuMemGetAllocationPropertiesFromHandle(*mut AllocationProp, u64);
    cuMemAddressReserve(*mut u64, usize, usize, u64, u64);
    cuMemAddressFree(u64, usize);
    cuMemMap(u64, usize, usize, u64, u64);
    cuMemUnmap(u64, usize);
    cuMemSetAccess(u64, usize, *const AccessDesc, usize);
    #[cfg(feature = "hosts")]
    cuMemAlloc_v2(*mut u64, usize);
    cuMemHostAlloc(*mut Opaque, usize, c_uint);
    cuMemHostRegister_v2(Opaque, usize, c_uint);
    cuMemHostUnregister(Opaque);
    cuMemHostGetDevicePointer_v2(*mut u64, Opaque, c_uint);
    cuMemcpyAsync(u64, u64, usize, Opaque);
    cuMemsetD8Async(u64, u8, usize, Opaque);
    cuStreamQuery(Opaque);
    cuStreamBatchMemOp_v2(Opaque, c_uint, *mut MemOp, c_uint);
    cuEventCreate(*mut Opaque, c_uint);
    cuEventRecord(Opaque, Opaque);
    cuEventQuery(Opaque);
    cuEventSynchronize(Opaque);
    cuEventDestroy_v2(Opaque);
}

/// The loaded driver.
pub(super) struct Driver {
    table: Table,
    ready: OnceLock<()>,
}

/// Returns the driver, loaded and initialised. Makes no context.
///
/// # Errors
/// [`DeviceError::NoDriver`] if there is none or it is too old, [`DeviceError::Driver`] if it does not start.
pub(super) fn get() -> Result<&'static Driver, DeviceError> {
    let driver = loaded()?;
    if driver.ready.get().is_none() {
        // SAFETY: the call takes no pointers, and may be made at any time, from any thread, more than once.
        driver.check("cuInit", unsafe { (driver.table.cuInit)(0) })?;
        let _ = driver.ready.set(());
    }
    Ok(driver)
}

/// Returns the version of CUDA that the driver is made for, as 1000 times the major and 10 times the minor
/// one. Asks no GPU and needs none.
///
/// # Errors
/// [`DeviceError::NoDriver`].
pub(super) fn version() -> Result<c_int, DeviceError> {
    let driver = loaded()?;
    // SAFETY: the call writes one int, and may be made before `cuInit`.
    driver.get_value("cuDriverGetVersion", |out| unsafe { (driver.table.cuDriverGetVersion)(out) })
}

fn loaded() -> Result<&'static Driver, DeviceError> {
    static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
    DRIVER.get_or_init(load).as_ref().map_err(|reason| DeviceError::NoDriver { reason: reason.clone() })
}

/// Returns whether an error says that there is a driver but no GPU.
pub(super) fn is_no_device(error: &DeviceError) -> bool {
    matches!(error, DeviceError::Driver { code: NO_DEVICE, .. })
}

/// Returns whether an error says that there is no room on the device.
pub(super) fn is_out_of_memory(error: &DeviceError) -> bool {
    matches!(error, DeviceError::Driver { code: OUT_OF_MEMORY, .. })
}

fn load() -> Result<Driver, String> {
    // SAFETY: `look_up` finds functions of the driver, which stays loaded.
    let table = look_up_all(|look_up| unsafe { Table::load(look_up) })?;
    Ok(Driver { table, ready: OnceLock::new() })
}

/// Returns the table that `load` makes of functions of the installed driver. The driver is never unloaded:
/// its functions may be called as long as the process lives.
fn look_up_all<T>(
    load: impl FnOnce(&dyn Fn(&'static [u8]) -> *const c_void) -> Result<T, &'static str>,
) -> Result<T, String> {
    // SAFETY: this runs the initialisers of NVIDIA's driver. A program that is linked to it runs them as
    // well.
    let library = unsafe { Library::new(LIBRARY) }.map_err(|error| {
        // The loader's message is the cause of libloading's error.
        let detail = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        if detail.contains("No such file") { format!("{LIBRARY} was not found") } else { detail }
    })?;
    let look_up = |symbol: &'static [u8]| {
        // SAFETY: only the address is taken.
        let found = unsafe { library.get::<*const c_void>(symbol) };
        found.map_or(std::ptr::null(), |symbol| *symbol)
    };
    let table = load(&look_up).map_err(too_old)?;
    std::mem::forget(library);
    Ok(table)
}

fn too_old(symbol: &str) -> String {
    format!("{LIBRARY} has no {symbol}; a driver of CUDA 11.7 or newer is needed")
}

/// The call that makes a process's context.
const RETAIN: &str = "cuDevicePrimaryCtxRetain";

impl Driver {
    fn check(&self, call: &'static str, code: i32) -> Result<(), DeviceError> {
        if code == SUCCESS { Ok(()) } else { Err(self.error(call, code)) }
    }

    #[cold]
    fn error(&self, call: &'static str, code: i32) -> DeviceError {
        let name =
            self.text(self.table.cuGetErrorName, code).unwrap_or("an error that this driver cannot name");
        let words = self.text(self.table.cuGetErrorString, code).unwrap_or("no description");
        let message = format!("{name} ({words}){}", advice(code, call == RETAIN));
        let error = DeviceError::Driver { call, code, message };
        if loses_context(code) {
            lost::tell(&error);
        }
        error
    }

    fn text(
        &self,
        look_up: unsafe extern "C" fn(i32, *mut *const c_char) -> i32,
        code: i32,
    ) -> Option<&'static str> {
        let mut text = std::ptr::null();
        // SAFETY: writes one pointer; codes that the driver does not know are an error.
        let found = unsafe { look_up(code, &mut text) };
        if found != SUCCESS || text.is_null() {
            return None;
        }
        // SAFETY: this is a constant string of the driver's, which ends with a zero and stays.
        unsafe { CStr::from_ptr(text) }.to_str().ok()
    }

    /// Makes a call that writes one value on success.
    fn get_value<T>(&self, call: &'static str, ask: impl FnOnce(*mut T) -> i32) -> Result<T, DeviceError> {
        let mut value = MaybeUninit::<T>::zeroed();
        self.check(call, ask(value.as_mut_ptr()))?;
        // SAFETY: the call succeeded, so it wrote the value. Every `T` used here is plain numbers or
        // pointers, for which the zeroes from before are a value as well.
        Ok(unsafe { value.assume_init() })
    }

    // Devices: none of this makes a context.

    pub(super) fn device_count(&self) -> Result<c_int, DeviceError> {
        // SAFETY: writes one int.
        self.get_value("cuDeviceGetCount", |out| unsafe { (self.table.cuDeviceGetCount)(out) })
    }

    pub(super) fn device(&self, ordinal: c_int) -> Result<c_int, DeviceError> {
        // SAFETY: writes one int.
        self.get_value("cuDeviceGet", |out| unsafe { (self.table.cuDeviceGet)(out, ordinal) })
    }

    pub(super) fn device_name(&self, device: c_int) -> Result<String, DeviceError> {
        let name: [u8; 256] = self.get_value("cuDeviceGetName", |out: *mut [u8; 256]| {
            // SAFETY: writes up to 256 bytes, which `out` has.
            unsafe { (self.table.cuDeviceGetName)(out.cast(), 256, device) }
        })?;
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        Ok(String::from_utf8_lossy(&name[..end]).into_owned())
    }

    pub(super) fn device_uuid(&self, device: c_int) -> Result<[u8; 16], DeviceError> {
        // SAFETY: writes 16 bytes.
        self.get_value("cuDeviceGetUuid_v2", |out| unsafe { (self.table.cuDeviceGetUuid_v2)(out, device) })
    }

    pub(super) fn device_bytes(&self, device: c_int) -> Result<u64, DeviceError> {
        let bytes: usize =
            // SAFETY: writes one size.
            self.get_value("cuDeviceTotalMem_v2", |out| unsafe { (self.table.cuDeviceTotalMem_v2)(out, device) })?;
        Ok(bytes as u64)
    }

    pub(super) fn device_attribute(&self, device: c_int, attribute: c_int) -> Result<c_int, DeviceError> {
        self.get_value("cuDeviceGetAttribute", |out| {
            // SAFETY: writes one int; an attribute that the driver does not know is an error.
            unsafe { (self.table.cuDeviceGetAttribute)(out, attribute, device) }
        })
    }

    pub(super) fn can_access_peer(&self, device: c_int, peer: c_int) -> Result<bool, DeviceError> {
        let can: c_int = self.get_value("cuDeviceCanAccessPeer", |out| {
            // SAFETY: writes one int.
            unsafe { (self.table.cuDeviceCanAccessPeer)(out, device, peer) }
        })?;
        Ok(can != 0)
    }

    // Contexts and streams.

    /// Returns the device's primary context, which is made if it does not exist yet (300 ms).
    pub(super) fn context(&self, device: c_int, ordinal: usize) -> Result<Arc<CudaContext>, DeviceError> {
        // Retained here first: a failure comes as a number, before cudarc has to put it into its enum.
        // SAFETY: writes one pointer.
        self.get_value::<Opaque>(RETAIN, |out| unsafe {
            (self.table.cuDevicePrimaryCtxRetain)(out, device)
        })?;
        let context = CudaContext::new(ordinal).map_err(|error| self.error(RETAIN, error.0 as i32));
        // SAFETY: this undoes the retain above. If cudarc has the context, it has retained it once more.
        let released = self.check("cuDevicePrimaryCtxRelease_v2", unsafe {
            (self.table.cuDevicePrimaryCtxRelease_v2)(device)
        });
        let context = context?;
        released?;
        Ok(context)
    }

    /// Makes a stream of its own, which does not synchronise with the legacy default stream.
    pub(super) fn stream(&self, context: &Arc<CudaContext>) -> Result<Arc<CudaStream>, DeviceError> {
        context.new_stream().map_err(|error| self.error("cuStreamCreate", error.0 as i32))
    }

    /// Makes `context` the current one of this thread, because the calls below need it.
    pub(super) fn bind(&self, context: &CudaContext) -> Result<(), DeviceError> {
        let wanted: Opaque = context.cu_ctx().cast();
        // SAFETY: writes one pointer.
        let current =
            self.get_value("cuCtxGetCurrent", |out| unsafe { (self.table.cuCtxGetCurrent)(out) })?;
        if wanted == current {
            return Ok(());
        }
        // SAFETY: the context lives as long as cudarc's handle to it, which the caller has.
        self.check("cuCtxSetCurrent", unsafe { (self.table.cuCtxSetCurrent)(wanted) })
    }

    // Device memory by address range.

    pub(super) fn granularity(&self, device: c_int) -> Result<u64, DeviceError> {
        let prop = chunk_prop(device);
        let bytes: usize = self.get_value("cuMemGetAllocationGranularity", |out| {
            // SAFETY: reads the properties, writes one size; 0 asks for the least that is possible.
            unsafe { (self.table.cuMemGetAllocationGranularity)(out, &prop, 0) }
        })?;
        Ok(bytes as u64)
    }

    /// Makes memory that can be exported. The caller [releases](Self::release) the handle.
    pub(super) fn create(&self, prop: &AllocationProp, bytes: u64) -> Result<u64, DeviceError> {
        self.get_value("cuMemCreate", |out| {
            // SAFETY: reads the properties, writes one handle.
            unsafe { (self.table.cuMemCreate)(out, bytes as usize, prop, 0) }
        })
    }

    /// Makes a descriptor of the memory, close-on-exec.
    pub(super) fn export(&self, handle: u64) -> Result<OwnedFd, DeviceError> {
        let fd: RawFd = self.get_value("cuMemExportToShareableHandle", |out: *mut RawFd| {
            // SAFETY: for this type of handle one int is written, a descriptor that is the caller's.
            unsafe { (self.table.cuMemExportToShareableHandle)(out.cast(), handle, HANDLE_POSIX_FD, 0) }
        })?;
        // SAFETY: the driver just made it for the caller, and it has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)
            .map_err(|error| DeviceError::os("make a chunk's descriptor close-on-exec")(error.into()))?;
        Ok(fd)
    }

    /// Imports the memory behind a descriptor. The caller [releases](Self::release) the handle.
    pub(super) fn import(&self, fd: BorrowedFd<'_>) -> Result<u64, DeviceError> {
        // For this type of handle the "pointer" is the number of the descriptor.
        let os_handle = fd.as_raw_fd() as usize as *mut c_void;
        self.get_value("cuMemImportFromShareableHandle", |out| {
            // SAFETY: writes one handle; the driver checks that the descriptor is one of its own.
            unsafe { (self.table.cuMemImportFromShareableHandle)(out, os_handle, HANDLE_POSIX_FD) }
        })
    }

    /// Returns the device of the memory behind a handle, or `None` if it is on none.
    pub(super) fn location(&self, handle: u64) -> Result<Option<c_int>, DeviceError> {
        let prop: AllocationProp = self.get_value("cuMemGetAllocationPropertiesFromHandle", |out| {
            // SAFETY: writes the properties.
            unsafe { (self.table.cuMemGetAllocationPropertiesFromHandle)(out, handle) }
        })?;
        Ok((prop.location.kind == LOCATION_DEVICE).then_some(prop.location.id))
    }

    /// Releases a handle; mappings keep the memory.
    pub(super) fn release(&self, handle: u64) -> Result<(), DeviceError> {
        // SAFETY: the handle is a number, and an invalid one gives an error.
        self.check("cuMemRelease", unsafe { (self.table.cuMemRelease)(handle) })
    }

    pub(super) fn reserve(&self, bytes: u64) -> Result<u64, DeviceError> {
        self.get_value("cuMemAddressReserve", |out| {
            // SAFETY: writes one address, of a range that nothing else uses.
            unsafe { (self.table.cuMemAddressReserve)(out, bytes as usize, 0, 0, 0) }
        })
    }

    /// # Safety
    /// The range was [reserved](Self::reserve) with this length, and nothing is mapped in it.
    pub(super) unsafe fn free_range(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        // SAFETY: the caller's contract.
        self.check("cuMemAddressFree", unsafe { (self.table.cuMemAddressFree)(address, bytes as usize) })
    }

    /// # Safety
    /// The range was reserved with this length, and nothing is mapped in it.
    pub(super) unsafe fn map(&self, address: u64, bytes: u64, handle: u64) -> Result<(), DeviceError> {
        // SAFETY: the caller's contract; a handle with fewer bytes is an error.
        self.check("cuMemMap", unsafe { (self.table.cuMemMap)(address, bytes as usize, 0, handle, 0) })
    }

    /// # Safety
    /// The range was mapped as a whole with this length, and no work that uses it is left.
    pub(super) unsafe fn unmap(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        // SAFETY: the caller's contract.
        self.check("cuMemUnmap", unsafe { (self.table.cuMemUnmap)(address, bytes as usize) })
    }

    /// Lets the devices use a mapped range.
    pub(super) fn set_access(
        &self,
        address: u64,
        bytes: u64,
        access: Access,
        devices: &[c_int],
    ) -> Result<(), DeviceError> {
        let flags = match access {
            Access::ReadOnly => PROT_READ,
            Access::ReadWrite => PROT_READ_WRITE,
        };
        let access: Vec<AccessDesc> = devices
            .iter()
            .map(|&id| AccessDesc { location: Location { kind: LOCATION_DEVICE, id }, flags })
            .collect();
        self.check("cuMemSetAccess", {
            // SAFETY: reads as many descriptions as it is told; a range that is not mapped gives an error.
            unsafe { (self.table.cuMemSetAccess)(address, bytes as usize, access.as_ptr(), access.len()) }
        })
    }

    // Host memory that devices see.

    /// Allocates plain memory of the device whose context is current on this thread. It stays for the life of
    /// the process, for the reason at [`alloc_host`](Self::alloc_host).
    #[cfg(feature = "hosts")]
    pub(super) fn alloc(&self, bytes: usize) -> Result<u64, DeviceError> {
        self.get_value("cuMemAlloc_v2", |out| {
            // SAFETY: writes one address, to memory that is the caller's.
            unsafe { (self.table.cuMemAlloc_v2)(out, bytes) }
        })
    }

    /// Allocates page-locked memory. It stays for the life of the process: freeing it may wait for the whole
    /// device, as unregistering does (see `pages`).
    pub(super) fn alloc_host(&self, bytes: usize) -> Result<*mut u8, DeviceError> {
        let flags = HOST_ALLOC_PORTABLE | HOST_ALLOC_DEVICE_MAP;
        let at: Opaque = self.get_value("cuMemHostAlloc", |out| {
            // SAFETY: writes one pointer, to memory that is the caller's.
            unsafe { (self.table.cuMemHostAlloc)(out, bytes, flags) }
        })?;
        Ok(at.cast())
    }

    /// Lets all devices reach a range of host memory, until it is unregistered.
    ///
    /// # Safety
    /// The range stays mapped with this access until then.
    pub(super) unsafe fn register(
        &self,
        at: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<(), DeviceError> {
        let mut flags = REGISTER_PORTABLE | REGISTER_DEVICE_MAP;
        if access == Access::ReadOnly {
            flags |= REGISTER_READ_ONLY;
        }
        // SAFETY: the caller's contract.
        self.check("cuMemHostRegister_v2", unsafe {
            (self.table.cuMemHostRegister_v2)(at.cast(), bytes, flags)
        })
    }

    /// Undoes [`register`](Self::register). Waits for all work that the process has on its devices, and
    /// delays all its other calls meanwhile (see `pages`).
    ///
    /// # Safety
    /// No submitted work uses the range, and none that does is submitted later.
    pub(super) unsafe fn unregister(&self, at: *mut u8) -> Result<(), DeviceError> {
        // SAFETY: the caller's contract; memory that was not registered gives an error.
        self.check("cuMemHostUnregister", unsafe { (self.table.cuMemHostUnregister)(at.cast()) })
    }

    /// Returns the address at which the current context's device sees page-locked host memory.
    pub(super) fn device_address(&self, at: *mut u8) -> Result<u64, DeviceError> {
        self.get_value("cuMemHostGetDevicePointer_v2", |out| {
            // SAFETY: writes one address; memory that is not page-locked is an error.
            unsafe { (self.table.cuMemHostGetDevicePointer_v2)(out, at.cast(), 0) }
        })
    }

    // Work on streams.

    /// Returns whether the stream has nothing left to do. After a fault on the device this fails, as every
    /// call does.
    pub(super) fn is_idle(&self, stream: &CudaStream) -> Result<bool, DeviceError> {
        // SAFETY: the handle lives.
        match unsafe { (self.table.cuStreamQuery)(stream.cu_stream().cast()) } {
            NOT_READY => Ok(false),
            code => self.check("cuStreamQuery", code).map(|()| true),
        }
    }

    /// # Safety
    /// Until the work is done, both ranges stay valid, and no other code uses them in a way that conflicts.
    pub(super) unsafe fn copy(
        &self,
        stream: &CudaStream,
        dst: u64,
        src: u64,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's contract. The kind of either address follows from the address.
        self.check("cuMemcpyAsync", unsafe {
            (self.table.cuMemcpyAsync)(dst, src, bytes, stream.cu_stream().cast())
        })
    }

    /// # Safety
    /// Until the work is done, the range stays valid, and no other code uses it.
    pub(super) unsafe fn fill(
        &self,
        stream: &CudaStream,
        dst: u64,
        bytes: usize,
        value: u8,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's contract.
        self.check("cuMemsetD8Async", unsafe {
            (self.table.cuMemsetD8Async)(dst, value, bytes, stream.cu_stream().cast())
        })
    }

    /// Enqueues at most [`MAX_BATCH`] operations in order.
    ///
    /// # Safety
    /// Until the work is done, the words stay registered. Those that are written are writable, and only the
    /// device writes them.
    pub(super) unsafe fn batch(&self, stream: &CudaStream, ops: &mut [MemOp]) -> Result<(), DeviceError> {
        self.check("cuStreamBatchMemOp_v2", {
            // SAFETY: the call reads as many operations as it is told, and may note something in them. The
            // words are the caller's contract.
            unsafe {
                (self.table.cuStreamBatchMemOp_v2)(
                    stream.cu_stream().cast(),
                    ops.len() as c_uint,
                    ops.as_mut_ptr(),
                    0,
                )
            }
        })
    }
}

/// A point in a stream for which a thread can sleep, without keeping a core busy.
pub(super) struct Event {
    driver: &'static Driver,
    event: Opaque,
}

// SAFETY: an event is a driver's handle, which may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Makes an event of the current context.
    pub(super) fn create(driver: &'static Driver) -> Result<Self, DeviceError> {
        let event = driver.get_value("cuEventCreate", |out| {
            // SAFETY: writes one handle.
            unsafe { (driver.table.cuEventCreate)(out, EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING) }
        })?;
        Ok(Event { driver, event })
    }

    /// Moves the event behind all work that is on the stream now.
    pub(super) fn record(&self, stream: &CudaStream) -> Result<(), DeviceError> {
        // SAFETY: both handles live.
        self.driver.check("cuEventRecord", unsafe {
            (self.driver.table.cuEventRecord)(self.event, stream.cu_stream().cast())
        })
    }

    /// Returns whether the stream has reached the event.
    pub(super) fn is_reached(&self) -> Result<bool, DeviceError> {
        // SAFETY: the handle lives.
        match unsafe { (self.driver.table.cuEventQuery)(self.event) } {
            NOT_READY => Ok(false),
            code => self.driver.check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Sleeps until the stream has reached the event.
    pub(super) fn wait(&self) -> Result<(), DeviceError> {
        // SAFETY: the handle lives.
        self.driver.check("cuEventSynchronize", unsafe { (self.driver.table.cuEventSynchronize)(self.event) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the handle is not used again; the driver keeps the state that streams still need.
        let code = unsafe { (self.driver.table.cuEventDestroy_v2)(self.event) };
        if let Err(error) = self.driver.check("cuEventDestroy_v2", code) {
            tracing::warn!(%error, "an event was not destroyed");
        }
    }
}

#[cfg(test)]
mod tests;

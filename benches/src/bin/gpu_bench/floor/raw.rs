//! The driver's calls that the floor needs.

#![expect(unsafe_code, reason = "calls the driver, and maps memory for it")]

use std::ffi::{CString, c_void};
use std::os::fd::OwnedFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::{result, sys};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::kernels::PTX;

/// Bytes of the page with the clocks.
pub(super) const PAGE: usize = 4096;
/// Bytes between two clocks: a cache line each.
const APART: u64 = 128;
/// Floats that a kernel writes: 4 KiB.
const FLOATS: u64 = 1024;

/// A context with a stream, a kernel, memory for it, and the registered clocks.
pub(super) struct Gpu {
    stream: sys::CUstream,
    kernel: sys::CUfunction,
    memory: u64,
    clocks: u64,
    /// The same clocks in this process's memory.
    page: *const AtomicU64,
}

/// Initialises the driver and makes the primary context of a GPU current.
pub(super) fn context(ordinal: usize) -> anyhow::Result<sys::CUcontext> {
    result::init()?;
    let device = result::device::get(i32::try_from(ordinal)?)?;
    // SAFETY: the device is the driver's own handle, and the context is never released.
    unsafe {
        let context = result::primary_ctx::retain(device)?;
        result::ctx::set_current(context)?;
        Ok(context)
    }
}

/// Returns the rates in gigabytes a second of copies of 1 GiB from one GPU to another, on a stream of the
/// second.
pub(super) fn peer_copies(from: usize, to: usize, rounds: usize) -> anyhow::Result<Vec<f64>> {
    const BYTES: usize = 1 << 30;
    /// Copies on the stream at a time: the link is measured, not the launch.
    const AT_ONCE: usize = 10;
    let there = context(from)?;
    // SAFETY: memory of the current context, never freed.
    let source = unsafe { result::malloc_sync(BYTES)? };
    let here = context(to)?;
    let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
    // SAFETY: as above; the contexts live, and the flags have to be 0.
    let target = unsafe {
        sys::cuCtxEnablePeerAccess(there, 0).result()?;
        result::malloc_sync(BYTES)?
    };
    let mut rates = Vec::new();
    for round in 0..=rounds {
        let start = std::time::Instant::now();
        for _ in 0..AT_ONCE {
            // SAFETY: both ranges have as many bytes, and only this stream uses them.
            unsafe { sys::cuMemcpyPeerAsync(target, here, source, there, BYTES, stream).result()? };
        }
        // SAFETY: the stream is never destroyed.
        unsafe { result::stream::synchronize(stream)? };
        if round > 0 {
            rates.push((AT_ONCE * BYTES) as f64 / start.elapsed().as_nanos() as f64);
        }
    }
    Ok(rates)
}

impl Gpu {
    pub(super) fn open(ordinal: usize, clocks: OwnedFd) -> anyhow::Result<Self> {
        context(ordinal)?;
        // SAFETY: a new mapping at a place of the kernel's choice, never unmapped; the descriptor is a memfd
        // of `PAGE` bytes. Both processes only let GPUs write it.
        let page = unsafe {
            mmap(null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &clocks, 0)?
        };
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        let text = CString::new(PTX)?;
        // SAFETY: the page is mapped for good; the text ends with a zero; the out-pointers are live.
        unsafe {
            let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
            sys::cuMemHostRegister_v2(page, PAGE, flags).result()?;
            let mut address = 0;
            sys::cuMemHostGetDevicePointer_v2(&mut address, page, 0).result()?;
            let module = result::module::load_data(text.as_ptr().cast())?;
            let kernel = result::module::get_function(module, CString::new("fill")?)?;
            let memory = result::malloc_sync(FLOATS as usize * 4)?;
            Ok(Gpu { stream, kernel, memory, clocks: address, page: page.cast() })
        }
    }

    pub(super) fn write(&self, clock: u64, value: u64) -> anyhow::Result<()> {
        // SAFETY: the address lies in the registered page.
        let done =
            unsafe { sys::cuStreamWriteValue64_v2(self.stream, self.clocks + clock * APART, value, 0) };
        Ok(done.result()?)
    }

    pub(super) fn wait(&self, clock: u64, value: u64) -> anyhow::Result<()> {
        let geq = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
        // SAFETY: as above.
        let done =
            unsafe { sys::cuStreamWaitValue64_v2(self.stream, self.clocks + clock * APART, value, geq) };
        Ok(done.result()?)
    }

    /// Returns the bytes of the GPU's memory that are free.
    pub(super) fn free(&self) -> anyhow::Result<u64> {
        Ok(result::mem_get_info()?.0 as u64)
    }

    /// Returns the value of a clock, as this process sees it.
    pub(super) fn clock(&self, clock: u64) -> u64 {
        // SAFETY: a word of the page, which stays mapped; GPUs write it, and hosts only read.
        unsafe { &*self.page.byte_add((clock * APART) as usize) }.load(Ordering::Acquire)
    }

    /// Returns the GPU's address of a clock.
    pub(super) fn clock_address(&self, clock: u64) -> u64 {
        self.clocks + clock * APART
    }

    pub(super) fn stream(&self) -> sys::CUstream {
        self.stream
    }

    pub(super) fn kernel(&self) -> sys::CUfunction {
        self.kernel
    }

    /// Allocates as much memory as a kernel writes.
    pub(super) fn more_memory(&self) -> anyhow::Result<u64> {
        // SAFETY: memory of the current context, never freed.
        Ok(unsafe { result::malloc_sync(FLOATS as usize * 4)? })
    }

    /// Calls back with the kernel's arguments for a launch that writes to `memory`: the driver copies them in
    /// the call that gets them.
    pub(super) fn with_arguments<R>(
        &self,
        memory: u64,
        give: impl FnOnce(&mut [*mut c_void; 4]) -> anyhow::Result<R>,
    ) -> anyhow::Result<R> {
        let (value, floats, nanos) = (1.0_f32, FLOATS, 0_u64);
        give(&mut [
            (&raw const memory).cast_mut().cast(),
            (&raw const value).cast_mut().cast(),
            (&raw const floats).cast_mut().cast(),
            (&raw const nanos).cast_mut().cast(),
        ])
    }

    pub(super) fn launch(&self) -> anyhow::Result<()> {
        self.launch_at(self.memory)
    }

    /// Launches the kernel, which writes to `memory`.
    pub(super) fn launch_at(&self, memory: u64) -> anyhow::Result<()> {
        self.with_arguments(memory, |arguments| {
            // SAFETY: the arguments are those of `fill`, in its order, and live until the driver has copied
            // them; it writes `FLOATS` floats of memory that has as many.
            unsafe {
                result::launch_kernel(self.kernel, (4, 1, 1), (256, 1, 1), 0, self.stream, arguments)?;
            }
            Ok(())
        })
    }

    pub(super) fn synchronize(&self) -> anyhow::Result<()> {
        // SAFETY: the stream is this value's, never destroyed.
        unsafe { result::stream::synchronize(self.stream)? };
        Ok(())
    }
}

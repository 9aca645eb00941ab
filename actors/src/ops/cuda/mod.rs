//! CUDA sources, which NVRTC compiles when an actor starts, once per process and device.
//!
//! They are compiled without contraction into fused multiply-adds, so that they round as the host's functions
//! do. A first call from a handler would compile too, but loading a module can wait for all work on the
//! device. So actors call [`prepare`](super::prepare).

pub(super) mod convolve;
pub(super) mod edge;
pub(super) mod normalise;
pub(super) mod quantise;
pub(super) mod resize;
pub(super) mod stats;

use std::collections::HashMap;
use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::{CudaFunction, CudaModule, DriverError, LaunchConfig};
use cudarc::nvrtc::{CompileError, CompileOptions, Ptx, compile_ptx_with_opts};
use tensorpost::device::DeviceId;
use tensorpost::prelude::*;

use super::{Op, OpError};

/// A source and the kernels in it.
pub(super) struct Source {
    pub(super) name: &'static str,
    pub(super) text: &'static str,
    pub(super) kernels: &'static [&'static str],
}

/// Compiles the kernels of an operation, unless that was done.
pub(super) fn prepare(stream: &DeviceStream, op: Op) -> Result<(), OpError> {
    let source = match op {
        Op::Convolve => &convolve::SOURCE,
        Op::Edges => &edge::SOURCE,
        Op::Normalise => &normalise::SOURCE,
        Op::ToGray8 => &quantise::SOURCE,
        Op::Resize => &resize::SOURCE,
        Op::Stats => &stats::SOURCE,
    };
    source.kernels.iter().try_for_each(|name| kernel(stream, source, name).map(drop))
}

/// By device and name; the names are unique among all sources.
type Kernels = HashMap<(DeviceId, &'static str), CudaFunction>;

/// Threads of a block of one dimension.
pub(super) const THREADS: u32 = 256;

/// Blocks that keep the largest GPU busy; each then does several elements.
const MOST_BLOCKS: usize = 4096;

/// Returns one of the kernels of `source`, and compiles it at the first call.
pub(super) fn kernel(
    stream: &DeviceStream,
    source: &Source,
    name: &'static str,
) -> Result<CudaFunction, OpError> {
    static KERNELS: OnceLock<Mutex<Kernels>> = OnceLock::new();
    let kernels = KERNELS.get_or_init(Mutex::default);
    // Hold the lock while compiling, so that no other thread compiles the same source. A panic elsewhere
    // leaves a whole map.
    let mut kernels = kernels.lock().unwrap_or_else(PoisonError::into_inner);
    let device = stream.device_id();
    if let Some(kernel) = kernels.get(&(device, name)) {
        return Ok(kernel.clone());
    }
    let module = load(stream, source.name, compile(source.name, source.text)?)?;
    for &each in source.kernels {
        kernels.insert((device, each), find(&module, each)?);
    }
    kernels.get(&(device, name)).cloned().ok_or_else(|| OpError::Driver {
        kernel: name.to_owned(),
        done: "found",
        why: format!("it is not in the source `{}`", source.name),
    })
}

/// Loads a compiled source, or a PTX source.
pub(crate) fn load(stream: &DeviceStream, name: &str, ptx: Ptx) -> Result<Arc<CudaModule>, OpError> {
    stream.cuda_context()?.load_module(ptx).map_err(refused(name, "loaded"))
}

pub(crate) fn find(module: &Arc<CudaModule>, kernel: &str) -> Result<CudaFunction, OpError> {
    module.load_function(kernel).map_err(refused(kernel, "found in its module"))
}

/// Compiles a source for the device that loads it, without contraction.
pub(crate) fn compile(name: &str, text: &str) -> Result<Ptx, OpError> {
    let failed = |log: String| OpError::Compile { source_name: name.to_owned(), log };
    if text.contains('\0') {
        return Err(failed("there is a zero byte in it".to_owned()));
    }
    let options = CompileOptions { fmad: Some(false), ..Default::default() };
    // cudarc looks for the library at the first call and panics where there is none.
    match catch_unwind(AssertUnwindSafe(|| compile_ptx_with_opts(text, options))) {
        Ok(Ok(ptx)) => Ok(ptx),
        Ok(Err(CompileError::CompileError { log, .. })) => Err(failed(said(&log))),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            Err(OpError::NoCompiler { why: text.unwrap_or_else(|| "it could not be loaded".to_owned()) })
        }
    }
}

fn said(log: &CStr) -> String {
    log.to_string_lossy().trim().to_owned()
}

/// Returns a function that adds the kernel's name to an error of the driver.
pub(crate) fn refused(kernel: &str, done: &'static str) -> impl Fn(DriverError) -> OpError {
    move |error| OpError::Driver { kernel: kernel.to_owned(), done, why: error.to_string() }
}

/// Returns a launch with one thread for each of `n` elements, up to a number of blocks; its kernels go on in
/// steps of the grid.
pub(super) fn line(n: usize) -> LaunchConfig {
    let blocks = n.div_ceil(THREADS as usize).clamp(1, MOST_BLOCKS) as u32;
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
}

/// Returns a launch with one thread for each pixel, `planes` times.
pub(super) fn area(width: u32, height: u32, planes: u32) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (width.div_ceil(32), height.div_ceil(8), planes),
        block_dim: (32, 8, 1),
        shared_mem_bytes: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every compilation passes through `compile`; without a compiler, the error says so.
    #[test]
    fn what_cannot_be_compiled_is_said() {
        match compile("broken.cu", "this is no C++") {
            Err(OpError::Compile { source_name, log }) => {
                assert_eq!(source_name, "broken.cu");
                assert!(log.contains("error"), "{log}");
            }
            Err(error @ OpError::NoCompiler { .. }) => {
                assert!(error.to_string().contains("put its folder on LD_LIBRARY_PATH"), "{error}");
            }
            other => panic!("{other:?}"),
        }
        let refused = compile("zero.cu", "a\0b");
        assert!(matches!(refused, Err(OpError::Compile { .. })), "{refused:?}");
    }
}

//! Graphs of kernels: the driver's functions for them, which only programs that make one look up.
//!
//! A graph here is a chain: kernels one behind the other, and behind the last a batch of 64-bit writes. The
//! parameters of all of them can be set anew before each launch; a launch that is on its way keeps those that
//! it had.
//!
//! **On a crash** a graph goes with its process. Nothing blocks: what is launched is destroyed only by
//! whoever knows that it is through.

use std::ffi::{c_uint, c_ulonglong, c_void};
use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaContext, CudaStream};
use libloading::Library;

use super::super::abi::{BatchNode, KernelNode, MemOp};
use super::{DeviceError, Driver, LIBRARY, Opaque, too_old};

table! {
    cuGraphCreate(*mut Opaque, c_uint);
    cuGraphDestroy(Opaque);
    cuGraphAddKernelNode(*mut Opaque, Opaque, *const Opaque, usize, *const KernelNode);
    cuGraphAddBatchMemOpNode(*mut Opaque, Opaque, *const Opaque, usize, *const BatchNode);
    cuGraphInstantiateWithFlags(*mut Opaque, Opaque, c_ulonglong);
    cuGraphExecDestroy(Opaque);
    cuGraphExecKernelNodeSetParams(Opaque, Opaque, *const KernelNode);
    cuGraphExecBatchMemOpNodeSetParams(Opaque, Opaque, *const BatchNode);
    cuGraphLaunch(Opaque, Opaque);
}

fn loaded() -> Result<&'static Table, DeviceError> {
    static TABLE: OnceLock<Result<Table, String>> = OnceLock::new();
    TABLE.get_or_init(load).as_ref().map_err(|reason| DeviceError::NoDriver { reason: reason.clone() })
}

fn load() -> Result<Table, String> {
    // SAFETY: the library is loaded already, by the rest of the driver's functions.
    let library = unsafe { Library::new(LIBRARY) }.map_err(|error| error.to_string())?;
    let look_up = |symbol: &'static [u8]| {
        // SAFETY: only the address is taken.
        let found = unsafe { library.get::<*const c_void>(symbol) };
        found.map_or(std::ptr::null(), |symbol| *symbol)
    };
    // SAFETY: the symbols are those of the library, which stays loaded, see below.
    let table = unsafe { Table::load(look_up) }.map_err(too_old)?;
    // Functions of it may be called as long as the process lives.
    std::mem::forget(library);
    Ok(table)
}

/// A chain of kernels and the writes behind it, ready to be launched.
pub(in super::super) struct Graph {
    driver: &'static Driver,
    table: &'static Table,
    context: Arc<CudaContext>,
    graph: Opaque,
    /// Null until all nodes are there.
    exec: Opaque,
    kernels: Vec<Opaque>,
    writes: Opaque,
}

// SAFETY: handles of the driver's, which may be used from any thread, by one at a time: what changes a graph
// takes `&mut`, and the last owner destroys it.
unsafe impl Send for Graph {}
// SAFETY: as above; nothing is done by `&`.
unsafe impl Sync for Graph {}

impl Graph {
    /// Makes the chain, in a context that is current.
    ///
    /// # Safety
    /// The parameters that each kernel's node points to are as many and as large as the kernel's own.
    pub(in super::super) unsafe fn new(
        driver: &'static Driver,
        context: &Arc<CudaContext>,
        kernels: &[KernelNode],
        writes: &mut [MemOp],
    ) -> Result<Self, DeviceError> {
        let table = loaded()?;
        // SAFETY: writes one handle; 0 is the only flag there is.
        let graph = driver.get_value("cuGraphCreate", |out| unsafe { (table.cuGraphCreate)(out, 0) })?;
        let null = std::ptr::null_mut();
        let context = Arc::clone(context);
        // Destroyed from here on whatever fails.
        let mut made = Graph { driver, table, context, graph, exec: null, kernels: Vec::new(), writes: null };
        for kernel in kernels {
            let before = made.kernels.last().copied();
            let node = driver.get_value("cuGraphAddKernelNode", |out| {
                let (nodes, count) = dependency(before.as_ref());
                // SAFETY: the graph and the node before live; the parameters are the caller's contract, and
                // copied.
                unsafe { (table.cuGraphAddKernelNode)(out, graph, nodes, count, kernel) }
            })?;
            made.kernels.push(node);
        }
        let batch = BatchNode::new(made.context.cu_ctx().cast(), writes);
        let last = made.kernels.last().copied();
        made.writes = driver.get_value("cuGraphAddBatchMemOpNode", |out| {
            let (nodes, count) = dependency(last.as_ref());
            // SAFETY: as above; nothing is written before a launch, for which the addresses are set anew.
            unsafe { (table.cuGraphAddBatchMemOpNode)(out, graph, nodes, count, &batch) }
        })?;
        made.exec = driver.get_value("cuGraphInstantiateWithFlags", |out| {
            // SAFETY: writes one handle.
            unsafe { (table.cuGraphInstantiateWithFlags)(out, graph, 0) }
        })?;
        Ok(made)
    }

    /// Sets what the next launches run in a place of the chain.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    pub(in super::super) unsafe fn set(
        &mut self,
        place: usize,
        kernel: &KernelNode,
    ) -> Result<(), DeviceError> {
        const CALL: &str = "cuGraphExecKernelNodeSetParams";
        let Some(&node) = self.kernels.get(place) else {
            let what = format!("kernel {place} of a graph of {}", self.kernels.len());
            return Err(DeviceError::Refused { what });
        };
        // SAFETY: the handles live; the parameters are the caller's contract, and copied.
        let code = unsafe { (self.table.cuGraphExecKernelNodeSetParams)(self.exec, node, kernel) };
        self.driver.check(CALL, code)
    }

    /// Launches the chain with `writes` behind it, as many as it was made with.
    ///
    /// # Safety
    /// The kernels' parameters were set for this launch, and what they point to stays until the stream is
    /// through; so do the words, which nobody but the device writes.
    pub(in super::super) unsafe fn launch(
        &mut self,
        stream: &CudaStream,
        writes: &mut [MemOp],
    ) -> Result<(), DeviceError> {
        let batch = BatchNode::new(self.context.cu_ctx().cast(), writes);
        // SAFETY: the handles live; the operations are copied.
        let set = unsafe { (self.table.cuGraphExecBatchMemOpNodeSetParams)(self.exec, self.writes, &batch) };
        self.driver.check("cuGraphExecBatchMemOpNodeSetParams", set)?;
        // SAFETY: both handles live; the rest is the caller's contract.
        let launched = unsafe { (self.table.cuGraphLaunch)(self.exec, stream.cu_stream().cast()) };
        self.driver.check("cuGraphLaunch", launched)
    }
}

fn dependency(before: Option<&Opaque>) -> (*const Opaque, usize) {
    before.map_or((std::ptr::null(), 0), |node| (std::ptr::from_ref(node), 1))
}

impl Drop for Graph {
    fn drop(&mut self) {
        let destroy = || -> Result<(), DeviceError> {
            self.driver.bind(&self.context)?;
            if !self.exec.is_null() {
                // SAFETY: the handle is not used again.
                let code = unsafe { (self.table.cuGraphExecDestroy)(self.exec) };
                self.driver.check("cuGraphExecDestroy", code)?;
            }
            // SAFETY: as above; its nodes go with it.
            self.driver.check("cuGraphDestroy", unsafe { (self.table.cuGraphDestroy)(self.graph) })
        };
        if let Err(error) = destroy() {
            tracing::warn!(%error, "a graph was not destroyed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_without_graphs_is_named_too_old() {
        unsafe extern "C" fn never() {}
        let look_up = |symbol: &'static [u8]| {
            let is_missing = symbol.starts_with(b"cuGraphAddBatchMemOpNode");
            if is_missing { std::ptr::null() } else { never as *const c_void }
        };
        // SAFETY: the table is dropped here, and nothing in it is called.
        let symbol = unsafe { Table::load(look_up) }.err().unwrap();
        assert!(too_old(symbol).contains("cuGraphAddBatchMemOpNode"));
        // A driver that refuses does so by its code, which is looked at after each call.
        let refusing = Table::answering::<1>();
        let mut graph: Opaque = std::ptr::null_mut();
        // SAFETY: this one does nothing.
        assert_eq!(unsafe { (refusing.cuGraphCreate)(&mut graph, 0) }, 1);
    }
}

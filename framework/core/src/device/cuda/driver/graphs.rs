//! Graphs of kernels: the driver's functions for them. Only programs that make a graph look these up.
//!
//! A graph here is a chain: kernels one behind the other, and a batch of 64-bit writes behind the last. The
//! parameters of all of them can be set anew before each launch. A launch that is under way keeps the
//! parameters that it had.
//!
//! **On a crash** a graph goes with its process. Nothing blocks: an owner destroys a launched graph only once
//! it knows that the launch is done.

use std::ffi::{c_uint, c_ulonglong, c_void};
use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaContext, CudaStream};

use super::super::abi::{BatchNode, KernelNode, MemOp};
use super::{DeviceError, Driver, Opaque, look_up_all};

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
    // SAFETY: `look_up` finds functions of the driver, which stays loaded.
    look_up_all(|look_up| unsafe { Table::load(look_up) })
}

/// A chain of kernels and the writes behind it, ready to be launched.
pub(in super::super) struct Graph {
    driver: &'static Driver,
    table: &'static Table,
    context: Arc<CudaContext>,
    graph: Opaque,
    /// Null until all nodes are made.
    exec: Opaque,
    kernels: Vec<Opaque>,
    writes: Opaque,
}

// SAFETY: these are the driver's handles, which any thread may use, one at a time. Methods that change a
// graph take `&mut`, and the last owner destroys it.
unsafe impl Send for Graph {}
// SAFETY: as above; no method takes `&self`.
unsafe impl Sync for Graph {}

impl Graph {
    /// Makes the chain, in the current context.
    ///
    /// # Safety
    /// Each kernel's node points to as many parameters as the kernel has, and each has the kernel's size for
    /// it.
    pub(in super::super) unsafe fn new(
        driver: &'static Driver,
        context: &Arc<CudaContext>,
        kernels: &[KernelNode],
        writes: &mut [MemOp],
    ) -> Result<Self, DeviceError> {
        let table = loaded()?;
        // SAFETY: writes one handle; the only valid flags are 0.
        let graph = driver.get_value("cuGraphCreate", |out| unsafe { (table.cuGraphCreate)(out, 0) })?;
        let null = std::ptr::null_mut();
        let context = Arc::clone(context);
        // From here on the drop destroys the graph, whatever fails.
        let mut made = Graph { driver, table, context, graph, exec: null, kernels: Vec::new(), writes: null };
        for kernel in kernels {
            let before = made.kernels.last().copied();
            let node = driver.get_value("cuGraphAddKernelNode", |out| {
                let (nodes, count) = dependency(before.as_ref());
                // SAFETY: the graph and the node before live. The parameters are the caller's contract, and
                // are copied.
                unsafe { (table.cuGraphAddKernelNode)(out, graph, nodes, count, kernel) }
            })?;
            made.kernels.push(node);
        }
        let batch = BatchNode::new(made.context.cu_ctx().cast(), writes);
        let last = made.kernels.last().copied();
        made.writes = driver.get_value("cuGraphAddBatchMemOpNode", |out| {
            let (nodes, count) = dependency(last.as_ref());
            // SAFETY: as above. Nothing is written before a launch, for which the addresses are set anew.
            unsafe { (table.cuGraphAddBatchMemOpNode)(out, graph, nodes, count, &batch) }
        })?;
        made.exec = driver.get_value("cuGraphInstantiateWithFlags", |out| {
            // SAFETY: writes one handle.
            unsafe { (table.cuGraphInstantiateWithFlags)(out, graph, 0) }
        })?;
        Ok(made)
    }

    /// Sets the kernel that the next launches run in a place of the chain.
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
        // SAFETY: the handles live. The parameters are the caller's contract, and are copied.
        let code = unsafe { (self.table.cuGraphExecKernelNodeSetParams)(self.exec, node, kernel) };
        self.driver.check(CALL, code)
    }

    /// Launches the chain with `writes` behind it, as many as it was made with.
    ///
    /// # Safety
    /// The kernels' parameters were set for this launch, and the memory that they point to stays until the
    /// stream has passed it. So do the words, which only the device writes.
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
            // SAFETY: as above; the graph's nodes go with it.
            self.driver.check("cuGraphDestroy", unsafe { (self.table.cuGraphDestroy)(self.graph) })
        };
        if let Err(error) = destroy() {
            tracing::warn!(%error, "a graph was not destroyed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::too_old;
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
        // A driver that refuses returns a code, which is checked after each call.
        let refusing = Table::answering::<1>();
        let mut graph: Opaque = std::ptr::null_mut();
        // SAFETY: this function does nothing.
        assert_eq!(unsafe { (refusing.cuGraphCreate)(&mut graph, 0) }, 1);
    }
}

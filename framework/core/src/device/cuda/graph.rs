//! A chain of kernels that one call launches, with the stream's clock write in it.
//!
//! A launch is first recorded, kernel by kernel with the bytes of its arguments. Before each launch it is set
//! in every place of the chain, so no address of an earlier launch is ever left there. If the kernels, their
//! number or the sizes of their arguments differ, the chain is made anew. Another grid, block or argument is
//! only set.
//!
//! **On a crash** the chain goes with the process. If a chain is dropped while it runs, its stream keeps it
//! until it is done, because the driver does not say whether destroying one waits.

#![expect(unsafe_code, reason = "hands the driver the addresses of arguments")]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig};
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::super::DeviceError;
use super::abi::{KernelNode, MemOp};
use super::driver::graphs::Graph;
use super::driver::{self, Driver};

/// The unit of room for arguments: no kernel's parameter has a larger alignment.
type Unit = u128;

/// One launch: a kernel, its number of threads, and its arguments.
pub(crate) struct Launch {
    function: CudaFunction,
    config: LaunchConfig,
    /// The arguments' bytes, each from the beginning of a unit.
    units: SmallVec<[MaybeUninit<Unit>; 8]>,
    /// The unit at which each argument begins, and its bytes.
    arguments: SmallVec<[(u32, u32); 8]>,
}

impl Launch {
    /// Makes a launch without arguments, and of no thread yet.
    pub(crate) fn new(function: &CudaFunction) -> Self {
        let config = LaunchConfig { grid_dim: (0, 0, 0), block_dim: (0, 0, 0), shared_mem_bytes: 0 };
        Launch { function: function.clone(), config, units: SmallVec::new(), arguments: SmallVec::new() }
    }

    /// Adds an argument. Its bytes are copied, as the driver would copy them.
    pub(crate) fn argument<T>(&mut self, value: &T) {
        let first = self.units.len();
        let bytes = size_of::<T>();
        self.arguments.push((first as u32, bytes as u32));
        self.units.resize(first + bytes.div_ceil(size_of::<Unit>()), MaybeUninit::uninit());
        // SAFETY: there is room for as many bytes from this unit on. They are copied as they are, padding
        // included, and never read as anything else.
        unsafe {
            let to = self.units.as_mut_ptr().add(first).cast::<u8>();
            std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), to, bytes);
        }
    }

    pub(crate) fn set_config(&mut self, config: LaunchConfig) {
        self.config = config;
    }

    /// Returns the node for the driver. It is valid until `self` or `addresses` is touched.
    fn node(&mut self, addresses: &mut SmallVec<[*mut c_void; 8]>) -> KernelNode {
        addresses.clear();
        let base = self.units.as_mut_ptr();
        for &(first, _) in &self.arguments {
            // SAFETY: the address is inside the units, or just behind the last one for an argument without
            // bytes.
            addresses.push(unsafe { base.add(first as usize) }.cast());
        }
        let config = &self.config;
        KernelNode {
            function: self.function.cu_function().cast(),
            grid: [config.grid_dim.0, config.grid_dim.1, config.grid_dim.2],
            block: [config.block_dim.0, config.block_dim.1, config.block_dim.2],
            shared_bytes: config.shared_mem_bytes,
            parameters: addresses.as_mut_ptr(),
            extra: std::ptr::null_mut(),
        }
    }
}

/// The properties that two launches must share to take each other's place.
#[derive(PartialEq, Eq)]
struct Form {
    function: usize,
    sizes: SmallVec<[u32; 8]>,
}

impl Form {
    fn of(launch: &Launch) -> Self {
        Form {
            function: launch.function.cu_function() as usize,
            sizes: launch.arguments.iter().map(|(_, bytes)| *bytes).collect(),
        }
    }

    fn is_of(&self, launch: &Launch) -> bool {
        self.function == launch.function.cu_function() as usize
            && self.sizes.len() == launch.arguments.len()
            && self.sizes.iter().zip(&launch.arguments).all(|(size, (_, bytes))| size == bytes)
    }
}

/// The driver's graph, and the modules that it refers to.
pub(super) struct Made {
    graph: Mutex<Graph>,
    _functions: Vec<CudaFunction>,
}

/// A chain of kernels with two writes behind it.
pub(crate) struct KernelChain {
    made: Arc<Made>,
    forms: Vec<Form>,
}

impl KernelChain {
    /// Makes a chain of these launches, at least one, for a stream that writes these
    /// [words](super::CudaStreamBackend::chain_words).
    ///
    /// # Safety
    /// Each launch has the arguments of its kernel, in the kernel's order.
    pub(crate) unsafe fn new(
        context: &Arc<CudaContext>,
        words: [u64; 2],
        launches: &mut [Launch],
    ) -> Result<Self, DeviceError> {
        let driver: &'static Driver = driver::get()?;
        driver.bind(context)?;
        let mut addresses: Vec<SmallVec<[*mut c_void; 8]>> = vec![SmallVec::new(); launches.len()];
        let nodes: Vec<KernelNode> =
            launches.iter_mut().zip(&mut addresses).map(|(launch, room)| launch.node(room)).collect();
        // These values are never written, because they are set anew before each launch. But the driver may
        // look at the addresses.
        let mut writes = words.map(|word| MemOp::write(word, 0));
        // SAFETY: the caller's contract. The memory that the nodes point to is not touched before this call
        // is done.
        let graph = unsafe { Graph::new(driver, context, &nodes, &mut writes)? };
        let functions = launches.iter().map(|launch| launch.function.clone()).collect();
        let made = Arc::new(Made { graph: Mutex::new(graph), _functions: functions });
        Ok(KernelChain { made, forms: launches.iter().map(Form::of).collect() })
    }

    /// Returns whether these launches can take the place of those that the chain was made of.
    pub(crate) fn takes(&self, launches: &[Launch]) -> bool {
        self.forms.len() == launches.len()
            && self.forms.iter().zip(launches).all(|(form, launch)| form.is_of(launch))
    }

    /// Sets the next launch in every place, with the chain's context current. After an error the chain cannot
    /// be used any more.
    ///
    /// # Safety
    /// As for [`new`](Self::new), and the chain [takes](Self::takes) the launches.
    pub(crate) unsafe fn set(&mut self, launches: &mut [Launch]) -> Result<(), DeviceError> {
        let mut graph = self.made.graph.lock();
        let mut addresses = SmallVec::new();
        for (place, launch) in launches.iter_mut().enumerate() {
            let node = launch.node(&mut addresses);
            // SAFETY: the caller's contract. The memory that the node points to is not touched before this
            // call is done.
            unsafe { graph.set(place, &node)? };
        }
        Ok(())
    }

    /// Returns the number of kernels.
    pub(super) fn len(&self) -> usize {
        self.forms.len()
    }

    /// Returns the part that a stream keeps until a launch is done.
    pub(super) fn made(&self) -> &Arc<Made> {
        &self.made
    }
}

impl Made {
    /// Launches the chain with two writes behind it.
    ///
    /// # Safety
    /// See [`Graph::launch`].
    pub(super) unsafe fn launch(
        &self,
        stream: &CudaStream,
        writes: &mut [MemOp; 2],
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's contract.
        unsafe { self.graph.lock().launch(stream, writes) }
    }
}

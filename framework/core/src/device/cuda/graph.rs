//! A chain of kernels that is launched in one call, with the stream's clock write in it.
//!
//! What is launched is recorded first, kernel by kernel with the bytes of its arguments, and set in every
//! place of the chain before each launch: no address of an earlier launch is ever left in it. Where kernels,
//! their number or the sizes of their arguments differ, the chain is made anew; another grid, block or
//! argument is only set.
//!
//! **On a crash** it goes with the process. A chain that is dropped while it runs is kept by its stream until
//! it is through, as destroying one is a call of which the driver does not say whether it waits.

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

/// Room for arguments: no kernel's parameter has a larger alignment.
type Unit = u128;

/// One launch: a kernel, how many threads, and what its arguments are.
pub(crate) struct Launch {
    function: CudaFunction,
    config: LaunchConfig,
    /// The arguments' bytes, each from the beginning of a unit.
    units: SmallVec<[MaybeUninit<Unit>; 8]>,
    /// Where each argument begins, in units, and its bytes.
    arguments: SmallVec<[(u32, u32); 8]>,
}

impl Launch {
    /// A launch without arguments, of no thread yet.
    pub(crate) fn new(function: &CudaFunction) -> Self {
        let config = LaunchConfig { grid_dim: (0, 0, 0), block_dim: (0, 0, 0), shared_mem_bytes: 0 };
        Launch { function: function.clone(), config, units: SmallVec::new(), arguments: SmallVec::new() }
    }

    /// Adds an argument; its bytes are copied, as the driver would copy them.
    pub(crate) fn argument<T>(&mut self, value: &T) {
        let first = self.units.len();
        let bytes = size_of::<T>();
        self.arguments.push((first as u32, bytes as u32));
        self.units.resize(first + bytes.div_ceil(size_of::<Unit>()), MaybeUninit::uninit());
        // SAFETY: there is room for as many bytes from this unit on. They are copied as they are, padding
        // included, and never looked at as anything else.
        unsafe {
            let to = self.units.as_mut_ptr().add(first).cast::<u8>();
            std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), to, bytes);
        }
    }

    pub(crate) fn set_config(&mut self, config: LaunchConfig) {
        self.config = config;
    }

    /// What the driver is given; valid until `self` or `addresses` is touched.
    fn node(&mut self, addresses: &mut SmallVec<[*mut c_void; 8]>) -> KernelNode {
        addresses.clear();
        let base = self.units.as_mut_ptr();
        for &(first, _) in &self.arguments {
            // SAFETY: inside of the units, or just behind the last for an argument without bytes.
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

/// What two launches have to have in common to take each other's place.
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

/// What the driver made, and the modules it refers to.
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
    /// Makes a chain of these launches, of which there is one at least, for a stream that writes these
    /// [words](super::CudaStreamBackend::chain_words).
    ///
    /// # Safety
    /// Each launch has the arguments of its kernel, in its order.
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
        // Set anew before each launch: these values are never written. But the driver may look at the
        // addresses.
        let mut writes = words.map(|word| MemOp::write(word, 0));
        // SAFETY: the caller's contract; what the nodes point to is not touched before this is done.
        let graph = unsafe { Graph::new(driver, context, &nodes, &mut writes)? };
        let functions = launches.iter().map(|launch| launch.function.clone()).collect();
        let made = Arc::new(Made { graph: Mutex::new(graph), _functions: functions });
        Ok(KernelChain { made, forms: launches.iter().map(Form::of).collect() })
    }

    /// Whether these launches can take the place of those that it was made of.
    pub(crate) fn takes(&self, launches: &[Launch]) -> bool {
        self.forms.len() == launches.len()
            && self.forms.iter().zip(launches).all(|(form, launch)| form.is_of(launch))
    }

    /// Sets what the next launch runs, in every place, with its context current. After an error it is of no
    /// use any more.
    ///
    /// # Safety
    /// As for [`new`](Self::new), and it [takes](Self::takes) them.
    pub(crate) unsafe fn set(&mut self, launches: &mut [Launch]) -> Result<(), DeviceError> {
        let mut graph = self.made.graph.lock();
        let mut addresses = SmallVec::new();
        for (place, launch) in launches.iter_mut().enumerate() {
            let node = launch.node(&mut addresses);
            // SAFETY: the caller's contract; what the node points to is not touched before this is done.
            unsafe { graph.set(place, &node)? };
        }
        Ok(())
    }

    /// Kernels in it.
    pub(super) fn len(&self) -> usize {
        self.forms.len()
    }

    /// What a stream keeps until a launch is through.
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

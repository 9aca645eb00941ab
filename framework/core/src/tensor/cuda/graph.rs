//! Many small kernels in one call to the driver: a CUDA graph that is launched again and again with other
//! tensors.
//!
//! A GPU finishes a small kernel sooner than the host launches the next. A [`LaunchGraph`] makes one graph of
//! the kernels that belong together. Each [pass](LaunchGraph::begin) lists the kernels and their arguments
//! again; where the kernels are those of the last pass, only the arguments are set in the existing graph.
//!
//! **Invariants.** CLOCK-1 and CLOCK-2: when a pass is finished, the stream waits for all its tensors, then
//! the graph is launched, and the clock write behind the kernels is part of it. LEASE-1: a pass borrows its
//! tensors until then, so their memory belongs to nobody else, and the clock values that their leases go back
//! with stand for the launch. SAFE-1: each launch sets each argument; no argument of an earlier launch is
//! left.
//!
//! **Locks.** The stream's lock while the graph is launched, see [`Stream::put_with_write`].
//!
//! **On a crash** of the process the node releases its clocks, as for other work. **On cancellation**, when a
//! pass is dropped, nothing was put on the stream.
//!
//! [`Stream::put_with_write`]: crate::stream::Stream

#![expect(unsafe_code, reason = "launches kernels, whose arguments only their caller knows")]

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::{CudaFunction, DeviceRepr, LaunchConfig, PushKernelArg};
use smallvec::SmallVec;

use crate::device::cuda::CudaStreamBackend;
use crate::device::cuda::graph::{KernelChain, Launch};
use crate::device::{DeviceError, DeviceKind, Keep};
use crate::tensor::host::in_reach;
use crate::tensor::kernel::KernelArgs;
use crate::tensor::{DeviceStream, Tensor, TensorError, TensorMut};

/// Kernels that are launched together on one stream, over and over with other tensors (feature `graphs`).
///
/// An actor keeps one for each of its chains of kernels. Twenty separate small kernels take about as long as
/// the host needs for twenty launches; in a graph they take about as long as the GPU needs for them.
///
/// On the host device a pass runs closures and the graph does nothing, so that one stage can serve both
/// devices with the same code.
///
/// ```no_run
/// use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
/// use tensorpost::prelude::*;
/// use tensorpost::tensor::LaunchGraph;
///
/// struct Smooth { stream: DeviceStream, graph: LaunchGraph, blur: CudaFunction, between: TensorMut }
///
/// impl Smooth {
///     fn smooth(&mut self, image: &Tensor) -> Result<Tensor, TensorError> {
///         let mut smooth = self.stream.empty(image.dtype(), image.shape())?;
///         let n = image.len() as u64;
///         let mut pass = self.graph.begin();
///         let (image, between) = (pass.reads(image)?, pass.writes(&mut self.between)?);
///         let to = pass.writes(&mut smooth)?;
///         let config = LaunchConfig::for_num_elems(n as u32);
///         for (from, to) in [(image, between), (between, to)] {
///             let mut launch = pass.kernel(&self.blur)?;
///             launch.arg(from).arg(to).arg(&n);
///             // SAFETY: `blur` takes an input, an output and their length, which is that of all three.
///             unsafe { launch.launch(config)? };
///         }
///         pass.finish()?;
///         Ok(smooth.freeze())
///     }
/// }
/// ```
pub struct LaunchGraph {
    stream: DeviceStream,
    chain: Option<KernelChain>,
    launches: Vec<Launch>,
    made: u64,
}

/// One use of a [`LaunchGraph`]: its kernels and their tensors. Nothing is launched before it is
/// [finished](Self::finish), and nothing at all where it is dropped.
#[must_use = "nothing is launched before `finish`"]
pub struct GraphPass<'p> {
    graph: &'p mut LaunchGraph,
    tensors: SmallVec<[Bound<'p>; 4]>,
    number: u64,
}

/// A tensor of a [`GraphPass`], as an argument of its kernels: the address of the first element.
#[derive(Clone, Copy, Debug)]
pub struct GraphTensor<'p> {
    address: u64,
    pass: u64,
    tensor: PhantomData<&'p ()>,
}

/// A kernel of a [`GraphPass`] that is given its arguments, as `launch_builder` gives them:
/// `launch.arg(tensor).arg(&number)`.
pub struct GraphLaunch<'l> {
    launches: &'l mut Vec<Launch>,
    launch: Launch,
    pass: u64,
    is_of_other_pass: bool,
}

/// A tensor of a pass, borrowed for as long as the pass lives.
enum Bound<'p> {
    Read(&'p Tensor),
    Write(&'p mut TensorMut),
}

impl DeviceStream {
    /// Returns an empty graph for launches on this stream.
    pub fn launch_graph(&self) -> LaunchGraph {
        LaunchGraph { stream: self.clone(), chain: None, launches: Vec::new(), made: 0 }
    }
}

impl LaunchGraph {
    /// Begins a launch of all kernels of one message.
    pub fn begin(&mut self) -> GraphPass<'_> {
        /// Tells passes apart.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        self.launches.clear();
        GraphPass { graph: self, tensors: SmallVec::new(), number: NUMBER.fetch_add(1, Ordering::Relaxed) }
    }

    /// Returns how often the graph was made, which takes as long as many launches. It is once, where all
    /// passes have the same kernels in the same order.
    pub fn times_made(&self) -> u64 {
        self.made
    }

    /// Makes the graph hold `launches`, with their current arguments.
    ///
    /// # Safety
    /// Each launch has the arguments of its kernel.
    unsafe fn set(&mut self, stream: &CudaStreamBackend) -> Result<(), DeviceError> {
        let words = stream.chain_words()?;
        let launches = &mut self.launches;
        // Take the chain out: where only some arguments could be set, it must not be used again.
        let chain = match self.chain.take().filter(|chain| chain.takes(launches)) {
            Some(mut chain) => {
                // SAFETY: the caller's contract; the chain takes these launches, as was just checked.
                unsafe { chain.set(launches)? };
                chain
            }
            None => {
                self.made += 1;
                // SAFETY: the caller's contract.
                unsafe { KernelChain::new(stream.stream().context(), words, launches)? }
            }
        };
        self.chain = Some(chain);
        Ok(())
    }
}

impl<'p> GraphPass<'p> {
    /// Adds a tensor that kernels of this pass read.
    ///
    /// # Errors
    /// The stream's device cannot reach it.
    pub fn reads(&mut self, tensor: &'p Tensor) -> Result<GraphTensor<'p>, TensorError> {
        in_reach(tensor.device(), &self.graph.stream)?;
        let address = tensor.first_element();
        self.tensors.push(Bound::Read(tensor));
        Ok(self.argument(*address))
    }

    /// Adds a tensor that kernels of this pass write, or write and read.
    ///
    /// # Errors
    /// As for [`reads`](Self::reads).
    pub fn writes(&mut self, tensor: &'p mut TensorMut) -> Result<GraphTensor<'p>, TensorError> {
        in_reach(tensor.device(), &self.graph.stream)?;
        let address = *tensor.first_element();
        self.tensors.push(Bound::Write(tensor));
        Ok(self.argument(address))
    }

    fn argument(&self, address: u64) -> GraphTensor<'p> {
        GraphTensor { address, pass: self.number, tensor: PhantomData }
    }

    /// Adds a kernel behind those before it.
    ///
    /// # Errors
    /// The stream is not one of a CUDA device.
    pub fn kernel(&mut self, kernel: &CudaFunction) -> Result<GraphLaunch<'_>, TensorError> {
        self.graph.stream.cuda_stream()?;
        let launches = &mut self.graph.launches;
        Ok(GraphLaunch { launches, launch: Launch::new(kernel), pass: self.number, is_of_other_pass: false })
    }

    /// Puts a closure on the stream at once, as [`DeviceStream::run`] does: the host device's counterpart of
    /// a kernel.
    ///
    /// # Errors
    /// Those of [`DeviceStream::run`].
    pub fn run<A, F>(&mut self, args: A, kernel: F) -> Result<(), TensorError>
    where
        A: KernelArgs,
        F: for<'k> FnOnce(A::Views<'k>) + Send + 'static,
    {
        self.graph.stream.run(args, kernel)
    }

    /// Launches everything. The stream first waits for the tensors; they stay in use until the graph is done,
    /// as those of single launches do.
    ///
    /// # Errors
    /// A tensor whose data is lost with a process, or a refusal of the driver. Nothing was launched then, and
    /// the next pass begins anew.
    pub fn finish(mut self) -> Result<(), TensorError> {
        if self.graph.stream.kind() == DeviceKind::Host || self.graph.launches.is_empty() {
            return Ok(());
        }
        let device = self.graph.stream.clone();
        let stream = device.clocked();
        let Some(backend) = stream.backend().as_any().downcast_ref::<CudaStreamBackend>() else {
            return Err(device.not_cuda());
        };
        // Set the graph before the waits: the driver may take its time for a new graph, and so no stream
        // waits meanwhile. SAFETY: the caller of each `GraphLaunch::launch` has promised that its arguments
        // are the kernel's.
        unsafe { self.graph.set(backend)? };
        let mut keep = Keep::new();
        for bound in &mut self.tensors {
            match bound {
                Bound::Read(tensor) => {
                    tensor.await_on(stream)?;
                    keep.push(Arc::clone(tensor.lease().mapping()));
                }
                Bound::Write(tensor) => {
                    tensor.await_on(stream)?;
                    keep.push(tensor.lease().writable()?.1);
                }
            }
        }
        let Some(chain) = &self.graph.chain else { return Ok(()) };
        let launched = stream.put_with_write(|value| {
            // SAFETY: it was set above. The addresses are those of the pass's tensors, as each argument was
            // checked, and `keep` keeps their mappings. The stream is behind their writers, and their reuse
            // is behind `value`, see below.
            unsafe { backend.launch_chain(chain, value, keep) }
        });
        let end = match launched {
            Ok(end) => end,
            Err(error) => {
                // The result of the launch is unknown here: note the use without a value, so that a later
                // ticket stands for all of it.
                for bound in &self.tensors {
                    match bound {
                        Bound::Read(tensor) => tensor.lease().used_on(stream),
                        Bound::Write(tensor) => tensor.lease().written_on(stream),
                    }
                }
                self.graph.chain = None;
                return Err(error.into());
            }
        };
        for bound in &self.tensors {
            match bound {
                Bound::Read(tensor) => tensor.lease().used_until(stream, end, false),
                Bound::Write(tensor) => tensor.lease().used_until(stream, end, true),
            }
        }
        Ok(())
    }
}

// SAFETY: the value's bytes are copied here, as a launch would copy them.
unsafe impl<'v, T: DeviceRepr> PushKernelArg<&'v T> for GraphLaunch<'_> {
    fn arg(&mut self, value: &'v T) -> &mut Self {
        self.launch.argument(value);
        self
    }
}

// SAFETY: the argument is the address of the tensor's first element, which a kernel parameter of pointer type
// is. The tensor is borrowed until the pass is finished.
unsafe impl<'p> PushKernelArg<GraphTensor<'p>> for GraphLaunch<'_> {
    fn arg(&mut self, tensor: GraphTensor<'p>) -> &mut Self {
        // A tensor that another pass borrowed may be gone, and this pass does not wait for it.
        self.is_of_other_pass |= tensor.pass != self.pass;
        self.launch.argument(&tensor.address);
        self
    }
}

impl GraphLaunch<'_> {
    /// Adds the kernel to the pass.
    ///
    /// # Errors
    /// A tensor of another pass among the arguments.
    ///
    /// # Safety
    /// The arguments are as many as the kernel's parameters, in their order and of their types; the kernel
    /// stays inside its tensors, and writes only those that the pass [writes](GraphPass::writes).
    pub unsafe fn launch(self, config: LaunchConfig) -> Result<(), TensorError> {
        let GraphLaunch { launches, mut launch, is_of_other_pass, .. } = self;
        if is_of_other_pass {
            let what = "a kernel with a tensor of another pass; give the tensor to this one with `reads` or `writes`";
            return Err(DeviceError::Refused { what: what.to_owned() }.into());
        }
        launch.set_config(config);
        launches.push(launch);
        Ok(())
    }
}

impl std::fmt::Debug for LaunchGraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LaunchGraph({}, made {} times)", self.stream.name(), self.made)
    }
}

impl std::fmt::Debug for GraphPass<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GraphPass({} launches, {} tensors)", self.graph.launches.len(), self.tensors.len())
    }
}

impl std::fmt::Debug for GraphLaunch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GraphLaunch(number {} of its pass)", self.launches.len() + 1)
    }
}

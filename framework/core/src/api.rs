//! The items of this crate that `tensorpost` shows: everything that a program, or a crate on top of this one,
//! may name.

/// Actors, their addresses, and the errors of sending a message.
///
/// An actor has to be a [`RemoteActor`](trait@actor::RemoteActor) to live in a worker,
/// [`Address`](actor::Address) sends to it from anywhere, and [`Channel`](actor::Channel) is a mailbox that a
/// program reads by itself.
///
/// ```
/// use tensorpost::actor::SendFailure;
/// use tensorpost::prelude::*;
///
/// #[derive(Serialize, Deserialize, GpuMessage)]
/// struct Sample(u64);
///
/// # fn main() -> anyhow::Result<()> {
/// let node = Node::builder().start()?;
/// let (address, mut samples) = node.channel::<Sample>()?;
/// address.try_send(Sample(1))?;
/// assert_eq!(samples.blocking_recv()?.0, 1);
///
/// drop(samples); // nobody takes messages there now
/// let refused = address.try_send(Sample(2)).unwrap_err();
/// assert!(matches!(refused.reason, SendFailure::NoSuchActor));
/// assert_eq!(refused.message.0, 2); // the sender has it back
/// # Ok(())
/// # }
/// ```
pub mod actor {
    pub use tensorpost_derive::RemoteActor;

    pub use crate::actor::{
        Address, Ask, AskError, Channel, ChannelError, DeadLetter, DeadReason, EndReason, Env, ExitedProcess,
        Handles, Lifecycle, LookupError, Python, RegisterError, Registry, RemoteActor, SendError,
        SendFailure, SendFuture, Watch, step_aside,
    };
    #[doc(hidden)]
    pub use crate::actor::{CapturesNothing, Code, CodeError, captures_nothing};
    pub use crate::ids::ActorId;
    pub use crate::limits::{DEFAULT_MAILBOX, MAX_ACTORS, MAX_MAILBOX, WATCH_EVENTS};
    pub use crate::transport::inbox::Refusal;
    pub use crate::transport::{AskFailure, TransportStats};
}

/// Devices: the host and the GPUs. An actor is given its device where it is spawned (`.on(..)`).
///
/// ```
/// use tensorpost::device::{Device, DeviceKind};
///
/// for device in Device::all() {
///     println!("{}: {}", device.id(), device.name());
/// }
/// assert_eq!(Device::host().kind(), DeviceKind::Host);
/// assert!(Device::cuda(10_000).is_err()); // says what there is instead
/// ```
pub mod device {
    pub use crate::device::{Device, DeviceError, DeviceKind};
    pub use crate::ids::DeviceId;
}

/// Several machines: one node of programs on several hosts.
///
/// ```no_run
/// use tensorpost::hosts::Hosts;
/// use tensorpost::prelude::*;
///
/// # fn main() -> anyhow::Result<()> {
/// let node = Node::builder().hosts(Hosts::head("127.0.0.1:7117").name("first")).start()?;
/// for host in node.hosts()? {
///     println!("{}: {} at {}", host.number, host.name, host.address);
/// }
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "hosts")]
pub mod hosts {
    pub use crate::node::hosts::{Anywhere, Hosts, HostsError};
    pub use crate::transport::gateway_messages::{Host, Nixl};
}

/// Messages: values with tensors anywhere inside, and the checks on them before they leave and when they
/// arrive.
///
/// ```
/// use tensorpost::message::bytes_of;
/// use tensorpost::prelude::*;
///
/// #[derive(Serialize, Deserialize, GpuMessage)]
/// struct Frame {
///     #[tensor(dtype = f32, shape = [_, 3])]
///     points: Tensor,
/// }
///
/// # fn main() -> anyhow::Result<()> {
/// let node = Node::builder().start()?;
/// let stream = node.host_stream()?;
/// let frame = Frame { points: stream.zeros(DType::F32, &[100, 3])?.freeze() };
/// frame.check()?; // sending does this too
/// assert!(bytes_of(&frame)? >= 100 * 3 * 4);
///
/// let flat = Frame { points: stream.zeros(DType::F32, &[100, 2])?.freeze() };
/// assert_eq!(flat.check().unwrap_err().field, "points");
/// # Ok(())
/// # }
/// ```
pub mod message {
    pub use tensorpost_derive::{GpuMessage, Portable};

    #[doc(hidden)] // for a text of the pipelines, which are another crate
    pub use crate::limits::MAX_GRANTED;
    pub use crate::limits::{MAX_BODY, MAX_NESTING, MAX_TENSORS};
    pub use crate::message::nesting::NestingError;
    pub use crate::message::{
        CheckTensors, EncodeError, GpuMessage, Portable, TensorCheckError, TensorMismatch, TensorSpec,
        bytes_of,
    };
}

/// Nodes: the processes of a program, their start, their supervision and their end.
///
/// ```
/// use std::time::Duration;
/// use tensorpost::prelude::*;
///
/// # fn main() -> anyhow::Result<()> {
/// let node = Node::builder().start()?; // in a worker this never returns
/// assert!(node.workers().is_empty()); // none before the first `spawn`
/// println!("{}", node.shutdown(Duration::from_secs(10))?); // who was late, if anybody was
/// # Ok(())
/// # }
/// ```
pub mod node {
    pub use crate::ids::ProcessId;
    pub use crate::limits::{DEFAULT_HOST_BUDGET, MAX_PROCESSES};
    pub use crate::node::limits::{DROP_DEADLINE, START_DEADLINE};
    pub use crate::node::{
        ActorError, BuildMismatch, Console, Group, Hang, HangReport, LocationError, MpsError, NameError,
        Node, NodeBuilder, NodeClosed, NodeError, NodeReport, OnHang, Phase, Restart, RestartReport,
        RunError, Sharing, ShutdownReport, Spawn, SpawnError, Spawned, StartError, Strategy, Supervisor,
        WaitsIn, WorkerEnd, WorkerId, WorkerState, WorkerStatus,
    };
    #[doc(hidden)]
    pub use crate::node::{Deferred, SelfReport};
    #[doc(hidden)] // for the pipelines, which are another crate
    pub use crate::os::{block_on, lock, on_own_thread};
}

/// Observation of a running node: metrics, progress, traces, and one clock for all processes.
///
/// ```
/// use tensorpost::observe::monotonic_ns;
/// use tensorpost::prelude::*;
///
/// # fn main() -> anyhow::Result<()> {
/// let before = monotonic_ns();
/// let node = Node::builder().start()?;
/// let metrics = node.metrics()?;
/// assert_eq!(metrics.processes.len(), 1); // the program's own
/// assert!(metrics.silent.is_empty() && metrics.at >= before);
/// # Ok(())
/// # }
/// ```
pub mod observe {
    pub use crate::node::progress::{ProgressDisplay, ShownProgress, ShownStage};
    pub use crate::observe::context::TraceContext;
    pub use crate::observe::metrics::{
        ActorMetrics, Histogram, Metrics, NamedProcess, ProcessMetrics, ProcessState, Row,
    };
    pub use crate::observe::telemetry::Telemetry;
    pub use crate::observe::trace::{TraceError, TraceSummary};
    pub use crate::os::monotonic_ns;
}

/// Tensors, and streams that compute on them: memory comes from a [`DeviceStream`](tensor::DeviceStream), and
/// work goes to it, in order.
///
/// ```
/// use tensorpost::prelude::*;
///
/// # fn main() -> anyhow::Result<()> {
/// let node = Node::builder().start()?;
/// let stream = node.host_stream()?;
/// let ones = stream.from_slice(&[2, 2], &[1.0_f32; 4])?.freeze();
/// let mut doubled = stream.empty(DType::F32, &[2, 2])?;
/// stream.run((ones.of::<f32>(), doubled.of_mut::<f32>()), |(ones, doubled)| {
///     doubled.iter_mut().zip(ones).for_each(|(to, from)| *to = 2.0 * from);
/// })?; // enqueued; whoever reads the result waits for it
/// let column = doubled.freeze().slice(1, 0..1)?; // the same memory and lease
/// assert_eq!(column.to_vec::<f32>()?, [2.0, 2.0]);
/// # Ok(())
/// # }
/// ```
pub mod tensor {
    pub use crate::ids::ChunkId;
    pub use crate::lease::pool::PoolStats;
    pub use crate::lease::{Lease, LeaseId, PoolError};
    pub use crate::limits::{MAX_PARTS, MAX_RANK};
    #[cfg(feature = "cuda")]
    pub use crate::tensor::cuda::{CudaView, CudaViewMut};
    #[cfg(feature = "graphs")]
    pub use crate::tensor::cuda::{GraphLaunch, GraphPass, GraphTensor, LaunchGraph};
    pub use crate::tensor::dtype::UnknownDType;
    pub use crate::tensor::kernel::{KernelArg, KernelArgs, ReadArg, WriteArg};
    pub use crate::tensor::part::view::{PartMut, PartOut};
    pub use crate::tensor::part::{JoinReason, SplitReason};
    pub use crate::tensor::{
        DType, DeviceStream, Element, JoinError, Layout, LayoutError, NotSole, NotSoleReason, SplitError,
        Tensor, TensorError, TensorMut, TensorPart, TensorStatus,
    };
    #[cfg(feature = "dlpack")]
    pub use crate::tensor::{DlPack, DlPackReady};
}

/// Forks, for the crates on top of this one.
#[doc(hidden)] // for the pipelines and for published state
pub mod fork {
    pub use crate::os::fork::{INHERITED, Inert, PerProcess};
}

/// Everything that was recorded, for the crate that shows it.
#[doc(hidden)] // for `tensorpost-watch`
pub mod watch {
    #[cfg(feature = "cuda")]
    pub use crate::device::cuda::probe;
    pub use crate::device::mps;
    pub use crate::limits::{CHUNK_BYTES, MAX_FORWARDED, MAX_HOST_TRACE};
    pub use crate::node::console::protocol::{
        ActorFacts, Answer, GpuShare, HangFacts, Hello, HostFacts, LinkFacts, LogLine, NodeFacts,
        NodeSnapshot, Packet, PoolFacts, ProcessFacts, Request, TraceFacts, VERSION, WayFacts,
    };
    #[cfg(feature = "testing")]
    pub use crate::node::console::sample;
    pub use crate::node::limits::{
        ENDLESS, MAX_CONSOLE_ANSWER, MAX_LOG_ANSWER, MAX_LOG_BYTES, MAX_LOG_LINE, MAX_LOG_LINES,
        SNAPSHOT_LASTS,
    };
    pub use crate::node::progress::{ProgressFile, ProgressSource, RunningDisplay};
    pub use crate::node::serving;
    pub use crate::node::wait::poll;
    pub use crate::node::watcher::{AskShares, Watched, Watcher, watch_by};
    pub use crate::observe::log::Severity;
    pub use crate::observe::metrics::{Change, per_second};
    pub use crate::observe::survey::{HolderReport, LinkReport, PoolReport, SentReport};
    pub use crate::observe::text::{CONTINUED, is_odd, printable, shown, time};
    pub use crate::observe::trace::TracedProcess;
    pub use crate::os::memfd::check as check_memory;
    pub use crate::os::process::{THIS_PROGRAM, die_with_parent};
    pub use crate::os::{Private, Seqpacket, named_socket, remedy as remedies};
    pub use crate::transport::lifecycle::GATEWAY;

    /// The operations that the doctor tries.
    pub mod trial {
        #[cfg(feature = "cuda")]
        pub use crate::trial::gpu;
        pub use crate::trial::{exchange, kernel};
    }

    /// The records of a trace.
    pub mod trace {
        pub use crate::observe::trace::VARIABLE;
        pub use crate::observe::trace::joined::{HostTrace, Process, decode_all};
        pub use crate::observe::trace::record::{Form, FrameId, LeaseName, Record, Track, WORDS, What};
        pub use crate::observe::trace::ring::{Of, Ring, Snapshot};
    }
}

/// For tests of your own programs (feature `testing`).
///
/// [`test`](macro@testing::test) is `#[test]` for tests that start a node. [`fault`](mod@testing::fault)
/// makes one of the program's processes end, stop, panic or be late at a named point.
/// [`leaks`](fn@testing::leaks) takes a snapshot of the resources that a process uses, and
/// [`Usage::growth`](testing::Usage::growth) names the leaks. `docs/TESTING.md` in the repository is the
/// guide, with a complete test.
///
/// ```
/// use tensorpost::prelude::*;
/// use tensorpost::testing::{fault, leaks};
///
/// # fn main() -> anyhow::Result<()> {
/// let node = Node::builder().start()?;
/// let stream = node.host_stream()?;
/// stream.zeros(DType::F32, &[4])?; // the first allocation makes the pool's chunk
/// let before = leaks();
/// fault::arm("lease.release=delay:1".parse()?); // the next release is late
/// drop(stream.zeros(DType::F32, &[4])?);
/// assert!(before.growth(&leaks()).is_empty());
/// # fault::disarm();
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "testing")]
pub mod testing {
    pub use tensorpost_derive::test;

    pub use crate::fault;
    pub use crate::stream::testing_skip_waits as skip_waits;
    pub use crate::testing::{Usage, leaks};
}

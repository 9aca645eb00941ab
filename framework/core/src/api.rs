//! What `tensorpost` shows of this crate: everything that a program, or a crate on top of this one, may name.

/// Actors: what they are, their addresses, and what can go wrong with a message.
pub mod actor {
    pub use tensorpost_derive::RemoteActor;

    pub use crate::actor::{
        Address, Ask, AskError, Channel, ChannelError, DeadLetter, DeadReason, EndReason, Env, ExitedProcess,
        Handles, Lifecycle, LookupError, RegisterError, Registry, RemoteActor, Send, SendError, SendFailure,
        Watch, step_aside,
    };
    pub use crate::ids::ActorId;
    pub use crate::limits::{DEFAULT_MAILBOX, MAX_ACTORS, MAX_MAILBOX, WATCH_EVENTS};
    pub use crate::transport::inbox::Refusal;
    pub use crate::transport::{AskFailure, TransportStats};
}

/// Devices: the host and the GPUs.
pub mod device {
    pub use crate::device::{Device, DeviceError, DeviceKind};
    pub use crate::ids::DeviceId;
}

/// Messages: values with tensors anywhere inside.
pub mod message {
    pub use tensorpost_derive::{GpuMessage, Portable};

    pub use crate::limits::{MAX_BODY, MAX_NESTING, MAX_TENSORS};
    pub use crate::message::nesting::NestingError;
    pub use crate::message::{
        CheckTensors, EncodeError, GpuMessage, Portable, TensorCheckError, TensorMismatch, TensorSpec,
        bytes_of,
    };
}

/// Nodes: the processes of a program, their start, their supervision and their end.
pub mod node {
    pub use crate::ids::ProcessId;
    pub use crate::limits::{DEFAULT_HOST_BUDGET, MAX_PROCESSES};
    pub use crate::node::limits::{DROP_DEADLINE, START_DEADLINE};
    pub use crate::node::{
        ActorError, BuildMismatch, Closed, Console, Group, Hang, HangReport, LocationError, MpsError,
        NameError, Node, NodeBuilder, NodeError, NodeReport, OnHang, Phase, Restart, RestartReport, RunError,
        Sharing, ShutdownReport, Spawn, SpawnError, Spawned, StartError, Strategy, Supervisor, WaitsIn,
        WorkerEnd, WorkerId, WorkerState, WorkerStatus,
    };
}

/// What a running node shows of itself.
pub mod observe {
    pub use crate::observe::metrics::{
        ActorMetrics, Histogram, Metrics, NamedProcess, ProcessMetrics, ProcessState, Row,
    };
    pub use crate::observe::progress::{ProgressDisplay, ProgressWriter, Shown, ShownStage};
    pub use crate::observe::trace::{TraceError, TraceSummary, chrome};
    pub use crate::os::monotonic_ns;
}

/// Tensors, and what computes on them.
pub mod tensor {
    pub use crate::ids::ChunkId;
    pub use crate::lease::pool::PoolStats;
    pub use crate::lease::{Lease, LeaseId, PoolError};
    pub use crate::limits::{MAX_PARTS, MAX_RANK};
    #[cfg(feature = "cuda")]
    pub use crate::tensor::cuda::{CudaView, CudaViewMut};
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

/// For tests of your own programs (feature `testing`).
///
/// [`test`](macro@testing::test) is `#[test]` for what starts a node. [`fault`](mod@testing::fault) has one of the program's processes
/// be killed, be stopped, panic or be late at a named point. [`leaks`](fn@testing::leaks) is a snapshot of what a process uses, and
/// [`Usage::growth`](testing::Usage::growth) says what was left behind.
/// `docs/TESTING.md` in the repository is the guide, with a complete test.
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

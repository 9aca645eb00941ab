//! The errors of making and using tensors.

use std::error::Error;

use super::dtype::DType;
use super::layout::LayoutError;
use crate::clock::ClockError;
use crate::clock::taint::Tainted;
use crate::device::DeviceError;
use crate::ids::ProcessId;
use crate::lease::PoolError;
use crate::limits::MAX_BROADCAST_BYTES;

/// The reason why a tensor could not be made or used. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// Another element type was asked for than the tensor has.
    #[error("the tensor holds {found}, not {asked}; ask for {found}, or convert it first")]
    DType {
        /// The dtype that the call asked for.
        asked: DType,
        /// The dtype that the tensor has.
        found: DType,
    },
    /// The call needs packed elements.
    #[error(
        "the tensor of shape {shape:?} has strides {strides:?}, not packed row-major ones; copy it with `stream.contiguous(&tensor)`"
    )]
    NotContiguous {
        /// Its shape.
        shape: Vec<usize>,
        /// Its strides, in elements.
        strides: Vec<isize>,
    },
    /// The data has another length than the shape.
    #[error("shape {shape:?} has {wanted} elements, but {given} were given")]
    Length {
        /// The shape.
        shape: Vec<usize>,
        /// Elements that it has.
        wanted: usize,
        /// Elements that were given.
        given: usize,
    },
    /// Two tensors that are computed with element by element have different shapes.
    #[error(
        "shapes {left:?} and {right:?} differ; make them the same with `broadcast_to`, `view` or `slice`"
    )]
    Shapes {
        /// The shape of the tensor whose method was called.
        left: Vec<usize>,
        /// The shape of the other one.
        right: Vec<usize>,
    },
    /// Something was asked of the elements of a tensor that has none.
    #[error("a tensor of shape {shape:?} has no elements, and so no {asked}; see `is_empty` first")]
    NoElements {
        /// Its shape.
        shape: Vec<usize>,
        /// The operation that was asked for.
        asked: &'static str,
    },
    /// A sum of integers does not fit 64 bits.
    #[error("the sum of these {dtype} elements does not fit 64 bits; sum them as floats: `cast` them to f64")]
    SumOverflow {
        /// The type of the elements.
        dtype: DType,
    },
    /// A copy of all elements would take more memory than there is for it, or a walk over them would never
    /// end.
    #[error(
        "a copy of the {bytes} bytes of elements of shape {shape:?}, or a walk over them, is too much (its memory has {memory} \
         bytes, and a broadcast may stand for {MAX_BROADCAST_BYTES}); read slices of it"
    )]
    NoRoomForCopy {
        /// The shape.
        shape: Vec<usize>,
        /// Bytes of all elements, with repeated elements counted each time.
        bytes: u64,
        /// Bytes of the memory that it is a view of.
        memory: u64,
    },
    /// The memory is not on the host.
    #[error(
        "the tensor is on {device}, where the host cannot reach it; read it with `stream.download(&tensor)`, where `stream` is \
         one of {device}, or have an actor's messages brought to the host with `.receive_on(Device::host())`"
    )]
    NotOnHost {
        /// The device of the tensor.
        device: String,
    },
    /// The stream's device cannot use the tensor's memory.
    #[error(
        "the tensor is on {tensor}, which the stream on {stream} cannot reach; have the actor's messages copied with \
         `.receive_on(device)`, or copy through the host"
    )]
    OtherDevice {
        /// The device of the tensor.
        tensor: String,
        /// The device of the stream.
        stream: String,
    },
    /// The stream belongs to another node than the tensor, and cannot wait for the clocks of the tensor's
    /// node.
    #[error(
        "the tensor is of {tensor}, and the stream of {stream}: neither of two nodes waits for the other's streams; make a copy with \
         `stream.copy(&tensor)`, or use a stream of the tensor's own node"
    )]
    OtherNode {
        /// The node of the tensor. The nodes of a process are counted from 1, in the order in which it
        /// started them.
        tensor: String,
        /// The node of the stream.
        stream: String,
    },
    /// A DLPack tensor of another library cannot be a tensor here.
    #[error("the DLPack tensor cannot be taken: {why}")]
    DlPack {
        /// The obstacle and the remedy.
        why: String,
    },
    /// A tensor cannot cross to or from candle, because one side lacks something.
    #[cfg(feature = "candle")]
    #[error("the tensor cannot go between here and candle: {why}")]
    Candle {
        /// The missing thing and the remedy.
        why: String,
    },
    /// Rust has no type for the elements.
    #[error(
        "Rust has no type for elements of {dtype}; take them as bytes (`download_bytes`, `upload_bytes`), or convert them in a kernel \
         or a library that has them"
    )]
    NoElement {
        /// The type of the elements.
        dtype: DType,
    },
    /// Bytes that are neither 0 nor 1 in a tensor of bool.
    #[error("a tensor of bool holds bytes other than 0 and 1; whoever wrote it made a mistake")]
    NotBool,
    /// A shape, slice or view that does not fit.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The pool had no memory.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The data depends on work that a process had not done when it died: it will never be there (DEATH-3).
    /// Nothing was read and nothing enqueued.
    #[error(
        "the tensor's data was lost with {by}: it depends on work that {by} had not done when it died; make it again"
    )]
    Tainted {
        /// The process that died.
        by: ProcessId,
    },
    /// The device refused.
    #[error(transparent)]
    Device(DeviceError),
    /// The data will never be there.
    #[error(transparent)]
    Clock(Box<dyn Error + Send + Sync>),
    /// The deadline came before the data.
    #[error("the data was not there by the deadline; wait longer, or look at what its writer does")]
    TimedOut,
}

impl TensorError {
    /// Returns the process with which the data was lost, if the error says that it was lost (DEATH-3).
    pub fn lost_with(&self) -> Option<ProcessId> {
        match self {
            TensorError::Tainted { by } => Some(*by),
            TensorError::Device(error) => error.lost_with(),
            _ => None,
        }
    }
}

impl From<Tainted> for TensorError {
    fn from(Tainted { by, .. }: Tainted) -> Self {
        TensorError::Tainted { by }
    }
}

impl From<ClockError> for TensorError {
    fn from(error: ClockError) -> Self {
        match error {
            ClockError::Tainted(tainted) => tainted.into(),
            error => TensorError::Clock(error.into()),
        }
    }
}

impl From<DeviceError> for TensorError {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Tainted { by } => TensorError::Tainted { by },
            error => TensorError::Device(error),
        }
    }
}

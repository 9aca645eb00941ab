//! Tensors: a piece of device memory with a dtype, a shape and strides.
//!
//! **On drop** the handle lets its lease go. When it was the last in the process, the lease goes back to its
//! owner, ordered behind all work of this process's streams on the memory. Dropping never blocks.
//!
//! [`TensorMut`] is the writable form of a whole tensor. [`TensorMut::freeze`] makes it a [`Tensor`], which
//! is read-only, cheap to clone, and sendable. [`TensorMut::split`] makes it [`part`]s, which several
//! processes write at the same time. When no other clone is left in any process, [`Tensor::into_mut`] makes a
//! `Tensor` a `TensorMut` again. So one buffer can pass through a whole pipeline in place (ONE-WRITER: the
//! holder of the `TensorMut` is the writer).
//!
//! ```
//! use tensorpost::prelude::*;
//!
//! # fn main() -> anyhow::Result<()> {
//! # let node = Node::builder().start()?;
//! let stream = node.host_stream()?; // in an actor: `env.stream()`, a stream of the actor's device
//! let mut squares = stream.from_slice(&[4], &[1.0_f32, 2.0, 3.0, 4.0])?;
//! stream.run((squares.of_mut::<f32>(),), |(x,)| x.iter_mut().for_each(|x| *x *= *x))?; // work on the stream
//! let squares = squares.freeze(); // now it can be cloned and sent; nobody writes it
//! let tail = squares.slice(0, 2..4)?; // shares the memory and the lease
//! assert_eq!(tail.to_vec::<f32>()?, [9.0, 16.0]); // waits until the data is there
//! # Ok(())
//! # }
//! ```
//!
//! Small things on host tensors need no kernel: [`Tensor::map`], [`zip_map`](Tensor::zip_map),
//! [`sum`](Tensor::sum) and its like, [`cast`](Tensor::cast), [`TensorMut::map_in_place`], and, with the
//! feature `ndarray`, views with the whole of `ndarray`.
//!
//! Work on a tensor goes through a stream ([`DeviceStream`]). Every way to use a tensor on a stream first
//! makes the stream wait for the tensor's ready ticket (CLOCK-1), and notes the stream in the lease, so that
//! reuse waits for it (CLOCK-2). The handler's stream has waited before the handler begins; a second wait
//! costs nothing. A stream of another node of the process can do neither, and is refused; copies still work,
//! see `nodes`.

#[cfg(feature = "candle")]
mod candle;
mod cast;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod device_stream;
#[cfg(feature = "dlpack")]
pub(crate) mod dlpack;
pub mod dtype;
pub mod error;
pub mod host;
mod host_blocks;
pub mod kernel;
pub mod layout;
mod map;
mod mutable;
#[cfg(feature = "ndarray")]
mod ndarray;
mod nodes;
pub mod part;
mod reduce;
#[cfg(feature = "hosts")]
mod reserved;
mod scalar;
mod transfer;

use std::fmt;
use std::ops::RangeBounds;

pub use device_stream::DeviceStream;
#[cfg(feature = "dlpack")]
pub use dlpack::{DlPack, DlPackReady};
pub use dtype::{DType, Element};
pub use error::TensorError;
pub use layout::{Layout, LayoutError};
pub use mutable::{NotSole, NotSoleReason, TensorMut};
pub use part::{JoinError, SplitError, TensorPart};
#[cfg(feature = "hosts")]
pub(crate) use reserved::Reserved;

use crate::clock::Ticket;
use crate::clock::taint::{Tainted, TicketStatus};
use crate::ids::{DeviceId, ProcessId};
use crate::lease::Lease;
use crate::stream::Stream;
use nodes::check_node;

/// Whether a tensor's data is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TensorStatus {
    /// The data is there.
    Ready,
    /// The data is on its way.
    Pending,
    /// The data depends on work that a process had not done when it died. Every use is an error.
    Tainted {
        /// The process that died.
        by: ProcessId,
    },
}

/// A read-only tensor. Clones, slices and views share one lease on the memory.
///
/// ```
/// use tensorpost::prelude::*;
///
/// # fn main() -> anyhow::Result<()> {
/// # let node = Node::builder().start()?;
/// let stream = node.host_stream()?; // in an actor: `env.stream()`
/// let matrix = stream.from_slice(&[2, 3], &[1_i32, 2, 3, 4, 5, 6])?.freeze();
/// let columns = matrix.permute(&[1, 0])?; // no copy: the same memory with other strides
/// assert_eq!((columns.shape(), columns.strides()), (&[3, 2][..], &[1, 3][..]));
/// assert_eq!(columns.index(0, 1)?.to_vec::<i32>()?, [2, 5]);
///
/// // While `columns` is there, nobody can write; after that the one handle left becomes writable again.
/// let refused = matrix.into_mut(&stream).unwrap_err();
/// drop(columns);
/// let mut writable = refused.tensor.into_mut(&stream)?;
/// writable.as_mut_slice::<i32>()?[0] = 10;
/// assert_eq!(writable.freeze().to_vec::<i32>()?, [10, 2, 3, 4, 5, 6]);
/// # Ok(())
/// # }
/// ```
pub struct Tensor {
    lease: Lease,
    dtype: DType,
    layout: Layout,
    /// The ticket for the data; `None` once the data is known to be there.
    ready: Option<Ticket>,
    /// The address of the first element in this process.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only kernels are given it"))]
    first_element: u64,
}

impl Tensor {
    /// Creates a tensor over a lease. The caller has checked that the layout lies in the allocation.
    pub(crate) fn from_parts(lease: Lease, dtype: DType, layout: Layout, ready: Option<Ticket>) -> Self {
        if let Some(ready) = &ready {
            lease.domain().relies_on(ready);
        }
        lease.add_handle();
        let first_element = lease.address() + layout.offset() as u64 * dtype.size() as u64;
        Tensor { lease, dtype, layout, ready, first_element }
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the number of elements along each axis.
    pub fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    /// Returns the distance in elements between neighbours along each axis.
    pub fn strides(&self) -> &[isize] {
        self.layout.strides()
    }

    /// Returns the number of axes.
    pub fn rank(&self) -> usize {
        self.layout.rank()
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// Returns whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes that its elements take when packed.
    pub fn bytes(&self) -> u64 {
        self.len() as u64 * self.dtype.size() as u64
    }

    /// Returns shape, strides and offset together.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns whether the elements are packed in row-major order.
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// Returns the device that the memory is on.
    pub fn device(&self) -> DeviceId {
        self.lease.device()
    }

    /// Returns the lease that the tensor stands on.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    inside! {
        /// Returns the ticket for the data, or `None` once the data is known to be there.
        pub fn ready(&self) -> Option<Ticket> {
            self.ready
        }
    }

    /// Returns the address of the first element; a kernel takes it as an argument by reference.
    #[cfg(feature = "cuda")]
    pub(crate) fn first_element(&self) -> &u64 {
        &self.first_element
    }

    pub(crate) fn with_layout(&self, layout: Layout) -> Tensor {
        Tensor::from_parts(self.lease.clone(), self.dtype, layout, self.ready)
    }

    /// Returns the elements in `range` along `axis`, over the same memory.
    ///
    /// # Errors
    /// There is no such axis, or the range leaves it.
    pub fn slice(&self, axis: usize, range: impl RangeBounds<usize>) -> Result<Tensor, TensorError> {
        Ok(self.with_layout(self.layout.slice(axis, range)?))
    }

    /// Returns the element `index` along `axis`, without that axis.
    ///
    /// # Errors
    /// There is no such axis, or no such element.
    pub fn index(&self, axis: usize, index: usize) -> Result<Tensor, TensorError> {
        Ok(self.with_layout(self.layout.index(axis, index)?))
    }

    /// Returns the same elements in another shape, without a copy.
    ///
    /// # Errors
    /// The number of elements differs, or the strides do not allow it.
    pub fn view(&self, shape: &[usize]) -> Result<Tensor, TensorError> {
        Ok(self.with_layout(self.layout.view(shape)?))
    }

    /// Returns the axes in another order, over the same memory.
    ///
    /// # Errors
    /// `axes` is not a permutation of the axes.
    pub fn permute(&self, axes: &[usize]) -> Result<Tensor, TensorError> {
        Ok(self.with_layout(self.layout.permute(axes)?))
    }

    /// Returns the same elements, repeated along axes of one element, over the same memory.
    ///
    /// # Errors
    /// The shapes do not agree.
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<Tensor, TensorError> {
        Ok(self.with_layout(self.layout.broadcast_to(shape)?))
    }

    /// Returns whether this handle is the last on its memory, in this process and all others: then
    /// [`into_mut`](Self::into_mut) succeeds.
    pub fn is_sole(&self) -> bool {
        self.lease.handles() == 1 && self.lease.is_sole()
    }

    /// Returns the writable form, if no other handle on the memory is left in any process; no bytes are
    /// copied. Later work on `stream`'s stream waits for all earlier uses by others.
    ///
    /// # Errors
    /// [`NotSole`] gives the tensor back and names the reason.
    #[expect(clippy::result_large_err, reason = "the error is the tensor given back")]
    pub fn into_mut(self, stream: &DeviceStream) -> Result<TensorMut, NotSole> {
        TensorMut::from_tensor(self, stream)
    }

    /// Returns whether the data is there, on its way, or lost with a process. Never blocks. Neither `Ready`
    /// nor `Tainted` changes any more, with one exception: a process that was stopped while another died is
    /// believed again when it goes on.
    pub fn status(&self) -> TensorStatus {
        if let Some(Tainted { by, .. }) = self.taint() {
            return TensorStatus::Tainted { by };
        }
        match self.ready.map(|ticket| self.lease.domain().status(&ticket)) {
            None | Some(Ok(TicketStatus::Ready)) => TensorStatus::Ready,
            Some(Ok(TicketStatus::Tainted(by))) => TensorStatus::Tainted { by },
            // An unknown clock will never pass; a use of the tensor reports that.
            Some(Ok(TicketStatus::Pending) | Err(_)) => TensorStatus::Pending,
        }
    }

    /// Returns the taint because of which the data will never be there, if one is known.
    pub(crate) fn taint(&self) -> Option<Tainted> {
        self.lease.taint_at(self.ready)
    }

    inside! {
        /// Makes work on `stream` from here on wait until the data is there, and makes the memory's reuse
        /// wait for that work. Returns the address of the first element of the *allocation*; the layout's
        /// offset is not added.
        ///
        /// Enqueue the work before anything else is done with the stream.
        ///
        /// # Errors
        /// [`TensorError::Tainted`] where the data will never be there (DEATH-3), an unknown clock of its
        /// writer, a stream of another node, a refusal of the device.
        pub fn read_on(&self, stream: &Stream) -> Result<u64, TensorError> {
            self.await_on(stream)?;
            self.lease.used_on(stream);
            Ok(self.lease.address())
        }
    }

    /// Puts the wait of [`read_on`](Self::read_on) on the stream, its first half. The caller notes the use by
    /// itself.
    pub(crate) fn await_on(&self, stream: &Stream) -> Result<(), TensorError> {
        check_node(&self.lease, stream)?;
        if let Some(tainted) = self.lease.taint() {
            return Err(tainted.into());
        }
        // CLOCK-1.
        Ok(stream.wait(self.ready)?)
    }
}

impl Clone for Tensor {
    fn clone(&self) -> Self {
        self.with_layout(self.layout)
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        self.lease.remove_handle();
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?} on {})", self.dtype, self.shape(), self.device())
    }
}

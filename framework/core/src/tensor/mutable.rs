//! The writable form of a tensor. There is at most one per allocation at any time (ONE-WRITER).

use std::fmt;

use smallvec::SmallVec;

use super::nodes::check_node;
use super::{DType, DeviceStream, Layout, Tensor, TensorError, TensorStatus};
use crate::clock::Ticket;
use crate::clock::taint::TicketStatus;
use crate::ids::DeviceId;
use crate::lease::Lease;
use crate::lease::handle::Unordered;
use crate::stream::Stream;

/// A tensor that only its holder can see, and so may write. It cannot be sent: [`freeze`](Self::freeze) it
/// first, or [`split`](Self::split) it and send the parts.
///
/// ```
/// use tensorpost::prelude::*;
///
/// # fn main() -> anyhow::Result<()> {
/// # let node = Node::builder().start()?;
/// # let stream = node.host_stream()?;
/// let mut counts = stream.zeros(DType::U32, &[4])?;
/// counts.as_mut_slice::<u32>()?[2] = 9;
/// let counts: Tensor = counts.freeze();
/// assert_eq!(counts.to_vec::<u32>()?, [0, 0, 9, 0]);
/// # Ok(())
/// # }
/// ```
pub struct TensorMut {
    lease: Lease,
    dtype: DType,
    layout: Layout,
    /// The ticket for data that another stream or process wrote.
    ready: Option<Ticket>,
    /// The address of the first element in this process, to write.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only kernels are given it"))]
    first_element: u64,
}

/// The reason why a [`Tensor`] could not become a [`TensorMut`], and the tensor, unchanged.
#[derive(Debug, thiserror::Error)]
#[error("the tensor cannot be written: {why}")]
#[non_exhaustive]
pub struct NotSole {
    /// The tensor.
    pub tensor: Tensor,
    /// The reason.
    pub why: NotSoleReason,
}

/// Why a tensor cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotSoleReason {
    /// Clones or slices are left in this process.
    #[error("{others} other handles on its memory are left in this process; drop them first")]
    HandlesHere {
        /// The number of the others, without this one.
        others: usize,
    },
    /// Another process holds it, or held it when it was sent here.
    #[error("another process holds it too, or did when it was sent; copy it with `stream.copy(&tensor)`")]
    HeldElsewhere,
    /// Two of its indices name the same element.
    #[error("its strides make elements overlap; copy it with `stream.contiguous(&tensor)`")]
    Overlaps,
    /// The stream could not be made to wait, or the memory not be mapped writable.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl TensorMut {
    /// Creates a writable tensor over a lease at `address`, where its mapping is writable.
    pub(crate) fn from_parts(
        lease: Lease,
        address: u64,
        dtype: DType,
        layout: Layout,
        ready: Option<Ticket>,
    ) -> Self {
        lease.add_handle();
        let first_element = address + layout.offset() as u64 * dtype.size() as u64;
        TensorMut { lease, dtype, layout, ready, first_element }
    }

    #[expect(clippy::result_large_err, reason = "the error is the tensor given back")]
    pub(super) fn from_tensor(tensor: Tensor, stream: &DeviceStream) -> Result<Self, NotSole> {
        match Self::claim(&tensor, stream) {
            Ok(address) => {
                let lease = tensor.lease.clone();
                Ok(TensorMut::from_parts(lease, address, tensor.dtype, tensor.layout, tensor.ready))
            }
            Err(why) => Err(NotSole { tensor, why }),
        }
    }

    /// Makes `stream`'s stream wait for every other use, and returns the address to write at.
    fn claim(tensor: &Tensor, stream: &DeviceStream) -> Result<u64, NotSoleReason> {
        check_node(&tensor.lease, stream.clocked())?;
        let others = tensor.lease.handles().saturating_sub(1);
        if others > 0 {
            return Err(NotSoleReason::HandlesHere { others });
        }
        if !tensor.lease.is_last() {
            // A clone is on its way into another process, on another thread.
            return Err(NotSoleReason::HeldElsewhere);
        }
        if tensor.layout.overlaps_itself() {
            return Err(NotSoleReason::Overlaps);
        }
        if !tensor.lease.is_sole() {
            return Err(NotSoleReason::HeldElsewhere);
        }
        if let Some(tainted) = tensor.lease.taint() {
            return Err(TensorError::from(tainted).into());
        }
        let (address, _) = tensor.lease.writable().map_err(TensorError::from)?;
        // Readers in other processes may still use the memory; the new writer's stream waits for them
        // (CLOCK-2).
        let uses = tensor.lease.recorded_uses();
        stream.clocked().wait_in_order(uses).map_err(TensorError::from)?;
        stream.clocked().wait(tensor.ready).map_err(TensorError::from)?;
        tensor.lease.ordered_on(stream.clocked());
        Ok(address)
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

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// Returns whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns shape, strides and offset together.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the device that the memory is on.
    pub fn device(&self) -> DeviceId {
        self.lease.device()
    }

    /// Returns the lease that the tensor stands on.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Returns the address of the first element; a kernel takes it as an argument by reference.
    #[cfg(feature = "cuda")]
    pub(crate) fn first_element(&self) -> &u64 {
        &self.first_element
    }

    /// Returns the read-only form, which can be cloned and sent. Work that was put on streams before goes on;
    /// the streams of readers wait for it.
    pub fn freeze(self) -> Tensor {
        let ready = self.last_write();
        Tensor::from_parts(self.lease.clone(), self.dtype, self.layout, ready)
    }

    /// Returns a ticket for all writes to the memory so far.
    pub(super) fn last_write(&self) -> Option<Ticket> {
        // A stream that used the memory waited for `ready` first.
        self.last_use().unwrap_or_else(|unordered| unordered.written.or(self.tainted()))
    }

    /// Returns the ticket that the next writer has to wait for: as [`last_write`](Self::last_write), but
    /// readers count too.
    pub(super) fn last_use(&self) -> Result<Option<Ticket>, Unordered> {
        if self.lease.users().is_empty() {
            return Ok(self.ready);
        }
        Ok(self.lease.joined_ticket()?.or(self.tainted()))
    }

    inside! {
        /// Makes work on `stream` from here on wait for all earlier uses, on other streams too, and makes the
        /// memory's reuse wait for that work. Returns the writable address of the first element of the
        /// *allocation*; the layout's offset is not added.
        ///
        /// Enqueue the work before anything else is done with the stream.
        ///
        /// # Errors
        /// [`TensorError::Tainted`] where the earlier data depends on work that a process had not done when
        /// it died (make another tensor then), a stream of another node, a refusal of the device, memory that
        /// cannot be mapped writable.
        pub fn write_on(&mut self, stream: &Stream) -> Result<u64, TensorError> {
            let address = self.await_on(stream)?;
            self.lease.written_on(stream);
            Ok(address)
        }
    }

    /// Puts the waits of [`write_on`](Self::write_on) on the stream, its first half. The caller notes the use
    /// by itself.
    pub(crate) fn await_on(&mut self, stream: &Stream) -> Result<u64, TensorError> {
        check_node(&self.lease, stream)?;
        if let Some(tainted) = self.lease.taint() {
            return Err(tainted.into());
        }
        let (address, _mapping) = self.lease.writable()?;
        let mut data: SmallVec<[Ticket; 2]> = self.ready.into_iter().collect();
        let mut order: SmallVec<[Ticket; 2]> = SmallVec::new();
        for other in self.lease.users().iter().filter(|other| *other != stream) {
            let tickets = if self.lease.was_written_by(other) { &mut data } else { &mut order };
            tickets.extend(other.ticket());
        }
        stream.wait_in_order(order)?;
        stream.wait(data)?;
        Ok(address)
    }

    /// Returns whether the data is there, on its way, or lost with a process. Never blocks.
    pub fn status(&self) -> TensorStatus {
        let domain = self.lease.domain();
        let ready = self.ready.and_then(|ticket| domain.tainted_by(&ticket));
        if let Some(by) = ready.or_else(|| self.lease.taint().map(|tainted| tainted.by)) {
            return TensorStatus::Tainted { by };
        }
        let uses = self.lease.users();
        let tickets = uses.iter().filter_map(Stream::ticket).chain(self.ready);
        let is_ready = |ticket: Ticket| matches!(domain.status(&ticket), Ok(TicketStatus::Ready));
        if tickets.into_iter().all(is_ready) { TensorStatus::Ready } else { TensorStatus::Pending }
    }

    fn tainted(&self) -> Option<Ticket> {
        let ready = self.ready?;
        self.lease.domain().tainted_by(&ready).map(|_| ready)
    }
}

impl Drop for TensorMut {
    fn drop(&mut self) {
        self.lease.remove_handle();
    }
}

impl fmt::Debug for TensorMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorMut({} {:?} on {})", self.dtype, self.shape(), self.device())
    }
}

//! Tensors of one node on streams of another: a program may have several nodes, at once or one after the
//! other.
//!
//! Process numbers, and so tickets, have a meaning within one node only (see [`ClockDomain`]). A stream
//! cannot wait for a ticket of another node (CLOCK-1), and a lease cannot be given back with such a ticket
//! (CLOCK-2). So work on a tensor of another node is refused, and the error says what to do: make a copy. A
//! copy waits on the host, first for the tensor on its own node's clocks, and then for itself. A program with
//! one node pays a comparison of two addresses.

use crate::lease::Lease;
use crate::stream::{Stream, host_wait_in_order};

use super::{DeviceStream, Tensor, TensorError};

#[cfg(doc)]
use crate::clock::ClockDomain;

/// Refuses work on `stream` with memory of another node.
#[inline]
pub(crate) fn check_node(lease: &Lease, stream: &Stream) -> Result<(), TensorError> {
    if lease.is_of(stream.domain()) { Ok(()) } else { Err(other_node(lease, stream)) }
}

#[cold]
fn other_node(lease: &Lease, stream: &Stream) -> TensorError {
    let [tensor, stream] = [lease.domain(), stream.domain()].map(|of| of.node().to_string());
    TensorError::OtherNode { tensor, stream }
}

impl DeviceStream {
    /// Gives `copy` the address of `tensor`'s allocation, and lets it put copies out of the tensor on this
    /// stream. Copies of a tensor of another node are done when this returns.
    pub(super) fn read_for_copy<R>(
        &self,
        tensor: &Tensor,
        copy: impl FnOnce(u64) -> Result<R, TensorError>,
    ) -> Result<R, TensorError> {
        let stream = self.clocked();
        if tensor.lease().is_of(stream.domain()) {
            return copy(tensor.read_on(stream)?);
        }
        // CLOCK-1, on the clocks of the node that the tensor is of.
        tensor.wait(None)?;
        let copied = copy(tensor.lease().address());
        // CLOCK-2, also after an error: the tensor's node does not know this stream's clock, so no work may
        // be left when the caller can drop the tensor.
        if let Some(end) = stream.ticket() {
            host_wait_in_order(stream.domain(), end)?;
        }
        copied
    }
}

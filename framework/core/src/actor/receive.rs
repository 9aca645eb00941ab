//! Brings the tensors of an actor's messages to its device before its handlers see them.
//!
//! An actor may ask for a device ([`Spawn::receive_on`](crate::node::Spawn::receive_on)): tensors from
//! elsewhere are copied there. An actor on a GPU never gets memory of a GPU that its own cannot reach. Such
//! memory is copied too, through host memory, and the log says so.
//!
//! The copy is made when the message's turn has come, not on delivery. So only one message of an actor has
//! memory for its copy at a time, and a full pool holds up that actor alone. A message of any type is encoded
//! and decoded once more with other leases, as if it had come from another process again. That needs no
//! second path through serde.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};

use smallvec::SmallVec;

use super::fetch::Fetches;
use crate::clock::{ClockDomain, Ticket};
use crate::device::DeviceKind;
use crate::ids::DeviceId;
use crate::message::buffers::Gathered;
use crate::message::{GpuMessage, codec};
use crate::tensor::{DeviceStream, Tensor, TensorError};
use crate::transport::Transport;

/// See the module.
pub(super) struct Receive {
    stream: DeviceStream,
    /// Whether all tensors have to be on the device, and not only those that it cannot reach otherwise.
    all: bool,
    transport: Weak<Transport>,
    fetches: Fetches,
}

/// A message whose tensors were fetched, and the tickets that its receiver's stream has to wait for.
pub(super) struct Fetched<M> {
    pub(super) message: M,
    pub(super) tickets: SmallVec<[Ticket; 2]>,
}

impl Receive {
    /// Makes one for an actor that works with `own` and wants its tensors on the device `wanted`, if it names
    /// one.
    ///
    /// # Errors
    /// The device cannot be used, or the process has no clock left.
    pub(super) fn new(
        own: &DeviceStream,
        wanted: Option<DeviceId>,
        transport: &Arc<Transport>,
    ) -> Result<Self, TensorError> {
        let stream = match wanted {
            Some(device) if device != own.device_id() => {
                DeviceStream::new(transport.pool_for(device)?, Arc::clone(transport.domain()))?
            }
            _ => own.clone(),
        };
        let (all, transport) = (wanted.is_some(), Arc::downgrade(transport));
        Ok(Receive { stream, all, transport, fetches: Fetches::default() })
    }

    /// Returns the clock domain of the process.
    pub(super) fn domain(&self) -> Option<Arc<ClockDomain>> {
        self.transport.upgrade().map(|transport| Arc::clone(transport.domain()))
    }

    fn must_move(&self, device: DeviceId) -> bool {
        let here = self.stream.pool().backend();
        if device == here.id() {
            return false;
        }
        self.all || (device != DeviceId::HOST && here.kind() == DeviceKind::Cuda && !here.can_reach(device))
    }

    /// Returns whether one of these tensors is not on the device where it has to be.
    pub(super) fn concerns(&self, tensors: &[Tensor]) -> bool {
        tensors.iter().any(|tensor| self.must_move(tensor.device()))
    }

    /// Returns whether a message that came as a value may have such a tensor: nobody has searched it for
    /// tensors.
    pub(super) fn may_concern(&self) -> bool {
        self.all
            || (self.stream.kind() == DeviceKind::Cuda
                && self.transport.upgrade().is_some_and(|transport| {
                    transport.memory.devices_in_use().into_iter().any(|device| self.must_move(device))
                }))
    }

    /// Returns the message with its tensors on the device where they have to be, or `None` if they are there
    /// already. Pending, with `waker` noted, while there is no memory for them.
    ///
    /// # Errors
    /// The reason why that is not possible, for the sender.
    pub(super) fn fetch<M: GpuMessage>(
        &self,
        message: &M,
        waker: &Waker,
    ) -> Poll<Result<Option<Fetched<M>>, String>> {
        let Some(transport) = self.transport.upgrade() else { return Poll::Ready(Ok(None)) };
        let encoded = match codec::encode_in(message, Vec::new(), transport.domain()) {
            Ok(encoded) => encoded,
            Err(error) => return Poll::Ready(Err(error.to_string())),
        };
        let codec::Encoded { body, mut leases, mut tensors, parts, .. } = encoded;
        if !leases.iter().any(|(lease, _)| self.must_move(lease.device())) {
            Gathered { leases, tensors }.give_back();
            return Poll::Ready(Ok(None));
        }
        if let Some(part) = parts.first() {
            // ONE-WRITER: other processes may write the rest of the tensor, so a part of it cannot be moved
            // to other memory.
            let reaches = self.stream.pool().backend().can_reach(part.lease().device());
            let why =
                || format!("a part of a tensor on {} cannot be moved, or reached", part.lease().device());
            return Poll::Ready(if reaches || self.all { Ok(None) } else { Err(why()) });
        }
        let backend_of = |device| transport.pool_for(device).map(|pool| Arc::clone(pool.backend()));
        let must_move = |device| self.must_move(device);
        match self.fetches.fetch(&self.stream, &mut leases, &mut tensors, must_move, backend_of, waker) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error.to_string())),
            Poll::Ready(Ok(moved)) => {
                transport.counters.bytes_fetched.fetch_add(moved.bytes, Ordering::Relaxed);
                transport.counters.bytes_staged.fetch_add(moved.staged, Ordering::Relaxed);
            }
        }
        let tickets = leases.iter().filter_map(|(_, ready)| *ready).collect();
        let read = codec::tensors(&leases, &tensors).and_then(|tensors| {
            // As in a delivery, the tensors are the only handles on their leases.
            drop(leases);
            codec::decode::<M>(&body, tensors, Some(transport))
        });
        Poll::Ready(read.map(|message| Some(Fetched { message, tickets })).map_err(|error| error.to_string()))
    }
}

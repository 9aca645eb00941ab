//! A device together with one of its streams and this process's memory there: an actor computes with it.

#![expect(unsafe_code, reason = "copies and fills between raw addresses, whose ranges the leases vouch for")]

use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::slice;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use smallvec::smallvec;

use super::host::in_reach;
use super::{DType, Element, Layout, Tensor, TensorError, TensorMut};
use crate::clock::ClockDomain;
use crate::device::{DeviceKind, Keep};
use crate::ids::DeviceId;
use crate::lease::pool::{Allocation, PoolStats};
use crate::lease::{Pool, PoolError};
use crate::stream::Stream;

/// Memory and a stream on one device. Clones share both; [`with_new_stream`](Self::with_new_stream) gives
/// another stream. On the host device the stream is a worker thread, and [`run`](Self::run) puts closures on
/// it.
#[derive(Clone, Debug)]
pub struct DeviceStream {
    pool: Arc<Pool>,
    stream: Stream,
    domain: Arc<ClockDomain>,
}

impl DeviceStream {
    inside! {
        /// Creates a handle on the pool's device with a new stream. Where the device has no more streams (six
        /// on a GPU, see [`cuda_streams`](crate::limits::cuda_streams)), it shares one that this process has
        /// already, and says so in the log.
        ///
        /// # Errors
        /// The process has no clock left, or the device refuses.
        pub fn new(pool: Arc<Pool>, domain: Arc<ClockDomain>) -> Result<Self, TensorError> {
            let stream = Stream::new_or_shared(pool.backend(), &domain)?;
            Ok(DeviceStream { pool, stream, domain })
        }
    }

    /// Creates a handle on the same memory with a stream that nobody else has.
    ///
    /// # Errors
    /// The process has no clock left, the device has no more streams ([`DeviceError::NoStream`] names the
    /// variable to raise), or it refuses.
    ///
    /// [`DeviceError::NoStream`]: crate::device::DeviceError::NoStream
    pub fn with_new_stream(&self) -> Result<Self, TensorError> {
        let stream = Stream::new(self.pool.backend(), &self.domain)?;
        Ok(DeviceStream { pool: Arc::clone(&self.pool), stream, domain: Arc::clone(&self.domain) })
    }

    inside! {
        /// Returns the stream itself with its clock, which waits for tickets and makes them.
        pub fn clocked(&self) -> &Stream {
            &self.stream
        }
    }

    /// Returns how often the stream has had to wait for others so far, and for how long, where the device can
    /// tell that at no cost.
    pub fn waits(&self) -> (u64, Option<Duration>) {
        self.stream.waits()
    }

    /// Returns how much memory this process has on the device, and the holders of it.
    pub fn memory(&self) -> PoolStats {
        self.pool.stats()
    }

    /// Makes work that the caller enqueues itself wait until the tensor's data is there, and makes the
    /// memory's reuse wait for that work (CLOCK-1, CLOCK-2). Enqueue the work before anything else is done
    /// with the stream. Returns the address of the first element of the *allocation*; the layout's offset is
    /// not added.
    ///
    /// # Errors
    /// [`TensorError::Tainted`] where the data will never be there (DEATH-3), a tensor of another node, or a
    /// refusal of the device.
    pub fn begin_read(&self, tensor: &Tensor) -> Result<u64, TensorError> {
        tensor.read_on(&self.stream)
    }

    /// [`begin_read`](Self::begin_read) for work that writes the tensor: the work comes after all other uses
    /// of the memory.
    ///
    /// # Errors
    /// As for [`begin_read`](Self::begin_read).
    pub fn begin_write(&self, tensor: &mut TensorMut) -> Result<u64, TensorError> {
        tensor.write_on(&self.stream)
    }

    inside! {
        /// Returns the pool that the memory comes from.
        pub fn pool(&self) -> &Arc<Pool> {
            &self.pool
        }
    }

    /// Returns the device's identity.
    pub fn device_id(&self) -> DeviceId {
        self.pool.device_id()
    }

    /// Returns the kind of device.
    pub fn kind(&self) -> DeviceKind {
        self.pool.backend().kind()
    }

    /// Returns the device's name, such as `host` or `cuda:0`.
    pub fn name(&self) -> String {
        self.pool.backend().name()
    }

    /// Makes a tensor with the memory's old contents. Never waits.
    ///
    /// # Errors
    /// A shape that is too large, a full pool, a device that refuses.
    pub fn empty(&self, dtype: DType, shape: &[usize]) -> Result<TensorMut, TensorError> {
        let layout = Layout::contiguous(shape)?;
        let allocation = self.pool.allocate(layout.packed_bytes(dtype)? as u64)?;
        self.adopt(allocation, dtype, layout)
    }

    /// [`empty`](Self::empty) that waits for memory while the pool is full.
    ///
    /// # Errors
    /// As for [`empty`](Self::empty), a full pool excepted.
    ///
    /// # Cancel safety
    /// Dropping the future takes nothing.
    pub async fn empty_when_free(&self, dtype: DType, shape: &[usize]) -> Result<TensorMut, TensorError> {
        let layout = Layout::contiguous(shape)?;
        let bytes = layout.packed_bytes(dtype)? as u64;
        let allocation = poll_fn(|cx| match self.pool.poll_allocate(bytes, cx.waker()) {
            Err(PoolError::Full { .. }) => Poll::Pending,
            result => Poll::Ready(result),
        })
        .await?;
        self.adopt(allocation, dtype, layout)
    }

    pub(super) fn adopt(
        &self,
        allocation: Allocation,
        dtype: DType,
        layout: Layout,
    ) -> Result<TensorMut, TensorError> {
        if !allocation.after.is_empty() {
            // CLOCK-2: earlier holders may still be using the memory; this stream goes behind them.
            self.stream.wait_in_order(allocation.after)?;
            allocation.lease.ordered_on(&self.stream);
        }
        allocation.lease.set_home(&self.stream);
        let address = allocation.lease.address();
        Ok(TensorMut::from_parts(allocation.lease, address, dtype, layout, None))
    }

    /// Makes a tensor of zeros (`false` for bool).
    ///
    /// # Errors
    /// As for [`empty`](Self::empty).
    pub fn zeros(&self, dtype: DType, shape: &[usize]) -> Result<TensorMut, TensorError> {
        let mut tensor = self.empty(dtype, shape)?;
        let bytes = tensor.layout().packed_bytes(dtype)? as u64;
        let address = tensor.write_on(&self.stream)?;
        let keep = smallvec![tensor.lease().writable()?.1];
        // SAFETY: the allocation is `bytes` long, packed from its start, writable and this tensor's alone;
        // `write_on` has put the stream behind every other use, and its reuse behind the stream.
        unsafe { self.stream.backend().fill(address, bytes, 0, keep)? };
        Ok(tensor)
    }

    /// Makes a tensor with the given elements in row-major order.
    ///
    /// # Errors
    /// As for [`empty`](Self::empty), and a number of elements that is not the shape's.
    pub fn from_slice<T: Element>(&self, shape: &[usize], elements: &[T]) -> Result<TensorMut, TensorError> {
        let wanted = Layout::contiguous(shape)?.len();
        if wanted != elements.len() {
            return Err(TensorError::Length { shape: shape.to_vec(), wanted, given: elements.len() });
        }
        let mut tensor = self.empty(T::DTYPE, shape)?;
        let address = tensor.write_on(&self.stream)?;
        let keep = smallvec![tensor.lease().writable()?.1];
        // SAFETY: as in `zeros`: the allocation has room for exactly these elements.
        unsafe { self.stream.backend().upload(address, bytemuck::cast_slice(elements), keep)? };
        Ok(tensor)
    }

    /// Reads the elements of a tensor on this device in row-major order, whatever its strides. Blocks until
    /// they are there.
    ///
    /// # Errors
    /// Another dtype or device, data that will never be there.
    pub fn download<T: Element>(&self, tensor: &Tensor) -> Result<Vec<T>, TensorError> {
        if tensor.dtype() != T::DTYPE {
            return Err(TensorError::DType { asked: T::DTYPE, found: tensor.dtype() });
        }
        in_reach(tensor.device(), self)?;
        let mut elements = tensor.room_for_all::<T>()?;
        // Packed elements of a type for which any bytes are values go straight into the vector.
        if tensor.is_contiguous() && T::DTYPE != DType::Bool {
            let room = &mut elements.spare_capacity_mut()[..tensor.len()];
            room.fill(MaybeUninit::zeroed());
            let length = size_of_val(room);
            // SAFETY: these are the bytes of the room, which have all been written, and nobody else refers to
            // them while `bytes` is there.
            let bytes = unsafe { slice::from_raw_parts_mut(room.as_mut_ptr().cast::<u8>(), length) };
            self.bring(tensor, bytes)?;
            // SAFETY: the vector has room for this many elements, and they were written. Elements of all
            // types but `bool` may have any bytes.
            unsafe { elements.set_len(tensor.len()) };
            return Ok(elements);
        }
        let mut bytes = vec![0_u8; tensor.layout().bytes_span(tensor.dtype())?.len()];
        self.bring(tensor, &mut bytes)?;
        if !T::validate(&bytes) {
            return Err(TensorError::NotBool);
        }
        let first = tensor.layout().span().start;
        let size = size_of::<T>();
        for run in tensor.layout().contiguous_runs() {
            let run = &bytes[(run.start - first) * size..(run.end - first) * size];
            elements.extend(run.chunks_exact(size).map(bytemuck::checked::pod_read_unaligned::<T>));
        }
        Ok(elements)
    }

    /// Copies the memory that a tensor on this device spans into `bytes`, which have the same length. Blocks
    /// until it is there.
    ///
    /// # Errors
    /// Data that will never be there.
    pub(super) fn bring(&self, tensor: &Tensor, bytes: &mut [u8]) -> Result<(), TensorError> {
        let span = tensor.layout().bytes_span(tensor.dtype())?;
        assert_eq!(bytes.len(), span.len(), "a packed tensor spans its elements, and others were measured");
        self.read_for_copy(tensor, |address| {
            // SAFETY: the span lies in the allocation, whose lease and mapping `tensor` keeps until this
            // returns; `read_for_copy` comes after the data's writer.
            unsafe { self.stream.backend().download(bytes, address + span.start as u64)? };
            Ok(())
        })?;
        // DEATH-3: the stream may have waited for something that was never written, and been released.
        tensor.wait(None)
    }

    /// Makes a packed copy of a tensor on this device, in memory of its own. The host does not wait, unless
    /// the tensor is of another node than the stream: then this blocks until the tensor's data is there and
    /// the copy is done.
    ///
    /// # Errors
    /// As for [`empty`](Self::empty), and a tensor on another device.
    pub fn copy(&self, tensor: &Tensor) -> Result<TensorMut, TensorError> {
        in_reach(tensor.device(), self)?;
        let mut copy = self.empty(tensor.dtype(), tensor.shape())?;
        let to = copy.write_on(&self.stream)?;
        // SAFETY: the copy has room for exactly these elements, and is this function's alone.
        unsafe { self.copy_to(tensor, to, copy.lease().writable()?.1)? };
        Ok(copy)
    }

    /// Stacks tensors of one dtype and shape, on this device, into one packed tensor with one more axis in
    /// front, by one copy each.
    ///
    /// ```
    /// # use tensorpost::prelude::*;
    /// # fn main() -> anyhow::Result<()> {
    /// # let node = Node::builder().start()?;
    /// # let stream = node.host_stream()?;
    /// let [a, b] = [[1_u8, 2], [3, 4]].map(|row| stream.from_slice(&[2], &row).map(TensorMut::freeze));
    /// let both = stream.stack(&[&a?, &b?])?.freeze();
    /// assert_eq!((both.shape(), both.to_vec::<u8>()?), (&[2, 2][..], vec![1, 2, 3, 4]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`copy`](Self::copy); no tensor at all, or tensors that differ in dtype or number of elements.
    pub fn stack(&self, tensors: &[&Tensor]) -> Result<TensorMut, TensorError> {
        let Some(first) = tensors.first() else {
            return Err(TensorError::Length { shape: Vec::new(), wanted: 1, given: 0 });
        };
        let mut shape = vec![tensors.len()];
        shape.extend_from_slice(first.shape());
        let mut stacked = self.empty(first.dtype(), &shape)?;
        let mut to = stacked.write_on(&self.stream)?;
        for tensor in tensors {
            if tensor.dtype() != first.dtype() {
                return Err(TensorError::DType { asked: first.dtype(), found: tensor.dtype() });
            }
            if tensor.len() != first.len() {
                let (wanted, given) = (first.len(), tensor.len());
                return Err(TensorError::Length { shape: first.shape().to_vec(), wanted, given });
            }
            in_reach(tensor.device(), self)?;
            // SAFETY: every tensor has as many bytes as the first, so together they fill the new allocation,
            // which is this function's alone.
            to = unsafe { self.copy_to(tensor, to, stacked.lease().writable()?.1)? };
        }
        Ok(stacked)
    }

    /// Copies a tensor's elements, packed, to the address `to`, and returns the address behind them.
    ///
    /// # Safety
    /// There is room for all of them in memory that `mapping` keeps mapped, which this stream may write, and
    /// the tensor is on this device.
    unsafe fn copy_to(
        &self,
        tensor: &Tensor,
        mut to: u64,
        mapping: Arc<crate::device::ChunkMapping>,
    ) -> Result<u64, TensorError> {
        let size = tensor.dtype().size() as u64;
        let keep: Keep = smallvec![Arc::clone(tensor.lease().mapping()), mapping];
        self.read_for_copy(tensor, |from| {
            for run in tensor.layout().contiguous_runs() {
                let (from, bytes) = (from + run.start as u64 * size, run.len() as u64 * size);
                // SAFETY: the runs lie in the source's allocation, which stays mapped in `keep`, and
                // `read_for_copy` comes after its writer; for the other side see the caller.
                unsafe { self.stream.backend().copy(to, from, bytes, keep.clone())? };
                to += bytes;
            }
            Ok(to)
        })
    }

    /// Copies a whole packed tensor from other memory of this device, on this stream.
    #[cfg(feature = "cuda")]
    pub(super) fn copy_from_address(&self, tensor: &mut TensorMut, source: u64) -> Result<(), TensorError> {
        let bytes = tensor.layout().packed_bytes(tensor.dtype())? as u64;
        let to = tensor.write_on(&self.stream)?;
        let keep: Keep = smallvec![tensor.lease().writable()?.1];
        // SAFETY: the tensor is packed from its allocation's start, writable and this one's alone; the
        // caller's slice of as many elements is borrowed, and freed in stream order by cudarc.
        unsafe { self.stream.backend().copy(to, source, bytes, keep)? };
        Ok(())
    }

    /// Returns the tensor itself if it is packed and of this stream's node, a packed copy otherwise.
    ///
    /// # Errors
    /// As for [`copy`](Self::copy).
    pub fn contiguous(&self, tensor: &Tensor) -> Result<Tensor, TensorError> {
        let serves = tensor.is_contiguous() && tensor.lease().is_of(&self.domain);
        if serves { Ok(tensor.clone()) } else { Ok(self.copy(tensor)?.freeze()) }
    }

    /// Blocks until all work on the stream is done.
    ///
    /// # Errors
    /// Work on the stream failed since the last call.
    pub fn synchronize(&self) -> Result<(), TensorError> {
        Ok(self.stream.backend().synchronize()?)
    }
}

//! The elements of a host tensor as Rust slices.
//!
//! These calls block the thread until the data is there, because their user asks to see it. Nothing on the
//! path of a message calls them.

#![expect(
    unsafe_code,
    reason = "slices are made over mapped memory here, and in `kernel.rs` by these functions"
)]

use std::time::Instant;

#[cfg(feature = "hosts")]
use super::TensorStatus;
use super::{DType, Element, Layout, Tensor, TensorError, TensorMut};
use crate::clock::{Ticket, Waited};
use crate::ids::DeviceId;
use crate::lease::Lease;
use crate::limits::MAX_BROADCAST_BYTES;
use crate::stream::host_wait;

/// Checks that packed elements of type `T` can be seen on the host, and returns the byte range of the layout.
pub(super) fn check<T: Element>(
    device: DeviceId,
    dtype: DType,
    layout: &Layout,
) -> Result<std::ops::Range<usize>, TensorError> {
    if dtype != T::DTYPE {
        return Err(TensorError::DType { asked: T::DTYPE, found: dtype });
    }
    check_bytes(device, dtype, layout)
}

/// As [`check`], for bytes.
fn check_bytes(
    device: DeviceId,
    dtype: DType,
    layout: &Layout,
) -> Result<std::ops::Range<usize>, TensorError> {
    if device != DeviceId::HOST {
        return Err(TensorError::NotOnHost { device: device.to_string() });
    }
    if !layout.is_contiguous() {
        let (shape, strides) = (layout.shape().to_vec(), layout.strides().to_vec());
        return Err(TensorError::NotContiguous { shape, strides });
    }
    Ok(layout.bytes_span(dtype)?)
}

/// Returns the elements at `address + range`.
///
/// # Safety
/// The range lies in mapped host memory that stays mapped, and that nobody writes, for as long as `'a`; its
/// start is aligned for `T` and its length a multiple of `T`'s size.
pub(super) unsafe fn elements<'a, T: Element>(
    address: u64,
    range: &std::ops::Range<usize>,
) -> Result<&'a [T], TensorError> {
    if range.is_empty() {
        return Ok(&[]);
    }
    let start = std::ptr::with_exposed_provenance::<u8>(address as usize + range.start);
    // SAFETY: the caller's promise, for bytes, of which every pattern is valid.
    let bytes = unsafe { std::slice::from_raw_parts(start, range.len()) };
    if !T::validate(bytes) {
        return Err(TensorError::NotBool);
    }
    // SAFETY: the caller's promise; the bytes were just found to be values of `T`, and alignment holds
    // because the allocation starts at a multiple of 512 bytes and offsets are whole elements.
    Ok(unsafe { std::slice::from_raw_parts(start.cast::<T>(), range.len() / size_of::<T>()) })
}

/// Returns the elements at `address + range`, to write.
///
/// # Safety
/// As for [`elements`], and nobody else reads or writes the range for as long as `'a`.
pub(super) unsafe fn elements_mut<'a, T: Element>(
    address: u64,
    range: &std::ops::Range<usize>,
) -> Result<&'a mut [T], TensorError> {
    if range.is_empty() {
        return Ok(&mut []);
    }
    let start = std::ptr::with_exposed_provenance_mut::<u8>(address as usize + range.start);
    // SAFETY: the caller's promise, for bytes. The slice ends before the next is made.
    let bytes = unsafe { std::slice::from_raw_parts(start.cast_const(), range.len()) };
    if !T::validate(bytes) {
        return Err(TensorError::NotBool);
    }
    // SAFETY: the caller's promise; values and alignment as in `elements`.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.cast::<T>(), range.len() / size_of::<T>()) })
}

fn wait_for(lease: &Lease, ticket: Option<Ticket>, deadline: Option<Instant>) -> Result<(), TensorError> {
    if let Some(tainted) = lease.taint() {
        return Err(tainted.into());
    }
    match ticket {
        Some(ticket) => match host_wait(lease.domain(), ticket, deadline)? {
            Waited::Passed => Ok(()),
            Waited::TimedOut => Err(TensorError::TimedOut),
        },
        None => Ok(()),
    }
}

impl Tensor {
    /// Blocks until the data is there.
    ///
    /// # Errors
    /// [`TensorError::Tainted`] where it will never be, or the deadline came first.
    pub fn wait(&self, deadline: Option<Instant>) -> Result<(), TensorError> {
        wait_for(&self.lease, self.ready, deadline)
    }

    /// Returns the elements of a packed host tensor, in row-major order. Blocks until they are there.
    ///
    /// # Errors
    /// Another dtype, a tensor that is not packed or not on the host, data that will never be there.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        let range = check::<T>(self.device(), self.dtype, &self.layout)?;
        self.wait(None)?;
        // SAFETY: the layout was checked against the allocation when the tensor was made, and dtype and
        // packing just now. The lease keeps the allocation and its mapping for as long as `self` is borrowed.
        // While a `Tensor` exists nobody writes its memory: the one writer froze it, and its last write has
        // passed (CLOCK-1).
        unsafe { elements(self.lease.address(), &range) }
    }

    /// Returns a copy of the elements of a host tensor in row-major order, whatever its strides. Blocks until
    /// they are there.
    ///
    /// # Errors
    /// Another dtype, a tensor that is not on the host, data that will never be there.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, TensorError> {
        if self.is_contiguous() {
            return Ok(self.as_slice()?.to_vec());
        }
        let span = self.layout.span();
        let row = self.span_slice::<T>()?;
        let mut elements = self.room_for_all::<T>()?;
        for run in self.layout.contiguous_runs() {
            elements.extend_from_slice(&row[run.start - span.start..run.end - span.start]);
        }
        Ok(elements)
    }

    /// Returns an empty vector with room for a copy of every element.
    pub(super) fn room_for_all<T: Element>(&self) -> Result<Vec<T>, TensorError> {
        self.check_repeats()?;
        let mut room = Vec::new();
        room.try_reserve_exact(self.len()).map_err(|_| self.too_many_elements())?;
        Ok(room)
    }

    /// WIRE-1: a layout that shows an element more than once can stand for any number of bytes.
    pub(crate) fn check_repeats(&self) -> Result<(), TensorError> {
        let (bytes, memory) = self.packed_and_spanned();
        if bytes > memory.max(MAX_BROADCAST_BYTES) { Err(self.too_many_elements()) } else { Ok(()) }
    }

    fn too_many_elements(&self) -> TensorError {
        let (bytes, memory) = self.packed_and_spanned();
        TensorError::NoRoomForCopy { shape: self.shape().to_vec(), bytes, memory }
    }

    /// Returns the bytes of all elements, packed, and of the memory that they lie in.
    fn packed_and_spanned(&self) -> (u64, u64) {
        let bytes = |elements: usize| (elements as u64).saturating_mul(self.dtype.size() as u64);
        (bytes(self.len()), bytes(self.layout.span().len()))
    }

    /// Returns every element from the first that the layout touches to the last, those between included.
    pub(super) fn span_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        let span = self.layout.span();
        let row = Layout::contiguous(&[span.len()])?.with_offset(span.start)?;
        let range = check::<T>(self.device(), self.dtype, &row)?;
        self.wait(None)?;
        // SAFETY: as for `as_slice`; the span of the layout lies in the allocation.
        unsafe { elements(self.lease.address(), &range) }
    }

    /// Returns the only element of a host tensor of one element. Blocks until it is there.
    ///
    /// # Errors
    /// As [`to_vec`](Self::to_vec), and any other number of elements.
    pub fn item<T: Element>(&self) -> Result<T, TensorError> {
        let elements = self.to_vec::<T>()?;
        match elements.as_slice() {
            [element] => Ok(*element),
            _ => Err(TensorError::Length { shape: vec![], wanted: 1, given: elements.len() }),
        }
    }
}

impl TensorMut {
    /// Blocks until all work with the memory that was put on streams is done.
    ///
    /// # Errors
    /// [`TensorError::Tainted`] where that work was lost with a process, or the deadline came first.
    pub fn wait(&self, deadline: Option<Instant>) -> Result<(), TensorError> {
        let Ok(last) = self.last_use() else {
            // No single ticket stands for all uses, so wait for each stream by itself.
            let users = self.lease().users();
            return users.iter().try_for_each(|stream| wait_for(self.lease(), stream.ticket(), deadline));
        };
        wait_for(self.lease(), last, deadline)
    }

    /// Returns the elements of a packed host tensor, in row-major order. Blocks until earlier work on them is
    /// done.
    ///
    /// # Errors
    /// As [`Tensor::as_slice`].
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        let range = check::<T>(self.device(), self.dtype(), self.layout())?;
        self.wait(None)?;
        let (address, _mapping) = self.lease().writable()?;
        // SAFETY: as for `Tensor::as_slice`; writers need `&mut self`, and queued ones were waited for.
        unsafe { elements(address, &range) }
    }

    /// Returns the elements of a packed host tensor, to write. Blocks until earlier work on them is done.
    ///
    /// # Errors
    /// As [`Tensor::as_slice`], and a chunk that cannot be mapped writable.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], TensorError> {
        let range = check::<T>(self.device(), self.dtype(), self.layout())?;
        self.wait(None)?;
        let (address, _mapping) = self.lease().writable()?;
        // SAFETY: the layout lies in the allocation and does not overlap itself; the lease, which also keeps
        // the writable mapping, is borrowed mutably with `self`; nobody else has the memory (ONE-WRITER), and
        // queued work was waited for.
        unsafe { elements_mut(address, &range) }
    }

    /// Returns every element from the first that the layout touches to the last, those between included, to
    /// write. Those between belong to nobody else: a `TensorMut` is the only handle on its allocation.
    pub(super) fn span_slice_mut<T: Element>(&mut self) -> Result<&mut [T], TensorError> {
        let span = self.layout().span();
        let row = Layout::contiguous(&[span.len()])?.with_offset(span.start)?;
        let range = check::<T>(self.device(), self.dtype(), &row)?;
        self.wait(None)?;
        let (address, _mapping) = self.lease().writable()?;
        // SAFETY: as for `as_mut_slice`; the span of the layout lies in the allocation.
        unsafe { elements_mut(address, &range) }
    }

    /// Copies `elements` into a packed host tensor. Blocks until earlier work on it is done.
    ///
    /// # Errors
    /// As [`as_mut_slice`](Self::as_mut_slice), and another number of elements.
    pub fn copy_from_slice<T: Element>(&mut self, elements: &[T]) -> Result<(), TensorError> {
        if elements.len() != self.len() {
            return Err(TensorError::Length {
                shape: self.shape().to_vec(),
                wanted: self.len(),
                given: elements.len(),
            });
        }
        self.as_mut_slice::<T>()?.copy_from_slice(elements);
        Ok(())
    }
}

/// Access for the gateway to other hosts, which passes bytes on and computes nothing.
#[cfg(feature = "hosts")]
impl Tensor {
    /// Returns the bytes of a packed host tensor, in row-major order. Blocks until they are there.
    ///
    /// # Errors
    /// As [`as_slice`](Self::as_slice), the dtype excepted.
    pub(crate) fn packed_bytes(&self) -> Result<&[u8], TensorError> {
        let range = check_bytes(self.device(), self.dtype, &self.layout)?;
        self.wait(None)?;
        // SAFETY: as for `as_slice`; every pattern of bytes is a value.
        unsafe { elements(self.lease.address(), &range) }
    }

    /// Returns whether its bytes can be passed on in place, without a wait.
    pub(crate) fn is_packed_and_ready(&self) -> bool {
        self.is_contiguous() && self.status() == TensorStatus::Ready
    }
}

#[cfg(feature = "hosts")]
impl TensorMut {
    /// Returns the bytes of a packed host tensor, to write. Blocks until earlier work on them is done.
    ///
    /// # Errors
    /// As [`as_mut_slice`](Self::as_mut_slice), the dtype excepted.
    pub(crate) fn packed_bytes_mut(&mut self) -> Result<&mut [u8], TensorError> {
        let range = check_bytes(self.device(), self.dtype(), self.layout())?;
        self.wait(None)?;
        let (address, _mapping) = self.lease().writable()?;
        // SAFETY: as for `as_mut_slice`. The bytes written may be no values of the dtype; reads as elements
        // check that.
        unsafe { elements_mut(address, &range) }
    }
}

/// Checks that work on the stream of `stream` can reach memory of `device`.
pub(super) fn in_reach(device: DeviceId, stream: &super::DeviceStream) -> Result<(), TensorError> {
    if stream.pool().backend().can_reach(device) {
        return Ok(());
    }
    Err(TensorError::OtherDevice { tensor: device.to_string(), stream: stream.device_id().to_string() })
}

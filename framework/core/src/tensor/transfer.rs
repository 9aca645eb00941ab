//! Copies into an existing tensor: from a slice on the host, or from another tensor.
//!
//! [`DeviceStream::from_slice`] and [`DeviceStream::copy`] make a new tensor. These fill one that was got by
//! [`DeviceStream::empty_when_free`], or a stretch of one.

#![expect(unsafe_code, reason = "copies between raw addresses, whose ranges the leases vouch for")]

use std::sync::Arc;

use smallvec::smallvec;

use super::host::in_reach;
use super::{DType, DeviceStream, Element, Tensor, TensorError, TensorMut};
use crate::device::Keep;

impl DeviceStream {
    /// Fills a packed tensor of this device with elements in row-major order. The caller may reuse `elements`
    /// when this returns; the tensor has them when the stream gets there.
    ///
    /// # Errors
    /// Another dtype, device or number of elements, a tensor that is not packed, a device that refuses.
    pub fn upload<T: Element>(&self, tensor: &mut TensorMut, elements: &[T]) -> Result<(), TensorError> {
        if tensor.dtype() != T::DTYPE {
            return Err(TensorError::DType { asked: T::DTYPE, found: tensor.dtype() });
        }
        if tensor.len() != elements.len() {
            let (shape, wanted) = (tensor.shape().to_vec(), tensor.len());
            return Err(TensorError::Length { shape, wanted, given: elements.len() });
        }
        let to = self.packed_start(tensor)?;
        let keep = smallvec![tensor.lease().writable()?.1];
        // SAFETY: the layout lies in the allocation and is packed, so there is room for exactly these
        // elements from its first. The allocation is writable and this tensor's alone. `write_on` has put the
        // stream behind every other use, and the memory's reuse behind the stream.
        unsafe { self.clocked().backend().upload(to, bytemuck::cast_slice(elements), keep)? };
        Ok(())
    }

    /// As [`upload`](Self::upload), for elements of any type given as bytes, such as those of a file.
    ///
    /// # Errors
    /// Another device or number of bytes, bytes that are no `bool`, a tensor that is not packed, a device
    /// that refuses.
    pub fn upload_bytes(&self, tensor: &mut TensorMut, bytes: &[u8]) -> Result<(), TensorError> {
        let (wanted, given) = (tensor.layout().packed_bytes(tensor.dtype())?, bytes.len());
        if wanted != given {
            return Err(TensorError::Length { shape: tensor.shape().to_vec(), wanted, given });
        }
        if tensor.dtype() == DType::Bool && !bool::validate(bytes) {
            return Err(TensorError::NotBool);
        }
        let to = self.packed_start(tensor)?;
        let keep = smallvec![tensor.lease().writable()?.1];
        // SAFETY: as for `upload`: there is room for exactly these bytes.
        unsafe { self.clocked().backend().upload(to, bytes, keep)? };
        Ok(())
    }

    /// Returns the elements of a tensor on this device as bytes, in row-major order whatever its strides, as
    /// a file holds them. Blocks until they are there.
    ///
    /// # Errors
    /// Another device, data that will never be there.
    pub fn download_bytes(&self, tensor: &Tensor) -> Result<Vec<u8>, TensorError> {
        in_reach(tensor.device(), self)?;
        let packed = if tensor.is_contiguous() { tensor.clone() } else { self.copy(tensor)?.freeze() };
        let mut bytes = vec![0_u8; packed.layout().bytes_span(packed.dtype())?.len()];
        self.bring(&packed, &mut bytes)?;
        Ok(bytes)
    }

    /// Copies a tensor of this device, whatever its strides, into a packed one: its elements in row-major
    /// order replace those from `at` on. That gathers several tensors into one, with one copy each where they
    /// are packed. With a source of another node than the stream this blocks, as [`copy`](Self::copy) does.
    ///
    /// ```
    /// use tensorpost::prelude::*;
    ///
    /// # fn main() -> anyhow::Result<()> {
    /// # let node = Node::builder().start()?;
    /// # let stream = node.host_stream()?;
    /// let (a, b) = (stream.from_slice(&[2], &[1_u8, 2])?.freeze(), stream.from_slice(&[2], &[3_u8, 4])?.freeze());
    /// let mut both = stream.empty(DType::U8, &[2, 2])?;
    /// stream.copy_into(&mut both, 0, &a)?;
    /// stream.copy_into(&mut both, 2, &b)?;
    /// assert_eq!(both.freeze().to_vec::<u8>()?, [1, 2, 3, 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Another dtype or device, a target that is not packed or too short, a device that refuses.
    pub fn copy_into(&self, tensor: &mut TensorMut, at: usize, source: &Tensor) -> Result<(), TensorError> {
        if tensor.dtype() != source.dtype() {
            return Err(TensorError::DType { asked: source.dtype(), found: tensor.dtype() });
        }
        let room = tensor.len().saturating_sub(at);
        if at > tensor.len() || room < source.len() {
            let (shape, wanted) = (source.shape().to_vec(), source.len());
            return Err(TensorError::Length { shape, wanted, given: room });
        }
        in_reach(source.device(), self)?;
        let size = source.dtype().size() as u64;
        self.read_for_copy(source, |from| {
            let mut to = self.packed_start(tensor)? + at as u64 * size;
            let keep: Keep = smallvec![Arc::clone(source.lease().mapping()), tensor.lease().writable()?.1];
            for run in source.layout().contiguous_runs() {
                let (from, bytes) = (from + run.start as u64 * size, run.len() as u64 * size);
                // SAFETY: the runs lie in the source's allocation. Together they are no longer than the rest
                // of the target's packed elements from `at` on, as was checked. While there is a `Tensor` on
                // it, the source is no `TensorMut`'s memory. Both stay mapped in `keep`, and `read_for_copy`
                // and `write_on` have ordered the stream with every other use.
                unsafe { self.clocked().backend().copy(to, from, bytes, keep.clone())? };
                to += bytes;
            }
            Ok(())
        })
    }

    /// Returns the address of a packed tensor's first element, to write on this stream.
    fn packed_start(&self, tensor: &mut TensorMut) -> Result<u64, TensorError> {
        if !tensor.layout().is_contiguous() {
            let (shape, strides) = (tensor.shape().to_vec(), tensor.strides().to_vec());
            return Err(TensorError::NotContiguous { shape, strides });
        }
        in_reach(tensor.device(), self)?;
        let offset = tensor.layout().bytes_span(tensor.dtype())?.start as u64;
        Ok(tensor.write_on(self.clocked())? + offset)
    }
}

//! Tensors to and from candle, on its CPU, with one copy each way.
//!
//! candle stores elements in a `Vec` that it frees itself. So a tensor to candle is copied into a `Vec`, and
//! a tensor from candle is copied into the pool, from where it is sent without another copy. A tensor on a
//! GPU goes through the host: candle's own GPU support links CUDA when it is built, and cannot work on our
//! streams.

use candle_core::{CpuStorage, Device, Storage, WithDType};

use super::{DType, DeviceStream, Element, Tensor, TensorError, TensorMut};
use crate::ids::DeviceId;

fn refused(why: impl Into<String>) -> TensorError {
    TensorError::Candle { why: why.into() }
}

fn by_candle(error: candle_core::Error) -> TensorError {
    refused(error.to_string())
}

impl DeviceStream {
    /// Returns the tensor as a candle tensor on the CPU. The tensor may have any strides, and be on the host
    /// or on this stream's device. Blocks until its data is there.
    ///
    /// ```
    /// use candle_core::Device;
    /// use tensorpost::prelude::*;
    ///
    /// # fn main() -> anyhow::Result<()> {
    /// # let node = Node::builder().start()?;
    /// # let stream = node.host_stream()?;
    /// let weights = stream.from_slice(&[2, 2], &[1.0_f32, 2.0, 3.0, 4.0])?.freeze();
    /// let batch = candle_core::Tensor::new(&[[10.0_f32, 1.0]], &Device::Cpu)?;
    /// let product = batch.matmul(&stream.to_candle(&weights)?)?;
    /// let product = stream.from_candle(&product)?.freeze(); // in the pool: sent without another copy
    /// assert_eq!((product.shape(), product.to_vec::<f32>()?), (&[1, 2][..], vec![13.0, 24.0]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A dtype that candle does not have, a tensor on another device, data that will never be there.
    pub fn to_candle(&self, tensor: &Tensor) -> Result<candle_core::Tensor, TensorError> {
        match tensor.dtype() {
            DType::U8 => self.copied_to_candle::<u8>(tensor),
            DType::U32 => self.copied_to_candle::<u32>(tensor),
            DType::I16 => self.copied_to_candle::<i16>(tensor),
            DType::I32 => self.copied_to_candle::<i32>(tensor),
            DType::I64 => self.copied_to_candle::<i64>(tensor),
            DType::F16 => self.copied_to_candle::<half::f16>(tensor),
            DType::BF16 => self.copied_to_candle::<half::bf16>(tensor),
            DType::F32 => self.copied_to_candle::<f32>(tensor),
            DType::F64 => self.copied_to_candle::<f64>(tensor),
            other @ (DType::I8 | DType::U16 | DType::U64 | DType::Bool) => {
                Err(refused(format!("candle has no tensors of {other}; convert it first, with `.cast(..)`")))
            }
            other => Err(refused(format!(
                "candle has no tensors of {other}; take its bytes with `download_bytes`"
            ))),
        }
    }

    fn copied_to_candle<T: Element + WithDType>(
        &self,
        tensor: &Tensor,
    ) -> Result<candle_core::Tensor, TensorError> {
        let elements = match tensor.device() {
            DeviceId::HOST => tensor.to_vec::<T>()?,
            _ => self.download::<T>(tensor)?,
        };
        candle_core::Tensor::from_vec(elements, tensor.shape(), &Device::Cpu).map_err(by_candle)
    }

    /// Copies a candle tensor into a packed tensor in memory of this stream's device.
    ///
    /// # Errors
    /// A tensor that is not on candle's CPU, a dtype that Tensorpost does not have, no memory.
    pub fn from_candle(&self, tensor: &candle_core::Tensor) -> Result<TensorMut, TensorError> {
        let packed = tensor.contiguous().map_err(by_candle)?;
        let (storage, layout) = packed.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else {
            return Err(refused(
                "it is on a GPU of candle's; bring it to the CPU first, with `.to_device(&Device::Cpu)`",
            ));
        };
        let Some((start, end)) = layout.contiguous_offsets() else {
            return Err(refused(format!("candle does not pack a tensor of shape {:?}", packed.dims())));
        };
        let (shape, range) = (packed.dims(), start..end);
        match storage {
            CpuStorage::U8(all) => self.from_slice(shape, &all[range]),
            CpuStorage::U32(all) => self.from_slice(shape, &all[range]),
            CpuStorage::I16(all) => self.from_slice(shape, &all[range]),
            CpuStorage::I32(all) => self.from_slice(shape, &all[range]),
            CpuStorage::I64(all) => self.from_slice(shape, &all[range]),
            CpuStorage::F16(all) => self.from_slice(shape, &all[range]),
            CpuStorage::BF16(all) => self.from_slice(shape, &all[range]),
            CpuStorage::F32(all) => self.from_slice(shape, &all[range]),
            CpuStorage::F64(all) => self.from_slice(shape, &all[range]),
            _ => Err(refused(format!(
                "there are no tensors of candle's {:?} here; convert it first, with `.to_dtype(..)`",
                packed.dtype()
            ))),
        }
    }
}

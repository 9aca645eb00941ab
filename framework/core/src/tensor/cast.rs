//! Host tensors in another element type.

use half::{bf16, f16};

use super::{DType, DeviceStream, Element, Tensor, TensorError, TensorMut};

/// Calls `$generic::<T>($args)` with the Rust type of `$dtype` as `T`.
macro_rules! with_type {
    ($dtype:expr, $this:ident . $generic:ident :: <$($before:ident,)? _> ($($args:expr),*)) => {
        match $dtype {
            DType::Bool => $this.$generic::<$($before,)? bool>($($args),*),
            DType::U8 => $this.$generic::<$($before,)? u8>($($args),*),
            DType::U16 => $this.$generic::<$($before,)? u16>($($args),*),
            DType::U32 => $this.$generic::<$($before,)? u32>($($args),*),
            DType::U64 => $this.$generic::<$($before,)? u64>($($args),*),
            DType::I8 => $this.$generic::<$($before,)? i8>($($args),*),
            DType::I16 => $this.$generic::<$($before,)? i16>($($args),*),
            DType::I32 => $this.$generic::<$($before,)? i32>($($args),*),
            DType::I64 => $this.$generic::<$($before,)? i64>($($args),*),
            DType::F16 => $this.$generic::<$($before,)? f16>($($args),*),
            DType::BF16 => $this.$generic::<$($before,)? bf16>($($args),*),
            DType::F32 => $this.$generic::<$($before,)? f32>($($args),*),
            DType::F64 => $this.$generic::<$($before,)? f64>($($args),*),
            dtype => Err(TensorError::NoElement { dtype }),
        }
    };
}

impl Tensor {
    /// Returns a packed tensor of the same shape with the elements of this host tensor as another type. It
    /// runs on the calling thread and is done when it returns. The memory comes from `stream`, a stream of
    /// the host.
    ///
    /// Each element is converted as by Rust's `as`: an integer keeps its lowest bits; a float is rounded
    /// towards zero and stops at the ends of the integer's range; NaN becomes 0. Every value but 0 becomes
    /// `true`, NaN too. A 16-bit float is made from the nearest `f32`.
    ///
    /// ```
    /// use tensorpost::prelude::*;
    ///
    /// # fn main() -> anyhow::Result<()> {
    /// # let node = Node::builder().start()?;
    /// # let stream = node.host_stream()?;
    /// let floats = stream.from_slice(&[4], &[-1.0_f32, 0.9, 254.5, 1e9])?.freeze();
    /// let bytes = floats.cast(&stream, DType::U8)?.freeze();
    /// assert_eq!(bytes.to_vec::<u8>()?, [0, 0, 254, 255]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A tensor or stream that is not on the host, a dtype that Rust has no type for, data that will never be
    /// there, no memory.
    pub fn cast(&self, stream: &DeviceStream, dtype: DType) -> Result<TensorMut, TensorError> {
        with_type!(self.dtype(), self.cast_from::<_>(stream, dtype))
    }

    fn cast_from<T: Element>(&self, stream: &DeviceStream, dtype: DType) -> Result<TensorMut, TensorError> {
        with_type!(dtype, self.cast_between::<T, _>(stream))
    }

    fn cast_between<T: Element, U: Element>(&self, stream: &DeviceStream) -> Result<TensorMut, TensorError> {
        self.map(stream, |element: T| element.scalar_cast::<U>())
    }
}

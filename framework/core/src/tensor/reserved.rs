//! Memory whose last users the host waits for instead of a stream. The gateway to other hosts needs it: its
//! streams wait for nothing that has not passed (HOST-7).

use std::task::Waker;

use super::{DType, DeviceStream, Layout, TensorError, TensorMut};
use crate::lease::pool::Allocation;
use crate::stream::host_wait_in_order;

/// Memory that was taken from the pool and that earlier holders may still use. Dropping it gives it back.
pub(crate) struct Reserved {
    allocation: Allocation,
    dtype: DType,
    layout: Layout,
}

impl DeviceStream {
    /// Takes memory for a tensor. It waits for no earlier user, but the pool may ask the device for a chunk.
    ///
    /// # Errors
    /// As for [`empty`](Self::empty). Where the pool is full, the waker is woken when memory comes back.
    pub(crate) fn reserve(
        &self,
        dtype: DType,
        shape: &[usize],
        waker: Option<&Waker>,
    ) -> Result<Reserved, TensorError> {
        let layout = Layout::contiguous(shape)?;
        let bytes = layout.packed_bytes(dtype)? as u64;
        let allocation = match waker {
            Some(waker) => self.pool().poll_allocate(bytes, waker)?,
            None => self.pool().allocate(bytes)?,
        };
        Ok(Reserved { allocation, dtype, layout })
    }

    /// Blocks until nobody uses the memory any more (CLOCK-2), and returns the tensor. It puts no wait on the
    /// stream.
    ///
    /// # Errors
    /// As for [`empty`](Self::empty).
    pub(crate) fn settle(&self, reserved: Reserved) -> Result<TensorMut, TensorError> {
        let Reserved { allocation, dtype, layout } = reserved;
        for ticket in &allocation.after {
            host_wait_in_order(self.clocked().domain(), *ticket)?;
        }
        self.adopt(allocation, dtype, layout)
    }
}

//! The node that a value belongs to, as one of its processes sees it: what addresses send by, and the memory that tensors
//! have to be in to be sent.

use std::sync::Arc;

use pyo3::prelude::*;
use tensorpost_core::foreign::{Transport, can_leave_by};
use tensorpost_core::tensor::{DeviceStream, DlPackReady, Tensor, TensorError};

use crate::failure::exception;

/// See the module.
pub(crate) struct Context {
    pub(crate) transport: Arc<Transport>,
    stream: DeviceStream,
}

impl Context {
    pub(crate) fn new(transport: Arc<Transport>, stream: DeviceStream) -> Arc<Self> {
        Arc::new(Context { transport, stream })
    }

    /// The same tensors, each where other processes can have it: one on memory of another library is copied, and the copy is
    /// done when this returns.
    pub(crate) fn shared(&self, py: Python<'_>, tensors: Vec<Tensor>) -> PyResult<Vec<Tensor>> {
        if tensors.iter().all(|tensor| can_leave_by(tensor, &self.transport)) {
            return Ok(tensors);
        }
        let copied: Result<Vec<_>, TensorError> =
            py.detach(|| tensors.into_iter().map(|tensor| self.copied(tensor)).collect());
        copied.map_err(|error| exception(py, "TensorError", format!("a tensor cannot be sent: {error}")))
    }

    fn copied(&self, tensor: Tensor) -> Result<Tensor, TensorError> {
        if can_leave_by(&tensor, &self.transport) {
            return Ok(tensor);
        }
        // By DLPack, because its clock may be another node's.
        let here = self.stream.from_dlpack(tensor.to_dlpack()?, DlPackReady::Now)?;
        let copy = self.stream.copy(&here)?;
        // Whoever sent it may write its memory as soon as the send returns.
        copy.wait(None)?;
        Ok(copy.freeze())
    }
}
